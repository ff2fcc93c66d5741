"""A calculator that does one operation at a time: the environment of the demo of several turns.

    What is 7*41 + 61?   ->   CALC 7*41   287   CALC 287+61   348   ANSWER 348

SmolLM2's chat template shows no tools, so the protocol stands in the messages: two worked examples come before each
question.
"""

from __future__ import annotations

import re

from trimaran.episodes import Answer, Message, Row

RULES = "Use the calculator: write CALC and one operation, and you get its result. Then write ANSWER and the number."
EXAMPLES = (
    ("What is 7*41 + 61?", ("CALC 7*41", "287", "CALC 287+61", "348", "ANSWER 348")),
    ("What is 4*86 + 29?", ("CALC 4*86", "344", "CALC 344+29", "373", "ANSWER 373")),
)
OPERATION = re.compile(r"CALC\s*(\d{1,9})\s*([*+])\s*(\d{1,9})")


class Calculator:
    """An episode ends with the first message that does not calculate."""

    def reset(self, row: Row) -> list[Message]:
        self.answer = row["answer"]
        messages = [Message("system", RULES)]
        for question, turns in EXAMPLES:
            messages.append(Message("user", question))
            for place, text in enumerate(turns):
                messages.append(Message("user" if place % 2 else "assistant", text))
        return [*messages, Message("user", row["messages"][-1]["content"])]

    def step(self, message: Message) -> Answer:
        if found := OPERATION.match(message.text.strip()):
            left, right = int(found[1]), int(found[3])
            return str(left * right if found[2] == "*" else left + right), None, False
        is_right = message.text.strip() == f"ANSWER {self.answer}"
        return None, float(is_right), True
