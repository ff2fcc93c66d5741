"""Whether the store keeps what it acknowledges, and how long it takes."""

from __future__ import annotations

from collections.abc import Iterator

from trimaran.doctor.finding import Check, Fault, Finding, Severity
from trimaran.store import ServerFacts

SLOW_SECONDS = 0.02

UNREACHABLE = Fault(
    "unreachable",
    Severity.ERROR,
    "{store}: {said}",
    "without the store no run starts, and one that goes on is held after a while",
    "redis-cli -u redis://HOST:PORT ping   # from this host: address, firewall, password_file",
    symptom="Connection refused; NOAUTH Authentication required",
)
WEAK = Fault(
    "not-durable",
    Severity.ERROR,
    "{store}: {weakness}",
    "a crash of the server then loses records that were acknowledged, and a run goes on from a past"
    " that its trainer has left",
    "redis-cli {settings}   # and the same in redis.conf, or they are gone after a restart",
    symptom="LostWritesError",
)
SLOW = Fault(
    "slow",
    Severity.WARNING,
    "{store} answers after {milliseconds:.0f} ms",
    "every record and every heartbeat waits for it",
    "redis-cli --latency   # put it nearer to the manager, or on a faster disk",
)
CHECK = Check(
    "store",
    "a Redis server that `--store` names: does it answer, how fast, and is it set to keep what it"
    " acknowledges (`appendonly`, `appendfsync`, `maxmemory-policy`)",
    (UNREACHABLE, WEAK, SLOW),
)


def check_store(facts: ServerFacts) -> Iterator[Finding]:
    if facts.said:
        yield CHECK.found(UNREACHABLE, store=facts.store, said=facts.said)
    if facts.weakness:
        severity = Severity.WARNING if facts.is_accepted else Severity.ERROR
        settings = f"config set {facts.wanted}"
        places = {"store": facts.store, "weakness": facts.weakness, "settings": settings}
        yield CHECK.found(WEAK.at(severity), **places)
    if facts.seconds > SLOW_SECONDS:
        yield CHECK.found(SLOW, store=facts.store, milliseconds=facts.seconds * 1000)
