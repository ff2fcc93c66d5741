import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.model.folder import ModelFacts
from weights.version.grid import cut_tensors, permitted_sizes
from weights.version.manifest import check_tensors

RANK = 4
Rows = tuple[int, int, int]
"""Axis, start, stop."""
SMOLLM2 = ModelFacts("llama", 30, 576, 1536, 9, 3, 64, 49152, True, 8192)
QWEN2_7B = ModelFacts("qwen2", 28, 3584, 18944, 28, 4, 128, 152064, False, 32768)
QWEN3_8B = ModelFacts("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, False, 40960)


def test_permitted_sizes():
    assert permitted_sizes(SMOLLM2) == (1, 3)  # 9 divides the heads but not 1536
    assert permitted_sizes(QWEN2_7B) == (1, 2, 4)  # with 7 or 14, 4 KV heads do not come out
    assert permitted_sizes(QWEN3_8B) == (1, 2, 4, 8, 16)  # 16: each KV head on two ranks


@st.composite
def model_facts(draw):
    num_kv_heads = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    num_heads = num_kv_heads * draw(st.sampled_from([1, 2, 3, 4, 7]))
    head_dim = draw(st.sampled_from([1, 2, 3, 4]))
    intermediate = draw(st.sampled_from([1, 3, 8, 12, 16, 48, 96, 7 * 48]))
    vocab = draw(st.integers(1, 700))
    return ModelFacts(
        "qwen3", 2, 10, intermediate, num_heads, num_kv_heads, head_dim, vocab, False, 64
    )


def shapes(facts: ModelFacts, num_experts: int) -> dict[str, tuple[int, ...]]:
    queries, keys = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    hidden, inner, layer = facts.hidden_size, facts.intermediate_size, "model.layers.1."
    experts = {
        f"{layer}mlp.experts.{e}.{name}_proj.weight": shape
        for e in range(num_experts)
        for name, shape in [("gate", (inner, hidden)), ("down", (hidden, inner))]
    }
    return {
        "model.embed_tokens.weight": (facts.vocab_size, hidden),
        f"{layer}self_attn.q_proj.weight": (queries, hidden),
        f"{layer}self_attn.q_proj.bias": (queries,),
        f"{layer}self_attn.k_proj.weight": (keys, hidden),
        f"{layer}self_attn.v_proj.bias": (keys,),
        f"{layer}self_attn.o_proj.weight": (hidden, queries),
        f"{layer}self_attn.q_norm.weight": (facts.head_dim,),
        f"{layer}input_layernorm.weight": (hidden,),
        f"{layer}mlp.gate_proj.weight": (inner, hidden),
        f"{layer}mlp.up_proj.bias": (inner,),
        f"{layer}mlp.down_proj.weight": (hidden, inner),
        f"{layer}self_attn.q_proj.lora_A.weight": (RANK, hidden),
        f"{layer}self_attn.q_proj.lora_B.weight": (queries, RANK),
        f"{layer}self_attn.o_proj.lora_A.weight": (RANK, queries),
        f"{layer}self_attn.o_proj.lora_B.weight": (hidden, RANK),
        f"{layer}mlp.up_proj.lora_B.weight": (inner, RANK),
        f"{layer}mlp.down_proj.lora_A.weight": (RANK, inner),
        f"{layer}mlp.gate.weight": (num_experts, hidden),
        f"{layer}mlp.experts.gate_up_proj": (num_experts, hidden, 2 * inner),
        f"{layer}mlp.experts.down_proj": (num_experts, inner, hidden),
        **experts,
        "lm_head.weight": (facts.vocab_size, hidden),
    }


def sharded_rows(facts: ModelFacts, size: int, rank: int) -> dict[tuple[str, ...], list[Rows]]:
    """Of one tensor-parallel rank, by the ends of names, each head by itself."""
    head = facts.head_dim
    queries = range(facts.num_heads)[facts.num_heads // size * rank :][: facts.num_heads // size]
    keys = {query * facts.num_kv_heads // facts.num_heads for query in queries}
    own = facts.num_heads // size * head
    inner = facts.intermediate_size // size
    query_rows = (0, own * rank, own * (rank + 1))
    key_rows = (0, min(keys) * head, (max(keys) + 1) * head)
    inner_rows = (0, inner * rank, inner * (rank + 1))
    rows = -(-facts.vocab_size // size)  # Megatron: every rank but the last ones as many
    vocabulary = [(rows * rank, rows * (rank + 1))]
    padded = facts.vocab_size
    while padded % 64:  # vLLM: VocabParallelEmbedding
        padded += 1
    if padded % size == 0:
        vocabulary.append((padded // size * rank, padded // size * (rank + 1)))
    last = facts.vocab_size
    vocabulary_rows = [(0, min(start, last), min(stop, last)) for start, stop in vocabulary]
    return {
        ("q_proj.weight", "q_proj.bias", "q_proj.lora_B.weight"): [query_rows],
        ("k_proj.weight", "v_proj.bias"): [key_rows],
        ("o_proj.weight", "o_proj.lora_A.weight"): [(1, *query_rows[1:])],
        ("mlp.gate_proj.weight", "mlp.up_proj.bias", "mlp.up_proj.lora_B.weight"): [inner_rows],
        ("mlp.down_proj.weight", "mlp.down_proj.lora_A.weight"): [(1, *inner_rows[1:])],
        ("embed_tokens.weight", "lm_head.weight"): vocabulary_rows,
    }


@settings(deadline=None)
@given(model_facts(), st.sampled_from([1, 2, 6, 8]))
def test_every_shard_is_a_union_of_blocks(facts, num_experts):
    specs = shapes(facts, num_experts)
    tensors = cut_tensors(((name, "BF16", shape) for name, shape in specs.items()), facts)
    check_tensors(tensors)
    assert [(t.name, t.shape) for t in tensors] == list(specs.items())
    sizes = [
        n
        for n in range(1, 17)
        if not facts.num_heads % n
        and not (facts.num_kv_heads % n and n % facts.num_kv_heads)
        and not facts.intermediate_size % n
    ]
    assert permitted_sizes(facts) == tuple(sizes)
    for tensor in tensors:
        bounds = {0, *tensor.cuts, tensor.shape[tensor.axis]}
        for size in sizes:
            for rank in range(size):
                for endings, shards in sharded_rows(facts, size, rank).items():
                    for axis, start, stop in shards if tensor.name.endswith(endings) else ():
                        assert start == stop or (axis == tensor.axis and {start, stop} <= bounds)
        if ".mlp.experts." in tensor.name:
            stacked = len(tensor.shape) == 3
            assert tensor.axis == 0
            assert tensor.num_blocks == (num_experts if stacked else 1)
        if "norm" in tensor.name or tensor.name.endswith("mlp.gate.weight"):
            assert tensor.cuts == ()


def test_no_cut_is_idle():
    """SmolLM2 can be split by 3 only, so three blocks are all that a tensor needs."""
    tensors = cut_tensors(((n, "BF16", s) for n, s in shapes(SMOLLM2, 2).items()), SMOLLM2)
    by_name = {tensor.name.removeprefix("model.layers.1."): tensor for tensor in tensors}
    assert by_name["self_attn.q_proj.weight"].cuts == (192, 384)
    assert by_name["self_attn.k_proj.weight"].cuts == (64, 128)
    assert (by_name["self_attn.o_proj.weight"].axis, by_name["mlp.down_proj.weight"].axis) == (1, 1)
    assert by_name["mlp.down_proj.weight"].cuts == (512, 1024)
    assert by_name["lm_head.weight"].cuts == (16384, 32768)


def test_more_ranks_than_key_heads_cut_no_key_head():
    spec = ("model.layers.0.self_attn.k_proj.weight", "BF16", (8 * 128, 4096))
    (keys,) = cut_tensors([spec], QWEN3_8B)
    assert keys.cuts == tuple(range(128, 8 * 128, 128))


def test_a_vocabulary_that_does_not_divide_has_both_layouts_cuts():
    facts = ModelFacts("llama", 1, 8, 8, 2, 2, 4, 100, False, 64)
    (tensor,) = cut_tensors([("lm_head.weight", "F32", (100, 8))], facts)
    assert tensor.cuts == (50, 64)  # ours: 2 * 50; vLLM's: 128 / 2


def test_without_facts_and_with_strange_names_tensors_stay_whole():
    specs = [
        ("model.layers.0.self_attn.q_proj.weight", "BF16", (576, 576)),
        ("visual.blocks.0.attn.qkv.weight", "BF16", (24, 8)),
        ("scale", "F32", ()),
    ]
    assert [t.num_blocks for t in cut_tensors(specs, None)] == [1, 1, 1]
    assert [t.num_blocks for t in cut_tensors(specs, SMOLLM2)] == [3, 1, 1]
    tower = [("visual.blocks.0.mlp.gate_proj.weight", "BF16", (1536, 64))]
    tower += [("model.visual.blocks.0.mlp.down_proj.weight", "BF16", (64, 1536))]
    assert all(not one.cuts and one.axis == 0 for one in cut_tensors(tower, SMOLLM2))
    (other,) = cut_tensors([("vision.self_attn.q_proj.weight", "BF16", (48, 8))], SMOLLM2)
    assert other.num_blocks == 1


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}


@pytest.mark.parametrize(
    ("family", "options", "num_blocks"),
    [
        ("llama", {"tie_word_embeddings": True}, 30 * (7 * 3 + 2) + 3 + 1),
        ("qwen3_moe", {"tie_word_embeddings": False, **EXPERTS}, 30 * (4 * 3 + 2 * 4 + 5) + 7),
    ],
)
def test_the_real_names(family, options, num_blocks):
    import torch
    import transformers

    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    sizes |= {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    config = transformers.AutoConfig.for_model(family, vocab_size=49152, **sizes, **options)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    specs = [(name, "BF16", tuple(value.shape)) for name, value in model.named_parameters()]
    tensors = cut_tensors(specs, SMOLLM2)
    whole = {t.name.rpartition(".")[0].rpartition(".")[2] for t in tensors if t.num_blocks == 1}
    assert all("norm" in name or name == "gate" for name in whole)
    assert sum(tensor.num_blocks for tensor in tensors) == num_blocks
