"""From a prompt's messages with images to tokens and places."""

import pytest

from services.rollout.images import ImagePlacer
from services.rollout.template_form import content_of
from tests.images.test_processor import folder_of, png
from trimaran.errors import InputError
from trimaran.types import Message

IMAGE = 6


def test_each_image_is_a_part_where_its_place_is_and_else_the_place_is_text():
    message = Message("user", "<image>left <image> right", (b"1", b"2"))
    assert content_of(message) == [
        {"type": "image"},
        {"type": "text", "text": "left "},
        {"type": "image"},
        {"type": "text", "text": " right"},
    ]
    assert content_of(Message("user", "what does <image> mean?")) == "what does <image> mean?"


@pytest.mark.parametrize("text", ["no place", "<image> and <image>"])
def test_each_image_needs_one_place(text):
    with pytest.raises(InputError, match="the user message has 1 images and [02] times <image>"):
        content_of(Message("user", text, (b"1",)))


def test_a_prompt_is_expanded_by_the_sizes_of_its_images(tmp_path):
    images, files = ImagePlacer(folder_of(tmp_path / "model"), 2), [png(56, 84)[0], png(28, 28)[0]]
    tokens, placed = images.place(files, (4, IMAGE, 5, IMAGE, 7))
    assert tokens == (4, *[IMAGE] * 6, 5, IMAGE, 7)
    assert placed is not None and placed.ranges == ((1, 6), (8, 1))
    assert placed.processed.grids.tolist() == [[1, 4, 6], [1, 2, 2]]
    again = images.find(files, (*tokens, IMAGE, 4))  # sampled
    assert again is not None and again.ranges == placed.ranges
    assert images.place([], (1, 2)) == ((1, 2), None)


@pytest.mark.parametrize(
    ("num_images", "tokens", "what"),
    [
        (3, (IMAGE, IMAGE, IMAGE), "3 images; rollout.limit_images is 2"),
        (1, (1, 2), "0 image tokens of 1 images"),
        (1, (IMAGE, IMAGE), "2 image tokens of 1 images"),
        # Somebody wrote the token itself into a text.
        (0, (IMAGE,), "1 image tokens of 0 images"),
    ],
)
def test_images_and_their_tokens_must_match(tmp_path, num_images, tokens, what):
    images = ImagePlacer(folder_of(tmp_path / "model"), limit=2)
    with pytest.raises(InputError, match=what):
        images.place([png(28, 28)[0]] * num_images, tokens)


def test_a_text_model_refuses_images_and_nothing_else(tmp_path):
    images = ImagePlacer(folder_of(tmp_path / "model", family="llama"), limit=2)
    assert images.place([], (IMAGE, 1)) == ((IMAGE, 1), None)
    with pytest.raises(InputError, match="has images, and the model takes none"):
        images.place([png(28, 28)[0]], (IMAGE, 1))
