"""The episodes that one process of the service holds, by name.

    Open ──▶ waits for room ──▶ environment.open
    Step ──▶ the next turn: environment.step; the last one again: its answer
    Close, another Open, silence, a newer controller ──▶ environment.close

An episode whose environment fails, or takes too long, is ended at once and forgotten: who asks for it again
hears that it is not there, and makes it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from services.environment.environment import EnvironmentHost, EpisodeEnvironment, TakesUsage
from trimaran.config import EnvironmentSection
from trimaran.errors import (
    DeadlineError,
    InternalError,
    NotFoundError,
    OutOfOrderError,
    UnavailableError,
)
from trimaran.types import Message, Opening, Prompt, Reply, Usage

OPEN_SECONDS = 60.0
"""Beyond environment.timeout, for what an environment starts before its first answer."""
ROOM_SECONDS = 60.0
"""For another episode to end, where all places are taken."""
CLOSE_SECONDS = 10.0
"""For an environment to end what it has started; a caller that waits for it no longer goes on."""
IDLE_SECONDS = 3600.0
"""Without a call, after which an episode has lost its controller. A turn of the policy takes less."""

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class OpenEpisode:
    """One episode: its environment, and the last turn with its answer."""

    def __init__(
        self, name: str, epoch: int, environment: EpisodeEnvironment, timeout: float
    ) -> None:
        self.name, self.epoch, self.timeout = name, epoch, timeout
        self.environment = environment
        self.turn = 0
        self.work: asyncio.Task[Any] | None = None
        """The call of the environment that is under way, or the last one."""
        self.asked_at = asyncio.get_running_loop().time()

    def begin(self, call: Coroutine[Any, Any, Result], seconds: float) -> asyncio.Task[Result]:
        """The call, as a task that goes on when its caller has gone: it may ask again."""
        task = asyncio.create_task(self._within(call, seconds))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.work = task
        return task

    async def _within(self, call: Coroutine[Any, Any, Result], seconds: float) -> Result:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await call
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DeadlineError(
                f"the environment of episode {self.name} has not answered for {seconds:g} s; see why it"
                " hangs, or raise environment.timeout"
            ) from error

    async def end(self) -> None:
        """Raises nothing: an environment that cannot close is logged and left."""
        if self.work and not self.work.done():
            self.work.cancel()
            await asyncio.wait({self.work}, timeout=CLOSE_SECONDS)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.environment.close()
        except Exception as error:
            logger.warning("episode %s: its environment does not close: %r", self.name, error)


class OpenEpisodes:
    """Example:
    async with OpenEpisodes(host, section) as episodes:
        opening = await episodes.open("17.1.0", prompt, seed=7, epoch=1)
        reply = await episodes.step("17.1.0", 1, Message("assistant", "4"), "stop", epoch=1)
        await episodes.close("17.1.0")
    """

    def __init__(
        self,
        host: EnvironmentHost,
        section: EnvironmentSection,
        *,
        room_seconds: float = ROOM_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._host, self._timeout, self._most = host, section.timeout, section.max_episodes
        self._room_seconds, self._idle_seconds = room_seconds, idle_seconds
        self._known: dict[str, OpenEpisode] = {}
        self._room = asyncio.Semaphore(section.max_episodes)
        self._ending = set[asyncio.Task[None]]()
        self._epoch = 0
        self._reaping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> OpenEpisodes:
        self._reaping = asyncio.create_task(self._reap())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reaping:
            self._reaping.cancel()
        for episode in tuple(self._known.values()):
            self._forget(episode)
        if self._ending:
            await asyncio.wait(self._ending, timeout=2 * CLOSE_SECONDS)

    @property
    def num_open(self) -> int:
        return len(self._known)

    async def open(self, name: str, prompt: Prompt, seed: int, epoch: int) -> Opening:
        """Ends one of the same name. Raises UnavailableError where there is no room in time, and what
        the environment raises."""
        self._meet(epoch)
        if former := self._known.get(name):
            await self._ended(former)
        await self._take_room()
        try:
            episode = OpenEpisode(name, epoch, self._host.create(name), self._timeout)
        except BaseException:
            self._room.release()
            raise
        if rival := self._known.get(name):  # asked for twice while both waited
            self._forget(rival)
        self._known[name] = episode
        seconds = self._timeout + OPEN_SECONDS
        begun = episode.begin(episode.environment.open(prompt, seed), seconds)
        try:
            return await self._answer(episode, begun)
        except asyncio.CancelledError:  # who asked does not know whether it is open
            self._forget(episode)
            raise

    async def step(
        self,
        name: str,
        turn: int,
        message: Message,
        finish_reason: str,
        epoch: int,
        usage: Usage | None = None,
    ) -> Reply:
        """The last turn again has the same answer. Raises NotFoundError, OutOfOrderError, and what the
        environment raises; then the episode is over."""
        self._meet(epoch)
        episode = self._find(name)
        if turn == episode.turn + 1:
            if episode.work and not episode.work.done():
                raise OutOfOrderError(f"episode {name}: turn {turn} before the one before it ended")
            episode.turn = turn
            if usage and isinstance(episode.environment, TakesUsage):
                episode.environment.usage = usage
            step = episode.environment.step(message, finish_reason)
            episode.begin(step, self._timeout)
        elif turn != episode.turn or turn < 1:
            raise OutOfOrderError(f"episode {name}: turn {turn} after turn {episode.turn}")
        assert episode.work
        return await self._answer(episode, episode.work)

    async def close(self, name: str) -> None:
        """Idempotent."""
        if episode := self._known.get(name):
            await self._ended(episode)

    def _find(self, name: str) -> OpenEpisode:
        if episode := self._known.get(name):
            episode.asked_at = asyncio.get_running_loop().time()
            return episode
        raise NotFoundError(
            f"episode {name} is not open here: it failed, was closed, or the service was started again"
        )

    async def _answer(self, episode: OpenEpisode, begun: asyncio.Task[Result]) -> Result:
        await asyncio.wait({begun})
        episode.asked_at = asyncio.get_running_loop().time()
        if begun.cancelled():
            raise UnavailableError(f"episode {episode.name} was closed meanwhile")
        if error := begun.exception():
            self._forget(episode)
            if isinstance(error, UnavailableError):
                # Who asks waits for a service that is away, and this one is not.
                raise InternalError(str(error)) from error
        return begun.result()

    def _meet(self, epoch: int) -> None:
        """The episodes of a controller that was replaced have no caller that asks for them; what it still asks
        itself, the server's fence refuses."""
        if epoch > self._epoch:
            self._epoch = epoch
            for episode in tuple(self._known.values()):
                self._forget(episode)

    async def _take_room(self) -> None:
        try:
            async with asyncio.timeout(self._room_seconds):
                await self._room.acquire()
        except TimeoutError:
            raise UnavailableError(
                f"all {self._most} episodes of this process of the environment service have been under way"
                f" for {self._room_seconds:g} s; raise environment.max_episodes or environment.replicas"
            ) from None

    def _forget(self, episode: OpenEpisode) -> asyncio.Task[None] | None:
        """Ends it in the background; the task, where it had not been forgotten before."""
        if self._known.get(episode.name) is not episode:
            return None
        del self._known[episode.name]
        ending = asyncio.create_task(episode.end())
        self._ending.add(ending)
        ending.add_done_callback(self._gone)
        return ending

    def _gone(self, ending: asyncio.Task[None]) -> None:
        self._ending.discard(ending)
        self._room.release()

    async def _ended(self, episode: OpenEpisode) -> None:
        if ending := self._forget(episode):
            await asyncio.shield(ending)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(self._idle_seconds / 4)
            oldest = asyncio.get_running_loop().time() - self._idle_seconds
            for episode in tuple(self._known.values()):
                if episode.asked_at < oldest and (episode.work is None or episode.work.done()):
                    logger.warning(
                        "episode %s: nothing has asked for it for %g s; it is closed",
                        *(episode.name, self._idle_seconds),
                    )
                    self._forget(episode)
