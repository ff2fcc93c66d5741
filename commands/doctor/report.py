"""The report in its two forms: lines for people, and JSON for machines, whose keys docs/doctor.md has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from commands.doctor.finding import NOTHING, Finding, Severity

FORM = 1


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """Example: DoctorReport("node-1", (finding,)).worst is finding.severity"""

    host: str
    findings: Sequence[Finding]

    @property
    def worst(self) -> Severity:
        every = (finding.severity for finding in self.findings)
        return max(every, key=lambda severity: severity.rank, default=Severity.FINE)

    def to_tree(self) -> dict[str, Any]:
        findings = [finding.to_tree() for finding in self.findings]
        return {"form": FORM, "host": self.host, "findings": findings}

    def lines(self) -> Iterator[str]:
        """Errors first; what is fine in one line at the end."""
        yield f"{self.host}:"
        ordered = sorted(self.findings, key=lambda finding: -finding.severity.rank)
        for finding in ordered:
            if finding.severity is not Severity.FINE:
                yield f"  {finding.severity}: {finding.what}"
                yield f"    why: {finding.why}"
                first, *others = finding.fix.splitlines() or [""]
                yield f"    fix: {first}"
                yield from (f"         {line}" for line in others)
        if fine := [one for one in ordered if one.severity is Severity.FINE]:
            words = (
                one.check if one.what == NOTHING else f"{one.check} ({one.what})" for one in fine
            )
            yield f"  fine: {', '.join(words)}"
