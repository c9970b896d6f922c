"""One image: decoding, orientation, modes and sizes, each against Pillow or numpy used by hand."""

import dataclasses
import io
import json
import os
import struct
import zlib
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image, ImageOps

from vit_jax.data.images.high_bit_depth import Kind, eight_bits
from vit_jax.data.images.preprocess import Preprocess, decode_image, decode_unchanged, equal_kinds, open_image
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


@pytest.mark.parametrize("stated", [(0, 65535), (0, 4095), (-1000, 3000), (0, 510), (7, 8)])
def test_a_range_becomes_8_bits_as_fractions_say(stated):
    low, high = stated
    values = np.arange(low, high + 1)
    wanted = [int(Fraction(255 * (v - low), high - low) + Fraction(1, 2)) for v in values.tolist()]  # halves go up
    for dtype in (np.int32, np.float64) if low < 0 else (np.uint16, ">u2", np.int64, np.float32):
        np.testing.assert_array_equal(eight_bits(values.astype(dtype), *stated), wanted)


def stored(pixels, order="<", bits=None, raw=None):
    """A TIFF file of these pixels, uncompressed: signed, unsigned or floating-point ones in either order of bytes."""
    data = raw or pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
    kind = {"u": 1, "i": 2, "f": 3}[pixels.dtype.kind]
    (h, w), bits = pixels.shape, bits or 8 * pixels.itemsize
    tags = [(256, w), (257, h), (258, bits), (259, 1), (262, 1), (273, 122), (277, 1), (279, len(data)), (339, kind)]
    entries = b"".join(struct.pack(f"{order}HHII", tag, 4, 1, value) for tag, value in tags)
    return struct.pack(f"{order}2sHIH", b"II" if order == "<" else b"MM", 42, 8, len(tags)) + entries + bytes(4) + data


