"""What the doctor says: a finding, and the fault that it is an instance of."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

NOTHING = "nothing found"


class Severity(StrEnum):
    """Example: Severity("error").rank > Severity.WARNING.rank"""

    FINE = "fine"
    """Looked at, and nothing is wrong."""
    WARNING = "warning"
    """A run works, but slower, or it may fail later."""
    ERROR = "error"
    """A run fails, or learns from something else than it should."""

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report, with its reason and its remedy.

    Example: Finding("tools", "ip", Severity.WARNING, "ip: not found", "...", "apt-get install ...")
    """

    check: str
    fault: str
    """Of the check; empty where it is fine."""
    severity: Severity
    what: str
    why: str = ""
    mend: str = ""
    """A command, or what to change; lines of a shell."""

    def to_tree(self) -> dict[str, str]:
        """For JSON."""
        return {name: str(value) for name, value in asdict(self).items()}

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> Finding:
        """What `to_tree` made. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(**tree | {"severity": Severity(tree["severity"])})


@dataclass(frozen=True, slots=True)
class Fault:
    """What can be wrong, in words with {places} that `found` fills.

    Example: Fault("ip", Severity.WARNING, "{tool} is not on PATH", "...", "apt-get install ...")
    """

    name: str
    severity: Severity
    what: str
    why: str
    mend: str
    symptom: str = ""
    """The words by which it shows itself where nobody looked before, as logs have them."""

    def at(self, severity: Severity) -> Fault:
        """The same where the facts make it better or worse than it usually is."""
        return replace(self, severity=severity)


@dataclass(frozen=True, slots=True)
class Check:
    """A family of faults that are read from the same facts.

    Example:
        TOOLS = Check("tools", "programs on PATH", (IP,))
        list(TOOLS.report([TOOLS.found(IP, tool="ip")]))
    """

    name: str
    looks_at: str
    faults: tuple[Fault, ...]

    def found(self, fault: Fault, **places: object) -> Finding:
        what, why, mend = (text.format(**places) for text in (fault.what, fault.why, fault.mend))
        return Finding(self.name, fault.name, fault.severity, what, why, mend)

    def fine(self, seen: str = "") -> Finding:
        return Finding(self.name, "", Severity.FINE, seen or NOTHING)
