"""`python -m commands.cli`: the same as the command `trimaran`."""

import sys

from commands.cli.main import main

sys.exit(main())
