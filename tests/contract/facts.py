"""What is said about our sources, and what is known where it is said."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.contract.calls import Def
from tests.contract.values import Class, Values


@dataclass(frozen=True)
class Fact:
    where: str
    what: str
    objection: str = ""
    """Why it does not hold; empty when it does."""
    is_guarded: bool = False
    """Our code says what it does where this is missing."""

    @property
    def holds(self) -> bool:
        return not self.objection or self.is_guarded

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f": {self.objection}" if self.objection else "")


@dataclass
class Scope:
    """A function of one of the sources, or a module's top."""

    module: str
    cls: Class | None = None
    name: str = ""
    local: dict[str, Values] = field(default_factory=dict)
    """By the text of the expression, as `self.x` may be narrowed too."""
    dicts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The keys that a local dictionary was given."""
    guarded: frozenset[tuple[str, str]] = frozenset()
    """(object, attribute) that hasattr or getattr asks for."""
    may_lack: bool = False
    """Under `try` with an except clause for what is missing."""
    function: Def | None = None

    @property
    def rest(self) -> str:
        """The function's own name for further positional arguments; empty where it takes none."""
        vararg = self.function.args.vararg if self.function else None
        return vararg.arg if vararg else ""
