"""How one prompt becomes a group of proven completions, whatever fails on the way."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

from services.controller.proofs import ProofCheck
from services.controller.router import DrainedError, ReplicaLease, Router
from trimaran.clients import GroupAssembly
from trimaran.config import RunConfig
from trimaran.errors import (
    BehindError,
    DeadlineError,
    PromptTooLongError,
    StaleEpochError,
    TrimaranError,
    UnavailableError,
    UnprovenError,
)
from trimaran.ledger.records import Reissue
from trimaran.telemetry import scope, tracing
from trimaran.types import Completion, Group, Message, Prefix, Prompt, Sampling

logger = logging.getLogger(__name__)

UNREACHABLE = (UnavailableError, DeadlineError, BehindError)
REPLICA_FAULTS = (*UNREACHABLE, UnprovenError)


class PromptSkipped(Exception):
    """No group comes of this prompt; the text is the reason."""

    def __init__(self, reason: str, filtered: bool = False) -> None:
        super().__init__(reason)
        self.filtered = filtered
        """It was generated, but less than half of it could be scored."""


def sampling_seed(run_seed: int, *place: object) -> int:
    """63 bits; the same for every attempt, so that a reissued group can be the same group."""
    text = ":".join(map(str, (run_seed, *place)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


OnIssue = Callable[[int, Reissue | None], None]


@dataclass(frozen=True, slots=True)
class MadeTurn:
    """One turn of an episode, as a replica has made it."""

    group: Group
    """A group of its own; `prompt_token_ids` are what the messages became behind the prefix."""
    completion: Completion
    message: Message
    """What the completion says."""
    replica: str
    num_cached: int = 0
    """Tokens before it that the replica had in its prefix cache."""


@dataclass(slots=True)
class _Tries:
    """When has a prompt failed often enough?

    A replica may die under a group that is not to blame, so the group's first replica fault is
    free. Each later one, and each refusal, is a strike.
    """

    max_attempts: int
    strikes: int = 0
    num_replica_faults: int = 0
    replicas: set[str] = field(default_factory=set)

    @property
    def is_suspect(self) -> bool:
        return self.num_replica_faults > 0 and self.strikes >= self.max_attempts - 1

    def count(self, error: TrimaranError, replica: str) -> None:
        """Raises PromptSkipped at the last strike."""
        self.replicas.add(replica)
        if isinstance(error, REPLICA_FAULTS):
            self.num_replica_faults += 1
            self.strikes += self.num_replica_faults > 1
        else:
            self.strikes += 1
        if self.strikes >= self.max_attempts:
            replicas = ", ".join(sorted(self.replicas))
            raise PromptSkipped(f"failed {self.strikes} times, on {replicas}; the last: {error}")


class GroupMaker:
    """Asks replicas for a prompt's completions until a group is whole and proven.

    Example:
        maker = GroupMaker(router, ProofCheck(weight_sync, 60.0), config)
        sampling = Sampling(temperature=1.0, max_tokens=24, num_samples=8)
        group = await maker.generate(17, prompts[17], sampling)
    """

    def __init__(self, router: Router, prover: ProofCheck, config: RunConfig) -> None:
        self._router, self._prover = router, prover
        self._max_attempts = config.run.max_attempts
        self._idle_timeout = config.rollout.idle_timeout
        self._deterministic = config.run.deterministic
        # Suspects go one at a time: a replica that dies again then names the culprit.
        self._suspects = asyncio.Lock()

    async def generate(
        self,
        number: int,
        prompt: Prompt,
        sampling: Sampling,
        on_issue: OnIssue = lambda attempt, reissue: None,
        first_attempt: int = 1,
        reissue: Reissue | None = None,
    ) -> Group:
        """Try one replica after another. Raises PromptSkipped when the prompt fails too often.

        After a failure, or when its replica is drained, which is no failure, the next replica goes on
        from the tokens that have arrived. A group with
        unproven tokens is reissued from scratch, and so is every group of a deterministic run: tokens
        that follow given ones are computed in another order, and round otherwise. `on_issue(attempt, reissue)` is called before each
        attempt; its `reissue` is None for the group's first attempt, and else says why the group is
        reissued. A group that comes here for another attempt already brings `first_attempt` and
        `reissue` with it.
        """
        try:
            group, _, _ = await self._generate(
                number, prompt, sampling, on_issue, first_attempt, reissue
            )
        except PromptTooLongError as error:
            raise PromptSkipped(str(error)) from None
        return group

    async def turn(
        self,
        number: int,
        prompt: Prompt,
        sampling: Sampling,
        prefix: Prefix,
        prefer: str,
        on_retry: Callable[[Reissue], None],
    ) -> MadeTurn:
        """The next turn of an episode of group `number`, in the same way. `prompt.messages` follow what
        `prefix` has. `prefer`: the replica that has computed that. `on_retry` hears
        why a further replica is asked.

        Raises PromptSkipped as `generate` does, and PromptTooLongError where no room is left.
        """

        def on_issue(attempt: int, reissue: Reissue | None) -> None:
            if reissue:
                on_retry(reissue)

        group, assembly, replica = await self._generate(
            number, prompt, sampling, on_issue, 1, None, prefix, prefer
        )
        (completion,) = group.completions_G
        assert assembly.message, "rollout parses every turn"
        return MadeTurn(group, completion, assembly.message, replica, assembly.cached_tokens)

    async def _generate(
        self,
        number: int,
        prompt: Prompt,
        sampling: Sampling,
        on_issue: OnIssue,
        first_attempt: int,
        reissue: Reissue | None,
        prefix: Prefix | None = None,
        prefer: str = "",
    ) -> tuple[Group, GroupAssembly, str]:
        """The group, what it was put together from, and the last replica's name."""
        assembly = GroupAssembly(sampling.num_samples)
        tries = _Tries(self._max_attempts)
        for attempt in itertools.count(first_attempt):
            if self._deterministic:
                assembly = GroupAssembly(sampling.num_samples)
            async with (
                self._suspects if tries.is_suspect else nullcontext(),
                self._router.lease(sampling.num_samples, tries.replicas, prefer) as lease,
            ):
                if reissue:
                    logger.warning(
                        "group %d is reissued, attempt %d: %s", number, attempt, reissue.cause
                    )
                on_issue(attempt, reissue)
                try:
                    group = await self._attempt(
                        number, attempt, prompt, sampling, lease, assembly, prefix
                    )
                except (StaleEpochError, PromptTooLongError):
                    raise
                except DrainedError as error:
                    reissue = Reissue(str(error), lease.name)
                    continue
                except TrimaranError as error:
                    tries.count(error, lease.name)
                    reissue = Reissue(f"{lease.name}: {error}", lease.name)
                    continue
            unproven = await self._prover.find_unproven(group)
            if unproven is None:
                return group, assembly, lease.name
            if unproven.version == lease.live:
                with suppress(DrainedError):  # it is gone all the same
                    await self._router.report(unproven.name, f"group {number}: {unproven.reason}")
            tries.count(UnprovenError(str(unproven)), unproven.replica)
            reissue = unproven.reissue
            assembly = GroupAssembly(sampling.num_samples)
        raise AssertionError("unreachable")

    async def _attempt(
        self,
        number: int,
        attempt: int,
        prompt: Prompt,
        sampling: Sampling,
        lease: ReplicaLease,
        assembly: GroupAssembly,
        prefix: Prefix | None,
    ) -> Group:
        """Raises what the replica raises, and DrainedError when it has left in order meanwhile."""
        call = lease.client.generate(
            number, attempt, prompt, sampling, lease.live, assembly, self._idle_timeout, prefix
        )
        try:
            with (
                scope.about(attempt=attempt),
                tracing.span("attempt", replica=lease.name, version=str(lease.live)),
            ):
                return await lease.unless_lost(call)
        except DrainedError:
            raise
        except UNREACHABLE as error:
            await self._router.report(lease.name, f"group {number}: {error}")
            raise
