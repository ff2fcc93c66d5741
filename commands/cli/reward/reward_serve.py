"""`trimaran reward serve`: a reward function as an HTTP server."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from commands.cli.reward.reward import read_token
from commands.cli.reward.reward_arguments import (
    check_numbers,
    check_tls,
    find_function,
    parse_options,
)
from services.reward.plugins.contract import CONTRACT, Info
from services.reward.plugins.serving.app import make_app
from services.reward.terms import FunctionSpec
from services.reward.workers.pool import WorkerPool
from trimaran.errors import InputError
from trimaran.host.open_files import raise_limit
from trimaran.run.network import join, listening_at
from trimaran.telemetry.run_files import setup_logging
from trimaran.trust.access import is_loopback
from trimaran.wire.health_note import Notes
from trimaran.wire.http_server import HttpServer, http_config

STOP_SECONDS = 10
"""The time that requests at work have when the server is asked to end."""
LOAD_SECONDS = 300.0
"""For the function's module, after which a health check takes the server for hung."""


def serve(arguments: argparse.Namespace) -> int:
    """Until SIGTERM or SIGINT. Raises InputError for what cannot be served."""
    check_numbers(arguments)
    options = parse_options(arguments.option)
    spec, minimum, maximum = find_function(
        arguments.function, options, arguments.minimum, arguments.maximum
    )
    info = Info(
        contract=CONTRACT,
        name=arguments.function,
        minimum=minimum,
        maximum=maximum,
        max_samples=arguments.max_samples,
        deterministic=not arguments.nondeterministic,
    )
    token = read_token(arguments.token_variable)
    if token is None and not is_loopback(join(arguments.host, arguments.port)):
        raise InputError(
            f"--host {arguments.host}: others could ask it and decide what is trained;"
            " give --token-variable NAME, or listen at 127.0.0.1"
        )
    check_tls(arguments.tls_cert, arguments.tls_key)
    address = join(arguments.host, arguments.port)
    listener, _ = listening_at(address, "--host, --port")
    setup_logging("reward-plugin")
    raise_limit()
    notes = Notes.claim("reward-plugin", os.environ)
    notes.wait("loads the function", LOAD_SECONDS)
    # The function's processes inherit the environment; the token is not theirs.
    if arguments.token_variable:
        del os.environ[arguments.token_variable]
    pool = WorkerPool(arguments.workers, arguments.timeout, arguments.memory_mib)
    with listener:
        return asyncio.run(_serve(pool, spec, info, token, options, listener, arguments, notes))


class _Server(HttpServer):
    """Ends in order: uvicorn would raise the signals again afterwards, and the pool would not be
    closed."""

    loading: asyncio.Task[Any] | None = None
    """Until there is something to serve, ending means to cancel this."""

    def stop(self) -> None:
        """In order; at once when it is said twice."""
        if self.loading:
            self.loading.cancel()
        self.force_exit, self.should_exit = self.should_exit, True


async def _serve(
    pool: WorkerPool,
    spec: FunctionSpec,
    info: Info,
    token: str | None,
    options: Mapping[str, Any],
    listener: socket.socket,
    arguments: argparse.Namespace,
    notes: Notes,
) -> int:
    app = make_app(partial(pool.judge, spec), info, token, options)
    server = _Server(
        http_config(
            app,
            ssl_certfile=arguments.tls_cert,
            ssl_keyfile=arguments.tls_key,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    )
    server.loading = asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.stop)
    try:
        async with pool:
            await pool.load([spec])
            server.loading = None
            notes.serve(f"{_announce(info, listener, arguments, token)}/v1/health")
            await server.serve([listener])
    except asyncio.CancelledError:
        return 0
    return 0


def _announce(
    info: Info, listener: socket.socket, arguments: argparse.Namespace, token: str | None
) -> str:
    """Returns where it listens, as a URL."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if arguments.tls_cert else "http"
    shown = f"[{host}]" if ":" in host else host
    url = f"{scheme}://{shown}:{port}"
    print(f"serving {info.name} at {url}", flush=True)
    if token is not None and scheme == "http" and not is_loopback(join(arguments.host, port)):
        print("warning: token and texts travel unencrypted; give --tls-cert", file=sys.stderr)
    return url
