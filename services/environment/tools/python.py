"""The tool `python`: a program in the sandbox, and what it printed."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from services.environment.tools.source import Answer
from trimaran.sandbox.job import SandboxLimits
from trimaran.sandbox.run import SandboxRun, run
from trimaran.types import Opening, Prompt, Tool, ToolCall

PARAMETERS = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The program."}},
    "required": ["code"],
}
PYTHON = Tool(
    "python",
    "Runs a Python program and answers what it prints. Nothing is kept between two programs.",
    json.dumps(PARAMETERS),
)
OUR_FRAMES = re.compile(r'^  File "[^"\n]*/child\.py", .*\n', re.MULTILINE)
"""In a traceback, before those of the program."""
SHARE = 0.8
"""Of a step's time: who takes longer is told so, and the episode goes on."""


class PythonTool:
    """A `ToolSource`, the same for all episodes.

    Example: await PythonTool(30.0, 1024, threads).call([ToolCall("python", '{"code": "print(1)"}')])
    """

    def __init__(self, timeout: float, memory_mib: int, threads: ThreadPoolExecutor) -> None:
        self._limits = SandboxLimits(seconds=SHARE * timeout, memory_mib=memory_mib)
        self._threads = threads

    async def open(self, prompt: Prompt, seed: int) -> Opening:
        return Opening(prompt.messages, (PYTHON,))

    async def call(self, calls: Sequence[ToolCall]) -> Sequence[Answer]:
        """Each in a process of its own, one behind the other: they share the time of a step."""
        return [await self._run(call) for call in calls]

    async def reward(self) -> float | None:
        return None

    async def close(self) -> None: ...

    async def _run(self, call: ToolCall) -> Answer:
        arguments = json.loads(call.arguments)
        code = arguments.get("code")
        if not isinstance(code, str) or len(arguments) != 1:
            return Answer("error: python takes one argument: code, a text", True)
        loop = asyncio.get_running_loop()
        done = await loop.run_in_executor(self._threads, run, code, "", self._limits)
        return Answer(self._told(done), bool(done.stopped or done.exit_code))

    def _told(self, done: SandboxRun) -> str:
        """What a terminal would show."""
        ends = {
            "time": f"[stopped: it ran for {self._limits.seconds:g} s]",
            "output": "[stopped: it printed too much]",
            "": f"[exit code {done.exit_code}]" if done.exit_code and not done.stderr else "",
        }
        parts = (done.stdout, OUR_FRAMES.sub("", done.stderr), ends[done.stopped])
        return "\n".join(part.rstrip("\n") for part in parts if part)
