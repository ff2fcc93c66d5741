"""What becomes of versions and of their memory, without any."""

from types import SimpleNamespace
from typing import Any

from trimaran.types import PolicyVersion, VersionId
from weights.delta.changed_elements import Undo
from weights.receiving.contents import Contents, Overlaid, StagedWeights
from weights.transports.relay.stock import Holding


def weights_of(step: int, root: str = "", own: bool = True) -> StagedWeights:
    version = PolicyVersion("run", VersionId(0, step), root or f"root-{step}")
    shadow: Any = SimpleNamespace(step=step, own=own)
    return StagedWeights(version, shadow, "a", {(version.root, ""): Holding({})})


ONE, TWO, THREE = weights_of(1), weights_of(2), weights_of(3)


def test_a_version_is_written_over_the_held_one_or_beside_it():
    held = Contents(held=ONE)
    assert held.make_way(beside=False) == Contents(spare=ONE.shadow)
    assert held.make_way(beside=True) == held


def test_memory_that_an_engine_may_read_is_not_used_again():
    assert Contents(staged=ONE).make_way(beside=False) == Contents()
    beside = Contents(held=ONE, staged=TWO, spare=THREE.shadow)
    assert beside.make_way(beside=True) == Contents(held=ONE, spare=THREE.shadow)
    laid_over = Contents(staged=TWO, overlaid=Overlaid(ONE, Undo()))
    assert laid_over.make_way(beside=False) == Contents()


def test_two_shadows_take_turns():
    contents = Contents(held=ONE, coming=TWO).arrive()
    assert contents == Contents(held=ONE, staged=TWO)
    assert contents.keep() == Contents(held=TWO, spare=ONE.shadow)
    assert contents.discard() == Contents(held=ONE, spare=TWO.shadow)


def test_what_is_borrowed_is_not_held():
    borrowed = weights_of(2, own=False)
    assert Contents(staged=borrowed).keep() == Contents()


def test_what_a_delta_was_applied_to_is_held_no_more():
    laid_over = Contents(staged=TWO, overlaid=Overlaid(ONE, Undo()))
    assert laid_over.given == TWO.given
    assert laid_over.keep() == Contents(held=TWO)


def test_of_one_version_that_is_here_twice_the_held_copy_is_given():
    again = weights_of(4, ONE.version.root)
    for contents in (Contents(held=ONE, coming=again), Contents(held=ONE, staged=again)):
        assert contents.given == ONE.given
    assert Contents(held=ONE, coming=TWO).given == {**ONE.given, **TWO.given}
    assert Contents(spare=ONE.shadow).given == {}
