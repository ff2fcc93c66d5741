"""The trainer: a batch of scored groups in, new weights out. One process a rank of Megatron-core.

    server ─▶ rank ─▶ learner: batch ─▶ updates ─▶ values ─▶ objective ─▶ megatron/ ─▶ held
                               (packing)   (passes, advantages)  (grpo/)

`learner` is the algorithm and asks the `Policy` that `megatron/` implements. `provenance` refuses
tokens of unproven weights; `held` keeps a copy of the new weights to send; `checkpoint` saves.
"""
