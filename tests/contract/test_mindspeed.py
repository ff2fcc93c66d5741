"""MindSpeed's adaptor, where MINDSPEED_SOURCE names a checkout of core_r0.16.0."""

from __future__ import annotations

import ast
import json

from tests.contract.conftest import mindspeed_source
from tests.contract.stack import ROOT, Stack

FACTS = json.loads((ROOT / "tests" / "trimaran" / "device_facts.json").read_text(encoding="utf-8"))
BASIC = "mindspeed.features_manager.megatron_basic"


def test_our_imports_of_it_hold(with_mindspeed: Stack) -> None:
    about = [fact for fact in with_mindspeed.facts if "mindspeed" in fact.what]
    assert [str(fact) for fact in about] and not [fact for fact in about if fact.objection]


def test_the_adaptor_patches_when_it_is_imported(with_mindspeed: Stack) -> None:
    """So its import comes before any of megatron, and after torch_npu."""
    tree = with_mindspeed.sources.tree("mindspeed.megatron_adaptor")
    assert ast.unparse(tree.body[-1]) == "patch_features()"
    order = FACTS["npu"]["import_order"]
    assert order[-1] == "mindspeed.megatron_adaptor"
    imported = [
        f"{node.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    # It loads the vendor's stand-ins for torch.cuda itself.
    assert "torch_npu.contrib.transfer_to_npu" in imported
    assert not any(name.startswith("megatron") for name in imported)


def test_adamw_counts_in_its_groups(with_mindspeed: Stack) -> None:
    """So a resumed optimizer needs `group["step"]`, or the bias correction starts again."""
    step = with_mindspeed.text("mindspeed.core.optimizer.adamw", "AdamW", "step")
    assert "if 'step' in group:" in step and "group['step'] = 1" in step
    ours = with_mindspeed.text("services.trainer.megatron.policy", "MegatronPolicy", "load_state")
    assert "group['step'] = num_updates" in ours


def test_a_float64_all_reduce_would_be_lost(with_mindspeed: Stack) -> None:
    """The result goes into a copy; what we reduce is float32 or int32."""
    wrapper = "torch_all_reduce_double_dtype_bypass_wrapper"
    module = "mindspeed.core.megatron_basic.requirements_basic"
    text = with_mindspeed.text(module, wrapper)
    assert "args[0] = args[0].float()" in text and "return None" in text
    features = ast.unparse(with_mindspeed.sources.tree(f"{BASIC}.requirements_basic"))
    assert f"'torch.distributed.all_reduce', {wrapper}" in features


def test_the_command_line_becomes_its_configuration(with_mindspeed: Stack) -> None:
    """Unknown arguments too, so a service's own must not have a name of a feature's."""
    text = with_mindspeed.text("mindspeed.args_utils", "get_mindspeed_args")
    assert "parser.parse_known_args()" in text and "parser_unknown_args(" in text


def test_it_needs_scipy(with_mindspeed: Stack) -> None:
    """We install it without its requirements, one of which forbids the numpy that vLLM needs."""
    text = with_mindspeed.sources.text("mindspeed.core.context_parallel.utils")
    assert "from scipy.sparse.linalg import" in text
    checkout = mindspeed_source()
    assert checkout
    needs = (checkout / "requirements.txt").read_text(encoding="utf-8").split()
    assert "scipy" in needs and "numpy<=1.26.0" in needs


def test_what_it_patches_of_what_we_use_is_known(with_mindspeed: Stack) -> None:
    """Each was run with our trainer's tests on the CPU, or is off in our configuration."""
    patched = {
        node.value
        for module in with_mindspeed.sources.modules("mindspeed.features_manager")
        for node in ast.walk(with_mindspeed.sources.tree(module))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.startswith("megatron.core.transformer.module.MegatronModule")
    }
    assert patched == {"megatron.core.transformer.module.MegatronModule.__init__"}
