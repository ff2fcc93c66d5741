"""Between what the contract has and what an environment has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from services.environment.plugins.contract import (
    CONTRACT,
    AnswerMessage,
    AnswerTool,
    OpenAnswer,
    PluginCall,
    PluginMessage,
    PluginRow,
    StepAnswer,
)
from trimaran.types import Message, Opening, Prompt, Reply, Tool, ToolCall


def message_form(message: Message) -> dict[str, object]:
    """A PluginMessage."""
    return {
        "role": message.role,
        "content": message.text,
        "tool_calls": [
            {"name": call.name, "arguments": call.arguments, "id": call.call_id}
            for call in message.tool_calls
        ],
        "tool_call_id": message.call_id,
        "name": message.name,
        "reasoning": message.reasoning,
    }


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


def messages_of(messages: Iterable[PluginMessage]) -> tuple[Message, ...]:
    return tuple(map(message_of, messages))


def message_of(message: PluginMessage) -> Message:
    return Message(
        role=message.role,
        text=message.content,
        tool_calls=tuple(
            ToolCall(call.name, call.arguments, call.id) for call in message.tool_calls
        ),
        call_id=message.tool_call_id,
        name=message.name,
        reasoning=message.reasoning,
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
    return [
        AnswerMessage(
            role=message.role,
            content=message.text,
            tool_calls=[
                PluginCall(name=call.name, arguments=call.arguments, id=call.call_id)
                for call in message.tool_calls
            ],
            tool_call_id=message.call_id,
            name=message.name,
            reasoning=message.reasoning,
        )
        for message in messages
    ]
