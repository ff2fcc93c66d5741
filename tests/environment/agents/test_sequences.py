"""Which sequence a request continues, as programs send answers back."""

from __future__ import annotations

import pytest

from services.environment.agents.forms import ChatRequest
from services.environment.agents.sequences import Request, RequestSequences
from trimaran.types import Message, Tool, ToolCall

ASKED = (Message("system", "Add."), Message("user", "1 + 2?"))
SAID = Message(
    "assistant", " I add.\n", tool_calls=(ToolCall("add", '{"a": 1, "b": 2}', "call_1_0"),)
)
ADD = Tool("add", "", '{"type": "object"}')


def read(messages: str) -> tuple[Message, ...]:
    return (
        ChatRequest.read(f'{{"model": "m", "messages": {messages}}}'.encode()).to_request().messages
    )


def sent_back(text: str, arguments: str, call_id: str = "call_1_0") -> Message:
    return Message("assistant", text, tool_calls=(ToolCall("add", arguments, call_id),))


@pytest.mark.parametrize(
    ("said", "back", "continues"),
    [
        (SAID, SAID, True),
        (SAID, sent_back("I add.", '{"b":2,"a":1}', "other"), True),
        (SAID, sent_back("I add!", '{"a": 1, "b": 2}'), False),
        (SAID, sent_back("I add.", '{"a": 1, "b": 3}'), False),
        (SAID, Message("assistant", "I add."), False),
        (sent_back("", ""), sent_back("", "{}"), True),
    ],
)
def test_an_answer_that_comes_back_is_compared_by_what_it_says(
    said: Message, back: Message, continues: bool
) -> None:
    sequences = RequestSequences()
    sequences.answer(sequences.place(Request(ASKED, (ADD,))).sequence, said)
    result = Message("tool", "3", call_id="call_1_0", name="add")
    placed = sequences.place(Request((*ASKED, back, result), (ADD,)))
    expected = (0, (result,), False) if continues else (1, (*ASKED, back, result), True)
    assert (placed.sequence, placed.messages, placed.is_new) == expected


@pytest.mark.parametrize(
    "request_",
    [
        Request((Message("system", "Sub."), ASKED[1], SAID, ASKED[1]), (ADD,)),
        Request((*ASKED, SAID, ASKED[1]), ()),  # other tools
        Request((*ASKED, SAID), (ADD,)),  # nothing new
        Request(ASKED, (ADD,)),  # once more
        Request((*ASKED, SAID, Message("assistant", "Also:"), ASKED[1]), (ADD,)),
    ],
)
def test_what_is_not_behind_the_history_is_a_sequence_of_its_own(request_: Request) -> None:
    sequences = RequestSequences()
    sequences.answer(sequences.place(Request(ASKED, (ADD,))).sequence, SAID)
    placed = sequences.place(request_)
    assert (placed.sequence, placed.messages) == (1, request_.messages)


def test_messages_of_clients_are_read_by_what_they_say() -> None:
    asked = read('[{"role": "developer", "content": [{"type": "text", "text": "Add."}]}]')
    assert asked == (Message("system", "Add."),)
    said, result = read(
        '[{"role": "assistant", "content": null, "refusal": null, "tool_calls": [{"id": "x", "type":'
        ' "function", "function": {"name": "add", "arguments": "{}"}}]},'
        ' {"role": "tool", "tool_call_id": "x", "content": "3"}]'
    )
    assert said == Message("assistant", "", tool_calls=(ToolCall("add", "{}", "x"),))
    assert result == Message("tool", "3", call_id="x", name="add")
