"""docs/algorithms.md says which functions there are, with which options and defaults."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_core import PydanticUndefined

from trimaran.choices import ADVANTAGES, AGGREGATIONS, LOSSES, Choices
from trimaran.config import AlgorithmSection

TEXT = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text(encoding="utf-8")
OPTION = re.compile(r"`(\w+)(?:: ([^`]+))?`")


def rows(key: str) -> dict[str, str]:
    """Of the table whose first column is `algorithm.<key>`: name -> the rest of the line."""
    table = TEXT.split(f"| `algorithm.{key}` |")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*)\|$", table, re.MULTILINE))


def number(value: Any) -> Any:
    """Of a float that YAML takes for text, such as 3e-4."""
    return float(value) if isinstance(value, str) else value


CASES = [("advantage", ADVANTAGES), ("loss", LOSSES), ("aggregation", AGGREGATIONS)]


@pytest.mark.parametrize(("key", "choices"), CASES)
def test_every_function_has_its_row_with_all_options_and_defaults(
    key: str, choices: Choices
) -> None:
    found = rows(key)
    assert found.keys() == choices.built_in.keys()
    for name, row in found.items():
        fields = choices.load(name).model_fields
        reported = {option: yaml.safe_load(given) for option, given in OPTION.findall(row) if given}
        assert reported.keys() <= fields.keys(), name
        for option, field in fields.items():
            if option == "type":
                continue
            assert f"`{option}" in row, (name, option)
            if field.default not in (None, PydanticUndefined):
                assert number(reported[option]) == field.default, (name, option)


def test_the_defaults_of_the_section_are_those_in_the_document() -> None:
    block = TEXT.split("```yaml\n")[1].split("```")[0]
    reported = yaml.safe_load(block)["algorithm"]
    default = AlgorithmSection().model_dump(mode="json")
    assert reported.keys() == default.keys() - {"recipe"}
    assert AlgorithmSection.model_validate(reported) == AlgorithmSection()
    for key in ("kl", "correction", "entropy"):
        assert reported[key].keys() == default[key].keys()
