"""What the recipes that edit the tree ask a reader to open is there; and each recipe is complete."""

from __future__ import annotations

import ast
import re

import pytest

from tests.extending.recipes import RECIPES, ROOT
from trimaran import choices
from trimaran.choices import Choices

TITLES = (
    *("A loss", "An advantage", "A reward rule", "A transport", "An inference engine"),
    *("A metric", "An RPC", "A store", "A model family", "A dataset format", "An environment"),
)

NAMES = {
    "A loss": {"services/trainer/grpo/losses.py": "PpoClip"},
    "An advantage": {
        "trimaran/choices.py": "LOSSES ADVANTAGES AGGREGATIONS",
        "trimaran/config/recipes.py": "RECIPES",
    },
    "A reward rule": {"services/reward/rules/__init__.py": "RULES"},
    "A transport": {
        "trimaran/types.py": "Source Offer",
        "trimaran/wire/messages.py": "SOURCES",
        "trimaran/config/values.py": "TransportName",
        "weights/transports/__init__.py": "make_carriers",
        "services/weight_sync/staging/transfer_plan.py": "plan_stage",
    },
    "A metric": {
        "trimaran/telemetry/metrics.py": "TABLE",
        "services/controller/reporting/step_metrics.py": "describe_batch",
        "services/trainer/step/objective.py": "token_metrics",
    },
    "An RPC": {
        "services/manager/permissions.py": "READING CHANGING",
        "trimaran/clients/run.py": "AsyncRunClient",
        "trimaran/clients/run_sync.py": "RunClient",
    },
    "A store": {
        "trimaran/store/open.py": "open_store find_store store_name is_shared run_store_url store_in store_from",
        "trimaran/store/probe.py": "probe_server",
    },
    "A model family": {
        "services/trainer/megatron/parameters/layer_rules.py": "layer_rules",
        "services/trainer/megatron/parameters/rules.py": "MappingRule",
        "trimaran/model/folder.py": "ModelFacts",
        "trimaran/model/trainer_layout.py": "check_trainer_layout",
        "services/trainer/megatron/known_keys.py": "check_keys FIXED",
        "weights/version/grid.py": "RULES",
    },
    "A dataset format": {"trimaran/data/rows.py": "Read Rows"},
}
"""Recipe -> file -> what it defines, of what the recipe names and its code does not import."""


def defined(path: str) -> set[str]:
    """The names at the top of a module."""
    found: set[str] = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


def test_there_are_the_eleven_recipes_and_each_says_all_that_a_reader_needs() -> None:
    assert tuple(RECIPES)[1:] == TITLES
    for title in TITLES:
        text = RECIPES[title].text
        for mark in ("**When.**", "**Contract.**", "**Test.**", "**Not yet.**"):
            assert mark in text, (title, mark)


@pytest.mark.parametrize("title", NAMES)
def test_what_a_recipe_names_is_there(title: str) -> None:
    for path, names in NAMES[title].items():
        for name in names.split():
            assert re.search(rf"\b{name}\b", RECIPES[title].text), name
            assert name in defined(path), (path, name)


def test_every_group_of_entry_points_is_in_the_document() -> None:
    groups = {value.group for value in vars(choices).values() if isinstance(value, Choices)}
    text = "".join(recipe.text for recipe in RECIPES.values())
    shown = set(re.findall(r'^ *\[project\.entry-points\."([\w.]+)"\]$', text, re.MULTILINE))
    assert shown == groups


def test_the_methods_of_the_rpc_recipe_use_what_their_classes_have() -> None:
    """They run once protoc has made their messages: in test_rpc.py."""
    recipe = RECIPES["An RPC"]
    for path, code in recipe.parts.items():
        (method,) = ast.parse(code).body
        assert isinstance(method, ast.AsyncFunctionDef)
        files = (ROOT / path, ROOT / "trimaran" / "clients" / "base.py")
        source = "".join(file.read_text(encoding="utf-8") for file in files)
        own = {
            node.attr
            for node in ast.walk(method)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
        assert own and all(re.search(rf"self\.{name}\b.*=", source) for name in own), (path, own)


def test_the_recipe_of_a_store_shows_what_the_store_does() -> None:
    """The one that `tests/trimaran/store/test_contract.py` runs."""
    ((path, shown),) = RECIPES["A store"].parts.items()

    def words(text: str) -> str:
        """Without line breaks, indents and trailing commas, which formatting moves."""
        return "".join(text.split())

    whole = words((ROOT / path).read_text(encoding="utf-8"))
    assert all(words(method) in whole for method in shown.strip().split("\n\n"))
