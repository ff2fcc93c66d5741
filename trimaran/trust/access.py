"""Who may call whom: the token of a run, TLS files, and clients with their roles.

The services of a run share a token. It lies in the run folder, in a file that only its owner reads,
and it is never in a command line or an environment. Clients of a manager have tokens of their own
(`services/manager/clients_file.py`).
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from trimaran.errors import ForbiddenError, InputError, UnauthenticatedError
from trimaran.host.system_errors import refused

TOKEN_NAME = "token"
"""In a run folder."""
TOKEN_BYTES = 32
FILES = ("certificate", "key", "authorities")
TOKEN = re.compile(r"[\x21-\x7e]{16,256}")


class Role(StrEnum):
    """What a client may do; each role may do what those before it may.

    Example: Role("operator").covers(Role.SUBMITTER)
    """

    VIEWER = "viewer"
    """Reads the runs of its owner."""
    SUBMITTER = "submitter"
    """Starts and ends them as well."""
    OPERATOR = "operator"
    """Does all that with the runs of every owner."""

    def covers(self, least: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(least)


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """Example: ClientIdentity("anna", "team-a", Role.SUBMITTER).check_owner("team-b", "run x")"""

    name: str
    owner: str
    """Whose runs are meant: a person or a team."""
    role: Role

    def check_owner(self, owner: str, thing: str) -> None:
        """Raises ForbiddenError for what belongs to another owner, unless an operator asks."""
        if self.owner != owner and self.role is not Role.OPERATOR:
            raise ForbiddenError(
                f"{thing}: belongs to another owner than {self.owner}; ask an operator"
            )


LOCAL = ClientIdentity("local", "local", Role.OPERATOR)
"""A client that reaches a service that asks for no token, or shows the token of a run."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files, read again when they change.

    Example: TlsFiles(Path("cert.pem"), Path("key.pem"), authorities=Path("ca.pem"))
    """

    certificate: Path | None = None
    """With the intermediate ones behind it. A server needs it; a client, where servers ask for it."""
    key: Path | None = None
    authorities: Path | None = None
    """A client trusts servers that these signed; without it those of the system. A server that has
    it asks every client for a certificate of theirs (mutual TLS)."""
    connection_seconds: float = 300.0
    """After which a server ends a connection, so that the next one is made by today's files. Calls
    that are under way then go on."""
    server_name: str = ""
    """What a client looks for in a server's certificate; empty: the host that it calls."""

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(filter(None, (self.certificate, self.key, self.authorities)))

    def to_tree(self) -> dict[str, Any]:
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> TlsFiles:
        """What `to_tree` made."""
        paths = {name: Path(tree[name]) if tree[name] else None for name in FILES}
        seconds, name = tree["connection_seconds"], tree.get("server_name", "")
        return cls(**paths, connection_seconds=seconds, server_name=name)


@dataclass(frozen=True, slots=True)
class Trust:
    """What a process shows to those it calls, and asks of those who call it.

    Example:
        trust = Trust(make_token(folder))
        server = rpc.Server("127.0.0.1:7001", services, trust=trust)
        client = RewardClient(server.address, caller, trust)
    """

    token: str = field(default="", repr=False)
    """Empty: none is shown, and none is asked for."""
    tls: TlsFiles | None = None
    is_network_trusted: bool = False
    """The operator's word that everybody on the network may read what travels."""

    def check_address(self, address: str) -> None:
        """Raises InputError for host:port beyond this machine, where token or TLS are missing."""
        has_tls = self.tls is not None or self.is_network_trusted
        if not is_loopback(address) and not (self.token and has_tls):
            raise InputError(
                f"{address}: is beyond loopback, and there is no token or no TLS; use"
                " 127.0.0.1:PORT, or give both (the word `network: trusted` stands for TLS)"
            )

    def identify(self, method: str, token: str) -> ClientIdentity:
        """The services' own check, of every method alike. Raises UnauthenticatedError."""
        if self.token and not hmac.compare_digest(token.encode(), self.token.encode()):
            raise UnauthenticatedError(
                f"{method.rpartition('/')[2]}: not the token of this run"
                if token
                else missing_token(method)
            )
        return LOCAL

    def to_tree(self) -> dict[str, Any]:
        """For context.json; whether there is a token, and never the token."""
        return {
            "token": bool(self.token),
            "network": "trusted" if self.is_network_trusted else "loopback",
            "tls": self.tls.to_tree() if self.tls else None,
        }

    @classmethod
    def in_folder(cls, folder: Path, tree: Mapping[str, Any] | None = None) -> Trust:
        """A run's: its token file, and what `to_tree` made. Raises InputError.

        Without a token file there is no token, unless the tree says that there was one.
        """
        tree = tree or {}
        path = folder / TOKEN_NAME
        if tree.get("token") and not path.exists():
            raise InputError(f"{path}: is gone; without it the run's services refuse each other")
        tls = TlsFiles.from_tree(tree["tls"]) if tree.get("tls") else None
        token = read_token(path) if path.exists() else ""
        return cls(token, tls, tree.get("network") == "trusted")


