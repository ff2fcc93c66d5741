"""The words of the command that a launch script ends in, with the script's own variables put in.

Enough of the shell's language for the published examples: assignments, arrays, quotes, `${NAME:-value}`,
`$((2 * 1024))`, comments, continued lines, functions without arguments, and `if`, `case`, `&&` and `||` over tests of
texts and numbers that are known. Nothing is run. So what depends on the output of a command, on files or on a loop is not
known here: a name that is set so has its value from the environment, or none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from itertools import pairwise

from commands.importing.shell_branches import (
    CASE_PATTERN,
    Chain,
    Frame,
    Truth,
    both,
    holds,
    opposite,
)
from trimaran.errors import InputError

NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNMENT = re.compile(
    r"((?:export|local|readonly|declare|typeset)(?:[ \t]+-[aAfgrux]+)*[ \t]+)?([A-Za-z_]\w*)(\+?)="
)
BY_SUM = re.compile(r"\b([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%]?=(?!=))|(?:\+\+|--)([A-Za-z_]\w*)")
"""A name that a sum such as ((N += 1)) sets."""
DEFINITION = re.compile(r"\([ \t]*\)")
SPREAD = re.compile(r"""\{[^{}\s'"]*(?:,|\.\.)[^{}\s'"]*\}""")
COMMENT_END = re.compile(r"""^((?:[^'"`\n]*[ \t;])?#[^\n]*?)\\[ \t\r]*$""", re.MULTILINE)
"""A comment with a backslash behind it, which does not continue its line."""
CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\r?\n")
SLIP = re.compile(r"(?<!\\)((?:\\\\)*)\\[ \t\r]+\n")
SETTERS = frozenset(
    [
        "read",
        "mapfile",
        "readarray",
        "let",
        "unset",
        "getopts",
        "declare",
        "local",
        "readonly",
        "typeset",
        "export",
        "printf",
        "for",
        "select",
    ]
)
"""Builtins that set the names behind them, or may."""
ELSEWHERE = frozenset({"source", ".", "eval"})
DATE = re.compile(r"""\(\s*date\s+["']?\+([^"'$`()]+?)["']?\s*\)""")
LOOPS = frozenset({"for", "while", "until", "select"})
CLOSERS = frozenset({"fi", "done", "esac", "}"})
ALONE = frozenset({"if", "elif", "then", "do", "else", "{", "}", "!"})
"""Words behind which another command begins."""
TESTS = {"[": "]", "[[": "]]"}
"""Where a test begins and ends."""
REDIRECTION = re.compile(r"(?:\d*|&)(?:<<<|<<-?|[<>]&|>>|>\||<>|[<>])(?!\()")
ESCAPED = '$`"\\'
"""What a backslash inside of double quotes is for."""
BLANKS, ENDS = " \t\r", "\n;|&()<>"
ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda one, other: one + other,
    ast.Sub: lambda one, other: one - other,
    ast.Mult: lambda one, other: one * other,
    # Towards zero, as the shell does it.
    ast.Div: lambda one, other: (
        one // other if (one < 0) == (other < 0) else -(abs(one) // abs(other))
    ),
}
REMEDY = (
    "set it in the environment of this command, or import the `.hydra/config.yaml` that a run of the"
    " script has written"
)

