"""How one prompt becomes a group of episodes, whatever fails on the way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from services.controller.episodes.episode import (
    MARGIN_SECONDS,
    EnvironmentFault,
    Episode,
    EpisodePlayer,
)
from services.controller.episodes.room import EnvironmentRoom
from services.controller.episodes.tokens import TokenSequence, shared_opening
from services.controller.groups import GroupMaker, OnIssue, PromptSkipped
from trimaran.clients import EnvironmentClient
from trimaran.config import RunConfig
from trimaran.data.images.processor import image_token
from trimaran.data.prompts import without_images
from trimaran.errors import StaleEpochError, TrimaranError, UnavailableError, first_error
from trimaran.ledger.records import Reissue
from trimaran.ledger.retries import patiently
from trimaran.types import Completion, Group, Opening, Prompt, Sampling

logger = logging.getLogger(__name__)

OnRetry = Callable[[int, int, int, Reissue], None]


class EpisodeMaker:
    """Plays a prompt's episodes, side by side, until each has ended or is faulted.

    It stands in the place of the `GroupMaker` with which its episodes make their turns.

    Example:
        maker = EpisodeMaker(turns, EnvironmentRoom([client], 64), config, on_retry=print)
        group = await maker.generate(17, prompts[17], sampling)
        group.completions_G[0].turns
    """

    def __init__(
        self, turns: GroupMaker, room: EnvironmentRoom, config: RunConfig, on_retry: OnRetry
    ) -> None:
        """`on_retry(number, attempt, index, reissue)`: a turn of an episode is made again, or all of it."""
        assert config.environment is not None
        self._section, self._room, self._on_retry = config.environment, room, on_retry
        self._player = EpisodePlayer(turns, self._section)
        self._image_token = image_token(config.model.path)
        self._max_attempts, self._patience = config.run.max_attempts, config.outage_timeout

    async def generate(
        self,
        number: int,
        prompt: Prompt,
        sampling: Sampling,
        on_issue: OnIssue = lambda attempt, reissue: None,
        first_attempt: int = 1,
        reissue: Reissue | None = None,
    ) -> Group:
        """As `GroupMaker.generate`. An episode whose environment fails too often is faulted: its completion has
        no tokens and says why. Raises PromptSkipped."""
        on_issue(first_attempt, reissue)
        try:
            async with asyncio.TaskGroup() as tasks:
                playing = [
                    tasks.create_task(self._episode(number, first_attempt, index, prompt, sampling))
                    for index in range(sampling.num_samples)
                ]
        except ExceptionGroup as errors:
            raise first_error(errors) from None
        return _group(
            *(number, first_attempt, prompt, [one.result() for one in playing]),
            *(self._section.reward, self._image_token),
        )

    async def _episode(
        self, number: int, attempt: int, index: int, prompt: Prompt, sampling: Sampling
    ) -> Episode | str:
        """Or why it is faulted."""

        def on_retry(reissue: Reissue) -> None:
            self._on_retry(number, attempt, index, reissue)

        avoid, fault = set[int](), ""
        for number_of_try in range(1, self._max_attempts + 1):
            name = f"{number}.{attempt}.{index}.{number_of_try}"
            async with self._room.place(avoid) as (process, environment):
                try:
                    opening = await self._open(environment, name, prompt, sampling.seed)
                    return await self._player.play(
                        *(number, index, name, prompt, sampling, environment, opening, on_retry)
                    )
                except EnvironmentFault as error:
                    fault = f"environment-{process}: {error}"
                    avoid.add(process)
                finally:
                    with suppress(TrimaranError):  # it ends by itself where it is not asked for
                        await environment.close_episode(name)
            logger.warning("group %d, episode %d: %s", number, index, fault)
            if number_of_try < self._max_attempts:
                on_retry(Reissue(fault))
        return f"failed {self._max_attempts} times; the last: {fault}"

    async def _open(
        self, environment: EnvironmentClient, name: str, prompt: Prompt, seed: int
    ) -> Opening:
        """Waits for a service that is started again. Raises UnavailableError where it stays away, and
        EnvironmentFault."""
        timeout = self._section.timeout + MARGIN_SECONDS

        async def ask() -> Opening:
            try:
                return await environment.open(name, without_images(prompt), seed, timeout)
            except (StaleEpochError, UnavailableError):
                raise
            except TrimaranError as error:
                raise EnvironmentFault(str(error)) from None

        return await patiently(ask, self._patience, "environment")


def _group(
    number: int,
    attempt: int,
    prompt: Prompt,
    played: Sequence[Episode | str],
    rule: str,
    image_token: int | None,
) -> Group:
    """The sequences of all episodes stand behind the tokens that they begin with alike. Raises PromptSkipped where
    these lack an image."""
    episodes = [one for one in played if isinstance(one, Episode)]
    num_shared = shared_opening([one for episode in episodes for one in episode.sequences])
    first = episodes[0] if episodes else None
    opening = first.sequences[0] if first else TokenSequence()
    if image_token in opening.all_ids[num_shared : opening.num_opening]:
        raise PromptSkipped(
            "not all sequences of its episodes begin with its images, which are learned from once for all of"
            " them; let the environment open each episode of a group alike, and set environment.history=exact"
        )
    completions_G = tuple(
        _completion(one, num_shared, rule)
        if isinstance(one, Episode)
        else Completion((), (), "", "fault", (), fault=one)
        for one in played
    )
    return Group(
        *(number, attempt, first.prompt if first else prompt),
        opening.all_ids[:num_shared],
        completions_G,
        image_digest=_image_digest(episodes),
        prompt_experts=opening.experts[: opening.expert_bytes(num_shared)],
    )


def _image_digest(episodes: Sequence[Episode]) -> str:
    """Raises PromptSkipped where replicas have seen different pixels: one step cannot learn from both."""
    digests = {digest for one in episodes for digest in one.image_digests}
    if len(digests) > 1:
        raise PromptSkipped(
            "two replicas make different pixels of its images; install the same version of transformers and"
            " the same preprocessor_config.json for both"
        )
    return next(iter(digests), "")


def _completion(episode: Episode, num_shared: int, rule: str) -> Completion:
    """The sequence of its last turn is its own, the others are its branches."""
    own = episode.turns[-1].sequence
    others = [n for n in range(len(episode.sequences)) if n != own]
    places = {n: place for place, n in enumerate([own, *others])}
    tokens = episode.sequences[own].behind(num_shared)
    return Completion(
        token_ids_T=tokens.token_ids_T,
        logprobs_S=tokens.logprobs_S,
        text=episode.turns[-1].message.text,
        finish_reason=episode.finish_reason,
        segments=tokens.segments,
        experts=tokens.experts,
        turns=tuple(replace(one, sequence=places[one.sequence]) for one in episode.turns),
        branches=tuple(episode.sequences[n].behind(num_shared) for n in others),
        reward=episode.reward(rule),
    )


CompletionMaker = GroupMaker | EpisodeMaker
"""What makes a group of a prompt: answers, or episodes where the run has an environment."""
