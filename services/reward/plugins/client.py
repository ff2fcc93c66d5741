"""Calls reward plugins over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack

from aiohttp import ThreadedResolver
from aiohttp.abc import AbstractResolver

from services.reward.allowed import Allowed
from services.reward.outcome import Outcome
from services.reward.plugins.exchange import open_session
from services.reward.plugins.guard import GuardedResolver
from services.reward.plugins.plugin import Plugin
from services.reward.plugins.sandbox_fusion import check_options
from services.reward.terms import PluginSpec
from trimaran.config import PluginSection
from trimaran.rewards import Sample


class PluginJudge:
    """One client for all plugins of a run.

    Example:
        spec = PluginSpec(PluginSection(url="http://127.0.0.1:8700"))
        async with PluginJudge([spec], Allowed.from_entries(["http://127.0.0.1:8700"])) as judge:
            outcomes = await judge.judge(spec, [Sample("7", answer="7")])
    """

    def __init__(
        self,
        specs: Sequence[PluginSpec],
        allowed: Allowed,
        resolver: AbstractResolver | None = None,
    ) -> None:
        """Raises InputError for a host that is not allowed and for options nobody takes."""
        self._sections = list(dict.fromkeys(spec.plugin for spec in specs))
        for section in self._sections:
            allowed.check_url(section.url, "plugin.url")
        for spec in specs:
            if spec.plugin.protocol == "sandbox_fusion":
                check_options(json.loads(spec.options_json), f"plugin {spec.plugin.url}: options")
        self._allowed, self._resolver = allowed, resolver
        self._plugins: dict[PluginSection, Plugin] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> PluginJudge:
        """Raises InputError for a token or certificates that cannot be used. A plugin that is not
        up yet is asked again later."""
        async with AsyncExitStack() as stack:
            resolver = GuardedResolver(self._resolver or ThreadedResolver(), self._allowed)
            session = await stack.enter_async_context(open_session(resolver))
            self._plugins = {section: Plugin(section, session) for section in self._sections}
            await asyncio.gather(*(plugin.start() for plugin in self._plugins.values()))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def judge(self, spec: PluginSpec, samples: Sequence[Sample]) -> tuple[Outcome, ...]:
        """In order. Raises nothing for a bad plugin: the outcome says it."""
        return await self._plugins[spec.plugin].judge(samples, json.loads(spec.options_json))