REWRITE = (
    "write its value into the script, or import the `.hydra/config.yaml` that a run of the script has"
    " written"
)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A word that nothing here can tell."""

    reason: str
    is_named: bool = False
    """The reason begins with the variable that would have to be known."""

    def of(self, name: str) -> Unknown:
        return self if self.is_named else Unknown(f"{name}: {self.reason}", is_named=True)


Words = list["str | Unknown"]


def find_command(
    text: str, module: str, environment: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """What follows a Python module whose name begins with `module`, and what was assumed on the way.

    Raises InputError where there is no such command, and where a word of it is not known here.
    Example: find_command("N=8\\npython3 -m verl.trainer.main_ppo a.n=$N", "verl.", {}) == (["a.n=8"], [])
    """
    script = _Script(text, environment)
    found = [
        (words[place:], list(script.assumed))
        for words in script.commands()
        if (place := _behind_module(words, module)) is not None
    ]
    if not found:
        raise InputError(
            f"holds no command with `-m {module}…`; give the YAML file, or the command's key=value words"
        )
    if len(found) > 1:
        raise InputError(
            f"holds {len(found)} commands with `-m {module}…`, and which of them to take is not known here;"
            " give a script with one, or the `.hydra/config.yaml` that a run of the script has written"
        )
    [(words, assumed)] = found
    return _all_known(words), assumed


def _behind_module(words: Words, module: str) -> int | None:
    """The place behind `-m` and a module whose name begins with `module`."""
    for place, (word, follows) in enumerate(pairwise(words)):
        if word == "-m" and isinstance(follows, str) and follows.startswith(module):
            return place + 2
    return None


def _all_known(words: Words) -> list[str]:
    if unknown := sorted({word.reason for word in words if isinstance(word, Unknown)}):
        raise InputError("\n".join(unknown))
    return [word for word in words if isinstance(word, str)]


@dataclass
class _Script:
    text: str
    environment: Mapping[str, str]
    known: dict[str, Words] = field(default_factory=dict[str, Words])
    at: int = 0
    chain: Chain = field(default_factory=Chain)
    frames: list[Frame] = field(default_factory=list[Frame])
    """Around the command that is read, the innermost last."""
    ending: str = ""
    """Of the command that was read: newline, &&, …"""
    has_assigned: bool = False
    """The command began with an assignment."""
    assigned: Truth = True
    """Whether that succeeded: unknown with the output of a command."""
    is_negated: bool = False
    """The next command stands behind a !."""
    heredocs: list[re.Pattern[str]] = field(default_factory=list[re.Pattern[str]])
    """The last lines of the texts that begin on the next line."""
    functions: dict[str, int] = field(default_factory=dict[str, int])
    """Where their bodies begin."""
    defined: str | None = None
    """The function whose body begins with the next {."""
    arguments: Words = field(default_factory=Words)
    """What $@ stands for."""
    assumed: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.text = CONTINUED.sub(r"\1", COMMENT_END.sub(r"\1", self.text))
        if SLIP.search(self.text):
            # Published examples have it.
            self.text = SLIP.sub(r"\1 ", self.text)
            self.assumed.append(
                "a blank stands behind a backslash at the end of a line, where the shell ends the command: the"
                " next line is taken to belong to it all the same"
            )

    def commands(self) -> Iterator[Words]:
        """Each that may run, in turn; what it assigns is known to those behind it."""
        while self.at < len(self.text):
            words = self._command()
            if words and not self._is_of_structure(words):
                if self._live is not False:
                    self._set_names(words)
                    yield words
                if not self._call(words):
                    self._ran(self._status(words))
            elif not words and self.has_assigned:
                self._ran(self.assigned)
            self._end_command()

    @property
    def _live(self) -> Truth:
        """Whether the command that is read is run."""
        return reduce(both, (frame.runs for frame in self.frames), self.chain.runs)

    def _is_of_structure(self, words: Words) -> bool:
        """A word of the language, and no command: which branch follows, and where it ends."""
        word, frame = words[0], self.frames[-1] if self.frames else None
        if word == "!":
            self.is_negated = True
        elif word == "function" and len(words) > 1:
            self.defined = str(words[1])
            if words[2:] == ["{"]:
                self._open("{", words)
        elif word in ("if", "case", "{") or word in LOOPS:
            self._open(str(word), words)
        elif word in ("then", "elif", "else") and frame and frame.kind == "if":
            if word == "then":
                frame.take(self.chain.status)
            elif word == "elif":
                frame.live = opposite(frame.taken)
            else:
                frame.take(True)
            self.chain = Chain()
        elif word in CLOSERS and frame:
            self.frames.pop()
            status = self.chain.status if frame.kind == "{" else None
            self.chain = frame.outer
            self.known |= frame.kept
            if frame.back is not None:
                self.at, self.ending = frame.back
            self._ran(status)
        else:
            return word in ("then", "do", "else", "elif", *CLOSERS)
        return True

    def _open(self, kind: str, words: Words) -> None:
        frame = Frame(kind, self.chain, live=None if kind in LOOPS else True)
        if kind == "{" and self.defined:
            self.functions[self.defined] = self.at
            self.defined, frame.live = None, False
        if kind in ("for", "select") and self._live is not False:
            self._set_names(words)
        if kind == "case":
            word = words[1] if len(words) == 3 else None
            # `case "$EMPTY" in` has lost its word.
            frame.word = "" if len(words) == 2 else word if isinstance(word, str) else None
        self.frames.append(frame)
        self.chain = Chain()
        if kind == "case":
            self._read_patterns()

    def _read_patterns(self) -> None:
        """Of the next branch of the innermost case, if there is another one."""
        while self.text[self.at : self.at + 1] in (*BLANKS, "\n", ";", "#"):
            if self.text[self.at] == "#":
                self._skip_comment()
            self.at += 1
        if re.compile(r"esac\b").match(self.text, self.at):
            return
        match = CASE_PATTERN.match(self.text, self.at)
        self.at = match.end() if match else len(self.text)
        if match:
            self.frames[-1].match(match[1])
        self.chain = Chain()

    def _ran(self, status: Truth) -> None:
        self.chain.ran(opposite(status) if self.is_negated else status)
        self.is_negated = False

    def _call(self, words: Words) -> bool:
        """Goes on in the body of a function, and from there back."""
        name = str(words[0])
        body = self.functions.get(name)
        calls = self._calls()
        if body is None or self._live is False or name in [frame.word for frame in calls]:
            return False
        self.frames.append(Frame("{", self.chain, word=name, back=(self.at, self.ending)))
        self.chain, self.at, self.ending = Chain(), body, ""
        return True

    def _calls(self) -> list[Frame]:
        return [frame for frame in self.frames if frame.back is not None]

    def _set_names(self, words: Words) -> None:
        """By a builtin, to what is not known here."""
        first, *others = (str(word) for word in words)
        if first in ELSEWHERE:
            self.assumed.append(
                f"`{' '.join(map(_show, words))}` may set names of the script: it is not read"
            )
        elif re.match(r"[A-Za-z_]\w*\[[^]]*\]\+?=", first):
            self._forget(first.partition("[")[0], "by parts")
        elif words[:2] == ["set", "--"]:
            self.arguments = [Unknown(f"the script sets $@ by `set --`; {REWRITE}", is_named=True)]
        elif first in SETTERS:
            if first == "printf":
                others = others[1:2] if others[:1] == ["-v"] else []
            elif first in ("for", "select"):
                others = others[:1]
            elif first in ("declare", "local", "readonly", "typeset", "export"):
                others = [word for word in others if "=" in word]
            for word in others:
                if match := NAME.match(word):
                    self._forget(match[0], f"by `{first}`")

    def _forget(self, name: str, how: str) -> None:
        unknown = Unknown(f"{name} is set {how} in the script; {REMEDY}", is_named=True)
        self.known[name] = [self.environment.get(name, unknown)]

    def _status(self, words: Words) -> Truth:
        if words[0] in TESTS:
            told = [word if isinstance(word, str) else None for word in words[1:]]
            return holds(told, has_patterns=words[0] == "[[")
        return {"true": True, ":": True, "false": False}.get(str(words[0]))

    def _command(self) -> Words:
        words: Words = []
        self.ending, self.has_assigned, self.assigned = "", False, True
        before, is_kept = dict(self.known), False
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter in BLANKS:
                self.at += 1
            elif letter == "#":
                self._skip_comment()
            elif match := REDIRECTION.match(self.text, self.at):
                self.at = match.end()
                self._redirect(match[0].lstrip("0123456789"))
            elif self._skip_substitution():
                words.append(Unknown(f"the output of a command is not known here; {REMEDY}"))
            elif self.text.startswith("((", self.at) and words in ([], ["for"]):
                length = matching(self.text[self.at :], "(", ")")
                self._sum(self.text[self.at : self.at + length])
                self.at += length
                words.append("((")
            elif (
                letter == "("
                and len(words) == 1 + (words[:1] == ["function"])
                and (match := DEFINITION.match(self.text, self.at))
            ):
                self.at = match.end()
                if len(words) == 1:
                    self.defined = str(words[0])
                    words.clear()
                while self.text[self.at : self.at + 1] in (*BLANKS, "\n"):
                    self.at += 1
            elif letter in ENDS:
                if self._read_end(letter) in ("|", "&") and self.has_assigned and not words:
                    self.known = before  # of another process
                break
            elif not words and (match := ASSIGNMENT.match(self.text, self.at)):
                self.at = match.end()
                is_kept = is_kept or bool(match[1])
                self._assign(match[2], bool(match[3]), is_local=(match[1] or "")[:5] == "local")
            else:
                if not words and self.has_assigned and not is_kept:
                    self.known = before  # `NAME=value command` sets it for the command alone
                words += self._word(BLANKS + ENDS)
                if words and (words[0] in ALONE or words[::2] == ["function", "{"]):
                    break
                if len(words) == 1 and words[0] in TESTS:
                    words += self._test(TESTS[str(words[0])])
                if words[:1] == ["case"] and words[-1] == "in" and len(words) > 1:
                    break
        return words

    def _test(self, closing: str) -> Words:
        """The words of a test, with those that are empty, and without the bracket that ends it."""
        words: Words = []
        ends = BLANKS + "\n" + (";" if closing == "]" else "")
        while self.at < len(self.text):
            letter, sign = self.text[self.at], self.text[self.at : self.at + 2]
            if letter in BLANKS or (letter == "\n" and closing == "]]"):
                self.at += 1
            elif re.compile(re.escape(closing) + r"(?![^\s;&|)])").match(self.text, self.at):
                self.at += len(closing)
                break
            elif letter in ends:
                break
            elif closing == "]]" and sign in ("&&", "||"):
                words.append(sign)
                self.at += 2
            else:
                word = self._word(ends, is_split=False)
                words += word if len(word) == 1 else [" ".join(map(_show, word))]
        return words

    def _read_end(self, letter: str) -> str:
        sign = self.text[self.at : self.at + 2]
        self.ending = sign if sign in ("&&", "||", ";;") else letter
        self.at += len(self.ending)
        if letter == "\n":
            self._skip_heredocs()
        return self.ending

    def _end_command(self) -> None:
        """What stands between this command and the next."""
        if self.ending in ("&&", "||"):
            while self.text[self.at : self.at + 1] in (*BLANKS, "\n"):
                self.at += 1
            self.chain.sign = self.ending
        elif self.ending == ";;" and self.frames and self.frames[-1].kind == "case":
            self._read_patterns()
        elif self.ending in ("\n", ";", ";;", "&"):
            self.chain.sign = ""
        elif self.ending == "(":
            self.frames.append(Frame("(", self.chain, kept=dict(self.known)))
            self.chain = Chain()
        elif self.ending == ")" and self.frames and self.frames[-1].kind == "(":
            frame, status = self.frames.pop(), self.chain.status
            self.known, self.chain = frame.kept, frame.outer
            self._ran(status)

    def _sum(self, text: str) -> None:
        for match in BY_SUM.finditer(text):
            if self._live is not False:
                self._forget(match[1] or match[2], "by a sum")

    def _redirect(self, sign: str) -> None:
        """What stands behind the sign: a file, or the last line of a text that follows."""
        while self.text[self.at : self.at + 1] in tuple(BLANKS):
            self.at += 1
        if self._skip_substitution():
            return
        word = self._word(BLANKS + ENDS)
        if sign in ("<<", "<<-") and word and isinstance(word[0], str):
            tabs = r"\t*" if sign == "<<-" else ""
            last = re.compile(rf"^{tabs}{re.escape(word[0])}\r?$\n?", re.MULTILINE)
            self.heredocs.append(last)

    def _skip_substitution(self) -> bool:
        """Of a process: <(…) or >(…)."""
        if not self.text.startswith(("<(", ">("), self.at):
            return False
        self.at += 1 + matching(self.text[self.at + 1 :], "(", ")")
        return True

    def _skip_heredocs(self) -> None:
        for last in self.heredocs:
            match = last.search(self.text, self.at)
            self.at = match.end() if match else self.at
        self.heredocs.clear()

    def _assign(self, name: str, is_more: bool, is_local: bool) -> None:
        self.has_assigned = True
        is_array = self.text.startswith("(", self.at)
        value = self._array() if is_array else _one(self._word(BLANKS + ENDS, is_split=False))
        live, before = self._live, self.known.get(name)
        is_known = not any(isinstance(word, Unknown) for word in value)
        self.assigned = self.assigned if is_known else None
        if live is False:
            return
        if is_local and self._calls():
            self._calls()[-1].kept.setdefault(name, before or [])
        if name in self.environment and not (live and is_known):
            value = Words([self.environment[name]])
        elif live is None and before:
            self.assumed.append(
                f"{name} is set again by a condition of the script: taken as it was before,"
                f" {' '.join(map(_show, before))}"
            )
            value = before
        elif live is None:
            value = [
                Unknown(f"{name} is set by a condition of the script; {REMEDY}", is_named=True)
            ]
        elif is_more:
            if before is None:
                before = [self.environment[name]] if name in self.environment else []
            value = (
                [*before, *value] if is_array else [*_one([*before[:1], *value], ""), *before[1:]]
            )
        self.known[name] = [word.of(name) if isinstance(word, Unknown) else word for word in value]

    def _array(self) -> Words:
        words: Words = []
        self.at += 1
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == "#":
                self._skip_comment()
                continue
            if letter not in BLANKS + "\n)":
                words += self._word(BLANKS + "\n)")
                continue
            self.at += 1
            if letter == ")":
                break
        return words

    def _word(self, ends: str, is_split: bool = True) -> Words:
        """One word up to one of `ends`; several where an array stands in it, none where it is empty. `is_split`:
        blanks in the value of a variable without quotes end a word, as in the arguments of a command."""
        made, others, quote = "", Words(), ""
        while self.at < len(self.text) and (quote or self.text[self.at] not in ends):
            letter = self.text[self.at]
            self.at += 1
            if letter == quote:
                quote = ""
            elif not quote and letter in "'\"":
                quote = letter
            elif letter == "\\" and quote != "'":
                follows = self.text[self.at : self.at + 1]
                made += follows if not quote or follows in ESCAPED else letter + follows
                self.at += 1
            elif letter == "`" and quote != "'":
                self.at = _end(self.text.find("`", self.at), self.text)
                others.append(Unknown(f"the output of a command is not known here; {REMEDY}"))
            elif letter == "$" and quote != "'":
                value = self._expansion(quote)
                if len(value) > 1 and not any(isinstance(word, Unknown) for word in value):
                    first, *between, last = map(_show, value)
                    others, made = [*others, made + first, *between], last
                elif len(value) == 1 and isinstance(value[0], str):
                    *before, last = _split(value[0]) if is_split and not quote else [value[0]]
                    if before:
                        others, made = [*others, made + before[0], *before[1:]], ""
                    made += last
                else:
                    others += value
            elif letter == "{" and is_split and not quote and SPREAD.match(self.text, self.at - 1):
                others.append(Unknown(f"{{…,…}} without quotes is several words; {REWRITE}", True))
            else:
                made += letter
        if unknown := [word for word in others if isinstance(word, Unknown)]:
            return [unknown[0]]
        return [*others, made] if made else others

    def _expansion(self, quote: str) -> Words:
        """Behind a dollar sign."""
        rest = self.text[self.at :]
        if rest[:1] == '"' and not quote:
            return []
        if rest[:1] == "'" and not quote:
            match = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL).match(rest)
            self.at += match.end() if match else 1
            return [Unknown(f"$'…' is more of the shell's language than is read; {REWRITE}", True)]
        if rest.startswith("(("):
            length = matching(rest, "(", ")")
            self.at += length
            return self._calculate(rest[2 : length - 2])
        if match := DATE.match(rest):
            self.at += match.end()
            return [datetime.now().strftime(match[1])]
        if rest.startswith("("):
            self.at += matching(rest, "(", ")")
            return [Unknown(f"the output of a command is not known here; {REMEDY}")]
        if rest.startswith("{"):
            length = matching(rest, "{", "}")
            self.at += length
            return self._braces(rest[1 : length - 1])
        if match := NAME.match(rest):
            self.at += match.end()
            return self._look_up(match[0])
        self.at += 1
        return self._parameter(rest[:1])

    def _parameter(self, sign: str) -> Words:
        """$@ and $* are nothing: what is added stands on our own command line."""
        if sign in ("@", "*"):
            return self.arguments
        if sign and sign in "0123456789#?$!-":
            return [Unknown(f"${sign} of the script is not known here; {REWRITE}")]
        return ["$" + sign] if sign else []

    def _braces(self, inside: str) -> Words:
        """What stands between ${ and }."""
        if re.fullmatch(r"[@*]:\d+", inside):
            return self._parameter("@")
        match = re.fullmatch(r"(\w+|@|\*)(\[[@*]\]|:?[-+=?]|)(.*)", inside, re.DOTALL)
        if not match or (match[3] and match[2][-1:] not in ("-", "+", "=", "?")):
            return [
                Unknown(f"${{{inside}}} is more of the shell's language than is read; {REMEDY}")
            ]
        name, sign, word = match.groups()
        is_named = NAME.fullmatch(name) is not None
        is_set = is_named and (name in self.known or name in self.environment)
        if not is_named and (not sign or sign.startswith("[")):
            return self._parameter(name)
        if sign.startswith("["):
            return (
                _one(self._look_up(name, all_of_it=True))
                if "*" in sign
                else self._look_up(name, True)
            )
        if not sign or sign.endswith("?"):
            return self._look_up(name)
        value = self._look_up(name) if is_set else []
        has_value = bool(value) if sign.startswith(":") else is_set
        if sign.endswith("+"):
            return self._inner(word) if has_value else []
        if not has_value:
            value = self._inner(word)
            if sign.endswith("=") and self._live is not False:
                self.known[name] = _one(value)
        return value

    def _inner(self, word: str) -> Words:
        script = _Script(word, self.environment, self.known, arguments=self.arguments)
        return script._word("", is_split=False)

    def _look_up(self, name: str, all_of_it: bool = False) -> Words:
        """Of an array its first word, as the shell does it, or `all_of_it`."""
        if name in self.known:
            return self.known[name] if all_of_it else self.known[name][:1]
        if name in self.environment:
            return [self.environment[name]]
        text = f"the script takes {name} from its environment: {REMEDY}"
        return [Unknown(text, is_named=True)]

    def _calculate(self, text: str) -> Words:
        """Of whole numbers and names, as in $((1024 * N))."""
        try:
            return [str(self._number(ast.parse(text.replace("$", "").strip(), mode="eval").body))]
        except (SyntaxError, ValueError, ZeroDivisionError):
            return [Unknown(f"$(({text})) is more than sums and products; {REMEDY}")]

    def _number(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant):
            return int(node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.Name):
            return int(" ".join(map(str, self._look_up(node.id))))
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            return ARITHMETIC[type(node.op)](self._number(node.left), self._number(node.right))
        raise ValueError(ast.dump(node))

    def _skip_comment(self) -> None:
        self.at = _end(self.text.find("\n", self.at), self.text, behind=0)


def _show(word: str | Unknown) -> str:
    return word if isinstance(word, str) else "?"


def _one(words: Words, between: str = " ") -> Words:
    """Of several words one text; none of none."""
    if unknown := [word for word in words if isinstance(word, Unknown)]:
        return [unknown[0]]
    text = between.join(map(_show, words))
    return [text] if text else []


def _split(text: str) -> list[str]:
    """At blanks; what stands at an end is a blank, where there is one there."""
    return (text if text.strip() else "").split() or [""]


def _end(found: int, text: str, behind: int = 1) -> int:
    return len(text) if found < 0 else found + behind


def matching(text: str, opening: str, closing: str) -> int:
    """The length of the parenthesis that `text` begins with."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == opening) - (letter == closing)
        if not depth:
            return place + 1
    return len(text)
