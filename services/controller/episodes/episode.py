"""One episode: the policy and an environment take turns until one of them, or a bound, ends it.

Open ─▶ messages ─▶ turn: given, sampled tokens ─▶ message ─▶ Step ─▶ messages, reward, end
          ▲                                                       │
          └───────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from services.controller.episodes.tokens import TokenSequence
from services.controller.groups import GroupMaker, MadeTurn, PromptSkipped, sampling_seed
from trimaran.clients import EnvironmentClient
from trimaran.config import EnvironmentSection
from trimaran.data.prompts import give_images
from trimaran.errors import PromptTooLongError, StaleEpochError, TrimaranError
from trimaran.ledger.records import Reissue
from trimaran.types import (
    IMAGE_PLACE,
    Message,
    Opening,
    Prefix,
    Prompt,
    Reply,
    Sampling,
    Tool,
    Turn,
    Usage,
    images_in,
)

MARGIN_SECONDS = 10.0
"""The environment service's own deadline ends a step first, so that its error says what happened."""


class EnvironmentFault(Exception):
    """The environment of an episode failed by a fault of ours; the text is the cause."""


@dataclass(slots=True)
class _Thread:
    """One conversation of an episode, as the environment counts them."""

    messages: list[Message]
    tools: tuple[Tool, ...]
    pending: tuple[Message, ...]
    """Those that the policy has not seen."""
    sequence: int | None = None
    """Where its tokens stand now; None before its first turn."""


@dataclass(slots=True)
class Episode:
    """What has come of an episode so far."""

    prompt: Prompt
    """The row, with the messages and tools with which the environment has opened."""
    sequences: list[TokenSequence] = field(default_factory=list[TokenSequence])
    turns: list[Turn] = field(default_factory=list[Turn])
    image_digests: set[str] = field(default_factory=set[str])
    """What its replicas made of the prompt's images; "" without images."""
    finish_reason: str = ""

    def usage(self, made: MadeTurn, thread: _Thread) -> Usage:
        """Of the turn that was made last, in its conversation."""
        assert thread.sequence is not None
        own = len(made.completion.token_ids_T)
        return Usage(self.sequences[thread.sequence].num_tokens - own, own)

    def reward(self, rule: str) -> float | None:
        """`rule`: `environment.reward`."""
        rewards = [turn.reward for turn in self.turns if turn.reward is not None]
        if not rewards:
            return None
        return sum(rewards) if rule == "sum" else rewards[-1]


