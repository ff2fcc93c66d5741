"""The clients of a manager: a file of their tokens' digests, owners and roles.

    - {name: anna, owner: team-a, role: submitter, sha256: 5e884898da28047151d0e56f8dc62927…}

`trimaran token new --owner team-a --role submitter` prints a token, once, and its line. A token is
256 random bits, so its SHA-256 gives nothing away, and the file is no secret. But a user who may write
it decides who is an operator: it must be its owner's alone to write.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from services.manager.audit import audit_refusal
from services.manager.permissions import check_role
from trimaran.config.yaml_text import parse_yaml
from trimaran.errors import InputError, TrimaranError, UnauthenticatedError
from trimaran.host.reread import Reread
from trimaran.host.system_errors import refused
from trimaran.trust.access import ClientIdentity, Role, missing_token, new_token

NAME = re.compile(r"[\w@.-]{1,100}", re.ASCII)
DIGEST = re.compile(r"[0-9a-f]{64}")
KEYS = {"name", "owner", "role", "sha256"}


@dataclass(frozen=True, slots=True)
class KnownClient:
    """One entry of the file."""

    identity: ClientIdentity
    sha256: str
    """The digest of its token."""


class Clients:
    """Who shows which token. A file that changes is read again; a broken one leaves the old.

    Example:
        clients = Clients(Path("clients.yaml"))
        server = rpc.Server(address, services, identify=clients.identify)
    """

    def __init__(self, path: Path) -> None:
        """Raises InputError for a file that cannot be used."""
        self._known = Reread([path], lambda: read_clients(path))

    def identify(self, method: str, token: str) -> ClientIdentity:
        """For `rpc.Server`. Raises UnauthenticatedError, or ForbiddenError for the role."""
        identity = self._find(token) if token else None
        try:
            if not token:
                raise UnauthenticatedError(missing_token(method))
            if identity is None:
                name = method.rpartition("/")[2]
                raise UnauthenticatedError(f"{name}: this token is not known here; ask an operator")
            check_role(identity, method)
        except TrimaranError as error:
            audit_refusal(identity, method, error)
            raise
        return identity

    def _find(self, token: str) -> ClientIdentity | None:
        """Compares every entry, so that the time says nothing about the token."""
        shown, found = digest(token), None
        for known in self._known.current():
            if hmac.compare_digest(known.sha256, shown):
                found = known.identity
        return found


def read_clients(path: Path) -> tuple[KnownClient, ...]:
    """Raises InputError naming the file, the entry and what is wrong with it."""
    try:
        mode = path.stat().st_mode
        entries = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise refused(f"{path}: cannot be read", error) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if mode & 0o022:
        raise InputError(
            f"{path}: others may write it and make themselves operators; chmod go-w it"
        )
    if not isinstance(entries, list):
        raise InputError(f"{path}: must be a list of clients, - {{name: …, owner: …, role: …, …}}")
    clients = [
        _client(entry, f"{path}: client {number}")
        for number, entry in enumerate(cast(list[Any], entries), 1)
    ]
    for kind, values in (
        ("name", [client.identity.name for client in clients]),
        ("sha256", [client.sha256 for client in clients]),
    ):
        if twice := {value for value in values if values.count(value) > 1}:
            raise InputError(f"{path}: {kind} {min(twice)} stands twice; give each client its own")
    return tuple(clients)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def make_client(name: str, owner: str, role: str) -> tuple[str, str]:
    """A new token, and the line of the file for it. Raises InputError."""
    token = new_token()
    entry = {"name": name, "owner": owner, "role": role, "sha256": digest(token)}
    _client(entry, "token new")
    line = ", ".join(f"{key}: {_quoted(value)}" for key, value in entry.items())
    return token, f"- {{{line}}}"


def _client(entry: Any, place: str) -> KnownClient:
    if not isinstance(entry, dict) or set(cast(dict[Any, Any], entry)) != KEYS:
        raise InputError(f"{place}: must have name, owner, role and sha256, and nothing else")
    values = cast(dict[str, Any], entry)
    for key in ("name", "owner"):
        if not isinstance(values[key], str) or not NAME.fullmatch(values[key]):
            raise InputError(f"{place}: {key}: 1 to 100 letters, digits and any of _ @ . -")
    if values["role"] not in list(Role):
        raise InputError(f"{place}: role: must be one of {', '.join(Role)}")
    if not isinstance(values["sha256"], str) or not DIGEST.fullmatch(values["sha256"]):
        raise InputError(f"{place}: sha256: 64 hexadecimal digits in quotes, of the token")
    identity = ClientIdentity(values["name"], values["owner"], Role(values["role"]))
    return KnownClient(identity, values["sha256"])


def _quoted(value: str) -> str:
    """As YAML reads it back as a text: a digest of digits alone would be a number."""
    return f'"{value}"'
