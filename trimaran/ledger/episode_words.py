"""An episode in plain words, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator

from trimaran.run.answers import RunEpisode, RunTurn
from trimaran.types import Message

ENDS = {
    "stop": "the episode is over",
    "length": "its last turn was cut, or no room was left for another",
    "turns": "it had all its turns",
    "fault": "by a fault",
}


def tell_episode(episode: RunEpisode) -> Iterator[tuple[str, str]]:
    """Who, and what was said or happened.

    It reads:
        turn 1    [9 tokens of version 0.7; 7 given after 0.02 s; 1 call]
        says      I multiply.
        calls     multiply({"a": 12, "b": 13})
        tool multiply 156
        …
        end       turns: it had all its turns
    """
    for number, reported in enumerate(episode.turns, start=1):
        yield f"turn {number}", f"[{'; '.join(_facts(reported))}]"
        yield from _said(reported.turn.message)
        for reply in reported.turn.replies:
            yield " ".join(filter(None, (reply.role, reply.name))), reply.text
    reason = episode.finish_reason
    yield "end", f"{reason}: {ENDS[reason]}" if reason in ENDS else reason


def _facts(reported: RunTurn) -> Iterator[str]:
    turn = reported.turn
    versions = f" of version {' and '.join(reported.versions)}" if reported.versions else ""
    yield f"{_number(turn.num_sampled, 'token')}{versions}"
    if turn.finish_reason != "stop":
        yield f"ended by {turn.finish_reason}"
    if turn.sequence:
        yield f"branch {turn.sequence}"
    if turn.num_given:
        yield f"{turn.num_given} given after {turn.seconds:.3g} s"
    elif turn.seconds:
        yield f"{turn.seconds:.3g} s in the environment"
    if turn.num_calls:
        failed = f", {turn.num_failures} failed" if turn.num_failures else ""
        yield f"{_number(turn.num_calls, 'call')}{failed}"
    if turn.reward is not None:
        yield f"reward {turn.reward:g}"


def _said(message: Message) -> Iterator[tuple[str, str]]:
    if message.reasoning:
        yield "thinks", message.reasoning
    if message.text or not message.tool_calls:
        yield "says", message.text
    for call in message.tool_calls:
        yield "calls", f"{call.name}({call.arguments})"


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
