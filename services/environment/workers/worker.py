"""What runs in a process of the pool: it plays one episode after the other, as lines.py says."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from services.environment.loading.boxes import FunctionBox, Toolbox
from services.environment.loading.functions import FailedCallError
from services.environment.loading.load import Loaded, LoadSpec, load
from services.environment.loading.waiting import settled_each
from services.environment.workers.lines import (
    decode_message,
    encode_line,
    encode_message,
    encode_reply,
    encode_tool,
    shortened,
)
from trimaran.errors import InputError
from trimaran.sandbox.job import SandboxError
from trimaran.types import Opening, Reply

FAULTS = (MemoryError, SandboxError)
"""What a tool may raise and no policy has caused."""
MAX_REASON = 500
"""Characters of what user code raised."""


def work(connection: socket.socket, spec: LoadSpec, memory_mib: int, max_chars: int) -> None:
    """Until the service hangs up."""
    worker = Worker(spec, memory_mib, max_chars)
    with connection, connection.makefile("rb") as requests:
        for line in requests:
            connection.sendall(encode_line(worker.answer(json.loads(line))))


class Worker:
    """Example: Worker(LoadSpec(tools=("tools.py:add",)), 4096, 1000).answer({"do": "load"})"""

    def __init__(self, spec: LoadSpec, memory_mib: int, max_chars: int) -> None:
        self._spec, self._memory_mib, self._max_chars = spec, memory_mib, max_chars
        self._loaded = Loaded()

    def answer(self, request: Any) -> dict[str, Any]:
        """Raises nothing: what user code raises is a fault, unless a tool raises it."""
        try:
            return self._answer(request)
        except BaseException as error:
            return {"fault": self._words(error)}

    def _answer(self, request: Any) -> dict[str, Any]:
        player, boxes = self._loaded.player, self._loaded.boxes
        match request["do"]:
            case "load":
                return self._load()
            case "open" if player:
                opening = player.open(request["row"])
                return {"opening": opening and self._opening(opening)}
            case "open":
                said = [box.open(request["row"]) for box in boxes]
                return {"said": "".join(said)}
            case "call":
                return {"answers": self._call(request["calls"])}
            case "reward":
                return {"reward": _reward(boxes)}
            case "step" if player:
                return {"reply": self._reply(player.step(decode_message(request["message"])))}
            case "close":
                for box in boxes:
                    box.close()
                return {"clean": not _has_children()}
            case other:
                raise ValueError(f"{other!r} is no request")

    def _load(self) -> dict[str, Any]:
        try:
            self._loaded = load(self._spec)
        except InputError as error:
            return {"refused": str(error)}
        tools = [encode_tool(tool) for tool in self._loaded.tools]
        rewards = any(not isinstance(box, FunctionBox) for box in self._loaded.boxes)
        return {"plays": self._loaded.player is not None, "rewards": rewards, "tools": tools}

    def _reply(self, reply: Reply) -> dict[str, Any]:
        messages = [
            replace(message, text=shortened(message.text, self._max_chars))
            for message in reply.messages
        ]
        return encode_reply(replace(reply, messages=tuple(messages)))

    def _opening(self, opening: Opening) -> list[Any]:
        messages = [encode_message(message) for message in opening.messages]
        return [messages, [encode_tool(tool) for tool in opening.tools]]

    def _call(self, calls: Sequence[Sequence[str]]) -> list[tuple[str, bool]]:
        """In order, and what has to be awaited beside each other."""
        given = settled_each([self._begin(name, arguments) for name, arguments in calls])
        answers: list[tuple[str, bool]] = []
        for value in given:
            if isinstance(value, FAULTS):
                raise value
            failed = isinstance(value, BaseException)
            text = self._failure(value) if failed else _text(value)
            answers.append((shortened(text, self._max_chars), failed))
        return answers

    def _begin(self, name: str, arguments: str) -> Any:
        """What the tool gives, to be awaited or not, or what it raises."""
        tools = {known: one for box in self._loaded.boxes for known, one in box.tools.items()}
        try:
            return tools[name].call(json.loads(arguments))
        except BaseException as error:  # also SystemExit: a tool ends no process
            return error

    def _failure(self, error: BaseException) -> str:
        return str(error) if isinstance(error, FailedCallError) else f"error: {self._words(error)}"

    def _words(self, error: BaseException) -> str:
        if isinstance(error, MemoryError):
            limit = f"more than {self._memory_mib} MiB (environment.memory_mib)"
            return f"the environment wanted {limit}"
        try:
            text = str(error)
        except Exception:  # user code words it
            text = ""
        kind = type(error).__name__
        return (f"{kind}: {text}" if text else kind)[:MAX_REASON]


def _reward(boxes: Sequence[Toolbox]) -> float | None:
    known = [reward for box in boxes if (reward := box.reward()) is not None]
    return sum(known) if known else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _has_children() -> bool:
    """Whether user code has left a process behind."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
