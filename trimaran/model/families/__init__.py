"""One file a model family, as data; `trimaran.choices.FAMILIES` names them by `model_type`."""
