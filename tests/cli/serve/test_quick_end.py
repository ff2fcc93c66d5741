"""`python -m commands.cli` ends without taking its modules apart."""

import subprocess
import sys
from textwrap import dedent

PROGRAM = """
    import atexit, os, runpy, sys
    import commands.cli.main

    class Kept:
        def __del__(self, write=os.write):
            write(1, b"taken apart")

    def main():
        atexit.register(print, "all else is done")
        sys.kept = Kept()
        print("no newline", end="")
        return {code}

    commands.cli.main.main = main
    runpy.run_module("commands.cli", run_name="__main__")
"""


def test_the_end_is_quick_and_keeps_its_code_and_output() -> None:
    done = subprocess.run(
        [sys.executable, "-c", dedent(PROGRAM.format(code=3))],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 3, done.stderr
    assert done.stdout == "no newlineall else is done\n"
