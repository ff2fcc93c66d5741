"""What messages become behind sampled tokens, and what sampled tokens say."""

from dataclasses import replace
from typing import Any

import pytest

from services.rollout.turns.hermes import parse_hermes
from services.rollout.turns.parsing import split_thoughts
from services.rollout.turns.stop_texts import StopTexts
from services.rollout.turns.template_facts import TemplateFacts
from services.rollout.turns.tokenizer import TurnTokenizer
from tests.rollout.chats import CHATML, FORGETFUL, LLAMA, PLAIN, TALKATIVE, write_chat
from trimaran.config import EnvironmentSection
from trimaran.errors import InputError
from trimaran.types import Message, Tool, ToolCall

USER = (Message("user", "higher"),)
RESULTS = (Message("tool", "3", call_id="call_0", name="add"), Message("tool", "4", name="mul"))
ADDED = {
    (CHATML, USER): "\n<|turn|>user\nhigher<end>\n<|turn|>assistant\n",
    (
        CHATML,
        RESULTS,
    ): "\n<|turn|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response>"
    "<end>\n<|turn|>assistant\n",
    (LLAMA, USER): "<|turn|>user\n\nhigher<end><|turn|>assistant\n\n",
    (LLAMA, RESULTS): "<|turn|>tool\n\n3<end><|turn|>tool\n\n4<end><|turn|>assistant\n\n",
    (FORGETFUL, USER): "\n<|turn|>user\nhigher<end>\n<|turn|>assistant\n<think>\n",
}


@pytest.mark.parametrize(("style", "messages"), ADDED)
def test_messages_become_what_the_template_adds(style, messages, tmp_path):
    chat = write_chat(tmp_path, style)
    turns = TurnTokenizer(chat)
    (end,) = chat.tokenize_text("<end>")
    added = chat.tokenize_text(ADDED[style, messages])
    assert turns.extend(end, messages) == added
    # A turn that ended elsewhere is ended first.
    assert turns.extend(chat.tokenize_text("x")[0], messages) == (end, *added)


QWEN = TemplateFacts(
    shows_tools=True,
    shows_calls=True,
    shows_two_results=True,
    why_no_user="",
    why_no_result="",
    end_of_turn="<end>",
    behind_end="\n",
    keeps_at_user=True,
    keeps_at_result=True,
    strips=False,
    adds_system=False,
)
FACTS = {
    CHATML: QWEN,
    FORGETFUL: replace(QWEN, shows_tools=False, shows_calls=False, keeps_at_user=False),
    # Two calls at once it cannot show; their results it can.
    LLAMA: replace(QWEN, shows_tools=False, behind_end="", strips=True),
}


@pytest.mark.parametrize("style", FACTS)
def test_what_holds_of_a_template_is_found(style, tmp_path):
    assert TurnTokenizer(write_chat(tmp_path, style)).facts == FACTS[style]


REFUSED = {
    (PLAIN, "factory"): "ends this turn by no special token.*environment.history=template",
    (LLAMA, "tools"): "shows no tools",
    (TALKATIVE, "tools"): "Conversation roles must alternate.*environment.history=template",
}


@pytest.mark.parametrize(("style", "kind"), REFUSED)
def test_what_a_template_cannot_do_is_refused_before_the_run(style, kind, tmp_path):
    way: Any = {"tools": ("tools.py:add",)} if kind == "tools" else {"factory": "my.py:Guess"}
    turns = TurnTokenizer(write_chat(tmp_path, style))
    with pytest.raises(InputError, match=REFUSED[style, kind]):
        turns.check(EnvironmentSection(**way))
    if style == PLAIN:
        with pytest.raises(InputError, match="environment.history=template"):
            turns.extend(5, USER)


def test_what_holds_is_reported_in_a_line(tmp_path):
    turns = TurnTokenizer(write_chat(tmp_path / "a", CHATML))
    assert turns.check(EnvironmentSection(tools=("tools.py:add",))) == (
        "the chat template ends a turn by <end>, shows tools, keeps what was before; calls are read as hermes"
    )
    turns = TurnTokenizer(write_chat(tmp_path / "b", FORGETFUL))
    assert turns.check(EnvironmentSection(factory="my.py:Guess")) == (
        "the chat template ends a turn by <end>, ignores tools, would rewrite what was before a message of the"
        " user; no calls are read"
    )


def test_a_whole_conversation_is_rendered_with_its_calls_and_tools(tmp_path):
    chat = write_chat(tmp_path, CHATML)
    tool = Tool("add", "Adds.", '{"type": "object"}')
    call = ToolCall("add", '{"a": 1}', "call_0")
    asked = [Message("user", "1 + 2?"), Message("assistant", "", tool_calls=(call,)), *RESULTS[:1]]
    text = chat.show(chat.tokenize(asked, (tool,)))
    assert '"description": "Adds."' in text
    assert '{"name": "add", "arguments": {"a": 1}}\n</tool_call><end>\n' in text
    assert text.endswith("3\n</tool_response><end>\n<|turn|>assistant\n")


CALLS = {
    "no call": ("no call", ()),
    '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>': (
        "",
        (ToolCall("add", '{"a": 1}', "call_0"),),
    ),
    'so <tool_call>{"name": "now"}</tool_call>\n<tool_call>{"name": "f", "arguments": "{}"}': (
        "so",
        (ToolCall("now", "{}", "call_0"), ToolCall("f", "{}", "call_1")),
    ),
    '<tool_call>{"name": "add", "arguments": {"a": }}</tool_call>': (
        "",
        (ToolCall("add", '{"name": "add", "arguments": {"a": }}', "call_0"),),
    ),
    "<tool_call>[1]</tool_call>": ("", (ToolCall("", "[1]", "call_0"),)),
}


@pytest.mark.parametrize("text", CALLS)
def test_calls_are_read_and_broken_ones_keep_their_text(text):
    assert parse_hermes(text) == CALLS[text]


def test_thoughts_are_kept_apart():
    assert split_thoughts("<think>\n1, 2\n</think>\n\n3") == ("1, 2", "3")
    assert split_thoughts("1, 2</think>3", opened=True) == ("1, 2", "3")
    assert split_thoughts("1, 2", opened=True) == ("1, 2", "")
    assert split_thoughts("3 </think>") == ("", "3 </think>")


def test_a_message_is_read_behind_its_opening(tmp_path):
    chat = write_chat(tmp_path, FORGETFUL)
    turns = TurnTokenizer(chat)
    opening, said = turns.extend(1, USER), chat.tokenize_text("so\n</think>\n12<end>")
    assert turns.parse(opening, said) == Message("assistant", "12", reasoning="so")


def test_what_is_said_beside_a_call_has_no_special_tokens(tmp_path):
    """The chat template would make tokens of them again."""
    chat = write_chat(tmp_path, CHATML)
    said = chat.tokenize_text('so<|turn|> <tool_call>{"name": "now"}</tool_call><end>')
    message = TurnTokenizer(chat).parse((), said)
    assert (message.text, len(message.tool_calls)) == ("so", 1)


def test_a_stop_text_ends_at_the_token_that_completes_it(tmp_path):
    chat = write_chat(tmp_path, CHATML)
    stops = StopTexts(("ab", "c!"), chat.detokenize)
    tokens = chat.tokenize_text("aab c!")
    assert stops.find_end(tokens, 0) == 3
    assert stops.find_end(tokens, 2) == 3
    assert stops.find_end(tokens, 4) == 6
    assert stops.find_end(tokens[:2], 0) is None
    assert StopTexts((), chat.detokenize).find_end(tokens, 0) is None
