"""Runs an answer and then calls its functions, as it is asked to. Its text travels behind
values.py's into the sandbox.

The first line on standard input is [imports, answer], both Python; the others are calls,
[how, function, arguments, keywords], each answered by a line ["value", result, changed] or
["error", class, text]. What the answer prints goes to standard error. Nothing here judges: the
answer shares this process and may replace all of it, so what goes out is no more than what the answer
claims.
"""

import json
import os
import sys
import types

from services.reward.rules.code.values import decode, encode, no_value

MAX_ITEMS = 10_000
"""Members of an iterator that are copied."""


def serve():
    lines, sink = os.fdopen(os.dup(0), "rb"), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    # A module of its own name: code under `if __name__ == "__main__"` does not run, and
    # dataclasses, which look up the module of a class, work.
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    loads, write = json.loads, os.write  # kept before an answer can replace them
    for text in loads(lines.readline()):
        exec(compile(text, "answer", "exec", dont_inherit=True), module.__dict__)
    for line in lines:
        rest = (_reply(module, *loads(line)) + "\n").encode()
        while rest:
            rest = rest[write(sink, rest) :]
    os._exit(0)


def _reply(module, how, name, given, named, dumps=json.dumps):
    try:
        # "solve": of `class Solution` where the answer has one.
        solves = how == "solve" and hasattr(module, "Solution")
        owner = module.Solution() if solves else module
        if not hasattr(owner, name):
            raise NameError(name)
        arguments = [decode(argument, no_value) for argument in given]
        keywords = {word: decode(value, no_value) for word, value in named.items()}
        result = encode(getattr(owner, name)(*arguments, **keywords), _uncopied)
        changed = [
            encode(argument, _uncopied) if type(argument) in (list, dict, set) else None
            for argument in arguments
        ]
        return dumps(["value", result, changed])
    except BaseException as error:
        known = (kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return dumps(["error", next(known).__name__, str(error)])


def _uncopied(value):
    """An iterator as a list; whatever else is no plain value is only known to be there."""
    if not hasattr(type(value), "__next__"):
        return ["object"]
    members = [member for member, _ in zip(value, range(MAX_ITEMS + 1))]  # noqa: B905
    if len(members) > MAX_ITEMS:
        raise ValueError(f"an iterator of more than {MAX_ITEMS} members")
    return encode(members, _uncopied)
