"""verl's reward: a function of the user's, or the rule that verl chooses by the rows' data_source."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from commands.importing import shared
from commands.importing.rows import KeyOutcome, Theirs, becomes, deny
from commands.importing.rows_file import distinct

FUNCTION = "reward.custom_reward_function"
KWARGS = "reward.reward_kwargs"
OVERLONG = f"{KWARGS}.overlong_buffer_cfg"
SOURCES = {
    "openai/gsm8k": "gsm8k",
    "lighteval/MATH": "boxed_equal",
    "DigitalLearningGmbH/MATH-lighteval": "boxed_equal",
    "HuggingFaceH4/MATH-500": "boxed_equal",
    "math_dapo": "acc_for_dapo",
    "math": "acc_for_dapo",
    "math_dapo_reasoning": "acc_for_dapo",
    "hiyouga/geometry3k": "geo3k",
}
"""Values of the column data_source -> the rule that does what verl's default_compute_score does for it."""
FOLDERS = {
    "gsm8k": "gsm8k",
    "math": "boxed_equal",
    "geo3k": "geo3k",
    "dapo-math-17k": "acc_for_dapo",
}
"""The same by the folder or file into which verl's preparation writes."""


def reward(value: Any, theirs: Theirs) -> KeyOutcome:
    outcome = _own(value, theirs) if value else _chosen(theirs)
    rules = outcome.settings.get("reward.rules")
    if not rules or not theirs.is_on(f"{OVERLONG}.enable"):
        return outcome
    if theirs[f"{OVERLONG}.len"] is None:
        return deny(f"give {OVERLONG}.len=N, tokens at the end that are penalized")
    settings = {**outcome.settings, "reward.rules": {**rules, "overlong": _overlong(theirs)}}
    return becomes(settings, outcome.text)


def _own(path: Any, theirs: Theirs) -> KeyOutcome:
    name = str(theirs[f"{FUNCTION}.name"] or "compute_score")
    return shared.reward_function(path, name, theirs.under(f"{FUNCTION}.reward_kwargs"))


def _overlong(theirs: Theirs) -> dict[str, Any]:
    """DAPO's penalty of answers that are nearly too long."""
    options = {"buffer": int(theirs[f"{OVERLONG}.len"])}
    if longest := theirs[f"{KWARGS}.max_resp_len"]:
        options["max_tokens"] = int(longest)
    return {"weight": float(theirs[f"{OVERLONG}.penalty_factor"]), "options": options}


def _chosen(theirs: Theirs) -> KeyOutcome:
    files = shared.paths_of(theirs["data.train_files"])
    if not files:
        return deny("give data.train_files=FILE")
    found = [distinct(file, "data_source") for file in files]
    if None in found:
        return _by_folder(files[found.index(None)])
    sources = sorted({source for known in found for source in known or ()})
    unknown = [name for name in sources if name not in SOURCES and not name.startswith("aime")]
    if sources and not unknown:
        return _by_source(sources, f"which is {', '.join(sources)}")
    return deny(
        f"the rows' data_source is {', '.join(sources)}, and verl has no rule for {', '.join(unknown) or 'it'}: give"
        " custom_reward_function.path=FILE.py"
    )


def _by_source(sources: Iterable[str], what: str) -> KeyOutcome:
    """A rule for all rows, or each for those of its sources. A row of none is refused at the start, as there."""
    found: dict[str, list[str]] = {}
    for source in sources:
        found.setdefault(SOURCES.get(source, "acc_for_dapo"), []).append(source)
    text = f"verl chooses it by data_source, {what}"
    if len(found) == 1:
        return becomes({"reward.rules": dict.fromkeys(found, 1.0)}, text)
    rules = {rule: {"weight": 1.0, "tasks": tasks} for rule, tasks in found.items()}
    return becomes({"data.task_key": "data_source", "reward.rules": rules}, text)


def _by_folder(file: str) -> KeyOutcome:
    parts = reversed(Path(file).with_suffix("").parts)
    if rule := next((FOLDERS[part] for part in parts if part in FOLDERS), None):
        text = f"verl chooses it by the rows' data_source; {file} has none, so its name says it: {rule}"
        return becomes({"reward.rules": {rule: 1.0}}, text)
    if not Path(file).is_file():
        text = f"and {file} is not here: a row of another one is refused at the start"
        return _by_source(SOURCES, text)
    return deny(
        f"verl chooses the reward by the rows' data_source, and {file} has none: prepare it with"
        " `--keep data_source`, or give custom_reward_function.path=FILE.py"
    )
