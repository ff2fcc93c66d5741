"""The endpoint, with clients in this process."""

from __future__ import annotations

import asyncio
import json
import ssl
import stat
from pathlib import Path

import aiohttp
import openai
import pytest

from services.environment.agents.app import Rules
from services.environment.agents.endpoint import serving
from services.environment.agents.live import LiveAnswer
from tests.certificates import Authority
from tests.environment.agents.loop import PROMPT, agent_host, take
from trimaran.errors import InputError
from trimaran.run.network import Host, read_interfaces
from trimaran.trust.access import NO_TRUST, Trust, is_loopback
from trimaran.types import Message, Reply


async def test_a_program_started_elsewhere_takes_an_episode_and_ends_it_by_its_word(
    tmp_path: Path,
) -> None:
    async def elsewhere() -> str:
        path = tmp_path / "endpoint-0.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        place = json.loads(path.read_text())["url"] + "/v1/episodes/next"
        async with (
            aiohttp.ClientSession(headers={"Authorization": "Bearer x"}) as session,
            session.post(place) as refused,
        ):
            assert refused.status == 401
        reported = await take(tmp_path)
        assert "answer" not in reported["row"]
        client = openai.AsyncOpenAI(base_url=reported["base_url"], api_key=reported["api_key"])
        async with client:
            said = await client.chat.completions.create(
                model=reported["model"], messages=reported["row"]["messages"]
            )
            await client.post("/reward", body={"reward": 0.5}, cast_to=object)
            await client.post("/reward", body={"reward": 0.25, "done": True}, cast_to=object)
            with pytest.raises(openai.APIStatusError, match="over") as over:
                await client.models.list()
                await client.chat.completions.create(
                    model=reported["model"], messages=reported["row"]["messages"]
                )
            assert over.value.status_code == 410
        return said.choices[0].message.content or ""

    async with agent_host(None, tmp_path) as host:
        environment = host.create("a/1")

        async def drive() -> Reply:
            opening = await environment.open(PROMPT, 7)
            assert opening.messages == PROMPT.messages
            return await environment.step(Message("assistant", "three"), "stop")

        reply, said = await asyncio.gather(drive(), elsewhere())
        assert (reply.done, reply.reward, reply.num_failures) == (True, 0.75, 0)
        assert said == "three"
        await environment.close()


async def test_beyond_this_machine_the_endpoint_has_tls_and_asks_for_keys_alone(
    tmp_path: Path,
) -> None:
    """Programs elsewhere have no certificates of the services'."""
    mine = [one for one in read_interfaces() if not is_loopback(one.address) and "." in one.address]
    if not mine:
        pytest.skip("this host has no address but loopback")
    address = mine[0].address
    tls = Authority("tests").write(tmp_path, addresses=(address,))
    host = Host(address, mine[0].name)

    async def live(request: object) -> LiveAnswer:
        raise AssertionError(request)

    for trust in (NO_TRUST, Trust("x" * 32)):
        with pytest.raises(InputError, match="TLS"):
            async with serving(Rules("policy"), live, host, trust):
                pass
    async with serving(Rules("policy"), live, host, Trust("x" * 32, tls)) as endpoint:
        endpoint.write(tmp_path / "endpoint-0.json")
        reported = json.loads((tmp_path / "endpoint-0.json").read_text())
        assert reported["url"].startswith(f"https://{address}:")
        context = ssl.create_default_context(cafile=str(tls.authorities))
        shown = {"Authorization": f"Bearer {reported['token']}"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(reported["url"] + "/v1/models", ssl=context, headers=shown) as answer,
        ):
            assert (await answer.json())["data"][0]["id"] == "policy"


async def test_a_client_that_asks_again_is_answered_by_the_turn_that_it_asked_for(
    tmp_path: Path,
) -> None:
    """The policy speaks once, however often a client loses its patience."""
    async with agent_host(None, tmp_path) as host:
        environment = host.create("a")
        opening = asyncio.create_task(environment.open(PROMPT, 7))
        reported = await take(tmp_path)
        async with openai.AsyncOpenAI(
            base_url=reported["base_url"], api_key=reported["api_key"], timeout=0.3, max_retries=20
        ) as client:

            async def ask() -> str:
                messages = reported["row"]["messages"]
                said = await client.chat.completions.create(model="policy", messages=messages)
                return said.choices[0].message.content or ""

            asking = asyncio.create_task(ask())
            await opening
            await asyncio.sleep(1.5)  # it has given up, and asked again
            stepping = asyncio.create_task(environment.step(Message("assistant", "3"), "length"))
            assert await asking == "3"
            # What was delivered is sampled again where it is asked for again.
            again = asyncio.create_task(ask())
            reply = await stepping
            assert (reply.sequence, reply.messages) == (1, PROMPT.messages)
            await environment.close()
            with pytest.raises(openai.APIStatusError, match="over"):
                await again
