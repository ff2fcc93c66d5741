"""A run's configuration in the browser."""

from __future__ import annotations

import httpx

from services.manager.pages.run.config_rows import compare, config_rows
from tests.clients.fake_runs import FakeRuns
from trimaran.config import load_config

TREE = {
    "model": {"path": "/models/tiny"},
    "data": {"train": [{"path": "/data/train.jsonl", "task": "sums"}]},
    "reward": {"rules": {"gsm8k": 1.0}},
    "rollout": {"group_size": 16},
    "algorithm": {"loss": {"type": "cispo"}},
}


def test_what_differs_is_said_beside_its_default() -> None:
    changed = {row.key: (row.value, row.instead) for row in config_rows(TREE) if row.differs}
    assert changed == {
        "model.path": ("/models/tiny", ""),
        "data.train.0.path": ("/data/train.jsonl", ""),
        "data.train.0.task": ("sums", "default"),
        "rollout.group_size": ("16", "8"),
        "reward.rules": ("gsm8k", ""),
        "algorithm.loss.type": ("cispo", "ppo_clip"),
    }


def test_two_runs_differ_in_values_and_in_keys() -> None:
    other = config_rows({**TREE, "rollout": {}, "algorithm": {"loss": {"type": "ppo_clip"}}})
    rows = {row.key: (row.value, row.instead) for row in compare(config_rows(TREE), other)}
    assert rows["rollout.group_size"] == ("16", "8")
    assert rows["algorithm.loss.type"] == ("cispo", "ppo_clip")
    assert not any(key.startswith("trainer.") for key in rows)
    only_theirs = [key for key, (value, _) in rows.items() if not value]
    assert only_theirs and all(key.startswith("algorithm.loss.") for key in only_theirs)


async def test_the_page_shows_what_was_changed_or_all(
    tmp_path, client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    changed = (await client.get("/runs/run/config")).text
    assert "trainer.learning_rate" in changed and "rollout.group_size" not in changed
    assert "rollout.group_size" in (await client.get("/runs/run/config?show=all")).text
    runs.add("other")
    same = await client.get("/runs/run/config?with=other")
    assert "Both runs have the same configuration" in same.text
    answer = await client.get("/runs/run/config.yaml")
    assert answer.headers["content-disposition"] == 'attachment; filename="run.yaml"'
    (tmp_path / "run.yaml").write_text(answer.text)
    assert load_config(tmp_path / "run.yaml").trainer.learning_rate == 1e-5
