"""How a person's client reaches the manager: its address, a token, and what TLS trusts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trimaran.errors import InputError
from trimaran.trust.access import NO_TRUST, TOKEN, TlsFiles, Trust, read_token

DEFAULT_MANAGER = "127.0.0.1:7900"
MANAGER_VARIABLE = "TRIMARAN_MANAGER"
TOKEN_FILE_VARIABLE = "TRIMARAN_TOKEN_FILE"
"""The token itself stands in no variable: whatever a process starts inherits those."""
CA_VARIABLE = "TRIMARAN_CA"
CERTIFICATE_VARIABLE = "TRIMARAN_CERTIFICATE"
KEY_VARIABLE = "TRIMARAN_KEY"
"""Files of a client's own certificate, where the manager asks for one (mutual TLS)."""
NETWORK_VARIABLE = "TRIMARAN_NETWORK"
"""`trusted`: the token may travel without TLS."""


@dataclass(frozen=True, slots=True)
class Access:
    """Example: Access.find("10.0.0.7:7900", token=Path("token"), ca=Path("ca.pem")).connect()"""

    address: str
    trust: Trust = NO_TRUST

    @classmethod
    def find(
        cls,
        address: str | None,
        token: str | Path | None,
        ca: str | Path | None,
        environment: Mapping[str, str] = os.environ,
    ) -> Access:
        """What is None here comes from the environment. Raises InputError."""

        def file(variable: str) -> Path | None:
            return Path(environment[variable]) if environment.get(variable) else None

        address = address or environment.get(MANAGER_VARIABLE) or DEFAULT_MANAGER
        token = file(TOKEN_FILE_VARIABLE) if token is None else token
        text = read_token(token) if isinstance(token, Path) else token or ""
        if text and not TOKEN.fullmatch(text):
            raise InputError("token: 16 to 256 characters without spaces; give it as it was made")
        authorities = Path(ca) if ca else file(CA_VARIABLE)
        tls = TlsFiles(file(CERTIFICATE_VARIABLE), file(KEY_VARIABLE), authorities)
        is_trusted = environment.get(NETWORK_VARIABLE) == "trusted"
        trust = Trust(text, tls if tls.paths else None, is_trusted)
        if text:
            trust.check_address(address)
        return cls(address, trust)
