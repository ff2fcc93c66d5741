"""Images through a replica with vLLM, against plain transformers on the same processed images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests import tiny_vision
from tests.images.test_processor import png
from tests.rollout import replicas
from tests.rollout.programs import run_program
from tests.rollout.replicas import generate, sampling
from tests.rollout.test_service import interrupted
from tests.tiny_vision import IMAGE, patch_multiple, write_tiny_vision
from tests.trainer.plain_vision import PlainVision
from trimaran.clients import GroupAssembly
from trimaran.data.images.processor import ImageProcessor
from trimaran.errors import InputError, PromptTooLongError
from trimaran.types import Completion, Group, Message, Prefix, Prompt, ScoredGroup, TrainingBatch

pytestmark = pytest.mark.e2e

TEXT = {**tiny_vision.TEXT, "max_position_embeddings": 2048}
TOLERANCE = 5e-4
"""Of a log-probability in float32, as in test_service."""


class Seen:
    """A model, a replica that serves it, and what transformers makes of it."""

    def __init__(self, family: str, folder: Path) -> None:
        self.family = family
        self.model = write_tiny_vision(folder / "model", family, num_layers=2, text=TEXT)
        self.plain = PlainVision(self.model).eval()
        self.replica = replicas.start_replica("vllm", self.model, folder)
        self.processor = ImageProcessor(self.model)

    def image(self, height: int, width: int, seed: int) -> bytes:
        """`height` and `width` in merged patches."""
        unit = patch_multiple(self.family)
        return png(height * unit, width * unit, seed)[0]

    def weights(self) -> dict[str, torch.Tensor]:
        return self.plain.as_folder(lambda parameter: parameter.detach().clone())

    def logprobs(self, group: Group, completion: Completion) -> torch.Tensor:
        """Of its tokens, [T]."""
        self.plain.see(TrainingBatch(1, (ScoredGroup(group, ()),)))
        prompt, tokens = list(group.prompt_token_ids), list(completion.token_ids_T)
        with torch.no_grad():
            logits_LV = self.plain(torch.tensor([[*prompt, *tokens]])).logits[0]
        logprobs_TV = logits_LV[len(prompt) - 1 : -1].log_softmax(-1)
        return logprobs_TV.gather(-1, torch.tensor(tokens)[:, None])[:, 0]

    def assert_plain(self, group: Group) -> None:
        for completion in group.completions_G:
            found = torch.tensor(list(completion.logprobs_S))
            assert (found - self.logprobs(group, completion)).abs().max() < TOLERANCE


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
def seen(request, tmp_path_factory):
    found = Seen(request.param, tmp_path_factory.mktemp(request.param))
    yield found
    replicas.stop(found.replica)


def prompt_of(*images: bytes, text: str = "left <image> right <image>?") -> Prompt:
    return Prompt("row 1", (Message("user", text, images),), "colour", "red")


async def test_logprobs_are_those_of_transformers_for_the_same_images(seen):
    first, second, third = (seen.image(2, 3, 1), seen.image(1, 2, 2), seen.image(2, 3, 3))

    async with seen.replica.client() as client:
        version = await seen.replica.publish(client, seen.weights())
        groups = []
        # The same again, and another image of the same size: what is cached goes by the image.
        for images in ((first, second), (third, second), (first, second)):
            prompt = prompt_of(*images)
            group = await generate(client, sampling(4, 16), prompt=prompt, least=version)
            assert list(group.prompt_token_ids).count(IMAGE) == 6 + 2
            assert group.image_digest == seen.processor.process(images).digest
            seen.assert_plain(group)
            groups.append(group)
        other = replace(groups[1], prompt=groups[0].prompt)
        completion = groups[1].completions_G[0]
        difference = seen.logprobs(groups[1], completion) - seen.logprobs(other, completion)
        assert difference.abs().max() > 100 * TOLERANCE, "the image does not matter"


def test_images_cross_into_the_core_once_a_prompt_and_are_looked_at_once(tmp_path):
    model = write_tiny_vision(tmp_path / "model", num_layers=2, text=TEXT)
    found = run_program("crossing", model)
    assert {work: (seen, ended) for work, (_, seen, ended) in found.items()} == {
        "a group": (2, 8),
        "a group that goes on": (2, 8),
        "greedy": (2, 8),
        "three at a time": (6, 24),
    }
    for work, (crossed, _, _) in found.items():
        assert 1.0 <= crossed < 1.1, work


async def test_an_interrupted_group_goes_on_with_its_images(seen):
    """One of its completions has sampled an image token, which is text."""
    prompt = prompt_of(seen.image(1, 3, 4), seen.image(2, 2, 5))

    async with seen.replica.client() as client:
        version = await seen.replica.publish(client, seen.weights())
        group = await generate(client, sampling(12, 20), prompt=prompt, least=version)
        whole = [c for c in group.completions_G if c.finish_reason == "length"]
        first, *others = whole[:3]
        tokens = (*first.token_ids_T[:2], IMAGE, *first.token_ids_T[3:])
        group = replace(group, completions_G=(replace(first, token_ids_T=tokens), *others))
        begun = interrupted(group, [5, 0, 20])
        again = await generate(client, sampling(3, 20), prompt=prompt, least=version, into=begun)
        assert tuple(again.completions_G[0].token_ids_T[:5]) == tokens[:5]
        for start, completion in zip((5, 0, 20), again.completions_G, strict=True):
            found = torch.tensor(list(completion.logprobs_S))
            right = seen.logprobs(again, completion)
            if start < len(found):
                assert (found - right)[start:].abs().max() < TOLERANCE


async def test_a_turn_goes_on_with_the_images_of_its_opening(seen):
    """Also where nothing is cached, as on another replica; an image token that was sampled is text."""
    images = seen.image(1, 3, 14), seen.image(2, 2, 15)
    prompt, reply = prompt_of(*images), Prompt("row 1", (Message("tool", "7"),), "colour", "red")

    async def turn(client, asked, prefix, version):
        made = GroupAssembly(1)
        group = await generate(
            client, sampling(1, 12), prompt=asked, least=version, into=made, prefix=prefix
        )
        return group, made.cached_tokens

    async with seen.replica.client() as client:
        cached = []
        version = await seen.replica.publish(client, seen.weights())
        first, _ = await turn(client, prompt, Prefix(), version)
        said = (first.completions_G[0].token_ids_T[0], IMAGE, 20)
        prefix = Prefix((*first.prompt_token_ids, *said), images)
        for _ in range(2):
            second, num_cached = await turn(client, reply, prefix, version)
            cached.append(num_cached)
            assert second.image_digest == first.image_digest
            (last,) = second.completions_G
            tokens = (*said, *second.prompt_token_ids, *last.token_ids_T)
            right = seen.logprobs(first, replace(last, token_ids_T=tokens))
            found = torch.tensor(list(last.logprobs_S))
            assert (found - right[-len(found) :]).abs().max() < TOLERANCE
            version = await seen.replica.publish(client, seen.weights())
        assert cached[0] > 0 == cached[1]


async def test_new_weights_of_the_tower_alone_change_what_is_seen(seen):
    prompt = prompt_of(seen.image(2, 2, 6), seen.image(2, 2, 7))
    before = seen.weights()

    async with seen.replica.client() as client:
        await seen.replica.publish(client, before)
        await generate(client, sampling(2, 4), prompt=prompt)  # its features are cached now
        torch.manual_seed(5)
        with torch.no_grad():
            for name, value in seen.plain.named_parameters():
                if "visual" in name and value.ndim > 1:
                    value.add_(0.05 * torch.randn_like(value))
        try:
            version = await seen.replica.publish(client, seen.weights())
            group = await generate(client, sampling(2, 16), prompt=prompt, least=version)
            seen.assert_plain(group)
        finally:
            with torch.no_grad():
                for name, value in seen.plain.as_folder().items():
                    value.copy_(before[name])


async def test_what_cannot_be_placed_is_refused_and_the_replica_goes_on(seen):
    small = seen.image(1, 1, 8)
    refused = [
        (prompt_of(small), InputError, "1 images and 2 times <image>"),
        (prompt_of(*[small] * 5, text="<image>" * 5), InputError, "rollout.limit_images is 4"),
        (prompt_of(seen.image(8, 8, 9), small), PromptTooLongError, "max_prompt_tokens is 64"),
        (prompt_of(b"no image", small), InputError, "image 1: 8 bytes are no whole PNG file"),
    ]

    async with seen.replica.client() as client:
        version = await seen.replica.publish(client, seen.weights())
        for prompt, error, message in refused:
            with pytest.raises(error, match=message):
                await generate(client, sampling(1, 4), prompt=prompt, least=version)
        group = await generate(
            client, sampling(1, 4), prompt=prompt_of(small, small), least=version
        )
        seen.assert_plain(group)
