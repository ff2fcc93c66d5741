"""What a service's exit code says to the launcher."""

from __future__ import annotations

from trimaran.errors import (
    DeadlineError,
    InputError,
    InternalError,
    LeftBehindError,
    TransferError,
    UnavailableError,
)
from trimaran.store import StoreError

FAILED = 1
"""It has decided: another start would come to the same end."""
BAD_INPUT = 2
"""What the user gave is wrong; its last lines say what."""
TRY_AGAIN = 75
"""What it met may pass, so another start may help. The number is EX_TEMPFAIL of sysexits.h."""

LEFT_BEHIND = 76
"""The exit code of a trainer rank, or of one host's process of a replica: another that it had met was replaced, and the new
one waits for it. It has done nothing wrong: it costs it none of its restarts, and no other has to be started
with it but, for a rank, the controller."""

NOT_STARTED = 127
"""What was not started has this one, as a shell says it."""

MAY_PASS = (UnavailableError, DeadlineError, TransferError, InternalError)
"""Errors of another process that was away, silent, broken off or crashed."""


def exit_code(error: BaseException) -> int:
    """The exit code of a service that ends because of `error`.

    Example: exit_code(UnavailableError("reward: connection refused")) == TRY_AGAIN
    """
    if isinstance(error, InputError):
        return BAD_INPUT
    if isinstance(error, LeftBehindError):
        return LEFT_BEHIND
    # A store that is damaged needs a person.
    may_pass = isinstance(error, MAY_PASS) and not isinstance(error, StoreError)
    return TRY_AGAIN if may_pass else FAILED
