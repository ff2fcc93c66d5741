"""An environment that takes half a second a turn; or hangs."""

import time

from trimaran.episodes import Answer, Message, Row

TURN_SECONDS, TURNS = 0.5, 8


class SlowWorld:
    def reset(self, row: Row) -> str:
        self.hangs, self.turn = row["task"] == "hang", 0
        return "Begin."

    def step(self, message: Message) -> Answer:
        self.turn += 1
        time.sleep(1000 if self.hangs and self.turn == 2 else TURN_SECONDS)
        return "go on", 0.0, self.turn == TURNS
