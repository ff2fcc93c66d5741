"""What an expression can be known to stand for, and what classes have, by their sources alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from tests.contract.calls import Def, Parameters, fields, parameters
from tests.contract.sources import Definition, Sources, bound_names, statements

FIELD_BASES = ("Struct", "BaseModel", "NamedTuple", "TypedDict")
CONTAINERS = ("list", "tuple", "set", "Sequence", "Iterable", "Iterator", "List", "Set", "Tuple")
MAPPINGS = ("dict", "Mapping", "Dict", "OrderedDict", "defaultdict")


@dataclass(frozen=True)
class Module:
    name: str


@dataclass(frozen=True)
class Class:
    module: str
    name: str
    node: ast.ClassDef = field(compare=False)

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Function:
    """`owner`: the class that was asked for a method; None for a plain function."""

    module: str
    name: str
    node: Def = field(compare=False)
    owner: Class | None = None
    is_bound: bool = False

    def __str__(self) -> str:
        return f"{self.owner or self.module}.{self.name}"


@dataclass(frozen=True)
class Instance:
    type: Class


@dataclass(frozen=True)
class Many:
    """A container of such elements; a mapping's are its values."""

    element: Value
    is_mapping: bool = False


Value = Module | Class | Function | Instance | Many
Values = tuple[Value, ...]
"""One of these; empty where nothing is known."""


@dataclass(frozen=True)
class Member:
    owner: Class
    node: ast.stmt
    method: Def | None = None
    """In which `self.name = ...` stands; None for what the class's body holds."""

    @property
    def says_nothing(self) -> bool:
        """`name: Any`."""
        return isinstance(self.node, ast.AnnAssign) and ast.unparse(self.node.annotation) == "Any"


class Types:
    """Classes of `sources`. `mixed_into`: a class of ours -> the class into which it is mixed."""

    def __init__(self, sources: Sources, mixed_into: dict[str, tuple[str, str]]) -> None:
        self.sources = sources
        self._mixed_into = mixed_into
        self._mros: dict[Class, tuple[list[Class], bool]] = {}
        self._members: dict[Class, dict[str, list[Member]]] = {}

    def look_up(self, module: str, name: str) -> Values:
        definition = self.sources.find(module, name)
        return self.value_of(definition) if definition else ()

    def value_of(self, found: Definition) -> Values:
        if found.is_module:
            return (Module(found.module),)
        if isinstance(found.node, ast.ClassDef):
            return (Class(found.module, found.name, found.node),)
        if isinstance(found.node, Def):
            return (Function(found.module, found.name, found.node),)
        return ()

    def class_of(self, module: str, name: str) -> Class:
        (found,) = self.look_up(module, name)
        assert isinstance(found, Class), f"{module}.{name} is no class"
        return found

    def named(self, module: str, node: ast.expr) -> Values:
        """What a dotted name stands for in `module`; a subscript stands for what is subscribed."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self.named(module, ast.parse(node.value, mode="eval").body)
        if isinstance(node, ast.Subscript):
            return self.named(module, node.value)
        if isinstance(node, ast.Name):
            return self.look_up(module, node.id)
        if isinstance(node, ast.Attribute):
            for base in self.named(module, node.value):
                if isinstance(base, Module):
                    return self.look_up(base.name, node.attr)
        return ()

    def annotated(self, module: str, node: ast.expr | None, receiver: Class | None) -> Values:
        """What a value with this annotation is. `receiver`: what Self means."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        if isinstance(node, ast.BinOp):
            parts = (node.left, node.right)
            return tuple(v for part in parts for v in self.annotated(module, part, receiver))
        if isinstance(node, ast.Subscript):
            return self._subscribed(module, node, receiver)
        if isinstance(node, ast.Name) and node.id == "Self" and receiver:
            return (Instance(receiver),)
        if not isinstance(node, ast.Name | ast.Attribute):
            return ()
        found = self.named(module, node)
        if not found and isinstance(node, ast.Name):
            match self.sources.find(module, node.id):
                case Definition(module=home, node=ast.Assign() | ast.AnnAssign() as alias):
                    if not isinstance(alias.value, ast.Call | ast.Constant):
                        return self.annotated(home, alias.value, receiver)
        return tuple(Instance(value) for value in found if isinstance(value, Class))

    def _subscribed(self, module: str, node: ast.Subscript, receiver: Class | None) -> Values:
        name = ast.unparse(node.value).rpartition(".")[2]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name in ("Optional", "Union", "Annotated", "Awaitable"):
            inner = inner[:1] if name == "Annotated" else inner
            return tuple(v for part in inner for v in self.annotated(module, part, receiver))
        if name in CONTAINERS:
            return tuple(Many(v) for v in self.annotated(module, inner[0], receiver))
        if name in MAPPINGS:
            return tuple(Many(v, True) for v in self.annotated(module, inner[-1], receiver))
        return self.annotated(module, node.value, receiver)

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
                if found and isinstance(found[0], Class):
                    bases.append(found[0])
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
        """What instances have, and everything that says so: the class bodies, nearest first, then
        each `self.name = ...`. `name: Any` says least and stands last.

        The assignments of an `__init__` count only where the one before it calls it.
        """
        if cls not in self._members:
            table: dict[str, list[Member]] = {}
            line = self.mro(cls)
            for owner in line:
                for name, node in _body(owner.node):
                    table.setdefault(name, []).append(Member(owner, node))
            methods = [
                (owner, node)
                for owner in line
                for name, node in _body(owner.node)
                if isinstance(node, Def) and name != "__init__"
            ]
            for owner, method in [*self._called_inits(line), *methods]:
                for name, node in _assigned_to_self(method):
                    table.setdefault(name, []).append(Member(owner, node, method))
            for found in table.values():
                found.sort(key=lambda member: member.says_nothing)
            self._members[cls] = table
        return self._members[cls]

    def _called_inits(self, line: list[Class]) -> list[tuple[Class, Def]]:
        """Each `__init__` that runs, with its class; `Class.__init__(self)` may call a stranger's."""
        called: dict[Class, Def] = {}
        waiting = [line]
        while waiting:
            owner, node = next(
                ((c, m) for c in waiting.pop() if (m := _method(c.node, "__init__"))), (None, None)
            )
            if not (owner and node) or owner in called:
                continue
            called[owner] = node
            for call in ast.walk(node):
                if not (isinstance(call, ast.Attribute) and call.attr == "__init__"):
                    continue
                before, start = owner, call.value
                if isinstance(start, ast.Call):  # super() or super(Class, self)
                    if start.args:
                        before = next(iter(self.named(owner.module, start.args[0])), owner)
                    if before in line:
                        waiting.append(line[line.index(before) + 1 :])
                else:
                    named = self.named(owner.module, start)
                    waiting += [self.mro(c) for c in named if isinstance(c, Class)]
        return list(called.items())

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
