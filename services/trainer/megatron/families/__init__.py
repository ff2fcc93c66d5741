"""One file a model family; `trimaran.choices.FAMILIES` names them."""
