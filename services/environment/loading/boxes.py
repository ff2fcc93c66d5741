"""What a worker plays episodes with: boxes of tools, or an environment that answers messages itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from services.environment.loading.functions import CallableTool
from services.environment.loading.waiting import settled
from trimaran.data.messages import message_of
from trimaran.data.row_parts import column_value
from trimaran.episodes import Row
from trimaran.types import Message, Opening, Reply


class Toolbox(Protocol):
    """Tools with what they share during an episode."""

    @property
    def tools(self) -> Mapping[str, CallableTool]: ...

    def open(self, row: Row) -> str:
        """Begins an episode. What is said at the end of the prompt's last message."""
        ...

    def reward(self) -> float | None:
        """What the episode is worth so far; None where the box gives no reward."""
        ...

    def close(self) -> None:
        """Ends the episode."""
        ...


class FunctionBox:
    """Functions, which share nothing."""

    def __init__(self, tools: Sequence[CallableTool]) -> None:
        self.tools = {one.tool.name: one for one in tools}

    def open(self, row: Row) -> str:
        return ""

    def reward(self) -> float | None:
        return None

    def close(self) -> None: ...


class Player:
    """An environment of Trimaran's own form, `trimaran.episodes`."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def open(self, row: Row) -> Opening | None:
        """None: with the row's own messages."""
        begun = settled(self._environment.reset(row))
        if begun is None or isinstance(begun, Opening):
            return begun
        return Opening(messages_of(begun))

    def step(self, message: Message) -> Reply:
        """Raises TypeError and ValueError for what is no answer."""
        answer = settled(self._environment.step(message))
        if isinstance(answer, Reply):
            return answer
        if not isinstance(answer, tuple) or len(answer) != 3:
            raise TypeError(
                f"step gave a {type(answer).__name__}; it gives (messages, reward, done) or a Reply"
            )
        said, reward, done = answer
        messages = () if said is None else messages_of(said)
        return Reply(messages, None if reward is None else float(reward), bool(done))


def messages_of(said: Any) -> tuple[Message, ...]:
    """Raises TypeError for what is no message."""
    if isinstance(said, str):
        return (Message("user", said),)
    if isinstance(said, Message):
        return (said,)
    if isinstance(said, Mapping):
        return (message_of(said),)
    if isinstance(said, Sequence):
        return tuple(message for one in said for message in messages_of(one))
    raise TypeError(f"a {type(said).__name__} is no message; give a text, or role and content")


def columns_of(row: Row, answer_key: str) -> dict[str, Any]:
    """The row as TRL and verl know it: a value that is no text is what its JSON says."""
    columns = {name: column_value(text) for name, text in row["extras"].items()}
    return {
        "prompt": row["messages"],
        "answer": row["answer"],
        **columns,
        answer_key: row["answer"],
    }
