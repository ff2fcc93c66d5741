"""What one replica takes of each of its devices, and of its host."""

from __future__ import annotations

from dataclasses import dataclass

from trimaran.model.memory.model import ModelSizes

BUCKETS = 2
"""Buckets of a transfer that are under way at a time."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ReplicaMemory:
    """Bytes. `replica_memory` makes it."""

    weights: int
    """Weights on each device."""
    key_value_token: int
    """Keys and values of one token on each device."""
    sequence: int
    """The same of the longest sequence, prompt and completion."""
    shadow: int
    """On the host: the newest version, where it arrives and is checked. Once for all its devices."""
    staging: int
    """Buckets of a transfer, where a group sends."""

    def key_value_room(self, given: int) -> int:
        """Room for keys and values on each device that gives so many bytes to them and the weights; at most, as vLLM takes
        from the same its own activations and captured graphs."""
        return max(given - self.weights, 0)

    def sequences(self, room: int) -> int:
        """How many sequences of the greatest length have room for keys and values at a time."""
        return room // self.sequence


def replica_memory(
    model: ModelSizes, tensor_parallel: int, max_model_tokens: int, bucket_mib: int
) -> ReplicaMemory:
    """Example: replica_memory(model, 1, 2048, 64).sequences(room=16 << 30)"""
    size, facts = model.number_bytes, model.facts
    if latent := facts.latent:  # each device has the small vector of all heads
        channels = latent.keys_rank + latent.turned
    else:
        channels = 2 * -(-facts.num_kv_heads // tensor_parallel) * facts.head_dim
    token = facts.num_layers * channels * size
    return ReplicaMemory(
        # Each device has the whole vision tower, and computes some of the images.
        weights=size * ((model.matrices - model.tower) // tensor_parallel + model.tower),
        key_value_token=token,
        sequence=token * max_model_tokens,
        shadow=size * model.matrices,
        staging=BUCKETS * bucket_mib * MIB,
    )
