import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.controller.groups import PromptSkipped
from services.controller.room import Room
from services.controller.validation import FIRST_NUMBER, Validation, Validator
from services.manager.results import validation_samples
from tests.controller.fakes import PROMPTS, make_config
from trimaran.data.prompts import UnusableImageError
from trimaran.types import Completion, Faulted, Group, Prompt, Sampling, Score, ScoredGroup

TEXTS = {
    # prompt -> greedy text, sampled texts; the right answers are 1, 2, 3
    "p:0": ("1", ["1", "1", "x", "x"]),
    "p:1": ("x", ["2", "x", "x", "x"]),
    "p:2": ("3", ["3", "3", "3", "fault"]),
}


class FakeMaker:
    """Makes and scores."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, Sampling]] = []

    async def generate(self, number: int, prompt: Prompt, sampling: Sampling) -> Group:
        self.calls.append((number, prompt.prompt_id, sampling))
        if prompt.prompt_id not in TEXTS:
            raise PromptSkipped("too long")
        greedy, sampled = TEXTS[prompt.prompt_id]
        texts = [greedy] if sampling.temperature == 0 else sampled[: sampling.num_samples]
        completions = tuple(Completion((1,), (0.0,), text, "stop", ()) for text in texts)
        return Group(number, 1, prompt, (1,), completions)

    async def score(self, group: Group) -> ScoredGroup:
        return ScoredGroup(
            group,
            tuple(
                Faulted("worker gone", {"style": 0.5}, ("math",))
                if c.text == "fault"
                else Score(right := float(c.text == group.prompt.answer), {"math": right})
                for c in group.completions_G
            ),
        )


class HeldOut(list[Prompt]):
    async def fetch(self, index: int) -> Prompt:
        return self[index]


def held_out(prompts: list[Prompt]) -> Any:
    return HeldOut(prompts)


def validate(folder: Path, prompts: list[Prompt], num_samples: int) -> tuple[Validation, Any]:
    maker: Any = FakeMaker()
    validator = Validator(held_out(prompts), maker, maker, make_config(), folder, Room(timeout=0))
    return asyncio.run(validator.validate(5, num_samples)), maker


def test_reward_is_the_mean_reward_over_what_was_scored(tmp_path: Path) -> None:
    validation, maker = validate(tmp_path, PROMPTS[:4], 4)
    assert validation == Validation(greedy=2 / 3, sampled=6 / 11, num_skipped=1)
    numbers = [number for number, _, _ in maker.calls]
    assert len(set(numbers)) == len(numbers) == 8
    assert min(numbers) >= FIRST_NUMBER
    assert {s.num_samples for _, _, s in maker.calls if s.temperature == 0} == {1}
    assert {s.temperature for _, _, s in maker.calls} == {0.0, 1.0}


def test_samples_lie_in_the_run_folder(tmp_path: Path) -> None:
    validate(tmp_path, PROMPTS[:3], 4)
    lines = (tmp_path / "samples" / "step-00005.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows[2] == {
        "prompt_id": "p:2",
        "prompt": "2 + 1?",
        "answer": "3",
        "greedy_completions": ["3"],
        "greedy_rewards": [1.0],
        "greedy_terms": [{"math": 1.0}],
        "greedy_faults": [""],
        "completions": ["3", "3", "3", "fault"],
        "rewards": [1.0, 1.0, 1.0, None],
        "terms": [{"math": 1.0}, {"math": 1.0}, {"math": 1.0}, {"style": 0.5}],
        "faults": ["", "", "", "worker gone"],
    }


def test_what_was_written_is_read_with_prompts_terms_and_faults(tmp_path: Path) -> None:
    """As the manager answers with them: greedy answers first, a page at a time."""
    validate(tmp_path, PROMPTS[:3], 4)
    everything, number = validation_samples(tmp_path, 5, 100)
    assert number == len(everything) == 3 + 12
    assert [sample.prompt_id for sample in everything[:4]] == ["p:0", "p:1", "p:2", "p:0"]
    last = everything[-1]
    assert (last.prompt_id, last.answer, last.terms, last.fault) == (
        *("p:2", "fault", {"style": 0.5}),
        "worker gone",
    )
    for limit in (1, 2, 5, 7):
        pages = [validation_samples(tmp_path, 5, limit, offset) for offset in range(0, 15, limit)]
        assert [sample for page, _ in pages for sample in page] == everything
        assert {count for _, count in pages} == {15}
    assert validation_samples(tmp_path, 5, 10, offset=15) == ([], 15)


def test_without_samples_only_the_greedy_reward_is_known(tmp_path: Path) -> None:
    validation, _ = validate(tmp_path, PROMPTS[:3], 0)
    assert validation.sampled is None
    assert set(validation.values()) == {
        "validation/greedy_reward/mean",
        "validation/skipped_prompts",
    }


def test_the_first_samples_and_the_newest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.controller.samples_file.KEPT_FILES", 3)
    maker: Any = FakeMaker()
    validator = Validator(
        held_out(PROMPTS[:1]), maker, maker, make_config(), tmp_path, Room(timeout=0)
    )

    async def body() -> None:
        for step in (0, 99_998, 99_999, 100_000, 5):  # the last: made again after a resume
            await validator.validate(step, 0)
            assert (tmp_path / f"samples/step-{step:05d}.jsonl").exists() or step == 5

    asyncio.run(body())
    names = {path.name for path in (tmp_path / "samples").iterdir()}
    assert names == {"step-00000.jsonl", "step-99999.jsonl", "step-100000.jsonl"}


def test_a_prompt_without_its_image_is_skipped_and_none_is_kept_with_one(tmp_path: Path) -> None:
    class Images(HeldOut):
        async def fetch(self, index: int) -> Prompt:
            prompt = self[index]
            if index == 1:
                raise UnusableImageError("train.jsonl:2: image 1: 5 bytes are no image", prompt)
            message = replace(prompt.messages[0], images=(b"png",))
            return replace(prompt, messages=(message,))

    maker: Any = FakeMaker()
    seen: list[tuple[bytes, ...]] = []
    generate = maker.generate

    async def generating(number: int, prompt: Prompt, sampling: Sampling) -> Group:
        seen.append(prompt.messages[0].images)
        return await generate(number, prompt, sampling)

    maker.generate = generating
    prompts: Any = Images(PROMPTS[:3])
    validator = Validator(prompts, maker, maker, make_config(), tmp_path, Room(timeout=0))
    validation = asyncio.run(validator.validate(5, 4))
    assert (validation.greedy, validation.num_skipped) == (1.0, 1)
    assert seen == [(b"png",)] * 4
    rows = (tmp_path / "samples" / "step-00005.jsonl").read_text().splitlines()
    assert json.loads(rows[1])["completions"] == []


def test_the_score_of_a_checkpoint_is_the_reward_that_the_run_chooses() -> None:
    validation = Validation(greedy=0.5, sampled=0.7, num_skipped=0)
    assert (validation.score("greedy"), validation.score("sampled")) == (0.5, 0.7)
    assert Validation(greedy=0.5, sampled=None, num_skipped=0).score("sampled") is None


def test_prompts_are_fetched_as_the_replicas_take_them(tmp_path: Path) -> None:
    """Each may bring megabytes of images."""
    prompts = [replace(PROMPTS[0], prompt_id=f"q:{n}") for n in range(50)]
    held, most = 0, 0

    class Images(HeldOut):
        async def fetch(self, index: int) -> Prompt:
            nonlocal held, most
            held += 1
            most = max(most, held)
            return self[index]

    class SlowMaker(FakeMaker):
        async def generate(self, number: int, prompt: Prompt, sampling: Sampling) -> Group:
            nonlocal held
            await asyncio.sleep(0)
            held -= sampling.temperature == 0
            return await super().generate(number, prompt, sampling)

    maker: Any = SlowMaker()
    found: Any = Images(prompts)
    config = make_config(rollout={"replicas": 2, "max_concurrency": 7})
    validator = Validator(found, maker, maker, config, tmp_path, Room(timeout=0))
    assert asyncio.run(validator.validate(5, 1)).num_skipped == 50
    assert most == 14
