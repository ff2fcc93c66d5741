"""`trimaran import`: a file of verl, EasyR1 or MindSpeed-RL as a run of ours."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from commands.importing.conversion import Conversion, SourceSystem, convert
from commands.importing.dataset_files import DATASET_FILES, prepare_command
from commands.importing.files import read_given, read_tree
from commands.importing.rows import FATES, Fate
from commands.importing.systems import SYSTEMS, recognize
from trimaran.config import RunConfig, parse_config
from trimaran.errors import InputError

DOCUMENT = "docs/migrating.md"
POOLS = "run.pools"
SCRIPTS = (".sh", ".bash")


def import_run(options: argparse.Namespace) -> int:
    """Returns 2, and writes nothing, where a key is refused or unknown. Of our keys `overrides` may give
    run.pools: how many devices each pool has follows from it. The last line that it prints counts the keys."""
    file, overrides = options.file, options.overrides
    if "=" in file and not Path(file).exists():  # no file: the words are all of it
        file, overrides = "", [file, *overrides]
    system, target = SYSTEMS[options.system], Path(options.output)
    ours = [word for word in overrides if word.startswith(f"{POOLS}=")]
    theirs = [word for word in overrides if word not in ours]
    if "megatron" in options.config_name:
        theirs.insert(0, "actor_rollout_ref.actor.strategy=megatron")
    _refuse_script(file)
    given = read_given(Path(file) if file else None, theirs)
    if system.name == DATASET_FILES.name and DATASET_FILES.is_mine(list(given)):
        return _print_preparation(given)
    if target.exists():
        raise InputError(f"{target}: is there already; name another file with -o")
    if not system.is_mine(list(given)):
        _refuse_other(file or "the words", system, list(given))
    made = convert(system, given, _in_turns(ours))
    for line in _summary(made):
        print(line)
    try:
        return _write(target, made, _header(system, file, overrides, made))
    finally:
        print(_counts(system, made))


def _print_preparation(given: Mapping[str, Any]) -> int:
    """Prints the command that prepares rows as the file says. Returns 2 where a key is refused."""
    made = convert(DATASET_FILES, given)
    for line in _summary(made):
        print(line)
    if _faults(made):
        print(f"error: give other values as key=value ({DOCUMENT})", file=sys.stderr)
        return 2
    print(f"it says how rows are prepared; here that is: {prepare_command(made.tree)}")
    return 0


def _write(target: Path, made: Conversion, header: Iterator[str]) -> int:
    if _faults(made):
        print(
            f"error: nothing is written; give other values as key=value, or ~KEY to leave one out ({DOCUMENT})",
            file=sys.stderr,
        )
        return 2
    tree = _ordered(made.tree)
    parse_config(tree, source=str(target))
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(f"{line}\n" for line in header) + text, encoding="utf-8")
    print(f"written: {target}; go on with: trimaran plan {target}, then trimaran train {target}")
    return 0


def _in_turns(words: Sequence[str]) -> bool:
    pools = [word.partition("=")[2] for word in words]
    if wrong := [name for name in pools if name not in ("separate", "colocated")]:
        raise InputError(f"{POOLS}={wrong[0]}: give separate or colocated")
    return pools[-1:] == ["colocated"]


def refuse_theirs(path: str) -> None:
    """Raises InputError for a file of another system, and says how to go on."""
    _refuse_script(path)
    file = Path(path)
    go_on = "go on with: trimaran import"
    try:
        keys = tuple(map(str, read_tree(file) or ()))
    except InputError:
        return  # who reads it says what is wrong
    if DATASET_FILES.is_mine(keys):
        raise InputError(
            f"{path}: says how MindSpeed-RL prepares a dataset, and is no run; {go_on}"
            f" {DATASET_FILES.name} {path}"
        )
    if system := recognize(keys):
        raise InputError(
            f"{path}: is a file of {system.title}; {go_on} {system.name} {path} -o run.yaml"
        )


def _refuse_script(path: str) -> None:
    if Path(path).suffix in SCRIPTS:
        raise InputError(
            f"{path}: is a script; in a copy, write `trimaran import verl` or `trimaran import easyr1` in place of"
            " `python3 -m verl.…`, and run it"
        )


def _refuse_other(file: str, system: SourceSystem, keys: Sequence[str]) -> None:
    other = recognize(keys)
    hint = (
        f"; it looks like one of {other.title}: trimaran import {other.name} {file}"
        if other
        else ""
    )
    raise InputError(
        f"{file}: is no file of {system.title}, which has {' and '.join(system.sections)}{hint}"
    )


def _faults(made: Conversion) -> bool:
    return bool(made.unknown or made.having("refused"))


def _summary(made: Conversion) -> Iterator[str]:
    words: dict[Fate, str] = {"noted": "note", "refused": "refused"}
    for fate, word in words.items():
        for key, text in made.having(fate).items():
            origin = "" if key in made.given else " (their default)"
            yield f"{word:<8} {key}{origin}: {text}"
    for key, near in made.unknown.items():
        yield f"unknown  {key}" + (f": did you mean {near}?" if near else "")


def _counts(system: SourceSystem, made: Conversion) -> str:
    """One line."""
    words = {"noted": "mapped with a note"}
    counts = ", ".join(f"{made.counts[fate]} {words.get(fate, fate)}" for fate in FATES)
    refused = len(made.having("refused").keys() - made.given)
    more = f"; refused of what the file lacks: {refused}" if refused else ""
    return (
        f"{len(made.given)} keys: {counts}, {len(made.unknown)} unknown;"
        f" {made.num_defaults} settings more are {system.title}'s defaults{more}"
    )


def _header(
    system: SourceSystem, file: str, overrides: Sequence[str], made: Conversion
) -> Iterator[str]:
    """Comments over the run: where it is from, and what is not in it."""
    words = shlex.join(filter(None, [file, *overrides]))
    yield f"# Imported from {system.title}: {words}"
    fates: tuple[Fate, ...] = ("noted", "ignored")
    for fate in fates:
        for key, text in made.having(fate).items():
            yield f"# {fate}: {key}: {' '.join(text.split())}"
    yield ""


def _ordered(tree: dict[str, Any]) -> dict[str, Any]:
    """Sections, and the keys of each, as our documents have them."""
    return {
        name: _by_fields(tree[name], field.annotation)
        for name, field in RunConfig.model_fields.items()
        if name in tree
    }


def _by_fields(branch: dict[str, Any], section: Any) -> dict[str, Any]:
    return {key: branch[key] for key in section.model_fields if key in branch}
