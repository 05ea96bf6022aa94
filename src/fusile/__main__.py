"""`python -m fusile`: the command line."""

import sys

from fusile.cli.main import main

sys.exit(main())
