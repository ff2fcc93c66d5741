"""The rules `reasoning_gym:<task>`: each task of the reasoning-gym package scores its own answers.

A row is an entry as the package makes it, {"question", "answer", "metadata"}, written as JSON; so
data.prompt_key is question. Nothing here imports the package before such a rule is named: that
takes a second and brings matplotlib.

Some tasks evaluate the answer as Python; puzzle_guards.py keeps them from it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

from services.reward.rules.puzzle_guards import disarm, is_safe
from services.reward.rules.registry import Rule
from trimaran.errors import InputError
from trimaran.rewards import ReferenceUnusableError, Sample

PREFIX = "reasoning_gym:"
COMPOSITE = "composite"
"""Mixes other tasks; the row's metadata names the one that it came from."""

_COMPARES_TUPLES = ("arc_agi", "rearc")


@dataclass(frozen=True, slots=True)
class Entry:
    """What an answer is held against."""

    task: str
    config_json: str
    """What the task's dataset was made with, where that is not its default."""
    question: str
    answer: str
    """The package's own; "" where it gives none."""
    metadata_json: str


def find_puzzle(name: str, key: str) -> Rule:
    """Of "reasoning_gym:<task>". Raises InputError that names the key and the nearest task."""
    task = name.removeprefix(PREFIX)
    try:
        tasks = _tasks()
    except ImportError as error:
        raise InputError(
            f"{key}: {name} needs the package reasoning-gym ({error}); install it with"
            " pip install 'trimaran[reasoning-gym]'"
        ) from None
    if task not in tasks:
        near = difflib.get_close_matches(task, tasks, n=1, cutoff=0.4)
        hint = f"did you mean {PREFIX}{near[0]}?" if near else f"it has {', '.join(tasks)}"
        raise InputError(f"{key}: reasoning-gym has no task {task!r}; {hint}")
    options = {"tag": _is_tag, "config": partial(_is_config, task)}
    return Rule(f"{__name__}:puzzle", columns=("metadata",), fixed={"task": task}, options=options)


def puzzle(
    sample: Sample, task: str, tag: str = "answer", config: Mapping[str, Any] | None = None
) -> float:
    """What the task says of the last <tag>…</tag>."""
    from reasoning_gym.utils import extract_answer

    metadata_json = sample.extras.get("metadata", "")
    if task == COMPOSITE:
        task = _source(metadata_json)
    config_json = json.dumps(config or {}, sort_keys=True)
    entry = Entry(task, config_json, sample.prompt, sample.answer, metadata_json)
    if reason := _unusable(entry):
        raise ReferenceUnusableError(reason)
    answer = extract_answer(sample.text, tag_name=tag)
    if not is_safe(task, answer):
        return 0.0
    try:
        return _score(entry, answer)
    except Exception:  # the reference was digested: what is not is a wrong answer
        return 0.0


@lru_cache(maxsize=1024)
def _unusable(entry: Entry) -> str:
    """Why it cannot be scored, or "": a task must take an entry's own answer for right.

    Of the few tasks that give none, only the shape is known.
    """
    try:
        best = _score(entry, entry.answer)
    except ReferenceUnusableError as error:
        return str(error)
    except Exception as error:
        return f"the task {entry.task} cannot score the row's own answer ({error!r})"
    if entry.answer and best <= 0.5:
        return (
            f"the task {entry.task} gives the row's own answer {best:g}; were question, answer and"
            " metadata made by that task, and with the config of the options?"
        )
    return ""


def _score(entry: Entry, answer: str | None) -> float:
    metadata = _metadata(entry.metadata_json)
    if entry.task in _COMPARES_TUPLES:
        metadata = {name: _tuples(value) for name, value in metadata.items()}
    given = {"question": entry.question, "answer": entry.answer, "metadata": metadata}
    score = float(_dataset(entry.task, entry.config_json).score_answer(answer, given))
    return min(score, 1.0)  # spell_backward gives 1 + 2e-16


def _metadata(metadata_json: str) -> dict[str, Any]:
    try:
        metadata = json.loads(metadata_json)
    except ValueError:
        metadata = None
    if not isinstance(metadata, dict):
        raise ReferenceUnusableError(
            "the row has no column metadata with an object; write the entries of reasoning-gym as"
            " they are"
        )
    return metadata


def _source(metadata_json: str) -> str:
    source = _metadata(metadata_json).get("source_dataset", "")
    if source == COMPOSITE or source not in _tasks():
        raise ReferenceUnusableError(f"metadata.source_dataset is no task but {source!r}")
    return str(source)


def _tuples(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@cache
def _tasks() -> Sequence[str]:
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


def _is_config(task: str, value: Any) -> bool:
    """A composite row's task has a configuration that only its own rule could be given."""
    from reasoning_gym.factory import DATASETS

    if task == COMPOSITE or not isinstance(value, dict):
        return False
    try:
        DATASETS[task][1](**value).validate()
    except (TypeError, ValueError, AssertionError, AttributeError):
        return False
    return True


@cache
def _dataset(task: str, config_json: str) -> Any:
    from reasoning_gym.factory import create_dataset

    dataset = create_dataset(task, **json.loads(config_json))
    disarm(task, type(dataset).__module__)
    return dataset


def _is_tag(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[\w-]+", value) is not None
