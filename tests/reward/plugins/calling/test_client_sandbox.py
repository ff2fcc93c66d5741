"""The code rule with its programs run by a server that speaks SandboxFusion's /run_code."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from services.reward.outcome import Fault, Outcome, Value
from services.reward.plugins.calling.client import PluginJudge
from tests.reward.plugins.calling.test_client import judging, spec_of
from tests.trimaran.plugins import hostile
from tests.trimaran.plugins.hostile import Received, Server, answer
from trimaran.errors import InputError
from trimaran.rewards import Sample
from trimaran.trust.allowed import Allowed

PAIRS = json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]})
RIGHT = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
HALF = "```python\ninput()\nprint(3)\n```"


def says(status: str, **keys: Any) -> hostile.Reply:
    return answer(200, json.dumps({"status": status, "message": "", **keys}).encode())


async def really_run(request: Received, writer: asyncio.StreamWriter) -> None:
    """What SandboxFusion answers, from a process of this machine."""
    sent = request.json
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", sent["code"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    stdout, _ = await process.communicate(sent["stdin"].encode())
    run = {"status": "Finished", "return_code": process.returncode, "stdout": stdout.decode()}
    await says("Failed" if process.returncode else "Success", run_result=run)(request, writer)


async def judged(
    reply: hostile.Reply, text: str, reference: str = PAIRS, **options: Any
) -> tuple[Outcome, Server]:
    async with Server(reply) as server:
        spec = spec_of(f"{server.url}/run_code", options, protocol="sandbox_fusion")
        async with judging(spec) as judge:
            (outcome,) = await judge.judge(spec, [Sample(text, reference)])
            return outcome, server


async def test_right_and_half_right_programs() -> None:
    outcome, server = await judged(really_run, RIGHT, test_timeout=3.0, memory_mib=256)
    assert outcome == Value(1.0, {"passed": 1.0})
    assert {request.path for request in server.received} == {"/run_code"}
    sent = server.posts[0].json
    assert (sent["language"], sent["run_timeout"], sent["memory_limit_MB"]) == ("python", 3, 256)
    assert (await judged(really_run, HALF))[0] == Value(0.0, {"passed": 0.5})
    assert (await judged(really_run, HALF, partial=True))[0] == Value(0.5, {"passed": 0.5})


@pytest.mark.parametrize(("source", "score"), [("x * 1.0", 1.0), ("-1", 0.0)])
async def test_a_judge_and_its_answer_run_in_one_program(source: str, score: float) -> None:
    text = f"```python\ndef f(x):\n    return {source}\n```"
    outcome, server = await judged(really_run, text, json.dumps(["assert abs(f(1) - 1) < 1e-6"]))
    assert outcome == Value(score, {"passed": score}) and len(server.posts) == 1


async def test_an_argument_that_cannot_travel_is_a_fault() -> None:
    text = "```python\ndef f(x):\n    return x\n```"
    outcome, _ = await judged(really_run, text, "class Odd: pass\nassert f(Odd())")
    assert isinstance(outcome, Fault) and "Odd" in outcome.reason


@pytest.mark.parametrize(
    "reply",
    [
        says("Failed", run_result={"status": "TimeLimitExceeded", "stdout": "3\n"}),
        says("Failed", run_result={"status": "Finished", "return_code": 1, "stdout": "3\n"}),
        hostile.flood(64 << 20, length_known=True),
    ],
)
async def test_a_program_that_fails_or_never_stops_printing_is_wrong(reply: hostile.Reply) -> None:
    assert (await judged(reply, RIGHT))[0] == Value(0.0, {"passed": 0.0})


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (says("SandboxError", message="no\npod"), "the sandbox failed: no pod"),
        (says("Ready"), "not as its contract says: status"),
        (answer(500, b"oops"), "answers 500: oops"),
    ],
)
async def test_the_sandboxs_own_errors_are_faults(reply: hostile.Reply, text: str) -> None:
    outcome, _ = await judged(reply, RIGHT)
    assert isinstance(outcome, Fault) and text in outcome.reason


@pytest.mark.parametrize("options", [{"timeout": 3}, {"partial": "yes"}, {"speed": 1}])
def test_options_are_checked_at_start(options: dict[str, Any]) -> None:
    host = "http://127.0.0.1:9"
    spec = spec_of(f"{host}/run_code", options, protocol="sandbox_fusion")
    with pytest.raises(InputError, match="is not an option of sandbox_fusion"):
        PluginJudge([spec], Allowed.from_entries([host]))
