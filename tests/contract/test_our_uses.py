"""Everything that our sources use of the NPU packages is there and is called as it wants."""

from __future__ import annotations

import ast

from tests.contract.calls import Arguments, Def, Parameters, declared, parameters
from tests.contract.stack import EXTENSION, WORKER, Stack

NOT_REACHED = {
    "0.23.0": {
        # Only where the worker hands no load_weights, and this version's always does: see
        # test_the_worker_of_0_23_hands_load_weights.
        "services.rollout.vllm.transfer.ShadowTransferEngine.model_config",
        "services.rollout.vllm.transfer.ShadowTransferEngine.device",
    },
    "0.30.0rc2": set(),
}
"""What this version lacks and our code never asks of it, with the reason."""
ENGINE = ("services.rollout.vllm.transfer", "ShadowTransferEngine")


def wrong_overrides(stack: Stack) -> list[str]:
    """Methods of ours that do not accept the calls for which a package's base declares them."""
    found = []
    for cls, _ in stack.our_subclasses():
        for name, members in stack.types.members(cls).items():
            methods = [(m.owner, m.node) for m in members if isinstance(m.node, Def)]
            if methods and methods[0][0] == cls and not name.startswith("__"):
                for base, node in methods[1:]:
                    objection = _bound(methods[0][1]).objection(_declared(node))
                    if objection:
                        found.append(f"{cls}.{name} {objection}, as {base} declares it")
    return found


def missing_methods(stack: Stack) -> list[str]:
    return [
        f"{cls} lacks {name} of {base}"
        for cls, base in stack.our_subclasses()
        for name in stack.types.abstract_methods(cls)
    ]


def collisions(stack: Stack) -> list[str]:
    """vLLM refuses a worker extension that has a name of its worker's class."""
    worker = stack.types.class_of(*WORKER)
    extension = stack.types.class_of(*EXTENSION)
    ours = {node.name for node in extension.node.body if isinstance(node, Def)}
    theirs = stack.types.members(worker)
    return sorted(f"NPUWorker has {name} already" for name in ours & set(theirs))


def _bound(node: Def) -> Parameters:
    return parameters(node, is_bound=not _is_static(node))


def _declared(node: Def) -> Arguments:
    return declared(node, is_bound=not _is_static(node))


def _is_static(node: Def) -> bool:
    return any(ast.unparse(d) == "staticmethod" for d in node.decorator_list)


def test_every_use_holds(stack: Stack) -> None:
    broken = [fact for fact in stack.facts if not fact.holds]
    assert [str(fact) for fact in broken if fact.what not in NOT_REACHED[stack.version]] == []
    assert {fact.what for fact in broken} == NOT_REACHED[stack.version], (
        "an exception is not needed"
    )


def test_enough_was_followed(stack: Stack) -> None:
    """Values that get lost give no facts: each of our files that calls a package must have some."""
    files = {fact.where.partition(":")[0] for fact in stack.facts}
    assert {
        "services/rollout/vllm/engine.py",
        "services/rollout/vllm/loading/load.py",
        "services/rollout/vllm/loading/modules.py",
        "services/rollout/vllm/plugin.py",
        "services/rollout/vllm/loading/read_back.py",
        "services/rollout/vllm/settings.py",
        "services/rollout/vllm/transfer.py",
        "services/rollout/vllm/worker.py",
        "services/rollout/vllm/workers.py",
        "services/trainer/backend.py",
        "services/trainer/megatron/attention/attention.py",
        "services/trainer/megatron/model.py",
        "services/trainer/megatron/groups.py",
        "services/trainer/megatron/policy.py",
        "services/trainer/megatron/schedule.py",
        "weights/transports/collective/process_groups.py",
        "trimaran/host/device.py",
    } <= files
    assert len(stack.facts) > 230


def test_what_is_asked_by_name_is_followed_to_the_worker(stack: Stack) -> None:
    asked = {
        fact.what.partition("(")[0] for fact in stack.facts if "by collective_rpc" in fact.what
    }
    assert {
        "WorkerExtension.attempt",
        "WorkerExtension.init_weight_transfer_engine",
        "WorkerExtension.start_weight_update",
        "WorkerExtension.update_weights",
        "WorkerExtension.finish_weight_update",
        "WorkerExtension.go_on_reading_back",
    } <= asked


def test_our_classes_implement_what_is_abstract(stack: Stack) -> None:
    assert missing_methods(stack) == []


def test_our_methods_take_what_their_base_declares(stack: Stack) -> None:
    assert wrong_overrides(stack) == []


def test_the_worker_extension_has_no_name_of_the_worker(stack: Stack) -> None:
    assert collisions(stack) == []


def test_the_worker_calls_our_engine_as_it_can_be_called(stack: Stack) -> None:
    """Derived from NPUWorker: every call on its weight-transfer engine."""
    worker, engine = stack.types.class_of(*WORKER), stack.types.class_of(*ENGINE)
    asked = set()
    for node in ast.walk(worker.node):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=args, keywords=keywords):
                if ast.unparse(owner).removeprefix("self.") != "weight_transfer_engine":
                    continue
                asked.add(name)
                given = Arguments(len(args), tuple(k.arg for k in keywords if k.arg))
                member = stack.types.member(engine, name)
                assert member and isinstance(member.node, Def), name
                assert _bound(member.node).objection(given) == "", name
    assert {"parse_init_info", "init_transfer_engine", "shutdown"} < asked


def test_the_factory_makes_our_engine(stack: Stack) -> None:
    """Its call of the class must fit the `__init__` that ours inherits."""
    factory = ("vllm.distributed.weight_transfer.factory", "WeightTransferEngineFactory")
    making = stack.method(*factory, "create_engine")
    (call,) = [
        node
        for node in ast.walk(making)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "engine_cls"
    ]
    constructor = stack.types.constructor(stack.types.class_of(*ENGINE))
    assert constructor and constructor.objection(Arguments(len(call.args))) == ""
    asked = [
        node
        for node in ast.walk(stack.types.class_of(*WORKER).node)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".create_engine")
    ]
    given = [Arguments(len(c.args), tuple(k.arg for k in c.keywords if k.arg)) for c in asked]
    assert given and {parameters(making, True).objection(g) for g in given} == {""}
