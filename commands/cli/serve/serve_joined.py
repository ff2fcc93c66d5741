"""`trimaran serve KIND --store-file FILE --token-file FILE`: what a container engine starts.

Waits for a run that needs such a service, makes this host's folder of the run, and goes on there as
`trimaran serve KIND --run-folder FOLDER --index N`. No secret is in a command line or an environment.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from pathlib import Path

from commands.cli.serve.serve import tell_error
from commands.cli.serve.trust_options import trust_of
from commands.launch.joining.joining import WAIT_SECONDS, JoinedProcess, join_run
from trimaran.errors import InputError, TrimaranError
from trimaran.run.context import CONTEXT_NAME, RunContext
from trimaran.run.environment import process_name, serve_command
from trimaran.run.placement import PLACED
from trimaran.telemetry.run_files import setup_logging
from trimaran.trust.access import Trust, read_secret, write_token
from trimaran.wire.health_note import Notes, noted_file


def serve_joined(options: argparse.Namespace, seconds: float = WAIT_SECONDS) -> int:
    """Does not return once the process serves a run. `seconds`: to wait for one."""
    kind: str = options.kind
    setup_logging(kind)
    store_url = read_secret(options.store_file, "--store-file")
    token = read_secret(options.token_file, "--token-file") if options.token_file else ""
    trust = trust_of(options, token)
    try:
        place = asyncio.run(_join(store_url, kind, options.index, options.run, seconds))
    except TrimaranError as error:
        return tell_error(error)
    if place is None:
        return 0
    folder = _make_folder(Path(options.run_folder), place, trust)
    command = serve_command(kind, None, str(folder), place.index)
    # The engine has given this process its devices: it takes those that it sees.
    os.execve(command[0], command, {**os.environ, PLACED: process_name(kind, place.index)})


def _make_folder(parent: Path, place: JoinedProcess, trust: Trust) -> Path:
    """This host's folder of the run, with what its service reads there."""
    folder = parent.resolve() / place.run_id
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"--run-folder: {folder} cannot be made ({error.strerror})") from None
    context = RunContext(place.run_id, folder, place.store_url, trust, "external")
    if not (folder / CONTEXT_NAME).exists() or RunContext.in_folder(folder) != context:
        if trust.token:
            write_token(folder, trust.token)
        context.write()
    return folder


async def _join(
    store_url: str, kind: str, index: int | None, run_id: str, seconds: float
) -> JoinedProcess | None:
    """None where a signal ends the wait."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    which = f"run {run_id}" if run_id else "a run"
    print(f"{kind}: waits for {which} that needs it, for at most {seconds:g} s", flush=True)
    # Not claimed: the process that serves comes in place of this one, with its environment.
    Notes(kind, noted_file()).wait("waits for a run", seconds)
    try:
        place = await join_run(store_url, kind, index, run_id, seconds)
    except asyncio.CancelledError:
        return None
    print(f"{process_name(kind, place.index)} of run {place.run_id}", flush=True)
    return place
