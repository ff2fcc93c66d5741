"""`trimaran doctor`: this host, the hosts that are named, and the links between them."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from commands.cli.inspect.plan import plan_here
from commands.cli.serve.trust_options import trust_of
from commands.cli.train.preflight import check_inputs, check_run, refuse_password
from commands.doctor import hosts, runs
from commands.doctor.checks import stores
from commands.doctor.checks.memory import model_bytes
from commands.doctor.examine import examine, facts_for_others, or_fine
from commands.doctor.finding import Finding, Severity
from commands.doctor.report import DoctorReport, HostReport
from commands.doctor.server import doctor_server
from commands.doctor.system import System
from trimaran.config import RunConfig, load_config
from trimaran.errors import InputError
from trimaran.host.machine import read_gpus, read_machine
from trimaran.run.network import find_host, join
from trimaran.run.placement import place
from trimaran.store import probe_server
from trimaran.trust.access import Trust, read_token

LISTEN_SECONDS = 3600.0


def run(options: argparse.Namespace) -> int:
    """Returns 1 where there is an error among the findings."""
    trust = trust_of(options, read_token(Path(options.token_file)) if options.token_file else "")
    if options.listen is not None:
        return asyncio.run(listen(options.listen, trust))
    refuse_password(options.store)
    config = load_config(options.config, options.overrides) if options.config else None
    if options.host and not trust.token:
        raise InputError(
            "--host: give --token-file FILE, with the token that the doctors there have"
            " (trimaran doctor --listen)"
        )
    for address in options.host:
        hosts.check_address(address, trust)
    report = asyncio.run(_report(config, options.host, trust, options.store))
    if options.json:
        print(json.dumps(report.to_tree(), indent=2))
    else:
        print("\n".join(report.lines()))
    return 1 if report.worst is Severity.ERROR else 0


async def listen(address: str, trust: Trust) -> int:
    """Until a signal, or for an hour."""
    if not trust.token:
        raise InputError(
            "--listen: give --token-file FILE, with a token that the asking doctors have as well"
            " (trimaran doctor --host)"
        )
    try:
        server = doctor_server(address, trust)
    except InputError as error:
        raise InputError(f"--listen {error}") from None
    await server.start()
    print(f"listens on {server.address} for an hour", flush=True)
    await asyncio.sleep(LISTEN_SECONDS)
    await server.stop()
    return 0


async def _report(
    config: RunConfig | None, addresses: Sequence[str], trust: Trust, store: str | None
) -> DoctorReport:
    system = System(os.environ)
    findings = examine(system, config, has_redis=store is not None)
    if config is not None:
        known = {finding.what for finding in findings}
        # Which host of several has which processes, only the one who places them knows.
        check = check_run if config.network.subnet is None else check_inputs
        found = [*runs.check_run_by(check, config, known), *_check_gpus(config)]
        findings.extend(or_fine("run", found))
    if store is not None:
        facts = await probe_server(store)
        findings.extend(or_fine("store", stores.check_store(facts)))
    versions, size = facts_for_others(system, config)
    model = str(config.model.path) if config is not None else ""
    reports: list[HostReport] = []
    answering: list[str] = []
    for address in addresses:
        other = await hosts.ask_host(address, trust, config, has_redis=store is not None)
        compared = hosts.check_host(other, versions, model, size)
        if not other.said:
            answering.append(address)
        reports.append(HostReport(address, [*or_fine("hosts", compared), *other.findings]))
    links = await _measure(config, answering, trust) if answering else []
    if links:
        needs = (
            (model_bytes(config), config.weight_sync.stage_timeout) if config is not None else ()
        )
        findings.extend(or_fine("links", hosts.check_links(links, *needs)))
    return DoctorReport((HostReport(socket.gethostname(), findings), *reports), links)


def _check_gpus(config: RunConfig) -> list[Finding]:
    """Checks a run whose processes all start on this machine."""
    machine = read_machine(os.environ)
    if config.network.subnet is not None or not (gpus := read_gpus(machine)):
        return []
    with suppress(InputError):  # a finding says so already
        plan = plan_here(config, machine, is_whole=False)
        return [*runs.check_gpus(place(config, machine), plan, gpus)]
    return []


async def _measure(
    config: RunConfig | None, others: Sequence[str], trust: Trust
) -> list[hosts.Link]:
    """Between all pairs; this host has a server of its own meanwhile, as the others have."""
    address = join(hosts.own_address(others[0]), 0)
    if config is not None and config.network.subnet is not None:
        with suppress(InputError):  # a finding of its own says so
            address = find_host(config.network).free_address()  # where a firewall lets others in
    server = doctor_server(address, trust)
    await server.start()
    try:
        return await hosts.measure_links([server.address, *others], trust)
    finally:
        await server.stop()
