"""The reward of held-out prompts, which never train: at temperature 0 and at that of samples.

A validation of thousands of prompts takes no more memory than the prompts that are under way: each
answer goes into the samples' file and into sums as it comes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from services.controller.datasets import NUM_PREPARED, HeldOutPrompts
from services.controller.episodes.maker import CompletionMaker
from services.controller.groups import PromptSkipped, sampling_seed
from services.controller.reporting.samples_file import SamplesFile, remove_old
from services.controller.scoring import Scorer
from services.controller.validation.accuracy import Judged, Tally, accuracy_terms, judge
from trimaran.config import RunConfig
from trimaran.data.prompts import UnusableImageError, without_images
from trimaran.host.places import Place
from trimaran.ledger.episode_words import tell_episode
from trimaran.ledger.write_pause import WritePause
from trimaran.run.answers import RunEpisode
from trimaran.telemetry.metrics import GREEDY_REWARD, IN_TASK, SAMPLED_REWARD, VALIDATION_SECONDS
from trimaran.telemetry.sinks import AnswerRow
from trimaran.types import Faulted, Prompt, Sampling, Score, ScoredGroup
from trimaran.wire.run_messages import episode_to_tree

logger = logging.getLogger(__name__)

FIRST_NUMBER = 1 << 62
"""Validation groups have numbers of their own, far from the training line."""
MAX_IMAGE_BYTES = 1 << 30
"""Bytes of the images of all held-out prompts that are in memory: while there are more, none is fetched."""
MAX_TASKS = 64
"""With numbers of their own, the first by the alphabet: a column that is another one in each row does not make
as many metrics."""
MAX_TASK_NAME = 100
"""Characters."""


@dataclass(frozen=True, slots=True)
class Validation:
    greedy: float | None
    """Mean reward over all scored completions; None when there are none."""
    sampled: float | None
    num_skipped: int
    seconds: float
    others: Mapping[str, float] = field(default_factory=dict[str, float])
    """Correct shares, and the numbers of each task, by the keys of metrics."""
    answers: tuple[AnswerRow, ...] = ()
    """Greedy ones to the first `validation.logged` prompts."""

    def values(self) -> dict[str, float]:
        rewards = {GREEDY_REWARD: self.greedy, SAMPLED_REWARD: self.sampled}
        known = {key: value for key, value in rewards.items() if value is not None}
        counted = {VALIDATION_SECONDS: self.seconds, "validation/skipped_prompts": self.num_skipped}
        return {**known, **self.others, **counted}


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
        maker: CompletionMaker,
        scorer: Scorer,
        config: RunConfig,
        run_folder: Path,
        pause: WritePause,
        place: Place | None = None,
    ) -> None:
        """`place`: the run's own, where answers are kept that the folder may lose."""
        self._prompts, self._maker, self._scorer = prompts, maker, scorer
        self._config, self._pause = config, pause
        self._samples, self._place = run_folder / "samples", place
        self._images = _ImageRoom()

    async def validate(
        self, step: int, num_samples: int, so_far: Callable[[str], None] = lambda text: None
    ) -> Validation:
        """`so_far` hears how many prompts are done.

        Also writes samples/step-<step>.jsonl: prompt, answer, completions, rewards, terms, faults, episodes."""
        began, indices = time.monotonic(), iter(range(len(self._prompts)))
        found = _Found(self._config, num_samples)
        file = await self._pause.until_written(
            lambda: asyncio.to_thread(SamplesFile, self._samples, step)
        )
        writing, num_done = asyncio.Lock(), itertools.count(1)

        async def work() -> None:
            for index in indices:  # of all workers: each takes the next one
                answer = await self._answer(step, index, num_samples)
                row = _row(answer, num_samples > 0)
                async with writing:
                    await self._written(partial(file.add, index, row))
                found.add(step, index, answer)
                so_far(f"{next(num_done)} of {len(self._prompts)} prompts")

        with file:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(len(self._prompts), num_at_a_time(self._config, num_samples))):
                    tasks.create_task(work())
            await self._written(file.finish)
        if (place := self._place) is not None:
            await self._written(lambda: place.upload(file.path, f"samples/{file.path.name}"))
        await asyncio.to_thread(remove_old, self._samples)
        found.warn_of_unknown_terms()
        return found.validation(time.monotonic() - began)

    async def _written(self, write: Callable[[], None]) -> None:
        await self._pause.until_written(lambda: asyncio.to_thread(write))

    @property
    def _max_tokens(self) -> int:
        return self._config.validation.max_tokens or self._config.rollout.max_tokens

    def _sampling(self, index: int, num_samples: int) -> Sampling:
        seed = sampling_seed(self._config.run.seed, "validation", index)
        section = self._config.validation
        temperature = section.temperature or self._config.rollout.temperature
        return Sampling(temperature, self._max_tokens, num_samples, seed, section.top_p)

    async def _answer(self, step: int, index: int, num_samples: int) -> _Answer:
        samplings = [Sampling(0.0, self._max_tokens, 1)]
        if num_samples:
            samplings.append(self._sampling(index, num_samples))
        try:
            async with self._images.fetched(self._prompts, index) as prompt:
                async with asyncio.TaskGroup() as tasks:
                    groups = [
                        tasks.create_task(self._group(step, index, prompt, sampling))
                        for sampling in samplings
                    ]
                greedy, *sampled = [group.result() for group in groups]
        except UnusableImageError as error:
            logger.warning("held-out prompt %s skipped: %s", error.prompt.prompt_id, error)
            return _Answer(error.prompt, None, None, is_skipped=True)
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
            return await self._scorer.score(group)
        except PromptSkipped as skip:
            logger.warning("held-out prompt %s skipped: %s", prompt.prompt_id, skip)
            return None


