"""Runs an answer and then calls its functions, as it is asked to. Its text travels behind
link.py's into the sandbox.

The first line on standard input is [imports, answer], both Python; the others are requests of
link.py. What the answer prints goes to standard error. Nothing here judges: the answer shares
this process and may replace all of it, so what goes out is no more than what the answer claims.
"""

import operator
import os
import sys
import types

from services.reward.rules.code.link import Link


def serve():
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    # A module of its own name: code under `if __name__ == "__main__"` does not run, and
    # dataclasses, which look up the module of a class, work.
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    link = Link(source, sink, _offered(module), lambda value: True)
    imports, answer = link.receive()
    for text in (imports, answer):
        exec(compile(text, "answer", "exec", dont_inherit=True), module.__dict__)
    link.serve()
    os._exit(0)


def _offered(module):
    names = module.__dict__

    def find(name):
        if name not in names:
            raise NameError(name)
        return names[name]

    def call(name, /, *arguments, **keywords):
        return find(name)(*arguments, **keywords)

    def solve(name, *arguments):
        """Of `class Solution` where the answer has one."""
        owner = names["Solution"]() if "Solution" in names else module
        return getattr(owner, name)(*arguments)

    ours = (find, call, solve)
    plain = (getattr, setattr, len, iter, next, str, repr, bool)
    operators = ["getitem", "setitem", "eq", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv"]
    offered = {function.__name__: function for function in (*ours, *plain)}
    offered.update((name, getattr(operator, name)) for name in operators)
    return offered
