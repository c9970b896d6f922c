"""One image: decoding, orientation, modes and sizes, each against Pillow or numpy used by hand."""

import json
import os

import numpy as np
import pytest
from PIL import Image, ImageOps

from vit_jax.data.images.preprocess import Preprocess, open_image
from vit_jax.errors import UserError

COLOUR = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
GREY = COLOUR[..., 0]
ALPHA = np.random.default_rng(1).integers(0, 256, (5, 7), np.uint8)


def preprocess(image=(5, 7), channels=3, fit="crop", size=0, interpolation="bilinear", background=255):
    return Preprocess(image, channels, fit, size, interpolation, background, (0.5,) * channels, (0.5,) * channels)


def saved(tmp_path, image, name="image.png", **options):
    image.save(tmp_path / name, **options)
    return open_image(tmp_path / name)


# What each EXIF orientation says must be done to the stored pixels.
UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.T,
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).T,
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
def test_exif_orientation_is_applied(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = saved(tmp_path, Image.fromarray(GREY), exif=exif)
    np.testing.assert_array_equal(np.asarray(image), UPRIGHT[orientation](GREY))
    np.testing.assert_array_equal(
        np.asarray(image), np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "image.png")))
    )


def luma(rgb):
    """ITU-R 601, as Pillow computes mode L."""
    r, g, b = np.moveaxis(rgb.astype(np.int64), -1, 0)
    return ((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16).astype(np.uint8)


def over(rgb, alpha, background):
    share = alpha[..., None] / 255
    return rgb * share + background * (1 - share)


def test_grey_is_repeated_and_colour_becomes_luma(tmp_path):
    grey, colour = saved(tmp_path, Image.fromarray(GREY)), saved(tmp_path, Image.fromarray(COLOUR))
    np.testing.assert_array_equal(preprocess().apply(grey), np.stack([GREY] * 3, -1))
    np.testing.assert_array_equal(preprocess().apply(colour), COLOUR)
    np.testing.assert_array_equal(preprocess(channels=1).apply(grey)[..., 0], GREY)
    np.testing.assert_array_equal(preprocess(channels=1).apply(colour)[..., 0], luma(COLOUR))


@pytest.mark.parametrize("background", [0, 100, 255])
def test_alpha_is_laid_over_the_background(tmp_path, background):
    rgba = saved(tmp_path, Image.fromarray(np.dstack([COLOUR, ALPHA])))
    assert rgba.mode == "RGBA"
    got = preprocess(background=background).apply(rgba)
    np.testing.assert_allclose(got, over(COLOUR, ALPHA, background), atol=1)

    la = saved(tmp_path, Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA)]))
    assert la.mode == "LA"
    got = preprocess(channels=1, background=background).apply(la)
    np.testing.assert_allclose(got, over(GREY[..., None], ALPHA, background), atol=1)


@pytest.mark.parametrize("channels", [1, 3])
def test_palette_with_and_without_transparency(tmp_path, channels):
    palette = Image.fromarray(COLOUR).quantize(16)
    colours = np.asarray(palette.convert("RGB"))
    wanted = luma(colours)[..., None] if channels == 1 else colours
    np.testing.assert_array_equal(preprocess(channels=channels).apply(saved(tmp_path, palette)), wanted)

    see_through = saved(tmp_path, palette, "see.png", transparency=3)
    assert see_through.mode == "P"
    colours = np.where((np.asarray(palette) == 3)[..., None], 77, colours)
    wanted = luma(colours)[..., None] if channels == 1 else colours
    np.testing.assert_array_equal(preprocess(channels=channels, background=77).apply(see_through), wanted)


