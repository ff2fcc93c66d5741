"""One vLLM request as a stream: which of its tokens were made by which version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from services.rollout.engine import Chunk, Event
from services.rollout.turns.stop_texts import StopTexts
from trimaran.types import VersionId

EVERYTHING = 1 << 62


class VllmStream:
    """One vLLM request: where its tokens come from and which version made them."""

    def __init__(
        self,
        request_id: str,
        starts: dict[int, int],
        version: VersionId,
        prefix: Sequence[int] = (),
    ) -> None:
        """`starts`: completion index -> tokens that it begins with; in vLLM's order of samples. `prefix`:
        these tokens, of a completion that goes on."""
        self.request_id = request_id
        self.indices = list(starts)
        self.given = list(starts.values())
        self.collector: Any = None
        self.made = [0] * len(starts)
        """Tokens passed on, a sample."""
        self.open = set(range(len(starts)))
        self.marks: list[tuple[list[int], VersionId]] = [([EVERYTHING] * len(starts), version)]
        """Up to so many tokens a sample were made by that version; oldest first."""
        self._said = list(prefix)

    def num_tokens(self, sample: int) -> int:
        """The tokens of its completion: those that it began with, and those passed on."""
        return self.given[sample] + self.made[sample]

    def cut(self, stops: StopTexts, output: Any) -> bool:
        """Ends `output` where a stop text ends that began in the prefix: vLLM looks for one in its own tokens alone.
        Returns whether vLLM goes on with it, and must hear of it."""
        if not self.given[0]:
            return False
        first = len(self._said)
        self._said += output.token_ids
        end = stops.find_end(self._said, first)
        if end is None:
            return False
        goes_on = output.finish_reason is None
        output.token_ids = output.token_ids[: end - first]
        output.finish_reason, output.stop_reason = "stop", stops.texts[0]
        return goes_on

    def mark(self, made: dict[int, int], version: VersionId) -> None:
        """From here on `version` makes the tokens. `made`: of the samples that still run."""
        ends, _ = self.marks[-1]
        ends[:] = [made.get(sample, EVERYTHING) for sample in range(len(ends))]
        self.marks.append(([EVERYTHING] * len(ends), version))

    def chunks(self, sample: int, token_ids: list[int], logprobs: list[float]) -> Iterator[Chunk]:
        """The sample's next tokens, cut where the version changes."""
        for ends, version in self.marks:
            size = min(ends[sample] - self.made[sample], len(token_ids))
            if size <= 0:
                continue
            start = self.num_tokens(sample)
            yield Chunk(
                self.indices[sample],
                start,
                version,
                tuple(token_ids[:size]),
                tuple(logprobs[:size]),
            )
            self.made[sample] += size
            token_ids, logprobs = token_ids[size:], logprobs[size:]


async def merge(parts: list[AsyncGenerator[Event, None]]) -> AsyncGenerator[Event, None]:
    """Events of all parts as they come; the first error ends them all."""
    queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()

    async def pump(part: AsyncGenerator[Event, None]) -> None:
        try:
            async with aclosing(part):
                async for event in part:
                    queue.put_nowait(event)
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(pump(part)) for part in parts]
    try:
        running = len(tasks)
        while running:
            event = await queue.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                running -= 1
            else:
                yield event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
