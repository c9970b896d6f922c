"""What makes two sets of images the same data: pixels, where a decoder cannot change them, else bytes."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.image_sources import a_run, open_dataset, write_images, write_npz, write_tfds
from vit_jax.data.images.identity import decoded_pixels, is_lossless, pixel_digest
from vit_jax.data.images.preprocess import decode_image

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (12, 9, 3), np.uint8)
GREY = RNG.integers(0, 256, (12, 9), np.uint8)
WIDE = RNG.integers(0, 65536, (12, 9), np.uint16)


def encoded(image, kind, **options):
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **options)
    return file.getvalue()


def digest(file):
    assert is_lossless(file)
    return pixel_digest(decoded_pixels(decode_image(file, "image")))


def test_identity_is_equal_exactly_where_the_data_is(tmp_path):
    def identity(name, **changes):
        return open_dataset(a_run(write_npz(tmp_path / "a.npz", **changes), seed=len(name))).identity

    first = identity("first")
    assert first == json.loads(json.dumps(first)) == identity("again, another run's seed")
    images = np.load(tmp_path / "a.npz")["images"].copy()
    images[7, 3, 3] ^= 1
    others = [
        identity("one pixel", images=images),
        identity("labels", labels=np.arange(20) // 10),
        identity("names", class_names=["a", "b"]),
        identity("fewer", n=18),
    ]
    assert all(first != other for other in others)


def test_one_image_has_one_digest_in_all_its_lossless_encodings():
    few = (COLOUR // 64 * 64)[:, :, :1] * np.array([1, 0, 0], np.uint8)  # few enough colours for a palette
    opaque = np.dstack([COLOUR, np.full((12, 9), 255, np.uint8)])
    same = [
        [encoded(COLOUR, "png"), encoded(COLOUR, "png", compress_level=0), encoded(COLOUR, "webp", lossless=True)],
        [encoded(few, "png"), encoded(Image.fromarray(few).quantize(8, dither=0), "png")],
        [
            encoded(COLOUR, "png"),
            encoded(opaque, "png"),
            encoded(COLOUR, "webp", lossless=True, icc_profile=b"colours"),
        ],
        [encoded(GREY, "png"), encoded(np.dstack([GREY] * 3), "png"), encoded(GREY, "webp", lossless=True)],
        [encoded(GREY > 99, "png"), encoded(np.uint8(255) * (GREY > 99), "png")],
    ]
    for files in same:
        assert len({digest(file) for file in files}) == 1 and len(set(files)) == len(files)
    arrays = [COLOUR, few, COLOUR, GREY, np.uint8(255) * (GREY > 99)]
    assert [digest(files[0]) for files in same] == [pixel_digest(array) for array in arrays]
    assert pixel_digest(GREY) == pixel_digest(GREY[..., None]) == pixel_digest(np.dstack([GREY] * 3))


def test_another_pixel_shape_depth_or_transparency_is_another_digest():
    clear = np.dstack([COLOUR, GREY])
    images = [
        COLOUR,
        COLOUR[::-1],
        COLOUR[:, :, ::-1],
        COLOUR.reshape(9, 12, 3),
        GREY,
        WIDE,
        WIDE.astype(np.uint8),
        clear,
    ]
    assert len({pixel_digest(image) for image in images}) == len(images)
    one_clear = encoded(COLOUR, "png", transparency=tuple(map(int, COLOUR[0, 0])))
    assert (
        len(
            {
                digest(encoded(WIDE, "png")),
                digest(encoded(clear, "png")),
                digest(one_clear),
                digest(encoded(COLOUR, "png")),
            }
        )
        == 4
    )
    almost = np.dstack([GREY] * 3)
    almost[-1, -1, 1] ^= 1  # grey but for one value
    assert pixel_digest(almost) != pixel_digest(GREY)


@pytest.mark.parametrize(
    "kind, options", [("jpeg", {}), ("webp", {}), ("webp", {"exif": b"Exif"}), ("gif", {}), ("tiff", {})]
)
def test_other_encodings_are_identified_by_their_bytes(kind, options):
    assert not is_lossless(encoded(COLOUR, kind, **options))


def test_colours_of_16_bits_are_identified_by_their_bytes():
    """Decoders keep 8 of the 16 bits, in ways of their own."""
    header = bytearray(encoded(COLOUR, "png"))
    assert (header[24], header[25]) == (8, 2) and is_lossless(bytes(header))
    header[24] = 16
    assert not is_lossless(bytes(header)) and is_lossless(encoded(WIDE, "png"))


@pytest.mark.parametrize(
    "file", [b"", b"RIFF", b"RIFF\0\0\0\0WEBPVP8X", b"RIFF\0\0\0\0WEBP" + b"ICCP\0\0\0\0" * 9, b"\x89PNG\r\n\x1a\n"]
)
def test_broken_headers_are_judged_by_what_is_there(file):
    """Without an error: whether such an image can be decoded is seen when it is."""
    assert is_lossless(file) == file.startswith(b"\x89PNG")


def stored_twice(root):
    """The same set as PNG and as WebP: (its run, {encoding: the folder})."""
    for encoding in ("png", "webp"):
        write_tfds(root / encoding, encoding=encoding)
    run = a_run("pets", image=(5, 6), dir=str(root / "png"), validation=0.1)
    return run, replace(run, data=replace(run.data, dir=str(root / "webp")))


def test_the_same_pixels_as_png_and_webp_are_the_same_data(tmp_path):
    png, webp = map(open_dataset, stored_twice(tmp_path))
    assert png.identity == webp.identity and png.same_as(webp.identity)


def test_data_is_the_same_exactly_if_its_identity_is(tmp_path):
    digits = {
        "name": "digits",
        "sizes": {"train": 1294, "validation": 144, "test": 359},
        "classes": "9971a8db4856315a1c682333eaab0b97",
        "version": 2,
        "content": "3eba2edfc7c8ff4da517e874da12e95b",
    }
    data = open_dataset(a_run("digits"))
    assert data.same_as(digits) and data.same_as(data.identity) and data.same_as(None)
    assert not any(data.same_as(other) for other in ({**digits, "content": "0" * 32}, {}, [], "digits"))

    write_images(tmp_path, 5)
    (tmp_path / "cat/0.png").write_bytes(b"unreadable")
    data = open_dataset(a_run(f"folder:{tmp_path}", channels=3, skip_unreadable=True))
    Image.open(tmp_path / "dog/0.png").save(tmp_path / "dog/0.png", compress_level=1)
    assert open_dataset(a_run(f"folder:{tmp_path}", channels=3, skip_unreadable=True)).identity == data.identity
    Image.open(tmp_path / "dog/1.jpg").save(tmp_path / "dog/1.jpg", quality=90)
    assert open_dataset(a_run(f"folder:{tmp_path}", channels=3, skip_unreadable=True)).identity != data.identity


def test_a_crop_that_loses_over_half_of_the_area_is_remarked_on_with_the_remedy(tmp_path):
    def remarks(shape, **data):
        write_images(tmp_path / str(shape), size=shape)
        return open_dataset(
            a_run(f"folder:{tmp_path / str(shape)}", channels=3, validation=0.0, test=0.5, **data)
        ).remarks

    assert remarks((40, 16)) == (  # 8 of 20 columns remain
        "the centre crop leaves out 60% of the images' area; to show whole images, give `data.fit pad`",
    )
    assert remarks((16, 36)) and not remarks((16, 32)) and not remarks((20, 14))
    assert remarks((14, 14), size=14)  # 8 of 14 rows and columns remain
    assert not remarks((41, 16), fit="pad")


@pytest.mark.parametrize(
    ("mode", "channels", "told"), [("RGB", 1, True), ("P", 1, True), ("RGB", 3, False), ("L", 1, False)]
)
def test_colours_that_one_channel_does_not_see_are_remarked_on_with_the_remedy(tmp_path, mode, channels, told):
    write_images(tmp_path)
    for path in [*tmp_path.rglob("*.*")]:
        image = Image.open(path).convert("L") if mode == "L" else Image.open(path).convert("RGB").convert(mode)
        path.unlink()
        image.save(path.with_suffix(".png"))
    remarks = open_dataset(a_run(f"folder:{tmp_path}", channels=channels, validation=0.0, test=0.5)).remarks
    assert any("made grey" in each and "`model.channels 3" in each for each in remarks) == told
