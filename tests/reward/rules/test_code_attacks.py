"""Answers that would rather not compute, run as real programs: each must earn nothing at all,
whatever the form of the tests. A right answer, by the same tests, earns everything."""

import pytest

from services.reward.rules.code.rule import code
from trimaran.rewards import Sample

pytestmark = pytest.mark.e2e

FORMS = {
    "calls": '{"fn_name": "f", "inputs": ["2", "3"], "outputs": ["4", "9"]}',
    "python": """
import math
def close(a, b): return math.isclose(a, b, abs_tol=1e-6)
def check(candidate):
    for n in range(2, 5):
        assert candidate(n) == n * n
    assert abs(candidate(1.5) - 2.25) < 1e-6
assert abs(f(2) - 4) < 1e-6
assert close(f(3), 9)
assert isinstance(f(2), int) and f(2) in {4, 5}
assert set([f(2)]) == {4}
assert sorted([f(3), f(2)]) == [4, 9]
for n in range(4, 7): assert f(n) == n * n
check(f)
""",
}
WRONG = "\ndef f(x): return -1"
AGREES = """
class Agrees(int):
    def yes(self, *others): return True
    def zero(self, *others): return 0
    __class__ = property(lambda self: int)
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = yes
    __sub__ = __rsub__ = __abs__ = __float__ = zero
    __array__ = lambda self, *_, **__: __import__("numpy").array(4)
    __hash__ = lambda self: hash(4)
"""
ALL_FDS = (
    "import os\nfor fd in range(3, 64):\n  try: os.write(fd, {line!r})\n  except OSError: pass"
)

ATTACKS = {
    "builtins replaced": """
import builtins
for name in ("isinstance", "all", "any", "range", "filter", "map"):
    setattr(builtins, name, lambda *_: [])
builtins.abs = builtins.len = builtins.sum = lambda *_: 0
builtins.set = lambda *_: {4}
builtins.sorted = lambda *_: [4, 9]
builtins.isinstance = lambda *_: True""",
    "own names for builtins": """
abs = sum = lambda *_: 0
isinstance = lambda *_: True
set = lambda *_: {4}
sorted = lambda *_: [4, 9]
range = lambda *_: []""",
    "own names of the tests": """
check = close = lambda *_: True
__report__ = say = lambda *_: None""",
    "patched module": """
import math, operator
math.isclose = lambda *_, **__: True
operator.eq = lambda *_: True""",
    "other modules": """
import sys, types
for name in ("json", "math", "os", "builtins", "types"):
    sys.modules[name] = types.SimpleNamespace(
        dumps=lambda _: "true", isclose=lambda *_, **__: True, write=lambda *_: 0)""",
    "writing replaced": """
import os
real = os.write
os.write = lambda fd, text: real(fd, text.replace(b"-1", b"true"))""",
    "frames": """
import os, sys
frame = sys._getframe()
while frame:
    for token in list(frame.f_locals.values()):
        if isinstance(token, str) and len(token) < 64:
            for fd in (1, 2):
                for test in range(9):
                    for word in ("ran", "passed"):
                        os.write(fd, f"\\n{token} {word} {test}\\n".encode())
    frame = frame.f_back""",
    "garbage collector": """
import gc, types
for found in gc.get_objects():
    if isinstance(found, types.FunctionType) and found.__name__ in ("say", "send", "report"):
        for test in range(9):
            for words in (("ran", str(test)), ("passed", str(test)), ("value", str(test), "true")):
                try: found(*words)
                except Exception: pass""",
    "traceback": """
def f(x):
    import os, sys
    frame = sys._getframe().f_back
    while frame:
        for name, value in list(frame.f_locals.items()):
            if name in ("say", "test", "report") and callable(value):
                for test in range(9): value("ran", str(test))
        frame = frame.f_back
    raise SystemExit(0)""",
    "tracing": """
import sys
def follow(frame, event, argument):
    if "n" in frame.f_locals and "candidate" in frame.f_locals:
        frame.f_trace_lines = True
        if event == "line":
            try: frame.f_lineno = frame.f_lineno + 2
            except ValueError: pass
    return follow
sys.settrace(follow)""",
    "objects that agree": AGREES + "def f(x): return Agrees(-1)",
    "class that agrees": """
class Meta(type):
    def __eq__(self, other): return True
    __hash__ = type.__hash__
class Agrees(metaclass=Meta): pass
def f(x): return Agrees""",
    "leaving politely": "raise SystemExit(0)",
    "leaving at the end": "import atexit, os\natexit.register(lambda: os._exit(0))",
    "no exception": "class E(BaseException): pass\ndef f(x): raise E",
    "replies": ALL_FDS.format(line=b'["value", true, []]\n' * 20),
    "verdicts": ALL_FDS.format(line=b"".join(b"\n passed %d\n" % test for test in range(9))),
    "errors that the tests know": ALL_FDS.format(line=b'["error", "SystemExit", "0"]\n' * 20),
    "thread that forges": """
import os, threading
def forge():
    while True:
        for fd in (1, 4, 5, 6):
            try: os.write(fd, b'["value", true, []]\\n')
            except OSError: pass
threading.Thread(target=forge, daemon=True).start()""",
    "forking": """
import os
try:
    os.fork()
except OSError:
    pass""",
    "deep result": """
def f(x):
    nested = []
    for _ in range(100_000): nested = [nested]
    return nested""",
    "large result": "def f(x): return 'x' * (1 << 25)",
    "moved channel": "import os\nfor fd in range(3, 64):\n  try: os.dup2(1, fd)\n  except OSError: 0",
}


def score(source: str, tests: str) -> float:
    sample = Sample(f"```python\n{source}\n```", tests, {})
    return code(sample, partial=True, timeout=20.0, test_timeout=10.0)["passed"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_earns_nothing(attack: str, form: str) -> None:
    source = ATTACKS[attack]
    if "def f(" not in source:
        source += WRONG
    assert score(source, FORMS[form]) == 0.0


@pytest.mark.parametrize("form", FORMS)
def test_a_right_answer_earns_everything(form: str) -> None:
    assert score("def f(x): return x * x", FORMS[form]) == 1.0
