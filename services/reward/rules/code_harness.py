"""Runs test statements on an answer. Its text travels in front of both, into the sandbox; it
imports nothing of ours and needs Python 3.8.

What it finds goes to standard output as lines "<token> ran <test>" and "<token> value <check>
<JSON>". The token comes first on standard input, so that it stands in no source.
"""

import json
import os
import sys
import types


def encode(value):
    """JSON that tells lists, tuples, sets and dicts apart. Raises TypeError for other things."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return ["dict", [encode(item) for item in value.items()]]
    for name, kind in (("list", list), ("tuple", tuple), ("set", (set, frozenset))):
        if isinstance(value, kind):
            return [name, [encode(member) for member in value]]
    if type(value).__module__ == "numpy" and not value.shape:
        return encode(value.item())
    raise TypeError("a test needs a plain value, not " + type(value).__name__)


def run(answer, steps):
    token = sys.stdin.readline().strip()
    # Kept here before the answer can replace them.
    write, dumps = os.write, json.dumps

    def say(*words):
        write(1, ("\n" + " ".join((token, *words)) + "\n").encode())

    def report(check, value):
        say("value", str(check), dumps(encode(value)))

    # A module of its own name: code under `if __name__ == "__main__"` does not run, and
    # dataclasses, which look up the module of a class, work.
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    prelude, *steps = steps
    exec(prelude[0], module.__dict__)
    exec(compile(answer, "answer", "exec"), module.__dict__)
    module.__dict__["__report__"] = report
    for source, test in steps:
        try:
            exec(compile(source, "tests", "exec"), module.__dict__)
        except BaseException:
            if test is None:
                raise
        else:
            if test is not None:
                say("ran", str(test))
