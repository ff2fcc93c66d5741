"""GLM-4.5 with experts, as DeepSeek-V3 chooses them; attention as Qwen's, of which half of the channels turn.

The head that predicts one token more is left out: it is neither trained nor exported.
"""

from trimaran.model.families.experts import GROUPED, GROUPED_KEYS
from trimaran.model.families.family import Experts, Family

GLM4_MOE = Family(
    biases="attention_bias",
    head_norms="use_qk_norm",
    partial_rope=True,
    experts=Experts(scores="sigmoid", shared="shared_experts"),
    required=GROUPED,
    known=GROUPED_KEYS,
)
