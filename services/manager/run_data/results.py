"""What a run has left behind: checkpoints, and the answers of its validations."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from services.manager.run_data.choice import ALL, Choice, Spot, arrange
from trimaran.errors import NotFoundError
from trimaran.host.places import Place, fetch_file
from trimaran.run.answers import Checkpoint, RunSample
from trimaran.run.place import saved_states
from trimaran.run.runs import checkpoint_key
from trimaran.store import Store, records
from trimaran.wire.run_messages import episode_from_tree

VALIDATION = re.compile(r"samples/step-(\d+)\.jsonl")
INDEXES = 16
"""Of the files that were read last: a few hundred kilobytes each, as a rule."""


async def saved_checkpoints(store: Store, run_id: str) -> list[Checkpoint]:
    """All that the run has ever saved, whatever became of them since."""
    prefix = checkpoint_key(run_id)
    return [
        Checkpoint(int(key.removeprefix(prefix)), **record.value, kept=False)
        async for key, record in records(store, prefix)
    ]


def list_checkpoints(
    folder: Path, saved: Iterable[Checkpoint], place: Place | None = None
) -> list[Checkpoint]:
    """Those that are there, and those of `saved` that were removed since. `place`: the run's own, where
    they lie instead of in the folder."""
    found = {checkpoint.step: checkpoint for checkpoint in saved}
    for path, tree, num_bytes in saved_states(folder, place):
        step, score = tree["step"], tree.get("score")
        saved_at = found[step].saved_at if step in found else 0.0
        found[step] = Checkpoint(step, path, tree["root"], True, score, num_bytes, saved_at)
    return [found[step] for step in sorted(found)]


def validation_steps(folder: Path, place: Place | None = None) -> tuple[int, ...]:
    """`place`: as in `list_checkpoints`; files of another host's controller lie there."""
    paths = {f"samples/{path.name}" for path in (folder / "samples").glob("*.jsonl")}
    names = map(VALIDATION.fullmatch, paths | (place.sizes("samples").keys() if place else set()))
    return tuple(sorted(int(name[1]) for name in names if name))


def validation_samples(
    folder: Path,
    step: int,
    limit: int,
    offset: int = 0,
    place: Place | None = None,
    choice: Choice = ALL,
) -> tuple[list[RunSample], int]:
    """Some of the step's samples, and how many are chosen: the greedy answers first, then the sampled
    ones. A row is in memory at a time. Raises NotFoundError."""
    name = f"samples/step-{step:05d}.jsonl"
    with _fetched(folder / name, name, place) as path:
        if path.is_file():
            return _page(path, limit, offset, choice)
    known = ", ".join(map(str, validation_steps(folder, place))) or "none"
    raise NotFoundError(f"validation_step {step}: has no samples; those that have: {known}")


@contextmanager
def _fetched(path: Path, name: str, place: Place | None) -> Generator[Path]:
    """Where the file lies: in the run folder, or for the time of a look elsewhere. The folder stays as
    it is."""
    if place is None or path.is_file():
        yield path
        return
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / path.name
        with suppress(NotFoundError):
            fetch_file(place, name, path)
        yield path


def _page(path: Path, limit: int, offset: int, choice: Choice) -> tuple[list[RunSample], int]:
    state = path.stat()
    spots, starts = _index(path, state.st_size, state.st_mtime_ns)
    chosen = arrange(spots, choice)
    page = chosen[offset : offset + limit]
    found: dict[tuple[bool, int, int], RunSample] = {}
    with path.open("rb") as rows:
        for unit in {spots[one].unit for one in page}:
            rows.seek(starts[unit])
            samples = _samples(json.loads(rows.readline()))
            found |= {(one.greedy, unit, one.number): one for one in samples}
    samples = (
        (one, found[spot.greedy, spot.unit, spot.number]) for one in page if (spot := spots[one])
    )
    return [replace(sample, place=one) for one, sample in samples], len(chosen)


@lru_cache(INDEXES)
def _index(path: Path, num_bytes: int, changed_at: int) -> tuple[list[Spot], array[int]]:
    """The file's spots, and where each row begins."""
    starts = array("q")

    def read() -> Iterator[dict[str, Any]]:
        start = 0
        for line in rows:
            starts.append(start)
            start += len(line)
            yield json.loads(line)

    with path.open("rb") as rows:
        return _spots(read()), starts


def _spots(rows: Iterable[dict[str, Any]]) -> list[Spot]:
    """Greedy ones first."""
    rewards = [(row.get("greedy_rewards", ()), row.get("rewards", ())) for row in rows]
    return [
        Spot(unit, number, greedy, reward)
        for index, greedy in enumerate((True, False))
        for unit, both in enumerate(rewards)
        for number, reward in enumerate(both[index])
    ]


def _samples(row: dict[str, Any]) -> Iterator[RunSample]:
    yield from _of(row, "greedy_")
    yield from _of(row, "")


def _of(row: dict[str, Any], prefix: str) -> Iterator[RunSample]:
    texts, rewards = row.get(f"{prefix}completions", ()), row.get(f"{prefix}rewards", ())
    terms = row.get(f"{prefix}terms", [{}] * len(texts))
    faults = row.get(f"{prefix}faults", [""] * len(texts))
    episodes = row.get(f"{prefix}episodes", [None] * len(texts))
    judged = zip(texts, rewards, terms, faults, episodes, strict=True)
    for number, (text, reward, by_term, fault, episode) in enumerate(judged):
        yield RunSample(
            prompt_id=row.get("prompt_id", ""),
            prompt=row["prompt"],
            answer=text,
            reference=row["answer"],
            reward=0.0 if reward is None else reward,
            terms=by_term,
            fault=fault or ("it could not be scored" if reward is None else ""),
            episode=episode and episode_from_tree(episode),
            number=number,
            greedy=bool(prefix),
        )
