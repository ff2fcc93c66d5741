"""Calls reward plugins over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from services.reward.allowed import Allowed
from services.reward.outcome import Outcome
from services.reward.terms import PluginSpec
from trimaran.rewards import Sample


class PluginJudge:
    """One client for all plugins of a run. Use it as `async with PluginJudge(…) as judge`."""

    def __init__(self, specs: Sequence[PluginSpec], allowed: Allowed) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> PluginJudge:
        raise NotImplementedError

    async def __aexit__(self, *_: object) -> None:
        raise NotImplementedError

    async def judge(self, spec: PluginSpec, samples: Sequence[Sample]) -> tuple[Outcome, ...]:
        """In order. Raises nothing for a bad plugin: the outcome says it."""
        raise NotImplementedError
