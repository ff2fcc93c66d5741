"""Samples, tokens and lives of groups in the browser: what stands there, escaped, and where links lead."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest
from httpx import AsyncClient as Client
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from services.manager.pages.samples import tokens
from services.manager.pages.samples.query import SamplesQuery
from services.manager.pages.samples.tokens import sequences, show_tokens
from services.manager.pages.samples.vocabulary import read_vocabulary, text_of, text_of_all
from services.manager.run_data.choice import Choice
from tests.clients.fake_runs import FakeRuns
from tests.episode_in_words import EPISODE
from tests.manager.pages.browsing import PARTIAL
from trimaran.run.answers import LedgerAnswer, RunSample
from trimaran.types import (
    Completion,
    Faulted,
    Group,
    Message,
    Prompt,
    Score,
    ScoredGroup,
    Segment,
    VersionId,
)
from trimaran.types import VersionId as Version

HOSTILE = "<script>alert(1)</script>"
PNG = b"\x89PNG\r\n\x1a\nand so on"


def scored(*images: bytes, text: str = "5") -> ScoredGroup:
    answer = Completion((5, 2), (-0.01, -5.0), text, "stop", (Segment(0, 2, Version(0, 7), "r-0"),))
    prompt = Prompt("rows:7", (Message("user", "2 + 3?", images),), "add", "5")
    verdicts = (Score(1.0, {"exact": 1.0}), Faulted("worker gone"))
    return ScoredGroup(Group(17, 1, prompt, (1, 1, 1), (answer, EPISODE)), verdicts)


@pytest.mark.parametrize("token", ["viewer"])
async def test_answers_stand_below_their_prompt_and_lead_to_their_tokens_and_group(
    client: Client, runs: FakeRuns
) -> None:
    answers = [RunSample("rows:7", "2 + 3?", text, "5", 1.0) for text in (HOSTILE, "x" * 9000)]
    runs.more_samples = tuple(
        replace(one, group=17, number=number, num_images=1) for number, one in enumerate(answers)
    )
    page = await client.get("/runs/run/samples?of=trained&step=2")
    assert page.status_code == 200 and page.text.count("2 + 3?") == 2  # of another one, too
    assert HOSTILE not in page.text and "&lt;script&gt;" in page.text
    assert 'href="/runs/run/groups/17/1"' in page.text
    assert 'href="/runs/run/ledger?group=17"' in page.text
    assert 'src="/runs/run/groups/17/images/0"' in page.text
    assert "7,500 more characters" in page.text and "x" * 1501 not in page.text
    assert "worker gone" in page.text


async def test_the_address_says_which_ones_are_shown_and_empty_fields_say_nothing(
    client: Client, runs: FakeRuns
) -> None:
    page = await client.get("/runs/run/samples?step=&low=&high=&faulted=true")
    assert "What is 1 + 1?" in page.text and "What is 2 + 3?" not in page.text
    assert runs.calls[-1][3:5] == (2, None), "the last validation"
    assert "/runs/run/samples?of=validation&amp;step=0&amp;faulted=True" in page.text
    refused = await client.get("/runs/run/samples?low=much")
    assert refused.status_code == 422 and "low" in refused.text
    one = await client.get("/runs/run/samples/validation/0/1")
    assert "[two]" in one.text and "Answer 2 of 2" in one.text
    assert (await client.get("/runs/run/samples/validation/0/2")).status_code == 404


def test_a_step_that_has_no_samples_leads_to_the_one_before_it() -> None:
    for wanted, found in ((None, 20), (7, 5), (99, 20), (1, 5)):
        assert SamplesQuery(step=wanted).settle((5, 20), (3,)).step == found
    assert SamplesQuery().settle((), (3, 4)) == SamplesQuery(of="trained", step=4)
    assert SamplesQuery().settle((), ()) == SamplesQuery(of="validation")
    assert SamplesQuery(of="trained", kind="greedy").choice == Choice()
    turned = SamplesQuery(of="trained", step=4, page=3, order="lowest").at(step=3)
    assert turned.words == "of=trained&step=3&order=lowest"


async def test_a_completion_shows_each_token_with_its_probability_and_maker(
    client: Client, runs: FakeRuns
) -> None:
    runs.scored[17] = scored(text=HOSTILE)
    page = await client.get("/runs/run/groups/17/0")
    assert HOSTILE not in page.text and "tokenizer.json cannot be read" in page.text
    assert 'data-version="0.7" data-replica="r-0"' in page.text
    assert '<span class="p0" data-at="0" data-id="5" data-log="-0.0100">‹5›</span>' in page.text
    assert '<span class="p5" data-at="1" data-id="2" data-log="-5.0000">‹2›</span>' in page.text
    episode = (await client.get("/runs/run/groups/17/1")).text
    assert '<span class="given"><span data-at="3" data-id="9">‹9›</span>' in episode
    assert "worker gone" in episode and "no more" in episode and "Branch 1" in episode
    assert 'data-id="7"' in (await client.get("/runs/run/groups/17/1?sequence=1")).text
    for missing in ("17/2", "17/1?sequence=2", "18/0"):
        assert (await client.get(f"/runs/run/groups/{missing}")).status_code == 404


async def test_an_answer_of_a_validation_shows_its_prompts_images(
    client: Client, runs: FakeRuns
) -> None:
    seen = RunSample("rows:3", "<image>Which is red?<image>", "This.", "", 1.0)
    runs.more_samples = (seen,)
    runs.images["rows:3"] = (PNG, PNG + b"2")
    own = "/runs/run/samples/validation/0/2"
    page = (await client.get(own)).text
    assert [f'src="{own}/images/{number}"' in page for number in range(3)] == [True, True, False]
    assert (await client.get(f"{own}/images/1")).content == PNG + b"2"
    for missing in (f"{own}/images/2", "/runs/run/samples/validation/0/0/images/0"):
        assert (await client.get(missing)).status_code == 404


async def test_only_images_that_are_png_files_are_served(client: Client, runs: FakeRuns) -> None:
    runs.scored[17] = scored(PNG, b"<svg onload='alert(1)'/>")
    image = await client.get("/runs/run/groups/17/images/0")
    assert image.content == PNG and image.headers["content-type"] == "image/png"
    assert image.headers["x-content-type-options"] == "nosniff"
    for missing in (1, 2):
        answer = await client.get(f"/runs/run/groups/17/images/{missing}")
        assert answer.status_code == 404


async def test_a_groups_life_is_told_in_the_words_of_the_command(
    client: Client, runs: FakeRuns
) -> None:
    lines = ("attempt 1: issued", "  generated by r-0", f"    completion 1: {HOSTILE}")
    facts = {"step": 3, "completions": [{"reward": 1.0, "indigestible": False}]}
    runs.lives[17] = LedgerAnswer(lines, facts)
    page = (await client.get("/runs/run/ledger?group=17")).text
    assert '<li class="d0">attempt 1: issued</li>' in page
    assert '<li class="d1">generated by r-0</li>' in page
    assert '<li class="d2">completion 1: &lt;script&gt;' in page
    assert 'href="/runs/run/groups/17/0"' in page and "of=trained&amp;step=3" in page
    assert "Group" in (await client.get("/runs/run/ledger")).text
    assert (await client.get("/runs/run/ledger?group=x")).status_code == 422


@pytest.mark.parametrize("token", ["viewer", "operator"])
async def test_the_whole_ledger_is_checked_when_asked(client: Client) -> None:
    part = await client.get("/runs/run/ledger/check", headers=PARTIAL)
    assert "is not sound" in part.text and "broken at record 7" in part.text
    assert "<html" not in part.text


FIRST, SECOND = ("0.6", "rollout-0"), ("0.7", "rollout-1")


def test_given_tokens_stand_apart_and_each_sampled_one_has_its_own_log_probability() -> None:
    numbered = Completion(
        EPISODE.token_ids_T, (-0.1, -0.2, -0.3, -0.4, -0.5), "3", "stop", EPISODE.segments
    )
    shown = show_tokens(numbered, None)
    found = [(run.maker, [token.logprob for token in run.tokens]) for run in shown.runs]
    assert found == [
        (FIRST, [-0.1, -0.2, -0.3]),
        (None, [None, None]),
        (FIRST, [-0.4]),
        (SECOND, [-0.5]),
    ]
    assert shown.colours == {FIRST: 0, SECOND: 1} and shown.mean_logprob == pytest.approx(-0.3)
    assert (shown.num_sampled, shown.num_given) == (5, 2)
    branch = show_tokens(sequences(EPISODE)[1], None)
    assert [run.maker for run in branch.runs] == [SECOND]


def test_a_long_completion_comes_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_TOKENS", 4)
    pages = [show_tokens(EPISODE, None, page) for page in (1, 2, 3)]
    places = [[token.place for run in page.runs for token in run.tokens] for page in pages]
    assert places == [[0, 1, 2, 3], [4, 5, 6], []]


def test_the_colour_grows_as_a_token_gets_less_likely() -> None:
    chances = (1.0, 0.9, 0.5, 0.2, 0.05, 0.01, 0.0099)
    segment = Segment(0, len(chances), VersionId(0, 1), "r")
    made = Completion(range(len(chances)), tuple(map(log, chances)), "", "stop", (segment,))
    (run,) = show_tokens(made, None).runs
    assert [token.level for token in run.tokens] == [0, 0, 1, 2, 3, 4, 5]


def written(folder: Path, **tree: Any) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({"added_tokens": [{"id": 9, "content": "<|end|>"}]} | tree))
    return path


def test_byte_letters_and_sentence_pieces_become_text(tmp_path: Path) -> None:
    byte_level = written(
        tmp_path,
        decoder={"type": "Sequence", "decoders": [{"type": "ByteLevel"}]},
        model={"vocab": {"Ġthe": 0, "Ċ": 1, "Ġâľ": 2, "ĵ": 3}},
    )
    found = read_vocabulary(byte_level)
    assert [text_of(found, one) for one in range(4)] == [" the", "\n", " ‹E2 9C›", "‹93›"]
    assert text_of(found, 9) == "<|end|>" and text_of(found, 77) == "‹77›"
    assert text_of_all(found, (0, 2, 3, 9)) == " the ✓<|end|>"
    pieces = written(tmp_path, decoder=None, model={"vocab": [["▁the", -1.0], ["<0xE2>", -2.0]]})
    found = read_vocabulary(pieces)
    assert [text_of(found, one) for one in (0, 1)] == [" the", "‹E2›"]


TEXT = "The naïve answer ✓ is 你好 🙂:\n\tfive, or  5.<|end|>"


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=letters
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return tokenizer


def sentence_pieces() -> Tokenizer:
    names = [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", "a", "n", "e", "s", "w", "r", "▁a"]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "a")], byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, sentence_pieces])
def test_texts_are_those_of_the_library(make: Callable[[], Tokenizer], tmp_path: Path) -> None:
    tokenizer = make()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = read_vocabulary(tmp_path / "tokenizer.json")
    ids = tokenizer.encode(TEXT).ids
    assert len(vocabulary) == tokenizer.get_vocab_size() and len(ids) < len(TEXT.encode())
    assert text_of_all(vocabulary, ids) == TEXT == tokenizer.decode(ids, skip_special_tokens=False)


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    for text in ("[]", "{}", "no JSON", '{"model": {"vocab": 3}}'):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(ValueError):
            read_vocabulary(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError):
        read_vocabulary(tmp_path / "other.json")
