"""`trimaran doctor`: this host, the hosts that are named, and the links between them."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trimaran.cli.plan import plan_here
from trimaran.cli.preflight import check_inputs, check_run, refuse_password
from trimaran.cli.trust_options import trust_of
from trimaran.config import RunConfig, load_config
from trimaran.doctor import links, others, runs, stores
from trimaran.doctor.examine import examine, facts_for_others, or_fine
from trimaran.doctor.finding import Finding, Severity
from trimaran.doctor.listener import Listener
from trimaran.doctor.memory import model_bytes
from trimaran.doctor.pairs import ask_host, measure_pairs, own_address
from trimaran.doctor.report import HostReport, Report
from trimaran.doctor.system import System
from trimaran.errors import InputError
from trimaran.launch.devices import place
from trimaran.machine import read_gpus, read_machine
from trimaran.network import find_host, join
from trimaran.store import probe_server
from trimaran.trust import Trust, is_loopback, new_token, read_token

LISTEN_SECONDS = 3600.0


def run(options: argparse.Namespace) -> int:
    """Returns 1 where there is an error among the findings."""
    trust = trust_of(options, read_token(Path(options.token_file)) if options.token_file else "")
    if options.listen is not None:
        return listen(options.listen, trust)
    hosts, store = options.host, options.store
    refuse_password(store)
    config = load_config(options.config, options.overrides) if options.config else None
    if hosts and not trust.token:
        raise InputError(
            "--host: give --token-file FILE, with the token that the doctors there have"
            " (trimaran doctor --listen)"
        )
    report = _report(config, hosts, trust, store)
    if options.json:
        print(json.dumps(report.to_tree(), indent=2))
    else:
        print("\n".join(report.lines()))
    return 1 if report.worst is Severity.ERROR else 0


def listen(address: str, trust: Trust) -> int:
    """Until a signal, or for an hour."""
    if not trust.token:
        raise InputError(
            "--listen: give --token-file FILE, with a token that whoever asks has as well"
            " (trimaran doctor --host)"
        )
    try:
        listener = Listener(address, trust)
    except InputError as error:
        raise InputError(f"--listen {error}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"--listen {address}: {error}") from None
    print(f"listens on {join(listener.host, listener.port)} for an hour", flush=True)
    listener.serve(LISTEN_SECONDS)
    return 0


def _report(
    config: RunConfig | None, hosts: Sequence[str], trust: Trust, store: str | None
) -> Report:
    system = System(os.environ)
    findings = examine(system, config, has_redis=store is not None)
    if config is not None:
        known = {finding.what for finding in findings}
        # Which host of several has which processes, only who places them knows.
        check = check_run if config.network.subnet is None else check_inputs
        told = [*runs.check_run_by(check, config, known), *_check_gpus(config)]
        findings.extend(or_fine(runs.CHECK, told))
    if store is not None:
        facts = asyncio.run(probe_server(store))
        findings.extend(or_fine(stores.CHECK, stores.check_store(facts)))
    here = facts_for_others(system, config)
    reports: list[HostReport] = []
    devices: dict[str, str] = {}  # of those that answer
    for address in hosts:
        other, found = ask_host(address, trust, config, has_redis=store is not None)
        model = str(config.model.path) if config is not None else ""
        compared = others.check_other(other, here["versions"], model, here["model_bytes"])
        if not other.said:
            devices[address] = other.device
        reports.append(HostReport(address, [*or_fine(others.CHECK, compared), *found]))
    measured = _measure(config, here["device"], devices, trust)
    needs = (0.0, 0.0)
    if config is not None and devices:  # on one host they travel through memory
        needs = model_bytes(config), config.weight_sync.stage_timeout
    findings.extend(or_fine(links.CHECK, links.check_links(measured, *needs)))
    return Report((HostReport(socket.gethostname(), findings), *reports), measured)


def _check_gpus(config: RunConfig) -> list[Finding]:
    """Of a run whose processes all start on this machine."""
    machine = read_machine(os.environ)
    if config.network.subnet is not None or not (gpus := read_gpus(machine)):
        return []
    with suppress(InputError):  # a finding says so already
        plan = plan_here(config, machine, is_whole=False)
        return [*runs.check_gpus(place(config, machine), plan, gpus)]
    return []


def _measure(
    config: RunConfig | None, own_device: str, others: Mapping[str, str], trust: Trust
) -> list[links.Link]:
    """With a listener of this host's own, so that it is a member as every other. One that is alone
    calls itself, on loopback. `others`: host:port -> device, as `measure_pairs` has it."""
    hosts = list(others)
    if not hosts:
        trust = Trust(new_token())
    address = join(own_address(hosts), 0)
    if hosts and config is not None and config.network.subnet is not None:
        with suppress(InputError):  # a finding of its own says so
            address = find_host(config.network).free_address()  # where a firewall lets others in
    listener = Listener(address, trust)
    threading.Thread(target=listener.serve, args=(LISTEN_SECONDS,), daemon=True).start()
    devices = {join(listener.host, listener.port): own_device, **others}
    # Collectives know no TLS: a run without that word has none between hosts.
    may_have = trust.is_network_trusted or all(map(is_loopback, devices))
    if not (may_have and has_collectives(config, len(devices))):
        devices = dict.fromkeys(devices, "")
    return measure_pairs(devices, trust)


def has_collectives(config: RunConfig | None, num_hosts: int) -> bool:
    """Between hosts: weights, gradients, or the activations of a large replica."""
    if config is None:
        return num_hosts > 1
    if num_hosts == 1:
        return config.weight_sync.transport == "collective"
    by_relay = config.weight_sync.transport == "relay"
    return not by_relay or config.num_trainer_ranks > 1 or config.rollout.hosts > 1
