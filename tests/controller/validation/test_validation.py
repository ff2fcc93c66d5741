import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands.cli.manage.samples_view import describe_sample
from services.controller.groups import PromptSkipped
from services.controller.validation.validation import FIRST_NUMBER, Validation, Validator
from services.manager.run_data.results import validation_samples
from tests.controller.fakes import PROMPTS, make_config
from tests.episode_in_words import EPISODE, WORDS
from trimaran.config import RunConfig
from trimaran.data.prompts import UnusableImageError
from trimaran.ledger.episode_words import tell_episode
from trimaran.ledger.write_pause import WritePause
from trimaran.telemetry.metrics import find_metric
from trimaran.telemetry.sinks import AnswerRow
from trimaran.types import Completion, Faulted, Group, Prompt, Sampling, Score, ScoredGroup

CONFIG = make_config(reward={"rules": {"math": {"rule": "exact_match"}}})
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
                else Score(
                    right := float(c.text == group.prompt.answer), {"math": right}, False, c.text
                )
                for c in group.completions_G
            ),
        )


class HeldOut(list[Prompt]):
    async def fetch(self, index: int) -> Prompt:
        return self[index]


def validate(
    folder: Path,
    prompts: list[Prompt],
    num_samples: int,
    maker: FakeMaker | None = None,
    config: RunConfig = CONFIG,
) -> Validation:
    fake: Any = maker or FakeMaker()
    held_out: Any = prompts if isinstance(prompts, HeldOut) else HeldOut(prompts)
    validator = Validator(held_out, fake, fake, config, folder, WritePause(timeout=0))
    return asyncio.run(validator.validate(5, num_samples))


def test_reward_is_the_mean_reward_over_what_was_scored(tmp_path: Path) -> None:
    maker = FakeMaker()
    validation = validate(tmp_path, PROMPTS[:4], 4, maker)
    assert (validation.greedy, validation.sampled, validation.num_skipped) == (2 / 3, 6 / 11, 1)
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


def test_an_episode_lies_there_turn_by_turn_and_is_read_again(tmp_path: Path) -> None:
    class Episodes(FakeMaker):
        async def generate(self, number: int, prompt: Prompt, sampling: Sampling) -> Group:
            return Group(number, 1, prompt, (1,), (EPISODE,))

    config = make_config(validation={"logged": 1}, metrics={"sinks": ["wandb"]})
    validation = validate(tmp_path, PROMPTS[:1], 0, Episodes(), config)
    [sample], _ = validation_samples(tmp_path, 5, 10)
    assert sample.episode and tuple(tell_episode(sample.episode)) == WORDS
    shown = "\n".join(describe_sample(sample, full=False))
    assert "  tool add:  3\n             no more\n  turn 2:" in shown and "answer:" not in shown
    assert validation.answers[0].answer.startswith("turn 1: [3 tokens of version 0.6; ")


def test_a_prompt_without_its_image_is_skipped_and_none_is_kept_with_one(tmp_path: Path) -> None:
    class Images(HeldOut):
        async def fetch(self, index: int) -> Prompt:
            prompt = self[index]
            if index == 1:
                raise UnusableImageError("train.jsonl:2: image 1: 5 bytes are no image", prompt)
            message = replace(prompt.messages[0], images=(b"png",))
            return replace(prompt, messages=(message,))

    seen: list[tuple[bytes, ...]] = []

    class Looking(FakeMaker):
        async def generate(self, number: int, prompt: Prompt, sampling: Sampling) -> Group:
            seen.append(prompt.messages[0].images)
            return await super().generate(number, prompt, sampling)

    validation = validate(tmp_path, Images(PROMPTS[:3]), 4, Looking())
    assert (validation.greedy, validation.num_skipped) == (1.0, 1)
    assert seen == [(b"png",)] * 4
    rows = (tmp_path / "samples" / "step-00005.jsonl").read_text().splitlines()
    assert json.loads(rows[1])["completions"] == []


def test_each_task_and_source_has_its_own_numbers(tmp_path: Path) -> None:
    sources = ["", "openai/gsm8k", "openai/gsm8k"]
    prompts = [
        replace(prompt, extras={"data_source": source} if source else {})
        for prompt, source in zip(PROMPTS[:3], sources, strict=True)
    ]
    values = validate(tmp_path, prompts, 4).values()
    assert values["validation/greedy_correct/share"] == 2 / 3
    assert values["validation/task/add/pass_at/1"] == 0.5  # p:0: 1 1 x x
    assert values["validation/task/add/majority_at/4"] == 0.5
    assert values["validation/task/openai/gsm8k/greedy_correct/share"] == 0.5
    # p:1: one of four; p:2: three of three, the fourth could not be scored
    assert values["validation/task/openai/gsm8k/pass_at/2"] == (0.5 + 1) / 2
    assert values["validation/task/openai/gsm8k/pass_at/4"] == 1.0
    assert all(find_metric(key) for key in values)


def test_correct_is_what_the_run_says(tmp_path: Path) -> None:
    config = make_config(
        reward={"rules": {"style": {"rule": "format"}, "math": {"rule": "exact_match"}}},
        validation={"correct_by": ["style", "math"], "correct_from": 2},
    )
    values = validate(tmp_path, PROMPTS[:1], 0, config=config).values()
    assert values["validation/greedy_correct/share"] == 0.0


def test_samples_are_drawn_as_the_validation_says(tmp_path: Path) -> None:
    section = {"temperature": 0.2, "top_p": 0.7, "max_tokens": 64}
    config = make_config(rollout={"temperature": 0.9}, validation=section)
    maker = FakeMaker()
    validate(tmp_path, PROMPTS[:1], 4, maker, config)
    greedy, sampled = [sampling for _, _, sampling in maker.calls]
    assert (greedy.temperature, greedy.max_tokens, greedy.top_p) == (0.0, 64, 1.0)
    assert (sampled.temperature, sampled.max_tokens, sampled.top_p) == (0.2, 64, 0.7)


def test_the_first_greedy_answers_are_shown_the_same_each_time(tmp_path: Path) -> None:
    config = make_config(metrics={"sinks": ["wandb"]}, validation={"logged": 2})
    validation = validate(tmp_path, [PROMPTS[8], *PROMPTS[:3]], 4, config=config)
    # The first of all was skipped; p:1 is none of the first two.
    assert validation.answers == (
        AnswerRow(5, "p:0", "add", "0 + 1?", "1", "1", 1.0, {"math": 1.0}),
    )
    assert validate(tmp_path, PROMPTS[:3], 4).answers == ()
