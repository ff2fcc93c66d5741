"""Two pictures of a run, drawn from metrics.jsonl and timeline.jsonl."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from trimaran.telemetry import metrics
from trimaran.telemetry.run_files import read_json_lines

INK = "#222222"
GRID = {"color": "#dddddd", "linewidth": 0.6}
BLUE, GREEN, ORANGE, GREY = "#2a6fbb", "#2e8b57", "#d9822b", "#b9bec5"

ACTIVITIES = {
    "generating": BLUE,
    "scoring": "#e0b12f",
    "training": GREEN,
    "syncing": "#c0392b",
    "validating": "#8e6bbf",
}
IDLE = "#eceff2"
LANE_ORDER = ("controller", "rollout", "reward", "trainer", "weight-sync")

MOST_SPANS = 50_000
"""In one picture."""

Rows = Sequence[Mapping[str, Any]]


def draw_curve(run_folder: Path) -> Path:
    """curve.png: reward and held-out reward over completion length, by step."""
    rows = read_json_lines(run_folder / "metrics.jsonl")
    steps = last_by_step(row for row in rows if row["kind"] == "step")
    validations = last_by_step(row for row in rows if row["kind"] == "validation")
    figure = Figure(figsize=(8, 6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    _draw_line(top, steps, metrics.REWARD_MEAN, "mean reward (training)", color=GREY)
    _draw_line(
        *(top, validations, metrics.SAMPLED_REWARD, "held-out reward, sampled"),
        color=BLUE,
        marker="o",
    )
    _draw_line(
        *(top, validations, metrics.GREEDY_REWARD, "held-out reward, greedy"),
        color=GREEN,
        marker="s",
    )
    _draw_line(bottom, steps, metrics.LENGTH_MEAN, "mean completion length", color=ORANGE)
    top.set_ylabel("reward")
    bottom.set_ylabel("length (tokens)")
    bottom.set_xlabel("training step")
    longest = max((row.get(metrics.LENGTH_MEAN) or 0 for row in steps), default=0)
    bottom.set_ylim(0, 1.15 * (longest or 1))
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (top, bottom):
        axes.grid(**GRID)
    figure.legend(handles=top.lines, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(run_folder.name, color=INK)
    return _save(figure, run_folder / "curve.png")


def draw_timeline(run_folder: Path) -> Path:
    """timeline.png: a lane a process, a colour an activity; what is left is idle. Of a long run, its
    end."""
    spans = read_newest(run_folder / "timeline.jsonl", MOST_SPANS)
    lanes = sorted({span["process"] for span in spans}, key=_lane_key)
    figure = Figure(figsize=(12, 1.8 + 0.45 * max(1, len(lanes))), layout="constrained")
    axes = figure.subplots()
    origin = min((span["start"] for span in spans), default=0.0)
    end = max((span["end"] for span in spans), default=1.0) - origin
    for lane, process in enumerate(lanes):
        axes.broken_barh([(0, end)], (lane - 0.4, 0.8), facecolor=IDLE)
        for activity, color in ACTIVITIES.items():
            bars = [
                (span["start"] - origin, span["end"] - span["start"])
                for span in spans
                if span["process"] == process and span["activity"] == activity
            ]
            axes.broken_barh(bars, (lane - 0.4, 0.8), facecolor=color, linewidth=0)
    _mark_steps(axes, step_ends(spans), origin, end)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlim(0, end)
    axes.set_xlabel("seconds since the first activity")
    shown = {span["activity"] for span in spans}
    patches = [
        Patch(color=color, label=name) for name, color in ACTIVITIES.items() if name in shown
    ]
    handles = [*patches, Patch(color=IDLE, label="idle")]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle(run_folder.name, color=INK)
    return _save(figure, run_folder / "timeline.png")


def read_newest(path: Path, count: int) -> list[dict[str, Any]]:
    """The last complete rows of a JSONL file, which need not fit into memory as a whole."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        lines = deque((line for line in file if line.endswith("\n") and line.strip()), count)
    return [json.loads(line) for line in lines]


def last_by_step(rows: Any) -> list[Mapping[str, Any]]:
    """One row a step, in order; a resumed run may have written a step twice: the last counts."""
    latest = {row["step"]: row for row in rows}
    return [latest[step] for step in sorted(latest)]


def step_ends(spans: Rows) -> dict[int, float]:
    """Step -> unix seconds at which its training ended last."""
    ends: dict[int, float] = {}
    for span in spans:
        if span["activity"] == "training":
            ends[span["step"]] = max(span["end"], ends.get(span["step"], span["end"]))
    return ends


def _draw_line(axes: Axes, rows: Rows, key: str, label: str, **style: Any) -> None:
    points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, linewidth=1.8, **style)


def _mark_steps(axes: Axes, ends: Mapping[int, float], origin: float, end: float) -> None:
    """A tick above the lanes where a step's training ended, numbered where there is room."""
    ticks = axes.secondary_xaxis("top")
    every = max(1, len(ends) // 20)
    numbered = {step: time for step, time in ends.items() if step % every == 0}
    ticks.set_xticks(
        [time - origin for time in numbered.values()], [str(step) for step in numbered]
    )
    ticks.set_xlabel("step trained")
    for time in ends.values():
        axes.axvline(time - origin, color=INK, linewidth=0.4, alpha=0.5)


def _lane_key(process: str) -> tuple[int, str, int]:
    kind, _, index = process.rpartition("-")
    if not index.isdigit():
        kind, index = process, "0"
    place = LANE_ORDER.index(kind) if kind in LANE_ORDER else len(LANE_ORDER)
    return place, kind, int(index)


def _save(figure: Figure, path: Path) -> Path:
    """Whole or not at all: someone may be looking at the picture while the run goes on."""
    partial = path.with_suffix(".partial.png")
    figure.savefig(partial, dpi=120, facecolor="white")
    partial.replace(path)
    return path
