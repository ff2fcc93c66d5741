"""Every task of reasoning-gym, from a row of a dataset to a score."""

from __future__ import annotations

import ast
import builtins
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reward.functions.loading import load_function
from services.reward.outcome import Value
from services.reward.rules import find_rule, puzzles
from services.reward.rules.puzzles import (
    _FUNCTION,
    EVALUATES_LISTS,
    PARSES_EXPRESSIONS,
    is_safe,
    puzzle,
)
from services.reward.terms import FunctionSpec
from trimaran.config import DatasetSection
from trimaran.data.prompts import Dataset
from trimaran.errors import InputError
from trimaran.rewards import ReferenceUnusableError, Sample

factory = pytest.importorskip("reasoning_gym.factory", reason="needs the extra reasoning-gym")

WITHOUT_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
TASKS = sorted(set(factory.DATASETS) - {"composite"})


def entry_of(task: str, seed: int = 8, **config: Any) -> dict[str, Any]:
    return factory.create_dataset(task, size=1, seed=seed, **config)[0]


def samples(folder: Path, entry: dict[str, Any], *texts: str) -> tuple[Sample, ...]:
    """Written as a dataset and read back, with these completions."""
    path = folder / "train.jsonl"
    path.write_text(json.dumps(entry | {"answer": entry["answer"] or ""}) + "\n")
    (prompt,) = Dataset(DatasetSection(path=path, prompt_key="question")).texts()
    row = {"answer": prompt.answer, "extras": prompt.extras, "messages": prompt.messages}
    return tuple(Sample(text, **row) for text in texts)


def score(task: str, *samples: Sample, **options: Any) -> list[float]:
    rule = find_rule(f"reasoning_gym:{task}", "key")
    rule.check_options(options, "key.options")
    spec = FunctionSpec(rule.target, json.dumps({**options, **rule.fixed}))
    outcomes = load_function(spec).judge_batch(samples)
    least, most = rule.bounds(options)
    found = [outcome.value for outcome in outcomes if isinstance(outcome, Value)]
    assert all(least <= value <= most for value in found)
    return found


@pytest.mark.parametrize("task", TASKS)
def test_the_answer_of_the_library_is_right_and_none_is_wrong(task: str, tmp_path: Path) -> None:
    entry = entry_of(task)
    right, *wrong = score(
        task,
        *samples(
            tmp_path,
            entry,
            f"<think>so <answer>no</answer></think><answer>\n{entry['answer']}\n</answer>",
            "<answer></answer>",
            "",
            "\ud800\u202e<answer>\x00",
        ),
    )
    assert (entry["answer"] is None) == (task in WITHOUT_ANSWER)
    assert right == 1 or task in WITHOUT_ANSWER
    assert max(wrong) <= 0.05


def test_a_row_of_a_composite_is_scored_by_its_task(tmp_path: Path) -> None:
    entry = entry_of("leg_counting")
    (good,) = samples(tmp_path, entry, f"<answer>{entry['answer']}</answer>")
    assert score("composite", good) == [1]
    entry["metadata"]["source_dataset"] = "composite"
    (bad,) = samples(tmp_path, entry, "<answer>1</answer>")
    with pytest.raises(ReferenceUnusableError, match="source_dataset is no task but 'composite'"):
        score("composite", bad)


def test_the_config_that_a_dataset_was_made_with(tmp_path: Path) -> None:
    entry = {"question": "24?", "answer": "(10 + 2) * 2 * 1", "metadata": {}}
    (sample,) = samples(tmp_path, entry, f"<answer>{entry['answer']}</answer>")
    assert score("puzzle24", sample) == [1]
    with pytest.raises(ReferenceUnusableError, match="with the config of the options"):
        score("puzzle24", sample, config={"min_value": 2})
    for options in ({"config": 2}, {"tag": ".*"}):
        with pytest.raises(InputError, match=r"options\.\w+: .* is not a value"):
            score("puzzle24", sample, **options)


@pytest.mark.parametrize("metadata", [None, "[1]", "{", "x", ""])
def test_a_row_without_metadata(metadata: str | None) -> None:
    extras = {} if metadata is None else {"metadata": metadata}
    with pytest.raises(ReferenceUnusableError, match="no column metadata"):
        puzzle(Sample("<answer>4</answer>", "4", extras), "leg_counting")


