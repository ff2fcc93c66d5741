"""An episode of two turns and a branch, whose weights changed within its second turn."""

from __future__ import annotations

from trimaran.types import Branch, Completion, Message, Segment, ToolCall, Turn, VersionId

FIRST, SECOND = VersionId(0, 6), VersionId(0, 7)
CALLED = Message(
    "assistant", "I add.", tool_calls=(ToolCall("add", '{"a": 1}', "c0"),), reasoning="Easy."
)
EPISODE = Completion(
    token_ids_T=(1, 2, 3, 9, 9, 4, 5),
    logprobs_S=(-0.5,) * 5,
    text="3",
    finish_reason="turns",
    segments=(
        Segment(0, 3, FIRST, "rollout-0"),
        Segment(5, 6, FIRST, "rollout-0"),
        Segment(6, 7, SECOND, "rollout-1"),
    ),
    turns=(
        Turn(
            CALLED,
            3,
            (Message("tool", "3\nno more", images=(b"png",), call_id="c0", name="add"),),
            *(2, "stop", 0.5, 0.0213, 2, 1),
        ),
        Turn(Message("assistant", "3"), 2, finish_reason="length"),
        Turn(Message("assistant", "a branch"), 1, sequence=1),
    ),
    branches=(Branch((7,), (-0.5,), (Segment(0, 1, SECOND, "rollout-1"),)),),
    reward=0.5,
)
WORDS = (
    ("turn 1", "[3 tokens of version 0.6; 2 given after 0.0213 s; 2 calls, 1 failed; reward 0.5]"),
    ("thinks", "Easy."),
    ("says", "I add."),
    ("calls", 'add({"a": 1})'),
    ("tool add", "3\nno more"),
    ("turn 2", "[2 tokens of version 0.6 and 0.7; ended by length]"),
    ("says", "3"),
    ("turn 3", "[1 token of version 0.7; branch 1]"),
    ("says", "a branch"),
    ("end", "turns: it had all its turns"),
)
