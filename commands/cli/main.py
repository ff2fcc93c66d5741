"""The command `trimaran`: parse first, import what a command needs afterwards."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from commands.cli.options import parse
from trimaran.errors import InputError, TrimaranError
from trimaran.host.system_errors import is_of_the_machine

FILE_ENDINGS = (".yaml", ".yml", ".json")

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 when what the user gave is wrong, 1 when the work failed."""
    options = parse(arguments)
    try:
        code = _run(options)
        sys.stdout.flush()
        return code
    except InputError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2
    except TrimaranError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before anything was started, or after all of it had ended
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of the output is gone, as after `| head`
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # for what Python flushes yet
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None:
            raise
        logger.info("the file that could not be used", exc_info=True)  # only where a log is kept
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1 if is_of_the_machine(error) else 2


def _refuse_files(options: argparse.Namespace) -> None:
    """Where settings are expected. Raises InputError."""
    for word in getattr(options, "overrides", ()):
        if "=" in word or not (word.endswith(FILE_ENDINGS) or Path(word).exists()):
            continue
        if options.command == "up":
            raise InputError(f"{word}: give the operator's file as --config {word}")
        raise InputError(
            f"{word}: only one file can be given, and behind it settings such as run.seed=2; write what"
            f" {word} sets as such settings, or into a copy of the first file"
        )


def _run(options: argparse.Namespace) -> int:
    _refuse_files(options)
    if hasattr(options, "allow"):
        _pass_on(options.allow)
    if getattr(options, "ray_address", None):
        from trimaran.run.ray.cluster import ADDRESS_VARIABLE

        os.environ[ADDRESS_VARIABLE] = options.ray_address
    module, _, function = options.run_by.partition(":")
    return getattr(importlib.import_module(f"commands.cli.{module}"), function)(options)


def _pass_on(allow: Sequence[str]) -> None:
    """To the services, which inherit the environment. A file's path is taken from here, wherever
    they run."""
    from trimaran.trust.allowed import ALLOW_VARIABLE, absolute_entry

    known = os.environ.get(ALLOW_VARIABLE, "").split("\n")
    if entries := [*filter(None, map(str.strip, known)), *allow]:
        os.environ[ALLOW_VARIABLE] = "\n".join(map(absolute_entry, entries))
