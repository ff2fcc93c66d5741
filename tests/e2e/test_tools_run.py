"""Whole runs on vLLM whose policy calls tools: of an MCP server, an OpenEnv server, a program."""

import asyncio
from pathlib import Path

import psutil
import pytest

from tests.calling_model import NUMBERS, write_calling_model, write_speaking_model
from tests.e2e import runs
from tests.environment.mcp import plain_server
from tests.environment.openenv.fake_server import OpenEnvServer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

AGENT = Path(__file__).parents[2] / "examples" / "agent"


@pytest.fixture
def write_tool_run(write_run, tmp_path):
    """write_tool_run(environment, tool, arguments) -> path of a run whose policy calls that tool."""

    def write(environment, tool="add", arguments=NUMBERS):
        model = write_calling_model(tmp_path / "calling", tool, arguments)
        return write_run(
            run={"steps": 2, "keep_payloads": "all"},
            model={"path": str(model)},
            environment={"max_turns": 3, "max_tokens": 300, **environment},
            rollout={"engine": "vllm", "kv_cache_gib": 0.05},
            # All tokens are computed for it, whatever their rewards.
            algorithm={"kl": {"coefficient": 0.01}},
            validation={"every": 100},
        )

    return write


def check(folder, tmp_path):
    """Tools were called and answered."""
    for row in check_tokens(folder, tmp_path):
        assert row["environment/calls/mean"] > 1
        assert row["environment/calls/failed/share"] == 0


def check_tokens(folder, tmp_path):
    """What was sampled over several turns is what trained; nothing is left behind."""
    rows = runs.rows(folder, "step")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["environment/turns/max"] == 3
        assert row["environment/prefix/cached/share"] > 0
        assert row["trainer/computed/logprob_diff/mean"] < 1e-4
    assert "the same: 2 steps" in runs.replay(folder, tmp_path)
    return rows


def test_tools_of_an_mcp_server(write_tool_run, tmp_path):
    command = ["python", "-S", plain_server.__file__, str(tmp_path / "pids")]
    path = write_tool_run({"mcp": [{"command": command, "tools": ["add"]}]})
    allow = f"command {' '.join(command)}"
    folder, _ = runs.finished(path, "--allow", allow, parent=tmp_path)
    check(folder, tmp_path)
    assert (tmp_path / "pids").exists()
    assert not [one.pid for one in psutil.process_iter() if command[-1] in words_of(one)]


def words_of(process):
    """A server has only few of its parent's variables, so its mark is its command."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_an_openenv_server(write_tool_run, tmp_path):
    """An action is a call of `act`; `end` ends an episode."""

    async def body():
        async with OpenEnvServer(room=100) as server:
            environment = {"openenv": server.url, "options": {"observation": "echoed_message"}}
            path = write_tool_run(environment, "act", [{"message": "a"}, {"message": "bc"}])
            allow = server.url.replace("ws:", "http:")
            await asyncio.to_thread(runs.finished, path, "--allow", allow, parent=tmp_path)
            assert server.open == []
            steps = [one for one in server.received if one["type"] == "step"]
            assert {one["data"].get("message") for one in steps} >= {"a", "bc"}

    asyncio.run(body())
    folder = runs.only_run(tmp_path / "runs")
    check(folder, tmp_path)
    assert all(row["reward/term/environment/mean"] > 0 for row in runs.rows(folder, "step"))


def test_the_example_of_a_program(tmp_path):
    """By the package openai. An episode with one CALC is worth 1: of 32, some."""
    model = write_speaking_model(tmp_path / "speaking", ["CALC 1 + 2", "one", "two", "three"])
    words = (
        *(f"run.folder={tmp_path / 'runs'}", "run.steps=2", "run.keep_payloads=all"),
        *(f"model.path={model}", "model.dtype=float32"),
        *("rollout.replicas=1", "rollout.max_prompt_tokens=300", "environment.max_tokens=200"),
        *("algorithm.kl.coefficient=0.01", "validation.every=100"),
        *("--allow", f"command python {AGENT / 'agent.py'}"),
    )
    folder, _ = runs.finished(AGENT / "run.yaml", *words, parent=tmp_path)
    rows = check_tokens(folder, tmp_path)
    assert all(row["environment/given_tokens/mean"] > 0 for row in rows)
    assert any(row["reward/term/environment/mean"] > 0 for row in rows)
