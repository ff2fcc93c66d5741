"""Addresses are judged and then connected to."""

from __future__ import annotations

import socket

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from services.reward.outcome import Fault, Outcome, Value
from services.reward.plugins.calling.client import PluginJudge
from tests.reward.plugins.calling.test_client import host_of, spec_of, texts
from tests.trimaran.plugins.hostile import Server, of_texts
from trimaran.trust.allowed import Allowed


class Names(AbstractResolver):
    """A name server that gives its `answers` in turn, the last one for ever."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in answer
        ]

    async def close(self) -> None:
        pass


async def judged_by_name(names: Names, *allow: str, host: str = "rewards.example") -> Outcome:
    """Of a plugin on loopback that is called by a host name."""
    async with Server(of_texts(lambda text: {"score": float(text)})) as server:
        spec = spec_of(f"http://{host}:{server.port}")
        allowed = Allowed.from_entries([host_of(spec), *allow])
        async with PluginJudge([spec], allowed, names) as judge:
            (outcome,) = await judge.judge(spec, texts("1"))
        assert bool(server.received) is isinstance(outcome, Value)
        return outcome


async def test_a_name_that_points_inside_is_refused_and_not_tried_again() -> None:
    names = Names(["::ffff:127.0.0.1"])
    outcome = await judged_by_name(names)
    assert isinstance(outcome, Fault) and "which is not a public address" in outcome.reason
    assert names.asked == 2  # once at start, once to score


async def test_of_several_addresses_only_those_that_may_be_are_connected_to() -> None:
    names = Names(["10.0.0.1", "127.0.0.1"])
    assert await judged_by_name(names, "127.0.0.0/8") == Value(1.0)


async def test_a_name_that_changes_its_mind_gains_nothing() -> None:
    """The address that was judged is the one connected to: no second lookup comes between."""
    names = Names(["127.0.0.1"], ["169.254.169.254"])
    assert await judged_by_name(names, "127.0.0.0/8") == Value(1.0)
    assert names.asked == 1


@pytest.mark.parametrize("host", ["2130706433", "127.1"])
async def test_odd_spellings_of_addresses_reach_nothing(host: str) -> None:
    assert isinstance(await judged_by_name(Names(["127.0.0.1"]), host=host), Fault)


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    assert await judged_by_name(Names(["127.0.0.1"]), "127.0.0.0/8") == Value(1.0)
