"""The reward of held-out prompts, which never train: at temperature 0 and at that of samples."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from services.controller.datasets import HeldOutPrompts
from services.controller.disk import told_when_full
from services.controller.groups import GroupMaker, PromptSkipped, sampling_seed
from services.controller.room import Room
from services.controller.scoring import Scorer
from trimaran.config import RunConfig
from trimaran.data.prompts import UnusableImageError, without_images
from trimaran.metrics import GREEDY_REWARD, SAMPLED_REWARD
from trimaran.places import Place
from trimaran.types import Faulted, Prompt, Sampling, Score, ScoredGroup

logger = logging.getLogger(__name__)

FIRST_NUMBER = 1 << 62
"""Validation groups have numbers of their own, far from the training line."""

KEPT_FILES = 100
"""Of samples, in the run folder: the first one, to compare with, and the newest."""


@dataclass(frozen=True, slots=True)
class Validation:
    greedy: float | None
    """Mean reward over all scored completions; None when there are none."""
    sampled: float | None
    num_skipped: int

    def score(self, by: Literal["greedy", "sampled"]) -> float | None:
        """As `run.best_by` has it."""
        return self.sampled if by == "sampled" else self.greedy

    def values(self) -> dict[str, float]:
        rewards = {GREEDY_REWARD: self.greedy, SAMPLED_REWARD: self.sampled}
        known = {key: value for key, value in rewards.items() if value is not None}
        return {**known, "validation/skipped_prompts": self.num_skipped}


@dataclass(frozen=True, slots=True)
class _Answer:
    """To one held-out prompt."""

    prompt: Prompt
    """Without its images, which are many bytes."""
    greedy: ScoredGroup | None
    sampled: ScoredGroup | None
    """None also where no samples are asked for."""
    is_skipped: bool


class Validator:
    """Generates and scores the held-out prompts on the live weights.

    Example:
        validation = await validator.validate(step=20, num_samples=16)
        validation.values()  # {"validation/greedy_reward/mean": 0.92, ...}
    """

    def __init__(
        self,
        prompts: HeldOutPrompts,
        maker: GroupMaker,
        scorer: Scorer,
        config: RunConfig,
        run_folder: Path,
        room: Room,
        place: Place | None = None,
    ) -> None:
        """`place`: the run's own, where answers are kept that the folder may lose."""
        self._prompts, self._maker, self._scorer = prompts, maker, scorer
        self._config, self._room = config, room
        self._samples, self._place = run_folder / "samples", place

    async def validate(self, step: int, num_samples: int) -> Validation:
        """Also writes samples/step-<step>.jsonl: prompt, answer, completions, rewards, terms, faults."""
        turns = asyncio.Semaphore(num_at_a_time(self._config, num_samples))

        async def answer(index: int) -> _Answer:
            async with turns:
                return await self._answer(step, index, num_samples)

        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(answer(index)) for index in range(len(self._prompts))]
        answers_P = [task.result() for task in answers]
        greedy_P = [answer.greedy for answer in answers_P]
        sampled_P = [answer.sampled for answer in answers_P]
        await self._room.until_written(
            lambda: asyncio.to_thread(self._write, step, answers_P, num_samples > 0)
        )
        num_skipped = sum(answer.is_skipped for answer in answers_P)
        return Validation(mean_reward(greedy_P), mean_reward(sampled_P), num_skipped)

    @property
    def _max_tokens(self) -> int:
        return self._config.rollout.max_tokens

    def _sampling(self, index: int, num_samples: int) -> Sampling:
        seed = sampling_seed(self._config.run.seed, "validation", index)
        temperature = self._config.validation.temperature or self._config.rollout.temperature
        return Sampling(temperature, self._max_tokens, num_samples, seed)

    async def _answer(self, step: int, index: int, num_samples: int) -> _Answer:
        try:
            prompt = await self._prompts.fetch(index)
        except UnusableImageError as error:
            logger.warning("held-out prompt %s skipped: %s", error.prompt.prompt_id, error)
            return _Answer(error.prompt, None, None, is_skipped=True)
        samplings = [Sampling(0.0, self._max_tokens, 1)]
        if num_samples:
            samplings.append(self._sampling(index, num_samples))
        async with asyncio.TaskGroup() as tasks:
            groups = [
                tasks.create_task(self._group(step, index, prompt, sampling))
                for sampling in samplings
            ]
        greedy, *sampled = [group.result() for group in groups]
        is_skipped = None in (greedy, *sampled)
        return _Answer(without_images(prompt), greedy, sampled[0] if sampled else None, is_skipped)

    async def _group(
        self, step: int, index: int, prompt: Prompt, sampling: Sampling
    ) -> ScoredGroup | None:
        """None when the prompt cannot be generated or scored."""
        place = step * len(self._prompts) + index
        number = FIRST_NUMBER + 2 * place + (sampling.temperature > 0)
        try:
            group = await self._maker.generate(number, prompt, sampling)
            scored = await self._scorer.score(group)
        except PromptSkipped as skip:
            logger.warning("held-out prompt %s skipped: %s", prompt.prompt_id, skip)
            return None
        return replace(scored, group=replace(group, prompt=without_images(prompt)))

    def _write(self, step: int, answers_P: Sequence[_Answer], has_samples: bool) -> None:
        path = self._samples / f"step-{step:05d}.jsonl"
        partial = path.with_suffix(".partial")
        with told_when_full(path):
            self._samples.mkdir(exist_ok=True)
        with told_when_full(path), partial.open("w", encoding="utf-8") as file:
            for answer in answers_P:
                row = {
                    "prompt_id": answer.prompt.prompt_id,
                    "prompt": answer.prompt.messages[-1].text,
                    "answer": answer.prompt.answer,
                    **_texts(answer.greedy, "greedy_"),
                    **(_texts(answer.sampled) if has_samples else {}),
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        partial.replace(path)
        if self._place is not None:
            self._place.upload(path, f"samples/{path.name}")
        self._remove_old()

    def _remove_old(self) -> None:
        def step(path: Path) -> int:
            return int(path.stem.removeprefix("step-"))

        for path in sorted(self._samples.glob("step-*.jsonl"), key=step)[1 : 1 - KEPT_FILES]:
            path.unlink(missing_ok=True)


def num_at_a_time(config: RunConfig, num_samples: int) -> int:
    """Held-out prompts that are in memory with their images: twice as many as the replicas decode at a
    time, so that further ones are prepared and scored meanwhile."""
    rollout = config.rollout
    num_decoded = rollout.max_replicas * rollout.max_concurrency
    return 2 * math.ceil(num_decoded / (1 + num_samples))


def mean_reward(groups_P: Sequence[ScoredGroup | None]) -> float | None:
    """Mean reward over every scored completion."""
    rewards = [
        verdict.reward
        for scored in groups_P
        if scored
        for verdict in scored.verdicts_G
        if isinstance(verdict, Score)
    ]
    return fmean(rewards) if rewards else None


def _texts(scored: ScoredGroup | None, prefix: str = "") -> dict[str, Any]:
    completions = scored.group.completions_G if scored else ()
    verdicts_G = scored.verdicts_G if scored else ()
    return {
        f"{prefix}completions": [completion.text for completion in completions],
        f"{prefix}rewards": [v.reward if isinstance(v, Score) else None for v in verdicts_G],
        f"{prefix}terms": [dict(v.terms) for v in verdicts_G],
        f"{prefix}faults": [v.fault if isinstance(v, Faulted) else "" for v in verdicts_G],
    }
