"""Whether the store keeps what it acknowledges, and how long it takes."""

from __future__ import annotations

from collections.abc import Iterator

from commands.doctor.finding import Finding, KnownFault, Severity
from trimaran.store import ServerFacts

SLOW_SECONDS = 0.02

UNREACHABLE = KnownFault(
    "store/unreachable",
    Severity.ERROR,
    "{store}: {said}",
    "without the store no run starts, and one that goes on is held after a while",
    "redis-cli -u redis://HOST:PORT ping   # from this host: address, firewall, password_file",
)
WEAK = KnownFault(
    "store/not-durable",
    Severity.ERROR,
    "{store}: {weakness}",
    "a crash of the server then loses records that were acknowledged, and a run goes on from a past"
    " that its trainer has left",
    "redis-cli {settings}   # and the same in redis.conf, or they are gone after a restart",
)
SLOW = KnownFault(
    "store/slow",
    Severity.WARNING,
    "{store} answers after {milliseconds:.0f} ms",
    "every record and every heartbeat waits for it",
    "redis-cli --latency   # put it nearer to the manager, or on a faster disk",
)


def check_store(facts: ServerFacts) -> Iterator[Finding]:
    if facts.said:
        yield UNREACHABLE.found(store=facts.store, said=facts.said)
    if facts.weakness:
        severity = Severity.WARNING if facts.is_accepted else Severity.ERROR
        settings = f"config set {facts.wanted}"
        places = {"store": facts.store, "weakness": facts.weakness, "settings": settings}
        yield WEAK.at(severity).found(**places)
    if facts.seconds > SLOW_SECONDS:
        yield SLOW.found(store=facts.store, milliseconds=facts.seconds * 1000)
