"""What a reward function of your own is given, and what it may return.

    def short(sample: Sample) -> float:                       # one completion
        return 1.0 if len(sample.text) < 200 else 0.0

    def best(samples: Sequence[Sample]) -> list[float]:       # one group: all answers to a prompt
        shortest = min(len(sample.text) for sample in samples)
        return [float(len(sample.text) == shortest) for sample in samples]

docs/rewards.md also shows the signatures of verl, TRL and EasyR1, which work as they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trimaran.types import Message


class ReferenceUnusableError(ValueError):
    """The rule cannot work with the row's reference answer; the completion is not to blame.

    Raised by a rule or by a function of yours. The completion then is *faulted*: it gets no score
    and never trains.

    Example:
        def square(sample: Sample) -> float:
            if not sample.answer.isdigit():
                raise ReferenceUnusableError(f"the answer {sample.answer!r} is not a number")
            return float(sample.text == str(int(sample.answer) ** 2))
    """


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion, with all that a rule may judge it by.

    Example:
        sample = Sample("6 * 7 = 42", answer="42", extras={"level": "3"})
        right = sample.text.endswith(sample.answer)  # True
    """

    text: str
    """The assistant's whole turn. Where the prompt ends with an assistant's message (a prefill), it begins with it."""
    answer: str
    """The reference answer; "" where the dataset has none."""
    extras: Mapping[str, str] = field(default_factory=dict[str, str])
    """The row's other columns. A value that is not a text is JSON here: 3 is "3"."""
    messages: tuple[Message, ...] = ()
    """The prompt, without its images and its prefill."""
    task: str = "default"
    prompt_id: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: str = "stop"
    """"stop", "length", or "turns" for an episode that had all its turns."""
    conversation: tuple[Message, ...] = ()
    """Of an episode: all its messages behind the prompt's, tools' answers as well; `text` is the last of
    the policy."""

    @property
    def prompt(self) -> str:
        """The text of the last message of the prompt."""
        return self.messages[-1].text if self.messages else ""


Judgement = float | int | bool | Mapping[str, Any] | None
"""A number; or a mapping with "score" or "overall" and further numbers, which become metrics, and
"pred", the text that was taken for the final answer;
or None: the function does not apply to this completion and is left out of its weighted sum."""
