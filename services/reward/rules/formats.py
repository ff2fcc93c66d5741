"""Rules that look at the form alone: none of them needs a reference.

Semantics of MindSpeed-RL (mindspeed_rl/models/rule_verifier.py) and EasyR1
(examples/reward_function). Their patterns hold several `.*`; what is said there by backtracking is
said here by a search that takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from services.reward.rules.texts import BOX, as_boxed, in_order
from trimaran.rewards import Sample

THINK, THINK_END, ANSWER, ANSWER_END = "<think>", "</think>", "<answer>", "</answer>"
TAGS = (THINK, THINK_END, ANSWER, ANSWER_END)

BETWEEN = re.compile(rf"{THINK_END}\s*{ANSWER}")
AT_END_OF_LINE = re.compile(rf"{ANSWER_END}$", re.MULTILINE)
CLOSED_BOX = re.compile(r"\\boxed\{.*?\}")
STEP = re.compile(r"Step \d+:|^\d+\.|\n-|\n\*|First,|Second,|Next,|Finally,")
STEPS_WANTED = 3


def think_answer(sample: Sample) -> float:
    """`format`: 1 for <think>…</think><answer>…</answer>, white space between them allowed.

    As there, what follows the last tag on a line of its own does no harm.
    """
    between = BETWEEN.search(sample.text, len(THINK)) if sample.text.startswith(THINK) else None
    return float(between is not None and bool(AT_END_OF_LINE.search(sample.text, between.end())))


def strict_format(sample: Sample) -> float:
    r"""1 when each tag stands exactly once and in order, the text begins and ends with them, and
    the answer holds exactly one \boxed{…}; else -0.5."""
    text = as_boxed(sample.text)
    right = (
        all(text.count(tag) == 1 for tag in TAGS)
        and in_order(text, *TAGS)
        and text.endswith(ANSWER_END)
        and len(boxes := list(_closed_boxes(text))) == 1
        and text.find(ANSWER) < boxes[0] < text.find(ANSWER_END)
    )
    return 1.0 if right else -0.5


def step(sample: Sample) -> float:
    """A third for each sign of stepwise reasoning ("Step 1:", "First,", a list item …), up to 1."""
    return len(list(islice(STEP.finditer(sample.text), STEPS_WANTED))) / STEPS_WANTED


def is_boxed_answer(text: str) -> bool:
    r"""<think>…</think>…<answer>…\boxed{…}…</answer>: the gate of base_acc and
    math_verify_reward."""
    return text.endswith(ANSWER_END) and in_order(
        as_boxed(text), THINK, THINK_END, ANSWER, BOX, "}", ANSWER_END
    )


def is_boxed_thought(text: str) -> bool:
    r"""<think>…</think>…\boxed{…}…: the format of math and geo3k."""
    return in_order(as_boxed(text), THINK, THINK_END, BOX, "}")


def is_think_answer(text: str) -> bool:
    """<think>…</think><answer>…</answer> and nothing after it: the format of r1v."""
    between = BETWEEN.search(text, len(THINK)) if text.startswith(THINK) else None
    end = len(text) - len(ANSWER_END)
    return between is not None and text.endswith(ANSWER_END) and between.end() <= end


def _closed_boxes(text: str) -> Iterator[int]:
    """Where those begin that are closed on their own line. What follows a line's last brace can
    hold none, and is left out: with it the pattern would take quadratic time."""
    position = 0
    for line in text.split("\n"):
        for box in CLOSED_BOX.finditer(line[: line.rfind("}") + 1]):
            yield position + box.start()
        position += len(line) + 1
