"""Which tokens may train: those of versions that we made, on replicas that proved to hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trimaran.errors import UnprovenError
from trimaran.types import Proof, ProofLevel, TrainingBatch, VersionId


def check_proofs(
    batch: TrainingBatch,
    proofs: Iterable[Proof],
    recorded_roots: Callable[[VersionId], frozenset[str]],
    needed: ProofLevel = ProofLevel.DELIVERED,
) -> None:
    """Raises UnprovenError naming replica, version and reason.

    `recorded_roots`: of a version that this run's trainers made; empty for any other. `needed`:
    `run.proof`.
    """
    by_maker = {(proof.version, proof.replica): proof for proof in proofs}
    for scored in batch.groups:
        if not all(completion.is_covered for completion in scored.group.completions_G):
            raise UnprovenError(
                f"step {batch.step}, group {scored.group.number}: some tokens do not say which"
                " replica and version made them; reissue the group"
            )
        for version, replica in sorted(scored.makers):
            proof = by_maker.get((version, replica))
            if reason := _why_not(proof, recorded_roots(version), needed):
                raise UnprovenError(
                    f"step {batch.step}, group {scored.group.number}: tokens of {replica} at"
                    f" version {version} must not train: {reason}; reissue the group"
                )


def _why_not(proof: Proof | None, roots: frozenset[str], needed: ProofLevel) -> str:
    if not roots:
        return "no trainer of this run made that version"
    if proof is None:
        return "there is no proof that the replica held it"
    if proof.fault:
        return proof.fault
    if proof.root not in roots:
        return f"the replica held root {proof.root}, made was {' or '.join(sorted(roots))}"
    if not proof.level.reaches(needed):
        return f"the proof's level is {proof.level}, and run.proof is {needed}"
    return ""
