"""Names are found as an import finds them, in small packages of our own."""

from __future__ import annotations

import pytest

from tests.contract.calls import Arguments
from tests.contract.sources import Sources
from tests.contract.values import Types

FILES = {
    "pack/__init__.py": """
from .inner import *
from .inner import Thing as Renamed
from . import inner as alias
TABLE = {"Late": ".inner:Thing", "later": "pack.inner", "other": lambda: 1}
def __getattr__(name):
    return TABLE[name]
if True:
    guarded = 1
try:
    import elsewhere
except ImportError:
    elsewhere = None
""",
    "pack/inner.py": """
from other import Foreign
class Base:
    kept: int = 1
    def __init__(self, size, *, name=""):
        self.size = size
    def run(self, value, again=False): ...
class Thing(Base):
    def __init__(self):
        super().__init__(1)
class Silent(Base):
    def __init__(self):
        self.own = 1
class Stranger:
    def __init__(self):
        self.size = 2
class Sideways(Base):
    def __init__(self):
        Stranger.__init__(self)
_hidden = 1
""",
    "space/part.py": "value = 1",
}


@pytest.fixture
def types() -> Types:
    sources = Sources()
    for path, text in FILES.items():
        sources.add(path, lambda text=text: text)
    return Types(sources, {})


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("Thing", "pack.inner.Thing"),
        ("Renamed", "pack.inner.Thing"),
        ("Late", "pack.inner.Thing"),
        ("other", "pack.other"),
        ("inner", "pack.inner."),
        ("alias", "pack.inner."),
        ("guarded", "pack.guarded"),
        ("elsewhere", "elsewhere."),
        ("Foreign", "other.Foreign"),
    ],
)
def test_a_name_is_found(types: Types, name: str, home: str) -> None:
    found = types.sources.find("pack", name)
    assert found and f"{found.module}.{found.name}" == home


@pytest.mark.parametrize("name", ["_hidden", "nothing", "run"])
def test_what_an_import_would_not_find_is_not_found(types: Types, name: str) -> None:
    assert types.sources.find("pack", name) is None


def test_a_package_may_have_no_file_of_its_own(types: Types) -> None:
    assert "space" in types.sources and types.sources.find("space", "part")
    assert "spac" not in types.sources


@pytest.mark.parametrize(
    ("name", "has"),
    [("Base", True), ("Thing", True), ("Silent", False), ("Sideways", True)],
)
def test_attributes_count_where_their_init_is_called(types: Types, name: str, has: bool) -> None:
    cls = types.class_of("pack.inner", name)
    assert (types.member(cls, "size") is not None) == has
    assert types.member(cls, "kept") and types.member(cls, "run")


@pytest.mark.parametrize(
    ("call", "objection"),
    [
        (Arguments(1), ""),
        (Arguments(1, ("name",)), ""),
        (Arguments(0, ("size", "name")), ""),
        (Arguments(0), "needs size"),
        (Arguments(0, (), open=True), ""),
        (Arguments(2), "takes 1 positional arguments, gets 2"),
        (Arguments(1, ("size",)), "gets size twice"),
        (Arguments(1, ("names",)), "has no parameter names"),
    ],
)
def test_calls_are_judged_as_python_would(types: Types, call: Arguments, objection: str) -> None:
    constructor = types.constructor(types.class_of("pack.inner", "Base"))
    assert constructor and constructor.objection(call) == objection
