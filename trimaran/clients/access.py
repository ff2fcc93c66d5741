"""How a person's client reaches the manager: its address, a token, and what TLS trusts."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from trimaran.errors import InputError
from trimaran.rpc import OPTIONS

DEFAULT_MANAGER = "127.0.0.1:7900"
MANAGER_VARIABLE = "TRIMARAN_MANAGER"
TOKEN_VARIABLE = "TRIMARAN_TOKEN"
TOKEN_FILE_VARIABLE = "TRIMARAN_TOKEN_FILE"
CA_VARIABLE = "TRIMARAN_CA"

RECONNECT = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True, slots=True)
class Access:
    """Example: Access.find("10.0.0.7:7900", token=Path("token"), ca=Path("ca.pem")).connect()"""

    address: str
    token: str = ""
    ca: bytes | None = None
    """Certificates in PEM that TLS trusts; without them the connection is not encrypted."""

    @classmethod
    def find(
        cls,
        address: str | None,
        token: str | Path | None,
        ca: str | Path | None,
        environment: Mapping[str, str] = os.environ,
    ) -> Access:
        """What is None here comes from the environment. Raises InputError."""
        address = address or environment.get(MANAGER_VARIABLE) or DEFAULT_MANAGER
        if token is None:
            token = environment.get(TOKEN_VARIABLE)
        if token is None and (name := environment.get(TOKEN_FILE_VARIABLE)):
            token = Path(name)
        text = _read(token, "token").decode().strip() if isinstance(token, Path) else token or ""
        if not text.isascii() or not text.isprintable() or " " in text:
            raise InputError("token: holds characters that no token has; give it as it was made")
        ca = ca or environment.get(CA_VARIABLE)
        access = cls(address, text, _read(Path(ca), "ca") if ca else None)
        if access.token and access.ca is None and not _is_loopback(address):
            raise InputError(
                f"{address}: the token would travel unencrypted; give the certificates that TLS"
                f" trusts (ca=FILE, or {CA_VARIABLE})"
            )
        return access

    def connect(self) -> grpc.aio.Channel:
        """Call it where the event loop runs."""
        options = [*OPTIONS, *RECONNECT]
        metadata = [("authorization", f"Bearer {self.token}")] if self.token else []
        interceptors = [_Metadata(metadata), _StreamMetadata(metadata)] if metadata else []
        if self.ca is None:
            return grpc.aio.insecure_channel(
                self.address, options=options, interceptors=interceptors
            )
        credentials = grpc.ssl_channel_credentials(self.ca)
        return grpc.aio.secure_channel(
            self.address, credentials, options=options, interceptors=interceptors
        )


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{what}: {path} cannot be read ({error.strerror})") from None


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _WithMetadata:
    """Adds the token to each call."""

    def __init__(self, metadata: list[tuple[str, str]]) -> None:
        self._metadata = metadata

    def _add(self, details: Any) -> Any:
        sent = [*(details.metadata or ()), *self._metadata]
        return details._replace(metadata=grpc.aio.Metadata(*sent))


class _Metadata(_WithMetadata, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        return await continuation(self._add(client_call_details), request)


class _StreamMetadata(_WithMetadata, grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        return await continuation(self._add(client_call_details), request)
