"""`python -m trimaran.cli`: the same as the command `trimaran`."""

import sys

from trimaran.cli.main import main

sys.exit(main())
