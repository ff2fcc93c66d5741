"""What people see of a run."""

from __future__ import annotations

import asyncio
import io
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from commands.cli.train.progress import LOOK_SECONDS, follow
from commands.cli.train.summary import show_summary
from commands.cli.train.view import View, format_seconds
from trimaran.run.runs import (
    EventKind,
    Run,
    RunEvent,
    RunState,
    event_to_tree,
    events_stream,
    run_key,
    run_to_tree,
)
from trimaran.store import open_store
from trimaran.telemetry import metrics


def event(
    sequence: int,
    kind: str,
    step: int,
    values: dict[str, float] | None = None,
    text: str = "",
    state: RunState = RunState.RUNNING,
    error: str = "",
    held: str = "",
) -> RunEvent:
    run = Run("run", state, step, 4, error, held=held)
    return RunEvent(sequence, EventKind(kind), run, values or {}, text)


STEP = {
    metrics.REWARD_MEAN: 0.25,
    metrics.LENGTH_MEAN: 21.5,
    metrics.LAG_MAX: 0.0,
    metrics.TOKENS_PER_SECOND: 812.4,
    metrics.STEP_SECONDS: 3.96,
    metrics.PHASE_SECONDS.format("generating"): 1.8,
    metrics.PHASE_SECONDS.format("training"): 1.9,
}
VALIDATION = {metrics.GREEDY_REWARD: 0.2, metrics.SAMPLED_REWARD: 0.15}
EVENTS = [
    event(1, "state", 0, text="waiting for the services", state=RunState.STARTING),
    event(2, "validation", 0, VALIDATION),
    event(3, "step", 1, STEP),
    event(4, "skipped", 1, text="train.jsonl:3: longer than 72 tokens"),
    event(5, "step", 2, STEP),
    event(6, "finished", 2, text="/a/run", state=RunState.SUCCEEDED),
]


async def shown(folder: Path, batches: list[list[RunEvent]]) -> list[RunEvent]:
    """What a watcher sees who begins behind the first batch, while the others come one by one."""
    seen, store = list[RunEvent](), await open_store(f"sqlite:{folder / 'store.sqlite'}")
    display: Any = SimpleNamespace(show=seen.append, look=lambda run: None)
    try:
        stream = events_stream("run")
        await store.extend(stream, [event_to_tree(each) for each in batches[0]])
        following = asyncio.create_task(follow(store, "run", display, len(batches[0])))
        for batch in batches[1:]:
            await asyncio.sleep(0.05)
            await store.extend(stream, [event_to_tree(each) for each in batch])
        await asyncio.wait_for(following, 60)
    finally:
        await store.close()
    return seen


async def test_every_event_is_shown_once_whoever_wrote_it_and_those_of_a_former_life_are_not(
    tmp_path: Path,
) -> None:
    former = [event(1, "finished", 2, state=RunState.FAILED)]
    later = [replace(each, sequence=each.sequence + 1) for each in EVENTS]
    seen = await shown(tmp_path, [former, later[:3], later[3:4], later[4:]])
    assert seen == later


async def test_a_run_that_is_paused_is_followed_no_further(tmp_path: Path) -> None:
    end = event(1, "state", 2, state=RunState.PAUSED)
    assert await shown(tmp_path, [[], [end]]) == [end]


def without_clock(text: str) -> list[str]:
    return [line[len("12:00:00  ") :] for line in text.splitlines()]


def show(*events: RunEvent, terminal: bool = False) -> str:
    out = io.StringIO()
    view = View(Console(file=out, width=160, force_terminal=terminal))
    for each in events:
        view.show(each)
    return out.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_the_words_of_others_are_shown_as_they_are(terminal: bool) -> None:
    text = "rows.jsonl:100: brevity: http://[::1]:8700: answers 500: [/x] [red]broken[/]"
    out = show(event(1, "held", 1, text=text, held=text), terminal=terminal)
    assert f"step 1: held: {text}" in out


def test_each_event_is_a_line() -> None:
    lines = without_clock(show(*EVENTS))
    assert lines[0] == "step 0: starting: waiting for the services"
    assert lines[1] == "step 0/4  held-out reward: greedy 0.200, sampled 0.150"
    assert lines[2] == (
        "step 1/4  reward 0.250  length 21.5  lag 0  tokens/s 812  step s 4.0"
        "  generate 1.8  score -  train 1.9  sync -"
    )
    assert lines[3] == "step 1: skipped: train.jsonl:3: longer than 72 tokens"
    assert len(lines) == 5