class _ImageRoom:
    """Lets prompts in as far as there is room for their images."""

    def __init__(self) -> None:
        self._fetching = asyncio.Semaphore(NUM_PREPARED)
        """What a prompt brings is known once it is fetched, so few are fetched at a time."""
        self._changed = asyncio.Condition()
        self._num_bytes = 0

    @asynccontextmanager
    async def fetched(self, prompts: HeldOutPrompts, index: int) -> AsyncGenerator[Prompt]:
        """The prompt; its images count until the block ends. Raises UnusableImageError."""
        async with self._fetching:
            async with self._changed:
                await self._changed.wait_for(lambda: self._num_bytes < MAX_IMAGE_BYTES)
            prompt = await prompts.fetch(index)
            size = sum(len(image) for one in prompt.messages for image in one.images)
            self._num_bytes += size
        try:
            yield prompt
        finally:
            self._num_bytes -= size
            async with self._changed:
                self._changed.notify_all()


class _Found:
    """What a validation has found so far."""

    def __init__(self, config: RunConfig, num_samples: int) -> None:
        section = config.validation
        self._correct_by = section.correct_by or accuracy_terms(config.reward_terms)
        self._correct_from, self._num_logged = section.correct_from, section.logged
        self._num_samples, self._num_skipped = num_samples, 0
        self._all, self._by_task = Tally(num_samples), dict[str, Tally]()
        self._terms = set[str]()
        """The terms of all greedy answers that were scored."""
        self._answers: dict[int, AnswerRow] = {}

    def add(self, step: int, index: int, answer: _Answer) -> None:
        greedy, sampled = self._judged(answer.greedy), self._judged(answer.sampled)
        self._num_skipped += answer.is_skipped
        for verdict in answer.greedy.verdicts_G if answer.greedy else ():
            self._terms.update(verdict.terms if isinstance(verdict, Score) else ())
        self._all.add(greedy, sampled)
        if tally := self._of_task(task_of(answer.prompt)):
            tally.add(greedy, sampled)
        if index < self._num_logged and (row := _answer_row(step, answer)):
            self._answers[index] = row

    def _of_task(self, task: str) -> Tally | None:
        """The first MAX_TASKS names by the alphabet have one, in whatever order answers come: a name that has made
        room for an earlier one cannot be among the first again."""
        if task not in self._by_task and len(self._by_task) == MAX_TASKS:
            last = max(self._by_task)
            if task > last:
                return None
            del self._by_task[last]
        return self._by_task.setdefault(task, Tally(self._num_samples))

    def warn_of_unknown_terms(self) -> None:
        """A rule's parts are known once it has judged."""
        if self._terms and self._terms.isdisjoint(self._correct_by):
            logger.warning(
                "validation.correct_by: no answer was judged by %s, so none counts as correct or wrong; the"
                " terms are %s",
                *(", ".join(self._correct_by), ", ".join(sorted(self._terms))),
            )

    def validation(self, seconds: float) -> Validation:
        values = self._all.values()
        greedy, sampled = values.pop(GREEDY_REWARD, None), values.pop(SAMPLED_REWARD, None)
        for task, tally in sorted(self._by_task.items()):
            values |= {
                IN_TASK.format(task, key.removeprefix("validation/")): value
                for key, value in tally.values().items()
            }
        answers = tuple(self._answers[index] for index in sorted(self._answers))
        return Validation(greedy, sampled, self._num_skipped, seconds, values, answers)

    def _judged(self, scored: ScoredGroup | None) -> list[Judged]:
        verdicts_G = scored.verdicts_G if scored else ()
        return judge(verdicts_G, self._correct_by, self._correct_from)


