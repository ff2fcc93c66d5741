"""A request for completions -> what the engine is asked, checked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.rollout.engine import Ended, Engine, GenerationRequest
from services.rollout.images import ImagePlacer, PlacedImages
from services.rollout.turns.stop_texts import StopTexts
from trimaran.config import RunConfig
from trimaran.errors import InputError, PromptTooLongError
from trimaran.types import Prefix, Prompt, Sampling, Tool, images_in, split_prefill

Starts = dict[int, tuple[int, ...]]
"""Completion index -> tokens that it already has."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Example: Prepared(generation, [Ended(2, "stop")], opening=(1, 15, 22))"""

    generation: GenerationRequest
    ended: Sequence[Ended]
    """Of the continuations, those that had ended already."""
    opening: tuple[int, ...]
    """What the messages became: of a turn with a prefix, what stands behind that."""
    prefill: str = ""
    is_turn: bool = False
    tools: Sequence[Tool] = ()
    """Of a turn."""


class Preparation:
    """Example: prepared = await Preparation(config, engine).prepare(7, prompt, sampling, None, {})"""

    def __init__(self, config: RunConfig, engine: Engine) -> None:
        self._config = config
        self._engine = engine
        self._images = ImagePlacer(config.model.path, config.rollout.limit_images)

    async def prepare(
        self,
        number: int,
        prompt: Prompt,
        sampling: Sampling,
        prefix: Prefix | None,
        starts: Starts,
    ) -> Prepared:
        """`prefix`: of a turn, what it goes on from. `starts`: of completions that go on.

        Raises InputError, and PromptTooLongError.
        """
        most = self._config.max_answer_tokens
        if not 1 <= sampling.max_tokens <= most or sampling.num_samples < 1:
            raise InputError(
                f"sampling: {sampling.num_samples} samples of {sampling.max_tokens} tokens;"
                f" at least one of each, and {self._config.max_answer_key} ({most}) at most"
            )
        if prefix is None:
            prepared = await self._answers(number, prompt, sampling)
        else:
            prepared = await self._turn(number, prompt, prefix, sampling)
        return self._going_on(prepared, starts) if starts else prepared

    async def _answers(self, number: int, prompt: Prompt, sampling: Sampling) -> Prepared:
        opening, images = await self._open(prompt)
        most = self._config.rollout.max_prompt_tokens
        if not 0 < len(opening) <= most:
            raise PromptTooLongError(
                f"too long: {len(opening)} tokens; rollout.max_prompt_tokens is {most}"
                if opening
                else "the chat template makes no token of it"
            )
        starts: Starts = dict.fromkeys(range(sampling.num_samples), ())
        return Prepared(GenerationRequest(number, opening, sampling, starts, images), (), opening)

    async def _open(self, prompt: Prompt) -> tuple[tuple[int, ...], PlacedImages | None]:
        token_ids = self._engine.tokenize(prompt.messages, prompt.tools)
        # In a thread: some megapixels take a tenth of a second.
        return await asyncio.to_thread(self._images.place, images_in(prompt.messages), token_ids)

    async def _go_on(
        self, prompt: Prompt, prefix: Prefix
    ) -> tuple[tuple[int, ...], PlacedImages | None]:
        """What texts become behind a prefix, and where the images of that stand."""
        opening = self._engine.turns.extend(prefix.token_ids[-1], prompt.messages)
        self._images.place((), opening)
        found = await asyncio.to_thread(self._images.find, prefix.images, prefix.token_ids)
        return opening, found

    async def _turn(
        self, number: int, prompt: Prompt, prefix: Prefix, sampling: Sampling
    ) -> Prepared:
        if sampling.num_samples != 1:
            raise InputError(f"a turn is one sample; the request asks for {sampling.num_samples}")
        before = prefix.token_ids
        opening, images = await self._go_on(prompt, prefix) if before else await self._open(prompt)
        room = self._config.max_model_tokens - len(before) - len(opening)
        if room < 1:
            raise PromptTooLongError(
                f"too long: {len(before)} tokens and {len(opening)} behind them;"
                f" rollout.max_prompt_tokens + {self._config.max_answer_key} is"
                f" {self._config.max_model_tokens}"
            )
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        generation = GenerationRequest(number, (*before, *opening), sampling, {0: ()}, images)
        prefill = "" if before else split_prefill(prompt.messages)[1]
        return Prepared(generation, (), opening, prefill, is_turn=True, tools=prompt.tools)

    def _going_on(self, prepared: Prepared, starts: Starts) -> Prepared:
        sampling = prepared.generation.sampling
        stops = StopTexts(sampling.stop, self._engine.detokenize)
        ended: list[Ended] = []
        for index, start in starts.items():
            has_stopped = start and start[-1] in self._engine.stop_token_ids
            if has_stopped or stops.find_end(start, 0) is not None:
                ended.append(Ended(index, "stop"))
            elif len(start) >= sampling.max_tokens:
                ended.append(Ended(index, "length"))
        left = {i: start for i, start in starts.items() if i not in {one.index for one in ended}}
        return replace(prepared, generation=replace(prepared.generation, starts=left), ended=ended)
