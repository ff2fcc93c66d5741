"""Who changed what: one line of the log for each call that changes a run, whichever way it came.

    trimaran.audit: client anna, owner team-a: PauseRun 'addition-1': OK

As JSON the line has each of them as a field. `result` is gRPC's code, of HTTP as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from services.manager.permissions import CHANGING
from trimaran.run.runs import Run
from trimaran.telemetry import scope
from trimaran.trust.access import ClientIdentity
from trimaran.wire.status import status_of

logger = logging.getLogger("trimaran.audit")

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")

NONE = "-"
GONE = "CANCELLED"
"""The client went away before the answer; what it asked for may have been done."""


def audited(
    call: Callable[Concatenate[Self, ClientIdentity, str, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Self, ClientIdentity, str, P], Coroutine[Any, Any, R]]:
    """A method such as `pause`, which stands for PauseRun, with its line. What it is asked for is the run,
    unless it answers with one."""
    method = f"{call.__name__.capitalize()}Run"
    assert method in CHANGING

    @wraps(call)
    async def with_line(
        self: Self, client: ClientIdentity, asked: str, *args: P.args, **options: P.kwargs
    ) -> R:
        run_id, result = "" if method == "CreateRun" else asked, GONE
        try:
            answer = await call(self, client, asked, *args, **options)
            run_id, result = answer.run_id if isinstance(answer, Run) else run_id, "OK"
            return answer
        except Exception as error:
            result = _code(error)
            raise
        finally:
            _write(logging.INFO, client.name, client.owner, method, run_id, result)

    return with_line


def audit_refusal(client: ClientIdentity | None, method: str, error: Exception) -> None:
    """A line for a call that is refused before its request is read, if it is one that changes a run.
    `client`: None for a stranger, of whom each second has one such line at most."""
    name = method.rpartition("/")[2]
    if name not in CHANGING:
        return
    if client is None:
        _write(logging.WARNING, NONE, NONE, name, "", _code(error))
    else:
        _write(logging.INFO, client.name, client.owner, name, "", _code(error))


def _write(level: int, client: str, owner: str, method: str, run_id: str, result: str) -> None:
    # A client has chosen the name, so it may hold a line's end.
    run = repr(run_id[:200]) if run_id else NONE
    with scope.about(client=client, owner=owner, method=method, run=run_id[:200], result=result):
        logger.log(level, "client %s, owner %s: %s %s: %s", client, owner, method, run, result)


def _code(error: Exception) -> str:
    status = status_of(error)
    return status.code.name if status else "INTERNAL"
