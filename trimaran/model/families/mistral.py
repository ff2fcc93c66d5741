"""Mistral: Llama whose attention may see a window of the last tokens alone, as in version 0.1."""

from trimaran.model.families.family import Family

MISTRAL = Family(window=True)
