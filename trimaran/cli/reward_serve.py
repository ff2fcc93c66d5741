"""`trimaran reward serve`: a reward function as an HTTP server."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import math
import os
import signal
import socket
import ssl
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
import yaml

from services.reward.allowed import canonical_target
from services.reward.plugins.app import make_app
from services.reward.plugins.contract import CONTRACT, MAX_SAMPLES, Info
from services.reward.rules import find_rule
from services.reward.terms import FunctionSpec
from services.reward.workers.pool import WorkerPool
from trimaran.cli.reward import read_token
from trimaran.config import LAST_PORT
from trimaran.errors import InputError
from trimaran.telemetry import setup_logging

STOP_SECONDS = 10
"""For requests at work when the server is told to end."""
MIN_MEMORY_MIB = 256


def serve(arguments: argparse.Namespace) -> int:
    """Until SIGTERM or SIGINT. Raises InputError for what cannot be served."""
    _check_numbers(arguments)
    options = _parse_options(arguments.option)
    spec, minimum, maximum = _find_function(
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
    if token is None and not _is_loopback(arguments.host):
        raise InputError(
            f"--host {arguments.host}: others could ask it and decide what is trained;"
            " give --token-variable NAME, or listen at 127.0.0.1"
        )
    _check_tls(arguments.tls_cert, arguments.tls_key)
    listener = _listen(arguments.host, arguments.port)
    setup_logging("reward-plugin")
    # The function's processes inherit the environment; the token is not theirs.
    if arguments.token_variable:
        del os.environ[arguments.token_variable]
    pool = WorkerPool(arguments.workers, arguments.timeout, arguments.memory_mib)
    with listener:
        return asyncio.run(_serve(pool, spec, info, token, options, listener, arguments))


class _Server(uvicorn.Server):
    """Ends in order, and leaves the signals to us: uvicorn would raise them again afterwards,
    and the pool would not be closed."""

    loading: asyncio.Task[Any] | None = None
    """Until there is something to serve, ending means to cancel this."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

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
) -> int:
    app = make_app(partial(pool.judge, spec), info, token, options)
    server = _Server(
        uvicorn.Config(
            app,
            ssl_certfile=arguments.tls_cert,
            ssl_keyfile=arguments.tls_key,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
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
            _announce(info, listener, arguments, token)
            await server.serve([listener])
    except asyncio.CancelledError:
        return 0
    return 0


def _announce(
    info: Info, listener: socket.socket, arguments: argparse.Namespace, token: str | None
) -> None:
    host, port = listener.getsockname()[:2]
    scheme = "https" if arguments.tls_cert else "http"
    shown = f"[{host}]" if ":" in host else host
    print(f"serving {info.name} at {scheme}://{shown}:{port}", flush=True)
    if token is not None and scheme == "http" and not _is_loopback(arguments.host):
        print("warning: token and texts travel unencrypted; give --tls-cert", file=sys.stderr)


def _find_function(
    named: str, options: Mapping[str, Any], minimum: float | None, maximum: float | None
) -> tuple[FunctionSpec, float | None, float | None]:
    """The function and its bounds. A name without a file or module is a built-in rule's."""
    options_json = json.dumps(options, sort_keys=True)
    if ":" in named and not named.startswith("reasoning_gym:"):
        if minimum is not None and maximum is not None and minimum >= maximum:
            raise InputError(f"--minimum {minimum:g} must be less than --maximum {maximum:g}")
        target = canonical_target(named, "FUNCTION")
        module, _, name = target.rpartition(":")
        if name == "*":
            raise InputError(f"{named}: name one function of it")
        if module.endswith(".py") and not Path(module).is_file():
            raise InputError(f"{module}: no such file")
        return FunctionSpec(target, options_json), minimum, maximum
    rule = find_rule(named, "FUNCTION")
    rule.check_options(options, "--option")
    if minimum is not None or maximum is not None:
        raise InputError(
            f"{named}: a built-in rule knows its bounds; leave --minimum and --maximum out"
        )
    least, most = (bound if math.isfinite(bound) else None for bound in rule.bounds(options))
    return FunctionSpec(rule.target, options_json), least, most


def _check_numbers(arguments: argparse.Namespace) -> None:
    """Raises InputError that names the option and its range."""
    for option, value, least, most in (
        ("--port", arguments.port, 0, LAST_PORT),
        ("--workers", arguments.workers, 1, math.inf),
        ("--memory-mib", arguments.memory_mib, MIN_MEMORY_MIB, math.inf),
        ("--max-samples", arguments.max_samples, 1, MAX_SAMPLES),
    ):
        if not least <= value <= most:
            above = "" if math.isinf(most) else f" and at most {most}"
            raise InputError(f"{option} {value}: must be at least {least}{above}")
    if not 0 < arguments.timeout < math.inf:
        raise InputError(f"--timeout {arguments.timeout:g}: must be more than 0 seconds")
    for option in ("minimum", "maximum"):
        value = getattr(arguments, option)
        if value is not None and not math.isfinite(value):
            raise InputError(f"--{option} {value}: must be a finite number")


def _parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise InputError(f"--option {pair!r}: an option reads key=value")
        try:
            options[key] = yaml.safe_load(text) if text else ""
            json.dumps(options[key], allow_nan=False)
        except (yaml.YAMLError, TypeError, ValueError):
            raise InputError(f"--option {pair!r}: the value is not a plain YAML value") from None
    return options


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_tls(certificate: str | None, key: str | None) -> None:
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise InputError("--tls-cert and --tls-key: give both or neither")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"--tls-cert {certificate}, --tls-key {key}: {error}; give two PEM files that match"
        ) from None


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise InputError(
            f"--host {host} --port {port}: {error.strerror}; choose another, or --port 0"
        ) from None
    # Connections inherit it. asyncio does not set it on those of a socket that it did not make,
    # and TLS would wait 40 ms for an acknowledgement with each answer.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
