"""What our own sources use of the packages, and whether it is there and is called as it wants.

Imports, attributes of what is imported, and calls of it are found in the sources. What is used of instances stands
in a table (test_our_uses.py), because no source says what they are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tests.contract.calls import Arguments, Def, Parameters, parameters
from tests.contract.sources import Definition, string_of
from tests.contract.values import Class, Types

MISSING_IS_EXPECTED = {"ImportError", "ModuleNotFoundError", "AttributeError"}
"""An except clause for one of these says what happens where something is not there."""


@dataclass(frozen=True)
class Fact:
    where: str
    what: str
    objection: str = ""
    """Why it does not hold; empty when it does."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f": {self.objection}" if self.objection else "")


class Uses:
    """The uses of one module of ours. `packages`: those whose use is checked."""

    def __init__(self, types: Types, packages: tuple[str, ...], module: str) -> None:
        self.types, self._packages, self._module = types, packages, module
        self._tree = types.sources.tree(module)
        self._imported: dict[str, Definition] = {}
        asked = (string_of(c.args[1]) for c in _calls(self._tree) if _is_question(c))
        self._asked = set(filter(None, asked))
        """Attributes of which our code asks whether they are there."""

    def facts(self) -> Iterator[Fact]:
        yield from self._imports(self._tree, may_lack=False)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute):
                yield from self._attribute(node)
            elif isinstance(node, ast.Call):
                yield from self._call(node)

    def _imports(self, tree: ast.AST, may_lack: bool) -> Iterator[Fact]:
        for node in ast.iter_child_nodes(tree):
            caught = {n.id for h in getattr(node, "handlers", ()) for n in _names(h.type)}
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from self._import(node, may_lack)
            yield from self._imports(node, may_lack or bool(caught & MISSING_IS_EXPECTED))

    def _import(self, node: ast.Import | ast.ImportFrom, may_lack: bool) -> Iterator[Fact]:
        sources = self.types.sources
        for alias in node.names:
            if isinstance(node, ast.Import):
                name, text = alias.name, f"import {alias.name}"
                found = Definition(name, "") if name in sources else None
                bound = alias.asname or name.partition(".")[0]
                stands_for = found if alias.asname else Definition(bound, "")
            else:
                name = sources.imported_from(self._module, node)
                text, bound = f"from {name} import {alias.name}", alias.asname or alias.name
                found = stands_for = sources.find(name, alias.name)
            if not self._is_checked(name):
                continue
            if found and stands_for:
                self._imported[bound] = stands_for
            is_there = found or may_lack or self._is_compiled(name, alias.name)
            yield self._fact(node, text, "" if is_there else "no such name")

    def _attribute(self, node: ast.Attribute) -> Iterator[Fact]:
        base = self._resolved(node.value)
        if base is None or node.attr in self._asked:
            return
        if base.is_module:
            is_there = self.types.sources.find(base.module, node.attr) is not None
        elif isinstance(base.node, ast.ClassDef):
            cls = self.types.class_of(base.module, base.name)
            is_there = node.attr in self.types.members(cls) or not self.types.is_whole(cls)
        else:
            return
        is_there = is_there or node.attr.startswith("__")
        text = f"{base.module}.{base.name}".rstrip(".") + f".{node.attr}"
        yield self._fact(node, text, "" if is_there else "no such name")

    def _call(self, node: ast.Call) -> Iterator[Fact]:
        wanted, found = None, self._resolved(node.func)
        if found and isinstance(found.node, ast.ClassDef):
            wanted = self.types.constructor(self.types.class_of(found.module, found.name))
        elif found and isinstance(found.node, Def):
            wanted = parameters(found.node, is_bound=False)
        elif isinstance(node.func, ast.Attribute):
            base = self._resolved(node.func.value)
            if base and isinstance(base.node, ast.ClassDef):
                cls = self.types.class_of(base.module, base.name)
                member = self.types.member(cls, node.func.attr)
                wanted = bound(member.node) if member and isinstance(member.node, Def) else None
        if wanted:
            text = f"{ast.unparse(node.func)}({shown(given(node))})"
            yield self._fact(node, text, wanted.objection(given(node)))

    def _resolved(self, node: ast.expr) -> Definition | None:
        """What an imported name, or an attribute of an imported module, stands for."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self._resolved(node.value)
            if base and base.is_module:
                return self.types.sources.find(base.module, node.attr)
        return None

    def _is_checked(self, module: str) -> bool:
        return module.partition(".")[0] in self._packages and self.types.sources.knows(module)

    def _is_compiled(self, base: str, name: str) -> bool:
        """No Python source shows what a compiled module has, so its own package must name it."""
        if "._C" not in base:
            return False
        package = self.types.sources.modules(base.partition(".")[0])
        return any(f"{base}.{name}(" in self.types.sources.text(m) for m in package)

    def _fact(self, node: ast.stmt | ast.expr, what: str, objection: str) -> Fact:
        return Fact(f"{self._module}:{node.lineno}", what, objection)


def used_of_instance(types: Types, module: str, cls: Class, names: str) -> Iterator[Fact]:
    """The attributes `names` of instances of `cls` in a module of ours: whether it has them, we use them, and one of
    the calls by this name fits."""
    tree = types.sources.tree(module)
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    asked = {string_of(call.args[1]) for call in _calls(tree) if _is_question(call)}
    for name in names.split():
        assert name in attributes | asked, f"{module} does not use {name} of {cls} any more"
        member = types.member(cls, name)
        what = f"{cls}.{name}"
        if member is None:
            yield Fact(module, what, "no such attribute")
            continue
        made = [
            c for c in _calls(tree) if isinstance(c.func, ast.Attribute) and c.func.attr == name
        ]
        if isinstance(member.node, Def) and made:
            wanted = bound(member.node)
            objections = [wanted.objection(given(call)) for call in made]
            yield Fact(module, f"{what}({shown(given(made[0]))})", min(objections))
        else:
            yield Fact(module, what)


def asked_of_workers(types: Types, module: str, workers: Class) -> Iterator[Fact]:
    """collective_rpc("name", args=(...), kwargs={...}), or a function of ours that hands its arguments on to it."""
    for call in _calls(types.sources.tree(module)):
        name = string_of(call.args[0]) if call.args else ""
        if not name or ast.unparse(call.func).rpartition(".")[2] not in REMOTE:
            continue
        arguments = given(call)
        by_name = {keyword.arg: keyword.value for keyword in call.keywords}
        if "args" in by_name or "kwargs" in by_name:
            inner = ast.Call(
                call.func, [ast.Starred(by_name["args"])] if "args" in by_name else [], []
            )
            if isinstance(elements := by_name.get("args"), ast.Tuple):
                inner.args = elements.elts
            if "kwargs" in by_name:
                inner.keywords = [ast.keyword(None, by_name["kwargs"])]
            arguments = given(inner)
        else:
            kept = tuple(
                key for key in arguments.keywords if key not in ("timeout", "single_value")
            )
            arguments = Arguments(arguments.positional - 1, kept, arguments.open)
        member = types.member(workers, name)
        what = f"{workers.name}.{name}({shown(arguments)}) by collective_rpc"
        objection = "no such method"
        if member and isinstance(member.node, Def):
            objection = bound(member.node).objection(arguments)
        yield Fact(f"{module}:{call.lineno}", what, objection)


REMOTE = ("collective_rpc", "_call", "call")


def bound(node: Def) -> Parameters:
    """A method's parameters, as its callers see them."""
    is_static = any(ast.unparse(d) == "staticmethod" for d in node.decorator_list)
    return parameters(node, is_bound=not is_static)


def given(call: ast.Call) -> Arguments:
    keywords: list[str] = []
    is_open = any(isinstance(argument, ast.Starred) for argument in call.args)
    for keyword in call.keywords:
        if keyword.arg:
            keywords.append(keyword.arg)
        elif isinstance(keyword.value, ast.Dict) and all(map(string_of, keyword.value.keys)):
            keywords += map(string_of, keyword.value.keys)
        else:
            is_open = True
    positional = sum(not isinstance(argument, ast.Starred) for argument in call.args)
    return Arguments(positional, tuple(keywords), is_open)


def shown(arguments: Arguments) -> str:
    return ", ".join([*["…"] * arguments.positional, *(f"{name}=" for name in arguments.keywords)])


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _is_question(call: ast.Call) -> bool:
    """hasattr, or getattr with what counts otherwise."""
    name = ast.unparse(call.func)
    return len(call.args) > 1 and (name == "hasattr" or (name == "getattr" and len(call.args) > 2))


def _names(node: ast.expr | None) -> list[ast.Name]:
    return [part for part in ast.walk(node) if isinstance(part, ast.Name)] if node else []
