"""What holds of a model's chat template: asked of it by rendering small conversations, at the start of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from services.rollout.turns.extension import MARK, Ends, calls_before, extend, probe
from trimaran.errors import InputError
from trimaran.types import Message, Tool

USER = (Message("user", "more"),)
RESULT = (Message("tool", "rst5021", call_id="call00000", name="prb_tool"),)
RESULTS = (*RESULT, Message("tool", "rst6132", call_id="call00001", name="prb_tool"))
TOOL = Tool("prb_tool", "Probe.", '{"type": "object", "properties": {"probe": {"type": "string"}}}')
THOUGHT = "thg8244"
RenderWithTools = Callable[[Sequence[Message], Sequence[Tool], bool], str]
"""By the chat template; whether the next answer is opened. Raises InputError."""


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """Example: read_facts(chat.render, Ends(["<|im_end|>"])).shows_tools"""

    shows_tools: bool
    shows_calls: bool
    shows_two_results: bool
    why_no_user: str
    """Why a message of the user cannot follow what was sampled; "" where it can."""
    why_no_result: str
    """As much of a tool's result."""
    end_of_turn: str
    """The stop token behind an answer that a user's message follows; "" where there is none."""
    behind_end: str
    """What the template writes there, before the next message."""
    keeps_at_user: bool
    """Whether a message of the user leaves the text before it as it was, with what was thought."""
    keeps_at_result: bool
    strips: bool
    """White space at the ends of an answer."""
    adds_system: bool
    """A system message that no row gave."""

    def describe(self) -> str:
        """In a line."""
        rewrites = [
            what
            for keeps, what in (
                (self.keeps_at_user, "a message of the user"),
                (self.keeps_at_result, "a tool's result"),
            )
            if not keeps
        ]
        reported = [
            f"ends a turn by {self.end_of_turn or 'no token'}",
            f"{'shows' if self.shows_tools else 'ignores'} tools",
            f"would rewrite what was before {' and '.join(rewrites)}"
            if rewrites
            else "keeps what was before",
        ]
        if self.why_no_user:
            reported.append(f"takes no message of the user: {self.why_no_user}")
        if self.why_no_result:
            reported.append(f"takes no result of a tool: {self.why_no_result}")
        elif not self.shows_two_results:
            reported.append("shows one result of a tool at a time")
        if self.adds_system:
            reported.append("adds a system message")
        return f"the chat template {', '.join(reported)}"


def read_facts(render: RenderWithTools, ends: Ends) -> TemplateFacts:
    """What a template cannot render counts as not shown."""
    shown = partial(_shown, render)
    end_of_turn, behind_user, why_no_user = _extension(render, USER, ends)
    _, behind_result, why_no_result = _extension(render, RESULT, ends)
    _, behind_results, _ = _extension(render, RESULTS, ends)
    if not why_no_result and RESULT[0].text not in behind_result:
        why_no_result = "it does not show it"
    asked = [Message("user", "probe")]
    called = shown([*probe(calls_before(RESULT)), *RESULT])
    return TemplateFacts(
        shows_tools=TOOL.name in shown(asked, (TOOL,)),
        shows_calls=TOOL.name in called.partition(RESULT[0].text)[0],
        shows_two_results=all(one.text in behind_results for one in RESULTS),
        why_no_user=why_no_user,
        why_no_result=why_no_result,
        end_of_turn=end_of_turn,
        behind_end=behind_user[: len(behind_user) - len(behind_user.lstrip())],
        keeps_at_user=_keeps(shown, USER, end_of_turn),
        keeps_at_result=_keeps(shown, RESULT, end_of_turn),
        strips=f"{MARK} " not in shown([*asked, Message("assistant", f" {MARK} "), *USER]),
        adds_system="system" in shown(asked).partition("probe")[0].casefold(),
    )


def _shown(render: RenderWithTools, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    try:
        return render(messages, tools, False)
    except InputError:
        return ""


def _extension(
    render: RenderWithTools, messages: Sequence[Message], ends: Ends
) -> tuple[str, str, str]:
    """The end of the turn before `messages`, what they become, and why they cannot follow."""
    try:
        found = extend(messages, ends, lambda said: render(said, (), True))
    except InputError as error:
        return "", "", str(error)
    return found.end_of_turn, found.text, ""


def _keeps(
    shown: Callable[[Sequence[Message]], str], messages: Sequence[Message], end_of_turn: str
) -> bool:
    """Up to the end of an answer that thought before it."""
    answered = probe(calls_before(messages), THOUGHT)
    if MARK not in shown(answered):
        answered = probe((), THOUGHT)
    head, mark, tail = shown(answered).rpartition(MARK)
    before = head + mark + "".join(tail.partition(end_of_turn)[:2] if end_of_turn else ())
    return bool(mark) and shown([*answered, *messages]).startswith(before)
