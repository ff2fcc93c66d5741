"""What an environment of your own is given, and what it may answer.

    class Guess:                                              # environment: {factory: guess.py:Guess}
        def __init__(self, most: int = 16) -> None:           # environment.options, once a process
            self.most = most

        def reset(self, row: Row) -> str:                     # once an episode
            self.number = random.Random(row["seed"]).randint(1, self.most)
            return f"Guess a number from 1 to {self.most}."

        def step(self, message: Message) -> Answer:           # once a turn of the policy
            right = message.text.strip() == str(self.number)
            return "no", float(right), right                  # what the policy reads, the step's reward, the end

Classes of TRL and verl work as they stand; docs/agents.md has them all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol, TypedDict

from trimaran.types import Message, Opening, Reply, Tool, ToolCall

__all__ = [
    "Answer",
    "Beginning",
    "Environment",
    "Message",
    "Opening",
    "Reply",
    "Row",
    "Said",
    "Tool",
    "ToolCall",
]


class Row(TypedDict):
    """A row of the dataset. Example: {"answer": "7", "extras": {"level": "3"}, "seed": 17, …}"""

    prompt_id: str
    task: str
    answer: str
    """The reference answer; "" where the dataset has none."""
    extras: dict[str, str]
    """The row's other columns. A value that is not a text is JSON here: 3 is "3"."""
    messages: list[dict[str, Any]]
    """The prompt, as {"role": …, "content": …}. `<image>` in it stands for an image of the row, also in what the
    episode begins with."""
    seed: int
    """The same for all episodes of a group, so that they begin alike."""


Said = str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]]
"""A text, which is a user's message; or messages, also as {"role": …, "content": …}."""
Beginning = Said | Opening | None
"""What the episode begins with, in the place of the row's messages; None: with those. `Opening` has tools, too."""
Answer = Reply | tuple[Said | None, float | None, bool]
"""What the policy reads, the reward of the step or None, and whether the episode is over."""


class Environment(Protocol):
    """One process makes one, with `environment.options`, and plays one episode after the other with it.

    Whatever it raises is a fault of the environment: the episode is made again elsewhere. What the policy shall
    know of is a message. Both methods may be `async`.
    """

    def reset(self, row: Row) -> Beginning | Awaitable[Beginning]: ...

    def step(self, message: Message) -> Answer | Awaitable[Answer]:
        """`message`: the policy's; `text`, `tool_calls`, `reasoning`."""
        ...
