"""What a plugin answers to right requests. Each check returns what it saw, or raises."""

from __future__ import annotations

import asyncio
import math
import random
import time

from services.reward.plugins.check_client import Asker, new_key
from services.reward.plugins.check_replies import Failed, Skipped, expect_problem, marks_of
from services.reward.plugins.check_samples import SAMPLES, first_difference
from services.reward.plugins.contract import MAX_SAMPLES, Health, Info, NotScored, Scored

BATCH_SIZES = (1, 2, 7, 64, MAX_SAMPLES)


async def connection(asker: Asker) -> str:
    reply = await asker.ask("GET", "/v1/health")
    return f"answers (status {reply.status})"


async def health(asker: Asker) -> str:
    status = (await asker.ask("GET", "/v1/health")).read(Health).status
    if status != "ok":
        raise Failed(f"it says {status}; check again when it can score")
    return status


async def info(asker: Asker) -> str:
    asker.info = (await asker.ask("GET", "/v1/info")).read(Info)
    return f"{asker.info.name}, at most {asker.info.max_samples} samples"


async def deadline(asker: Asker) -> str:
    start = time.monotonic()
    await asker.post(SAMPLES[:1])
    return f"{time.monotonic() - start:.3f} s for one sample, {asker.timeout:g} s are allowed"


async def schema(asker: Asker) -> str:
    results = await asker.score(asker.few(2))
    scored = sum(isinstance(result, Scored) for result in results)
    return f"{scored} of {len(results)} scored"


async def batch_sizes(asker: Asker) -> str:
    sizes = sorted({min(size, asker.info.max_samples) for size in BATCH_SIZES})
    for size in sizes:
        try:
            await asker.score([SAMPLES[index % len(SAMPLES)] for index in range(size)])
        except Failed as error:
            raise Failed(f"{size} samples: {error}") from None
    return ", ".join(map(str, sizes))


async def determinism(asker: Asker) -> str:
    if not asker.info.deterministic:
        raise Skipped("info says that it is not deterministic")
    runs = [[marks_of(await asker.score([each]))[0] for each in SAMPLES] for _ in range(2)]
    if place := first_difference(*runs):
        raise Failed(
            f"{place}, the second time; seed it, or set deterministic to false in /v1/info"
        )
    asker.alone = runs[0]
    return f"{len(SAMPLES)} samples twice, each under its own key"


async def order(asker: Asker) -> str:
    if asker.info.max_samples < 2:
        raise Skipped("it takes one sample at a time")
    if len(set(asker.alone)) < 2:
        raise Skipped(
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


async def bounds(asker: Asker) -> str:
    least, most = asker.info.minimum, asker.info.maximum
    if least is None and most is None:
        raise Skipped("info declares neither minimum nor maximum; declare what it may give")
    least, most = -math.inf if least is None else least, math.inf if most is None else most
    scores = [
        mark for mark in marks_of(await asker.score(asker.few(len(SAMPLES)))) if mark is not None
    ]
    for score in scores:
        if not least <= score <= most:
            raise Failed(
                f"a score is {score:g}, info says {least:g} to {most:g}; correct one of them"
            )
    return f"{len(scores)} scores within {least:g} and {most:g}"


async def idempotency(asker: Asker) -> str:
    key = new_key()
    first, second = await asyncio.gather(
        asker.score(asker.few(4), key), asker.score(asker.few(4), key)
    )
    for again in (second, await asker.score(asker.few(4), key)):
        pairs = zip(first, again, strict=True)
        if any(one != other for one, other in pairs if _are_scored(one, other)):
            raise Failed("the same request under the same key got another answer; keep answers")
    return "three times under one key, two at once: one answer"


async def key_reused(asker: Asker) -> str:
    key = new_key()
    if marks_of(await asker.score(SAMPLES[:1], key)) == [None]:
        raise Skipped("it gives the sample no score (faulted), and such answers need not be kept")
    try:
        return expect_problem(await asker.post(SAMPLES[1:2], key), 409)
    except Failed as error:
        raise Failed(f"another request under a used key: {error}") from None


def _are_scored(*results: Scored | NotScored) -> bool:
    return all(isinstance(result, Scored) for result in results)
