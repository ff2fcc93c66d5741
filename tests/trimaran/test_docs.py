"""Links, paths and make targets that the documents name exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands.cli.options import parse

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *("benchmarks", "deploy", "docs", "examples", "protos"),
    *("requirements", "commands", "services", "tests", "trimaran", "weights"),
)
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(path for top in FOLDERS for path in (ROOT / top).rglob("*.md"))]
)
FILES = [path.relative_to(ROOT).as_posix() for top in FOLDERS for path in (ROOT / top).rglob("*.*")]
PACKAGES = {part for path in FILES for part in path.split("/")[:-1]}

LINK = re.compile(r"\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
WHOLE_PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./*-]*[\w/*]")
PART_OF_A_PATH = re.compile(r"(\w+)(?:/\w+)*/\w+\.py")
OURS = re.compile(r"(?:^|[;&|] *)trimaran ([a-z][a-z-]*)")
TYPED = re.compile(
    r"^(?:\$ )?(?:[A-Z_]+=\S* )*trimaran (.*?)(?:   .*| &| \| .*| > .*| 2> .*)?$",
    re.MULTILINE,
)
MAKE = re.compile(r"(?:^|[;&|] *)make ([a-z][a-z0-9-]*)", re.MULTILINE)


def name(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=name)


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> Iterator[str]:
    yield from FENCE.findall(text)
    yield from CODE.findall(FENCE.sub("", text))


def tree_entries(tree: str) -> Iterator[str]:
    """Its paths. A line is indented names and, after two spaces or more, what they are."""
    parents: list[tuple[int, str]] = []
    for line in tree.splitlines():
        names = line.strip().partition("  ")[0]
        indent = len(line) - len(line.lstrip())
        if indent > 8:  # the line before goes on
            continue
        parents = [parent for parent in parents if parent[0] < indent]
        folder = "".join(parent for _, parent in parents)
        yield from (folder + entry for entry in names.split())
        parents.append((indent, names))


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", document.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = document.parent / path if path else document
        found = target.exists()
        if found and anchor:
            found = anchor in anchors(target.read_text(encoding="utf-8"))
        if not found:
            broken.append(link)
    assert not broken


@each_document
def test_paths_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    whole = {path for path in WHOLE_PATH.findall(text) if not any(ROOT.glob(path))}
    parts = {
        code
        for code in CODE.findall(FENCE.sub("", text))
        if (match := PART_OF_A_PATH.fullmatch(code)) and match[1] in PACKAGES
    }
    missing = {part for part in parts if not any(f"/{path}".endswith(f"/{part}") for path in FILES)}
    assert not whole | missing


@each_document
def test_make_targets_exist(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    text = document.read_text(encoding="utf-8")
    named = {target for command in commands(text) for target in MAKE.findall(command)}
    assert named <= targets


@each_document
def test_commands_of_ours_exist(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of a block is one that can be typed; in a sentence the command may stand alone."""
    text = document.read_text(encoding="utf-8")
    blocks = [re.sub(r"\\\n *", "", fence) for fence in FENCE.findall(text)]
    lines = {line for block in blocks for line in TYPED.findall(block) if "…" not in line}
    wrong: list[str] = []
    for line in lines:
        words = [word.strip("[]") for word in shlex.split(line, comments=True)]
        try:
            parse(words)
        except SystemExit as end:
            if end.code:
                wrong.append(f"{line}: {capsys.readouterr().err.splitlines()[-1]}")
    named = {word for code in CODE.findall(FENCE.sub("", text)) for word in OURS.findall(code)}
    for word in named:
        with pytest.raises(SystemExit) as help:
            parse([word, "--help"])
        if help.value.code:
            wrong.append(word)
    assert not wrong


def test_the_tree_of_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [tree] = [fence for fence in FENCE.findall(text) if "protos/trimaran/v1/" in fence]
    entries = list(tree_entries(tree.removeprefix("```\n").removesuffix("```")))
    assert "services/" in entries
    assert [entry for entry in entries if not (ROOT / entry).exists()] == []
