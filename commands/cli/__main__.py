"""`python -m commands.cli`: the same as the command `trimaran`, with a quick end."""

import atexit
import os
import sys

from commands.cli.main import main

code: int | None = None
"""None: not known, so the interpreter ends as it does."""


def _end_at_once() -> None:
    if code is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# Registered first, so called last: all else that has to be done at the end is done. What would follow
# takes every module apart, which is two seconds of computing for vLLM's.
atexit.register(_end_at_once)
code = main()
sys.exit(code)
