"""What a plugin answers to wrong requests: the right status, a Problem, and it works on."""

from __future__ import annotations

from services.reward.plugins.check_client import Asker, new_key, request_body
from services.reward.plugins.check_replies import Failed, Reply, Skipped, expect_problem
from services.reward.plugins.check_samples import SAMPLES
from services.reward.plugins.contract import MAX_SAMPLES


async def malformed_json(asker: Asker) -> str:
    body = request_body(SAMPLES[:1])
    return await _refused(asker, await _raw(asker, body[:-2]), 422)


async def not_a_number(asker: Asker) -> str:
    """NaN is no JSON, whatever Python's json makes of it."""
    body = request_body(SAMPLES[:1], options={"x": float("nan")})
    try:
        return await _refused(asker, await _raw(asker, body), 422)
    except Failed as error:
        raise Failed(f"{error}; parse strictly, in Python with parse_constant") from None


async def wrong_contract(asker: Asker) -> str:
    reply = await asker.post(SAMPLES[:1], contract="trimaran.reward/0")
    return await _refused(asker, reply, 422)


async def missing_field(asker: Asker) -> str:
    body = request_body([], samples=None)
    return await _refused(asker, await _raw(asker, body), 422)


async def unknown_field(asker: Asker) -> str:
    return await _refused(asker, await asker.post(SAMPLES[:1], smaples=[]), 422)


async def too_many_samples(asker: Asker) -> str:
    many = [SAMPLES[0]] * (min(asker.info.max_samples, MAX_SAMPLES) + 1)
    return await _refused(asker, await asker.post(many), 413)


async def wrong_method(asker: Asker) -> str:
    return await _refused(asker, await asker.ask("GET", "/v1/score"), 405)


async def unknown_path(asker: Asker) -> str:
    return await _refused(asker, await asker.ask("GET", f"/v1/{new_key()}"), 404)


async def authentication(asker: Asker) -> str:
    if asker.token is None:
        raise Skipped("no token is configured; give --token-variable where the plugin has one")
    for what, token in (("no", None), ("a wrong", f"{asker.token}x")):
        try:
            await _refused(asker, await asker.post(SAMPLES[:1], token=token), 401)
        except Failed as error:
            raise Failed(f"with {what} token: {error}; compare it before all else") from None
    return "401 without a token and with a wrong one"


async def _raw(asker: Asker, body: bytes) -> Reply:
    return await asker.ask("POST", "/v1/score", body)


async def _refused(asker: Asker, reply: Reply, status: int) -> str:
    error = expect_problem(reply, status)
    try:
        await asker.score(SAMPLES[:1])
    except Failed as failure:
        raise Failed(f"refused it, but does not work afterwards: {failure}") from None
    return f"{status}: {error[:80]}"
