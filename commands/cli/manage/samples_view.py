"""Samples of a step on a terminal: some of them, cut short, and how to get the others."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace

from commands.cli.plain import plain
from trimaran.ledger.episode_words import tell_episode
from trimaran.run.answers import RunSample, RunSamples

PAGE = 500
"""Samples of one question: of 8k tokens they are some 16 MB."""
MAX_LINES, MAX_CHARACTERS = 8, 1000
"""Bounds of one text, unless all of it is wanted."""
NUM_STEPS = 8
"""That a line names."""

Ask = Callable[[int, int], RunSamples]
"""Given an offset and a limit."""


def show(ask: Ask, options: argparse.Namespace) -> int:
    """Prints what the options of `trimaran samples` want; returns the exit code."""
    pages = _pages(ask, None if options.all else options.limit)
    if options.json:
        first, *others = pages
        samples = [sample for page in (first, *others) for sample in page.samples]
        print(json.dumps(asdict(replace(first, samples=tuple(samples))), indent=2))
        return 0
    shown, page = 0, None
    for page in pages:
        for sample in page.samples:
            print("\n".join(describe_sample(sample, options.full)), end="\n\n")
        shown += len(page.samples)
    assert page
    print("\n".join(describe_rest(page, shown, options.trained)))
    return 0


def describe_sample(sample: RunSample, full: bool) -> Iterator[str]:
    worth = f"no reward: {sample.fault}" if sample.fault else f"reward {sample.reward:g}"
    terms = ", ".join(f"{name} {value:g}" for name, value in sample.terms.items())
    yield plain(f"{sample.prompt_id}  {worth}{f' ({terms})' if terms else ''}")
    answer = tell_episode(sample.episode) if sample.episode else [("answer", sample.answer)]
    for name, text in (("prompt", sample.prompt), *answer, ("reference", sample.reference)):
        lines = (text if full else _cut(text)).splitlines()
        first, *rest = map(plain, lines or [""])
        yield f"  {name + ':':<10} {first}"
        yield from (f"  {'':<10} {line}" for line in rest)


def describe_rest(page: RunSamples, shown: int, trained: bool) -> Iterator[str]:
    """What there is beside what was shown."""
    if page.samples:
        what = "trained step" if trained else "validation after step"
        more = "; more: -n N, or --all" if shown < page.num_samples else ""
        yield f"{shown} of {page.num_samples} samples of the {what} {page.step}{more}"
    yield (
        f"validations after steps (--step N): {_list(page.validation_steps)};"
        f" trained steps that are kept (--trained --step N): {_list(page.trained_steps)}"
    )


def _pages(ask: Ask, limit: int | None) -> Iterator[RunSamples]:
    """At least one; with `limit` None as many as there are."""
    offset = 0
    while True:
        page = ask(offset, PAGE if limit is None else min(limit - offset, PAGE))
        yield page
        offset += len(page.samples)
        wanted = page.num_samples if limit is None else min(limit, page.num_samples)
        if not page.samples or offset >= wanted:
            return


def _cut(text: str) -> str:
    lines = text.splitlines()
    short = "\n".join(lines[:MAX_LINES])[:MAX_CHARACTERS]
    if len(short) >= len("\n".join(lines)):
        return text
    return f"{short}\n[{len(text) - len(short):,} more characters: --full]"


def _list(steps: Sequence[int]) -> str:
    """Thousands of steps in a line."""
    if len(steps) > 2 and steps[-1] - steps[0] == len(steps) - 1:
        return f"{steps[0]}-{steps[-1]}"
    if len(steps) > NUM_STEPS:
        half = NUM_STEPS // 2
        ends = (*map(str, steps[:half]), "…", *map(str, steps[-half:]))
        return f"{', '.join(ends)} ({len(steps)} of them)"
    return ", ".join(map(str, steps)) or "none"
