"""Between what the contract has and what an environment has."""

from __future__ import annotations

import json
from collections.abc import Sequence

from services.environment.plugins.contract import (
    CONTRACT,
    AnswerMessage,
    AnswerTool,
    OpenAnswer,
    PluginRow,
    StepAnswer,
)
from trimaran.plugins.messages import message_form, messages_of
from trimaran.types import Message, Opening, Prompt, Reply, Tool


def row_form(prompt: Prompt) -> dict[str, object]:
    """A PluginRow."""
    return {
        "messages": list(map(message_form, prompt.messages)),
        "answer": prompt.answer,
        "task": prompt.task,
        "prompt_id": prompt.prompt_id,
        "extras": dict(prompt.extras),
    }


def prompt_of(row: PluginRow) -> Prompt:
    return Prompt(
        prompt_id=row.prompt_id,
        messages=messages_of(row.messages),
        task=row.task,
        answer=row.answer,
        extras=row.extras,
    )


def opening_of(answer: OpenAnswer, prompt: Prompt) -> Opening:
    tools = tuple(
        Tool(tool.name, tool.description, json.dumps(tool.parameters)) for tool in answer.tools
    )
    given = answer.messages
    return Opening(prompt.messages if given is None else messages_of(given), tools)


def reply_of(answer: StepAnswer) -> Reply:
    return Reply(
        messages=messages_of(answer.messages),
        reward=answer.reward,
        done=answer.done,
        num_calls=answer.num_calls,
        num_failures=answer.num_failures,
    )


def open_answer(opening: Opening) -> OpenAnswer:
    tools = [
        AnswerTool(
            name=tool.name, description=tool.description, parameters=json.loads(tool.parameters)
        )
        for tool in opening.tools
    ]
    return OpenAnswer(contract=CONTRACT, messages=_answers(opening.messages), tools=tools)


def step_answer(reply: Reply) -> StepAnswer:
    return StepAnswer(
        contract=CONTRACT,
        messages=_answers(reply.messages),
        reward=reply.reward,
        done=reply.done,
        num_calls=reply.num_calls,
        num_failures=reply.num_failures,
    )


def _answers(messages: Sequence[Message]) -> list[AnswerMessage]:
    return [AnswerMessage.model_validate(message_form(message)) for message in messages]
