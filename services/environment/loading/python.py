"""The tool `python`: a program in the sandbox, and what it printed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from services.environment.loading.functions import CallableTool, FailedCallError
from trimaran.sandbox.job import SandboxLimits
from trimaran.sandbox.run import SandboxRun, run
from trimaran.types import Tool

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


def python_tool(limits: SandboxLimits) -> CallableTool:
    """Example: python_tool(SandboxLimits()).call({"code": "print(3 * 4)"}) == "12" """
    return CallableTool(PYTHON, partial(_run, limits))


def _run(limits: SandboxLimits, arguments: Mapping[str, Any]) -> str:
    """Raises FailedCallError for a program that fails, and for one that is none."""
    code = arguments.get("code")
    if not isinstance(code, str) or len(arguments) != 1:
        raise FailedCallError("error: python takes one argument: code, a text")
    done = run(code, "", limits)
    reported = _as_printed(done, limits)
    if done.stopped or done.exit_code:
        raise FailedCallError(reported)
    return reported


def _as_printed(done: SandboxRun, limits: SandboxLimits) -> str:
    """What a terminal would show."""
    ends = {
        "time": f"[stopped: it ran for {limits.seconds:g} s]",
        "output": "[stopped: it printed too much]",
        "": f"[exit code {done.exit_code}]" if done.exit_code and not done.stderr else "",
    }
    parts = (done.stdout, OUR_FRAMES.sub("", done.stderr), ends[done.stopped])
    return "\n".join(part.rstrip("\n") for part in parts if part)