def test_sixteen_bit_one_bit_and_cmyk(tmp_path):
    wide = np.array([[0, 128, 129, 257, 40000, 65535, 65406]], np.uint16)
    image = saved(tmp_path, Image.fromarray(wide))
    assert image.mode == "I;16"
    got = preprocess(image=(1, 7), channels=1).apply(image)
    np.testing.assert_array_equal(got[..., 0], np.rint(wide * (255 / 65535)))
    np.testing.assert_array_equal(
        preprocess(image=(1, 7)).apply(Image.fromarray(wide.astype(np.int32))), np.repeat(got, 3, -1)
    )  # mode I

    bits = saved(tmp_path, Image.fromarray(GREY > 99))
    assert bits.mode == "1"
    np.testing.assert_array_equal(preprocess(channels=1).apply(bits)[..., 0], np.where(GREY > 99, 255, 0))

    cmyk = saved(tmp_path, Image.fromarray(COLOUR).convert("CMYK"), "image.tif")
    assert cmyk.mode == "CMYK"
    np.testing.assert_array_equal(preprocess().apply(cmyk), COLOUR)


def test_floating_point_pixels_are_refused(tmp_path):
    with pytest.raises(UserError, match="floating-point"):
        saved(tmp_path, Image.fromarray(GREY.astype(np.float32)), "image.tif")


PICTURE = Image.fromarray(np.random.default_rng(2).integers(0, 256, (40, 61, 3), np.uint8))


def test_crop_scales_the_shorter_side_then_cuts_the_centre():
    wanted = PICTURE.resize((36, 24), Image.Resampling.BILINEAR).crop((10, 4, 26, 20))  # 61 * 24 / 40 = 36.6
    np.testing.assert_array_equal(preprocess((16, 16), size=24).apply(PICTURE), np.asarray(wanted))
    turned = PICTURE.transpose(Image.Transpose.TRANSPOSE)
    np.testing.assert_array_equal(
        preprocess((16, 16), size=24).apply(turned),
        np.asarray(turned.resize((24, 36), Image.Resampling.BILINEAR).crop((4, 10, 20, 26))),
    )


@pytest.mark.parametrize("target", [(16, 16), (16, 30), (50, 20), (1, 7), (90, 61)])
def test_crop_of_size_0_just_covers(target):
    h, w = target
    got = preprocess(target, interpolation="bicubic").apply(PICTURE)
    scale = max(h / 40, w / 61)
    scaled = PICTURE.resize((int(61 * scale + 1e-9), int(40 * scale + 1e-9)), Image.Resampling.BICUBIC)
    assert scaled.size[0] == w or scaled.size[1] == h
    left, top = round((scaled.width - w) / 2), round((scaled.height - h) / 2)
    np.testing.assert_array_equal(got, np.asarray(scaled)[top : top + h, left : left + w])


@pytest.mark.parametrize("kernel", ["nearest", "bilinear", "bicubic"])
def test_stretch_and_pad_are_pillows(kernel):
    method = Image.Resampling[kernel.upper()]
    got = preprocess((20, 16), fit="stretch", interpolation=kernel).apply(PICTURE)
    np.testing.assert_array_equal(got, np.asarray(PICTURE.resize((16, 20), method)))
    got = preprocess((20, 16), fit="pad", interpolation=kernel, background=9).apply(PICTURE)  # scaled to 16 x 10
    np.testing.assert_array_equal(got, np.asarray(ImageOps.pad(PICTURE, (16, 20), method, (9, 9, 9))))
    assert preprocess((8, 8), fit="pad").apply(Image.new("RGB", (500, 1))).shape == (8, 8, 3)


def test_preprocess_survives_json_and_refuses_other_fields():
    one = preprocess((8, 9), channels=1)
    stored = json.loads(json.dumps(one.to_dict()))
    assert Preprocess.from_dict(stored) == one
    with pytest.raises(UserError, match="extra"):
        Preprocess.from_dict({**stored, "extra": 1})


def test_unreadable_files_are_named_in_one_sentence(tmp_path):
    PICTURE.save(tmp_path / "cut.jpg")
    whole_file = (tmp_path / "cut.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole_file[: len(whole_file) // 2])
    PICTURE.save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:600])
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "empty.png").touch()
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")  # opened as a file, it would be waited for
    for name in ("cut.jpg", "cut.png", "text.png", "empty.png", "folder.png", "absent.png", "pipe.png", "zero\0.png"):
        with pytest.raises(UserError) as caught:
            open_image(tmp_path / name)
        assert name in str(caught.value) and "\n" not in str(caught.value)
