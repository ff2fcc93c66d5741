import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.reward.rules.code.rule import check_reference, code, programs
from services.reward.rules.code.values import decode, encode
from services.reward.rules.code.verdicts import JudgedTests, Program, same_output
from trimaran.rewards import ReferenceUnusableError, Sample

SUM_OF_TWO = json.dumps({"inputs": ["1 2\n", "30 4\n"], "outputs": ["3\n", "34\n"]})
RIGHT_SUM = "print(sum(map(int, input().split())))"


def answered(source: str, tests: str, **extras: str) -> Sample:
    return Sample(f"I think so:\n```python\n{source}\n```\nDone.", tests, extras)


def judged(source: str, tests: str, extras: Mapping[str, str] | None = None, **options) -> float:
    given = code(answered(source, tests, **(extras or {})), **{"partial": True, **options})
    assert given["score"] == given["passed"]
    return given["score"]


def test_no_code_is_worth_nothing_and_whole_takes_the_text() -> None:
    bare = Sample(RIGHT_SUM, SUM_OF_TWO)
    assert code(bare) == {"score": 0.0, "passed": 0.0}
    assert code(bare, whole=True) == {"score": 1.0, "passed": 1.0}


# --- references


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("", "neither assert"),
        ("no Python at all", "neither JSON nor Python"),
        ("{}", "inputs"),
        ('{"inputs": ["1"], "outputs": []}', "1 inputs and 0 outputs"),
        ('{"inputs": "1", "outputs": "2"}', "not lists"),
        ('{"inputs": [{}], "outputs": ["2"]}', "neither text nor lines"),
        ('{"inputs": ["1"], "outputs": ["2"], "fn_name": "a b"}', "not a name"),
        ('{"inputs": ["x y"], "outputs": ["2"], "fn_name": "f"}', "JSON"),
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


# --- pairs of standard input and output


def test_a_program_is_judged_by_its_output_and_its_end() -> None:
    assert judged(RIGHT_SUM, SUM_OF_TWO) == 1.0
    assert judged(RIGHT_SUM + "\nraise SystemExit(1)", SUM_OF_TWO) == 0.0
    assert judged("print(3)", SUM_OF_TWO) == 0.5
    assert code(answered("print(3)", SUM_OF_TWO)) == {"score": 0.0, "passed": 0.5}
    assert judged("print(3", SUM_OF_TWO) == 0.0


def test_lists_of_lines_and_of_cases_are_understood() -> None:
    lines = json.dumps({"inputs": [["1", "2"]], "outputs": [["1", "2"]]})
    cases = json.dumps([{"input": "5", "output": "5"}, {"input": "6", "output": "6"}])
    echo = "import sys\nprint(sys.stdin.read())"
    assert judged(echo, lines) == 1.0
    assert judged(echo, cases) == 1.0
    assert judged("print(5)", cases) == 0.5
    assert judged("print(5)", cases, max_tests=1) == 1.0


def test_output_is_compared_line_by_line() -> None:
    assert same_output("1 \r\n2\n\n", "1\n2") and same_output("", "\n")
    assert not same_output("1\n\n2", "1\n2") and not same_output("1.0", "1")


# --- calls of a function


CALLS = json.dumps(
    {"fn_name": "pair", "inputs": ['1\n"a"', [2, "b"]], "outputs": ['[1, "a"]', [[2, "b"]]]}
)


def test_functions_and_methods_are_called() -> None:
    assert judged("def pair(a, b): return [a, b]", CALLS) == 1.0
    assert judged("class Solution:\n  def pair(self, a: int, b): return (a, b)", CALLS) == 1.0
    assert judged("def pair(a, b): return [1, 'a']", CALLS) == 0.5
    assert judged("def pair(a, b):\n  print('ran 0', end='')\n  return [a, b]", CALLS) == 1.0
    imported = "def pair(a: List[int], b: Optional[int]): return list(itertools.chain([a], [b]))"
    assert judged(imported, CALLS) == 1.0


# --- test statements


ASSERTS = json.dumps(
    ["assert f(2) == (2, {4})", "assert f(3) == (3, {9})", "assert f(0)[0] < 1, 'text'"]
)
RIGHT_F = "def f(x): return x, {x * x}"


def test_each_assert_is_a_test() -> None:
    assert judged(RIGHT_F, ASSERTS) == 1.0
    assert judged("def f(x): return 2, {4}", ASSERTS) == pytest.approx(1 / 3)
    assert judged("def f(x): return [x, {x * x}]", ASSERTS) == pytest.approx(1 / 3)
    assert judged("def f(x) return x", ASSERTS) == 0.0
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


@pytest.mark.parametrize(("result", "score"), [("bool(a) and n > 0", 1.0), ("True", 0.0)])
def test_check_is_one_test(result: str, score: float) -> None:
    source = f"def near(a, n):\n    return {result}"
    assert judged(source, HUMAN_EVAL, {"entry_point": "near"}) == score
    assert judged(source, HUMAN_EVAL + "\ncheck(near)") == score


# --- tests in a process of their own


