"""The commands that speak to a manager: submit, list, show, watch, logs, pause, resume, …"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from commands.cli.manage import runs_view as view
from commands.cli.manage import samples_view
from commands.cli.manage.find_run import folder_of, shorten
from commands.cli.manage.folder_client import FolderClient
from commands.cli.manage.managed import find_managed, open_client
from commands.cli.train.progress import looking
from commands.cli.train.view import View
from trimaran.clients.run import AsyncRunClient
from trimaran.clients.run_sync import RunClient
from trimaran.errors import InputError
from trimaran.run.answers import RunSamples
from trimaran.run.runs import Run, RunState, run_to_tree

NO_RUNS = ("no runs; queue one with: trimaran submit CONFIG",)


def dispatch(options: argparse.Namespace) -> int:
    """Returns the exit code."""
    if options.command in OF_FOLDERS and (folder := _run_folder(options.run)) is not None:
        with FolderClient(folder) as client:
            options.run = client.run_id
            reader: Any = client  # it has those of RunClient's methods that these commands call
            return OF_FOLDERS[options.command](reader, options)
    with open_client(options.manager) as client:
        return COMMANDS[options.command](client, options)


def _run_folder(text: str) -> Path | None:
    """Only what can be no id: a path, so that a folder in runs/ does not hide the manager's run."""
    return folder_of(text) if Path(text).is_dir() else None


def _submit(client: RunClient, options: argparse.Namespace) -> int:
    run = client.create_run(options.config, options.overrides, priority=options.priority)
    console = _console()
    console.print(f"{run.run_id}: {run.state.value}")
    if not options.watch:
        console.print(f"see it with: trimaran watch {run.run_id}")
        return 0
    return _follow(client, run, 0, console)


def _list(client: RunClient, options: argparse.Namespace) -> int:
    states = [_state(name) for name in options.state]
    runs = list(client.list_runs(states, options.owner))
    if options.json:
        return _print_json([run_to_tree(run) for run in runs])
    print(*view.runs_table(runs) if runs else NO_RUNS, sep="\n")
    return 0


def _show(client: RunClient, options: argparse.Namespace) -> int:
    run = find_managed(client, options.run)
    if options.config:
        return view.print_config(client.get_config(run.run_id), options.json)
    checkpoints = client.list_checkpoints(run.run_id)
    if options.json:
        kept = [{"step": each.step, "path": each.path} for each in checkpoints if each.kept]
        config = client.get_config(run.run_id)
        return _print_json({**run_to_tree(run), "checkpoints": kept, "config": config})
    for line in view.describe_run(run, checkpoints):
        print(line)
    return 0


def _watch(client: RunClient, options: argparse.Namespace) -> int:
    return _follow(client, find_managed(client, options.run), options.after, _console())


def _follow(client: RunClient, run: Run, after: int, console: Console) -> int:
    """The display of `trimaran train`, until the run has ended."""
    try:
        client.loop.run(_display(client.client, run.run_id, after, View(console)))
    except KeyboardInterrupt:
        console.print(f"{run.run_id} goes on; see it again with: trimaran watch {run.run_id}")
        return 130
    run = client.get_run(run.run_id)
    for line in view.describe_end(run):
        console.print(Text(line), soft_wrap=True)
    return 1 if run.state is RunState.FAILED else 0


async def _display(client: AsyncRunClient, run_id: str, after: int, display: View) -> None:
    async with looking(partial(client.get_run, run_id), display):
        async for event in client.watch_run(run_id, after):
            display.show(event)


def _logs(client: RunClient, options: argparse.Namespace) -> int:
    run_id = find_managed(client, options.run).run_id
    if not options.process:
        known = shorten(client.list_logs(run_id)) or "none"
        print(f"the launcher's log; others: {known}", file=sys.stderr)
    for line in client.get_logs(run_id, options.process, options.lines, options.follow):
        print(line, flush=options.follow)
    return 0


def _steer(client: RunClient, options: argparse.Namespace) -> int:
    """Pauses, resumes or cancels."""
    call = getattr(client, f"{options.command}_run")
    run: Run = call(find_managed(client, options.run).run_id)
    print(f"{run.run_id}: {run.state.value}, step {run.step} of {run.num_steps}")
    return 0


def _delete(client: RunClient, options: argparse.Namespace) -> int:
    run = find_managed(client, options.run)
    if not options.yes:
        raise InputError(
            f"{run.run_id}: {run.folder or 'its folder'} would be removed with its checkpoints,"
            " and nothing brings them back; say --yes"
        )
    client.delete_run(run.run_id)
    print(f"{run.run_id}: deleted")
    return 0


def _scale(client: RunClient, options: argparse.Namespace) -> int:
    least, colon, most = options.replicas.partition(":")
    if not least.isdecimal() or (colon and not most.isdecimal()):
        raise InputError(f"{options.replicas}: not a number of replicas; give MIN or MIN:MAX")
    run_id = find_managed(client, options.run).run_id
    replicas = client.scale_run(run_id, int(least), int(most or least)).replicas
    print(f"{run_id}: {replicas.min} to {replicas.max} replicas, {replicas.granted} now")
    return 0


def _samples(client: RunClient, options: argparse.Namespace) -> int:
    run = find_managed(client, options.run)
    run_id = run.run_id
    step: int | None = options.number if options.step is None else options.step
    if options.trained and step is None:
        trained = client.get_samples(run_id, limit=1).trained_steps
        if not trained:
            raise InputError(
                f"{run_id}: what its {run.step} steps trained on is not kept; run.keep_payloads=all"
                " keeps it in a next run"
                if run.step
                else f"{run_id}: no step has been trained"
            )
        step = trained[-1]

    def ask(offset: int, limit: int) -> RunSamples:
        return client.get_samples(
            run_id,
            validation_step=None if options.trained else step,
            trained_step=step if options.trained else None,
            limit=limit,
            offset=offset,
        )

    return samples_view.show(ask, options)


def _state(name: str) -> RunState:
    try:
        return RunState(name)
    except ValueError:
        known = ", ".join(state for state in RunState if state is not RunState.UNKNOWN)
        raise InputError(f"--state {name}: not a state; give one of {known}") from None


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _print_json(values: Any) -> int:
    print(json.dumps(values, indent=2))
    return 0


COMMANDS = {
    "submit": _submit,
    "list": _list,
    "show": _show,
    "watch": _watch,
    "logs": _logs,
    **dict.fromkeys(("pause", "resume", "cancel"), _steer),
    "delete": _delete,
    "scale": _scale,
    "samples": _samples,
}
OF_FOLDERS = {name: COMMANDS[name] for name in ("show", "watch", "logs", "samples")}
"""What a folder answers without a manager."""
