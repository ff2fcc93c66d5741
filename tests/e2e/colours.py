"""Learning through the image: a task whose answer depends on nothing else.

    python -m tests.e2e.colours [--family FAMILY] [FOLDER]

Every prompt is the same text and an image of noise about one of four colours. The answer is one token,
a letter. A policy that does not look gets a quarter of the rewards at best. A tiny random Qwen2.5-VL
is trained end to end: dataset, vLLM, reward, trainer, weight sync.

The held-out rows come twice, as two tasks: as they are, and with their images exchanged, such that a quarter
of the answers stay right. A policy that looks at the image gets all of the former and a quarter of the latter.
The run's own held-out reward is over both: 0.625 for such a policy.
"""

from __future__ import annotations

import io
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml
from PIL import Image

from tests import tiny_vision
from tests.e2e import runs

COLOURS = {"r": (220, 30, 30), "g": (30, 200, 40), "b": (40, 60, 220), "y": (230, 210, 40)}
LETTERS = tuple(COLOURS)
NOISE = 20
TEXT = "<image>What colour is it? "
STEPS = 60
LEARNING_RATE = 5e-4
"""Not more: at 2e-3 a letter may die out before it was ever rewarded. docs/vision.md has figures."""
GROUP_SIZE = 64
"""A letter's chance is about 1% at first: of groups of 32, three in four would hold no reward."""
NUM_TRAIN = 256
NUM_HELD_OUT = 32
TASKS = ("own", "exchanged")
"""Whose images the held-out rows have."""
SHAPE = {**tiny_vision.TEXT, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
TOWER = {**tiny_vision.TOWER, "hidden_size": 32, "intermediate_size": 64}


def picture(letter: str, side: int, rng: np.random.Generator) -> bytes:
    """A PNG file of `side` x `side` pixels."""
    noise = rng.integers(-NOISE, NOISE + 1, (side, side, 3))
    pixels = (np.array(COLOURS[letter]) + noise).clip(0, 255).astype(np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels, "RGB").save(data, "PNG")
    return data.getvalue()


def write_rows(path: Path, rows: Iterable[tuple[str, str]], side: int, seed: int) -> None:
    """`rows`: (right answer, colour of the image)."""
    import pyarrow
    from pyarrow import parquet

    rng = np.random.default_rng(seed)
    table = [
        {"prompt": TEXT, "answer": answer, "image": picture(colour, side, rng)}
        for answer, colour in rows
    ]
    parquet.write_table(pyarrow.Table.from_pylist(table), path)


def write_task(folder: Path, family: str = "qwen2_5_vl", **sections: Any) -> Path:
    """The model, the data, and the run's configuration, which is returned."""
    side = 2 * tiny_vision.patch_multiple(family)  # four image tokens
    tiny_vision.write_tiny_vision(folder / "model", family, num_layers=2, text=SHAPE, tower=TOWER)
    answers = [LETTERS[number % 4] for number in range(NUM_TRAIN)]
    write_rows(folder / "train.parquet", zip(answers, answers, strict=True), side, seed=0)
    kept = [LETTERS[number % 4] for number in range(NUM_HELD_OUT)]
    exchanged = [LETTERS[number // 4 % 4] for number in range(NUM_HELD_OUT)]
    for seed, (task, colours) in enumerate(zip(TASKS, (kept, exchanged), strict=True), 1):
        write_rows(folder / f"{task}.parquet", zip(kept, colours, strict=True), side, seed)
    tree: dict[str, Any] = {
        "run": {"name": "colours", "folder": str(folder / "runs"), "steps": STEPS}
        | {"groups_per_step": 8, "checkpoint_every": 1000},
        "model": {"path": str(folder / "model"), "dtype": "float32"},
        "data": {"train": "train.parquet", "image_key": "image"}
        | {"validation": [{"path": f"{task}.parquet", "task": task} for task in TASKS]}
        | {"min_pixels": 1, "max_pixels": side * side},
        "rollout": {"engine": "vllm", "group_size": GROUP_SIZE, "max_tokens": 1}
        | {"max_prompt_tokens": 64, "max_concurrency": 256, "kv_cache_gib": 0.05},
        "reward": {"rules": {"exact_match": 1.0}, "workers": 1},
        "trainer": {"learning_rate": LEARNING_RATE, "beta2": 0.999},
        "validation": {"every": STEPS, "samples": 0, "final_samples": 0},
    }
    for name, values in sections.items():
        tree[name] = tree.get(name, {}) | values
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def accuracies(run_folder: Path, step: int) -> tuple[float, float]:
    """Of the greedy answers to the held-out rows: with their own images, and with exchanged ones."""
    [row] = [row for row in runs.rows(run_folder, "validation") if row["step"] == step]
    own, exchanged = (row[f"validation/task/{task}/greedy_correct/share"] for task in TASKS)
    return own, exchanged


def main(folder: Path, family: str) -> None:
    config = write_task(folder, family, validation={"every": 10})
    command = [sys.executable, "-m", "commands.cli", "train", str(config)]
    subprocess.run(command, check=True)
    run = runs.only_run(folder / "runs")
    print(
        "\nThe held-out reward above is over both columns: 0.625 where every answer fits its image."
    )
    print("step  held out  with exchanged images")
    for row in runs.rows(run, "validation"):
        own, exchanged = accuracies(run, row["step"])
        print(f"{row['step']:4d}  {own:8.2f}  {exchanged:21.2f}")


def _main() -> None:
    parser = ArgumentParser(description="Trains a tiny model to name the colour of an image.")
    parser.add_argument("folder", nargs="?", type=Path, help="kept; it must not exist")
    parser.add_argument("--family", default="qwen2_5_vl", choices=tiny_vision.FAMILIES)
    given = parser.parse_args()
    if given.folder:
        given.folder.mkdir(parents=True)
        main(given.folder.resolve(), given.family)
        return
    with TemporaryDirectory(prefix="colours-") as folder:
        main(Path(folder), given.family)


if __name__ == "__main__":
    _main()
