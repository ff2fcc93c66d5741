"""Examples of several lines in docstrings are Python; those of the types and the errors run."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trimaran import errors, types

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^Example:\n((?: {4}.*\n|\n)+)", re.MULTILINE)
LINE = re.compile(r"Example: `(.+)`")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def find_blocks() -> Iterator[Any]:
    for package in ("trimaran", "weights", "services", "commands"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
                for code in BLOCK.findall(f"{text}\n"):
                    name = getattr(node, "name", "module")
                    yield pytest.param(code, id=f"{path.relative_to(ROOT)}:{name}")


@pytest.mark.parametrize("code", [*find_blocks()])
def test_an_example_is_python(code: str) -> None:
    compile(f"async def example():\n{code}", "<example>", "exec")


def find_runnable(module: ModuleType) -> Iterator[Any]:
    for name, item in vars(module).items():
        text = inspect.getdoc(item) if getattr(item, "__module__", "") == module.__name__ else None
        for code in [*BLOCK.findall(f"{text}\n"), *LINE.findall(text or "")]:
            if "async for" not in code:
                yield pytest.param(module, textwrap.dedent(code), id=name)


@pytest.mark.parametrize(("module", "code"), [*find_runnable(types), *find_runnable(errors)])
def test_an_example_runs(module: ModuleType, code: str) -> None:
    if code.startswith("raise "):
        with pytest.raises(errors.TrimaranError):
            exec(code, dict(vars(module)))
    else:
        exec(code, dict(vars(module)))
