"""The examples in docstrings are code that runs."""

import inspect
import re
import textwrap

import pytest

from trimaran import clients, errors, fence, rpc, store, types

BLOCK = re.compile(r"Example::\n\n((?:\s{4}.*\n|\n)+)")
LINE = re.compile(r"Example: `(.+)`")


def examples(module):
    for name, item in vars(module).items():
        text = inspect.getdoc(item) if getattr(item, "__module__", "") == module.__name__ else None
        for code in [*BLOCK.findall(f"{text}\n"), *LINE.findall(text or "")]:
            yield pytest.param(module, textwrap.dedent(code), id=name)


@pytest.mark.parametrize(("module", "code"), [*examples(types), *examples(errors)])
def test_an_example_runs(module, code):
    if "async for" in code:
        compile(f"async def example():\n{textwrap.indent(code, '    ')}", "<example>", "exec")
    elif code.startswith("raise "):
        with pytest.raises(errors.TrimaranError):
            exec(code, dict(vars(module)))
    else:
        exec(code, dict(vars(module)))


CLIENTS = [vars(clients)[name] for name in clients.__all__ if name.endswith(("Client", "Assembly"))]


@pytest.mark.parametrize(
    "item", [*CLIENTS, rpc.Server, rpc.service, rpc.call, fence.EpochFence, store.SqliteStore]
)
def test_an_example_that_needs_a_service_is_python(item):
    [code] = BLOCK.findall(f"{inspect.getdoc(item)}\n")
    compile(f"async def example():\n{code}", "<example>", "exec")


def test_there_are_examples():
    assert len([*examples(types)]) > 15 and [*examples(errors)]
