"""Which sequence of an episode a program's request continues. Pure.

    request = history of sequence k + new messages         ─▶ k, the new messages
    another system message, other tools, earlier rewritten ─▶ a new sequence, all its messages

A history ends with an answer of the policy. Its tokens stay as they were sampled, so what a program sends
back of an answer is compared by what it says, and not by its spaces at the ends or the ids of its calls.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from trimaran.types import Message, Tool


@dataclass(frozen=True, slots=True)
class Request:
    """What a program asks the policy. Example: Request((Message("user", "What is 1 + 2?"),))"""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    max_tokens: int = 0
    """At most, of the answer; 0: the run's own bound."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a request belongs. Example: Placed(sequence=0, messages=(Message("user", "higher"),))"""

    sequence: int
    messages: tuple[Message, ...]
    """Those that follow what the sequence has; all of a new one's."""
    is_new: bool = False


@dataclass(slots=True)
class _Sequence:
    tools: tuple[Tool, ...]
    history: list[Message] = field(default_factory=list[Message])


class RequestSequences:
    """Of one episode.

    Example:
        sequences = RequestSequences()
        placed = sequences.place(Request((Message("user", "Guess."),)))
        sequences.answer(placed.sequence, Message("assistant", "7"))
    """

    def __init__(self) -> None:
        self._sequences: list[_Sequence] = []

    def place(self, request: Request) -> Placed:
        """The sequence has its messages from now on; `answer` is to follow."""
        fitting = [number for number, one in enumerate(self._sequences) if _continues(one, request)]
        if not fitting:
            self._sequences.append(_Sequence(request.tools, list(request.messages)))
            return Placed(len(self._sequences) - 1, request.messages, is_new=True)
        number = max(fitting, key=lambda one: (len(self._sequences[one].history), one))
        history = self._sequences[number].history
        new = request.messages[len(history) :]
        history.extend(new)
        return Placed(number, new)

    def answer(self, sequence: int, message: Message) -> None:
        """What the policy said there."""
        self._sequences[sequence].history.append(message)


def _continues(sequence: _Sequence, request: Request) -> bool:
    num_known = len(sequence.history)
    new = request.messages[num_known:]
    return (
        bool(new)
        and sequence.tools == request.tools
        # What the policy did not say itself is not a part of its sequence.
        and not any(message.role == "assistant" for message in new)
        and all(map(_same, sequence.history, request.messages))
    )


def _same(known: Message, sent: Message) -> bool:
    if known.role != "assistant" or sent.role != "assistant":
        return (known.role, known.text, known.call_id) == (sent.role, sent.text, sent.call_id)
    return known.text.strip() == sent.text.strip() and _calls(known) == _calls(sent)


def _calls(message: Message) -> list[tuple[str, Any]]:
    return [(call.name, _arguments(call.arguments)) for call in message.tool_calls]


def _arguments(text: str) -> Any:
    """Frameworks write {} where a call has no arguments."""
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text.strip()
