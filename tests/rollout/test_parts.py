"""The sampler, the responses and the version marks of a stream, each by itself."""

import asyncio

import pytest
import torch

from services.rollout.chat import ChatTokenizer
from services.rollout.engine import Chunk, Ended
from services.rollout.life import with_signs_of_life
from services.rollout.server import _portions
from services.rollout.vllm.stream import VllmStream, merge
from services.rollout.vllm.worker import WorkerExtension, sample_inverse_cdf
from trimaran.errors import InputError
from trimaran.types import Message, VersionId

OLD, NEW, NEWER = VersionId(0, 1), VersionId(0, 2), VersionId(0, 3)


def test_the_fast_sampler_draws_from_the_softmax():
    probabilities_V = torch.tensor([0.5, 0.0, 0.25, 0.2, 0.05, 0.0])
    num_draws = 40_000
    torch.manual_seed(0)
    tokens_N = sample_inverse_cdf(probabilities_V.log().expand(num_draws, -1))
    found_V = torch.bincount(tokens_N, minlength=6) / num_draws
    deviation_V = (probabilities_V * (1 - probabilities_V) / num_draws).sqrt()
    assert ((found_V - probabilities_V).abs() <= 5 * deviation_V).all()
    assert found_V[1] == found_V[5] == 0


def test_the_fast_sampler_draws_each_row_from_its_own_logits():
    torch.manual_seed(0)
    logits_NV = torch.full((64, 50_000), -torch.inf)
    wanted_N = torch.randint(50_000, (64,))
    logits_NV[torch.arange(64), wanted_N] = 0.0
    assert torch.equal(sample_inverse_cdf(logits_NV), wanted_N)


def test_the_fast_sampler_does_not_count_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = pytest.importorskip("vllm.v1.sample.sampler")
    ops = pytest.importorskip("vllm.v1.sample.ops.topk_topp_sampler")
    for module, name in ((sampler, "batched_count_greater_than"), (ops, "compiled_random_sample")):
        monkeypatch.setattr(module, name, getattr(module, name))
    assert WorkerExtension().install_fast_sampler()
    logprobs_NV = torch.tensor([[0.1, 0.2, 0.7]]).log()
    found = sampler.Sampler.gather_logprobs(logprobs_NV, 0, torch.tensor([1]))
    assert found.logprob_token_ids.tolist() == [[1]]
    assert found.logprobs.tolist() == [[logprobs_NV[0, 1].item()]]
    assert found.selected_token_ranks.tolist() == [0]


def test_the_fast_sampler_knows_long_tails():
    """Half of the mass lies on 25 000 tokens, each far below one float32 step of a running sum of 1."""
    torch.manual_seed(0)
    logits_NV = torch.zeros(4000, 25_001)
    logits_NV[:, 0] = torch.log(torch.tensor(25_000.0))
    share = (sample_inverse_cdf(logits_NV) == 0).float().mean().item()
    assert share == pytest.approx(0.5, abs=5 * 0.5 / 4000**0.5)


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
