"""OpenRLHF's remote reward models: openrlhf/utils/agent.py and openrlhf/cli/serve_rm.py of
github.com/OpenRLHF/OpenRLHF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from services.reward.outcome import Fault, Outcome, Value
from services.reward.plugins.calling.protocols import MAX_PARTS, Send, check_length, max_bytes
from trimaran.plugins.forms import Lenient, encode, parse
from trimaran.rewards import Sample

FINITE = TypeAdapter(FiniteFloat)


async def ask_openrlhf(
    send: Send, samples: Sequence[Sample], options: Mapping[str, Any]
) -> Sequence[Outcome]:
    return read_rewards(await send(reward_request(samples), max_bytes(len(samples))), len(samples))


def reward_request(samples: Sequence[Sample]) -> bytes:
    """As OpenRLHF posts it: query is prompt and completion in one.

    OpenRLHF applies the model's chat template to both; here they are the messages' texts, one a
    line, and the completion after them.
    """
    prompts = ["\n".join(message.text for message in sample.messages) for sample in samples]
    return encode(
        {
            "query": [p + sample.text for p, sample in zip(prompts, samples, strict=True)],
            "prompts": prompts,
            "labels": [sample.answer for sample in samples],
        }
    )


class _Rewards(Lenient):
    rewards: Any
    extra_logs: Any = None


def read_rewards(answer: bytes, count: int) -> list[Outcome]:
    """`rewards` is a list of numbers or of lists of one, or a number where one was asked for (its
    own client sends one at a time); columns of numbers in `extra_logs` become parts.

    Raises CallError for anything else.
    """
    found = parse(_Rewards, answer)
    rewards = found.rewards if isinstance(found.rewards, list) else [found.rewards]
    check_length("rewards", rewards, count)
    logs = found.extra_logs if isinstance(found.extra_logs, dict) else {}
    columns = {n: c if isinstance(c, list) else [c] for n, c in list(logs.items())[:MAX_PARTS]}
    columns = {name: column for name, column in columns.items() if len(column) == count}
    return [
        _read_reward(reward, {name: column[index] for name, column in columns.items()})
        for index, reward in enumerate(rewards)
    ]


def _read_reward(reward: Any, logged: Mapping[str, Any]) -> Outcome:
    value = _finite(reward[0] if isinstance(reward, list) and len(reward) == 1 else reward)
    if value is None:
        return Fault(f"the reward is not a finite number: {reward!r}")
    finite = {name: _finite(entry) for name, entry in logged.items()}
    return Value(value, {name: part for name, part in finite.items() if part is not None})


def _finite(value: Any) -> float | None:
    try:
        return FINITE.validate_python(value, strict=True)
    except ValidationError:
        return None
