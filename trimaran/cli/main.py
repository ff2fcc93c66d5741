"""The command `trimaran`: parse first, import what a command needs afterwards."""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from trimaran.cli.options import parse
from trimaran.cli.run_options import RUN_COMMANDS
from trimaran.errors import InputError, TrimaranError
from trimaran.system_errors import is_of_the_machine

FILE_ENDINGS = (".yaml", ".yml", ".json")

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 when what the user gave is wrong, 1 when the work failed."""
    options = parse(arguments)
    try:
        code = _dispatch(options)
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
    except BrokenPipeError:
        if not _has_lost_reader():
            raise
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None:
            raise
        logger.info("the file that could not be used", exc_info=True)  # only where a log is kept
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1 if is_of_the_machine(error) else 2


def _has_lost_reader() -> bool:
    """Whether nobody reads our output any more, as after `| head`. What is left of it is dropped, which
    Python would otherwise try to write, and complain of, when it ends."""
    output = select.poll()
    output.register(sys.stdout, 0)  # whatever is asked for, it tells of a lost reader
    if not output.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


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


def _dispatch(options: argparse.Namespace) -> int:
    _refuse_files(options)
    if hasattr(options, "allow"):
        _pass_on(options.allow)
    if getattr(options, "ray_address", None):
        from trimaran.launch.ray.cluster import ADDRESS_VARIABLE

        os.environ[ADDRESS_VARIABLE] = options.ray_address
    if options.command == "train":
        from trimaran.cli.train import resume, train

        if options.resume is not None:
            words = [] if options.config is None else [options.config]
            if words and "=" not in words[0]:
                raise InputError(
                    f"{options.config}: a resumed run keeps its configuration;"
                    " give --resume RUN without a file"
                )
            overrides = [*words, *options.overrides]
            return resume(options.resume, options.network, options.launcher, overrides)
        if options.config is None:
            raise InputError("train: give a run's YAML file, or --resume RUN")
        return train(
            options.config, options.overrides, options.network, options.launcher, options.store
        )
    if options.command == "launch":
        from trimaran.cli.launch import launch_run

        return launch_run(options.run_folder)
    if options.command == "health":
        from trimaran.cli.health import health

        return health(options.kind, options.address, options.timeout)
    if options.command == "token":
        from trimaran.cli.token import new

        return new(options.owner, options.role, options.name)
    if options.command == "model":
        from trimaran.cli.model import push

        return push(options.folder, options.url)
    if options.command == "data":
        from trimaran.cli.data import data

        return data(options)
    if options.command == "up":
        from trimaran.cli.up import up

        return up(options)
    if options.command == "doctor":
        return _doctor(options)
    if options.command == "plan":
        from trimaran.cli.plan import plan

        return plan(options.config, options.overrides, options.device_memory)
    if options.command == "convert":
        from trimaran.cli.convert import convert

        return convert(options)
    if options.command == "import":
        from trimaran.cli.import_ import import_run

        return import_run(options.system, options.file, options.overrides, options.output)
    if options.command in RUN_COMMANDS:
        from trimaran.cli.runs import dispatch

        return dispatch(options)
    if options.command == "weights":
        return _weights(options)
    if options.command == "ledger":
        from trimaran.cli.ledger import ledger

        return ledger(options)
    if options.command == "experts":
        from trimaran.cli.experts import experts

        return experts(options)
    if options.command == "replay":
        from trimaran.cli.replay import replay

        return replay(options.run, options.start)
    if options.command == "reward":
        return _reward(options)
    return _serve(options)


def _serve(options: argparse.Namespace) -> int:
    if options.store_file is not None:
        from trimaran.cli.serve_joined import serve_joined

        return serve_joined(options)
    if options.index is None:
        raise InputError("--index auto: needs the manager's store; give --store-file FILE")
    from trimaran.cli.serve import serve

    return serve(options.kind, options.config, options.run_folder, options.index, options.address)


def _pass_on(allow: Sequence[str]) -> None:
    """To the services, which inherit the environment. A file's path is taken from here, wherever
    they run."""
    from services.reward.allowed import ALLOW_VARIABLE, absolute_entry

    known = os.environ.get(ALLOW_VARIABLE, "").split("\n")
    if entries := [*filter(None, map(str.strip, known)), *allow]:
        os.environ[ALLOW_VARIABLE] = "\n".join(map(absolute_entry, entries))


def _doctor(options: argparse.Namespace) -> int:
    from trimaran.cli import doctor
    from trimaran.cli.trust_options import trust_of
    from trimaran.trust import read_token

    trust = trust_of(options, read_token(Path(options.token_file)) if options.token_file else "")
    if options.listen is not None:
        return doctor.listen(options.listen, trust)
    return doctor.doctor(
        options.config, options.overrides, options.host, trust, options.store, options.json
    )


def _weights(options: argparse.Namespace) -> int:
    from trimaran.cli import weights

    if options.question == "list":
        return weights.list_versions(options.run, options.address, options.json)
    if options.question == "show":
        return weights.show_version(options.run, options.version, options.address, options.json)
    return weights.verify(options.target, options.address, options.json)


def _reward(options: argparse.Namespace) -> int:
    if options.action == "serve":
        from trimaran.cli.reward_serve import serve

        return serve(options)
    from trimaran.cli import reward

    if options.action == "schema":
        return reward.print_schema()
    return reward.check(
        options.url, options.token_variable, options.ca_file, options.timeout, options.json
    )
