"""What our own sources use of other packages, found by following values through our functions.

A value is followed from imports, annotations, `isinstance` and calls: through assignments, `self`,
our own functions and the packages' classes. Every import, attribute and call that it meets at a
class or function of a package is a fact, which holds or does not. What cannot be followed (`Any`
from nowhere) gives none, so `hints` says what some parameters are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from tests.contract.calls import Def
from tests.contract.expressions import Expressions
from tests.contract.facts import Fact, Scope
from tests.contract.sources import string_of
from tests.contract.values import Class, Instance, Types, decorators

MISSING_IS_EXPECTED = {"ImportError", "ModuleNotFoundError", "AttributeError"}
"""An except clause for one of these says what happens where something is not there. One for
`Exception` does not: our code goes on without what it wanted."""


class Uses(Expressions):
    """`hints`: (module, function, parameter) -> (module, class) of what is given."""

    def __init__(
        self,
        types: Types,
        packages: tuple[str, ...],
        counterparts: dict[Class, Class],
        workers: Class,
        hints: dict[tuple[str, str, str], tuple[str, str]],
    ) -> None:
        super().__init__(types, packages, counterparts, workers)
        self._hints = hints
        self.used_hints: set[tuple[str, str, str]] = set()

    def check(self, modules: list[str]) -> list[Fact]:
        for _ in range(3):  # what one function gives is known when another is read again
            self.facts.clear()
            for module in modules:
                self._block(self.types.sources.tree(module).body, Scope(module))
        return list(self.facts.values())

    def _block(self, body: list[ast.stmt], scope: Scope) -> None:
        for node in body:
            self._statement(node, scope)
            if isinstance(node, ast.If) and _leaves(node.body):
                scope.local |= self._narrowed(node.test, scope, positive=False)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, scope)
            case ast.ClassDef():
                found = self.types.look_up(scope.module, node.name)
                cls = found[0] if found and isinstance(found[0], Class) else None
                self._block(node.body, Scope(scope.module, cls, node.name))
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope)
            case ast.Assign() | ast.AnnAssign():
                self._assign(node, scope)
            case ast.AugAssign():
                self._eval(node.value, scope)
                self._add_keys(node.target, self._keys(node.value, scope), scope)
            case ast.Return():
                self._return(node, scope)
            case ast.If():
                self._eval(node.test, scope)
                inside = replace(scope, local=scope.local | self._narrowed(node.test, scope))
                self._block(node.body, inside)
                for name, value in inside.local.items():
                    scope.local.setdefault(name, value)
                self._block(node.orelse, scope)
            case ast.For() | ast.AsyncFor():
                self._bind(node.target, self._elements(self._eval(node.iter, scope)), scope)
                self._block([*node.body, *node.orelse], scope)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    values = self._eval(item.context_expr, scope)
                    if item.optional_vars:
                        self._bind(item.optional_vars, values, scope)
                self._block(node.body, scope)
            case ast.Try():
                caught = {n.id for h in node.handlers if h.type for n in _names(h.type)}
                may_lack = scope.may_lack or bool(caught & MISSING_IS_EXPECTED)
                inside = replace(scope, may_lack=may_lack)
                self._block(node.body, inside)
                for handler in node.handlers:
                    if handler.type:
                        self._eval(handler.type, scope)
                    self._block(handler.body, scope)
                self._block([*node.orelse, *node.finalbody], scope)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self._eval(child, scope)
                    elif isinstance(child, ast.stmt):
                        self._statement(child, scope)

    def _function(self, node: Def, scope: Scope) -> None:
        name = f"{scope.name}.{node.name}" if scope.name else node.name
        inside = replace(
            scope,
            name=name,
            function=node,
            local=dict(scope.local),
            dicts={},
            guarded=scope.guarded | frozenset(_asked_for(node)),
        )
        arguments = node.args
        everything = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        for place, argument in enumerate(everything):
            hint = (scope.module, name, argument.arg)
            inside.local[argument.arg] = self.types.annotated(
                scope.module, argument.annotation, scope.cls
            )
            if hint in self._hints:
                self.used_hints.add(hint)
                cls = self.types.class_of(*self._hints[hint])
                inside.local[argument.arg] = (Instance(cls),)
            elif place == 0 and scope.cls and "staticmethod" not in decorators(node):
                is_class = "classmethod" in decorators(node)
                inside.local[argument.arg] = (scope.cls if is_class else Instance(scope.cls),)
        for default in (*arguments.defaults, *arguments.kw_defaults, *node.decorator_list):
            if default:
                self._eval(default, scope)
        self._block(node.body, inside)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        sources = self.types.sources
        for alias in node.names:
            if isinstance(node, ast.Import):
                if self._is_checked(alias.name):
                    lacks = "" if alias.name in sources else "no such module"
                    self._say(node, scope, f"import {alias.name}", lacks, scope.may_lack)
                continue
            base = sources.imported_from(scope.module, node)
            found = sources.find(base, alias.name) if sources.knows(base) else None
            if self._is_checked(base):
                lacks = "" if found or self._is_compiled(base, alias.name) else "no such name"
                self._say(node, scope, f"from {base} import {alias.name}", lacks, scope.may_lack)
            if scope.function:
                name = alias.asname or alias.name
                scope.local[name] = self.types.value_of(found) if found else ()

    def _is_compiled(self, base: str, name: str) -> bool:
        """No Python source shows what a compiled module has, so its own package must name it."""
        if "._C" not in base:
            return False
        package = self.types.sources.modules(base.partition(".")[0])
        return any(f"{base}.{name}(" in self.types.sources.text(m) for m in package)

    def _assign(self, node: ast.Assign | ast.AnnAssign, scope: Scope) -> None:
        values = self._eval(node.value, scope) if node.value else ()
        keys = self._keys(node.value, scope) if node.value else ()
        if isinstance(node, ast.AnnAssign):
            values = self.types.annotated(scope.module, node.annotation, scope.cls) or values
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self._bind(target, values, scope)
            self._add_keys(target, keys, scope)
            if isinstance(target, ast.Subscript) and (key := string_of(target.slice)):
                self._add_keys(target.value, (key,), scope)

    def _return(self, node: ast.Return, scope: Scope) -> None:
        if node.value:
            values, key = self._eval(node.value, scope), (scope.module, scope.name)
            self._returned[key] = self._returned.get(key) or values
            if keys := self._keys(node.value, scope):
                self._returned_keys[key] = keys


def _names(node: ast.expr) -> list[ast.Name]:
    return [part for part in ast.walk(node) if isinstance(part, ast.Name)]


def _leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def _asked_for(node: Def) -> Iterator[tuple[str, str]]:
    for call in ast.walk(node):
        match call:
            case ast.Call(func=ast.Name(id=asked), args=[what, name, *default]):
                if asked == "hasattr" or (asked == "getattr" and default):
                    yield ast.unparse(what), string_of(name)
