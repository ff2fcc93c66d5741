"""Errors that cross a service boundary. `rpc.STATUS` maps each to one gRPC status code."""


def first_error(errors: BaseExceptionGroup) -> BaseException:
    """The error that ended a group of tasks."""
    error = errors.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error


class TrimaranError(Exception):
    """Base of every error that we raise on purpose; its text names the thing and the remedy."""


class InputError(TrimaranError, ValueError):
    """What the user gave is wrong: a key, a file, a row, a shape. Exit code 2."""


class StaleEpochError(TrimaranError):
    """The caller's controller was replaced by a newer one."""


class OutOfOrderError(TrimaranError):
    """A step or version that is neither the next one nor the recorded one."""


class PromptTooLongError(TrimaranError):
    """The prompt, or a continuation with it, does not fit the configured length."""


class BehindError(TrimaranError):
    """The replica holds an older version than the caller asked for, or none."""


class TransferError(TrimaranError):
    """Weights did not arrive whole and in time; nothing of them is live."""


class UnprovenError(TrimaranError):
    """Tokens of weights that nobody proved; they must not train, and their group is reissued."""


class UnavailableError(TrimaranError):
    """The other side is gone, restarting or overloaded; another replica may answer."""


class DeadlineError(TrimaranError, TimeoutError):
    """A wait ended without its answer."""


class InternalError(TrimaranError):
    """A service failed in a way that it did not foresee; its log holds the traceback."""
