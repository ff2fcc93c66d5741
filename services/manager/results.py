"""What a run has left behind: checkpoints, and the answers of its validations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trimaran.errors import NotFoundError
from trimaran.run_answers import Checkpoint, RunSample
from trimaran.runs import EventKind, RunEvent

VALIDATION = re.compile(r"step-(\d+)\.jsonl")
SAVED = re.compile(r"step-(\d+)")


def list_checkpoints(folder: Path, events: Iterable[RunEvent]) -> list[Checkpoint]:
    """Those that are there, and those that its events tell of and that were removed since."""
    found = {
        event.run.step: Checkpoint(event.run.step, event.text, "", False)
        for event in events
        if event.kind is EventKind.CHECKPOINT
    }
    for path in (folder / "checkpoints").glob("step-*"):
        state = path / "state.json"
        if SAVED.fullmatch(path.name) and state.is_file():
            tree = json.loads(state.read_text(encoding="utf-8"))
            found[tree["step"]] = Checkpoint(tree["step"], str(path), tree["root"], True)
    return [found[step] for step in sorted(found)]


def validation_steps(folder: Path) -> tuple[int, ...]:
    names = (VALIDATION.fullmatch(path.name) for path in (folder / "samples").glob("*.jsonl"))
    return tuple(sorted(int(name[1]) for name in names if name))


def validation_samples(folder: Path, step: int, limit: int) -> list[RunSample]:
    """The greedy answers first, then the sampled ones. Raises NotFoundError."""
    path = folder / "samples" / f"step-{step:05d}.jsonl"
    if not path.is_file():
        known = ", ".join(map(str, validation_steps(folder))) or "none yet"
        raise NotFoundError(f"validation_step {step}: has no samples; those that have: {known}")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    samples = [sample for prefix in ("greedy_", "") for row in rows for sample in _of(row, prefix)]
    return samples[:limit]


def _of(row: dict[str, Any], prefix: str) -> Iterator[RunSample]:
    texts = row.get(f"{prefix}completions", ())
    for text, reward in zip(texts, row.get(f"{prefix}rewards", ()), strict=True):
        yield RunSample(
            prompt_id=row.get("prompt_id", ""),
            prompt=row["prompt"],
            answer=text,
            reference=row["answer"],
            reward=0.0 if reward is None else reward,
            fault="it could not be scored" if reward is None else "",
        )
