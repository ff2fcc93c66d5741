"""Which role may call which method. Whose runs are meant is `ClientIdentity.check_owner`'s."""

from __future__ import annotations

from trimaran.errors import ForbiddenError
from trimaran.trust.access import ClientIdentity, Role

READING = (
    "GetRun",
    "ListRuns",
    "WatchRun",
    "ListCheckpoints",
    "GetSamples",
    "GetLogs",
    "GetLedger",
    "ServerReflectionInfo",
)
CHANGING = ("CreateRun", "PauseRun", "ResumeRun", "CancelRun", "DeleteRun", "ScaleRun")

LEAST_ROLE: dict[str, Role] = {
    **dict.fromkeys(READING, Role.VIEWER),
    **dict.fromkeys(CHANGING, Role.SUBMITTER),
}
"""By the method's name; any other is an operator's."""


def check_role(client: ClientIdentity, method: str) -> None:
    """`method`: its name, or its path. Raises ForbiddenError."""
    name = method.rpartition("/")[2]
    least = LEAST_ROLE.get(name, Role.OPERATOR)
    if not client.role.covers(least):
        raise ForbiddenError(
            f"{name}: {client.name} is {client.role}; it takes {least}, so ask an operator"
        )
