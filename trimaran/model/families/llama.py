"""Llama 2 and 3, and what copies them (SmolLM2)."""

from trimaran.model.families.family import Family

LLAMA = Family()
