"""What `redis://…` says: where the server is, how to reach it, and which of its keys are ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from trimaran.errors import InputError
from trimaran.host.system_errors import refused

SCHEMES = ("redis", "rediss")
OPTIONS = ("prefix", "durability", "password_file", "ca_file", "cert_file", "key_file")
DEFAULT_PORT = 6379
CALL_SECONDS = 30.0
"""For a call, in which a lost connection is made again."""
DEFAULT_PREFIX = "trimaran"


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """redis://[USER:PASSWORD@]HOST[:PORT][/DB][?OPTION=VALUE&…]; rediss:// speaks TLS.

    Example: RedisUrl.parse("redis://127.0.0.1:6379/0?prefix=demo").prefix == "demo"
    """

    name: str
    """Without the password, for messages."""
    prefix: str
    """Several stores share a server, each under a prefix of its own."""
    is_weak: bool
    """durability=weak: settings under which a crash may lose what was acknowledged are accepted."""
    connection: dict[str, Any]
    """For redis.asyncio.Redis."""

    @classmethod
    def parse(cls, url: str) -> RedisUrl:
        """Reads the password's file. Raises InputError, which shows no password."""
        parts = urlsplit(url)
        name = f"{parts.scheme}://{parts.hostname or ''}"
        try:
            port = parts.port or DEFAULT_PORT
            database = int(parts.path.strip("/") or 0)
        except ValueError:
            raise InputError(f"{name}: give redis://HOST:PORT/DB, both of them numbers") from None
        name = f"{name}:{port}/{database}"
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for option in options.keys() - set(OPTIONS):
            raise InputError(f"{name}: no option {option}; there are {', '.join(OPTIONS)}")
        if not parts.hostname:
            raise InputError(f"{name}: names no host; give redis://HOST:PORT/DB")
        if (durability := options.get("durability", "full")) not in ("full", "weak"):
            raise InputError(f"{name}: durability {durability}; give full or weak")
        prefix = options.get("prefix", DEFAULT_PREFIX)
        if not prefix or set("{}") & set(prefix):
            raise InputError(f"{name}: prefix {prefix!r}; give one without braces")
        connection: dict[str, Any] = {
            "host": parts.hostname,
            "port": port,
            "db": database,
            "username": unquote(parts.username) if parts.username else None,
            "password": _password(name, parts.password, options.get("password_file")),
        }
        if parts.scheme == "rediss":
            connection |= {
                "ssl": True,
                "ssl_ca_certs": options.get("ca_file"),
                "ssl_certfile": options.get("cert_file"),
                "ssl_keyfile": options.get("key_file"),
            }
        return cls(f"{name} ({prefix})", prefix, durability == "weak", connection)


def is_redis(url: str) -> bool:
    return url.partition(":")[0] in SCHEMES


def inside(url: str, name: str) -> str:
    """The same server, under a prefix within that of `url`."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    options["prefix"] = f"{options.get('prefix', DEFAULT_PREFIX)}/{name}"
    return urlunsplit(parts._replace(query=urlencode(options, safe="/")))


def _password(name: str, given: str | None, file: str | None) -> str | None:
    if file is None:
        return unquote(given) if given else None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise refused(f"{name}: password_file {file} cannot be read", error) from None
