"""GRPO as pure functions on tensors; docs/algorithms.md gives the formulas."""
