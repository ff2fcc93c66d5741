"""What the policy hears of its calls, on sources that do as their test says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from services.environment.tools.environment import ToolEnvironment
from services.environment.tools.source import ToolAnswer
from trimaran.config import EnvironmentSection
from trimaran.errors import InputError
from trimaran.types import Message, Opening, Prompt, Reply, Tool, ToolCall

PROMPT = Prompt("p:1", (Message("user", "What is 3 * 4?"),), "products", "12")


class Source:
    """Answers with its name and the arguments, and gives the rewards that it has, one after the other."""

    def __init__(self, *names: str, rewards: Sequence[float] = ()) -> None:
        self.names, self.rewards = names, list(rewards)

    async def open(self, prompt: Prompt, seed: int) -> Opening:
        said = Message("user", f"{self.names[0]} {seed}")
        return Opening((*prompt.messages, said), tuple(Tool(name, "", "{}") for name in self.names))

    async def call(self, calls: Sequence[ToolCall]) -> Sequence[ToolAnswer]:
        return [
            ToolAnswer(f"{self.names[0]}: {call.arguments}", "bad" in call.name) for call in calls
        ]

    async def reward(self) -> float | None:
        return self.rewards.pop(0) if self.rewards else None

    async def close(self) -> None: ...


async def play(sources: Sequence[Source], *messages: Message, **section: Any) -> list[Any]:
    given = EnvironmentSection.model_validate({"python": True, **section})
    environment = ToolEnvironment(sources, given)
    opening = await environment.open(PROMPT, 7)
    return [opening, *[await environment.step(message, "stop") for message in messages]]


def calling(*calls: tuple[str, str]) -> Message:
    made = tuple(ToolCall(name, text, f"call_{at}") for at, (name, text) in enumerate(calls))
    return Message("assistant", "", tool_calls=made)


async def test_calls_of_one_message_are_answered_in_order_each_by_its_own_source() -> None:
    message = calling(("b", '{"x": 1}'), ("a", "{}"), ("b", '{"x": 2}'))
    opening, reply = await play([Source("a"), Source("b")], message)
    assert [tool.name for tool in opening.tools] == ["a", "b"]
    assert [message.text for message in opening.messages] == ["What is 3 * 4?", "a 7", "b 7"]
    assert reply == Reply(
        (
            Message("tool", 'b: {"x": 1}', call_id="call_0", name="b"),
            Message("tool", "a: {}", call_id="call_1", name="a"),
            Message("tool", 'b: {"x": 2}', call_id="call_2", name="b"),
        ),
        num_calls=3,
    )


async def test_what_cannot_be_called_is_an_answer_to_the_policy() -> None:
    message = calling(("c", "{}"), ("a", "{x"), ("a", "[1]"), ("bad", "{}"), ("a", "{}"))
    _, reply = await play([Source("a", "bad")], message)
    reported = [message.text for message in reply.messages]
    assert reported[0] == "error: there is no tool 'c'; the tools are: a, bad"
    assert reported[1].startswith("error: the arguments of a are no JSON: ")
    assert reported[2] == "error: the arguments of a are no JSON object"
    assert (reply.num_calls, reply.num_failures, reply.done) == (5, 4, False)


async def test_a_long_answer_is_cut_and_says_so() -> None:
    _, reply = await play(
        [Source("a")], calling(("a", f'{{"x": {"9" * 100}}}')), max_message_chars=50
    )
    assert reply.messages[0].text == 'a: {"x": 999999999999\n[cut: it has 110 characters]'


@pytest.mark.parametrize(
    ("kind", "reported"), [("sum", [1.0, -0.5, 0.25]), ("last", [1.0, 0.5, 0.75])]
)
async def test_steps_have_the_share_of_the_reward_that_makes_the_episode_s(
    kind: str, reported: list[float]
) -> None:
    source = Source("a", rewards=[1.0, 0.5, 0.75])
    _, *replies = await play([source, Source("b")], *[calling(("a", "{}"))] * 3, reward=kind)
    assert [reply.reward for reply in replies] == reported


async def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="two tools are named a"):
        await play([Source("a"), Source("b", "a")])
