"""What the doctor says: a finding, and the fault that it is an instance of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

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

    Example: Finding("tools", "no-compiler", Severity.WARNING, "no compiler", "...", "apt-get install ...")
    """

    check: str
    fault: str
    """The fault's name within the check; empty where it is fine."""
    severity: Severity
    what: str
    why: str = ""
    fix: str = ""
    """A command, or what to change; lines of a shell."""

    def to_tree(self) -> dict[str, str]:
        """For JSON."""
        return {name: str(value) for name, value in asdict(self).items()}

    @classmethod
    def from_tree(cls, tree: Mapping[str, str]) -> Finding:
        """What `to_tree` made. Raises KeyError or ValueError for anything else."""
        texts = (tree[name] for name in ("what", "why", "fix"))
        return cls(tree["check"], tree["fault"], Severity(tree["severity"]), *texts)


@dataclass(frozen=True, slots=True)
class KnownFault:
    """What can be wrong, in words with {places} that `found` fills. docs/doctor.md lists all of them.

    Example: KnownFault("tools/no-compiler", Severity.WARNING, "no compiler is on PATH ({names})", "...", "apt-get install ...")
    """

    name: str
    """The check's name and its own."""
    severity: Severity
    what: str
    why: str
    fix: str

    def at(self, severity: Severity) -> KnownFault:
        """The same where the facts make it better or worse than it usually is."""
        return replace(self, severity=severity)

    def found(self, **places: object) -> Finding:
        what, why, fix = (text.format(**places) for text in (self.what, self.why, self.fix))
        check, _, name = self.name.partition("/")
        return Finding(check, name, self.severity, what, why, fix)
