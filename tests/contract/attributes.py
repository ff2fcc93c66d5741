"""What an attribute of a value is, and whether it is there."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod

from tests.contract.calls import Def
from tests.contract.facts import Fact, Scope
from tests.contract.sources import bound_names, statements
from tests.contract.values import (
    Class,
    Function,
    Instance,
    Many,
    Member,
    Module,
    Types,
    Value,
    Values,
    decorators,
)

REGISTERED = {"weight"}
"""Attributes that no assignment shows: `create_weights` of a layer's method registers them as
parameters (test_vllm.py looks at it)."""


class Attributes(ABC):
    """`packages`: whose use is checked. `counterparts`: a class -> the one that stands for it."""

    def __init__(
        self, types: Types, packages: tuple[str, ...], counterparts: dict[Class, Class]
    ) -> None:
        self.types = types
        self.facts: dict[tuple[str, str], Fact] = {}
        self._packages = packages
        self._counterparts = counterparts
        self._silent = 0
        self._assigned: dict[tuple[Class, str], Values] = {}
        """Attributes of our own classes, by what is assigned to them."""

    @abstractmethod
    def _eval(self, node: ast.expr, scope: Scope) -> Values:
        """What the expression stands for; says what it uses on the way."""

    def _quietly(self, node: ast.expr, scope: Scope) -> Values:
        self._silent += 1
        try:
            return self._eval(node, scope)
        finally:
            self._silent -= 1

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Values:
        found: list[Value] = []
        objections = []
        bases = self._eval(node.value, scope)
        for base in bases:
            values, objection = self._get(base, node.attr)
            found += values
            objections.append((base, objection))
        checked = [(b, o) for b, o in objections if self._concerns_packages(b, node.attr)]
        if checked:
            # Of alternatives one must have it; which one stands there only the run knows.
            base, objection = min(checked, key=lambda pair: bool(pair[1]))
            guarded = (ast.unparse(node.value), node.attr) in scope.guarded or scope.may_lack
            self._say(node, scope, f"{_text(base)}.{node.attr}", objection, guarded)
            if isinstance(base, Instance) and (other := self._counterparts.get(base.type)):
                _, objection = self._get(Instance(other), node.attr)
                self._say(node, scope, f"{other}.{node.attr}", objection, guarded)
        return tuple(dict.fromkeys(found))

    def _concerns_packages(self, base: Value, name: str) -> bool:
        """Also where a class of ours has or should have the attribute from a package's."""
        if isinstance(base, Module):
            return self._is_checked(base.name)
        if isinstance(base, Function | Many):
            return False
        cls = base.type if isinstance(base, Instance) else base
        member = self.types.member(cls, name)
        owners = [member.owner] if member else self.types.mro(cls)
        return any(self._is_checked(owner.module) for owner in owners)

    def _get(self, base: Value, name: str) -> tuple[Values, str]:
        """The attribute's value, and why there is none."""
        if isinstance(base, Module):
            found = self.types.sources.find(base.name, name)
            return (self.types.value_of(found), "") if found else ((), "no such name")
        if isinstance(base, Many):
            return ((base,) if name in ("values", "copy") else ()), ""
        if isinstance(base, Function):
            return (), ""
        cls = base.type if isinstance(base, Instance) else base
        member = self.types.member(cls, name)
        if (cls, name) in self._assigned:
            return self._assigned[cls, name], ""
        if member is None and name in REGISTERED:
            return (), ""
        if member is None:
            known = name.startswith("__") or not self.types.is_whole(cls)
            return (), "" if known else "no such attribute"
        everything = [
            value
            for one in self.types.members(cls)[name]
            for value in self._value_of(one, cls, name, isinstance(base, Instance))
        ]
        # A method hides those below it; of values a package's class says more than torch's.
        telling = [
            v for v in everything if isinstance(v, Instance) and self._is_checked(v.type.module)
        ]
        return tuple(everything[:1] if isinstance(member.node, Def) else telling or everything), ""

    def _value_of(self, member: Member, cls: Class, name: str, of_instance: bool) -> Values:
        node, owner = member.node, member.owner
        if isinstance(node, Def):
            marks = decorators(node)
            if marks & {"property", "cached_property"}:
                return self.types.annotated(owner.module, node.returns, cls)
            is_bound = "staticmethod" not in marks and (of_instance or "classmethod" in marks)
            return (Function(owner.module, name, node, cls, is_bound),)
        if isinstance(node, ast.AnnAssign):
            found = self.types.annotated(owner.module, node.annotation, cls)
            if found or not node.value:
                return found
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and member.method:
            local = {
                argument.arg: self.types.annotated(owner.module, argument.annotation, cls)
                for argument in (*member.method.args.args, *member.method.args.kwonlyargs)
            }
            inside = Scope(owner.module, owner, member.method.name, local)
            for statement in statements(member.method.body):
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    for bound in bound_names(statement):
                        found = self.types.sources._follow(owner.module, bound, statement, 0)
                        inside.local[bound] = self.types.value_of(found) if found else ()
            return self._quietly(node.value, inside)
        return ()

    def _is_checked(self, module: str) -> bool:
        package = module.partition(".")[0]
        return package in self._packages and package in self.types.sources

    def _say(
        self, node: ast.AST, scope: Scope, what: str, objection: str, is_guarded: bool = False
    ) -> None:
        if not self._silent:
            line = getattr(node, "lineno", 0)
            where = f"{scope.module.replace('.', '/')}.py:{line}"
            self.facts[where, what] = Fact(where, what, objection, is_guarded)


def _text(value: Value) -> str:
    match value:
        case Module():
            return value.name
        case Instance():
            return str(value.type)
    return str(value)
