"""The recipes of a reward rule and of a metric."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from services.controller.reporting.step_metrics import describe_terms
from tests.extending.recipes import RECIPES
from tests.observability.metrics import markdown
from tests.reward.groups import group_of
from tests.reward.test_server import SECONDS, configure, serving
from trimaran.errors import InternalError
from trimaran.telemetry import metrics
from trimaran.telemetry.metrics import METRICS, find_metric, read_metric
from trimaran.telemetry.run_files import MetricsWriter, read_json_lines
from trimaran.trust.allowed import ALLOW_VARIABLE
from trimaran.types import Score


def write_rule(folder: Path) -> dict[str, dict[str, object]]:
    """The recipe's section of rules, with the path that reading its run.yaml makes of it."""
    recipe = RECIPES["A reward rule"]
    (folder / "style.py").write_text(recipe.files["style.py"])
    ((name, rule),) = recipe.run["reward"]["rules"].items()
    return {name: {**rule, "function": f"{folder}/{rule['function']}"}}


async def test_the_rule_judges_and_its_other_numbers_are_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = write_rule(tmp_path)
    monkeypatch.setenv(ALLOW_VARIABLE, str(rules["style"]["function"]))
    async with serving(configure(rules), tmp_path) as client:
        found = await client.score_group(group_of(["a b c d", "a b"]), SECONDS)
    assert found == (
        Score(0.0, {"style": 0.0, "style.words": 4.0}),
        Score(0.2, {"style": 1.0, "style.words": 2.0}),
    )
    writer = MetricsWriter(tmp_path)
    writer.write("step", 1, describe_terms(found))
    writer.close()
    (row,) = read_json_lines(tmp_path / "metrics.jsonl")
    key = "reward/term/style.words/mean"
    assert row[key] == 3.0
    assert f"`{key}`" in RECIPES["A metric"].text


def test_a_metric_that_is_declared_and_computed_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = RECIPES["A metric"].parts
    declared = read_metric(parts["trimaran/telemetry/metrics.py"])
    (key, value), *_ = eval(
        f"{{{parts['services/controller/reporting/step_metrics.py']}}}",
        {"lengths": [3, 2, 1], "median": median},
    ).items()
    with pytest.raises(InternalError, match="is not declared"):
        find_metric(key)
    monkeypatch.setattr(metrics, "METRICS", (*METRICS, declared))
    writer = MetricsWriter(tmp_path)
    writer.write("step", 1, {key: value})
    writer.close()
    find_metric.cache_clear()
    (row,) = read_json_lines(tmp_path / "metrics.jsonl")
    assert row[key] == 2
    assert f"| `{key}` | tokens | {declared.meaning} |" in list(markdown())
