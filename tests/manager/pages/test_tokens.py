"""Tokens as text and in colour, against numbers worked by hand and against the tokenizers library."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from services.manager.pages.samples import tokens
from services.manager.pages.samples.tokens import sequences, show_tokens
from services.manager.pages.samples.vocabulary import read_vocabulary, text_of, text_of_all
from tests.episode_in_words import EPISODE
from trimaran.types import Completion, Segment, VersionId

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
