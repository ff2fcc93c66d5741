"""No float64 goes through a collective: see collectives.py, whose guard stands in all of these tests."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.trainer.test_policy import make_policy
from trimaran.config import RunConfig

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("single_rank")
def test_what_ranks_agree_on_goes_through_the_guard(make_config: Callable[..., RunConfig]) -> None:
    policy = make_policy(make_config())
    sums = torch.ones(2)
    policy.reduce(sums, torch.ones(1))
    assert sums.tolist() == [1, 1]
    assert policy.any_rank(torch.tensor([True, False])).tolist() == [True, False]
    with pytest.raises(TypeError, match="float64"):
        policy.reduce(sums.double(), torch.ones(1))


def test_only_the_trainer_reduces() -> None:
    """Weight sync broadcasts bytes, in process groups of its own that MindSpeed does not see."""
    callers = {
        path.relative_to(ROOT).parts[1]
        for folder in ("services", "weights")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr.startswith(("all_", "reduce_"))
        if isinstance(node.value, ast.Name) and node.value.id == "dist"
    }
    assert callers == {"trainer"}