def png_of_16_bits(pixels):
    """A PNG file of uint16 [h, w, C]."""
    header = struct.pack(">IIBBBBB", *pixels.shape[1::-1], 16, {1: 0, 2: 4, 3: 2, 4: 6}[pixels.shape[2]], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    out = b"\x89PNG\r\n\x1a\n"
    for name, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        out += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return out


WIDE = {
    **{f"{t}{order}": np.array([[0, 1, 900, 4095]], t) for t in ("u2", "i2", "i4", "f4") for order in "<>"},
    "u4<": np.array([[0, 1, 900, 4095]], "u4"),
    "negative<": np.array([[-900, -1, 0, 32000]], "i2"),
    "negative>": np.array([[-(2**31), -1, 0, 2**31 - 1]], "i4"),
    "beyond<": np.array([[0, 5, 2**31, 2**32 - 1]], "u4"),
    "float>": np.array([[-0.5, 0, 0.25, 3e9]], "f4"),
    "signed<": np.array([[-128, -1, 0, 127]], "i1"),
}


@pytest.mark.parametrize("name", WIDE)
def test_integers_and_floats_of_any_width_become_8_bits_by_a_range_and_are_never_wrapped(name):
    pixels = WIDE[name]
    image = decode_image(stored(pixels, name[-1]), "x.tif")
    exact = pixels.astype(np.float64)
    for low, high in ((exact.min(), exact.max()), (exact.min() - 7, exact.max() + 100)):
        one = dataclasses.replace(preprocess((1, 4), channels=1), range=(low, high))
        one.check(image, "x")
        np.testing.assert_array_equal(one.apply(image)[0, :, 0], np.floor((exact[0] - low) * 255 / (high - low) + 0.5))
    for low, high in ((exact.min() + 1, exact.max()), (exact.min(), exact.max() - 20)):
        if high < exact.max() or low > exact.min():
            with pytest.raises(UserError, match=r"x: holds values from .*, not all within .* to .*; save it with more"):
                dataclasses.replace(one, range=(low, high)).check(image, "x")
    plain = preprocess((1, 4), channels=1)
    if name[:2] in ("u2", "i2", "i4", "u4"):
        plain.check(image, "x")
        np.testing.assert_array_equal(plain.apply(image)[0, :, 0], np.rint(exact[0] / 257))
    else:
        with pytest.raises(
            UserError, match=r"(of unknown range|not all within 0 to 65535); save it with 8 bits, or with"
        ):
            plain.check(image, "x")


def test_a_file_that_says_its_greatest_value_is_taken_at_its_word():
    values = np.array([0, 1, 2048, 4095])
    pgm = b"P5\n4 1\n4095\n" + values.astype(">u2").tobytes()  # which Pillow multiplies to 16 bits
    packed = stored(np.zeros((1, 4), "u2"), bits=12, raw=bytes([0x00, 0x00, 0x01, 0x80, 0x0F, 0xFF]))
    for file in (pgm, packed):
        image = decode_image(file, "x")
        for stated, high in (((), 4095), ((0.0, 4095.0), 4095), ((0.0, 8190.0), 8190)):
            one = dataclasses.replace(preprocess((1, 4), channels=1), range=stated)
            assert one.check(image, "x")[1:3] == (0, 4095)
            np.testing.assert_array_equal(one.apply(image)[0, :, 0], np.floor(values * 255 / high + 0.5))


def test_of_colours_with_16_bits_pillow_keeps_8_and_a_range_is_refused():
    for channels in (2, 3, 4):
        pixels = np.full((1, 4, channels), 65535, np.uint16)
        pixels[0, :, 0] = [0, 255, 4095, 65535]
        image = decode_image(png_of_16_bits(pixels), "x.png")
        assert preprocess((1, 4)).check(image, "x").kind == Kind.CUT
        np.testing.assert_array_equal(preprocess((1, 4)).apply(image)[0, :, 0], pixels[0, :, 0] >> 8)
        with pytest.raises(UserError, match="has colours of 16 bits, of which Pillow keeps the upper 8"):
            dataclasses.replace(preprocess((1, 4)), range=(0, 4095)).check(image, "x")
    with pytest.raises(UserError, match="has pixels of 8 bits"):
        dataclasses.replace(preprocess((1, 4)), range=(0, 4095)).check(Image.new("P", (4, 1)), "x")


def test_no_number_is_no_pixel():
    for value in (np.nan, np.inf):
        image = decode_image(stored(np.array([[0, value]], "f4")), "x.tif")
        with pytest.raises(UserError, match="no finite numbers"):
            dataclasses.replace(preprocess((1, 2)), range=(0, 1)).check(image, "x")


def test_a_transparent_level_of_16_bits_is_laid_over_the_background(tmp_path):
    wide = np.array([[0, 300, 40000]], np.uint16)
    image = saved(tmp_path, Image.fromarray(wide), transparency=300)
    assert preprocess((1, 3), channels=1, background=9).apply(image)[0, :, 0].tolist() == [0, 9, 156]


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
    kept = json.loads(json.dumps(one.to_dict()))
    assert Preprocess.from_dict(kept) == one and "range" not in kept  # as those of earlier runs
    ranged = dataclasses.replace(one, range=(0.0, 4095.0))
    assert Preprocess.from_dict(json.loads(json.dumps(ranged.to_dict()))) == ranged
    with pytest.raises(UserError, match="extra"):
        Preprocess.from_dict({**kept, "extra": 1})


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


def draw_jpeg(rng, height, width) -> bytes:
    """A JPEG file of some kind: grey or coloured, of any subsampling, progressive or not, CMYK, with an orientation."""
    small = rng.integers(0, 256, (height // 6 + 2, width // 6 + 2, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize((width, height))).astype(int)
    noisy = (smooth + rng.integers(-30, 31, smooth.shape)).clip(0, 255).astype(np.uint8)
    options = {"quality": int(rng.integers(5, 101)), "progressive": bool(rng.random() < 0.4)}
    options |= {"subsampling": int(rng.integers(0, 3)), "restart_marker_blocks": int(rng.integers(0, 9))}
    if rng.random() < 0.1:
        exif = Image.Exif()
        exif[0x0112] = 6
        options["exif"] = exif
    if rng.random() < 0.1:
        options = {"keep_rgb": True}
    file = io.BytesIO()
    Image.fromarray(noisy).convert(rng.choice(["RGB", "RGB", "RGB", "L", "CMYK"])).save(file, "JPEG", **options)
    return file.getvalue()


def test_simplejpeg_gives_pillows_pixels_on_a_thousand_files_and_leaves_it_the_others():
    pytest.importorskip("simplejpeg")
    rng, taken = np.random.default_rng(0), []
    for i in range(1000):
        (height, width), channels = rng.integers(1, 90, 2).tolist(), int(rng.choice([1, 3, 3]))
        encoded = draw_jpeg(rng, height, width)
        if i % 5 == 4:  # damaged
            damaged = bytearray(encoded[: int(rng.integers(len(encoded) // 2, len(encoded) + 1))])
            damaged[int(rng.integers(2, len(damaged)))] ^= 1 << int(rng.integers(8))
            encoded = bytes(damaged)
        as_it_is = preprocess((height, width), channels)
        pixels = decode_unchanged(encoded, as_it_is)
        taken.append(pixels is not None)
        if pixels is not None:
            assert np.array_equal(pixels, as_it_is.apply(decode_image(encoded, "x"))), i
    assert 400 < sum(taken) < 700  # of one channel only grey ones, none of CMYK, of RGB as it is, or turned
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    assert decode_unchanged(file.getvalue(), preprocess((8, 8), 3)) is None
    assert decode_unchanged(draw_jpeg(rng, 9, 8), preprocess((8, 8), 3)) is None  # to be resized


def test_a_simplejpeg_with_other_pixels_is_not_used(monkeypatch):
    simplejpeg = pytest.importorskip("simplejpeg")
    decode = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda data, colours: decode(data, colours, fastupsample=True))
    assert equal_kinds.__wrapped__() == {"444", "Gray"}
