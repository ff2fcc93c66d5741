"""What functions are called with: samples in the words of each project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from services.reward.conversation import verl_transcript, verl_turns
from services.reward.functions.returned import FunctionFault
from trimaran.data.messages import trl_message
from trimaran.data.row_parts import column_value
from trimaran.rewards import Sample
from trimaran.types import Message


@dataclass(frozen=True, slots=True)
class Call:
    """What one call is given. It is made for each call, so a function may change it."""

    arguments: dict[str, Any]
    metrics: dict[str, float] = field(default_factory=dict)
    """What the function logs while it runs."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How samples become arguments: the options of the term that are ours and not the function's."""

    answer_key: str = "answer"
    text_columns: frozenset[str] = frozenset()
    """Columns that stay texts although they look like JSON."""
    conversational: bool | None = None
    """TRL: prompts and completions as lists of messages instead of texts; None: of episodes alone."""

    def columns(self, sample: Sample) -> dict[str, Any]:
        return {
            name: text if name in self.text_columns else column_value(text)
            for name, text in sample.extras.items()
        }


def copy_of(sample: Sample) -> Sample:
    return replace(sample, extras=dict(sample.extras))


def reward_input(sample: Sample) -> dict[str, Any]:
    return {
        "response": sample.text,
        "response_length": len(sample.token_ids),
        "ground_truth": sample.answer,
    }


def _verl_row(sample: Sample, reading: Reading) -> dict[str, Any]:
    columns = reading.columns(sample)
    nested = columns.get("extra_info")
    return {
        "data_source": sample.extras.get("data_source", sample.task),
        "solution_str": verl_transcript(sample.conversation) or sample.text,
        "ground_truth": sample.answer,
        "extra_info": columns
        | (nested if isinstance(nested, dict) else {})
        | ({"num_turns": verl_turns(sample.conversation)} if sample.conversation else {}),
    }


def verl(samples: Sequence[Sample], reading: Reading) -> Call:
    return Call(_verl_row(samples[0], reading))


def verl_batch(samples: Sequence[Sample], reading: Reading) -> Call:
    rows = [_verl_row(sample, reading) for sample in samples]
    return Call({VERL_PLURALS[name]: [row[name] for row in rows] for name in VERL_PLURALS})


VERL_PLURALS = {
    "data_source": "data_sources",
    "solution_str": "solution_strs",
    "ground_truth": "ground_truths",
    "extra_info": "extra_infos",
}


def trl(samples: Sequence[Sample], reading: Reading) -> Call:
    metrics: dict[str, float] = {}
    rows = [
        {"answer": s.answer, **reading.columns(s), reading.answer_key: s.answer} for s in samples
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    has_episodes = any(sample.conversation for sample in samples)
    if has_episodes if reading.conversational is None else reading.conversational:
        answers = [s.conversation or (Message("assistant", s.text),) for s in samples]
        prompts = [list(map(trl_message, s.messages)) for s in samples]
        completions = [list(map(trl_message, answer)) for answer in answers]
    else:
        prompts, completions = [s.prompt for s in samples], [s.text for s in samples]
    arguments = columns | {
        "prompts": prompts,
        "completions": completions,
        "completion_ids": [list(s.token_ids) for s in samples],
        "trainer_state": _NoTrainerState(),
        "log_extra": lambda column, values: None,
        "log_metric": metrics.__setitem__,
    }
    return Call(arguments, metrics)


class _NoTrainerState:
    def __getattr__(self, name: str) -> Any:
        raise FunctionFault(f"the function reads trainer_state.{name}; rewards know no trainer")
