"""Runs test statements in a process that the answer never runs in. Its text travels behind
values.py's into the sandbox.

A name that neither the tests nor Python know is a function of the answer, which harness.py calls in
the other process. Arguments and results are copied; nothing that arrives can make this side run code.
The verdicts are lines "<token> passed <test>", or "<token> unusable <class>" where the tests hand
the answer what cannot be copied.
"""

import builtins
import io
import json
import os
import sys
import types

from services.reward.rules.code.values import decode, encode, no_value, opaque


class AnswerError(Exception):
    """What the answer raised, where it is no exception that Python itself has."""


class Names(dict):
    """Where Python looks for a name that is neither a function's own nor the tests'."""

    def __init__(self, answer, called):
        super().__init__(vars(builtins))
        self._answer, self._called = answer, called

    def __missing__(self, name):
        if name.startswith("__"):
            raise KeyError(name)
        function = self._called.get(name, name)
        self[name] = lambda *given, **named: self._answer.call(function, given, named)
        return self[name]


class Answer:
    """The other process. `say` and `end` are the tests': no `except` of theirs catches an end."""

    def __init__(self, source, sink, say, end):
        self._lines, self._sink = os.fdopen(source, "rb"), sink
        self._say, self._end = say, end

    def send(self, words):
        rest = (json.dumps(words) + "\n").encode()
        try:
            while rest:
                rest = rest[os.write(self._sink, rest) :]
        except OSError:
            self._end()

    def call(self, function, given, named):
        try:
            arguments = [encode(argument, no_value) for argument in given]
            keywords = {name: encode(value, no_value) for name, value in named.items()}
            self.send(["call", function, arguments, keywords])
        except TypeError as error:
            self._say("unusable", str(error))
            self._end()
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            self._end()
        kind, *rest = json.loads(line)
        if kind != "value":
            raise _exception(*rest)
        result, changed = rest
        for argument, new in zip(given, changed):  # noqa: B905
            if type(argument) is list:
                argument[:] = decode(new, opaque)
            elif type(argument) in (dict, set):
                kept = decode(new, opaque)
                argument.clear()
                argument.update(kept)
        return decode(result, opaque)


def _exception(name, text):
    kind = getattr(builtins, str(name), None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:  # UnicodeDecodeError and the like want more
            pass
    return AnswerError(text)


def judge(steps, called, first, token, source, sink, verdicts, end=lambda: os._exit(0)):
    """`steps` are statements, each with the number of its test or None; `called` has what the
    answer calls a name of the tests; `first` is what the other side reads first. `source`, `sink`
    and `verdicts` are file descriptors."""
    sys.stdout = sys.stderr = io.StringIO()  # the tests may print

    def say(*words):
        os.write(verdicts, (" ".join((token, *words)) + "\n").encode())

    answer = Answer(source, sink, say, end)
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    module.__dict__["__builtins__"] = Names(answer, called)
    answer.send(first)
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
