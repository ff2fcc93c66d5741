"""Vision-language models in plain transformers, one sequence at a time, and random batches with images."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from tests.tiny_vision import IMAGE, VISION_END, VISION_START
from tests.trainer.batches import random_batch
from trimaran.data.images.processor import ImageProcessor
from trimaran.types import Message, ScoredGroup, TrainingBatch

SIZES: Sequence[Sequence[tuple[int, int]]] = ([(2, 3)], [(3, 3), (1, 2)], [], [(4, 1)])
"""Of the images of each group: height and width in merged patches."""


def png(height: int, width: int, seed: int) -> bytes:
    """Noise, so that each patch is another."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels, "RGB").save(data, "PNG")
    return data.getvalue()


def with_images(batch: TrainingBatch, folder: Path) -> TrainingBatch:
    """Its prompts with images between their tokens, and in each group's first completion a sampled image
    token, which is plain text."""
    processor = ImageProcessor(folder)
    groups = tuple(
        _with_images(scored, [*sizes], processor, batch.step)
        for scored, sizes in zip(batch.groups, SIZES, strict=True)
    )
    return TrainingBatch(batch.step, groups)


def _with_images(
    scored: ScoredGroup, sizes: list[tuple[int, int]], processor: ImageProcessor, step: int
) -> ScoredGroup:
    group, unit = scored.group, processor.multiple
    dice = random.Random(f"{step}/{group.number}")
    images = tuple(
        png(height * unit, width * unit, dice.getrandbits(31)) for height, width in sizes
    )
    processed = processor.process(images)
    # The loop over no image leaves the prompt as it is, but for image tokens that stand for none.
    tokens = [token for token in group.prompt_token_ids if token > VISION_START + 3]
    for grid in processed.grids:
        places = [IMAGE] * processor.num_tokens(grid)
        tokens += [VISION_START, *places, VISION_END, dice.randrange(8, 96)]
    first, *others = group.completions_G
    first = replace(first, token_ids_T=(first.token_ids_T[0], IMAGE, *first.token_ids_T[2:]))
    prompt = replace(group.prompt, messages=(Message("user", "?", images),))
    prompt = replace(prompt, prompt_id=f"row {group.number}")
    made = replace(
        group,
        prompt=prompt,
        prompt_token_ids=tuple(tokens),
        completions_G=(first, *others),
        image_digest=processed.digest,
    )
    return replace(scored, group=made)


def vision_batch(step: int, folder: Path) -> TrainingBatch:
    return with_images(random_batch(step), folder)


class PlainVision(torch.nn.Module):
    """Answers as a language model of transformers does, for sequences whose prompts it has `seen`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.plain: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
        self._processor = ImageProcessor(folder)
        self._images: dict[tuple[int, ...], Sequence[bytes]] = {}

    def see(self, batch: TrainingBatch) -> TrainingBatch:
        for scored in batch.groups:
            images = [one for message in scored.group.prompt.messages for one in message.images]
            self._images[tuple(scored.group.prompt_token_ids)] = images
        return batch

    def forward(self, input_ids: torch.Tensor) -> Any:
        """Of one sequence [1, T]. Image tokens behind the prompt are text, which transformers' own forward
        pass would take for places of images."""
        ids = tuple(input_ids[0].tolist())
        prompt = next(one for one in self._images if ids[: len(one)] == one)
        images = self._images[prompt]
        model = self.plain.model
        embeddings = model.get_input_embeddings()(input_ids)
        if not images:
            positions = torch.arange(len(ids)).expand(3, 1, -1)
            return self._answer(inputs_embeds=embeddings, position_ids=positions)
        processed = self._processor.process(images)
        grids = torch.from_numpy(processed.grids)
        is_image = torch.zeros_like(input_ids)
        is_image[0, : len(prompt)] = input_ids[0, : len(prompt)] == IMAGE
        seen = model.get_image_features(
            torch.from_numpy(processed.patches), grids, return_dict=True
        )
        features = torch.cat(list(seen.pooler_output))
        embeddings = embeddings.masked_scatter(is_image[..., None].bool(), features)
        positions, _ = model.get_rope_index(
            input_ids, mm_token_type_ids=is_image, image_grid_thw=grids
        )
        deeper = getattr(seen, "deepstack_features", None)
        keywords = {}
        if deeper is not None:
            keywords = {
                "visual_pos_masks": is_image.bool(),
                "deepstack_visual_embeds": [
                    one if isinstance(one, torch.Tensor) else torch.cat(list(one)) for one in deeper
                ],
            }
        return self._answer(inputs_embeds=embeddings, position_ids=positions, **keywords)

    def _answer(self, **keywords: Any) -> Any:
        mask = torch.ones(keywords["inputs_embeds"].shape[:2], dtype=torch.int64)
        out = self.plain.model.language_model(attention_mask=mask, use_cache=False, **keywords)
        return SimpleNamespace(logits=self.plain.lm_head(out.last_hidden_state))

    def as_folder(
        self, of: Callable[[torch.nn.Parameter], Any] = lambda parameter: parameter.detach()
    ) -> dict[str, torch.Tensor]:
        """What `of` gives for each parameter, by its name in the makers' folders, and turned as there."""
        found = {}
        for name, parameter in self.plain.named_parameters():
            tensor = of(parameter)
            if self.plain.config.model_type == "qwen2_5_vl":
                name = name.removeprefix("model.") if name.startswith("model.visual.") else name
                name = name.replace("model.language_model.", "model.")
            found[name] = tensor.transpose(1, 2) if ".mlp.experts." in name else tensor
        return found
