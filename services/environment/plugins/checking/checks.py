"""The checks of the conformance kit. Each returns what it saw, or raises Failed or CheckSkipped."""

from __future__ import annotations

import asyncio
import time

from services.environment.plugins.checking.asker import MESSAGE, EpisodeAsker, body_of
from services.environment.plugins.contract import Info
from trimaran.plugins.checking import CheckSkipped, Failed, PluginReply, new_key
from trimaran.plugins.forms import Health


async def connection(asker: EpisodeAsker) -> str:
    reply = await asker.ask("GET", "/v1/health")
    return f"answers (status {reply.status})"


async def health(asker: EpisodeAsker) -> str:
    status = (await asker.ask("GET", "/v1/health")).read(Health).status
    if status != "ok":
        raise Failed(f"it says {status}; check again when it can open sessions")
    return status


async def info(asker: EpisodeAsker) -> str:
    said = (await asker.ask("GET", "/v1/info")).read(Info)
    return f"{said.name}, at most {said.max_sessions or 'any number of'} sessions"


async def opening(asker: EpisodeAsker) -> str:
    begin = time.monotonic()
    session = new_key()
    opened = await asker.open(session)
    seconds = time.monotonic() - begin
    await asker.close(session)
    if opened.messages is not None and not opened.messages:
        raise Failed("no messages: leave the field out where the row's own are right")
    messages = "the row's" if opened.messages is None else str(len(opened.messages))
    return f"{messages} messages, {len(opened.tools)} tools, in {seconds:.3f} s"


async def turn(asker: EpisodeAsker) -> str:
    async with asker.session() as session:
        answer = await asker.step(session, 1)
    if not (answer.messages or answer.done):
        raise Failed("the episode goes on, and there is nothing that the policy could answer")
    return f"{len(answer.messages)} messages, reward {answer.reward}, done {answer.done}"


async def authentication(asker: EpisodeAsker) -> str:
    if asker.token is None:
        raise CheckSkipped("no token is configured; give --token-variable where the plugin has one")
    async with asker.session() as session:
        for what, token in (("no", None), ("a wrong", f"{asker.token}x")):
            reply = await asker.post("step", session, turn=1, message=MESSAGE, token=token)
            try:
                reply.problem(401)
            except Failed as error:
                raise Failed(f"with {what} token: {error}; compare it before all else") from None
    return "401 without a token and with a wrong one"


async def idempotency(asker: EpisodeAsker) -> str:
    async with asker.session() as session:
        first, second = await asyncio.gather(asker.step(session, 1), asker.step(session, 1))
        for again in (second, await asker.step(session, 1)):
            if again != first:
                raise Failed(
                    "the same turn, asked again, got another answer; keep the last answer of a session"
                )
    return "turn 1 three times, two at once: one answer"


async def order(asker: EpisodeAsker) -> str:
    async with asker.session() as session:
        await asker.step(session, 1)
        return await _refused(
            asker, await asker.post("step", session, turn=3, message=MESSAGE), 409
        )


async def two_sessions(asker: EpisodeAsker) -> str:
    """Each has a world of its own: one that ends takes nothing from the other."""
    async with asker.session() as one:
        async with asker.session() as other:
            await asyncio.gather(asker.step(one, 1), asker.step(other, 1))
        try:
            await asker.step(one, 1)
        except Failed as error:
            raise Failed(f"after the other was closed: {error}") from None
    return "two at a time; one goes on when the other is closed"


async def opened_again(asker: EpisodeAsker) -> str:
    async with asker.session() as session:
        if not (await asker.step(session, 1)).done:
            await asker.step(session, 2)
        await asker.open(session)
        try:
            await asker.step(session, 1)
        except Failed as error:
            raise Failed(f"opened again, it does not begin again: turn 1: {error}") from None
    return "an open session, opened again, begins again"


async def unknown_session(asker: EpisodeAsker) -> str:
    never = await _refused(asker, await asker.post("step", new_key(), turn=1, message=MESSAGE), 404)
    async with asker.session() as closed:
        pass
    await _refused(asker, await asker.post("step", closed, turn=1, message=MESSAGE), 404)
    return never


async def closed_twice(asker: EpisodeAsker) -> str:
    async with asker.session() as session:
        pass
    try:
        await asker.close(session)
        await asker.close(new_key())
    except Failed as error:
        raise Failed(f"a session that is not open: {error}; its end is reached") from None
    return "closing what is not open is no error"


async def errors(asker: EpisodeAsker) -> str:
    """NaN is no JSON, whatever Python's json makes of it."""
    async with asker.session() as session:
        bodies = {
            "a body that is cut off": body_of(session, turn=1, message=MESSAGE)[:-2],
            "NaN": body_of(session, turn=float("nan"), message=MESSAGE),
            "another contract": body_of(session, contract="trimaran.environment/0"),
            "no message": body_of(session, turn=1),
            "an unknown field": body_of(session, turn=1, message=MESSAGE, trun=1),
        }
        for name, body in bodies.items():
            try:
                await _refused(asker, await asker.ask("POST", "/v1/step", body), 422)
            except Failed as error:
                raise Failed(f"{name}: {error}") from None
    return f"422 for {', '.join(bodies)}"


async def disconnect(asker: EpisodeAsker) -> str:
    async with asker.session() as session:
        body = body_of(session, turn=1, message=MESSAGE)
        for num_bytes in (len(body) // 2, len(body)):
            await asker.send_and_leave("/v1/step", body, num_bytes)
        try:
            await asker.step(session, 1)
        except Failed as error:
            raise Failed(f"after clients that went away: {error}") from None
    return "the turn has its answer when its caller comes again"


async def _refused(asker: EpisodeAsker, reply: PluginReply, status: int) -> str:
    """The right status, a Problem, and it works on."""
    detail = reply.problem(status)
    try:
        async with asker.session() as session:
            await asker.step(session, 1)
    except Failed as failure:
        raise Failed(f"refused it, but does not work afterwards: {failure}") from None
    return f"{status}: {detail[:80]}"
