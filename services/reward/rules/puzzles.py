"""The rules `reasoning_gym:<task>`: each task of the reasoning-gym package scores its own answers.

A row is an entry as the package makes it, {"question", "answer", "metadata"}, written as JSON; so
data.prompt_key is question. Nothing here imports the package before such a rule is named: that
takes a second and brings matplotlib.

Some tasks of reasoning-gym 0.1 evaluate the answer as Python: four give it to `eval`, five to sympy's
parser, which has Python's builtins in reach. There an answer that could be more than a literal or an
expression counts as wrong.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from services.reward.rules.registry import Rule
from trimaran.errors import InputError, did_you_mean
from trimaran.rewards import ReferenceUnusableError, Sample

PREFIX = "reasoning_gym:"
COMPOSITE = "composite"
"""Mixes other tasks; the row's metadata names the one that it came from."""

COMPARES_TUPLES = ("arc_agi", "rearc")
EVALUATES_LISTS = ("string_insertion", "spiral_matrix", "binary_matrix", "n_queens")
PARSES_EXPRESSIONS = (
    *("countdown", "puzzle24", "polynomial_multiplication"),
    *("simple_integration", "intermediate_integration"),
)
MEASURES_DISTANCE = ("complex_arithmetic",)
"""An answer that is no number looks as near to every number as can be."""

_WORD = re.compile(r"[^\W\d_]{2,}")
_FUNCTION = re.compile("a?(sin|cos|tan|cot|sec|csc)h?|exp|log|ln|sqrt|cbrt|[Aa]bs|sign|pi")


@dataclass(frozen=True, slots=True)
class PuzzleEntry:
    """What an answer is held against."""

    task: str
    config_json: str
    """What the task's dataset was made with, where that is not its default."""
    question: str
    answer: str
    """The package's own; "" where it gives none."""
    metadata_json: str


def find_puzzle(name: str, key: str) -> Rule:
    """The rule "reasoning_gym:<task>". Raises InputError that names the key and the nearest task."""
    task = name.removeprefix(PREFIX)
    try:
        tasks = _tasks()
    except ImportError as error:
        raise InputError(
            f"{key}: {name} needs the package reasoning-gym ({error}); install it with"
            " pip install 'trimaran[reasoning-gym]'"
        ) from None
    if task not in tasks:
        hint = did_you_mean(task, tasks, 0.4) or f"; it has {', '.join(tasks)}"
        raise InputError(f"{key}: reasoning-gym has no task {task!r}{hint}")
    options = {"tag": _is_tag, "config": lambda value: isinstance(value, dict)}
    return Rule(f"{__name__}:puzzle", columns=("metadata",), fixed={"task": task}, options=options)


def puzzle(
    sample: Sample, task: str, tag: str = "answer", config: Mapping[str, Any] | None = None
) -> float:
    """What the task says of the last <tag>…</tag>."""
    from reasoning_gym.utils import extract_answer

    metadata_json = sample.extras.get("metadata", "")
    if task == COMPOSITE:
        task = _metadata(metadata_json).get("source_dataset", "")
        if task == COMPOSITE or task not in _tasks():
            raise ReferenceUnusableError(f"metadata.source_dataset is no task but {task!r}")
    config_json = json.dumps(config or {}, sort_keys=True)
    entry = PuzzleEntry(task, config_json, sample.prompt, sample.answer, metadata_json)
    if reason := _unusable(entry):
        raise ReferenceUnusableError(reason)
    answer = extract_answer(sample.text, tag_name=tag)
    if answer is not None and not is_safe(task, answer):
        return 0.0
    try:
        return _score(entry, answer)
    except Exception:  # the reference was digested: what is not is a wrong answer
        return 0.0


def is_safe(task: str, answer: str) -> bool:
    """False where the task would parse what is no expression of numbers, one-letter names,
    operators and functions of mathematics, or would take a NaN for right."""
    if task in MEASURES_DISTANCE:
        return "nan" not in answer.replace(" ", "").lower()
    if task not in PARSES_EXPRESSIONS:
        return True
    attribute = re.search(r"\.\s*[^\W\d]|[^\W\d]\s*\.", answer)
    if attribute or "_" in answer or not re.fullmatch(r"[\w\s+\-*/^(),.!]*", answer):
        return False
    return all(map(_FUNCTION.fullmatch, _WORD.findall(answer)))


@lru_cache(maxsize=1024)
def _unusable(entry: PuzzleEntry) -> str:
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


def _score(entry: PuzzleEntry, answer: str | None) -> float:
    metadata = _metadata(entry.metadata_json)
    if entry.task in COMPARES_TUPLES:
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


def _tuples(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@cache
def _tasks() -> Sequence[str]:
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS)


@cache
def _dataset(task: str, config_json: str) -> Any:
    from reasoning_gym.factory import create_dataset

    dataset = create_dataset(task, **json.loads(config_json))
    if task in EVALUATES_LISTS:  # a literal will do
        vars(sys.modules[type(dataset).__module__])["eval"] = ast.literal_eval
    return dataset


def _is_tag(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[\w-]+", value) is not None