def test_setup_of_mbpp_is_the_tests_and_imports_come_before_the_answer() -> None:
    extras = {"test_imports": '["import math"]', "test_setup_code": "low = math.floor(2.5)"}
    tests = json.dumps(["assert f(low) + 0 == 3"])
    assert judged("f = lambda x: math.ceil(x) + 1", tests, extras) == 1.0
    assert judged("f = lambda x: math.ceil(x)", tests, extras) == 0.0


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ("def f(x): yield from [x, x]", "assert list(f(1)) == [1, 1]"),
        ("def f(a): a.sort(); a[0]['x'] = {1}", "a = [{}]\nf(a)\nassert a == [{'x': {1}}]"),
        ("def f(n): return 7 ** n", "assert f(9_000) == 7 ** 9_000"),
        (
            "import numpy as np\ndef f(n): return np.arange(n) / 2",
            "import numpy as np\nassert np.allclose(f(3), [0, 0.5, 1]) and len(f(3)) == 3",
        ),
        ("def f(x, *, y): return x, y", "y = [b'1', 2j]\nassert f(1, y=y) == (1, [b'1', 2j])"),
        ("from decimal import *\ndef f(x): return Decimal(x)", "assert f(2) == 2"),
        ("def f(name, self): return name", "assert abs(f(name=1, self=2)) == 1"),
        ("import sys\nif sys.stdin.read() == '': f = str", "assert f(1) == '1' == str(1)"),
    ],
)
def test_right_answers_to_all_kinds_of_tests(source: str, tests: str) -> None:
    assert judged(source, tests) == 1.0


@pytest.mark.parametrize("argument", ["Odd()", "len", "range(2)"])
def test_what_cannot_be_copied_makes_a_reference_unusable(argument: str) -> None:
    with pytest.raises(ReferenceUnusableError, match="the tests hand the answer a"):
        judged("def f(x): return x", f"class Odd: pass\nassert f({argument}) is None")


@pytest.mark.parametrize("source", ["import os\nos._exit(0)", "f = 1 / 0"])
def test_an_answer_that_left_has_not_raised_what_the_tests_wait_for(source: str) -> None:
    tests = "try:\n    f(1)\n    assert False\nexcept OSError: pass"
    assert judged(source, tests) == 0.0
    assert judged("def f(x): open('/none')", tests) == 1.0


def test_a_result_that_cannot_be_copied_is_true_and_equals_nothing() -> None:
    source = "import re\ndef f(x): return re.match('a', x)"
    assert judged(source, "assert f('a')\nassert f('a') is not None\nassert f('a') == 3") == 2 / 3


def test_a_helper_that_only_the_answer_has_is_the_answers() -> None:
    """What docs/reward-code.md says of HumanEval's rows 32, 38 and 50."""
    tests = "assert decode(encode('a')) == 'a'"
    assert judged("encode = decode = lambda text: text", tests) == 1.0


# --- answers that would rather not compute


def test_a_literal_that_is_right_is_not_in_the_program() -> None:
    (program,) = programs(answered("def f(x): 0", "assert f(2) == 'secret'"), token="t")
    assert isinstance(program, JudgedTests)
    assert "secret" not in program.answer + str(program.first)
    calls = '{"fn_name": "f", "inputs": ["2"], "outputs": ["\\"secret\\""]}'
    (program,) = programs(answered("def f(x): 0", calls), token="t")
    assert "secret" not in program.source + program.stdin


def called(expected: str) -> Program:
    calls = json.dumps({"fn_name": "f", "inputs": ["2"], "outputs": [expected]})
    (program,) = programs(answered("x", calls), token="t")
    return program


@given(st.text(alphabet='["value",0123]{}\n', max_size=80))
def test_output_of_any_kind_is_read(stdout: str) -> None:
    assert called("9").passed(stdout, 0) == (False,) or "value" in stdout
    (program,) = programs(answered("x", ASSERTS), token="t")
    assert program.passed(stdout, 0) == (False,) * 3


@pytest.mark.parametrize(
    "value",
    [
        ["decimal.Decimal", "sNaN"],
        ["fractions.Fraction", [1, 0]],
        ["fractions.Fraction", ["1e100000000", None]],  # minutes of work, if it were read
        *(["int", "x"], ["set"], 1),
    ],
)
def test_a_report_of_no_value_is_wrong(value: object) -> None:
    assert called("1").passed(json.dumps(["value", value, []]), 0) == (value == 1,)


def test_a_report_much_larger_than_the_result_is_not_read() -> None:
    line = json.dumps(["value", ["list", [1] * 50_000], []])
    assert called("1").passed(line, 0) == (False,)
    assert called(json.dumps([1] * 50_000)).passed(line, 0) == (True,)


KEYS = st.text() | st.integers()
ATOMS = (
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()),
    st.complex_numbers(allow_nan=False, allow_infinity=False),
)


def nested(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    both = st.tuples(inner, inner)
    return st.lists(inner) | both | st.dictionaries(KEYS, inner) | st.sets(KEYS)


@settings(deadline=None)
@given(st.recursive(st.one_of(*ATOMS), nested, max_leaves=10))
def test_values_survive_the_way_out(value: object) -> None:
    assert decode(json.loads(json.dumps(encode(value, repr))), repr) == value
