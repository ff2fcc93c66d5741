"""The responses and the version marks of a stream, each by itself."""

import asyncio

import pytest

from services.rollout.chat import ChatTokenizer
from services.rollout.engine import Chunk, Ended
from services.rollout.life import with_signs_of_life
from services.rollout.server import _portions
from services.rollout.vllm.stream import VllmStream, merge
from trimaran.errors import InputError
from trimaran.types import Message, VersionId

OLD, NEW, NEWER = VersionId(0, 1), VersionId(0, 2), VersionId(0, 3)


def test_a_stream_cuts_tokens_where_the_version_changed():
    stream = VllmStream("r", {4: 0, 7: 10}, OLD)
    assert list(stream.chunks(0, [1, 2], [-1.0, -2.0])) == [Chunk(4, 0, OLD, (1, 2), (-1.0, -2.0))]
    # Three tokens of the first sample were made before the update; the second had ended.
    stream.mark({0: 3}, NEW)
    assert list(stream.chunks(0, [3, 4, 5], [-3.0, -4.0, -5.0])) == [
        Chunk(4, 2, OLD, (3,), (-3.0,)),
        Chunk(4, 3, NEW, (4, 5), (-4.0, -5.0)),
    ]
    assert list(stream.chunks(1, [6, 7], [-6.0, -7.0])) == [Chunk(7, 10, OLD, (6, 7), (-6.0, -7.0))]


def test_a_stream_that_made_nothing_between_two_updates_has_no_segment_there():
    stream = VllmStream("r", {0: 0}, OLD)
    stream.mark({0: 0}, NEW)
    stream.mark({0: 0}, NEWER)
    assert list(stream.chunks(0, [1], [-1.0])) == [Chunk(0, 0, NEWER, (1,), (-1.0,))]


def test_merged_streams_end_with_their_first_error():
    ended = []

    async def part(fails):
        try:
            yield Chunk(0, 0, OLD, (1,), (0.0,))
            if fails:
                raise LookupError("gone")
            await asyncio.sleep(60)
        finally:
            ended.append(fails)

    async def main():
        async for _ in merge([part(True), part(False)]):
            pass

    with pytest.raises(LookupError):
        asyncio.run(main())
    assert sorted(ended) == [False, True]


def test_a_waiting_stream_shows_life_only_while_others_move_on():
    made = 0

    async def waiting(done):
        await done.wait()
        yield "token"

    async def main():
        nonlocal made
        done = asyncio.Event()
        stream = with_signs_of_life(waiting(done), 0.01, lambda: made)
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.1)
        assert not first.done()
        made = 1
        assert await first == []
        done.set()
        return [batch async for batch in stream]

    assert asyncio.run(main()) == [["token"]]


def test_what_comes_at_once_travels_together_and_nothing_before_an_error_is_lost():
    async def engine():
        yield 1
        yield 2
        await asyncio.sleep(0.01)
        yield 3
        yield 4
        raise LookupError

    async def main():
        batches = []
        with pytest.raises(LookupError):
            async for batch in with_signs_of_life(engine(), 10.0, lambda: 0):
                batches.append(batch)
                await asyncio.sleep(0.05)
        return batches

    assert asyncio.run(main()) == [[1, 2], [3, 4]]


def test_each_completion_whose_experts_are_reported_ends_a_response():
    chunk = Chunk(0, 0, OLD, (7,), (-0.1,))
    plain, reported = Ended(0, "stop"), Ended(1, "stop", b"ab", b"cd")
    assert list(_portions([chunk, plain, plain, chunk])) == [[chunk, plain, plain, chunk]]
    events = [chunk, reported, chunk, reported, plain]
    assert list(_portions(events)) == [events[:2], events[2:4], [plain]]
    assert list(_portions([])) == [[]], "a sign of life stays one"


def test_a_broken_tokenizer_is_named_with_its_folder(model, tmp_path):
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=f"model.path: {tmp_path} holds no tokenizer"):
        ChatTokenizer(tmp_path)


def test_what_a_chat_template_is_given_besides_stands_in_the_prompt(model, tmp_path):
    def rendered(template, messages, **kwargs):
        for path in model.iterdir():
            if path.suffix in (".json", ".jinja"):
                (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / "chat_template.jinja").write_text(template)
        chat = ChatTokenizer(tmp_path, takes_images=True, template_kwargs=kwargs)
        return chat.detokenize(chat.tokenize(messages))

    plain = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    knows = plain + "{% if enable_thinking is false %}no thoughts{% endif %}{{ effort }}"
    turns = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    text = "user: a\nassistant: b\nuser: c\n"
    assert rendered(knows, turns) == rendered(knows, turns, enable_thinking=True) == text
    assert rendered(knows, turns, enable_thinking=False, effort="low") == text + "no thoughtslow"
    assert rendered(plain, turns) == text
    silent = rendered(plain, turns, enable_thinking=False)
    assert silent == text[:-1] + " nothink\n"  # no "/" or "_" in it
    for key, value in (("enable_thinking", True), ("effort", "low"), ("tokenize", True)):
        with pytest.raises(InputError, match=f"data.chat_template_kwargs.{key}: is no option"):
            rendered(plain, turns, **{key: value})
    # A word of the template that is no name which it takes.
    reported = "{# effort #}{% generation %}{% set mood = '' %}{% endgeneration %}" + plain
    for key in ("effort", "mood", "content", "m"):
        with pytest.raises(InputError, match=f"data.chat_template_kwargs.{key}: is no option"):
            rendered(reported, turns, **{key: "low"})
    with pytest.raises(InputError, match=r"its chat template is broken \(.*endfor"):
        rendered(plain[:-6], turns, effort="low")


def test_a_template_that_takes_no_images_is_an_error_of_the_prompt(model):
    message = Message("user", "<image>?", (b"png",))
    cannot = r"chat template cannot take it \(TypeError.*list of parts"
    with pytest.raises(InputError, match=cannot):
        ChatTokenizer(model, takes_images=True).tokenize([message])
