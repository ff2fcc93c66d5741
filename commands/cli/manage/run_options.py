"""The commands that speak to a manager: their options and help."""

from __future__ import annotations

from typing import Any

from commands.cli.adding import Add, add_command, add_json, add_overrides

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


def add_run_commands(commands: Any) -> None:
    add = _add(commands, "submit", "queue a run", has_run=False)
    add("config", metavar="CONFIG", help="a run's YAML file")
    add_overrides(add)
    add("--priority", type=int, default=0, metavar="N", help="higher ones first")
    add("--watch", action="store_true", help="and show its progress")

    add = _add(commands, "list", "runs, newest first", has_run=False)
    add("--state", action="append", default=[], metavar="STATE", help="only these; may be repeated")
    add("--owner", default="", metavar="NAME", help="only this one's")
    add_json(add)

    add = _add(commands, "show", f"how a run stands. {FOLDER}")
    add("--config", action="store_true", help="its configuration, with overrides and defaults")
    add_json(add)

    add = _add(commands, "watch", f"a run's progress, from its first event on. {FOLDER}")
    add("--after", type=int, default=0, metavar="N", help="only events behind the N-th")

    add = _add(commands, "logs", f"the end of a process's log. {FOLDER}")
    add("process", nargs="?", default="", metavar="PROCESS", help="such as rollout-0")
    add("-n", "--lines", type=int, default=100, metavar="N", help="default 100")
    add("-f", "--follow", action="store_true", help="and what follows")

    _add(commands, "pause", "save a checkpoint after the step under way, and free the devices")
    _add(commands, "resume", "queue a paused, cancelled or failed run again")
    _add(commands, "cancel", "end a run once the batch that trains is live; it waits for no other")
    add = _add(commands, "delete", "remove an ended run's records and folder")
    add("--yes", action="store_true", help="nothing brings them back: say so")
    add = _add(commands, "scale", "how many replicas a run may have")
    add("replicas", metavar="MIN[:MAX]", help="2:8, or 4 for exactly that many")

    add = _add(commands, "samples", f"prompts, answers and rewards of a step. {FOLDER}")
    add("number", nargs="?", type=int, metavar="STEP", help="as --step")
    add("--step", type=int, metavar="N", help="the validation after it; default: the last one")
    add("--trained", action="store_true", help="what a step trained on; default: the last one")
    add("-n", "--limit", type=int, default=5, metavar="N", help="default 5")
    add("--all", action="store_true", help="every sample of the step")
    add("--full", action="store_true", help="long texts to their end")
    add_json(add)


def _add(commands: Any, name: str, words: str, *, has_run: bool = True) -> Add:
    short = words.partition(".")[0]
    add = add_command(commands, name, short, "manage.runs:dispatch", EXAMPLES, words)
    if has_run:
        add("run", metavar="RUN")
    add("--manager", metavar="HOST:PORT", help="instead of this machine's")
    return add
