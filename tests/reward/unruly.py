"""Reward functions that misbehave as the answer's text says. They run in the pool's processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trimaran.rewards import ReferenceUnusableError, Sample


def answer(sample: Sample) -> float:
    """1 for "right", 0 for "wrong"; the first word of anything else names what happens.

    `extras["log"]` is a file that gets a line "<text> <process>" for each meeting.
    """
    _note(sample)
    word, _, rest = sample.text.partition(" ")
    if rest.startswith("once") and _times(sample) > 1:
        return 1.0
    if word in DEEDS:
        DEEDS[word]()
    return float(word == "right")


def group(samples: Sequence[Sample]) -> list[float]:
    """Judges a group as a whole: the same deeds."""
    return [answer(sample) for sample in samples]


def few(samples: Sequence[Sample]) -> list[float]:
    if len(samples) > 2:
        raise RuntimeError("too many")
    return [1.0] * len(samples)


def compute_score(data_sources, solution_strs, ground_truths, extra_infos) -> list[float]:
    """verl's batch form: may be cut. The reference is a log file."""
    for text, log in zip(solution_strs, ground_truths, strict=True):
        _note(Sample(text, "", {"log": log}))
        if text in DEEDS:
            DEEDS[text]()
    return [float(text == "right") for text in solution_strs]


def leave(sample: Sample, child_file: str) -> float:
    """Starts a child that stays behind."""
    child = subprocess.Popen(["sleep", "3600"])
    Path(child_file).write_text(str(child.pid), encoding="utf-8")
    return 1.0


def is_set(sample: Sample) -> float:
    return float(sample.text in os.environ)


def _note(sample: Sample) -> None:
    if log := sample.extras.get("log"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{sample.text} {os.getpid()}\n")


def _times(sample: Sample) -> int:
    lines = Path(sample.extras["log"]).read_text(encoding="utf-8").splitlines()
    return sum(line.rpartition(" ")[0] == sample.text for line in lines)


def _disarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(3600)


def _deafen() -> None:
    for number in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(3600)


def _eat() -> None:
    kept = []
    while True:
        kept.append(bytearray(1 << 24))


def _raise() -> None:
    raise RuntimeError("cannot parse")


def _disconnect() -> None:
    raise ConnectionResetError("gone")


def _time_out() -> None:
    raise TimeoutError("too long")


def _refuse() -> None:
    raise ReferenceUnusableError("the answer is no number")


def _fork() -> None:
    os.fork()  # both go on


DEEDS: dict[str, Callable[[], object]] = {
    "linger": lambda: time.sleep(0.6),  # longer than a chunk may take
    "hang": lambda: time.sleep(3600),
    "hang-holding-the-lock": lambda: ctypes.PyDLL(None).sleep(3600),
    "disarm": _disarm,
    "deafen": _deafen,
    "exit": lambda: os._exit(9),
    "sys-exit": sys.exit,
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "segfault": lambda: signal.raise_signal(signal.SIGSEGV),
    "eat": _eat,
    "raise": _raise,
    "refuse": _refuse,
    "disconnect": _disconnect,
    "time-out": _time_out,
    "fork": _fork,
    "print": lambda: print("a rule may print"),
}
