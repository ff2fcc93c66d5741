"""Images in front of the language model: transformers' vision tower, and where its features go.

    PNG ─▶ processor ─▶ patches ─▶ tower ─▶ features ─▶ the embeddings at the image's places
                                       └──▶ features of inner blocks ─▶ added to what the first layers give

The tower runs once a micro-batch, for all prompts in it; the completions of a prompt read what that gave. Where
nothing of it trains, it runs once a step for each prompt, and other micro-batches and passes read what is kept.
Its weights stand on every tensor-parallel rank of the first stage. Each of them computes all features, and
takes those at the places of its own tokens. Later stages need an image's size alone, for the positions of its
tokens: they decode none.

Axes: N packed tokens, n of them on this rank, F places of images among N, f of them on this rank, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core.transformer import TransformerConfig
from numpy.typing import NDArray

from services.trainer.megatron.attention.context import ContextSplit
from services.trainer.megatron.attention.positions import Grid, Places, prompt_positions
from services.trainer.megatron.vision.kept_features import KeptFeatures, SeenPrompt, see
from services.trainer.step.prompt_images import PromptImages
from trimaran.choices import FAMILIES
from trimaran.data.images.processor import ImageProcessor, ProcessedImages
from trimaran.errors import InputError
from trimaran.model.vision_tower import VisionFacts

Prompts = tuple[PromptImages, ...]
"""Those of a micro-batch that have images."""


@dataclass(frozen=True, slots=True)
class SeenImages:
    """The images of a micro-batch, on the host. `ImageReader.read` makes it."""

    prompts: tuple[SeenPrompt, ...]
    places_F: torch.Tensor
    """Among N, in the order of the tower's features."""
    positions: dict[int, Places]
    """The grids of the prompts with images, by the place of their group."""


class ImageReader:
    """Decoding takes a core longer than a device needs for the image, so a thread reads those of the next
    micro-batch while one is computed.

    Example: ImageReader(folder, facts.vision).read(packed.images).prompts
    """

    kept: KeptFeatures | None = None
    """The features of a step. None where the tower trains, and so has to run in each pass."""

    def __init__(self, folder: Path, facts: VisionFacts) -> None:
        """`folder`: of a vision-language model. Raises InputError where its processor cannot be read."""
        self._processor = ImageProcessor(folder)
        self._merge = facts.merge_size
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="images")
        self._following: dict[int, Prompts] = {}
        """By the id of those that come before."""
        self._ahead: tuple[Prompts, Future[SeenImages]] | None = None

    def expect(self, batches: Sequence[Prompts]) -> None:
        """That these will be read, in this order."""
        ordered = [one for one in batches if one]
        self._following = {id(one): following for one, following in pairwise(ordered)}
        self._ahead = None

    def read(self, prompts: Prompts) -> SeenImages:
        """Raises InputError, which names the prompt, where the images are not those that the rollout saw."""
        is_ahead = self._ahead is not None and self._ahead[0] is prompts
        seen = self._ahead[1].result() if self._ahead and is_ahead else self._read(prompts)
        if following := self._following.pop(id(prompts), None):
            self._ahead = following, self._thread.submit(self._read, following)
        return seen

    def positions(self, prompts: Prompts) -> dict[int, Places]:
        """Those of `read`, by the headers of the images: nothing is decoded.

        Raises as `read`, but for what only pixels show: the first stage looks at these.
        """
        positions: dict[int, Places] = {}
        for prompt in prompts:
            with _naming(prompt):
                grids = self._processor.grids(prompt.images)
            is_image = self._find(prompt)
            _check_places(prompt, self._count(grids), is_image)
            positions[prompt.group] = self._place(is_image, grids)
        return positions

    def _read(self, prompts: Prompts) -> SeenImages:
        seen: list[SeenPrompt] = []
        places: list[torch.Tensor] = []
        positions: dict[int, Places] = {}
        for prompt in prompts:
            images = self._see(prompt)
            is_image = self._find(prompt)
            _check_digest(prompt, images.digest)
            _check_places(prompt, images.num_places, is_image)
            seen.append(images)
            places.append(is_image.nonzero()[:, 0] + prompt.start)
            positions[prompt.group] = self._place(is_image, images.grids.numpy())
        return SeenImages(tuple(seen), places_F=torch.cat(places), positions=positions)

    def _see(self, prompt: PromptImages) -> SeenPrompt:
        if self.kept and (known := self.kept.find(prompt.images)):
            return known
        processed = self._process(prompt)
        return SeenPrompt(
            images=prompt.images,
            digest=processed.digest,
            grids=torch.from_numpy(processed.grids),
            num_places=self._count(processed.grids),
            patches=torch.from_numpy(processed.patches),
        )

    def _process(self, prompt: PromptImages) -> ProcessedImages:
        with _naming(prompt):
            return self._processor.process(prompt.images)

    def _find(self, prompt: PromptImages) -> torch.Tensor:
        """bool: which tokens of a prompt stand for an image."""
        return torch.tensor(prompt.token_ids) == self._processor.image_token_id

    def _count(self, grids: NDArray[np.int64]) -> int:
        return sum(map(self._processor.num_tokens, grids))

    def _place(self, is_image: torch.Tensor, grids: NDArray[np.int64]) -> Places:
        merged = [self._merged(*grid) for grid in grids.tolist()]
        return prompt_positions(is_image, merged)

    def _merged(self, frames: int, height: int, width: int) -> Grid:
        return frames, height // self._merge, width // self._merge


