"""Errors that cross a service boundary.

Each has a `name` that stands on the wire (`trimaran/wire/status.py`), so a name never changes. A class
that derives from one of these elsewhere crosses as the class here that it derives from.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import ClassVar, cast


def did_you_mean(word: str, known: Collection[str], cutoff: float = 0.5) -> str:
    """The end of a message about an unknown word; empty where no known word is near."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended a group of tasks."""
    error = errors.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        return first_error(cast(BaseExceptionGroup[BaseException], error))
    return error


class TrimaranError(Exception):
    """Base of every error that we raise on purpose; its text names the thing and the remedy.

    Example: `raise InputError("run.steps: -1; give 1 or more")`
    """

    name: ClassVar[str]
    remedy: ClassVar[str] = "Fix the cause, then resume the run."
    """What a person does whose run failed with it, where the text does not say it."""


class InputError(TrimaranError, ValueError):
    """What the user gave is wrong: a key, a file, a row, a shape. Exit code 2."""

    name = "input"
    remedy = "Correct what the message names. Where it is in the configuration, start a new run."


class StaleEpochError(TrimaranError):
    """The caller's controller was replaced by a newer one."""

    name = "stale-epoch"


class OutOfOrderError(TrimaranError):
    """A step or version that is neither the next one nor the recorded one."""

    name = "out-of-order"


class PromptTooLongError(TrimaranError):
    """The prompt, or a continuation with it, does not fit the configured length."""

    name = "prompt-too-long"


class BehindError(TrimaranError):
    """The replica holds an older version than the caller asked for, or none."""

    name = "behind"


class TransferError(TrimaranError):
    """Weights did not arrive whole and in time; nothing of them is live."""

    name = "transfer"


class UnprovenError(TrimaranError):
    """No proof says which weights made these tokens. They must not train; their group is reissued."""

    name = "unproven"


class UnavailableError(TrimaranError):
    """The other side is gone, restarting or overloaded; another replica may answer."""

    name = "unavailable"


class UnreachableError(UnavailableError):
    """No process listens at the address, or the connection broke: said by gRPC, by no service of ours."""


class LeftBehindError(UnavailableError):
    """One of those that this process works with was replaced, and the new one waits for this
    one's restart."""


class DeadlineError(TrimaranError, TimeoutError):
    """A wait ended without its answer."""

    name = "deadline"


class UnauthenticatedError(TrimaranError):
    """The call shows no token, or one that is not known here."""

    name = "unauthenticated"


class ForbiddenError(TrimaranError):
    """We know who asks, and the operator does not allow it: the role, the owner, or what is named."""

    name = "forbidden"


class NotFoundError(TrimaranError):
    """There is nothing of that name."""

    name = "not-found"


class AlreadyExistsError(TrimaranError):
    """The name stands for something else already, such as a request id for another run."""

    name = "already-exists"


class StateError(TrimaranError):
    """The run's state does not allow it, such as a pause of a run that has ended."""

    name = "state"


class LimitError(TrimaranError):
    """More than the operator allows: of size, of cost, or at a time."""

    name = "limit"


class InternalError(TrimaranError):
    """A service failed in a way that it did not foresee; its log holds the traceback."""

    name = "internal"
