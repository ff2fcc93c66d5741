"""Asks the doctors of other hosts, and lets each pair of hosts measure its link."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import Any

from trimaran.config import RunConfig, config_to_tree
from trimaran.device import BACKENDS
from trimaran.doctor.finding import Finding
from trimaran.doctor.links import Link
from trimaran.doctor.listener import PROBE_SECONDS
from trimaran.doctor.others import Other
from trimaran.doctor.wire import CALL_SECONDS, Line, clock_offset, dial
from trimaran.errors import InputError, TrimaranError
from trimaran.network import split
from trimaran.trust import Trust

TRANSPORTS: Mapping[str, str] = {"": "relay", **BACKENDS}
"""By the device of both ends' group; empty without a group."""


def ask_host(
    address: str, trust: Trust, config: RunConfig | None, has_redis: bool = False
) -> tuple[Other, list[Finding]]:
    """What a doctor at host:port says of its own host, and of its clock. `has_redis`: the run's store
    is there.

    Raises InputError for what is no host:port.
    """
    tree = config_to_tree(config) if config is not None else None
    try:
        with dial(address, trust) as line:
            ahead, within = clock_offset(line)
            line.socket.settimeout(PROBE_SECONDS)
            told = line.ask({"ask": "examine", "config": tree, "has_redis": has_redis})
        found = [Finding.from_tree(finding) for finding in told["findings"]]
        facts = (told["versions"], told["model_bytes"], told.get("device", ""))
        return Other(address, "", ahead, within, *facts), found
    except InputError:
        raise
    except (TrimaranError, OSError, KeyError) as error:
        return Other(address, str(error)), []


def measure_pairs(devices: Mapping[str, str], trust: Trust) -> list[Link]:
    """Each way by TCP, and each pair with devices of one kind once by the library that goes with it.
    `devices`: by host:port what its collectives use, npu, cuda or cpu; empty where it has none. One host
    alone measures the way to itself."""
    members = list(devices)
    ways = list(permutations(members, 2)) or [(members[0], members[0])]
    links = [_measure(start, end, trust) for start, end in ways]
    for start, end in list(combinations(members, 2)) or ways:
        device = devices[start]
        # NCCL and HCCL refuse two ranks on one device.
        if device and device == devices[end] and (start != end or device == "cpu"):
            links.append(_measure(start, end, trust, device))
    return links


def own_address(peers: Sequence[str]) -> str:
    """That by which the first of them is reached; no packet is sent."""
    if not peers:
        return "127.0.0.1"
    host, port = split(peers[0])
    family = socket.getaddrinfo(host, port)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect((host, port))
        return str(asking.getsockname()[0])


def _measure(start: str, end: str, trust: Trust, device: str = "") -> Link:
    """`device`: for a group; empty for TCP."""
    transport = TRANSPORTS[device]
    try:
        with dial(start, trust) as line:
            line.socket.settimeout(PROBE_SECONDS + CALL_SECONDS)
            if device:
                told = _meet(line, start, end, trust, device)
            else:
                told = line.ask({"ask": "send", "to": end})
        return Link(start, end, transport, told["seconds"], told["bytes_per_second"])
    except (TrimaranError, OSError, KeyError) as error:
        return Link(start, end, transport, said=str(error))


def _meet(line: Line, start: str, end: str, trust: Trust, device: str) -> dict[str, Any]:
    """A group of two: the rendezvous lies at `start`."""
    asked = {"ask": "group", "device": device}
    port = line.ask(asked)["port"]
    host, _ = split(start)
    with dial(end, trust) as other:
        other.socket.settimeout(PROBE_SECONDS + CALL_SECONDS)
        return other.ask({**asked, "meet": f"{host}:{port}"})