@contextmanager
def _naming(prompt: PromptImages) -> Iterator[None]:
    """In an error of what is inside."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{prompt.prompt_id}: {error}") from None


def _check_digest(prompt: PromptImages, digest: str) -> None:
    if digest != prompt.digest:
        raise InputError(
            f"{prompt.prompt_id}: its images give other patches here ({digest}) than in the"
            f" rollout ({prompt.digest or 'none'}); use the same model folder, transformers and"
            " Pillow on both sides"
        )


def _check_places(prompt: PromptImages, count: int, is_image: torch.Tensor) -> None:
    """`count`: tokens that the images take."""
    if count != (found := int(is_image.sum())):
        raise InputError(
            f"{prompt.prompt_id}: its images take {count} tokens, and its prompt has {found}"
            " places for them; the rollout made the prompt, so this is a fault of its engine"
        )


def make_tower(folder: Path, config: TransformerConfig, device: torch.device) -> torch.nn.Module:
    """transformers' own, as the folder's config.json describes it; weights are loaded later."""
    from transformers import AutoConfig

    whole = AutoConfig.from_pretrained(folder, local_files_only=True)
    module, name = FAMILIES.load(whole.model_type).tower.split(":")
    tower_class: Any = getattr(import_module(f"transformers.models.{module}"), name)
    with device:
        # What from_config of the auto classes calls; these know no towers before transformers 5.2x.
        tower = tower_class._from_config(
            whole.vision_config, dtype=config.params_dtype, attn_implementation="sdpa"
        )
    if config.recompute_granularity:
        # Its name before transformers 5.2x.
        old = tower.gradient_checkpointing_enable
        getattr(tower, "activation_checkpointing_enable", old)({"use_reentrant": False})
    for parameter in tower.parameters():
        # With sequence parallelism a rank's features are those of its own tokens: finalize_model_grads
        # sums what is marked so.
        parameter.sequence_parallel = config.sequence_parallel
    return tower


@dataclass(frozen=True, slots=True)
class Deepstack:
    """What the first layers add to their output."""

    rows_f: torch.Tensor
    """Among this rank's n tokens."""
    features: tuple[torch.Tensor, ...]
    """[f, C] for each of these layers."""


def look(
    tower: Any,
    images: SeenImages,
    hidden_n1C: torch.Tensor,
    owned: tuple[Any, torch.Tensor],
    kept: KeptFeatures | None = None,
) -> tuple[torch.Tensor, Deepstack]:
    """The embeddings with features at the images' places, and what later layers add.

    `owned`: of `own_places`. `kept`: features that other passes have computed, or will read.
    """
    dtype, device = hidden_n1C.dtype, hidden_n1C.device
    features = (kept.see if kept else see)(tower, images.prompts, dtype, device)
    own, rows = owned[0], owned[1].to(device)
    first, *deeper = (one[own] for one in features)
    hidden = hidden_n1C.index_copy(0, rows, first[:, None])
    leaves = [one.detach().requires_grad_(one.requires_grad) for one in deeper]
    if deeper:
        hidden = _HandBack.apply(hidden, leaves, *deeper)
    return hidden, Deepstack(rows, tuple(leaves))


def own_places(
    places_F: torch.Tensor, context: ContextSplit, first: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of F this rank has, and where among its n tokens.

    `first`, `count`: its tokens among those of its context-parallel rank, which sequence parallelism
    divides further.
    """
    own, rows = context.find(places_F)
    numbers = torch.arange(len(places_F))[own]
    inside = (rows >= first) & (rows < first + count)
    return numbers[inside], rows[inside] - first


class _HandBack(torch.autograd.Function):
    """Leaves what it gets as it is; in the backward pass, gives the features the gradients that the layers
    have left at the leaves.

    A layer that is recomputed runs its own backward pass, which would go through the whole tower each
    time and find it freed at the second. It ends at a leaf instead; all layers are done when the gradient of
    their input is here.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, leaves: Sequence[torch.Tensor], *features: torch.Tensor
    ) -> torch.Tensor:
        ctx.leaves = leaves
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return gradients[0], None, *(leaf.grad for leaf in ctx.leaves)


def add_deepstack(layer: Any, args: Any, keywords: dict[str, Any], output: Any) -> Any:
    """A forward hook of megatron-core's layers, after which transformers adds the features, too."""
    deepstack: Deepstack | None = keywords["packed_seq_params"].deepstack
    number = layer.layer_number - 1
    if deepstack is None or number >= len(deepstack.features):
        return output
    hidden, context = output
    return hidden.index_add(0, deepstack.rows_f, deepstack.features[number][:, None]), context
