"""Megatron-core's parameters <-> Hugging Face tensors, frozen ones and adapters."""
