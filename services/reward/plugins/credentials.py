"""What a plugin's section names outside of the configuration: a token and certificates."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterable

from trimaran.config import PluginSection
from trimaran.errors import InputError
from trimaran.system_errors import refused


def read_token(section: PluginSection) -> str | None:
    """From the environment; None where none is needed. Raises InputError, never with the token."""
    if section.token_variable is None:
        return None
    token = os.environ.get(section.token_variable, "").strip()
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        state = "holds what cannot be a bearer token" if token else "is not set"
        raise InputError(
            f"plugin {section.url}: the environment variable {section.token_variable} {state};"
            " set it where the reward service starts"
        )
    return token


def forget_tokens(sections: Iterable[PluginSection]) -> None:
    """After they were read: processes that are started from now on do not inherit them."""
    for section in sections:
        if section.token_variable is not None:
            os.environ.pop(section.token_variable, None)


def read_certificates(section: PluginSection) -> ssl.SSLContext | None:
    """What https trusts; None for the system's. Raises InputError."""
    if section.ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=section.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise refused(
            f"plugin {section.url}: ca_file {section.ca_file} cannot be used",
            error,
            "give a file of certificates in PEM",
        ) from None
