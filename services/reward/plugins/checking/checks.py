"""The checks of the conformance kit. Each returns what it saw, or raises Failed or Skipped."""

from __future__ import annotations

import asyncio
import math
import random
import time

from services.reward.plugins.checking.check_client import (
    SAMPLES,
    ScoreAsker,
    first_difference,
    marks_of,
    request_body,
    sample,
)
from services.reward.plugins.contract import MAX_SAMPLES, Info, PluginSample, Scored
from trimaran.plugins.checking import CheckSkipped, Failed, PluginReply, new_key
from trimaran.plugins.forms import Health
from trimaran.plugins.messages import PluginCall, PluginMessage

BATCH_SIZES = (1, 2, 7, 64, MAX_SAMPLES)
NUM_AT_ONCE = 16
UNICODE_TEXTS = {
    "right-to-left": "الجواب هو ٧ \u202e7\u202c התשובה",
    "emoji": "👩‍👩‍👧‍👦 7 🇪🇺 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "NUL and controls": "7\x00\x01\x1b[31m\x7f",
    "combining": "e\u0301" * 50 + "Z" + "\u0335" * 200,
    "beyond the basic plane": "𝟕 𠮷 \U0010ffff",
    "line separators": "7\u2028\u2029\r\n\ufeff",
    "empty": "",
}


async def connection(asker: ScoreAsker) -> str:
    reply = await asker.ask("GET", "/v1/health")
    return f"answers (status {reply.status})"


async def health(asker: ScoreAsker) -> str:
    status = (await asker.ask("GET", "/v1/health")).read(Health).status
    if status != "ok":
        raise Failed(f"it says {status}; check again when it can score")
    return status


async def info(asker: ScoreAsker) -> str:
    asker.info = (await asker.ask("GET", "/v1/info")).read(Info)
    return f"{asker.info.name}, at most {asker.info.max_samples} samples"


async def deadline(asker: ScoreAsker) -> str:
    start = time.monotonic()
    await asker.post(SAMPLES[:1])
    return f"{time.monotonic() - start:.3f} s for one sample, {asker.timeout:g} s are allowed"


async def schema(asker: ScoreAsker) -> str:
    results = await asker.score(asker.few(2))
    scored = sum(isinstance(result, Scored) for result in results)
    return f"{scored} of {len(results)} scored"


async def authentication(asker: ScoreAsker) -> str:
    if asker.token is None:
        raise CheckSkipped("no token is configured; give --token-variable where the plugin has one")
    for what, token in (("no", None), ("a wrong", f"{asker.token}x")):
        try:
            await _refused(asker, await asker.post(SAMPLES[:1], token=token), 401)
        except Failed as error:
            raise Failed(f"with {what} token: {error}; compare it before all else") from None
    return "401 without a token and with a wrong one"


async def batch_sizes(asker: ScoreAsker) -> str:
    sizes = sorted({min(size, asker.info.max_samples) for size in BATCH_SIZES})
    for size in sizes:
        try:
            await asker.score([SAMPLES[index % len(SAMPLES)] for index in range(size)])
        except Failed as error:
            raise Failed(f"{size} samples: {error}") from None
    return ", ".join(map(str, sizes))


async def determinism(asker: ScoreAsker) -> str:
    if not asker.info.deterministic:
        raise CheckSkipped("info says that it is not deterministic")
    runs = [[marks_of(await asker.score([each]))[0] for each in SAMPLES] for _ in range(2)]
    if place := first_difference(*runs):
        raise Failed(
            f"{place}, the second time; seed it, or set deterministic to false in /v1/info"
        )
    asker.alone = runs[0]
    return f"{len(SAMPLES)} samples twice, each under its own key"


async def order(asker: ScoreAsker) -> str:
    if asker.info.max_samples < 2:
        raise CheckSkipped("it takes one sample at a time")
    if len(set(asker.alone)) < 2:
        raise CheckSkipped(
            "all samples of the kit get the same score, so their order cannot be seen;"
            " compare some of your own"
        )
    shuffler = random.Random(1)
    num_places = min(len(SAMPLES), asker.info.max_samples)
    for _ in range(3):
        places = shuffler.sample(range(len(SAMPLES)), num_places)
        marks = marks_of(await asker.score([SAMPLES[place] for place in places]))
        if difference := first_difference([asker.alone[place] for place in places], marks):
            raise Failed(
                f"shuffled, {difference} than alone; answer in the order of the samples"
                " (deterministic is false in /v1/info where a score depends on its batch)"
            )
    return f"{num_places} samples in 3 shuffles, as each alone"


async def bounds(asker: ScoreAsker) -> str:
    least, most = asker.info.minimum, asker.info.maximum
    if least is None and most is None:
        raise CheckSkipped("info declares neither minimum nor maximum; declare what it may give")
    least, most = -math.inf if least is None else least, math.inf if most is None else most
    marks = marks_of(await asker.score(asker.few(len(SAMPLES))))
    for score in marks:
        if score is not None and not least <= score <= most:
            raise Failed(
                f"a score is {score:g}, info says {least:g} to {most:g}; correct one of them"
            )
    return f"{len(marks)} scores within {least:g} and {most:g}"


async def idempotency(asker: ScoreAsker) -> str:
    key = new_key()
    first, second = await asyncio.gather(
        asker.score(asker.few(4), key), asker.score(asker.few(4), key)
    )
    for again in (second, await asker.score(asker.few(4), key)):
        for one, other in zip(first, again, strict=True):
            if isinstance(one, Scored) and isinstance(other, Scored) and one != other:
                raise Failed("the same request under the same key got another answer; keep answers")
    return "three times under one key, two at once: one answer"


async def key_reused(asker: ScoreAsker) -> str:
    key = new_key()
    if marks_of(await asker.score(SAMPLES[:1], key)) == [None]:
        raise CheckSkipped(
            "it gives the sample no score (faulted), and such answers need not be kept"
        )
    try:
        return (await asker.post(SAMPLES[1:2], key)).problem(409)
    except Failed as error:
        raise Failed(f"another request under a used key: {error}") from None


async def malformed(asker: ScoreAsker) -> str:
    """NaN is no JSON, whatever Python's json makes of it."""
    bodies = {
        "cut off": request_body(SAMPLES[:1])[:-2],
        "NaN": request_body(SAMPLES[:1], options={"x": float("nan")}),
    }
    for name, body in bodies.items():
        try:
            await _refused(asker, await asker.ask("POST", "/v1/score", body), 422)
        except Failed as error:
            raise Failed(f"{name}: {error}; parse strictly") from None
    return "422 for a body that is cut off and for NaN"


async def wrong_fields(asker: ScoreAsker) -> str:
    """What the OpenAPI document of the contract says as well, for servers without one."""
    changes = {
        "another contract": {"contract": "trimaran.reward/0"},
        "no samples": {"samples": None},
        "an unknown field": {"smaples": []},
    }
    for name, fields in changes.items():
        try:
            await _refused(asker, await asker.post(SAMPLES[:1], **fields), 422)
        except Failed as error:
            raise Failed(f"{name}: {error}") from None
    return f"422 for {', '.join(changes)}"


async def too_many_samples(asker: ScoreAsker) -> str:
    many = [SAMPLES[0]] * (min(asker.info.max_samples, MAX_SAMPLES) + 1)
    return await _refused(asker, await asker.post(many), 413)


async def unicode_texts(asker: ScoreAsker) -> str:
    for name, text in UNICODE_TEXTS.items():
        try:
            await asker.score([sample(text, answer=text)])
        except Failed as error:
            raise Failed(f"{name}: {error}") from None
    # json.dumps writes a lone surrogate as an escape, which is JSON and no Unicode.
    reply = await asker.post([PluginSample.model_construct(text="7 \ud83d")])
    try:
        reply.results(1) if reply.status == 200 else reply.problem(422)
    except Failed as error:
        raise Failed(f"an escaped lone surrogate: {error} (200 or 422 is right)") from None
    return f"{', '.join(UNICODE_TEXTS)}; lone surrogate: {reply.status}"


async def episodes(asker: ScoreAsker) -> str:
    """A plugin from before them refuses the field as one that it does not know."""
    called = PluginMessage(
        role="assistant",
        content="",
        tool_calls=[PluginCall(name="add", arguments='{"a": 3, "b": 4}', id="c0")],
    )
    reported = PluginMessage(role="tool", content="7", tool_call_id="c0", name="add")
    last = PluginMessage(role="assistant", content="7")
    episode = sample("7").model_copy(
        update={"conversation": [called, reported, last], "finish_reason": "turns"}
    )
    reply = await asker.post([episode])
    if reply.status == 422:
        raise CheckSkipped(
            "it refuses the field conversation, so a run with episodes cannot use it"
        )
    reply.results(1)
    return "an episode of three messages"


async def concurrency(asker: ScoreAsker) -> str:
    """Answers must not be mixed up; 503 is allowed when it says so in a Problem."""
    picks = [index % len(SAMPLES) for index in range(NUM_AT_ONCE)]
    replies = await asyncio.gather(*(asker.post([SAMPLES[pick]]) for pick in picks))
    num_busy = 0
    for pick, reply in zip(picks, replies, strict=True):
        if reply.status == 503:
            reply.problem(503)
            num_busy += 1
            continue
        marks = marks_of(reply.results(1))
        if asker.alone and (difference := first_difference([asker.alone[pick]], marks)):
            raise Failed(f"{NUM_AT_ONCE} requests at once: {difference} than alone")
    if num_busy == NUM_AT_ONCE:
        raise Failed(f"all of {NUM_AT_ONCE} requests at once were refused as overload")
    return f"{NUM_AT_ONCE} requests at once, {num_busy} refused as overload"


async def disconnect(asker: ScoreAsker) -> str:
    body = request_body(asker.few(len(SAMPLES)))
    for num_bytes in (len(body), len(body) // 2):
        await asker.send_and_leave("/v1/score", body, num_bytes)
    try:
        await asker.score(SAMPLES[:1])
    except Failed as error:
        raise Failed(f"after clients that went away: {error}") from None
    return "works on after clients that went away in mid-request"


async def long_texts(asker: ScoreAsker) -> str:
    seen = []
    for megabytes in (1, 10):
        reply = await asker.post([sample("seven " * (megabytes * 1_000_000 // 6))])
        try:
            reply.problem(413) if reply.status == 413 else reply.results(1)
            await asker.score(SAMPLES[:1])
        except Failed as error:
            raise Failed(f"{megabytes} MB: {error} (a result or 413 is right)") from None
        seen.append(f"{megabytes} MB: {'refused' if reply.status == 413 else 'answered'}")
    return ", ".join(seen)


async def _refused(asker: ScoreAsker, reply: PluginReply, status: int) -> str:
    """The right status, a Problem, and it works on."""
    detail = reply.problem(status)
    try:
        await asker.score(SAMPLES[:1])
    except Failed as failure:
        raise Failed(f"refused it, but does not work afterwards: {failure}") from None
    return f"{status}: {detail[:80]}"
