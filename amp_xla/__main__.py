import sys

from amp_xla.cli import main

sys.exit(main())
