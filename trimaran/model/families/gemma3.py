"""Gemma 3 without its vision tower: windows in five layers of six, which have a rotary base of their own, norms of
1 + w before and behind attention and MLP, GeGLU and scaled embeddings."""

from trimaran.model.families.family import Family

GEMMA3_TEXT = Family(
    head_norms=True,
    window=True,
    norms_behind=True,
    norms_around_one=True,
    scaled_embeddings=True,
    activation="gelu_tanh",
    tied=True,
    required={
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "use_bidirectional_attention": False,
    },
    known=frozenset(
        {
            *("query_pre_attn_scalar", "rope_local_base_freq", "sliding_window_pattern"),
            "cache_implementation",
        }
    ),
)
