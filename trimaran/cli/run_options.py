"""The commands that speak to a manager: their options and help."""

from __future__ import annotations

import argparse
from typing import Any

EXAMPLES = """\
RUN is a run's id, the unique beginning of one, or `latest`: the run that was submitted last.
examples:
  trimaran submit examples/addition/run.yaml run.seed=2 --watch
  trimaran list --state running
  trimaran watch latest
  trimaran logs addition-2026 rollout-0 -f
  trimaran scale latest 2:8                 at least 2 replicas, at most 8
the manager is the one that `trimaran up` starts on this machine, or --manager HOST:PORT, or
TRIMARAN_MANAGER; TRIMARAN_TOKEN_FILE names a file with your token, TRIMARAN_CA one with the
certificates that TLS trusts, TRIMARAN_CERTIFICATE and TRIMARAN_KEY your own where it asks for one
exit codes: 1 when the work failed, also that of the run watched; 2 for bad input
"""
FOLDER = "RUN may also be the folder of a run that `trimaran train` made."

SUBMIT, LIST, SHOW, WATCH, LOGS = "submit", "list", "show", "watch", "logs"
PAUSE, RESUME, CANCEL, DELETE = "pause", "resume", "cancel", "delete"
SCALE, SAMPLES = "scale", "samples"
RUN_COMMANDS = frozenset(
    (SUBMIT, LIST, SHOW, WATCH, LOGS, PAUSE, RESUME, CANCEL, DELETE, SCALE, SAMPLES)
)


def add_run_commands(commands: Any) -> None:
    submit = _add(commands, SUBMIT, "queue a run", has_run=False)
    submit.add_argument("config", metavar="CONFIG", help="a run's YAML file")
    submit.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings that replace the file's"
    )
    submit.add_argument("--priority", type=int, default=0, metavar="N", help="higher ones first")
    submit.add_argument("--watch", action="store_true", help="and show its progress")

    listing = _add(commands, LIST, "runs, newest first", has_run=False)
    listing.add_argument(
        "--state", action="append", default=[], metavar="STATE", help="only these; may be repeated"
    )
    listing.add_argument("--owner", default="", metavar="NAME", help="only this one's")
    _add_json(listing)

    show = _add(commands, SHOW, f"how a run stands. {FOLDER}")
    show.add_argument(
        "--config", action="store_true", help="its configuration, with overrides and defaults"
    )
    _add_json(show)

    watch = _add(commands, WATCH, "a run's progress, from its first event on")
    watch.add_argument(
        "--after", type=int, default=0, metavar="N", help="only events behind the N-th"
    )

    logs = _add(commands, LOGS, f"the end of a process's log. {FOLDER}")
    logs.add_argument("process", nargs="?", default="", metavar="PROCESS", help="such as rollout-0")
    logs.add_argument("-n", "--lines", type=int, default=100, metavar="N", help="default 100")
    logs.add_argument("-f", "--follow", action="store_true", help="and what follows")

    _add(commands, PAUSE, "save a checkpoint after the step under way, and free the devices")
    _add(commands, RESUME, "queue a paused, cancelled or failed run again")
    _add(commands, CANCEL, "end a run once the batch that trains is live; it waits for no other")
    delete = _add(commands, DELETE, "remove an ended run's records and folder")
    delete.add_argument("--yes", action="store_true", help="nothing brings them back: say so")
    scale = _add(commands, SCALE, "how many replicas a run may have")
    scale.add_argument("replicas", metavar="MIN[:MAX]", help="2:8, or 4 for exactly that many")
    samples = _add(commands, SAMPLES, f"prompts, answers and rewards of a step. {FOLDER}")
    samples.add_argument("number", nargs="?", type=int, metavar="STEP", help="as --step")
    samples.add_argument(
        "--step", type=int, metavar="N", help="the validation after it; default: the last one"
    )
    samples.add_argument(
        "--trained", action="store_true", help="what a step trained on; default: the last one"
    )
    samples.add_argument("-n", "--limit", type=int, default=5, metavar="N", help="default 5")
    samples.add_argument("--all", action="store_true", help="every sample of the step")
    samples.add_argument("--full", action="store_true", help="long texts to their end")
    _add_json(samples)


def _add(commands: Any, name: str, words: str, *, has_run: bool = True) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=words.partition(".")[0],
        description=words,
        epilog=EXAMPLES,
    )
    if has_run:
        command.add_argument("run", metavar="RUN")
    command.add_argument("--manager", metavar="HOST:PORT", help="instead of this machine's")
    return command


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="for machines")
