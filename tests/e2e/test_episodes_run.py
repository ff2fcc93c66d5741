"""A whole run of episodes: a class answers, some of its turns fail, and what happened is reported turn by turn."""

import json
import signal

import pytest

from tests.e2e import runs
from tests.e2e.test_revival import KINDS, disturb
from tests.tiny_model import write_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ECHO = """
import random


class Echo:
    def reset(self, row):
        self.turns = 0
        self.random = random.Random()

    def step(self, message):
        self.turns += 1
        if self.turns == 2 and self.random.random() < 0.3:
            raise OSError("the world is gone")
        done = self.turns == 3
        return (None if done else f"more {self.turns}"), float(len(message.text) % 2), done
"""
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}"
    "{{ '<end>\\n' if m['role'] == 'assistant' else '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def model_of_turns(folder):
    """Its chat template ends each turn."""
    from transformers import AutoTokenizer

    model = write_tiny_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(model)
    return model


@pytest.mark.parametrize("history", ["exact", "template"])
def test_a_run_of_episodes_trains_and_reports_them(write_run, tmp_path, history):
    model = model_of_turns(tmp_path / "tiny")
    environment = {"factory": "echo.py:Echo", "max_turns": 4, "max_tokens": 300}
    path = write_run(
        run={"steps": 2, "max_lag": 1, "keep_payloads": "all"},
        model={"path": str(model)},
        environment={**environment, "history": history},
        rollout={"group_size": 4},
        algorithm={"advantage": "mt_grpo"},
    )
    (tmp_path / "echo.py").write_text(ECHO)
    allow = ["--allow", str(tmp_path / "echo.py:Echo")]
    code, output = runs.train(path, *allow, run_folder_parent=tmp_path)
    assert code == 0, output
    folder = runs.only_run(tmp_path / "runs")
    first, second = runs.rows(folder, "step")
    assert first["environment/turns/max"] == second["environment/turns/max"] == 3
    assert "  turns 3.0  calls 0.0  env s " in output
    *_, last = sorted((folder / "samples").iterdir())
    prompts = map(json.loads, last.read_text().splitlines())
    # A world that is gone three times in a row leaves a prompt without an answer.
    episode = next(row["greedy_episodes"][0] for row in prompts if "greedy_episodes" in row)
    assert [turn["turn"]["num_sampled"] > 0 for turn in episode["turns"]] == [True] * 3
    assert episode["turns"][0]["versions"] == ["0.2"]
    reported = runs.finish(runs.start("samples", folder, run_folder_parent=tmp_path))
    assert "  user:      more 1\n" in reported and "  turn 3:    [" in reported
    lines = [
        runs.finish(runs.start("ledger", "show", folder, str(number), run_folder_parent=tmp_path))
        for number in range(4)
    ]
    assert all("turn 3: [" in one for one in lines)
    if history == "template":
        assert any("branch 1" in one for one in lines)
    again = [line for one in lines for line in one.splitlines() if "again, because of" in line]
    assert all("OSError: the world is gone" in line for line in again)
    replayed = runs.finish(runs.start("replay", folder, run_folder_parent=tmp_path))
    assert "the same: 2 steps" in replayed, replayed
    assert runs.survivors(tmp_path) == []


PATIENT = """
class Patient:
    def reset(self, row):
        self.turns = 0

    def step(self, message):
        self.turns += 1
        return f"more {self.turns}", float(len(message.text) % 2), self.turns == 3
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_environment_service_that_is_killed_or_frozen_comes_back(write_run, tmp_path, number):
    path = write_run(
        run={"steps": 6},
        model={"path": str(model_of_turns(tmp_path / "tiny"))},
        environment={"factory": "patient.py:Patient", "max_turns": 4, "max_tokens": 300},
        rollout={"group_size": 4},
    )
    (tmp_path / "patient.py").write_text(PATIENT)
    allow = ["--allow", str(tmp_path / "patient.py:Patient"), "frozen_timeout=15"]
    process = runs.start("train", path, *allow, run_folder_parent=tmp_path)
    disturb(process, tmp_path / "runs", tmp_path, ("environment",), number)
    output = runs.finish(process)
    assert process.returncode == 0, output
    killed = number is signal.SIGKILL
    words = "died (killed by SIGKILL)" if killed else "is frozen: it has not answered"
    assert f"environment-0 {words}" in output
    rows = runs.rows(runs.only_run(tmp_path / "runs"), "step")
    assert [row["step"] for row in rows] == list(range(1, 7))
    assert all(row["environment/turns/max"] == 3 for row in rows)
    assert runs.survivors(tmp_path) == []


SLOW = PATIENT.replace(
    "        self.turns += 1\n", "        self.turns += 1\n        time.sleep(0.3)\n"
)


def test_each_kind_is_killed_in_the_middle_of_turns(write_run, tmp_path):
    """Almost all of a step is turns, which take their time."""
    path = write_run(
        run={"steps": 9, "checkpoint_every": 3, "keep_payloads": "all"},
        model={"path": str(model_of_turns(tmp_path / "tiny"))},
        environment={"factory": "slow.py:Patient", "max_turns": 4, "max_tokens": 300},
        rollout={"group_size": 4},
    )
    (tmp_path / "slow.py").write_text(f"import time\n{SLOW}")
    allow = ["--allow", str(tmp_path / "slow.py:Patient")]
    process = runs.start("train", path, *allow, run_folder_parent=tmp_path)
    disturb(process, tmp_path / "runs", tmp_path, ("environment", *KINDS), signal.SIGKILL)
    output = runs.finish(process)
    assert process.returncode == 0, output
    for name in ("environment-0", "controller", "trainer-0", "rollout-0", "reward", "weight-sync"):
        assert f"{name} died (killed by SIGKILL)" in output
    folder = runs.only_run(tmp_path / "runs")
    rows = runs.rows(folder, "step")
    assert [row["step"] for row in rows] == list(range(1, 10))
    assert all(row["environment/turns/max"] == 3 for row in rows)
    assert "the same: 9 steps" in runs.finish(
        runs.start("replay", folder, run_folder_parent=tmp_path)
    )
    assert runs.survivors(tmp_path) == []