def test_turns_are_shown_where_answers_are_episodes() -> None:
    turns = {"environment/turns/mean": 2.5, "environment/seconds/mean": 0.125}
    assert "turns 2.5  calls -  env s 0.12" in show(event(1, "step", 1, {**STEP, **turns}))
    assert "turns" not in show(*EVENTS)


def test_seconds_as_people_read_them() -> None:
    assert [format_seconds(seconds) for seconds in (0.4, 125.4, 3725.0)] == [
        *("0:00", "2:05", "1:02:05")
    ]


@pytest.mark.parametrize("terminal", [False, True])
async def test_what_takes_long_is_said_once_on_a_terminal(tmp_path: Path, terminal: bool) -> None:
    out = io.StringIO()
    view = View(Console(file=out, width=160, force_terminal=terminal))
    store = await open_store(f"sqlite:{tmp_path / 'store.sqlite'}")
    following = asyncio.create_task(follow(store, "run", view))
    async with asyncio.timeout(30):
        for doing in (
            "rollout-0 loads 1 of 9 [parts]",
            "rollout-0 loads 2 of 9 [parts]",
            "validating",
        ):
            run = Run("run", RunState.STARTING, 0, 4, doing=doing)
            await store.put(run_key("run"), run_to_tree(run))
            await asyncio.sleep(1.5 * LOOK_SECONDS)
        await store.extend(events_stream("run"), [event_to_tree(EVENTS[-1])])
        await following
    await store.close()
    said = ["rollout-0 loads 1 of 9 [parts]", "validating"] if terminal else []
    assert without_clock(out.getvalue()) == said


def at(seconds: float, each: RunEvent, ends_at: float = 0.0) -> RunEvent:
    return replace(each, time=seconds, run=replace(each.run, started_at=NOON, ends_at=ends_at))


NOON = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, 0))


def test_plain_lines_have_the_events_times_and_an_estimate_of_the_end() -> None:
    """A watcher that comes late gets the events at once: its own clock says nothing of them."""
    out = io.StringIO()
    view = View(Console(file=out, width=160))
    progress = event(9, "process", 2, text="exporting the model")
    later = at(NOON + 65, EVENTS[4], ends_at=NOON + 195)
    for each in (at(NOON, EVENTS[2]), later, at(NOON + 66, progress)):
        view.show(each)
    first, second, third = out.getvalue().splitlines()
    assert first.startswith("12:00:00  step 1/4  reward") and "left" not in first
    assert second.startswith("12:01:05  step 2/4  reward") and second.endswith("about 2:10 left")
    assert third == "12:01:06  step 2: exporting the model"


def test_the_last_words(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "samples").mkdir()
    (tmp_path / "summary.json").write_text(
        '{"heldout_before": {"greedy": 0.2, "sampled": 0.15}, "steps": 20, "seconds": 80.0,'
        ' "heldout_after": {"greedy": 0.95, "sampled": null}, "samples_per_second": 16.0,'
        ' "seed": 3, "faulted_share": 0.0, "indigestible_share": 0.0, "num_devices": 2, "tokens_per_second_per_device": 9.0}'
    )
    out = io.StringIO()
    show_summary(tmp_path, Console(file=out, width=120))
    text = out.getvalue()
    told = (
        "0.200",
        "0.150",
        "0.950",
        "20 steps in 80 s",
        "seed 3",
        "trimaran view",
        "next",
        "samples/",
    )
    for part in told:
        assert part in text
    assert f"run folder: {tmp_path}" in text


def test_a_run_without_validation_or_summary(tmp_path: Path) -> None:
    out = io.StringIO()
    show_summary(tmp_path, Console(file=out, width=120))
    assert out.getvalue() == f"run folder: {tmp_path}\n"
    (tmp_path / "summary.json").write_text(
        '{"heldout_before": null, "heldout_after": null, "steps": 1, "seconds": 1.0,'
        ' "samples_per_second": 1.0, "seed": 1, "faulted_share": 0.0, "indigestible_share": 0.0, "num_devices": 2, "tokens_per_second_per_device": 9.0}'
    )
    show_summary(tmp_path, Console(file=out, width=120))
    assert "held-out" not in out.getvalue()
    assert "use the model" in out.getvalue() and "read what it answers" not in out.getvalue()
