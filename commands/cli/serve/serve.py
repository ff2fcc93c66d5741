"""`trimaran serve`: one service in this process.

Sets the process environment (by executing itself again when it differs), ties its life to the
launcher's, and turns SIGTERM and SIGINT into an orderly end.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, cast

from commands.cli.train.host_checks import prepare_host
from commands.launch.local.endpoints import with_replica
from trimaran.config import RunConfig, load_config
from trimaran.errors import InputError, TrimaranError, first_error
from trimaran.host.large_imports import large_imports
from trimaran.host.lifetime import PARENT_VARIABLE, die_with_parent
from trimaran.host.open_files import raise_limit
from trimaran.run.context import CONTEXT_NAME, RunContext
from trimaran.run.environment import (
    process_name,
    serve_command,
    service_address,
)
from trimaran.run.exits import FAILED, exit_code
from trimaran.run.network import find_host, join
from trimaran.run.placement import placed_environment
from trimaran.telemetry import tracing
from trimaran.telemetry.run_files import setup_logging
from trimaran.trust.credentials import is_of_bucket
from trimaran.wire.health_note import Notes

STOP_SECONDS = 20.0
"""An orderly end that takes longer is cut short."""

MODULES = {"follower": "services.rollout.follower.server"}
"""Where that is not the service's own."""

logger = logging.getLogger(__name__)


def run(options: argparse.Namespace) -> int:
    """A service of a run that is named, or (--store-file) of the next run that needs one."""
    if options.store_file is not None:
        from commands.cli.serve.serve_joined import serve_joined

        return serve_joined(options)
    if options.index is None:
        raise InputError("--index auto: needs the manager's store; give --store-file FILE")
    return serve(options.kind, options.config, options.run_folder, options.index, options.address)


def serve(
    kind: str, config_path: str | None, run_folder: str, index: int, address: str = ""
) -> int:
    """`config_path` None: the configuration stands in the run's store, and so do the addresses of
    the run's services; this one registers there."""
    folder = Path(run_folder).resolve()
    if config_path and kind == "follower":
        raise InputError("--config: a follower finds its replica in the run's store; leave it out")
    if config_path:
        config = load_config(config_path)
        if address:
            if kind != "rollout":
                raise InputError("--address: only replicas join beyond those of the configuration")
            config = with_replica(config, index, address)
        service_address(config, kind, index)
        if not folder.is_dir():
            raise InputError(f"--run-folder: {folder} is not a folder; make it first")
    else:
        config = _recorded_config(folder)
    run = RunContext.in_folder(folder)
    # At once, and not when it has waited for others.
    run.trust.check_address(join(find_host(config.network).address, 0))
    environment = placed_environment(config, kind, index, os.environ)
    if environment != os.environ:
        command = serve_command(kind, config_path, run_folder, index, address)
        os.execve(command[0], command, environment)
    parent = os.environ.get(PARENT_VARIABLE)
    if parent:
        die_with_parent(int(parent), signal.SIGTERM)
    setup_logging(process_name(kind, index), run.run_id)
    raise_limit()
    tracing.configure(os.environ)
    notes = Notes.claim(process_name(kind, index), os.environ, folder)
    notes.wait("starts", config.start_timeout)
    if config_path:
        return _Service(kind, run, index).run(config)
    return _serve_registered(kind, config, run, index)


def _recorded_config(folder: Path) -> RunConfig:
    if not (folder / CONTEXT_NAME).is_file():
        raise InputError(
            f"--run-folder: {folder} holds no {CONTEXT_NAME}, which names the run's store; its"
            " launcher writes it there; or give --config FILE, or --store-file FILE"
        )
    from trimaran.run.folder import recorded_config  # late: only who has no file needs it

    return asyncio.run(recorded_config(RunContext.in_folder(folder)))


