"""DeepSeek-V3 and R1: latent attention, and experts chosen within groups; the first layers have one MLP.

The head that predicts one token more is left out: it is neither trained nor exported.
"""

from trimaran.model.families.experts import GROUPED, GROUPED_KEYS
from trimaran.model.families.family import Experts, Family

DEEPSEEK_V3 = Family(
    latent=True,
    experts=Experts(scores="sigmoid", shared="shared_experts"),
    required={"rope_interleave": True, **GROUPED},
    known=GROUPED_KEYS
    | {
        *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        "qk_head_dim",
    },
)
