"""What the operator allows a run to name: functions, hosts of plugins, and commands.

    trimaran train run.yaml --allow my.rewards:score --allow https://rewards.example:8443

An entry is one of
    package.module:name  package.module:*  path/to/file.py:name  path/to/file.py:*
    http://host:port  https://host         plugins there, and no other host
    10.0.0.0/8                             private addresses that a host name may resolve to
    command npx -y "my server"             this command with these arguments, and no others
    network python agent.py                a command that may reach more than its endpoint, too

Files count by the path that their symbolic links lead to, hosts in lower case and with their port.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from trimaran.errors import InputError

ALLOW_VARIABLE = "TRIMARAN_ALLOW"
"""Entries for the services that call them, one a line; --allow adds to it."""
COMMAND = "command "
NETWORKED = "network "
"""How the entry of a command begins; words are split as a shell does."""
_PLACE = f"--allow or {ALLOW_VARIABLE}"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Origin = tuple[str, str, int]
"""Scheme, host in lower case, port."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The entries, read.

    Example:
        allowed = Allowed.from_entries(["my.rewards:*", "https://rewards.example"])
        allowed.check_function("my.rewards:score", "reward.rules.style.function")
        allowed.check_url("http://rewards.example", "reward.rules.judge.plugin.url")  # InputError
    """

    functions: frozenset[str] = frozenset()
    origins: frozenset[Origin] = frozenset()
    networks: tuple[Network, ...] = ()
    commands: frozenset[tuple[str, ...]] = frozenset()
    networked: frozenset[tuple[str, ...]] = frozenset()
    """Commands, too."""

    @classmethod
    def from_entries(cls, entries: Iterable[str]) -> Allowed:
        """Raises InputError for an entry that is none of the kinds above."""
        functions: set[str] = set()
        origins: set[Origin] = set()
        networks: list[Network] = []
        commands: dict[str, set[tuple[str, ...]]] = {COMMAND: set(), NETWORKED: set()}
        for entry in filter(None, map(str.strip, entries)):
            if kind := _command_kind(entry):
                commands[kind].add(_words(entry))
            elif "://" in entry:
                origins.add(_whole_host(entry))
            elif network := _network(entry):
                networks.append(network)
            else:
                functions.add(canonical_target(entry, _PLACE))
        names = frozenset(functions), frozenset(origins), tuple(networks)
        return cls(*names, frozenset(commands[COMMAND]), frozenset(commands[NETWORKED]))

    @classmethod
    def from_environment(cls) -> Allowed:
        return cls.from_entries(os.environ.get(ALLOW_VARIABLE, "").split("\n"))

    def check_function(self, named: str, key: str) -> str:
        """Its canonical target. Raises InputError naming the key and the remedy."""
        target = canonical_target(named, key)
        module, _, name = target.rpartition(":")
        if name == "*":
            raise InputError(f"{key}: {named}: name one function; only --allow takes a *")
        if not {target, f"{module}:*"} & self.functions:
            raise InputError(
                f"{key}: {named} is not among what the operator allowed;"
                f" start with --allow {named} if you trust that code"
            )
        if module.endswith(".py") and not os.path.isfile(module):
            raise InputError(f"{key}: {module}: no such file")
        return target

    def check_command(self, command: Sequence[str], key: str, network: bool = False) -> None:
        """`network`: it is to reach more than its endpoint. Raises InputError naming the key and the remedy."""
        if tuple(command) not in (self.networked if network else self.commands | self.networked):
            line = shlex.join(command)
            entry = shlex.quote((NETWORKED if network else COMMAND) + line)
            whose = "commands with a network" if network else "commands"
            raise InputError(
                f"{key}: {line} is not among the {whose} that the operator allowed;"
                f" start with --allow {entry} if you trust it"
            )

    def check_url(self, url: str, key: str) -> None:
        """A WebSocket's origin is that of its handshake. Raises InputError naming the key and the remedy."""
        origin = origin_of(re.sub(r"^ws(?=s?://)", "http", url), key)
        if origin not in self.origins:
            raise InputError(
                f"{key}: {_show(origin)} is not among the hosts that the operator allowed;"
                f" start with --allow {_show(origin)} if you trust it"
            )


def absolute_entry(entry: str, folder: str | os.PathLike[str] = ".") -> str:
    """Files of `folder` by their absolute path, so that it holds in any working directory."""
    if "\n" in entry:
        raise InputError(f"--allow: {entry!r}: an entry is one line; give --allow once for each")
    if kind := _command_kind(entry):
        return kind + shlex.join(absolute_words(_words(entry), folder))
    module, colon, name = entry.rpartition(":")
    if not module.endswith(".py"):
        return entry
    return f"{_real_path(os.path.join(folder, module))}{colon}{name}"


def absolute_words(words: Sequence[str], folder: str | os.PathLike[str]) -> tuple[str, ...]:
    """Of a command: those that name a file or a folder of `folder`, by its absolute path. The first word is a
    program's name, unless there is a / in it."""

    def absolute(word: str) -> str:
        path = os.path.join(folder, word)
        return os.path.abspath(path) if word and os.path.exists(path) else word

    return tuple(
        word if index == 0 and "/" not in word else absolute(word)
        for index, word in enumerate(words)
    )


def canonical_target(named: str, key: str) -> str:
    """Files by their absolute path, modules as they are. Raises InputError for anything else."""
    module, colon, name = named.rpartition(":")
    if module.endswith(".py"):
        module = _real_path(module)
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
        port, host = parts.port, (parts.hostname or "").rstrip(".")
    except ValueError as error:
        raise InputError(f"{key}: {url!r}: {error}") from None
    known = parts.scheme in ("http", "https") and host and port != 0
    if not known or "@" in parts.netloc or re.search(r"[\s\x00-\x1f]", url):
        raise InputError(f"{key}: {url!r}: a host is http://host:port or https://host:port")
    if address := _network(host):
        host = str(address.network_address)
    return parts.scheme, host, port or (443 if parts.scheme == "https" else 80)


def _whole_host(entry: str) -> Origin:
    """An entry with a path would allow more than it says."""
    origin = origin_of(entry, _PLACE)
    parts = urlsplit(entry)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InputError(f"{_PLACE}: {entry!r}: whole hosts are allowed; write {_show(origin)}")
    return origin


def _command_kind(entry: str) -> str:
    """ "" for another kind of entry."""
    return next((kind for kind in (COMMAND, NETWORKED) if entry.startswith(kind)), "")


def _words(entry: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(entry)[1:])
    except ValueError as error:
        raise InputError(f"{_PLACE}: {entry!r}: {error}; quote it as for a shell") from None


def _show(origin: Origin) -> str:
    scheme, host, port = origin
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _real_path(path: str) -> str:
    """ "" for what can be no path."""
    try:
        return os.path.realpath(path)
    except ValueError:
        return ""


def _network(entry: str) -> Network | None:
    try:
        return ipaddress.ip_network(entry)
    except ValueError:
        return None
