"""What a user may hand to a run, good and bad. Workers import it by its path."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np

from trimaran.episodes import Answer, Message, Reply, Row


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


async def slow_add(a: int, b: int) -> dict[str, int]:
    """Add two numbers, slowly.

    Args:
        a: The first.
        b: The second.
    """
    await asyncio.sleep(0.2)
    return {"sum": a + b}


def fail(text: str) -> str:
    """Fail.

    Args:
        text: How.
    """
    if text == "exit":
        sys.exit(3)
    raise KeyError(text)


def end(how: str) -> str:
    """End this process, or never.

    Args:
        how: Which way.
    """
    match how:
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(7)
        case "hang":
            time.sleep(1000)
        case "memory":
            return str(len(np.ones(1 << 30)))
        case "leave":
            leave_processes()
        case "garbage":
            for fd in range(3, 30):
                try:
                    os.write(fd, b"no json\n")
                except OSError:
                    continue
    return str(os.getpid())


def leave_processes() -> None:
    """One that stays in our group, and one that leaves it and loses its parent."""
    script = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\ntime.sleep(1000)"
    subprocess.Popen([sys.executable, "-S", "-c", script, "left behind"]).wait()
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)", "left behind"])


class Guess:
    """Trimaran's own form."""

    def __init__(self, most: int = 16) -> None:
        self.most, self.number = most, 0

    def reset(self, row: Row) -> list[dict[str, Any]] | None:
        if row["task"] == "as it is":
            return None
        if row["task"] == "broken":
            raise ValueError("no such game")
        self.number = 1 + row["seed"] % self.most
        return [
            {"role": "system", "content": "Guess."},
            {"role": "user", "content": f"1 to {self.most}"},
        ]

    async def step(self, message: Message) -> Answer:
        if message.text == "?":
            return Reply((Message("user", "a hint"),), num_calls=1)
        if message.text == "what":
            return "no answer"  # type: ignore[return-value]
        right = message.text == str(self.number)
        return "yes" if right else "no", float(right), right


class Counter:
    """As TRL's environment_factory has it."""

    def __init__(self) -> None:
        self.count = 0

    def reset(self, answer: str, level: int = 0, **columns: Any) -> str:
        self.count = level
        return f" Count to {answer}."

    def step(self, by: int) -> str:
        """Count on.

        Args:
            by: How far.
        """
        self.count += by
        return str(self.count)

    def get_reward(self) -> float:
        return self.count / 10
