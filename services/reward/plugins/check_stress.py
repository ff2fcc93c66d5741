"""Texts, sizes and callers that one does not expect. Each check returns what it saw, or raises."""

from __future__ import annotations

import asyncio

from services.reward.plugins.check_client import Asker, request_body
from services.reward.plugins.check_replies import Failed, expect_problem, marks_of, results_of
from services.reward.plugins.check_samples import SAMPLES, first_difference, sample

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


async def unicode_texts(asker: Asker) -> str:
    for name, text in UNICODE_TEXTS.items():
        try:
            await asker.score([sample(text, answer=text)])
        except Failed as error:
            raise Failed(f"{name}: {error}") from None
    # json.dumps writes a lone surrogate as an escape, which is JSON and no Unicode.
    reply = await asker.post([], samples=[{"text": "7 \ud83d"}])
    try:
        if reply.status == 200:
            results_of(reply, 1)
        else:
            expect_problem(reply, 422)
    except Failed as error:
        raise Failed(f"an escaped lone surrogate: {error} (200 or 422 is right)") from None
    return f"{', '.join(UNICODE_TEXTS)}; lone surrogate: {reply.status}"


async def long_texts(asker: Asker) -> str:
    seen = []
    for megabytes in (1, 10):
        text = "seven " * (megabytes * 1_000_000 // 6)
        try:
            reply = await asker.post([sample(text)])
            if reply.status == 413:
                expect_problem(reply, 413)
            else:
                results_of(reply, 1)
            await asker.score(SAMPLES[:1])
        except Failed as error:
            raise Failed(f"{megabytes} MB: {error} (a result or 413 is right)") from None
        seen.append(f"{megabytes} MB: {'refused' if reply.status == 413 else 'answered'}")
    return ", ".join(seen)


async def concurrency(asker: Asker) -> str:
    """Answers must not be mixed up; 503 is allowed when it says so in a Problem."""
    picks = [index % len(SAMPLES) for index in range(NUM_AT_ONCE)]
    replies = await asyncio.gather(*(asker.post([SAMPLES[pick]]) for pick in picks))
    num_busy = 0
    for pick, reply in zip(picks, replies, strict=True):
        if reply.status == 503:
            expect_problem(reply, 503)
            num_busy += 1
            continue
        marks = marks_of(results_of(reply, 1))
        if asker.alone and (difference := first_difference([asker.alone[pick]], marks)):
            raise Failed(f"{NUM_AT_ONCE} requests at once: {difference} than alone")
    if num_busy == NUM_AT_ONCE:
        raise Failed(f"all of {NUM_AT_ONCE} requests at once were refused as overload")
    return f"{NUM_AT_ONCE} requests at once, {num_busy} told to come back"


async def disconnect(asker: Asker) -> str:
    body = request_body(asker.few(len(SAMPLES)))
    for num_bytes in (len(body), len(body) // 2):
        await asker.send_and_leave(body, num_bytes)
    try:
        await asker.score(SAMPLES[:1])
    except Failed as error:
        raise Failed(f"after clients that went away: {error}") from None
    return "works on after clients that went away in mid-request"
