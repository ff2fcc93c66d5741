"""What each status of the manager's HTTP says, for its schema. trimaran/wire/http_problems.py writes the errors."""

from __future__ import annotations

from typing import Any

from trimaran.wire import http_problems

MEANINGS = {
    401: "No token, or one that nobody here knows.",
    403: "Your role, the owner of the run or the operator's settings do not allow it.",
    404: "There is no such run, or nothing of that name in it.",
    409: "The run's state does not allow it, or the request id stands for another run.",
    413: "The body is too long.",
    422: "A field is wrong; `field` names it.",
    429: "More than the operator allows; `detail` says of what.",
    500: "The manager failed; its log says how.",
    503: "The manager's store does not answer; try again.",
    504: "It took too long.",
}


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the schema of a path."""
    return http_problems.responses(statuses, MEANINGS)
