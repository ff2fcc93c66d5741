"""torch-npu: how it is imported, and its process groups. Its C++ is seen only in what it names."""

from __future__ import annotations

import ast
import json
import zipfile
from collections.abc import Iterator

import pytest

from tests.contract.archives import CACHE, STACKS
from tests.contract.stack import ROOT, Stack

FACTS = json.loads((ROOT / "tests" / "trimaran" / "device_facts.json").read_text(encoding="utf-8"))
NPU = FACTS["npu"]
GROUP = NPU["process_group"]
REGISTRY = "torch_npu._init.registry.distributed"
HELPER = "_new_process_group_hccl_helper"


def assigned(function: ast.AST, target: str) -> list[str]:
    """The attributes of the variable `target` that a function sets, in order."""
    return [
        part.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for part in node.targets
        if isinstance(part, ast.Attribute) and ast.unparse(part.value) == target
    ]


def calls(function: ast.AST, suffix: str) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(suffix):
            yield node


def helper(with_torch_npu: Stack) -> ast.AST:
    found = with_torch_npu.sources.find(REGISTRY, HELPER)
    assert found and found.node
    return found.node


def test_facts_are_recorded_from_this_archive(installed: Stack) -> None:
    (wheel,) = [file for file in STACKS[installed.version] if file.startswith("torch_npu")]
    assert FACTS["recorded_from"]["torch_npu"]["archive"] == wheel


def test_a_process_group_is_made_as_torch_npu_makes_its_own(with_torch_npu: Stack) -> None:
    theirs = helper(with_torch_npu)
    assert f"{REGISTRY.replace('.', '/')}.py, {HELPER}" == GROUP["source"]
    assert assigned(theirs, "pg_options") == GROUP["options"]
    (made,) = calls(theirs, "ProcessGroupHCCL")
    assert ast.unparse(made.func) == GROUP["class"]
    assert len(made.args) == len(GROUP["arguments"]) and not made.keywords

    ours = with_torch_npu.sources.find("weights.transports.collective.process_groups", "_make_hccl")
    assert ours and ours.node
    assert set(assigned(ours.node, "options")) <= set(GROUP["options"])
    (made,) = calls(ours.node, "ProcessGroupHCCL")
    assert len(made.args) == len(GROUP["arguments"]) and not made.keywords


def test_a_communicator_is_aborted_with_one_word(with_torch_npu: Stack) -> None:
    """torch_npu's own Python calls it that way."""
    module = "torch_npu.distributed.distributed_c10d"
    (theirs,) = calls(with_torch_npu.sources.tree(module), ".abort_hccl_comm")
    assert [type(argument) for argument in theirs.args] == [ast.Constant]
    ours = with_torch_npu.sources.tree("weights.transports.collective.process_groups")
    for call in calls(ours, ".abort_hccl_comm"):
        assert len(call.args) == 1


@pytest.mark.parametrize("name", NPU["torch_npu.npu.__all__"])
def test_torch_npu_npu_offers(with_torch_npu: Stack, name: str) -> None:
    exported = with_torch_npu.sources.find("torch_npu.npu", "__all__")
    assert exported and exported.node
    assert f"'{name}'" in ast.unparse(exported.node)
    assert with_torch_npu.sources.find("torch_npu.npu", name)


def test_a_device_is_set_by_its_number(with_torch_npu: Stack) -> None:
    """`Device.activate` calls torch.npu.set_device(index), `synchronize` takes nothing."""
    assert with_torch_npu.text("torch_npu.npu.utils", "set_device").startswith(
        "def set_device(device)"
    )
    waits = with_torch_npu.text("torch_npu.npu.utils", "synchronize")
    assert waits.startswith("def synchronize(device=None)")


def test_torch_gets_npu_as_a_device_module(with_torch_npu: Stack) -> None:
    text = ast.unparse(with_torch_npu.sources.tree("torch_npu._init.registry.backend"))
    for call in NPU["registered_as"]:
        assert call in text


def test_the_plugin_would_load_itself(with_torch_npu: Stack) -> None:
    """Which fails without CANN, so AUTOLOAD turns it off before torch is imported."""
    group, _, entry = NPU["autoload_entry_point"].partition(": ")
    (text,) = [t for p, t in with_torch_npu.sources.metadata.items() if f"[{group}]" in t]
    assert entry in text
    assert with_torch_npu.sources.find("torch_npu", "_autoload")
    assert NPU["autoload_variable"] in with_torch_npu.sources.text("torch_npu")


def test_only_megatron_may_be_given_transfer_to_npu(with_torch_npu: Stack) -> None:
    """It replaces torch.cuda, TorchScript and has_triton for the whole process."""
    text = ast.unparse(with_torch_npu.sources.tree("torch_npu.contrib.transfer_to_npu"))
    assert "torch.jit.script = " in text
    assert "_patch_has_triton" in text.partition("def _init")[2]
    assert "torch.Tensor.cuda = torch.Tensor.npu" in text
    assert "\n_init()" in text  # by its import alone


def test_the_library_knows_the_words_that_we_hand_it(with_torch_npu: Stack) -> None:
    """What they do is C++, which these archives hold only compiled; their names are in it."""
    (wheel,) = [file for file in STACKS[with_torch_npu.version] if file.startswith("torch_npu")]
    with zipfile.ZipFile(CACHE.place(wheel)) as archive:
        library = archive.read(NPU["library"])
    for word in NPU["words_of_the_library"]:
        assert word.encode() in library, word


def test_elements_are_replaced_by_a_kernel_of_the_device(with_torch_npu: Stack) -> None:
    """Changes are written into parameters by `index_copy_`; what torch-npu lacks runs on the host."""
    text = with_torch_npu.text("services.rollout.vllm.loading.in_place", "Write", "make")
    assert text.endswith("self.flat.index_copy_(0, self.positions_P, self.values_P)")
    (wheel,) = [file for file in STACKS[with_torch_npu.version] if file.startswith("torch_npu")]
    with zipfile.ZipFile(CACHE.place(wheel)) as archive:
        listed = archive.read("torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml").decode()
    assert "func: index_copy_(Tensor(a!) self" in listed