def test_a_row_of_another_task(tmp_path: Path) -> None:
    entry = entry_of("leg_counting")
    (sample,) = samples(tmp_path, entry, "<answer>1</answer>")
    with pytest.raises(ReferenceUnusableError, match="the row's own answer"):
        score("word_ladder", sample)


class Task:
    """In place of a task of the library: it says yes to everything but one text, on which it raises."""

    def score_answer(self, answer: str | None, entry: object) -> float:
        if answer == "not this":
            raise OverflowError("too much")
        return 1.0


@pytest.fixture
def credulous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puzzles, "_dataset", lambda *_: Task())


def judged(task: str, answer: str) -> float:
    return puzzle(Sample(f"<answer>{answer}</answer>", "4", {"metadata": "{}"}), task)


@pytest.mark.usefixtures("credulous")
def test_an_answer_that_the_task_cannot_digest_is_wrong() -> None:
    assert judged("coin_flip", "not this") == 0
    assert judged("coin_flip", "this") == 1


@pytest.mark.usefixtures("credulous")
@pytest.mark.parametrize("write", [str, str.upper, " ".join, "1+{}j".format])
def test_no_number_is_near_no_number(write: Callable[[str], str]) -> None:
    assert judged("complex_arithmetic", write(str(math.nan))) == 0
    assert judged("complex_arithmetic", write("1")) == 1


@pytest.mark.parametrize("task", [*EVALUATES_LISTS, *PARSES_EXPRESSIONS])
def test_what_a_model_wrote_is_never_run(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[str] = []
    evaluate = builtins.eval

    def note(code: Any, *names: Any) -> Any:
        evaluated.append(
            code if isinstance(code, str) else repr(code.co_consts) + repr(code.co_names)
        )
        return evaluate(code, *names)

    sample = samples(tmp_path, entry_of(task), "<answer>harmless(1)</answer>")
    monkeypatch.setattr(builtins, "eval", note)
    assert score(task, *sample)[0] <= 0.05
    assert "harmless" not in " ".join(evaluated)


@pytest.mark.parametrize(
    "answer",
    ["(1 + 2)*3 - 4/5", "x**2/2 + C", "-2.5*sin(3*x) + exp(x)*log(x)", "asinh(x) + Abs(t)", "3!"],
)
def test_expressions_are_parsed(answer: str) -> None:
    assert is_safe("countdown", answer)


WORDS = st.text(st.characters(categories=["L"]), min_size=2).filter(
    lambda w: not _FUNCTION.fullmatch(w)
)
MARKS = st.characters(
    exclude_categories=["L", "M", "N", "Z", "Cc"], exclude_characters="+-*/^(),.!"
)
ATTRIBUTES = st.builds("x{}.{}x".format, st.text(" "), st.text(" "))


@given(WORDS | MARKS | ATTRIBUTES | st.just("_"))
def test_what_is_no_expression_is_not(other: str) -> None:
    assert not is_safe("countdown", f"1+{other}")
    assert is_safe("leg_counting", other)  # which compares texts


def test_the_guards_cover_what_the_installed_package_evaluates() -> None:
    """Another version may evaluate elsewhere; then puzzles.py needs a look."""
    folder = Path(str(factory.__file__)).parent
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "score_answer":
                text = ast.unparse(node)
                if re.search(r"\b(eval|exec|parse_expr|sympify)\(", text):
                    found.add(path.stem)
    reads_the_row_only = {"number_sorting"}
    parser_of_its_own = {"propositional_logic"}
    assert found - reads_the_row_only - parser_of_its_own == {*EVALUATES_LISTS, *PARSES_EXPRESSIONS}


def test_an_unknown_task_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        InputError,
        match=r"reward\.rules\.x: .* no task 'leg_count'; did you mean leg",
    ):
        find_rule("reasoning_gym:leg_count", "reward.rules.x")
    with pytest.raises(InputError, match="no task ''; it has ab, acre"):
        find_rule("reasoning_gym:", "reward.rules.x")


def test_without_the_package() -> None:
    code = (
        "import sys; sys.modules['reasoning_gym'] = None\n"
        "from services.reward.rules import find_rule\n"
        "try: find_rule('reasoning_gym:gcd', 'key')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout.startswith("InputError key: reasoning_gym:gcd needs the package")
    assert "pip install 'trimaran[reasoning-gym]'" in done.stdout
