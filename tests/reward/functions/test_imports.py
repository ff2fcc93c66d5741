"""Modules of reward functions: what they may import, and that they shadow nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.reward.functions.loading import load_function
from services.reward.outcome import Value
from services.reward.terms import FunctionSpec
from trimaran.errors import InputError
from trimaran.host import user_code
from trimaran.rewards import Sample


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave sys.path and sys.modules as they were."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(user_code, "_folders", [])
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


def score(target: object) -> float:
    (outcome,) = load_function(FunctionSpec(f"{target}:f")).judge_batch([Sample("x", "")])
    assert isinstance(outcome, Value)
    return outcome.value


def test_files_beside_it_can_be_imported_now_and_later(tmp_path: Path) -> None:
    (tmp_path / "beside_now.py").write_text("ONE = 1")
    (tmp_path / "beside_later.py").write_text("TWO = 2")
    (tmp_path / "mine.py").write_text(
        "from beside_now import ONE\n"
        "def f(sample):\n    from beside_later import TWO\n    return ONE + TWO"
    )
    assert score(tmp_path / "mine.py") == 3


@pytest.mark.parametrize("name", ["math", "trimaran"])
def test_a_file_cannot_take_the_place_of_a_module(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text("def f(sample): return 1")
    (tmp_path / "fractions.py").write_text("raise RuntimeError('shadowed')")
    known = __import__(name)
    assert score(path) == 1
    assert __import__(name) is known
    sys.modules.pop("fractions", None)
    assert score(path) == 1
    import fractions

    assert fractions.Fraction(1, 2) == 0.5


def test_files_beside_them_of_one_name_are_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / str(number)
        (folder / "parts").mkdir(parents=True)
        (folder / "parts" / "__init__.py").write_text("")
        (folder / "common_part.py").write_text(f"N = {number}")
        (folder / "mine.py").write_text("from common_part import N\ndef f(sample): return N")
        (folder / "yours.py").write_text("import parts\ndef f(sample): return 0")
    assert score(tmp_path / "1" / "mine.py") == 1
    with pytest.raises(InputError, match=r"2/common_part.py and .*1/common_part.py have one name"):
        score(tmp_path / "2" / "mine.py")


def test_dataclasses_work_in_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nimport dataclasses, pickle\n"
        "@dataclasses.dataclass\nclass D:\n    x: int\n"
        "def f(sample): return pickle.loads(pickle.dumps(D(3))).x"
    )
    assert score(tmp_path / "mine.py") == 3


def test_a_file_that_failed_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(InputError, match="ZeroDivisionError: division by zero"):
            score(path)
    path.write_text("def f(sample): return 1  # fixed, and of another length")
    assert score(path) == 1


def test_a_module_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "rewards.py").write_text("def f(sample): return 1")
    monkeypatch.syspath_prepend(tmp_path)
    assert score("my_package.rewards") == 1
    with pytest.raises(InputError, match=r"No module named 'my_package\.nothing'"):
        score("my_package.nothing")
    with pytest.raises(InputError, match=r"mine\.py: no such file"):
        score(tmp_path / "mine.py")
