"""Versions in vLLM's workers: loading, writing in place and reading back."""
