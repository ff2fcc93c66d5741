"""The images of a micro-batch's prompts, as they travelled."""

from __future__ import annotations

from dataclasses import dataclass

from trimaran.types import Group, images_in


@dataclass(frozen=True, slots=True)
class PromptImages:
    """The images of one prompt. `images_of` makes it."""

    prompt_id: str
    group: int
    """Place of its piece among those of the micro-batch."""
    start: int
    """The first place of the prompt among the packed tokens."""
    token_ids: tuple[int, ...]
    """The tokens of the prompt, with a token for each place that an image takes."""
    images: tuple[bytes, ...]
    """PNG files in the order of the prompt."""
    digest: str
    """The digest of what the rollout made of them."""


def images_of(group: Group, place: int, start: int) -> PromptImages | None:
    """None for a prompt without images."""
    images = images_in(group.prompt.messages)
    if not images:
        return None
    return PromptImages(
        prompt_id=group.prompt.prompt_id,
        group=place,
        start=start,
        token_ids=tuple(group.prompt_token_ids),
        images=images,
        digest=group.image_digest,
    )
