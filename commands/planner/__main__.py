"""`python -m trimaran.model.memory docs/parallelism.md` brings its tables up to date."""

import sys
from pathlib import Path

from commands.planner.document import rewrite

if __name__ == "__main__":
    rewrite(Path(sys.argv[1]))
