"""What classes have, by their sources alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from tests.contract.calls import Def, Parameters, fields, parameters
from tests.contract.sources import Definition, Sources, bound_names, statements

FIELD_BASES = ("Struct", "BaseModel", "NamedTuple", "TypedDict")


@dataclass(frozen=True)
class Class:
    module: str
    name: str
    node: ast.ClassDef = field(compare=False)

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Member:
    owner: Class
    node: ast.stmt


class Types:
    """Classes of `sources`. `mixed_into`: a class of ours -> the class into which it is mixed."""

    def __init__(self, sources: Sources, mixed_into: dict[str, tuple[str, str]]) -> None:
        self.sources = sources
        self._mixed_into = mixed_into
        self._mros: dict[Class, tuple[list[Class], bool]] = {}
        self._members: dict[Class, dict[str, list[Member]]] = {}

    def class_of(self, module: str, name: str) -> Class:
        found = self.sources.find(module, name)
        assert found and isinstance(found.node, ast.ClassDef), f"{module}.{name} is no class"
        return Class(found.module, found.name, found.node)

    def named(self, module: str, node: ast.expr) -> Definition | None:
        """What a dotted name stands for in `module`; a subscript stands for what is subscribed."""
        if isinstance(node, ast.Subscript):
            return self.named(module, node.value)
        if isinstance(node, ast.Name):
            return self.sources.find(module, node.id)
        if isinstance(node, ast.Attribute):
            base = self.named(module, node.value)
            return self.sources.find(base.module, node.attr) if base and base.is_module else None
        return None

    def mro(self, cls: Class) -> list[Class]:
        """The class, then its bases, most basic last, as far as their sources are read."""
        return self._line(cls)[0]

    def is_whole(self, cls: Class) -> bool:
        """Whether the sources of all bases are read."""
        return self._line(cls)[1]

    def _line(self, cls: Class) -> tuple[list[Class], bool]:
        if cls not in self._mros:
            self._mros[cls] = ([cls], False)  # for a class that is its own base, by mistake
            line, whole = [cls], True
            bases: list[Class] = []
            for node in cls.node.bases:
                found = self.named(cls.module, node)
                if found and isinstance(found.node, ast.ClassDef):
                    bases.append(Class(found.module, found.name, found.node))
                elif ast.unparse(node).partition("[")[0] not in ("ABC", "Generic", "object"):
                    whole = False
            if str(cls) in self._mixed_into:
                bases.append(self.class_of(*self._mixed_into[str(cls)]))
            for base in bases:
                above, above_whole = self._line(base)
                line = [c for c in line if c not in above] + above
                whole = whole and above_whole
            self._mros[cls] = (line, whole)
        return self._mros[cls]

    def member(self, cls: Class, name: str) -> Member | None:
        """The one that counts; None when instances have no such attribute."""
        return next(iter(self.members(cls).get(name, ())), None)

    def members(self, cls: Class) -> dict[str, list[Member]]:
        """What instances have: the class bodies, nearest first, then each `self.name = ...`; `name: Any` says least and
        stands last."""
        if cls not in self._members:
            table: dict[str, list[Member]] = {}
            bodies = [(owner, *pair) for owner in self.mro(cls) for pair in _body(owner.node)]
            for owner, name, node in bodies:
                table.setdefault(name, []).append(Member(owner, node))
            for owner, _, method in bodies:
                for name, node in _assigned_to_self(method) if isinstance(method, Def) else ():
                    table.setdefault(name, []).append(Member(owner, node))
            for found in table.values():
                found.sort(key=lambda member: _says_nothing(member.node))
            self._members[cls] = table
        return self._members[cls]

    def constructor(self, cls: Class) -> Parameters | None:
        """None where nothing that is read here says how it is called."""
        line = self.mro(cls)
        for place, owner in enumerate(line):
            if init := _method(owner.node, "__init__"):
                return parameters(init, is_bound=True)
            bases = [ast.unparse(base).rpartition(".")[2] for c in line for base in c.node.bases]
            if _is_dataclass(owner.node) or any(base in FIELD_BASES for base in bases):
                nodes = [c.node for c in reversed(line[place:])]
                return fields(nodes, all_optional="TypedDict" in bases)
        return Parameters() if self.is_whole(cls) else None

    def abstract_methods(self, cls: Class) -> set[str]:
        """Those that neither the class nor a base before the declaring one implements."""
        left = set()
        for owner in reversed(self.mro(cls)):
            for name, node in _body(owner.node):
                left.discard(name)
                if isinstance(node, Def) and "abstractmethod" in decorators(node):
                    left.add(name)
        return left


def decorators(node: Def | ast.ClassDef) -> set[str]:
    """Last parts of their names, without arguments."""
    plain = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
    return {ast.unparse(d).rpartition(".")[2] for d in plain}


def _says_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "Any"


def _is_dataclass(node: ast.ClassDef) -> bool:
    return bool(decorators(node) & {"dataclass", "config"})


def _body(node: ast.ClassDef) -> Iterator[tuple[str, ast.stmt]]:
    for statement in statements(node.body):
        for name in bound_names(statement):
            yield name, statement


def _method(node: ast.ClassDef, name: str) -> Def | None:
    return next((n for key, n in _body(node) if key == name and isinstance(n, Def)), None)


@cache  # a base's methods are looked at for each of its subclasses
def _assigned_to_self(method: Def) -> list[tuple[str, ast.stmt]]:
    found: list[tuple[str, ast.stmt]] = []
    for node in ast.walk(method):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for part in ast.walk(target):
                    match part:
                        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                            found.append((name, node))
    return found
