"""Names are found as an import finds them, and uses are judged as Python would, in small packages of our own."""

from __future__ import annotations

import pytest

from tests.contract.calls import Arguments
from tests.contract.sources import Sources
from tests.contract.uses import Uses, asked_of_workers, used_of_instance
from tests.contract.values import Types

FILES = {
    "pack/__init__.py": """
from .inner import *
from .inner import Thing as Renamed
from . import inner as alias
TABLE = {"Late": ".inner:Thing", "other": lambda: 1}
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
def act(one, two=2): ...
_hidden = 1
""",
    "space/part.py": "value = 1",
    "ours.py": """
from pack import Thing, Lost
from pack.inner import Base, act
import pack.inner as inner
try:
    from pack import Maybe
except ImportError:
    Maybe = None
Base(1, name="x")
Base(1, names="x")
act()
inner.gone(1)
Thing.lost
if hasattr(Thing, "newer"):
    Thing.newer
def use(thing, engine):
    thing.run(1, agian=True)
    thing.size
    engine.collective_rpc("run", args=(1, 2), kwargs={"third": 3})
    engine.collective_rpc("walk")
""",
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
        ("alias", "pack.inner."),
        ("guarded", "pack.guarded"),
        ("elsewhere", "elsewhere."),
        ("Foreign", "other.Foreign"),
        ("_hidden", None),
        ("nothing", None),
        ("run", None),
    ],
)
def test_a_name_is_found_as_an_import_finds_it(types: Types, name: str, home: str | None) -> None:
    found = types.sources.find("pack", name)
    assert (f"{found.module}.{found.name}" if found else None) == home
    assert "space" in types.sources and types.sources.find("space", "part")


@pytest.mark.parametrize(
    ("call", "objection"),
    [
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


def test_each_wrong_use_is_found_and_no_other(types: Types) -> None:
    facts = Uses(types, ("pack",), "ours").facts()
    assert {str(fact).partition(": ")[2] for fact in facts if fact.objection} == {
        "from pack import Lost: no such name",
        "Base(…, names=): has no parameter names",
        "act(): needs one",
        "pack.inner.gone: no such name",
        "pack.inner.Thing.lost: no such name",
    }


def test_wrong_uses_of_instances_are_found(types: Types) -> None:
    thing = types.class_of("pack.inner", "Thing")
    said = [fact.objection for fact in used_of_instance(types, "ours", thing, "run size newer")]
    assert said == ["has no parameter agian", "", "no such attribute"]
    asked = [fact.objection for fact in asked_of_workers(types, "ours", thing)]
    assert asked == ["has no parameter third", "no such method"]
    with pytest.raises(AssertionError, match="does not use walked"):
        list(used_of_instance(types, "ours", thing, "walked"))