def task_of(prompt: Prompt) -> str:
    """What its numbers are filed under: verl's name of where a row comes from, or its dataset's task."""
    return (prompt.extras.get("data_source") or prompt.task)[:MAX_TASK_NAME]


def num_at_a_time(config: RunConfig, num_samples: int) -> int:
    """Held-out prompts that are under way: twice as many as the replicas decode at a time, so that
    further ones are prepared and scored meanwhile."""
    rollout = config.rollout
    num_decoded = rollout.max_replicas * rollout.max_concurrency
    return 2 * math.ceil(num_decoded / (1 + num_samples))


def _answer_row(step: int, answer: _Answer) -> AnswerRow | None:
    """None where there is no greedy answer."""
    if answer.greedy is None:
        return None
    [completion], [verdict] = answer.greedy.group.completions_G, answer.greedy.verdicts_G
    prompt = answer.prompt
    reward = verdict.reward if isinstance(verdict, Score) else None
    episode = RunEpisode.of(completion)
    said = "\n".join(map(": ".join, tell_episode(episode))) if episode else completion.text
    texts = prompt.question, said, prompt.answer
    return AnswerRow(step, prompt.prompt_id, task_of(prompt), *texts, reward, verdict.terms)


def _row(answer: _Answer, has_samples: bool) -> dict[str, Any]:
    return {
        "prompt_id": answer.prompt.prompt_id,
        "prompt": answer.prompt.question,
        "answer": answer.prompt.answer,
        **_texts(answer.greedy, "greedy_"),
        **(_texts(answer.sampled) if has_samples else {}),
    }


def _texts(scored: ScoredGroup | None, prefix: str = "") -> dict[str, Any]:
    completions = scored.group.completions_G if scored else ()
    verdicts_G = scored.verdicts_G if scored else ()
    episodes = [RunEpisode.of(completion) for completion in completions]
    trees = [one and episode_to_tree(one) for one in episodes]
    return {
        f"{prefix}completions": [completion.text for completion in completions],
        f"{prefix}rewards": [v.reward if isinstance(v, Score) else None for v in verdicts_G],
        f"{prefix}terms": [dict(v.terms) for v in verdicts_G],
        f"{prefix}faults": [v.fault if isinstance(v, Faulted) else "" for v in verdicts_G],
        **({f"{prefix}episodes": trees} if any(trees) else {}),
    }
