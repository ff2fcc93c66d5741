"""One version of everything that runs on an NPU, with our own sources over it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from tests.contract.archives import CACHE, STACKS
from tests.contract.calls import Def
from tests.contract.sources import Sources
from tests.contract.uses import Fact, Uses
from tests.contract.values import Class, Types

ROOT = Path(__file__).parents[2]
OURS = ("services", "trimaran", "weights")
PACKAGES = ("vllm", "vllm_ascend", "torch_npu", "megatron", "mindspeed")

WORKER = ("vllm_ascend.worker.worker", "NPUWorker")
EXTENSION = ("services.rollout.vllm.worker", "WorkerExtension")
MIXED_INTO: dict[str, tuple[str, str]] = {".".join(EXTENSION): WORKER}
"""vLLM makes one class of its worker and ours."""


def read_packages(version: str, mindspeed: Path | None) -> Sources | None:
    """None when an archive of this version of vLLM-Ascend is not in the cache.

    `mindspeed`: a checkout of MindSpeed. With torch of this environment, for what classes inherit;
    its use is not what is checked.
    """
    archives = [CACHE.find(file) for file in STACKS[version]]
    there = [archive for archive in archives if archive]
    if len(there) < len(archives):
        return None
    sources = Sources.read(there)
    torch = find_spec("torch")
    assert torch and torch.origin
    sources.add_folder(Path(torch.origin).parent)
    if mindspeed:
        sources.add_folder(mindspeed / "mindspeed")
    return sources


@dataclass(frozen=True)
class Stack:
    """`version`: of vLLM-Ascend."""

    version: str
    sources: Sources

    @cached_property
    def types(self) -> Types:
        return Types(self.sources, MIXED_INTO)

    @cached_property
    def facts(self) -> list[Fact]:
        """Imports, attributes and calls of the packages in our sources."""
        modules = self.our_modules()
        return [fact for m in modules for fact in Uses(self.types, PACKAGES, m).facts()]

    def our_modules(self) -> list[str]:
        """Those that name a package; all others see only what these hand them."""
        found = [module for name in OURS for module in self.sources.modules(name)]
        return [m for m in found if any(package in self.sources.text(m) for package in PACKAGES)]

    def our_subclasses(self) -> Iterator[tuple[Class, Class]]:
        """(a class of ours, the nearest class of a package that it derives from)"""
        for module in self.our_modules():
            for node in self.sources.tree(module).body:
                if isinstance(node, ast.ClassDef):
                    cls = self.types.class_of(module, node.name)
                    for base in self.types.mro(cls)[1:]:
                        if base.module.partition(".")[0] in PACKAGES:
                            yield cls, base
                            break

    def method(self, module: str, cls: str, name: str) -> Def:
        """Also an inherited one."""
        for member in self.types.members(self.types.class_of(module, cls)).get(name, ()):
            if isinstance(member.node, Def):
                return member.node
        raise AssertionError(f"{module}.{cls} has no method {name}")

    def text(self, module: str, name: str, method: str = "") -> str:
        """A class's, function's or method's source, in one spelling."""
        if method:
            return ast.unparse(self.method(module, name, method))
        found = self.sources.find(module, name)
        assert found and found.node, f"{module} has no {name}"
        return ast.unparse(found.node)


def read_stack(version: str, mindspeed: Path | None) -> Stack | None:
    """None when an archive of it is not in the cache."""
    sources = read_packages(version, mindspeed)
    if sources is None:
        return None
    for name in OURS:
        sources.add_folder(ROOT / name)
    return Stack(version, sources)


def counterparts(types: Types) -> dict[Class, Class]:
    """vLLM's layers -> those that vLLM-Ascend puts in their place."""
    module = "vllm_ascend.utils"
    tree = types.sources.tree(module)
    imported = {
        alias.asname or alias.name: (types.sources.imported_from(module, node), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "REGISTERED_ASCEND_OPS":
            assert isinstance(node.value, ast.Dict)
            for value in node.value.values:
                assert isinstance(value, ast.Name)
                theirs = types.class_of(*imported[value.id])
                for base in types.mro(theirs):
                    if base.module.startswith("vllm.") and base.name == theirs.name.removeprefix(
                        "Ascend"
                    ):
                        found[base] = theirs
    return found