class EpisodePlayer:
    """Plays episodes of one run.

    Example:
        player = EpisodePlayer(maker, config.environment)
        episode = await player.play(17, 0, "17.1.0", prompt, sampling, client, on_retry=print)
        episode.finish_reason  # "stop", "length" or "turns"
    """

    def __init__(self, maker: GroupMaker, section: EnvironmentSection) -> None:
        self._maker, self._section = maker, section
        self._timeout = section.timeout + MARGIN_SECONDS

    async def play(
        self,
        number: int,
        index: int,
        name: str,
        prompt: Prompt,
        sampling: Sampling,
        environment: EnvironmentClient,
        opening: Opening,
        on_retry: Callable[[Reissue], None],
    ) -> Episode:
        """An episode that is open, to its end. `name`: the environment's for it. `index`: its place in group
        `number`.

        Raises EnvironmentFault, and PromptSkipped where no turn can be made.
        """
        prompt = replace(
            prompt,
            messages=_with_images(opening.messages or prompt.messages, images_in(prompt.messages)),
            # A program's requests alone say what there is.
            tools=opening.tools if self._section.agent else opening.tools or prompt.tools,
        )
        episode, replica, most = Episode(prompt), "", opening.max_tokens
        threads = [_Thread([], prompt.tools, prompt.messages)]
        thread = threads[0]
        for turn in range(1, self._section.max_turns + 1):
            seed = sampling_seed(sampling.seed, index, turn)
            max_tokens = min(most or sampling.max_tokens, sampling.max_tokens)
            own = replace(
                sampling,
                num_samples=1,
                seed=seed,
                stop=self._section.stop,
                max_tokens=max_tokens,
            )
            try:
                made = await self._turn(number, episode, thread, own, replica, on_retry)
            except PromptTooLongError as error:
                if not episode.turns:
                    raise PromptSkipped(str(error)) from None
                episode.finish_reason = "length"
                return episode
            replica = made.replica
            began = time.monotonic()
            finish_reason = made.completion.finish_reason
            try:
                reply = await environment.step(
                    *(name, turn, made.message, finish_reason, self._timeout),
                    usage=episode.usage(made, thread),
                )
            except StaleEpochError:
                raise
            except TrimaranError as error:
                raise EnvironmentFault(f"turn {turn}: {error}") from None
            episode.turns.append(_turn(episode, made, reply, thread, time.monotonic() - began))
            if reply.done:
                episode.finish_reason = finish_reason
                return episode
            thread, most = _next_thread(threads, reply), reply.max_tokens
        episode.finish_reason = "turns"
        return episode

    async def _turn(
        self,
        number: int,
        episode: Episode,
        thread: _Thread,
        sampling: Sampling,
        replica: str,
        on_retry: Callable[[Reissue], None],
    ) -> MadeTurn:
        """Makes a turn, and appends its tokens to the sequence to which they belong."""
        before = None if thread.sequence is None else episode.sequences[thread.sequence]
        thread.messages += thread.pending
        is_exact = before is not None and self._section.history == "exact"
        messages = thread.pending if is_exact else tuple(thread.messages)
        made = await self._maker.turn(
            number,
            replace(episode.prompt, messages=messages, tools=thread.tools),
            sampling,
            Prefix(before.all_ids, images_in(thread.messages)) if before and is_exact else Prefix(),
            replica,
            on_retry,
        )
        given = made.group.prompt_token_ids
        more: Sequence[int] | None = given
        if before and not is_exact:
            more = before.continued_by(given)
        if before is None or more is None:
            thread.sequence = len(episode.sequences)
            before, more = TokenSequence(), given
            episode.sequences.append(before)
        if episode.turns:
            episode.turns[-1] = replace(episode.turns[-1], num_given=len(more))
        before.give(more)
        before.sample(made.completion)
        before.experts = made.group.prompt_experts + made.completion.experts
        episode.image_digests.add(made.group.image_digest)
        thread.messages.append(made.message)
        return made


def _with_images(messages: Sequence[Message], images: Sequence[bytes]) -> tuple[Message, ...]:
    """The messages with which an environment opens are texts: each image goes back to its place there. Raises
    PromptSkipped where they have other places than images."""
    num_places = sum(message.text.count(IMAGE_PLACE) for message in messages)
    if images and num_places != len(images):
        raise PromptSkipped(
            f"the environment opens with messages in which {IMAGE_PLACE} stands {num_places} times, and the row has"
            f" {len(images)} images; keep {IMAGE_PLACE} where each image belongs, or open with the row's messages"
            " (reset returns None)"
        )
    return give_images(messages, images)


def _turn(episode: Episode, made: MadeTurn, reply: Reply, thread: _Thread, seconds: float) -> Turn:
    """Its `num_given` is known at the next turn."""
    assert thread.sequence is not None
    num_sampled = len(made.completion.token_ids_T)
    num_before = episode.sequences[thread.sequence].num_tokens - num_sampled
    num_before -= episode.turns[-1].num_given if episode.turns else num_before
    return Turn(
        message=made.message,
        num_sampled=num_sampled,
        replies=reply.messages,
        finish_reason=made.completion.finish_reason,
        reward=reply.reward,
        seconds=seconds,
        num_calls=reply.num_calls,
        num_failures=reply.num_failures,
        sequence=thread.sequence,
        num_before=num_before,
        num_cached=min(made.num_cached, num_before),
    )


def _next_thread(threads: list[_Thread], reply: Reply) -> _Thread:
    """Where the environment goes on. Raises EnvironmentFault for a reply that leads nowhere."""
    if not reply.messages:
        raise EnvironmentFault(
            "the environment answered neither messages nor the end of the episode"
        )
    if any(message.images for message in reply.messages):
        raise EnvironmentFault("the environment answered an image; messages of episodes are texts")
    if reply.sequence > len(threads):
        raise EnvironmentFault(
            f"the environment went on with sequence {reply.sequence} of {len(threads)}"
        )
    if reply.sequence == len(threads):
        threads.append(_Thread([], reply.tools, reply.messages))
    else:
        threads[reply.sequence].pending = reply.messages
    return threads[reply.sequence]
