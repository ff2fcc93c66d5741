"""What the arguments mean that plugins of every kind are served and checked with."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Sequence
from typing import Any

import yaml

from trimaran.config.yaml_text import parse_yaml
from trimaran.errors import InputError


def read_token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not (token.isascii() and token.isprintable() and token) or " " in token:
        raise InputError(
            f"--token-variable {variable}: that environment variable holds no token"
            " (printable ASCII without blanks); set it first"
        )
    return token


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise InputError(f"--option {pair!r}: an option reads key=value")
        try:
            options[key] = parse_yaml(text) if text else ""
            json.dumps(options[key], allow_nan=False)
        except (yaml.YAMLError, TypeError, ValueError):
            raise InputError(f"--option {pair!r}: the value is not a plain YAML value") from None
    return options


def check_tls(certificate: str | None, key: str | None) -> None:
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