def _serve_registered(kind: str, config: RunConfig, run: RunContext, index: int) -> int:
    """Its end is recorded in the run's store as well: no launcher there sees its exit code."""
    from commands.launch.joining.registered import Registered  # late, as above

    faults: list[Exception] = []
    has_ended = threading.Event()

    def end(fault: Exception | None) -> None:
        """Called in the registration's thread; our own loop may stand still."""
        if has_ended.is_set():
            return
        code = exit_code(fault) if fault else 0
        if fault:
            faults.append(fault)
            tell_error(fault)
        _cut_short_after(STOP_SECONDS, "; it was asked to end", code)
        os.kill(os.getpid(), signal.SIGTERM)

    def tell_end(code: int, lines: Collection[str] = ()) -> None:
        has_ended.set()
        registered.end(code, lines)

    registered = Registered(config, run, kind, index, end)
    service = _Service(kind, run, index, tell_end)
    # Until the service has an event loop, which takes signals itself.
    signal.signal(signal.SIGTERM, _leave)
    try:
        code = service.run(registered.start())
    except SystemExit:
        tell_end(-signal.SIGTERM)
        code = 0
    except TrimaranError as error:  # it never began
        code = tell_error(error)
    return exit_code(faults[0]) if faults else code


def _leave(number: int, frame: object) -> None:
    sys.exit(0)


class _Service:
    """One service's work in this process."""

    def __init__(
        self,
        kind: str,
        run: RunContext,
        index: int,
        on_end: Callable[[int, Collection[str]], None] = lambda code, lines: None,
    ) -> None:
        """`on_end`: called with the exit code, or the signal that ended it, negative; and its last words."""
        self._kind, self._run, self._index, self._on_end = kind, run, index, on_end

    def run(self, config: RunConfig) -> int:
        """Returns the exit code."""
        try:
            config = self._prepare(config)
            # Late: this loads the service's libraries, and only now stands their environment.
            with large_imports():
                module = importlib.import_module(MODULES.get(self._kind, _module_of(self._kind)))
            asyncio.run(self._until_stopped(module, config))
        except asyncio.CancelledError:
            self._on_end(-signal.SIGTERM, ())
            return 0
        except Exception as error:
            return self._fail(error)
        finally:
            tracing.stop()
        self._on_end(0, ())
        return 0

    def _prepare(self, config: RunConfig) -> RunConfig:
        config = asyncio.run(prepare_host(self._kind, self._index, config, self._run))
        if self._kind in (
            "rollout",
            "follower",
        ):  # what has fetched the model is not for vLLM's processes
            for name in filter(is_of_bucket, list(os.environ)):
                del os.environ[name]
        return config

    async def _until_stopped(self, module: Any, config: RunConfig) -> None:
        task = asyncio.current_task()
        assert task
        loop = asyncio.get_running_loop()

        def stop(number: signal.Signals) -> None:
            logger.info("%s: stopping", number.name)
            _cut_short_after(STOP_SECONDS, "")
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        try:
            await module.serve(config, self._run, self._index)
        except Exception as error:
            # What has failed may have left a thread that hangs; it must not hold the process.
            code, words = exit_code(error), _words(error)
            _cut_short_after(
                *(STOP_SECONDS, f"; it ends because of: {error}", code),
                before=lambda: self._on_end(code, words),
            )
            raise

    def _fail(self, error: Exception) -> int:
        cause: BaseException = error
        if not isinstance(error, TrimaranError):
            logger.exception("the service failed")
            if isinstance(error, ExceptionGroup):
                group = cast(ExceptionGroup[Exception], error)
                if ours := group.subgroup(TrimaranError):
                    cause = first_error(ours)
        code = tell_error(cause) if isinstance(cause, TrimaranError) else FAILED
        self._on_end(code, _words(cause))
        return code


def _module_of(kind: str) -> str:
    return f"services.{kind.replace('-', '_')}.server"


def tell_error(error: BaseException) -> int:
    """On standard error. Returns the exit code."""
    print(*_words(error), sep="\n", file=sys.stderr)
    return exit_code(error)


def _words(error: BaseException) -> list[str]:
    return [f"error: {line}" for line in str(error).splitlines()]


def _cut_short_after(
    seconds: float, cause: str, code: int = FAILED, before: Callable[[], None] = lambda: None
) -> None:
    def cut_short() -> None:
        logger.error("still not stopped after %g s: ending now%s", seconds, cause)
        before()
        os._exit(code)

    timer = threading.Timer(seconds, cut_short)
    timer.daemon = True
    timer.start()
