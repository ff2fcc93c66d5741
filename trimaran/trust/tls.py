"""TLS from files, for gRPC, HTTP and sockets; new files count for every connection made after them."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from trimaran.errors import InputError
from trimaran.host.reread import Reread
from trimaran.host.system_errors import refused
from trimaran.trust.access import TlsFiles, Trust

# grpcio's type stubs lack these.
_grpc: Any = grpc

LAST_CALLS_SECONDS = 3600.0
"""For calls that are under way on a connection that is to end; a training step is the longest."""


@dataclass(frozen=True, slots=True)
class Pem:
    """The files' bytes; None for those that are not given."""

    certificate: bytes | None
    key: bytes | None
    authorities: bytes | None


def read_pem(files: TlsFiles) -> Pem:
    """Raises InputError naming the file, also for a key that does not fit its certificate."""
    for path in files.paths:
        if not path.is_file():
            raise InputError(f"{path}: no such file; TLS needs it")
    if (files.certificate is None) != (files.key is None):
        raise InputError("tls: certificate and key belong together; give both or none")
    pem = Pem(_read(files.certificate), _read(files.key), _read(files.authorities))
    _server_context(files)  # the key fits its certificate
    return pem


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Raises InputError, also where there is no certificate."""
    _check_server(files)
    pem = Reread(files.paths, lambda: read_pem(files))
    return _grpc.dynamic_ssl_server_credentials(
        _configuration(pem.current()),
        lambda: _configuration(pem.current()),
        require_client_authentication=files.authorities is not None,
    )


def server_options(files: TlsFiles) -> list[tuple[str, int]]:
    """A connection outlives its certificates and their authority, unless it is ended."""
    return [
        ("grpc.max_connection_age_ms", int(files.connection_seconds * 1000)),
        ("grpc.max_connection_age_grace_ms", int(LAST_CALLS_SECONDS * 1000)),
    ]


def channel_credentials(pem: Pem) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(pem.authorities, pem.key, pem.certificate)


def http_context(files: TlsFiles) -> ssl.SSLContext:
    """For uvicorn: `config.load(); config.ssl = http_context(files)`. Raises InputError."""
    _check_server(files)
    contexts = Reread(files.paths, lambda: _server_context(files))
    outer = _server_context(files)

    def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = contexts.current()

    outer.sni_callback = choose  # called for every connection, with or without a name
    return outer


class SocketTls:
    """TLS of sockets between processes that have the same files: both ends show a certificate.

    Example: SocketTls(run.trust.tls).accept(sock), and SocketTls(run.trust.tls).connect(sock, "10.0.0.7")
    """

    def __init__(self, files: TlsFiles) -> None:
        """Raises InputError for files that cannot be used."""
        _check_server(files)
        self._name = files.server_name
        self._server = Reread(files.paths, lambda: _server_context(files))
        self._client = Reread(files.paths, lambda: _client_context(files))

    def accept(self, sock: socket.socket) -> ssl.SSLSocket:
        """Takes the socket over. Raises OSError, within its timeout."""
        return self._server.current().wrap_socket(sock, server_side=True)

    def connect(self, sock: socket.socket, host: str) -> ssl.SSLSocket:
        """Takes the socket, which is connected, over. Raises OSError, within its timeout, also where the
        certificate does not name the host."""
        return self._client.current().wrap_socket(sock, server_hostname=self._name or host)


def socket_tls(trust: Trust) -> SocketTls | None:
    """Raises InputError as `SocketTls` does."""
    return SocketTls(trust.tls) if trust.tls else None


def _check_server(files: TlsFiles) -> None:
    if files.certificate is None or files.key is None:
        raise InputError("tls: a server needs certificate and key; give both files")


def _server_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if files.certificate and files.key:
            # An encrypted key would ask for its password at the terminal.
            context.load_cert_chain(files.certificate, files.key, password=lambda: "")
        if files.authorities:
            context.load_verify_locations(files.authorities)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        names = ", ".join(map(str, files.paths))
        raise refused(f"{names}: cannot be used for TLS", error) from None
    return context


def _client_context(files: TlsFiles) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.authorities)
        if files.certificate and files.key:
            context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except (OSError, ValueError) as error:
        names = ", ".join(map(str, files.paths))
        raise refused(f"{names}: cannot be used for TLS", error) from None
    return context


def _configuration(pem: Pem) -> Any:
    chain: Callable[..., Any] = _grpc.ssl_server_certificate_configuration
    return chain([(pem.key, pem.certificate)], root_certificates=pem.authorities)


def _read(path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path else None
    except OSError as error:
        raise refused(f"{path}: cannot be read", error) from None
