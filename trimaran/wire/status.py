"""How an error of ours crosses the wire: a status code, a text, and its name in a trailer.

The code is the one that a user of grpcurl expects, so several of our errors share one. Which error
it was stands in the trailing metadata, `trimaran-error: unproven`, and the client raises that class
again. A status without this trailer comes from gRPC itself or from a foreign server: its code decides.
"""

from __future__ import annotations

from typing import NamedTuple

import grpc

from trimaran import errors

TRAILER = "trimaran-error"

CODES: dict[type[errors.TrimaranError], grpc.StatusCode] = {
    errors.InputError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.PromptTooLongError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.StaleEpochError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OutOfOrderError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.BehindError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnprovenError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.TransferError: grpc.StatusCode.ABORTED,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.ForbiddenError: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    errors.StateError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}
ERRORS = {error.name: error for error in CODES}
"""By their name in the trailer."""
WITHOUT_TRAILER: dict[grpc.StatusCode, type[errors.TrimaranError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InputError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.CANCELLED: errors.UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.ForbiddenError,
    grpc.StatusCode.NOT_FOUND: errors.NotFoundError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.LimitError,
}
"""Any other code is an InternalError."""

MAX_TEXT_BYTES = 2000
"""gRPC drops a status with more than 8 KiB of metadata; three bytes travel for each that is not ASCII."""


class Status(NamedTuple):
    """The arguments of `grpc.aio.ServicerContext.abort`."""

    code: grpc.StatusCode
    text: str
    trailers: tuple[tuple[str, str], ...]


def status_of(error: Exception) -> Status | None:
    """How `error` travels; None for one that is not ours.

    A class that derives from one in `CODES` travels as that one.
    """
    for kind, code in CODES.items():
        if isinstance(error, kind):
            data = str(error).encode(errors="backslashreplace")
            text = data[:MAX_TEXT_BYTES].decode(errors="ignore")
            text += " …" if len(data) > MAX_TEXT_BYTES else ""
            return Status(code, text, ((TRAILER, kind.name),))
    return None


def error_of(status: grpc.aio.AioRpcError) -> errors.TrimaranError:
    """What a service raised, or the nearest of ours for a status that no service of ours sent."""
    code, name = status.code(), name_of(status)
    text = status.details() or code.name
    if name is None and code is grpc.StatusCode.UNAVAILABLE:
        return errors.UnreachableError(text)
    kind = ERRORS.get(name) if name else None
    kind = kind or WITHOUT_TRAILER.get(code)
    return kind(text) if kind else errors.InternalError(f"{code.name}: {text}")


def name_of(status: grpc.aio.AioRpcError) -> str | None:
    """The error's name in the trailer; None for a status that no service of ours sent."""
    return next((str(value) for key, value in status.trailing_metadata() if key == TRAILER), None)
