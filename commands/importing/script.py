"""The words of the training command in a plain launch script: assignments, and one command. Nothing is run.

A name counts where nothing but plain assignments mentions it; one that a branch, a loop, a function or another command
may set is taken from the environment. (`shlex` would drop the quotes: of '$NAME' and "$NAME" only one is replaced.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trimaran.errors import InputError

QUOTED = r"""'[^']*'|"(?:\\.|[^"\\])*\""""
SUBSTITUTION = r"\$\{[^}]*\}|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`"
TOKEN = re.compile(
    rf"""(?P<blank>[ \t\r]+|(?<!\S)\#[^\n]*|\d*&?[<>]+&?[ \t]*[^\s;|&()]*)
    |(?P<word>(?:{QUOTED}|{SUBSTITUTION}|(?<==)\((?:{QUOTED}|[^)])*\)|(?<=\S)\\\n(?=\S)|\\[^\n]
        |[^\s;|&<>()'"`\\])+)
    |(?P<operator>\\\n|&&|\|\||.)""",
    re.VERBOSE | re.DOTALL,
)
PIECE = re.compile(rf"{QUOTED}|\\.|[^'\"\\]+", re.DOTALL)
VARIABLE = re.compile(r"\$(?:(\w+|[@*])|\{(\w+|[@*])(?::?-([^}]*))?\})|[$`]")
ALONE = re.compile(r"\$(?:\w+|[@*]|\{(?:\w+|[@*])(?::?-[^}]*)?\})")
SPREAD = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
MENTION = re.compile(r"(?:(?<![\w${])|(?<=\$\{)(?=\w+:?=))[A-Za-z_]\w*")
"""A name that a command may set: one without a $ before it, and that of ${NAME:=value}."""
OPENING, CLOSING = (
    ("if", "for", "while", "until", "case", "select", "{"),
    ("fi", "done", "esac", "}"),
)
INSIDE = ("then", "else", "elif", "do", "!")
REMEDY = (
    "set it in the environment of this command, or import the command's own words (`trimaran import SYSTEM"
    " key=value …`), or the `.hydra/config.yaml` that a run of the script has written"
)


def find_command(text: str, module: str, environment: Mapping[str, str]) -> list[str]:
    """The words behind the Python module whose name begins with `module`.

    Raises InputError where no command or several start one, and where a word needs more than names that are known.
    Example: find_command("N=8\\npython3 -m verl.trainer.main_ppo a.n=$N", "verl.", {}) == ["a.n=8"]
    """
    script, found = _Script(environment), list[list[str]]()
    for words, is_plain in _commands(text):
        if (start := _behind_module(words, module)) is not None:
            found.append([one for word in words[start:] for one in script.expanded(word)])
            if is_plain is None:
                script.faults.append("the command stands in a branch, a loop or a function")
        else:
            script.assign(words, bool(is_plain))
    if len(found) != 1:
        raise InputError(
            f"{len(found)} commands start `-m {module}…`, not one: import the words of one (`trimaran import"
            " SYSTEM key=value …`)"
        )
    if script.faults:
        raise InputError(f"{'; '.join(dict.fromkeys(script.faults))}: {REMEDY}")
    return found[0]


def _behind_module(words: Sequence[str], module: str) -> int | None:
    for place, word in enumerate(words):
        if word.startswith(module) and "-m" in words[:place]:
            return place + 1
    return None


def _commands(text: str) -> Iterator[tuple[list[str], bool | None]]:
    """The words of each command as they are written, and whether it runs in any case, and in the script's own shell;
    None inside of a block. Raises InputError for a here-document."""
    words, depth, groups, before = list[str](), 0, 0, "\n"
    for token in TOKEN.finditer(f"{text.replace(chr(13), '')}\n"):
        if token["word"]:
            words.append(token["word"])
        if "<<" in (token["blank"] or ""):
            raise InputError(
                "the script has a here-document, which is not read: import the command's own words"
            )
        operator = token["operator"]
        if operator is None or operator == "\\\n":
            continue
        while words and words[0] in (*OPENING, *INSIDE, *CLOSING):
            depth += (words[0] in OPENING) - (words[0] in CLOSING)
            words = words[1:]
        if words:
            is_alone = before in ("\n", ";") and operator in ("\n", ";")
            yield words, None if depth else is_alone and not groups
        groups = max(0, groups + (operator == "(") - (operator == ")"))
        if words or operator != "\n":
            before = operator
        words = []


@dataclass(slots=True)
class _Script:
    environment: Mapping[str, str]
    known: dict[str, str] = field(default_factory=dict[str, str])
    unsure: set[str] = field(default_factory=set[str])
    """Names that something else than a plain assignment may set."""
    faults: list[str] = field(default_factory=list[str])

    def assign(self, words: Sequence[str], is_plain: bool) -> None:
        found = [ASSIGNMENT.fullmatch(word) for word in words[words[0] == "export" :]]
        if words[0] in ("source", ".", "eval"):
            self.unsure |= self.known.keys()
        if words[:2] == ["set", "--"]:
            self.unsure.add("@")
        if not is_plain or None in found:
            self.unsure.update(*map(MENTION.findall, words))
            return
        for match in filter(None, found):
            name, value = match.groups()
            trial = _Script(self.environment, self.known, self.unsure)
            self.known[name] = trial.text(value)
            if trial.faults or value.startswith("("):
                self.unsure.add(name)

    def expanded(self, word: str) -> list[str]:
        """A word of the training command; one that is a name alone may be none or several."""
        text = self.text(word)
        return text.split() if ALONE.fullmatch(word) or word == '"$@"' else [text]

    def text(self, word: str) -> str:
        """Without its quotes, and with its names replaced."""
        made = ""
        for piece in PIECE.findall(word):
            if piece.startswith("'"):
                made += piece[1:-1]
            elif piece.startswith('"'):
                inside = VARIABLE.sub(self._value, piece[1:-1].replace("\\\n", ""))
                made += re.sub(r'\\([$`"\\])', r"\1", inside)
            elif piece.startswith("\\"):
                made += piece[1:].strip("\n")
            else:
                self.faults += [f"`{piece}` stands for several words"] * bool(SPREAD.search(piece))
                made += VARIABLE.sub(self._value, piece)
        return made

    def _value(self, match: re.Match[str]) -> str:
        name, default = match[1] or match[2], match[3]
        if name is None:
            self.faults.append(f"`{match.string.strip()}` is more than a name")
            return ""
        is_argument = name in ("@", "*") or name.isdigit()  # the import has none for the script
        is_sure = ("@" if is_argument else name) not in self.unsure
        value = self.known.get(name) if is_sure else None
        if value is None:
            value = self.environment.get(name, "" if is_argument and is_sure else None)
        if value or (value is not None and default is None):
            return value
        if default is not None and is_sure:
            return VARIABLE.sub(self._value, default)
        self.faults.append(f"{name} is not set by plain assignments")
        return ""
