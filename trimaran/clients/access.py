"""How a person's client reaches the manager: its address, a token, and what TLS trusts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trimaran.errors import InputError
from trimaran.trust import TlsFiles, Trust, is_loopback

DEFAULT_MANAGER = "127.0.0.1:7900"
MANAGER_VARIABLE = "TRIMARAN_MANAGER"
TOKEN_VARIABLE = "TRIMARAN_TOKEN"
TOKEN_FILE_VARIABLE = "TRIMARAN_TOKEN_FILE"
CA_VARIABLE = "TRIMARAN_CA"


def find_access(
    address: str | None,
    token: str | Path | None,
    ca: str | Path | None,
    environment: Mapping[str, str] = os.environ,
) -> tuple[str, Trust]:
    """host:port, and what is shown there. What is None here comes from the environment.

    `token`: itself, or the Path of its file. `ca`: PEM file of the certificates that TLS trusts.
    Raises InputError.

    Example: find_access("10.0.0.7:7900", Path("token"), "ca.pem")
    """
    address = address or environment.get(MANAGER_VARIABLE) or DEFAULT_MANAGER
    if token is None:
        token = environment.get(TOKEN_VARIABLE)
    if token is None and (name := environment.get(TOKEN_FILE_VARIABLE)):
        token = Path(name)
    text = _read(token) if isinstance(token, Path) else token or ""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise InputError("token: holds characters that no token has; give it as it was made")
    ca = ca or environment.get(CA_VARIABLE)
    if text and not ca and not is_loopback(address):
        raise InputError(
            f"{address}: the token would travel unencrypted; give the certificates that TLS trusts"
            f" (ca=FILE, or {CA_VARIABLE})"
        )
    return address, Trust(text, TlsFiles(authorities=Path(ca)) if ca else None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"token: {path} cannot be read ({error})") from None
