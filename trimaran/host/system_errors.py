"""Whose fault it is that the system refuses something: what was named, or the machine's.

Only what is wrong with a run may end it. A machine that has too few descriptors or too little memory,
or whose disk is away, is asked again.
"""

from __future__ import annotations

import errno
import re
import ssl
from collections.abc import Iterator

from trimaran.errors import InputError, UnavailableError

OF_THE_NAME = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
        *(errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.EADDRINUSE, errno.EADDRNOTAVAIL),
    }
)
"""Another try comes to the same end: what was named is not there, not of that kind, or not ours."""
RUST_ERRNO = re.compile(r"\(os error (\d+)\)")
"""Libraries in Rust, such as safetensors, say it in words alone."""


def refused(what: str, error: BaseException, remedy: str = "") -> InputError | UnavailableError:
    """To be raised where `what` failed with `error`, which need not be the system's own.

    Example: raise refused(f"{path}: cannot be read", error, "name another file") from None
    """
    reason = (isinstance(error, OSError) and error.strerror) or error
    if is_of_the_machine(error):
        return UnavailableError(f"{what} ({reason}); the machine is at fault, so try again")
    return InputError(f"{what} ({reason}); {remedy}" if remedy else f"{what} ({reason})")


def is_of_the_machine(error: BaseException) -> bool:
    """Also where a library has raised an error of its own because of it."""
    return any(
        number is not None and number not in OF_THE_NAME
        for number in map(_number, _with_causes(error))
    )


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _number(error: BaseException) -> int | None:
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, ssl.SSLError):  # its numbers are OpenSSL's
        return None
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno > 0 else None  # those below are of names of hosts
    found = RUST_ERRNO.search(str(error))
    return int(found[1]) if found else None
