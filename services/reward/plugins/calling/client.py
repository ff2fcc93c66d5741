"""Calls reward plugins over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import aiohttp
from aiohttp.abc import AbstractResolver

from services.reward.outcome import Fault, Indigestible, Outcome, Value
from services.reward.plugins.calling.breaker import Breaker, CircuitOpenError
from services.reward.plugins.calling.protocols import MAX_INFO_BYTES, Ask, ask_trimaran
from services.reward.plugins.calling.sandbox_fusion import ask_sandbox, check_options
from services.reward.plugins.contract import Info
from services.reward.terms import PluginSpec
from trimaran.config import PluginSection
from trimaran.plugins.caller import OverloadedError, PluginCaller
from trimaran.plugins.exchange import open_session
from trimaran.plugins.forms import CallError, parse
from trimaran.plugins.guard import GuardedResolver
from trimaran.rewards import Sample
from trimaran.trust.allowed import Allowed

logger = logging.getLogger(__name__)

ASK: Mapping[str, Ask] = {
    "trimaran": ask_trimaran,
    "sandbox_fusion": ask_sandbox,
}
START_SECONDS = 5.0
"""How long a start waits for a plugin; one that is not up yet is asked again later."""
MAX_REASON, MAX_PART_NAME = 300, 80
"""Characters of a plugin's own words that are kept."""

Result = TypeVar("Result")


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
        """Raises InputError for a host that is not allowed and for options that are not taken."""
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
            resolver = GuardedResolver(self._resolver or aiohttp.ThreadedResolver(), self._allowed)
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


class Plugin:
    """One server: batches for it, and a circuit breaker before it.

    Raises InputError for a token variable or a certificate file that cannot be used.
    """

    def __init__(self, section: PluginSection, session: aiohttp.ClientSession) -> None:
        self._section = section
        self._ask = ASK[section.protocol]
        self._caller = PluginCaller(section, session)
        self._breaker = Breaker()
        self._info: Info | None = None

    async def start(self) -> None:
        """Learns what the plugin says of itself, if it is up."""
        if self._section.protocol != "trimaran":
            return
        try:
            await self._learn(self._deadline(min(START_SECONDS, self._section.timeout)))
        except (CallError, CircuitOpenError) as error:
            logger.warning(
                "%s: %s; it is asked again when there is something to score",
                *(self._caller.url, self._caller.said(error)),
            )

    async def judge(
        self, samples: Sequence[Sample], options: Mapping[str, Any]
    ) -> tuple[Outcome, ...]:
        """In order; every failure of the plugin is a Fault."""
        deadline = self._deadline(self._section.timeout)
        try:
            size = await self._batch_size(deadline)
        except (CallError, CircuitOpenError) as error:
            return self._faults(error, len(samples))
        async with asyncio.TaskGroup() as group:
            batches = [
                group.create_task(self._judge_batch(samples[i : i + size], options, deadline))
                for i in range(0, len(samples), size)
            ]
        return tuple(outcome for batch in batches for outcome in batch.result())

    async def _judge_batch(
        self, batch: Sequence[Sample], options: Mapping[str, Any], deadline: float
    ) -> Sequence[Outcome]:
        path = "/v1/score" if self._section.protocol == "trimaran" else ""

        async def send(body: bytes, max_bytes: int) -> bytes:
            return await self._caller.call(deadline, "POST", path, max_bytes, body)

        try:
            outcomes = await self._watched(lambda: self._ask(send, batch, options))
        except (CallError, CircuitOpenError) as error:
            return self._faults(error, len(batch))
        return [self._believed(outcome) for outcome in outcomes]

    async def _batch_size(self, deadline: float) -> int:
        match self._section.protocol:
            case "sandbox_fusion":
                return 1
            case "trimaran":
                info = self._info or await self._learn(deadline)
                return min(self._section.batch_size, info.max_samples)

    async def _learn(self, deadline: float) -> Info:
        async def ask() -> Info:
            return parse(Info, await self._caller.call(deadline, "GET", "/v1/info", MAX_INFO_BYTES))

        self._info = await self._watched(ask)
        return self._info

    async def _watched(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """With the circuit breaker. Raises CallError and CircuitOpenError."""
        self._breaker.check()
        try:
            result = await work()
        except OverloadedError:
            raise
        except CallError as error:
            self._breaker.failed(self._caller.said(error))
            if self._breaker.is_open:
                self._info = None  # what comes back may be another
            raise
        self._breaker.succeeded()
        return result

    def _believed(self, outcome: Outcome) -> Outcome:
        match outcome:
            case Fault(reason):
                return Fault(f"{self._caller.url}: {self._caller.said(reason, MAX_REASON)}")
            case Value(value) | Indigestible(_, float(value)) if self._info and not _within(
                self._info, value
            ):
                return Fault(
                    f"{self._caller.url}: the score {value:g} is not within the"
                    f" {self._info.minimum} and {self._info.maximum} that /v1/info names"
                )
            case Indigestible(reason, score):
                return Indigestible(self._caller.said(reason, MAX_REASON), score)
            case Value(value, parts):
                said = {self._caller.said(n, MAX_PART_NAME): part for n, part in parts.items()}
                return Value(value, said)
        return outcome

    def _faults(self, error: Exception, count: int) -> tuple[Outcome, ...]:
        return (Fault(f"{self._caller.url}: {self._caller.said(error)}"),) * count

    def _deadline(self, seconds: float) -> float:
        return asyncio.get_running_loop().time() + seconds


def _within(info: Info, value: float) -> bool:
    too_low = info.minimum is not None and value < info.minimum
    too_high = info.maximum is not None and value > info.maximum
    return not (too_low or too_high)
