"""Python sources as syntax trees by module name; nothing is imported.

A name is found as an import would find it: through re-exports, `from x import *`, definitions under
`if` and `try`, submodules, and the tables from which a module's `__getattr__` loads lazily.
"""

from __future__ import annotations

import ast
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

MAX_REEXPORTS = 16


@dataclass(frozen=True)
class Definition:
    """What binds `name` in `module`.

    `node` is None for a whole module, and for what comes from a package that is not read here.
    """

    module: str
    name: str
    node: ast.stmt | None = field(default=None, compare=False)

    @property
    def is_module(self) -> bool:
        return not self.name


class Sources:
    """Example: `Sources.read([Path("vllm-0.23.0.tar.gz")]).find("vllm", "SamplingParams")`."""

    def __init__(self) -> None:
        self._texts: dict[str, Callable[[], str]] = {}
        self._packages: set[str] = set()
        self._modules: set[str] = set()
        """With namespace packages, which have no file of their own."""
        self._trees: dict[str, ast.Module] = {}
        self._bindings: dict[str, dict[str, list[ast.stmt]]] = {}
        self._lazy: dict[str, dict[str, ast.expr]] = {}
        self._found: dict[tuple[str, str], Definition | None] = {}
        self.metadata: dict[str, str] = {}
        """Of wheels: the texts in their .dist-info; of source archives: setup.py. By path."""

    @classmethod
    def read(cls, archives: list[Path]) -> Sources:
        sources = cls()
        for archive in archives:
            for name, text in _members(archive):
                if name.endswith(".py") and "/" in name:
                    sources.add(name, text)
                elif name == "setup.py" or ".dist-info/" in name:
                    sources.metadata[name] = text()
        return sources

    def add_folder(self, folder: Path) -> None:
        """A package that lies in `folder`, by the folder's name."""
        for path in folder.rglob("*.py"):
            name = path.relative_to(folder.parent).as_posix()
            self.add(name, lambda path=path: path.read_text(encoding="utf-8"))

    def add(self, path: str, text: Callable[[], str]) -> None:
        """`path`: of the file in its package, such as vllm/config/__init__.py; replaces."""
        module = path.removesuffix(".py").replace("/", ".")
        if module.endswith(".__init__"):
            module = module.removesuffix(".__init__")
            self._packages.add(module)
        self._texts[module] = text
        for known in (self._trees, self._bindings, self._lazy):
            known.pop(module, None)
        self._found.clear()
        while module and module not in self._modules:
            self._modules.add(module)
            module = module.rpartition(".")[0]

    def __contains__(self, module: str) -> bool:
        return module in self._modules

    def modules(self, package: str) -> list[str]:
        return sorted(m for m in self._texts if m == package or m.startswith(f"{package}."))

    def knows(self, module: str) -> bool:
        """Whether the package of `module` is read here at all."""
        return module.partition(".")[0] in self

    def text(self, module: str) -> str:
        return self._texts[module]()

    def tree(self, module: str) -> ast.Module:
        if module not in self._trees:
            self._trees[module] = ast.parse(self.text(module))
        return self._trees[module]

    def find(self, module: str, name: str, depth: int = 0) -> Definition | None:
        """None when `module` has no such name."""
        if (module, name) not in self._found:
            found = self._find(module, name, depth)
            if depth:  # cut off where modules import from each other, so not to be kept
                return found
            self._found[module, name] = found
        return self._found[module, name]

    def _find(self, module: str, name: str, depth: int) -> Definition | None:
        if depth > MAX_REEXPORTS or module not in self:
            return None
        found = None
        for node in self.bindings(module).get(name, ()):
            found = found or self._follow(module, name, node, depth)
        if found is None and f"{module}.{name}" in self:
            return Definition(f"{module}.{name}", "")
        return found or self._find_starred(module, name, depth) or self._find_lazy(module, name)

    def bindings(self, module: str) -> dict[str, list[ast.stmt]]:
        """Name -> the statements that bind it at the top of the module."""
        if module not in self._texts:
            return {}
        if module not in self._bindings:
            table = self._bindings[module] = {}
            for statement in statements(self.tree(module).body):
                for name in bound_names(statement):
                    table.setdefault(name, []).append(statement)
        return self._bindings[module]

    def imported_from(self, module: str, node: ast.ImportFrom) -> str:
        """The absolute name of the module that a `from` statement in `module` names."""
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        keep = len(parts) - node.level + (module in self._packages)
        return ".".join([*parts[:keep], *([node.module] if node.module else [])])

    def _follow(self, module: str, name: str, node: ast.stmt, depth: int) -> Definition | None:
        if isinstance(node, ast.ImportFrom):
            base = self.imported_from(module, node)
            original = next(a.name for a in node.names if (a.asname or a.name) == name)
            if not self.knows(base):
                return Definition(base, original)
            return self.find(base, original, depth + 1)
        if isinstance(node, ast.Import):
            alias = next(a for a in node.names if (a.asname or a.name.partition(".")[0]) == name)
            return Definition(alias.name if alias.asname else name, "")
        return Definition(module, name, node)

    def _find_starred(self, module: str, name: str, depth: int) -> Definition | None:
        if name.startswith("_"):
            return None
        for node in self.bindings(module).get("*", ()):
            assert isinstance(node, ast.ImportFrom)
            base = self.imported_from(module, node)
            if self.knows(base) and (found := self.find(base, name, depth + 1)):
                return found
        return None

    def _find_lazy(self, module: str, name: str) -> Definition | None:
        """From a table {name: "module" or "module:name" or something else} beside `__getattr__`."""
        value = self._lazy_table(module).get(name)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            base, _, original = value.value.partition(":")
            return self.find(f"{module}{base}" if base.startswith(".") else base, original or name)
        return Definition(module, name) if value else None

    def _lazy_table(self, module: str) -> dict[str, ast.expr]:
        if module not in self._lazy:
            table = self._lazy[module] = {}
            if "__getattr__" in self.bindings(module):
                for node in ast.walk(self.tree(module)):
                    if isinstance(node, ast.Dict):
                        for key, value in zip(node.keys, node.values, strict=True):
                            table.setdefault(string_of(key), value)
        return self._lazy[module]


def string_of(node: ast.expr | None) -> str:
    """Of a literal string; empty for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
    return ""


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """With those under `if`, `try`, `with` and loops; not those of functions and classes."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for part in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", ()):
                yield from statements(handler.body)


def bound_names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            name = alias.asname or alias.name
            yield name if isinstance(node, ast.ImportFrom) else name.partition(".")[0]
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for part in ast.walk(target):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """(path without a source archive's own folder, how to read it)."""
    if archive.suffix == ".whl":
        wheel = zipfile.ZipFile(archive)
        for name in wheel.namelist():
            yield name, lambda name=name: wheel.read(name).decode()
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:]).as_posix()
            if member.isfile() and _is_wanted(path):
                file = tar.extractfile(member)
                assert file
                # All of it now: to go back in a compressed archive is to read it again.
                content = file.read()
                yield path, lambda content=content: content.decode()


def _is_wanted(path: str) -> bool:
    return path == "setup.py" or (path.startswith("vllm") and path.endswith(".py"))
