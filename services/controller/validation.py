"""The reward of held-out prompts, which never train: at temperature 0 and at that of samples."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from services.controller.disk import told_when_full
from services.controller.groups import GroupMaker, PromptSkipped, sampling_seed
from services.controller.room import Room
from services.controller.scoring import Scorer
from trimaran.config import RunConfig
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


class Validator:
    """Generates and scores the held-out prompts on the live weights.

    Example:
        validation = await validator.validate(step=20, num_samples=16)
        validation.values()  # {"validation/greedy_reward/mean": 0.92, ...}
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
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
        async with asyncio.TaskGroup() as tasks:
            greedy = [
                tasks.create_task(self._group(step, index, Sampling(0.0, self._max_tokens, 1)))
                for index in range(len(self._prompts))
            ]
            sampled = [
                tasks.create_task(self._group(step, index, self._sampling(index, num_samples)))
                for index in range(len(self._prompts) if num_samples else 0)
            ]
        greedy_P = [task.result() for task in greedy]
        sampled_P = [task.result() for task in sampled]
        await self._room.until_written(
            lambda: asyncio.to_thread(self._write, step, greedy_P, sampled_P)
        )
        skipped = {i for groups in (greedy_P, sampled_P) for i, g in enumerate(groups) if g is None}
        return Validation(mean_reward(greedy_P), mean_reward(sampled_P), len(skipped))

    @property
    def _max_tokens(self) -> int:
        return self._config.rollout.max_tokens

    def _sampling(self, index: int, num_samples: int) -> Sampling:
        seed = sampling_seed(self._config.run.seed, "validation", index)
        temperature = self._config.validation.temperature or self._config.rollout.temperature
        return Sampling(temperature, self._max_tokens, num_samples, seed)

    async def _group(self, step: int, index: int, sampling: Sampling) -> ScoredGroup | None:
        """None when the prompt cannot be generated or scored."""
        place = step * len(self._prompts) + index
        number = FIRST_NUMBER + 2 * place + (sampling.temperature > 0)
        try:
            group = await self._maker.generate(number, self._prompts[index], sampling)
            return await self._scorer.score(group)
        except PromptSkipped as skip:
            logger.warning("held-out prompt %s skipped: %s", self._prompts[index].prompt_id, skip)
            return None

    def _write(
        self, step: int, greedy_P: list[ScoredGroup | None], sampled_P: list[ScoredGroup | None]
    ) -> None:
        path = self._samples / f"step-{step:05d}.jsonl"
        partial = path.with_suffix(".partial")
        with told_when_full(path):
            self._samples.mkdir(exist_ok=True)
        with told_when_full(path), partial.open("w", encoding="utf-8") as file:
            for index, prompt in enumerate(self._prompts):
                row = {
                    "prompt_id": prompt.prompt_id,
                    "prompt": prompt.messages[-1].text,
                    "answer": prompt.answer,
                    **_texts(greedy_P[index], "greedy_"),
                    **(_texts(sampled_P[index]) if sampled_P else {}),
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
