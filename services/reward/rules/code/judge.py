"""Runs test statements in a process that the answer never runs in. Its text travels behind
link.py's into the sandbox.

A name that neither the tests nor Python know is the answer's, and is asked for by link.py.
The verdicts are lines "<token> passed <test>", or "<token> unusable <class>" where the tests hand
the answer an object that cannot travel.
"""

import builtins
import io
import os
import sys
import types

from services.reward.rules.code.link import FUNCTIONS, CannotTravelError, Link


class Names(dict):
    """Where Python looks for a name that is neither a function's own nor the tests'."""

    def __init__(self, link, called):
        super().__init__(vars(builtins))
        self._link, self._called = link, called

    def __missing__(self, name):
        if name.startswith("__"):
            raise KeyError(name)
        try:
            found = self[name] = self._link.call("find", (self._called.get(name, name),))
        except NameError:
            raise KeyError(name) from None
        return found


class TestsLink(Link):
    """No `except` of the tests may catch what ends them."""

    def __init__(self, source, sink, say, end):
        super().__init__(source, sink, {}, lambda value: isinstance(value, FUNCTIONS))
        self._say, self._end = say, end

    def receive(self):
        try:
            return super().receive()
        except EOFError:
            self._end()

    def send(self, *words):
        try:
            super().send(*words)
        except OSError:
            self._end()

    def call(self, function, arguments, keywords=()) -> object:
        try:
            return super().call(function, arguments, keywords)
        except CannotTravelError as error:
            self._say("unusable", str(error))
            self._end()


def judge(steps, called, first, token, source, sink, verdicts, end=lambda: os._exit(0)):
    """`steps` are statements, each with the number of its test or None; `called` has what the
    answer calls a name of the tests; `first` is what the other side reads first. `source`, `sink`
    and `verdicts` are file descriptors."""
    sys.stdout = sys.stderr = io.StringIO()  # the tests may print

    def say(*words):
        os.write(verdicts, (" ".join((token, *words)) + "\n").encode())

    link = TestsLink(source, sink, say, end)
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    module.__dict__["__builtins__"] = Names(link, called)
    link.send(*first)
    for text, test in steps:
        try:
            exec(compile(text, "tests", "exec", dont_inherit=True), module.__dict__)
        except BaseException:
            if test is None:
                break
        else:
            if test is not None:
                say("passed", str(test))
    end()


def judge_child(steps, called, first, program):
    """Where there is one sandbox for both: the answer runs in a process that this one starts."""
    import subprocess

    token = sys.stdin.readline().strip()
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )
    assert child.stdin and child.stdout

    def end():
        child.kill()
        os._exit(0)

    judge(steps, called, first, token, child.stdout.fileno(), child.stdin.fileno(), 1, end)
