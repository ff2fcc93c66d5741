"""`trimaran up`: the manager, until SIGTERM or SIGINT. The runs outlive it."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from commands.cli.train.preflight import refuse_password, show_errors
from services.manager.serve import Serving, own_tls, serving
from services.manager.settings import ManagerSettings, load_settings
from trimaran.host.machine import read_machine
from trimaran.host.open_files import raise_limit
from trimaran.host.watchdog import watched
from trimaran.store import store_from, store_name
from trimaran.telemetry.run_files import setup_logging
from trimaran.wire.health_note import Notes

START_SECONDS = 90.0
"""It waits for its store and for the lease of a manager before it, each for 30 s at most."""


def up(options: argparse.Namespace) -> int:
    """Raises InputError for what was given, or where another manager is at work."""
    words = ("store=" + (options.store or ""), *options.overrides)
    for word in words:
        if word.startswith("store="):
            refuse_password(word.removeprefix("store="))
    given: dict[str, Any] = {
        "folder": Path(options.folder).resolve() if options.folder else None,
        "store": options.store and store_from(Path.cwd(), options.store),
        "address": options.address,
        "http_address": options.http,
        "launcher": options.launcher,
    }
    settings = load_settings(
        Path(options.config) if options.config else None,
        {key: value for key, value in given.items() if value},
        options.overrides,
    )
    settings.check_in_sight(read_machine(os.environ))
    show_errors(None)
    setup_logging("manager")
    raise_limit()
    notes = Notes.claim("manager", os.environ)
    notes.wait("starts", START_SECONDS)
    return asyncio.run(_until_stopped(settings, notes))


async def _until_stopped(settings: ManagerSettings, notes: Notes) -> int:
    stopped: list[signal.Signals] = []
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task

    def stop(number: signal.Signals) -> None:
        if not stopped:
            task.cancel()
        stopped.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    num_going = 0
    try:
        async with serving(settings, say=_say) as served:
            announce(settings, served)
            scheme = "https" if settings.tls else "http"
            notes.serve(f"{scheme}://{served.http_address}/healthz", own_tls(settings))
            try:
                async with watched():
                    await served.manager.run()
            finally:
                num_going = sum(r.state.has_processes for r in served.manager.records.all())
    except asyncio.CancelledError:
        if not stopped:
            raise
    goes_on = "no run is going on"
    if num_going:
        goes_on = f"{num_going} run{'s go' if num_going > 1 else ' goes'} on without it"
    _say(f"stopped; {goes_on}; trimaran up finds every run again")
    return 0


def announce(settings: ManagerSettings, served: Serving) -> None:
    """On standard output: what an operator wants to know at the start."""
    _say(f"runs: {settings.folder}")
    if durability := served.manager.records.store.durability:
        _say(f"store {store_name(settings.store_url)}: {durability}")
    for pool in served.manager.pools:
        what = "slots" if pool.kind == "cpu" else f"{pool.kind} devices {', '.join(pool.devices)}"
        number = f"{len(pool.devices)} " if pool.kind == "cpu" else ""
        _say(f"pool {pool.name}: {number}{what}")
    if sets := settings.policy.sets:
        _say(f"sets of controller, reward and weight sync: {sets}, so as many runs at a time")
    _say(f"limits: {settings.limits.describe()}")
    if (allow := settings.allowed) is None:
        why = "anything" if settings.allow else "not given"
        _say(f"allow: {why}, so runs may name any file that this user may read or write")
    else:
        places = {"models": allow.models, "data": allow.data, "payloads": allow.payloads}
        reported = (f"{kind} {', '.join(map(str, p)) or 'none'}" for kind, p in places.items())
        _say(f"allow: {'; '.join(reported)}")
    scheme = "https" if settings.tls else "http"
    _say(f"RunService listens on {served.address}, HTTP on {scheme}://{served.http_address}")


def _say(line: str) -> None:
    print(line, flush=True)
