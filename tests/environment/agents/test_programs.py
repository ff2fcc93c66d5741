"""Programs that speak with the `openai` package, in processes of their own."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.environment.agents.loop import PROMPT, episode_of, play
from trimaran.errors import UnavailableError
from trimaran.types import Message, ToolCall

HEAD = """
import json, os
from openai import OpenAI
client, model = OpenAI(), os.environ["OPENAI_MODEL"]
row = json.load(open(os.environ["TRIMARAN_ROW"]))
def ask(messages, **more):
    return client.chat.completions.create(model=model, messages=messages, **more)
def report(**said):
    client.post("/reward", body=said, cast_to=object)
"""


def program(folder: Path, source: str) -> Path:
    path = folder / "agent.py"
    path.write_text(HEAD + textwrap.dedent(source))
    return path


async def test_a_loop_with_tools_extends_one_sequence_and_reports_its_reward(
    tmp_path: Path,
) -> None:
    path = program(
        tmp_path,
        """
        assert "answer" not in row and row["extras"] == {"level": "easy"} and row["seed"] == 7
        tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
        messages = [{"role": "system", "content": "Add."}, *row["messages"]]
        for streamed in (False, True, False):
            if streamed:
                text, calls = "", []
                stream = ask(messages, tools=tools, stream=True,
                    stream_options={"include_usage": True})
                for chunk in stream:
                    if not chunk.choices:
                        assert (chunk.usage.prompt_tokens, chunk.usage.total_tokens) == (60, 62)
                        continue
                    delta = chunk.choices[0].delta
                    text += delta.content or ""
                    for call in delta.tool_calls or ():
                        calls.append({"id": call.id, "type": "function", "function": {"name":
                            call.function.name, "arguments": call.function.arguments}})
                message = {"role": "assistant", "content": text.strip() or None, "tool_calls": calls}
            else:
                answer = ask(messages, tools=tools, max_tokens=5)
                assert answer.usage.completion_tokens == 2
                message = answer.choices[0].message.model_dump()
            messages.append(message)
            for call in message["tool_calls"] or ():
                numbers = json.loads(call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"],
                    "content": str(sum(numbers.values()))})
        assert answer.choices[0].finish_reason == "stop"
        report(reward=float("3" in messages[-1]["content"]))
        """,
    )
    # An engine's ids begin anew in each turn.
    calls = [
        ToolCall("add", '{"a": 1, "b": 2}', "call_0"),
        ToolCall("add", '{"a":3,"b":0}', "call_1"),
    ]

    def policy(messages: list[Message]) -> Message:
        num_said = sum(one.role == "assistant" for one in messages)
        if num_said < 2:
            return Message("assistant", " \n", tool_calls=tuple(calls[num_said:]))
        return Message("assistant", f"It is {messages[-1].text}.")

    async with episode_of(path) as environment:
        opening, replies = await play(environment, policy)
    assert [one.text for one in opening.messages] == ["Add.", "What is 1 + 2?"]
    assert opening.tools[0].name == "add"
    assert [opening.max_tokens, *(reply.max_tokens for reply in replies)] == [5, 0, 5, 0]
    assert [reply.sequence for reply in replies] == [0, 0, 0]
    assert [(one.role, one.text, one.name) for one in replies[0].messages] == [
        ("tool", "3", "add"),
        ("tool", "3", "add"),
    ]
    ids = [one.call_id for reply in replies for one in reply.messages]
    assert ids == ["call_1_0", "call_1_1", "call_2_0"]
    assert [reply.num_calls for reply in replies] == [2, 1, 0]
    assert [reply.reward for reply in replies] == [None, None, 1.0]
    assert [reply.done for reply in replies] == [False, False, True]


async def test_a_sub_agent_and_a_rewritten_history_open_sequences_of_their_own(
    tmp_path: Path,
) -> None:
    path = program(
        tmp_path,
        """
        from concurrent.futures import ThreadPoolExecutor
        def say(*texts):
            roles = ["system", "user", "assistant"]
            return [{"role": roles[i if i < 2 else 2 - i % 2], "content": t} for i, t in enumerate(texts)]
        first = ask(say("Lead.", "a")).choices[0].message.content
        with ThreadPoolExecutor() as pool:  # they wait for each other
            sub = pool.submit(lambda: ask(say("Help.", "b")).choices[0].message.content)
            sub2 = pool.submit(lambda: ask(say("Help.", "c")).choices[0].message.content)
            assert {sub.result(), sub2.result()} == {"Help. b", "Help. c"}
        ask(say("Lead.", "a", first, "again"))
        ask(say("Lead.", "a", "another word", "again"))
        """,
    )

    def policy(messages: list[Message]) -> Message:
        return Message("assistant", " ".join(one.text for one in messages))

    async with episode_of(path) as environment:
        _, replies = await play(environment, policy)
    assert [reply.sequence for reply in replies] == [1, 2, 0, 3, 0]
    assert [one.text for one in replies[2].messages] == ["again"]
    assert [one.text for one in replies[3].messages] == ["Lead.", "a", "another word", "again"]
    assert replies[-1].done and replies[-1].num_failures == 0


async def test_a_program_that_fails_is_the_world_s_and_one_that_never_asks_is_ours(
    tmp_path: Path,
) -> None:
    path = program(tmp_path, "ask(row['messages']); raise SystemExit(3)")
    silent = tmp_path / "silent.py"
    silent.write_text("raise ValueError('no such thing')")

    async with episode_of(path) as environment:
        _, (reply,) = await play(environment, lambda _: Message("assistant", "3"))
    assert reply.done and (reply.reward, reply.num_failures) == (None, 1)
    async with episode_of(silent) as environment:
        with pytest.raises(UnavailableError, match="first request .* exit code 1;") as raised:
            await play(environment, lambda _: Message("assistant", "3"))
    assert "no such thing" in str(raised.value)


REFUSED = [
    ({"n": 2}, 400, "n: a request has one answer; leave it out"),
    ({"stop": ["END", "DONE", "Observation:"]}, 400, 'stop: ["END", "Observation:"]: no stops'),
    ({"response_format": {"type": "json_object"}}, 400, "response_format: "),
    ({"tool_choice": "required"}, 400, "output be text"),
    ({"logprobs": True}, 400, "logprobs: "),
    ({"model": "gpt"}, 404, "model: gpt"),
    ({"extra_body": {"chat_template_kwargs": {}}}, 400, "chat_template_kwargs: "),
]


async def test_what_the_endpoint_cannot_do_is_refused_in_the_client_s_own_terms(
    tmp_path: Path,
) -> None:
    path = program(
        tmp_path,
        f"""
        import openai
        messages, said = row["messages"], []
        def refused(call, *given, **more):
            try:
                call(*given, **more)
            except openai.APIStatusError as error:
                said.append([error.status_code, f"{{error.body['code']}} {{error.body['message']}}"])
        for more in {[more for more, *_ in REFUSED]!r}:
            refused(client.chat.completions.create, **{{"model": model, "messages": messages, **more}})
        refused(client.responses.create, model=model, input="What is 1 + 2?")
        refused(client.with_options(api_key="another").models.list)
        said.append([200, str([one.id for one in client.models.list()])])
        ask([{{"role": "user", "content": json.dumps(said)}}], stop="DONE", temperature=0.3, n=1)
        """,
    )
    async with episode_of(path, stop=["DONE"]) as environment:
        opening, _ = await play(environment, lambda _: Message("assistant", "3"))
    wanted = [(status, words) for _, status, words in REFUSED]
    wanted += [(404, "chat completions, not responses"), (401, "invalid_api_key")]
    wanted += [(200, "['policy']")]
    for said, (status, words) in zip(json.loads(opening.messages[0].text), wanted, strict=True):
        assert said[0] == status and words in said[1]


async def test_close_ends_a_program_in_the_middle_and_all_that_it_started(tmp_path: Path) -> None:
    path = program(
        tmp_path,
        """
        import subprocess
        one = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        open("left", "w").write("x")
        ask([{"role": "user", "content": os.getcwd()}])
        """,
    )

    async with episode_of(path) as environment:
        opening = await environment.open(PROMPT, 1)
        folder = Path(opening.messages[0].text)
        assert folder.exists() and (folder / "left").exists() and _with_home(folder)
        await environment.close()
        assert not folder.exists() and not _with_home(folder)


def _with_home(folder: Path) -> list[psutil.Process]:
    """Processes that have it in their environment."""
    everyone = psutil.process_iter(["environ"])
    return [one for one in everyone if str(folder) in str(one.info["environ"])]
