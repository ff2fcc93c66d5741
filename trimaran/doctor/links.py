"""What the network between hosts carries: each pair, by the transports of the run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trimaran.doctor.finding import Check, Fault, Finding, Severity

LONG_SECONDS = 0.05
UNEVEN = 4

BROKEN = Fault(
    "broken",
    Severity.ERROR,
    "{start} to {end} by {transport}: {said}",
    "the processes of a run must reach each other on every host",
    "a firewall between them, the wrong interface (GLOO_, NCCL_ or HCCL_SOCKET_IFNAME), or an address"
    " that only one of them knows: try `nc -vz HOST PORT` there",
    symptom="Connection timed out; Gloo connectFullMesh failed; rendezvous timed out",
)
TOO_SLOW = Fault(
    "too-slow",
    Severity.ERROR,
    "{start} to {end} by {transport} carries {speed}: a version of the model would take {seconds:.0f} s,"
    " and weight_sync.stage_timeout is {timeout:g} s",
    "no version of the weights would arrive in time",
    "weight_sync.stage_timeout={more}   # or weight_sync.delta=true, or a faster network",
)
BEHIND = Fault(
    "uneven",
    Severity.WARNING,
    "{start} to {end} by {transport} carries {speed}, and half of the other links {median} or more",
    "the slowest link sets the time of a collective",
    "ethtool INTERFACE   # negotiated speed, errors, half duplex, or another network than the others'",
)
FAR = Fault(
    "far",
    Severity.WARNING,
    "an answer from {end} to {start} by {transport} takes {milliseconds:.0f} ms",
    "each step has hundreds of calls that wait for one another",
    "ping HOST   # is the traffic routed over a gateway, a tunnel or another site?",
)
CHECK = Check(
    "links",
    "bandwidth and latency of every pair of hosts, by TCP as the relay uses it (both ways) and, where"
    " the run has collectives between them, by the library of their devices: Gloo, NCCL or HCCL",
    (BROKEN, TOO_SLOW, BEHIND, FAR),
)


@dataclass(frozen=True, slots=True)
class Link:
    """Example: Link("a", "b", "relay", seconds=0.0001, bytes_per_second=1.2e9)"""

    start: str
    end: str
    transport: str
    """relay: TCP; gloo, nccl or hccl: a group of two."""
    seconds: float = 0.0
    """Of a question and its answer."""
    bytes_per_second: float = 0.0
    said: str = ""
    """Why it could not be measured."""

    def to_tree(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def speed(self) -> str:
        return f"{self.bytes_per_second / 1e9:.3g} GB/s"


def check_links(
    links: Sequence[Link], model_bytes: float = 0, stage_timeout: float = 0
) -> Iterator[Finding]:
    """`model_bytes` 0: no run is known."""
    good = [link for link in links if not link.said]
    for link in links:
        places = {"start": link.start, "end": link.end, "transport": link.transport}
        if link.said:
            yield CHECK.found(BROKEN, said=link.said, **places)
            continue
        seconds = model_bytes / link.bytes_per_second
        if seconds > stage_timeout > 0:
            places |= {"seconds": seconds, "timeout": stage_timeout, "more": round(seconds * 2)}
            yield CHECK.found(TOO_SLOW, speed=link.speed, **places)
        same = [other.bytes_per_second for other in good if other.transport == link.transport]
        median = statistics.median(same)
        if link.bytes_per_second * UNEVEN < median:
            words = f"{median / 1e9:.3g} GB/s"
            yield CHECK.found(BEHIND, speed=link.speed, median=words, **places)
        if link.seconds > LONG_SECONDS:
            yield CHECK.found(FAR, milliseconds=link.seconds * 1000, **places)
