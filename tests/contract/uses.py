"""What our own sources use of other packages, found by following values through our functions.

A value is followed from imports, annotations, `isinstance` and calls: through assignments, `self`,
our own functions and the packages' classes. Every import, attribute and call that it meets at a
class or function of a package is a fact, which holds or does not. What cannot be followed (`Any`
from nowhere) gives none, so `HINTS` says what some parameters are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tests.contract.calls import Arguments, Def, parameters
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
parameters (vllm/model_executor/layers/linear.py and vocab_parallel_embedding.py)."""
MISSING_IS_EXPECTED = {"ImportError", "ModuleNotFoundError", "AttributeError"}
"""An except clause for one of these says what happens where something is not there. One for
`Exception` does not: our code goes on without what it wanted."""


@dataclass(frozen=True)
class Fact:
    where: str
    what: str
    objection: str = ""
    """Why it does not hold; empty when it does."""
    is_guarded: bool = False
    """Our code says what it does where this is missing."""

    @property
    def holds(self) -> bool:
        return not self.objection or self.is_guarded

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f": {self.objection}" if self.objection else "")


@dataclass
class Scope:
    """A function of one of the sources, or a module's top."""

    module: str
    cls: Class | None = None
    name: str = ""
    local: dict[str, Values] = field(default_factory=dict)
    """By the text of the expression, as `self.x` may be narrowed too."""
    dicts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The keys that a local dictionary was given."""
    guarded: frozenset[tuple[str, str]] = frozenset()
    """(object, attribute) that hasattr or getattr asks for."""
    may_lack: bool = False
    """Under `try` with an except clause for what is missing."""
    function: Def | None = None


class Uses:
    """`packages`: whose use is checked. `counterparts`: a class -> the one that stands for it."""

    def __init__(
        self,
        types: Types,
        packages: tuple[str, ...],
        hints: dict[tuple[str, str, str], tuple[str, str]],
        counterparts: dict[Class, Class],
        workers: Class | None,
    ) -> None:
        self.types = types
        self._packages = packages
        self._hints = hints
        self._counterparts = counterparts
        self._workers = workers
        self.used_hints: set[tuple[str, str, str]] = set()
        self.facts: dict[tuple[str, str], Fact] = {}
        self._silent = 0
        self._attributes: dict[tuple[Class, str], Values] = {}
        """Of our own classes, by what is assigned to them."""
        self._returned: dict[tuple[str, str], Values] = {}
        self._returned_keys: dict[tuple[str, str], tuple[str, ...]] = {}
        self._forwards: set[tuple[str, str]] = set()
        """Our functions that hand their own arguments to collective_rpc."""

    def check(self, modules: list[str]) -> list[Fact]:
        for _ in range(3):  # what one function gives is known when another is read again
            self.facts.clear()
            for module in modules:
                self._block(self.types.sources.tree(module).body, Scope(module))
        return list(self.facts.values())

    # ---- statements

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
            if isinstance(target, ast.Subscript):  # d["key"] = value
                if isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str):
                    self._add_keys(target.value, (target.slice.value,), scope)

    def _return(self, node: ast.Return, scope: Scope) -> None:
        if node.value:
            values, key = self._eval(node.value, scope), (scope.module, scope.name)
            self._returned[key] = self._returned.get(key) or values
            if keys := self._keys(node.value, scope):
                self._returned_keys[key] = keys

    def _bind(self, target: ast.expr, values: Values, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope.local[target.id] = values
        elif isinstance(target, ast.Attribute):
            for owner in self._eval(target.value, scope):
                if isinstance(owner, Instance) and values and not self._is_checked(owner.type.module):
                    self._attributes[owner.type, target.attr] = values
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
            return tuple(k.value for k in node.keys if isinstance(k, ast.Constant))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return (*self._keys(node.left, scope), *self._keys(node.right, scope))
        if isinstance(node, ast.Call):
            for function in self._quietly(node.func, scope):
                if isinstance(function, Function):
                    return self._returned_keys.get(_key(function), ())
        return scope.dicts.get(ast.unparse(node), ())

    # ---- narrowing

    def _narrowed(
        self, test: ast.expr, scope: Scope, positive: bool = True
    ) -> dict[str, Values]:
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
            constant = self.types.sources.find(scope.module, node.id)
            if constant and isinstance(constant.node, ast.Assign):
                if isinstance(constant.node.value, ast.Tuple):
                    return self._classes(constant.node.value, Scope(constant.module))
        return found

    # ---- expressions

    def _quietly(self, node: ast.expr, scope: Scope) -> Values:
        self._silent += 1
        try:
            return self._eval(node, scope)
        finally:
            self._silent -= 1

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
        if (cls, name) in self._attributes:
            return self._attributes[cls, name], ""
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
        telling = [v for v in everything if isinstance(v, Instance) and self._is_checked(v.type.module)]
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

    # ---- calls

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
        if ast.unparse(node.func) == "importlib.import_module":
            self._import_by_name(node, scope)
        found: list[Value] = []
        for function in functions:
            self._check_call(node, function, scope)
            found += self._result(function, node, scope)
        return tuple(dict.fromkeys(found))

    def _got(self, node: ast.Call, scope: Scope) -> Values:
        """getattr(object, "name", default)"""
        if len(node.args) < 2 or not isinstance(node.args[1], ast.Constant):
            return ()
        name = node.args[1].value
        return tuple(v for b in self._quietly(node.args[0], scope) for v in self._get(b, name)[0])

    def _import_by_name(self, node: ast.Call, scope: Scope) -> None:
        (name,) = node.args
        if isinstance(name, ast.Constant) and self._is_checked(name.value):
            lacks = "" if name.value in self.types.sources else "no such module"
            self._say(node, scope, f"import {name.value}", lacks, scope.may_lack)

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
            if function.name == "collective_rpc" and self._workers:
                self._check_remote(node, given, scope)
            if _key(function) in self._forwards:
                self._check_forwarded(node, scope)

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
        if isinstance(method, ast.Constant):
            elements = args.elts if isinstance(args, ast.Tuple) else []
            keys = self._keys(kwargs, scope) if kwargs else ()
            is_open = bool(args and not isinstance(args, ast.Tuple)) or bool(kwargs and not keys)
            self._check_method(node, method.value, Arguments(len(elements), keys, is_open), scope)
        elif isinstance(method, ast.Name) and scope.function and scope.function.args.vararg:
            if isinstance(args, ast.Name) and args.id == scope.function.args.vararg.arg:
                self._forwards.add((scope.module, scope.name))

    def _check_forwarded(self, node: ast.Call, scope: Scope) -> None:
        if node.args and isinstance(node.args[0], ast.Constant):
            given = Arguments(len(node.args) - 1)
            self._check_method(node, node.args[0].value, given, scope)

    def _check_method(self, node: ast.Call, name: str, given: Arguments, scope: Scope) -> None:
        assert self._workers
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

    # ---- facts

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


def _key(function: Function) -> tuple[str, str]:
    name = f"{function.owner.name}.{function.name}" if function.owner else function.name
    return function.module, name


def _text(value: Value) -> str:
    match value:
        case Module():
            return value.name
        case Instance():
            return str(value.type)
    return str(value)


def _list(given: Arguments) -> str:
    return ", ".join([*["…"] * given.positional, *(f"{name}=" for name in given.keywords)])


def _names(node: ast.expr) -> list[ast.Name]:
    return [part for part in ast.walk(node) if isinstance(part, ast.Name)]


def _leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def _asked_for(node: Def) -> Iterator[tuple[str, str]]:
    for call in ast.walk(node):
        match call:
            case ast.Call(func=ast.Name(id=asked), args=[what, ast.Constant(value=name), *default]):
                if asked == "hasattr" or (asked == "getattr" and default):
                    yield ast.unparse(what), name
