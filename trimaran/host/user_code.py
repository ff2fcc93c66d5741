"""Imports the code that a target names: "package.module:name" or "/path/to/file.py:name".

A file becomes a module under a private name, so that a file called `math.py` shadows nothing. Its
folder joins the *end* of sys.path: the files beside it can be imported, and none of them can take
the place of an installed module.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType


class ImportRefusedError(Exception):
    """Says why the module is of no use."""


def import_target(target: str) -> tuple[ModuleType, str]:
    """The module and the name in it. Raises ImportRefusedError."""
    module, _, name = target.rpartition(":")
    try:
        loaded = _import_file(Path(module)) if module.endswith(".py") else _import_module(module)
    except ImportRefusedError:
        raise
    except (Exception, SystemExit) as error:  # user code runs here, and may end in any way
        text = " ".join(str(error).split())
        raise ImportRefusedError(f"{module}: {type(error).__name__}: {text}") from error
    if not hasattr(loaded, name):
        raise ImportRefusedError(f"{module} has no {name!r}")
    return loaded, name


def _import_module(name: str) -> ModuleType:
    importlib.invalidate_caches()
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    name = f"_trimaran_user_{path.stem}_{sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise ImportRefusedError(f"{path}: no such file")
    _add_folder(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look it up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


_folders: list[Path] = []
"""The folders of the files that were imported, in order."""


def _add_folder(folder: Path) -> None:
    """Raises ImportRefusedError where a file there would be taken for one of another folder."""
    if folder in _folders:
        return
    for path in folder.iterdir():
        known = getattr(sys.modules.get(path.stem), "__file__", None)
        # The grandparent: `known` is the __init__.py of a package.
        if known and {Path(known).parent, Path(known).parent.parent} & set(_folders):
            raise ImportRefusedError(
                f"{path} and {known} have one name, and a process can import only one of them;"
                " rename one"
            )
    _folders.append(folder)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()
