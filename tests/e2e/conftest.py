import json

import pytest
import yaml

from tests.e2e import runs
from tests.tiny_model import write_tiny_model


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    """Of what a test has started; what its own fixtures end, it looks for itself."""
    yield
    assert runs.survivors(tmp_path) == []


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def write_run(tmp_path, tiny_model):
    """write_run(section={...}) -> path of a run's YAML that trains the tiny model."""

    def write(**sections):
        rows = [
            {"prompt": f"{a} + {b} = ?", "answer": str(a + b)} for a in range(5) for b in range(3)
        ]
        for name, part in (("train", rows[:10]), ("heldout", rows[10:])):
            lines = "".join(json.dumps(row) + "\n" for row in part)
            (tmp_path / f"{name}.jsonl").write_text(lines)
        tree = {
            "run": {"name": "tiny", "folder": str(tmp_path / "runs"), "steps": 3}
            | {"groups_per_step": 2, "checkpoint_every": 2},
            "model": {"path": str(tiny_model), "dtype": "float32"},
            "data": {"train": "train.jsonl", "validation": "heldout.jsonl"},
            "rollout": {"engine": "transformers", "group_size": 4, "max_tokens": 12}
            | {"max_prompt_tokens": 64},
            "reward": {"rules": {"last_integer": 1.0}, "workers": 1},
            "trainer": {"learning_rate": 1e-3},
            "validation": {"every": 2, "samples": 1, "final_samples": 2},
        }
        for name, values in sections.items():
            tree[name] = tree.get(name, {}) | values
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(tree))
        return path

    return write
