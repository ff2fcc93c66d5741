import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.reward.rules import RULES
from services.reward.rules.code import check_reference, code, last_code_block, programs
from services.reward.rules.code_programs import same_output
from trimaran.rewards import ReferenceUnusableError, Sample

SUM_OF_TWO = json.dumps({"inputs": ["1 2\n", "30 4\n"], "outputs": ["3\n", "34\n"]})
RIGHT_SUM = "print(sum(map(int, input().split())))"


def answered(source: str, tests: str, **extras: str) -> Sample:
    return Sample(f"I think so:\n```python\n{source}\n```\nDone.", tests, extras)


def judged(source: str, tests: str, extras: Mapping[str, str] | None = None, **options) -> float:
    given = code(answered(source, tests, **(extras or {})), **{"partial": True, **options})
    assert given["score"] == given["passed"]
    return given["score"]


# --- extraction


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("```python\na\n```", "a"),
        ("```py\na\n```\nand\n```Python\nb\n```", "b"),
        ("```\na\n```", "a"),
        ("```python\na\n```\nIts output:\n```\n3\n```", "a"),
        ("```bash\nls\n```", None),
        ("```python\na", None),
        ("no code", None),
        ("", None),
        ("- so:\n  ```python\n  if x:\n    y\n  ```", "if x:\n  y"),
        ("```python\ns = '```'\n```", "s = '```'"),
    ],
)
def test_the_last_closed_block_of_python_counts(text: str, source: str | None) -> None:
    assert last_code_block(text) == source


@given(st.text(alphabet="`\np y~ü\x00\ud800", max_size=200))
def test_extraction_takes_any_text(text: str) -> None:
    last_code_block(text)


def test_ten_megabytes_of_fences_are_read_once() -> None:
    last_code_block("```\n" * (10 << 18))


def test_no_code_is_worth_nothing_and_whole_takes_the_text() -> None:
    bare = Sample(RIGHT_SUM, SUM_OF_TWO)
    assert code(bare) == {"score": 0.0, "passed": 0.0}
    assert code(bare, whole=True) == {"score": 1.0, "passed": 1.0}


# --- references


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("", "neither assert"),
        ("42", "tests are JSON"),
        ("no Python at all", "neither JSON nor Python"),
        ("x = 1", "neither assert"),
        ("[]", "tests are JSON"),
        ("{}", "inputs"),
        ("[1, 2]", "inputs"),
        ('{"inputs": ["1"], "outputs": []}', "1 inputs and 0 outputs"),
        ('{"inputs": [], "outputs": []}', "0 inputs"),
        ('{"inputs": "1", "outputs": "2"}', "not lists"),
        ('{"inputs": [{}], "outputs": ["2"]}', "neither text nor lines"),
        ('{"inputs": ["1"], "outputs": ["2"], "fn_name": "a b"}', "not a name"),
        ('{"inputs": ["x y"], "outputs": ["2"], "fn_name": "f"}', "JSON"),
        ('{"inputs": [7], "outputs": ["2"], "fn_name": "f"}', "JSON"),
        ('{"inputs": ["1"], "outputs": ["x"], "fn_name": "f"}', "JSON"),
        ("[" * 100_000, "neither JSON nor Python"),
        ("(" * 10_000, "neither JSON nor Python"),
        ("-" * 100_000 + "1", "neither"),
        ("assert 1\x00", "neither JSON nor Python"),
        ("assert '\ud800'", "neither JSON nor Python"),
    ],
)
def test_unusable_references_are_said_to_be_so(reference: str, said: str) -> None:
    with pytest.raises(ReferenceUnusableError, match=said):
        check_reference(reference, {})
    with pytest.raises(ReferenceUnusableError, match=said):
        code(Sample("no code", reference))


@settings(deadline=None)
@given(st.text() | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps))
def test_any_reference_is_usable_or_refused(reference: str) -> None:
    try:
        check_reference(reference, {})
    except ReferenceUnusableError:
        return
    programs(answered("x", reference, entry_point="x"), token="t")


def test_check_needs_to_know_the_function() -> None:
    with pytest.raises(ReferenceUnusableError, match="entry_point"):
        programs(answered("x", "def check(candidate):\n    assert candidate(1) == 1"))


