#!/bin/sh
# Expected: a verl tool has an instance for each trajectory, as BaseTool's docstring says: create at its beginning,
#   calc_reward and release at its end, and rewards: that of calc_reward, and the "step reward score" of execute.
#   `multi_turn.enable: true` lets the policy call it.
# What happens: the agent loop creates and releases an instance around every single call, so that what a tool keeps in
#   its instance is gone at the next one. calc_reward is called nowhere in the package. What execute returns as its
#   reward is listed as `tool_rewards`, which no code outside the agent loops reads: a reward function of one's own has
#   to, or it is lost. No agent loop reads `multi_turn.enable`: the row's `agent_name` chooses the loop, or
#   agent.default_agent_loop, whose default is single_turn_agent, which calls no tools.
# Package: verl 0.9.1, read and not imported. Documentation: verl/tools/base_tool.py, trainer/config/rollout/rollout.yaml.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --no-deps verl==0.9.1 pyyaml==6.0.3
"$dir/venv/bin/python" - <<'END'
import ast
from importlib.metadata import distribution
from pathlib import Path

import yaml

package = distribution("verl")
root = Path(package.locate_file("verl"))
trees = {path.relative_to(root).as_posix(): ast.parse(path.read_text()) for path in root.rglob("*.py")}


def called(tree: ast.AST) -> set[str]:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {function.attr for function in calls if isinstance(function, ast.Attribute)}


def reads_enable(tree: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Attribute) and ast.unparse(node).endswith("multi_turn.enable") for node in ast.walk(tree)
    )


print("verl", package.version)
callers = {name for name, tree in trees.items() if "calc_reward" in called(tree)}
print("files that call calc_reward:", sorted(callers) or "none")

cycles = [
    (name, function.name)
    for name, tree in trees.items()
    for function in ast.walk(tree)
    if isinstance(function, ast.AsyncFunctionDef) and {"create", "execute", "release"} <= called(function)
]
print("functions that create, execute and release:", cycles)

listed = {
    name
    for name, tree in trees.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.Constant) and node.value == "tool_rewards"
}
print("files that name tool_rewards:", sorted(listed))

readers = {name for name, tree in trees.items() if reads_enable(tree)}
print("files that read multi_turn.enable:", sorted(readers))
config = yaml.safe_load((root / "trainer/config/rollout/rollout.yaml").read_text())
print("agent.default_agent_loop:", config["agent"]["default_agent_loop"])

assert not callers
assert cycles == [("experimental/agent_loop/tool_agent_loop.py", "_call_tool")], cycles
assert listed and all(name.startswith("experimental/agent_loop/") for name in listed), listed
assert readers and not any("agent_loop" in name for name in readers)
assert config["agent"]["default_agent_loop"] == "single_turn_agent"
END
