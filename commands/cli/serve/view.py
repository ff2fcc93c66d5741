"""`trimaran view`: runs in a browser out of their files, read only, until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from pathlib import Path

from commands.cli.manage.find_run import LATEST, RUNS, find_folder
from commands.cli.serve.trust_options import trust_of
from services.manager.viewing.serve import viewing
from trimaran.errors import InputError
from trimaran.host.lifetime import PARENT_VARIABLE, die_with_parent
from trimaran.run.network import is_free, join
from trimaran.trust.access import Trust, read_token

HOST, PORTS = "127.0.0.1", range(7990, 8000)


def view(options: argparse.Namespace) -> int:
    """Raises InputError for what was given."""
    if parent := os.environ.get(PARENT_VARIABLE):
        die_with_parent(int(parent), signal.SIGTERM)
    token = read_token(Path(options.token_file)) if options.token_file else ""
    path = path_of(options.run).resolve()
    return asyncio.run(
        _until_stopped(path, options.http or free_address(), trust_of(options, token))
    )


def path_of(text: str | None) -> Path:
    """A run's folder, a folder of several, the id of one in runs/, or `latest`; None: runs/."""
    if text is None:
        return RUNS
    path = Path(text)
    return path if text != LATEST and path.is_dir() else find_folder(text)


def free_address(ports: range = PORTS) -> str:
    """Where it listens unless it is said where. Raises InputError."""
    for port in ports:
        if is_free(address := join(HOST, port)):
            return address
    raise InputError(
        f"--http: ports {ports.start} to {ports.stop - 1} of {HOST} are taken; name another address"
    )


async def _until_stopped(path: Path, address: str, trust: Trust) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with viewing(path, address, trust) as listening:
        scheme = "https" if trust.tls else "http"
        print(f"{path}: read only at {scheme}://{listening}", flush=True)
        await stopped.wait()
    return 0