def test_the_options_of_the_rule_are_checked() -> None:
    rule = RULES["code"]
    rule.check_options({"partial": True, "whole": False, "test_timeout": 1, "timeout": 2.5}, "k")
    rule.check_options({"memory_mib": 512, "max_tests": 10}, "k")
    for wrong in ({"partial": 1}, {"timeout": 0}, {"timeout": "3"}, {"max_tests": 0}, {"x": 1}):
        with pytest.raises(ValueError, match="k"):
            rule.check_options(wrong, "k")


# --- pairs of standard input and output


def test_a_program_is_judged_by_its_output() -> None:
    assert judged(RIGHT_SUM, SUM_OF_TWO) == 1.0
    assert judged("print(3)", SUM_OF_TWO) == 0.5
    assert judged("print(0)", SUM_OF_TWO) == 0.0
    assert judged("print(3", SUM_OF_TWO) == 0.0


def test_all_or_nothing_is_the_rule_and_the_share_a_part() -> None:
    assert code(answered("print(3)", SUM_OF_TWO)) == {"score": 0.0, "passed": 0.5}


def test_a_right_output_before_a_crash_is_wrong() -> None:
    assert judged(RIGHT_SUM + "\nraise SystemExit(1)", SUM_OF_TWO) == 0.0


def test_lists_of_lines_and_of_cases_are_understood() -> None:
    lines = json.dumps({"inputs": [["1", "2"]], "outputs": [["1", "2"]]})
    cases = json.dumps([{"input": "5", "output": "5"}, {"input": "6", "output": "6"}])
    echo = "import sys\nprint(sys.stdin.read())"
    assert judged(echo, lines) == 1.0
    assert judged(echo, cases) == 1.0
    assert judged("print(5)", cases) == 0.5
    assert judged("print(5)", cases, max_tests=1) == 1.0


@pytest.mark.parametrize(
    ("given", "expected", "same"),
    [
        ("1 \n2\n\n", "1\n2", True),
        ("1\r\n2", "1\n2", True),
        ("", "\n", True),
        ("1\n\n2", "1\n2", False),
        (" 1", "1", False),
        ("1.0", "1", False),
    ],
)
def test_output_is_compared_line_by_line(given: str, expected: str, same: bool) -> None:
    assert same_output(given, expected) is same


# --- calls of a function


CALLS = json.dumps(
    {"fn_name": "pair", "inputs": ['1\n"a"', [2, "b"]], "outputs": ['[1, "a"]', [[2, "b"]]]}
)


def test_functions_and_methods_are_called() -> None:
    assert judged("def pair(a, b): return [a, b]", CALLS) == 1.0
    assert judged("class Solution:\n  def pair(self, a: int, b): return (a, b)", CALLS) == 1.0
    assert judged("def pair(a, b): return [1, 'a']", CALLS) == 0.5
    assert judged("def other(a, b): return [a, b]", CALLS) == 0.0


def test_what_such_tasks_take_for_imported_is() -> None:
    source = "def pair(a: List[int], b: Optional[int]): return list(itertools.chain([a], [b]))"
    assert judged(source, CALLS) == 1.0


def test_what_a_function_prints_does_not_matter() -> None:
    assert judged("def pair(a, b):\n  print('ran 0', end='')\n  return [a, b]", CALLS) == 1.0


# --- test statements


ASSERTS = json.dumps(
    ["assert f(2) == (2, {4})", "assert f(3) == (3, {9})", "assert f(0)[0] < 1, 'text'"]
)
RIGHT_F = "def f(x): return x, {x * x}"


def test_each_assert_is_a_test() -> None:
    assert judged(RIGHT_F, ASSERTS) == 1.0
    assert judged("def f(x): return 2, {4}", ASSERTS) == pytest.approx(1 / 3)
    assert judged("def f(x): return [x, {x * x}]", ASSERTS) == pytest.approx(1 / 3)
    assert judged("def g(x): return 1", ASSERTS) == 0.0
    assert judged("def f(x) return x", ASSERTS) == 0.0


def test_code_for_a_main_program_does_not_run() -> None:
    assert judged(RIGHT_F + "\nif __name__ == '__main__': raise SystemExit", ASSERTS) == 1.0


