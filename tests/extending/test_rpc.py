"""The recipe of an RPC, followed in a copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.extending.recipes import RECIPES, ROOT

pytestmark = pytest.mark.e2e

GENERATOR = ROOT / ".cache" / "protos" / "bin" / "python"

USE = """
import asyncio
from pathlib import Path
from tests.reward.test_server import configure, serving

async def use():
    async with serving(configure({"exact_match": 2.0, "gsm8k": 1}), Path("run")) as client:
        print(*await client.list_terms(10))

if __name__ == "__main__":  # the workers import this file too
    asyncio.run(use())
"""


def insert(path: Path, before: str, code: str) -> None:
    """Indented, at the first such place; "" is the end of the file."""
    text = path.read_text(encoding="utf-8")
    place = text.index(before) if before else len(text)
    path.write_text(text[:place] + textwrap.indent(code, "    ") + text[place:])


@pytest.mark.skipif(not GENERATOR.exists(), reason="make protos brings the generator")
def test_the_reward_service_lists_its_terms(tmp_path: Path) -> None:
    for folder in ("protos", "services", "tests", "trimaran"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    recipe = RECIPES["An RPC"]
    (proto,) = re.findall(r"^ *```proto\n(.*?)^ *```$", recipe.text, re.DOTALL | re.MULTILINE)
    method, _, messages = textwrap.dedent(proto).partition("\n\n")
    file = tmp_path / "protos/trimaran/v1/reward.proto"
    insert(file, "}", f"{method}\n")  # of the service, which stands first
    file.write_text(f"{file.read_text()}\n{messages}")
    for path, before in (
        ("services/reward/server.py", "\n\nasync def serve("),
        ("trimaran/clients/reward.py", ""),
    ):
        insert(tmp_path / path, before, f"\n{recipe.parts[path]}")
    (tmp_path / "use.py").write_text(USE)

    def run(*command: str | Path) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)

    protos = [path.relative_to(tmp_path) for path in file.parent.glob("*.proto")]
    output = ("--python_out=.", "--grpc_python_out=.")
    run(GENERATOR, "-m", "grpc_tools.protoc", "--proto_path=protos", *output, *protos)
    assert run(sys.executable, "use.py").split() == ["exact_match", "gsm8k"]
