"""Classes of TRL's `environment_factory`, as its GRPOTrainer (1.16) plays with them: public methods are tools,
`reset` gets the row's columns, `get_reward` says what the episode is worth."""

from __future__ import annotations

import inspect
from typing import Any

from services.environment.loading.boxes import columns_of
from services.environment.loading.functions import CallableTool
from services.environment.loading.waiting import settled, taken_by
from trimaran.data.row_parts import text_of
from trimaran.episodes import Row

NO_TOOLS = ("reset", "get_reward")


class TrlBox:
    """Example: TrlBox(WordGame(), "answer").tools["guess"].call({"word": "crane"})"""

    def __init__(self, environment: Any, answer_key: str) -> None:
        """Raises InputError for a method that no policy could be shown."""
        self._environment, self._answer_key = environment, answer_key
        methods = inspect.getmembers(type(environment), inspect.isfunction)
        self.tools = {
            name: CallableTool.of(getattr(environment, name), name)
            for name, _ in methods
            if name not in NO_TOOLS and not name.startswith("_")
        }

    def open(self, row: Row) -> str:
        reset, columns = self._environment.reset, columns_of(row, self._answer_key)
        said = settled(reset(**taken_by(reset, columns)))
        return "" if said is None else text_of(said)

    def reward(self) -> float | None:
        """The attribute `reward`, which reward functions of TRL read, where there is no `get_reward`."""
        environment = self._environment
        known = hasattr(environment, "get_reward")
        reward = (
            settled(environment.get_reward()) if known else getattr(environment, "reward", None)
        )
        return None if reward is None else float(reward)

    def close(self) -> None:
        """It is reset by the next episode."""
