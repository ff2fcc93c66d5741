"""The process in which rules run: reads a job, answers, reads the next.

A frame is four bytes of length (little-endian) and that much JSON. A job is
{"rule", "text", "answer", "extras"}; an answer {"value"} or {"error"}.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from typing import Any, BinaryIO

from services.reward.rules import RULES
from trimaran.launch.lifetime import die_with_parent

READY = {"ready": True}


def pack(message: Any) -> bytes:
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "little") + body


def read_frame(stream: BinaryIO) -> Any | None:
    """None at the end of the stream."""
    header = stream.read(4)
    if len(header) < 4:
        return None
    return json.loads(stream.read(int.from_bytes(header, "little")))


def judge(job: dict[str, Any]) -> dict[str, Any]:
    rule = RULES[job["rule"]]
    try:
        value = float(rule.function(job["text"], job["answer"], job["extras"]))
    except Exception as error:  # whatever a rule raises, the answer is what it could not digest
        return {"error": f"{type(error).__name__}: {error}"}
    if not (math.isfinite(value) and rule.minimum <= value <= rule.maximum):
        return {"error": f"{value} is not within {rule.minimum} to {rule.maximum}"}
    return {"value": value}


def main() -> None:
    die_with_parent(int(sys.argv[1]), signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool's owner decides when we end
    jobs = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a rule prints goes to the log, not between our frames
    answers.write(pack(READY))
    answers.flush()
    while (job := read_frame(jobs)) is not None:
        answers.write(pack(judge(job)))
        answers.flush()


if __name__ == "__main__":
    main()
