"""What a tiny run reads; every host of the machine sees it."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.tiny_model import write_tiny_model


def write_inputs(folder: Path) -> Path:
    """The YAML of a run of two replicas and one rank. Its checkpoints lie where all hosts see them."""
    folder.mkdir(parents=True)
    write_tiny_model(folder / "model")
    rows = [{"prompt": f"{a} + {b} = ?", "answer": str(a + b)} for a in range(5) for b in range(3)]
    for name, part in (("train", rows[:10]), ("heldout", rows[10:])):
        lines = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"{name}.jsonl").write_text(lines)
    lengths = {"group_size": 4, "max_tokens": 12, "max_prompt_tokens": 64}
    tree = {
        "run": {"name": "tiny", "groups_per_step": 2, "checkpoint_every": 20},
        "model": {"path": str(folder / "model"), "dtype": "float32"},
        "data": {
            "train": str(folder / "train.jsonl"),
            "validation": str(folder / "heldout.jsonl"),
        },
        "rollout": {"engine": "transformers", "replicas": 2, **lengths},
        "reward": {"rules": {"last_integer": 1.0}, "workers": 1},
        "trainer": {"learning_rate": 1e-4},
        "validation": {"every": 1000, "samples": 1, "final_samples": 2},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path
