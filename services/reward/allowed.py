"""What the operator allows a run to name: reward functions, and hosts of plugins.

    trimaran train run.yaml --allow my.rewards:score --allow https://rewards.example:8443

An entry is one of
    package.module:name  package.module:*  path/to/file.py:name  path/to/file.py:*
    http://host:port  https://host         plugins there, and no other host
    10.0.0.0/8                             private addresses that a host name may resolve to
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from trimaran.errors import InputError

ALLOW_VARIABLE = "TRIMARAN_ALLOW"
"""Entries for the reward service, one a line; --allow adds to it."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Origin = tuple[str, str, int]
"""Scheme, host in lower case, port."""


@dataclass(frozen=True, slots=True)
class Allowed:
    functions: frozenset[str] = frozenset()
    origins: frozenset[Origin] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def from_entries(cls, entries: Iterable[str]) -> Allowed:
        """Raises InputError for an entry that is none of the kinds above."""
        functions: set[str] = set()
        origins: set[Origin] = set()
        networks: list[Network] = []
        for entry in filter(None, map(str.strip, entries)):
            if "://" in entry:
                origins.add(origin_of(entry, "--allow"))
            elif network := _network(entry):
                networks.append(network)
            else:
                functions.add(canonical_target(entry, "--allow"))
        return cls(frozenset(functions), frozenset(origins), tuple(networks))

    @classmethod
    def from_environment(cls) -> Allowed:
        return cls.from_entries(os.environ.get(ALLOW_VARIABLE, "").splitlines())

    def check_function(self, named: str, key: str) -> str:
        """Its canonical target. Raises InputError naming the key and the remedy."""
        target = canonical_target(named, key)
        module = target.rpartition(":")[0]
        if not {target, f"{module}:*"} & self.functions:
            raise InputError(
                f"{key}: {named} is not among what the operator allowed;"
                f" start with --allow {named} if you trust that code"
            )
        path = Path(module)
        if module.endswith(".py") and not path.is_file():
            raise InputError(f"{key}: {module}: no such file")
        return target

    def check_url(self, url: str, key: str) -> None:
        """Raises InputError naming the key and the remedy."""
        scheme, host, port = origin_of(url, key)
        if (scheme, host, port) not in self.origins:
            raise InputError(
                f"{key}: {scheme}://{host}:{port} is not among the hosts that the operator allowed;"
                f" start with --allow {scheme}://{host}:{port} if you trust it"
            )


def absolute_entry(entry: str) -> str:
    """Files by their absolute path, so that it holds in any working directory."""
    module, colon, name = entry.rpartition(":")
    return f"{Path(module).resolve()}{colon}{name}" if module.endswith(".py") else entry


def canonical_target(named: str, key: str) -> str:
    """Files by their absolute path, modules as they are. Raises InputError for anything else."""
    module, colon, name = named.rpartition(":")
    if module.endswith(".py"):
        module = str(Path(module).resolve())
    elif not all(part.isidentifier() for part in module.split(".")):
        module = ""
    if not (colon and module and (name == "*" or name.isidentifier())):
        raise InputError(
            f"{key}: {named!r}: a function is path/to/file.py:name or package.module:name"
            " (a host http://host:port, a network 10.0.0.0/8)"
        )
    return f"{module}:{name}"


def origin_of(url: str, key: str) -> Origin:
    """Raises InputError for what is not http(s)://host[:port][/path]."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError(f"{key}: {url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise InputError(f"{key}: {url!r}: a host is http://host:port or https://host:port")
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname.lower(), port or default


def _network(entry: str) -> Network | None:
    try:
        return ipaddress.ip_network(entry)
    except ValueError:
        return None
