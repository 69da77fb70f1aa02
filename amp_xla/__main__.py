import sys

from amp_xla.process import exits

exits.guard()  # before the next import, which takes seconds

from amp_xla.commands.cli import main  # noqa: E402

sys.exit(main())
