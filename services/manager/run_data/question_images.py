"""The images of a held-out prompt: a validation's file has none, so they are read in the dataset again."""

from __future__ import annotations

from trimaran.config import RunConfig
from trimaran.data.prompts import ImageSizes, open_datasets
from trimaran.errors import NotFoundError
from trimaran.types import split_prefill


def question_images(config: RunConfig, prompt_id: str) -> tuple[bytes, ...]:
    """Those of its question: PNG files, scaled as for the model. Raises NotFoundError where the datasets have
    no such prompt any more, and InputError where a file is not here."""
    data = config.data
    sizes = ImageSizes(data.min_pixels, data.max_pixels, multiple=1)
    name, _, line = prompt_id.rpartition(":")
    for dataset in open_datasets(data.validation, sizes):
        if dataset.name == name and int(line) <= len(dataset):
            prompt = dataset[int(line) - 1]
            if prompt.prompt_id == prompt_id:
                return split_prefill(prompt.messages)[0][-1].images
    raise NotFoundError(f"prompt {prompt_id}: is not in the run's datasets any more")
