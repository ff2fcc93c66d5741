"""Would Python accept a call? Parameters of a function, and fields of a class without `__init__`."""

from __future__ import annotations

import ast
from dataclasses import dataclass

Def = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Arguments:
    """Of one call. `open`: there are `*` or `**` arguments whose contents are not known."""

    positional: int = 0
    keywords: tuple[str, ...] = ()
    open: bool = False


@dataclass(frozen=True)
class Parameters:
    positional: tuple[str, ...] = ()
    num_positional_only: int = 0
    keyword_only: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    any_positional: bool = False
    any_keyword: bool = False

    def objection(self, call: Arguments) -> str:
        """Why the call would raise TypeError; empty when it would not."""
        if call.positional > len(self.positional) and not self.any_positional:
            return f"takes {len(self.positional)} positional arguments, gets {call.positional}"
        given = set(self.positional[: call.positional])
        by_name = {*self.positional[self.num_positional_only :], *self.keyword_only}
        for keyword in call.keywords:
            if keyword in given:
                return f"gets {keyword} twice"
            if keyword not in by_name and not self.any_keyword:
                return f"has no parameter {keyword}"
        missing = self.required - given - set(call.keywords)
        if missing and not call.open:
            return f"needs {', '.join(sorted(missing))}"
        return ""


def parameters(node: Def, is_bound: bool) -> Parameters:
    """`is_bound`: the first parameter is given already."""
    arguments = node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    optional = set(names[len(names) - len(arguments.defaults) :]) if arguments.defaults else set()
    keyword_only = [a.arg for a in arguments.kwonlyargs]
    optional |= {
        name
        for name, value in zip(keyword_only, arguments.kw_defaults, strict=True)
        if value is not None
    }
    first = int(is_bound and bool(names))
    return Parameters(
        positional=tuple(names[first:]),
        num_positional_only=max(0, len(arguments.posonlyargs) - first),
        keyword_only=tuple(keyword_only),
        required=frozenset({*names[first:], *keyword_only} - optional),
        any_positional=arguments.vararg is not None,
        any_keyword=arguments.kwarg is not None,
    )


def declared(node: Def, is_bound: bool) -> Arguments:
    """The call that gives a function each of its parameters, the way callers of it may."""
    own = parameters(node, is_bound)
    return Arguments(len(own.positional), own.keyword_only)


def fields(classes: list[ast.ClassDef], all_optional: bool) -> Parameters:
    """Of dataclasses and their like; the most basic class comes first."""
    names: dict[str, bool] = {}
    for owner in classes:
        for node in owner.body:
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            text = ast.unparse(node.annotation)
            value = ast.unparse(node.value) if node.value else ""
            if not text.strip("'\"").startswith(("ClassVar", "typing.ClassVar", "KW_ONLY")):
                names.pop(node.target.id, None)
                if "init=False" not in value:
                    names[node.target.id] = node.value is None and not all_optional
    required = frozenset(name for name, needed in names.items() if needed)
    return Parameters(positional=tuple(names), required=required)
