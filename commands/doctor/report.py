"""The report in its two forms: lines for people, and JSON for machines, whose keys docs/doctor.md has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from commands.doctor.finding import NOTHING, Finding, Severity
from commands.doctor.hosts import Link

FORM = 1


@dataclass(frozen=True, slots=True)
class HostReport:
    """Example: HostReport("node-1", (finding,))"""

    host: str
    findings: Sequence[Finding]


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """Example: DoctorReport((HostReport("node-1", ()),)).worst is Severity.FINE"""

    hosts: Sequence[HostReport]
    links: Sequence[Link] = ()

    @property
    def worst(self) -> Severity:
        every = (finding.severity for host in self.hosts for finding in host.findings)
        return max(every, key=lambda severity: severity.rank, default=Severity.FINE)

    def to_tree(self) -> dict[str, Any]:
        hosts = [
            {"host": one.host, "findings": [finding.to_tree() for finding in one.findings]}
            for one in self.hosts
        ]
        return {"form": FORM, "hosts": hosts, "links": [asdict(link) for link in self.links]}

    def lines(self) -> Iterator[str]:
        """Errors first; what is fine in one line at the end."""
        for host in self.hosts:
            yield f"{host.host}:"
            ordered = sorted(host.findings, key=lambda finding: -finding.severity.rank)
            for finding in ordered:
                if finding.severity is not Severity.FINE:
                    yield f"  {finding.severity}: {finding.what}"
                    yield f"    why: {finding.why}"
                    first, *others = finding.fix.splitlines() or [""]
                    yield f"    fix: {first}"
                    yield from (f"         {line}" for line in others)
            if fine := [one for one in ordered if one.severity is Severity.FINE]:
                words = (
                    one.check if one.what == NOTHING else f"{one.check} ({one.what})"
                    for one in fine
                )
                yield f"  fine: {', '.join(words)}"
        for link in self.links:
            if not link.said:
                answer = f"answer after {link.seconds * 1000:.3g} ms"
                yield f"link {link.start} to {link.end}: {link.speed}, {answer}"
