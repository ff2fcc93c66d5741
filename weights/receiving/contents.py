"""What a receiver has of versions, and what can become of it.

    nothing ───▶ coming ───▶ staged ───▶ held                          over its memory, or its first
    held ──────▶ held, coming ──▶ held, staged ──▶ held, spare         beside it, on the keeper
    held ──────▶ staged, laid over its base ──▶ held                   by a delta
    anything ──▶ staged, borrowed ──▶ nothing                          in a neighbour's memory

Every other stage begins with `make_way` or with a base, and ends with `arrive`; then comes `keep` or
`discard`. A stage that fails leaves what there was before it came, without what it wrote over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trimaran.types import PolicyVersion
from weights.delta.changed_elements import Undo
from weights.memory.shadow import Shadow
from weights.transports.relay.stock import Holding, Key, contents_of


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """A version in a shadow. Once it is staged, every digest is that of its manifest."""

    version: PolicyVersion
    shadow: Shadow
    attempt: str
    """The stage that brought it."""
    given: Mapping[Key, Holding] = field(default_factory=dict, compare=False, repr=False)
    """To other replicas."""


@dataclass(frozen=True, slots=True)
class Overlaid:
    """What a delta was applied to, in place."""

    base: StagedWeights
    undo: Undo


@dataclass(frozen=True, slots=True)
class Contents:
    """At one moment. No method changes any memory.

    Example: Contents(held=weights).make_way(beside=True).spare is None
    """

    held: StagedWeights | None = None
    """What the engine has loaded."""
    coming: StagedWeights | None = None
    """Its blocks land."""
    staged: StagedWeights | None = None
    """What came whole, and an engine may be loading."""
    overlaid: Overlaid | None = None
    """What `staged` was made of; nothing is held then."""
    spare: Shadow | None = None
    """Memory for the next version, which nothing here reads."""

    def make_way(self, beside: bool) -> Contents:
        """For a version that takes the spare memory: that of the held one, unless it comes beside it.

        A version that is still staged may be read by an engine: its memory is dropped, not reused.
        """
        if beside:
            return Contents(held=self.held, spare=self.spare)
        return Contents(spare=self.held.shadow if self.held else self.spare)

    def arrive(self) -> Contents:
        return replace(self, coming=None, staged=self.coming)

    def keep(self) -> Contents:
        """The engine has loaded what is staged. What was borrowed goes back to its owner."""
        if self.staged and not self.staged.shadow.own:
            return Contents()
        return Contents(held=self.staged, spare=self.held.shadow if self.held else self.spare)

    def discard(self) -> Contents:
        """What is staged, where it came by blocks: nothing reads it any more."""
        return Contents(held=self.held, spare=self.staged.shadow if self.staged else self.spare)

    @property
    def given(self) -> dict[Key, Holding]:
        """To other replicas. Of one version that is here twice, the one that stays longer."""
        weights = (self.coming, self.staged, self.held)
        return {key: holding for one in weights if one for key, holding in one.given.items()}


def give_all(shadow: Shadow, filling: bool = False) -> dict[Key, Holding]:
    """`filling`: each block only once it has landed."""
    holding = Holding(contents_of(shadow.buffer, shadow.layout), filling=filling)
    return {(shadow.manifest.root, ""): holding}
