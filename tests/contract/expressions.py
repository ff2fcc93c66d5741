"""Expressions and calls: what they stand for, and whether a package would take them."""

from __future__ import annotations

import ast
from dataclasses import replace

from tests.contract.attributes import Attributes
from tests.contract.calls import Arguments, Def, parameters
from tests.contract.facts import Scope
from tests.contract.sources import Definition, string_of
from tests.contract.values import Class, Function, Instance, Many, Types, Value, Values


class Expressions(Attributes):
    """`workers`: whose methods collective_rpc calls."""

    def __init__(
        self,
        types: Types,
        packages: tuple[str, ...],
        counterparts: dict[Class, Class],
        workers: Class,
    ) -> None:
        super().__init__(types, packages, counterparts)
        self._workers = workers
        self._returned: dict[tuple[str, str], Values] = {}
        self._returned_keys: dict[tuple[str, str], tuple[str, ...]] = {}
        self._forwards: set[tuple[str, str]] = set()
        """Our functions that hand a method's name and arguments, which they get, to collective_rpc."""

    def _eval(self, node: ast.expr, scope: Scope) -> Values:
        match node:
            case ast.Name():
                if node.id in scope.local:
                    return scope.local[node.id]
                return self.types.look_up(scope.module, node.id)
            case ast.Attribute():
                values = self._attribute(node, scope)
                return scope.local.get(ast.unparse(node), values)
            case ast.Call():
                return self._call(node, scope)
            case ast.Await() | ast.Starred():
                return self._eval(node.value, scope)
            case ast.NamedExpr():
                values = self._eval(node.value, scope)
                self._bind(node.target, values, scope)
                return values
            case ast.BoolOp():
                inside, found = scope, ()
                for part in node.values:
                    found = self._eval(part, inside) or found
                    narrowed = self._narrowed(part, inside, isinstance(node.op, ast.And))
                    inside = replace(inside, local=inside.local | narrowed)
                return found
            case ast.IfExp():
                self._eval(node.test, scope)
                inside = replace(scope, local=scope.local | self._narrowed(node.test, scope))
                return self._eval(node.body, inside) + self._eval(node.orelse, scope)
            case ast.Subscript():
                self._eval(node.slice, scope)
                return self._elements(self._eval(node.value, scope))
            case ast.List() | ast.Tuple() | ast.Set():
                found = [v for part in node.elts for v in self._eval(part, scope)]
                return tuple(Many(v) for v in dict.fromkeys(found))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, scope)
            case ast.Lambda():
                names = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                hidden = {argument.arg: () for argument in names}
                self._eval(node.body, replace(scope, local=scope.local | hidden))
                return ()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._eval(child, scope)
        return ()

    def _comprehension(self, node: ast.expr, scope: Scope) -> Values:
        inside = replace(scope, local=dict(scope.local))
        for part in node.generators:  # pyright: ignore[reportAttributeAccessIssue]
            self._bind(part.target, self._elements(self._eval(part.iter, inside)), inside)
            for test in part.ifs:
                self._eval(test, inside)
                inside.local |= self._narrowed(test, inside)
        if isinstance(node, ast.DictComp):
            self._eval(node.key, inside)
            return tuple(Many(v, True) for v in self._eval(node.value, inside))
        element = self._eval(node.elt, inside)  # pyright: ignore[reportAttributeAccessIssue]
        return tuple(Many(v) for v in element)

    def _elements(self, values: Values) -> Values:
        return tuple(v.element for v in values if isinstance(v, Many))

    def _bind(self, target: ast.expr, values: Values, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope.local[target.id] = values
        elif isinstance(target, ast.Attribute):
            for owner in self._eval(target.value, scope):
                if (
                    isinstance(owner, Instance)
                    and values
                    and not self._is_checked(owner.type.module)
                ):
                    self._assigned[owner.type, target.attr] = values
        elif isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self._bind(part, (), scope)

    def _add_keys(self, target: ast.expr, keys: tuple[str, ...], scope: Scope) -> None:
        if keys:
            text = ast.unparse(target)
            scope.dicts[text] = tuple(dict.fromkeys((*scope.dicts.get(text, ()), *keys)))

    def _keys(self, node: ast.expr, scope: Scope) -> tuple[str, ...]:
        """Of a dictionary whose making can be followed; all keys that it may have."""
        if isinstance(node, ast.Dict):
            found: list[str] = []
            for key, value in zip(node.keys, node.values, strict=True):
                found += [string_of(key)] if key else self._keys(value, scope)  # {**value}
            return tuple(found)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return (*self._keys(node.left, scope), *self._keys(node.right, scope))
        if isinstance(node, ast.Call):
            for function in self._quietly(node.func, scope):
                if isinstance(function, Function):
                    return self._returned_keys.get(_key(function), ())
        return scope.dicts.get(ast.unparse(node), ())

    def _narrowed(self, test: ast.expr, scope: Scope, positive: bool = True) -> dict[str, Values]:
        """What `isinstance` says of names where the test is true, or (not `positive`) false."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._narrowed(operand, scope, not positive)
            case ast.BoolOp(op=op, values=tests) if isinstance(op, ast.And) == positive:
                found: dict[str, Values] = {}
                for one in tests:
                    found |= self._narrowed(one, scope, positive)
                return found
            case ast.Call(func=ast.Name(id="isinstance"), args=[what, kinds]) if positive:
                classes = self._classes(kinds, scope)
                return {ast.unparse(what): tuple(Instance(c) for c in classes)} if classes else {}
        return {}

    def _classes(self, node: ast.expr, scope: Scope) -> list[Class]:
        if isinstance(node, ast.BinOp):
            return [*self._classes(node.left, scope), *self._classes(node.right, scope)]
        if isinstance(node, ast.Tuple):
            return [c for part in node.elts for c in self._classes(part, scope)]
        found = [v for v in self._quietly(node, scope) if isinstance(v, Class)]
        if not found and isinstance(node, ast.Name):
            match self.types.sources.find(scope.module, node.id):
                case Definition(module=module, node=ast.Assign(value=ast.Tuple() as kinds)):
                    return self._classes(kinds, Scope(module))
        return found

    def _call(self, node: ast.Call, scope: Scope) -> Values:
        functions = self._eval(node.func, scope)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self._eval(argument, scope)
        if isinstance(node.func, ast.Name) and node.func.id == "getattr":
            return self._got(node, scope)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "values":
            values = self._quietly(node.func.value, scope)
            if values and isinstance(values[0], Many):
                return values
        if isinstance(node.func, ast.Attribute) and node.func.attr == "update" and node.args:
            self._add_keys(node.func.value, self._keys(node.args[0], scope), scope)
        if ast.unparse(node.func) == "importlib.import_module":
            self._import_by_name(node, scope)
        found: list[Value] = []
        for function in functions:
            self._check_call(node, function, scope)
            found += self._result(function, node, scope)
        return tuple(dict.fromkeys(found))

    def _got(self, node: ast.Call, scope: Scope) -> Values:
        """getattr(object, "name", default)"""
        owner, name, *_ = node.args
        owners = self._quietly(owner, scope)
        return tuple(v for one in owners for v in self._get(one, string_of(name))[0])

    def _import_by_name(self, node: ast.Call, scope: Scope) -> None:
        name = string_of(node.args[0])
        if self._is_checked(name):
            lacks = "" if name in self.types.sources else "no such module"
            self._say(node, scope, f"import {name}", lacks, scope.may_lack)

    def _check_call(self, node: ast.Call, function: Value, scope: Scope) -> None:
        given = self._given(node, scope)
        if isinstance(function, Class) and self._is_checked(function.module):
            needed = self.types.constructor(function)
            if needed:
                self._say(node, scope, f"{function}({_list(given)})", needed.objection(given))
        if isinstance(function, Function):
            if self._is_checked(function.module):
                objection = parameters(function.node, function.is_bound).objection(given)
                self._say(node, scope, f"{function}({_list(given)})", objection, scope.may_lack)
            if function.name == "collective_rpc":
                self._check_remote(node, given, scope)
            if _key(function) in self._forwards:
                self._check_forwarded(node, given, scope)

    def _given(self, node: ast.Call, scope: Scope) -> Arguments:
        is_open = any(isinstance(argument, ast.Starred) for argument in node.args)
        keywords = [keyword.arg for keyword in node.keywords if keyword.arg]
        for keyword in node.keywords:
            if keyword.arg is None:
                keywords += self._keys(keyword.value, scope)
                is_open = True
        positional = sum(not isinstance(argument, ast.Starred) for argument in node.args)
        return Arguments(positional, tuple(keywords), is_open)

    def _check_remote(self, node: ast.Call, given: Arguments, scope: Scope) -> None:
        """collective_rpc("name", args=(...), kwargs={...}) calls a method of every worker."""
        by_name = {keyword.arg: keyword.value for keyword in node.keywords}
        method = node.args[0] if node.args else by_name.get("method")
        args, kwargs = by_name.get("args"), by_name.get("kwargs")
        elements = args.elts if isinstance(args, ast.Tuple) else []
        if any(isinstance(part, ast.Name) and part.id == scope.rest for part in elements):
            self._forwards.add((scope.module, scope.name))
        if name := string_of(method):
            keys = self._keys(kwargs, scope) if kwargs else ()
            is_open = bool(args and not isinstance(args, ast.Tuple)) or bool(kwargs and not keys)
            self._check_method(node, name, Arguments(len(elements), keys, is_open), scope)

    def _check_forwarded(self, node: ast.Call, given: Arguments, scope: Scope) -> None:
        """The method's name comes first, then its own arguments."""
        if node.args and (name := string_of(node.args[0])):
            rest = replace(given, positional=given.positional - 1)
            self._check_method(node, name, rest, scope)

    def _check_method(self, node: ast.Call, name: str, given: Arguments, scope: Scope) -> None:
        member = self.types.member(self._workers, name)
        what = f"{self._workers.name}.{name}({_list(given)}) by collective_rpc"
        if member is None or not isinstance(member.node, Def):
            self._say(node, scope, what, "no such method")
        else:
            self._say(node, scope, what, parameters(member.node, True).objection(given))

    def _result(self, function: Value, node: ast.Call, scope: Scope) -> Values:
        if isinstance(function, Class):
            return (Instance(function),)
        if not isinstance(function, Function):
            return ()
        marked = self.types.annotated(function.module, function.node.returns, function.owner)
        return marked or self._returned.get(_key(function), ())


def _key(function: Function) -> tuple[str, str]:
    name = f"{function.owner.name}.{function.name}" if function.owner else function.name
    return function.module, name


def _list(given: Arguments) -> str:
    return ", ".join([*["…"] * given.positional, *(f"{name}=" for name in given.keywords)])
