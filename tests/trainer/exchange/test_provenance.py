from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from services.trainer.exchange.provenance import check_proofs
from tests.trainer.batches import completion, scored_group
from tests.trainer.episodes import Tokens, episode
from trimaran.errors import UnprovenError
from trimaran.types import Proof, ProofLevel, Segment, TrainingBatch, VersionId

FIRST, SECOND = VersionId(0, 1), VersionId(0, 2)
ROOTS = {FIRST: frozenset({"one"}), SECOND: frozenset({"two", "two again"})}


def batch_of(*makers: tuple[VersionId, str]) -> TrainingBatch:
    """One group of one completion whose tokens come from the makers, one each."""
    segments = tuple(Segment(i, i + 1, v, r) for i, (v, r) in enumerate(makers))
    one = completion([5] * len(makers))
    object.__setattr__(one, "segments", segments)
    return TrainingBatch(3, (scored_group([1], [one], [1.0], number=7),))


def proof(version: VersionId, replica: str, root: str, fault: str = "") -> Proof:
    return Proof(version, replica, root, num_blocks=4, num_loaded=1, fault=fault)


def check(
    batch: TrainingBatch,
    *proofs: Proof,
    roots: Mapping[VersionId, frozenset[str]] = ROOTS,
    needed: ProofLevel = ProofLevel.DELIVERED,
) -> None:
    check_proofs(batch, proofs, lambda version: roots.get(version, frozenset()), needed)


def test_proven_tokens_may_train() -> None:
    batch = batch_of((FIRST, "r0"), (SECOND, "r1"))
    check(batch, proof(FIRST, "r0", "one"), proof(SECOND, "r1", "two"))
    check(batch, proof(FIRST, "r0", "one"), proof(SECOND, "r1", "two again"))


def test_sampled_tokens_of_branches_need_a_maker_and_its_proof_and_given_ones_none() -> None:
    own = Tokens((7, 8, 9), (False, True, False))
    branch = Tokens((4, 5), (False, True))
    whole = episode(own, branch)
    made = replace(whole.branches[0], segments=(Segment(1, 2, SECOND, "r1"),))
    proven = (
        proof(VersionId(0, 0), "s", "zero"),
        proof(SECOND, "r1", "two"),
    )
    roots = ROOTS | {VersionId(0, 0): frozenset({"zero"})}

    def batch_with(segments: tuple[Segment, ...]) -> TrainingBatch:
        one = replace(whole, branches=(replace(made, segments=segments),))
        return TrainingBatch(3, (scored_group([1], [one], [1.0], number=7),))

    check(batch_with(made.segments), *proven, roots=roots)
    with pytest.raises(UnprovenError, match=r"tokens of r1 at version 0\.2 must not train"):
        check(batch_with(made.segments), proven[0], roots=roots)
    for segments in ((), (Segment(0, 2, SECOND, "r1"),)):
        with pytest.raises(UnprovenError, match="group 7: some tokens do not say which"):
            check(batch_with(segments), *proven, roots=roots)


@pytest.mark.parametrize(
    "segments",
    [
        (),
        (Segment(0, 1, FIRST, "r0"),),
        (Segment(1, 2, FIRST, "r0"),),
        (Segment(0, 1, FIRST, "r0"), Segment(0, 2, FIRST, "r0")),
        (Segment(0, 3, FIRST, "r0"),),
    ],
)
def test_tokens_without_a_maker_may_not_train(segments: tuple[Segment, ...]) -> None:
    batch = batch_of((FIRST, "r0"), (FIRST, "r0"))
    object.__setattr__(batch.groups[0].group.completions_G[0], "segments", segments)
    with pytest.raises(UnprovenError, match="group 7: some tokens do not say which"):
        check(batch, proof(FIRST, "r0", "one"))


@pytest.mark.parametrize(
    ("proofs", "reason"),
    [
        ([], "there is no proof that the replica held it"),
        ([proof(FIRST, "other", "one")], "there is no proof"),
        ([proof(SECOND, "r0", "two")], "there is no proof"),
        ([proof(FIRST, "r0", "one", "block 3 differs")], "block 3 differs"),
        ([proof(FIRST, "r0", "two")], "the replica held root two, made was one"),
    ],
)
def test_unproven_tokens_are_refused_with_who_and_why(proofs: list[Proof], reason: str) -> None:
    with pytest.raises(UnprovenError) as caught:
        check(batch_of((FIRST, "r0")), *proofs)
    text = str(caught.value)
    assert "step 3, group 7: tokens of r0 at version 0.1 must not train" in text
    assert reason in text


@pytest.mark.parametrize(
    ("num_loaded", "level"),
    [
        (0, ProofLevel.DELIVERED),
        (1, ProofLevel.SAMPLED),
        (3, ProofLevel.SAMPLED),
        (4, ProofLevel.LOADED),
    ],
)
def test_a_proof_below_the_level_that_the_run_needs_is_refused(
    num_loaded: int, level: ProofLevel
) -> None:
    batch, one = batch_of((FIRST, "r0")), Proof(FIRST, "r0", "one", 4, num_loaded)
    assert one.level is level
    for needed in ProofLevel:
        if level.reaches(needed):
            check(batch, one, needed=needed)
        else:
            text = f"the proof's level is {level}, and run.proof is {needed}"
            with pytest.raises(UnprovenError, match=text):
                check(batch, one, needed=needed)


def test_an_unproven_greedy_answer_may_not_train() -> None:
    """Its reward is in the advantage of every token of its group."""
    batch = batch_of((FIRST, "r0"))
    object.__setattr__(batch.groups[0], "greedy_segments", (Segment(0, 4, SECOND, "r1"),))
    check(batch, proof(FIRST, "r0", "one"), proof(SECOND, "r1", "two"))
    with pytest.raises(
        UnprovenError, match=r"group 7: tokens of r1 at version 0\.2 must not train"
    ):
        check(batch, proof(FIRST, "r0", "one"))


def test_a_version_that_no_rank_here_made_is_refused_whatever_its_proof() -> None:
    made_elsewhere = VersionId(4, 1)
    with pytest.raises(UnprovenError, match="no trainer of this run made that version"):
        check(batch_of((made_elsewhere, "r0")), proof(made_elsewhere, "r0", "one"))
