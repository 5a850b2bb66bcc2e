"""`python -m analyzer.cli` is the command `analyzer`."""

import sys

from analyzer.cli import main

sys.exit(main())
