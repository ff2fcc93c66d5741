import asyncio
import json
from pathlib import Path
from typing import Any

from services.controller.groups import PromptSkipped
from services.controller.validation import FIRST_NUMBER, Validation, Validator
from tests.controller.fakes import PROMPTS, make_config
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
                Faulted("x") if c.text == "fault" else Score(float(c.text == group.prompt.answer))
                for c in group.completions_G
            ),
        )


def validate(folder: Path, prompts: list[Prompt], num_samples: int) -> tuple[Validation, Any]:
    maker: Any = FakeMaker()
    validator = Validator(prompts, maker, maker, make_config(), folder)
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
        "prompt": "2 + 1?",
        "answer": "3",
        "greedy_completions": ["3"],
        "greedy_rewards": [1.0],
        "completions": ["3", "3", "3", "fault"],
        "rewards": [1.0, 1.0, 1.0, None],
    }


def test_without_samples_only_the_greedy_reward_is_known(tmp_path: Path) -> None:
    validation, _ = validate(tmp_path, PROMPTS[:3], 0)
    assert validation.sampled is None
    assert set(validation.values()) == {
        "validation/greedy_reward/mean",
        "validation/skipped_prompts",
    }
