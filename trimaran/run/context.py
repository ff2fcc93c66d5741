"""Which run a process works for: its id, its folder and its store.

The launcher writes it into the run folder; every process of the run reads it there. A store's URL
may hold a password, so it stands in a file that only the owner reads, never in a command line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trimaran.errors import InputError
from trimaran.host.system_errors import refused
from trimaran.store import store_in
from trimaran.trust.access import NO_TRUST, Trust, write_private

CONTEXT_NAME = "context.json"


@dataclass(frozen=True, slots=True)
class RunContext:
    """Example: RunContext.in_folder(Path("runs/addition-20261120-120000")).run_id"""

    run_id: str
    """Unique in the store. The folder's name, unless the folder was moved."""
    folder: Path
    """What the run leaves behind."""
    store_url: str
    """As `trimaran.store.open_store` takes it."""
    trust: Trust = NO_TRUST
    """What the run's services show each other. Its token stands in a file of its own."""
    launcher: str = "local"
    """What starts the run's processes."""

    @classmethod
    def in_folder(cls, folder: Path) -> RunContext:
        """What `write` wrote there; without that a run named as the folder, with its store inside.

        Raises InputError where the file is damaged, UnavailableError where the machine is at fault.
        """
        path, own_store = folder / CONTEXT_NAME, store_in(folder)
        if not path.is_file():
            return cls(folder.name, folder, own_store, Trust.in_folder(folder))
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            trust = Trust.in_folder(folder, tree.get("trust"))
            store_url, launcher = tree["store_url"] or own_store, tree.get("launcher", "local")
            return cls(tree["run_id"], folder, store_url, trust, launcher)
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise refused(f"{path}: cannot be read", error, "write it again") from None

    def write(self) -> None:
        """For the processes of the run."""
        # The store in the folder moves with it: a restored copy must not use the original's.
        store_url = None if self.store_url == store_in(self.folder) else self.store_url
        tree = {"run_id": self.run_id, "store_url": store_url}
        tree |= {"trust": self.trust.to_tree(), "launcher": self.launcher}
        write_private(self.folder / CONTEXT_NAME, json.dumps(tree))
