"""What a browser shows of itself, and who may see the pages."""

from __future__ import annotations

from services.manager.permissions import check_role
from trimaran.errors import UnauthenticatedError
from trimaran.trust.access import ClientIdentity, Role

ORIGIN = "http://127.0.0.1:7980"
PARTIAL = {"HX-Request": "true"}
TOKENS = {role.value: ClientIdentity(f"anna-{role}", "team-a", role) for role in Role}
"""Each role's name is a token."""


def identify(method: str, token: str) -> ClientIdentity:
    if token not in TOKENS:
        raise UnauthenticatedError("there is no such token here")
    check_role(TOKENS[token], method)
    return TOKENS[token]
