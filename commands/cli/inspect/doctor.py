"""`trimaran doctor`: what is wrong with this host."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
from contextlib import suppress

from commands.cli.inspect.plan import plan_here
from commands.cli.train.preflight import check_inputs, check_run, refuse_password
from commands.doctor import runs
from commands.doctor.checks import stores
from commands.doctor.examine import examine, or_fine
from commands.doctor.finding import Finding, Severity
from commands.doctor.report import DoctorReport
from commands.doctor.system import System
from trimaran.config import RunConfig, load_config
from trimaran.errors import InputError
from trimaran.host.machine import read_gpus, read_machine
from trimaran.run.placement import place
from trimaran.store import probe_server


def run(options: argparse.Namespace) -> int:
    """Returns 1 where there is an error among the findings."""
    refuse_password(options.store)
    config = load_config(options.config, options.overrides) if options.config else None
    report = DoctorReport(socket.gethostname(), asyncio.run(_findings(config, options.store)))
    if options.json:
        print(json.dumps(report.to_tree(), indent=2))
    else:
        print("\n".join(report.lines()))
    return 1 if report.worst is Severity.ERROR else 0


async def _findings(config: RunConfig | None, store: str | None) -> list[Finding]:
    findings = examine(System(os.environ), config, has_redis=store is not None)
    if config is not None:
        known = {finding.what for finding in findings}
        # Which host of several has which processes, only the one who places them knows.
        check = check_run if config.network.subnet is None else check_inputs
        found = [*runs.check_run_by(check, config, known), *_check_gpus(config)]
        findings.extend(or_fine("run", found))
    if store is not None:
        facts = await probe_server(store)
        findings.extend(or_fine("store", stores.check_store(facts)))
    return findings


def _check_gpus(config: RunConfig) -> list[Finding]:
    """Checks a run whose processes all start on this machine."""
    machine = read_machine(os.environ)
    if config.network.subnet is not None or not (gpus := read_gpus(machine)):
        return []
    with suppress(InputError):  # a finding says so already
        plan = plan_here(config, machine, is_whole=False)
        return [*runs.check_gpus(place(config, machine), plan, gpus)]
    return []
