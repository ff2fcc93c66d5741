"""What rollout and trainer make of the same prepared images."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from tests.data.pictures import encode
from trimaran.data.images.processor import ImageProcessor, takes_images
from trimaran.errors import InputError

CUT = 5000
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]


def folder_of(path, family="qwen2_5_vl", patch_size=14, mean=MEAN):
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": family, "image_token_id": 6}))
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        **{"patch_size": patch_size, "temporal_patch_size": 2, "merge_size": 2},
        **{"image_mean": mean, "image_std": STD},
        # So large that images of these tests would be resized, were they resized.
        "size": {"shortest_edge": 1 << 20, "longest_edge": 1 << 24},
    }
    (path / "preprocessor_config.json").write_text(json.dumps(settings))
    return path


def png(height, width, seed=0, mode="RGB"):
    channels = {"RGB": (3,), "RGBA": (4,), "L": ()}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, *channels), np.uint8)
    return encode(Image.fromarray(pixels, mode)), pixels


def test_patches_are_the_pixels_normalized_in_the_towers_order(tmp_path):
    processor = ImageProcessor(folder_of(tmp_path / "model"))
    data, pixels = png(56, 84)
    processed = processor.process([data])
    assert processed.grids.tolist() == [[1, 4, 6]]
    assert processed.patches.dtype == np.float32 and processed.patches.shape == (24, 3 * 2 * 14**2)
    normal = (pixels / 255 - MEAN) / STD
    # Patches of one merged 2 x 2 square follow each other; a still image is two equal frames.
    for place, (row, column) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1), (0, 2)]):
        square = normal[14 * row : 14 * row + 14, 14 * column : 14 * column + 14]
        frames = processed.patches[place].reshape(3, 2, 14, 14)
        assert np.allclose(frames[:, 0], square.transpose(2, 0, 1), atol=1e-5)
        assert np.array_equal(frames[:, 0], frames[:, 1])


def test_several_images_are_each_alone_one_after_the_other(tmp_path):
    processor = ImageProcessor(folder_of(tmp_path / "model"))
    images = [png(56, 84, 1)[0], png(28, 56, 2)[0]]
    both, (first, second) = processor.process(images), [processor.process([i]) for i in images]
    assert np.array_equal(both.patches, np.concatenate([first.patches, second.patches]))
    assert both.digests == (*first.digests, *second.digests)
    assert len({both.digest, first.digest, second.digest}) == 3


def test_the_digest_is_of_pixels_grid_and_settings(tmp_path):
    processor = ImageProcessor(folder_of(tmp_path / "model"))
    data, pixels = png(56, 84)
    digest = processor.process([data]).digest
    other_bytes = encode(Image.fromarray(pixels), compress_level=0)
    assert other_bytes != data
    assert processor.process([other_bytes]).digest == digest
    pixels[55, 83, 2] ^= 1
    assert processor.process([encode(Image.fromarray(pixels))]).digest != digest
    # All pixels are equal, and so are the patches of both shapes.
    flat = [Image.new("RGB", size, (9, 9, 9)) for size in ((84, 56), (56, 84))]
    shapes = [processor.process([encode(image)]) for image in flat]
    assert np.array_equal(shapes[0].patches, shapes[1].patches)
    assert shapes[0].digest != shapes[1].digest
    settings = folder_of(tmp_path / "other", mean=[0.5, 0.4, 0.300001])
    assert ImageProcessor(settings).process([data]).digest != digest


@pytest.fixture(scope="module")
def processors(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    folders = folder_of(root / "14"), folder_of(root / "16", "qwen3_vl", patch_size=16)
    made = [ImageProcessor(folder) for folder in folders]
    assert [(one.multiple, one.image_token_id) for one in made] == [(28, 6), (32, 6)]
    return made


sides = st.integers(1, 9)


@given(of=st.sampled_from([0, 1]), sizes=st.lists(st.tuples(sides, sides), max_size=4))
def test_headers_give_the_grids_that_pixels_give(processors, of, sizes):
    processor = processors[of]
    images = [png(*(side * processor.multiple for side in size))[0] for size in sizes]
    grids, wanted = processor.grids(images), processor.process(images).grids
    assert (grids.dtype, grids.shape) == (wanted.dtype, wanted.shape)
    assert np.array_equal(grids, wanted)
    assert [processor.num_tokens(grid) for grid in grids] == [high * wide for high, wide in sizes]


def test_grids_are_read_without_decoding(processors, monkeypatch):
    data, _ = png(56, 84)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: 1 / 0)
    with pytest.raises(InputError, match="ZeroDivisionError"):
        processors[0].process([data])
    for whole_or_not in (data, data[:100]):
        assert processors[0].grids([whole_or_not]).tolist() == [[1, 4, 6]]


def test_no_image_is_no_digest(tmp_path):
    processed = ImageProcessor(folder_of(tmp_path / "model")).process([])
    assert (processed.digest, processed.patches.shape[0], processed.grids.shape) == ("", 0, (0, 3))


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (b"", "0 bytes are no whole PNG file"),
        (png(56, 84)[0][:CUT], "no whole PNG file"),
        (encode(Image.new("RGB", (56, 56)), "JPEG"), "no whole PNG file"),
        (png(56, 80)[0], "80 x 56 pixels in mode RGB"),
        (png(56, 84, mode="RGBA")[0], "in mode RGBA"),
        (png(56, 84, mode="L")[0], "in mode L"),
    ],
)
def test_what_is_no_prepared_image_is_refused(tmp_path, bad, what):
    processor = ImageProcessor(folder_of(tmp_path / "model"))
    with pytest.raises(InputError, match=f"image 2: .*{what}"):
        processor.process([png(28, 28)[0], bad])
    if len(bad) != CUT:  # its header is whole
        with pytest.raises(InputError, match=f"image 2: .*{what}"):
            processor.grids([png(28, 28)[0], bad])


def test_a_text_model_takes_no_images(tmp_path):
    folder = folder_of(tmp_path / "model", family="llama")
    assert not takes_images(folder)
    assert takes_images(folder_of(tmp_path / "vision"))
    with pytest.raises(InputError, match="'llama', which takes no images"):
        ImageProcessor(folder)
    (folder / "config.json").unlink()
    assert not takes_images(folder)


def test_a_folder_without_a_processor_is_named(tmp_path):
    folder = folder_of(tmp_path / "model")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(InputError, match=r"no image processor .*preprocessor_config\.json"):
        ImageProcessor(folder)
