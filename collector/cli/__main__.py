"""`python -m collector.cli`, where the script `collector` is not installed."""

import sys

from collector.cli import main

sys.exit(main())
