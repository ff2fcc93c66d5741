"""The table of docs/extending.md: which features each family has. `python -m tests.extending.families` prints it."""

from __future__ import annotations

from trimaran.choices import FAMILIES
from trimaran.model.families.family import Experts, Family, Feature

FEATURES = (
    *("`model_type`", "biases of q, k, v", "norms of heads", "latent attention", "window"),
    *("partial rope", "norms behind, of 1 + w", "scaled embeddings", "activation"),
    *("scores of experts", "shared expert", "experts in a stack", "vision tower"),
)


def table() -> str:
    rows = [FEATURES, ("---",) * len(FEATURES)]
    rows += [(f"`{name}`", *_row(FAMILIES.load(name))) for name in FAMILIES.built_in]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(family: Family) -> tuple[str, ...]:
    experts = family.experts or Experts()
    attention = (family.biases, family.head_norms, family.latent, family.window)
    norms = family.norms_behind and family.norms_around_one
    return (
        *map(_word, (*attention, family.partial_rope, norms, family.scaled_embeddings)),
        family.activation,
        experts.scores if family.experts else "",
        ("with a gate" if experts.shared_gate else "yes") if experts.shared else "",
        _word(experts.stacked),
        _word(family.takes_images),
    )


def _word(feature: Feature) -> str:
    return f"`{feature}`" if isinstance(feature, str) else "yes" * feature


if __name__ == "__main__":
    print(table())