NO_TRUST = Trust()
"""The trust of what is started by hand: loopback, and no token."""


def missing_token(method: str) -> str:
    """The text of the error."""
    name = method.rpartition("/")[2]
    return f"{name}: there is no token; give the metadata `authorization: Bearer TOKEN`"


def is_loopback(address: str) -> bool:
    """host:port or host."""
    host = address.rpartition(":")[0].strip("[]") or address
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def new_token() -> str:
    """256 random bits."""
    return secrets.token_hex(TOKEN_BYTES)


def derive_token(secret: str, run_id: str) -> str:
    """The same on every host that has the secret. The token of one run gives away neither the
    secret from it nor another run's token."""
    return hmac.digest(secret.encode(), run_id.encode(), "sha256").hex()


def make_token(folder: Path, token: str = "") -> str:
    """The token of the run in this folder. Where there is none yet it becomes `token`, or a random one
    where that is empty. Raises InputError."""
    path = folder / TOKEN_NAME
    if not path.exists():
        partial = _write_beside(path, (token or new_token()) + "\n")
        try:
            with suppress(FileExistsError):  # another process was first: its token counts
                os.link(partial, path)
        finally:
            partial.unlink()
    return read_token(path)


def write_token(folder: Path, token: str) -> str:
    """Makes it the token of the run in this folder. Raises InputError where it is none."""
    path = folder / TOKEN_NAME
    write_private(path, token + "\n")
    return read_token(path)


def write_private(path: Path, text: str) -> None:
    """Whole or not at all, for this user alone."""
    _write_beside(path, text).replace(path)


def _write_beside(path: Path, text: str) -> Path:
    # Containers that share a folder have equal process ids.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(partial, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # a power cut would leave its name, and nothing under it
    return partial


def read_token(path: Path) -> str:
    """Raises InputError for a file that is no token's, or that others can read."""
    try:
        with path.open(encoding="ascii") as file:
            found, text = os.fstat(file.fileno()), file.read(1024).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise refused(f"{path}: the token cannot be read", error) from None
    # A container engine's secret may be root's, and readable by our group alone.
    if found.st_mode & (0o077 if found.st_uid == os.geteuid() else 0o037):
        raise InputError(f"{path}: others can read this token; make a new one, and chmod 600 it")
    if not TOKEN.fullmatch(text):
        raise InputError(f"{path}: not a token; it is one line of 16 to 256 characters")
    return text


def read_secret(path: str | Path, option: str) -> str:
    """One line of a file that an engine shows to its container, whatever user owns it there.

    Raises InputError for one that everybody may write.
    """
    try:
        with open(path, encoding="utf-8") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise refused(f"{option}: {path} cannot be read", error) from None
    if mode & 0o002:
        raise InputError(f"{option}: {path}: everybody may write it; chmod 600 it")
    if not text or "\n" in text:
        raise InputError(f"{option}: {path} must hold one line")
    return text
