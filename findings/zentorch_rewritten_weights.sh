#!/bin/sh
# Expected: a linear layer of zentorch reads its weight, and leaves it as it is; after new values were written into the
#   weight it computes with these, as every linear layer of torch does.
# What happens: the first product with `is_weight_prepacked=False` puts the elements of the weight into another order, in
#   its own memory. Nothing says so. A lookup in the same tensor, as of an embedding that is tied to the output
#   layer, then gives other numbers; and after new values were written the product is neither that of the new ones
#   nor an error. A copy that was packed before (`zentorch_weight_prepack_for_linear`, which vLLM takes by default)
#   has neither fault. vLLM 0.30.0 with VLLM_ZENTORCH_WEIGHT_PREPACK=0 answers "The capital of France is" with
#   " ParisParis.." from SmolLM2-135M, whose embedding is tied.
# Package: zentorch 2.13.0.2 with torch 2.13.0, on an AMD EPYC with AVX512-BF16.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet torch==2.13.0 zentorch==2.13.0.2 numpy
cat > "$dir/linear.py" <<'END'
import torch
import zentorch  # noqa: F401

ops = torch.ops.zentorch


def far(product: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor) -> bool:
    """Beyond what rounding to bfloat16 makes of it."""
    wanted = rows.float() @ weight.float().t()
    return bool((product.float() - wanted).abs().max() > 0.02 * wanted.abs().max())


torch.manual_seed(0)
first, second = (torch.randn(960, 576).bfloat16() for _ in range(2))
rows = torch.randn(32, 576).bfloat16()
weight = first.clone()
packed = ops.zentorch_weight_prepack_for_linear(weight)
print("packing: weight as it was", torch.equal(weight, first))
product = ops.zentorch_linear_unary(rows, weight, None, is_weight_prepacked=False)
print("a product: right", not far(product, rows, first), "weight as it was", torch.equal(weight, first))
weight.copy_(second)
product = ops.zentorch_linear_unary(rows, weight, None, is_weight_prepacked=False)
print("new values: right", not far(product, rows, second))
product = ops.zentorch_linear_unary(rows, packed, None, is_weight_prepacked=True)
print("packed: right", not far(product, rows, first))
END
"$dir/venv/bin/python" "$dir/linear.py" >"$dir/output" 2>"$dir/errors" || { tail -5 "$dir/errors"; exit 1; }
grep "right\|as it was" "$dir/output" | tee "$dir/found"
printf '%s\n' "packing: weight as it was True" "a product: right True weight as it was False" \
    "new values: right False" "packed: right True" | cmp - "$dir/found"
