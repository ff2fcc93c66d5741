"""Datasets: their rows, prompts and order, and what `trimaran data` does with them; docs/data.md."""
