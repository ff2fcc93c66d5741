"""Pauses the run while too many answers are faulted: could not be scored because of a fault of ours.

    running ──▶ share of the last answers above the limit ──▶ paused
       ▲                                                        │  one waiting group after another is
       └── a probe comes back healthy, the window is cleared ◀──┘  scored again: the probe

No group passes while the run is paused. One after another is scored again, as a *probe*: once that
goes well, the pause ends. When less than half of a probe is scored, its prompt may be to blame. Then
the last group that was scored well is scored once more and decides in its place. Rewards depend on
nothing but the group, so what could be scored before can be scored again unless the fault is ours.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from trimaran.config import RunConfig
from trimaran.errors import TrimaranError
from trimaran.ledger.retries import growing_wait
from trimaran.types import Faulted, Group, Verdict

SMALLEST_WINDOW = 64
ENOUGH_ANSWERS = 16
"""With fewer the share is not judged, unless a step has no more."""

Verdicts = tuple[Verdict, ...]
Judge = Callable[[Group], Awaitable[Verdicts]]
Tell = Callable[[str, Mapping[str, float]], None]


class PausedTooLongError(TrimaranError):
    """The run was paused for `reward.pause_timeout` seconds; it can be resumed."""


def num_faulted(verdicts: Sequence[Verdict]) -> int:
    return sum(isinstance(verdict, Faulted) for verdict in verdicts)


def half_is_scored(verdicts_G: Sequence[Verdict]) -> bool:
    return 2 * num_faulted(verdicts_G) <= len(verdicts_G)


def most_frequent_fault(verdicts: Sequence[Verdict]) -> str:
    faults = Counter(verdict.fault for verdict in verdicts if isinstance(verdict, Faulted))
    return faults.most_common(1)[0][0]


class Window:
    """The verdicts of the last `size` answers, by whole groups.

    A group that is scored again counts once, with its last verdicts. With fewer than `enough`
    answers the share is not judged.

    Example:
        window = Window(size=64, enough=16)
        window.add(group, verdicts_G)
        window.is_beyond(0.2)  # more than a fifth is faulted, in at least two groups
    """

    def __init__(self, size: int, enough: int) -> None:
        self._size, self._enough = size, enough
        self._groups: dict[tuple[int, int], Verdicts] = {}
        """Oldest first."""
        # Counted as they come and go: a window may hold thousands of answers.
        self._num_answers = self._num_faulted = self._num_groups_with_faults = 0

    def add(self, group: Group, verdicts_G: Verdicts) -> None:
        key = (group.number, group.attempt)
        self._drop(key)
        self._groups[key] = verdicts_G
        self._count(verdicts_G, 1)
        while (
            self._num_answers - len(self._groups[oldest := next(iter(self._groups))]) >= self._size
        ):
            self._drop(oldest)

    def clear(self) -> None:
        for key in tuple(self._groups):
            self._drop(key)

    def _drop(self, key: tuple[int, int]) -> None:
        self._count(self._groups.pop(key, ()), -1)

    def _count(self, verdicts_G: Verdicts, sign: int) -> None:
        faulted = num_faulted(verdicts_G)
        self._num_answers += sign * len(verdicts_G)
        self._num_faulted += sign * faulted
        self._num_groups_with_faults += sign * (faulted > 0)

    @property
    def answers(self) -> list[Verdict]:
        return [verdict for verdicts_G in self._groups.values() for verdict in verdicts_G]

    @property
    def share(self) -> float:
        return self._num_faulted / self._num_answers

    def is_beyond(self, limit: float) -> bool:
        """Never because of one group alone: its prompt may be to blame."""
        is_known = self._num_answers >= self._enough and self._num_groups_with_faults > 1
        return is_known and self.share > limit


@dataclass(slots=True)
class _Pause:
    reason: str
    deadline: float
    num_probes: int = 0


class FaultedGate:
    """Every group's verdicts pass here, many groups at a time; they wait while the run is paused.

    Example:
        gate = FaultedGate(config, on_pause=reporter.paused, on_unpause=reporter.unpaused)
        verdicts_G = await gate.verdicts(group, judge)  # judge(group) calls the reward service
    """

    def __init__(
        self,
        config: RunConfig,
        on_pause: Tell,
        on_unpause: Tell,
        wait: Callable[[int], float] = growing_wait,
    ) -> None:
        """`on_pause` and `on_unpause` are called once a pause, with words and numbers.

        `wait`: seconds before a probe, by how many there have been in the pause, this one included.
        """
        answers_per_step = config.run.groups_per_step * config.rollout.group_size
        self._window = Window(
            max(answers_per_step, SMALLEST_WINDOW), min(answers_per_step, ENOUGH_ANSWERS)
        )
        self._limit = config.reward.max_faulted_share
        self._timeout = config.reward.pause_timeout
        self._on_pause, self._on_unpause, self._wait = on_pause, on_unpause, wait
        self._pause: _Pause | None = None
        self._turn = asyncio.Lock()  # fair: the groups that wait probe in turn
        self._well_scored: Group | None = None
        self.paused = asyncio.Event()

    async def verdicts(self, group: Group, judge: Judge) -> Verdicts:
        """Returns those that were given while the run was not paused.

        Raises what `judge` raises, and PausedTooLongError after `reward.pause_timeout`.
        """
        while True:
            if not self._pause:
                verdicts_G = await judge(group)
                # Others may have begun a pause meanwhile: these verdicts came too late to pass.
                if not self._pause:
                    self._note(group, verdicts_G)
                if not self._pause:
                    return verdicts_G
            async with self._turn:
                if self._pause and (verdicts_G := await self._probe(self._pause, group, judge)):
                    return verdicts_G

    def _note(self, group: Group, verdicts_G: Verdicts) -> None:
        self._window.add(group, verdicts_G)
        if self._is_healthy(verdicts_G):
            self._well_scored = group
        if self._window.is_beyond(self._limit):
            self._begin_pause()

    async def _probe(self, pause: _Pause, group: Group, judge: Judge) -> Verdicts | None:
        """The group's verdicts when they end the pause, else None."""
        limit = asyncio.timeout_at(pause.deadline)
        try:
            async with limit:
                pause.num_probes += 1
                await asyncio.sleep(self._wait(pause.num_probes))
                verdicts_G = await judge(group)
                well = self._is_healthy(verdicts_G) or await self._is_to_blame(verdicts_G, judge)
        except TimeoutError:
            if not limit.expired():
                raise  # the judge's own
            raise PausedTooLongError(
                f"the run was paused for {self._timeout:g} s (reward.pause_timeout):"
                f" {pause.reason}; fix that, then resume the run"
            ) from None
        if not well:
            return None
        self._end_pause()
        return verdicts_G

    def _is_healthy(self, verdicts_G: Verdicts) -> bool:
        return num_faulted(verdicts_G) <= self._limit * len(verdicts_G)

    async def _is_to_blame(self, verdicts_G: Verdicts, judge: Judge) -> bool:
        """Whether a group of which no use comes is alone with that."""
        if half_is_scored(verdicts_G) or not self._well_scored:
            return False
        return self._is_healthy(await judge(self._well_scored))

    def _begin_pause(self) -> None:
        window = self._window.answers
        reason = (
            f"{num_faulted(window)} of the last {len(window)} answers could not be scored"
            f" ({100 * self._window.share:.3g}%; reward.max_faulted_share is {100 * self._limit:.3g}%);"
            f" most often: {most_frequent_fault(window)}"
        )
        self._pause = _Pause(reason, asyncio.get_running_loop().time() + self._timeout)
        self.paused.set()
        self._on_pause(
            f"{reason}. Fix the cause: the run goes on by itself once answers can be scored, and"
            f" fails after {self._timeout:g} s (logs/reward.log in the run folder says more)",
            {"share": self._window.share, "window": float(len(window))},
        )

    def _end_pause(self) -> None:
        assert self._pause
        num_probes, self._pause = self._pause.num_probes, None
        self._window.clear()
        self.paused.clear()
        self._on_unpause("answers can be scored again", {"probes": float(num_probes)})
