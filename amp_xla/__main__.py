import sys

from amp_xla.process import exits

exits.guard()  # from the first line on; what follows imports much

from amp_xla.commands.cli import main  # noqa: E402

sys.exit(main())
