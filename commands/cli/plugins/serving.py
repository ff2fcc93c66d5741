"""`serve`: a plugin's HTTP server, from its listener to its end."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

from commands.cli.plugins.arguments import check_tls, read_token
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
"""For what it serves, after which a health check takes the server for hung."""


class PluginServer:
    """One plugin at one address.

    Example:
        with PluginServer.claim(arguments, "reward-plugin", "decides what is trained") as server:
            return asyncio.run(server.serve(make_app(judge, info, server.token), "style", pool))
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        token: str | None,
        listener: socket.socket,
        notes: Notes,
    ) -> None:
        self.token = token
        self._arguments, self._listener, self._notes = arguments, listener, notes

    @classmethod
    @contextmanager
    def claim(cls, arguments: argparse.Namespace, kind: str, harm: str) -> Iterator[PluginServer]:
        """The address, before anything is loaded. `harm`: what others could do. Raises InputError.

        Processes that are started from now on do not inherit the token.
        """
        address = join(arguments.host, arguments.port)
        token = read_token(arguments.token_variable)
        if token is None and not is_loopback(address):
            raise InputError(
                f"--host {arguments.host}: others could ask it and {harm};"
                " give --token-variable NAME, or listen at 127.0.0.1"
            )
        check_tls(arguments.tls_cert, arguments.tls_key)
        listener, _ = listening_at(address, "--host, --port")
        setup_logging(kind)
        raise_limit()
        notes = Notes.claim(kind, os.environ)
        notes.wait("loads what it serves", LOAD_SECONDS)
        if arguments.token_variable:
            del os.environ[arguments.token_variable]
        with listener:
            yield cls(arguments, token, listener, notes)

    async def serve(self, app: Any, name: str, served: AbstractAsyncContextManager[Any]) -> int:
        """Until SIGTERM or SIGINT. `served`: entered before the first request, left after the last."""
        server = _Server(
            http_config(
                app,
                ssl_certfile=self._arguments.tls_cert,
                ssl_keyfile=self._arguments.tls_key,
                timeout_graceful_shutdown=STOP_SECONDS,
            )
        )
        server.loading = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.stop)
        try:
            async with served:
                server.loading = None
                self._notes.serve(f"{self._announce(name)}/v1/health")
                await server.serve([self._listener])
        except asyncio.CancelledError:
            return 0
        return 0

    def _announce(self, name: str) -> str:
        """Returns where it listens, as a URL."""
        host, port = self._listener.getsockname()[:2]
        scheme = "https" if self._arguments.tls_cert else "http"
        shown = f"[{host}]" if ":" in host else host
        url = f"{scheme}://{shown}:{port}"
        print(f"serving {name} at {url}", flush=True)
        is_open = scheme == "http" and not is_loopback(join(self._arguments.host, port))
        if self.token is not None and is_open:
            print("warning: token and texts travel unencrypted; give --tls-cert", file=sys.stderr)
        return url


class _Server(HttpServer):
    """Ends in order: uvicorn would raise the signals again afterwards, and what it serves would not be
    closed."""

    loading: asyncio.Task[Any] | None = None
    """Until there is something to serve, ending means to cancel this."""

    def stop(self) -> None:
        """In order; at once when it is said twice."""
        if self.loading:
            self.loading.cancel()
        self.force_exit, self.should_exit = self.should_exit, True
