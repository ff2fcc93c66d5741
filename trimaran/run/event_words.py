"""An event in words, as the commands and the pages show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trimaran.run.runs import EventKind, RunEvent
from trimaran.telemetry import metrics

# Heading, key in the step's values, format.
COLUMNS = (
    ("reward", metrics.REWARD_MEAN, "{:.3f}"),
    ("length", metrics.LENGTH_MEAN, "{:.1f}"),
    ("lag", metrics.LAG_MAX, "{:.0f}"),
    ("tokens/s", metrics.TOKENS_PER_SECOND, "{:.0f}"),
    ("step s", metrics.STEP_SECONDS, "{:.1f}"),
    ("generate", metrics.PHASE_SECONDS.format("generating"), "{:.1f}"),
    ("score", metrics.PHASE_SECONDS.format("scoring"), "{:.1f}"),
    ("train", metrics.PHASE_SECONDS.format("training"), "{:.1f}"),
    ("sync", metrics.PHASE_SECONDS.format("syncing"), "{:.1f}"),
)
EPISODE_COLUMNS = (
    ("turns", "environment/turns/mean", "{:.1f}"),
    ("calls", "environment/calls/mean", "{:.1f}"),
    ("env s", "environment/seconds/mean", "{:.2f}"),
)
"""Behind the others, where answers are episodes."""


def event_words(event: RunEvent) -> str:
    """Without its time and its step.

    Example: event_words(RunEvent(7, EventKind.CHECKPOINT, run, text="step-00010")) == "checkpoint: step-00010"
    """
    state = event.run.state.value
    match event.kind:
        case EventKind.STEP:
            columns = columns_of(event.values)
            cells = zip(columns, format_cells(event.values, columns), strict=True)
            return "  ".join(f"{heading} {text}" for (heading, _, _), text in cells)
        case EventKind.VALIDATION:
            return describe_heldout(event.values)
        case EventKind.PROCESS:
            return event.text
        case EventKind.UNKNOWN:
            return f"an event that this version does not know: {event.text}"
        case EventKind.STATE:
            return _joined(state, event.text)
        case EventKind.FINISHED:
            return _joined(state, event.run.error)
        case kind:
            return _joined(kind.replace("_", " "), event.text)


def columns_of(values: Mapping[str, float]) -> Sequence[tuple[str, str, str]]:
    has_episodes = any(key in values for _, key, _ in EPISODE_COLUMNS)
    return (*COLUMNS, *EPISODE_COLUMNS) if has_episodes else COLUMNS


def format_cells(values: Mapping[str, float], columns: Sequence[tuple[str, str, str]]) -> list[str]:
    """One text a column; a dash where the step has no such number."""
    return [form.format(values[key]) if key in values else "-" for _, key, form in columns]


def describe_heldout(values: Mapping[str, float]) -> str:
    names = (("greedy", metrics.GREEDY_REWARD), ("sampled", metrics.SAMPLED_REWARD))
    parts = [f"{name} {values[key]:.3f}" for name, key in names if key in values]
    return f"held-out reward: {', '.join(parts)}"


def _joined(what: str, text: str) -> str:
    return f"{what}: {text}" if text else what