def test_statements_between_the_asserts_run_once_and_in_order() -> None:
    tests = "a = [1]\nassert f(a) is None\nassert a == [1, 1]\nfor b in a:\n    assert b == 1"
    assert judged("def f(a): a.append(1)", tests) == 1.0
    assert judged("def f(a): pass", tests) == pytest.approx(2 / 3)


HUMAN_EVAL = """
METADATA = {}

def check(candidate):
    assert candidate([1.5, 2], 3) == True
    assert not candidate([], 3)
    for n in range(3):
        assert candidate([n], n) == (n > 0)
"""


@pytest.mark.parametrize(
    ("source", "score"),
    [
        ("def near(a, n):\n    return bool(a) and n > 0", 1.0),
        ("def near(a, n):\n    return True", 0.0),
        ("def near(a, n):\n    return bool(a)", 0.0),
        ("from dataclasses import dataclass\n@dataclass\nclass A: pass", 0.0),
    ],
)
def test_check_is_one_test(source: str, score: float) -> None:
    assert judged(source, HUMAN_EVAL, {"entry_point": "near"}) == score
    assert judged(source, HUMAN_EVAL + "\ncheck(near)") == score


def test_columns_of_mbpp_come_before_the_answer() -> None:
    extras = {"test_imports": '["import math"]', "test_setup_code": "class P: pass"}
    assert judged("def f(): return P()", "assert math.isinf(1e999) and f()", extras) == 1.0


# --- answers that would rather not compute


LITERALS = json.dumps(["assert f(2) == 4", "assert f(3) == 9"])
PRETENDS = "class Any:\n  def __eq__(self, other): return True\n"


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "raise SystemExit(0)",
        "def f(x):\n  import os\n  os._exit(0)",
        "def f(x): exit(0)",
        PRETENDS + "def f(x): return Any()",
        "class Any(int):\n  def __eq__(self, other): return True\ndef f(x): return Any()",
        "__report__ = lambda *_: None\ndef f(x): 0",
        "import builtins\nbuiltins.print = builtins.exec = lambda *_: None\ndef f(x): 0",
        "import json\njson.dumps = lambda _: '4'\ndef f(x): 0",
        "print('ran 0'); print('value 0 4')\ndef f(x): 0",
        "import atexit, os\natexit.register(lambda: os._exit(0))",
    ],
)
def test_leaving_early_and_pretending_do_not_pay(source: str) -> None:
    assert judged(source, LITERALS) == 0.0


def test_a_literal_that_is_right_is_not_in_the_program() -> None:
    (program,) = programs(answered("def f(x): 0", "assert f(2) == 'secret'"), token="t")
    assert "secret" not in program.source + program.stdin


def test_in_process_tests_can_be_fooled_and_the_docs_say_so() -> None:
    assert judged(PRETENDS + "def f(x): return Any()", "x = 4\nassert f(2) == x") == 1.0


@given(st.text(alphabet="t ranvlue0123[]\n\"'", max_size=80))
def test_output_of_any_kind_is_read(stdout: str) -> None:
    (program,) = programs(answered("x", LITERALS), token="t")
    assert program.passed(stdout, 0) == (False, False) or "value" in stdout


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text() | st.integers(), inner)
            | st.sets(st.text() | st.integers())
        ),
        max_leaves=10,
    )
)
def test_values_survive_the_way_out(value: object) -> None:
    from services.reward.rules.code_harness import encode

    (program,) = programs(answered("x", f"assert f() == {value!r}"), token="t")
    reported = f"t value 0 {json.dumps(encode(value))}\nt ran 0\n"
    assert "inf" in repr(value) or program.passed(reported, 0) == (True,)


def test_time_for_all_tests_is_bounded() -> None:
    tests = json.dumps({"inputs": ["0"] * 50, "outputs": ["0"] * 50})
    assert judged("while True: pass", tests, test_timeout=0.4, timeout=0.5) == 0.0


def test_strange_answers_are_only_wrong() -> None:
    for source in ("\x00", "'\ud800'", "(" * 10_000, "-" * 100_000 + "1", "print('" + "\u202e" * 9):
        assert judged(source, LITERALS) == 0.0
        assert judged(source, '{"inputs": ["1"], "outputs": ["1"]}') == 0.0
