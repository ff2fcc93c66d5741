"""Python runs this at each start with this folder on PYTHONPATH: so it reaches all processes of a part.

`CONTRACT_RUN_AFTER` names a module. When it was imported, `CONTRACT_RUN`, a `module:function`, is
called with it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any


class After:
    def __init__(self, name: str, action: str) -> None:
        self.name, self.action = name, action

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """None for other modules, which others find."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            place, _, function = self.action.partition(":")
            getattr(importlib.import_module(place), function)(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, After(os.environ["CONTRACT_RUN_AFTER"], os.environ["CONTRACT_RUN"]))  # type: ignore[arg-type]
