"""Whole official archives, made from the real sets in $VIT_JAX_DATA, become those sets again, in an empty home.

`VIT_JAX_DATA=DIR python -m pytest -m slow tests/test_prepare_whole.py`; DIR holds cifar10, cifar100 and mnist.
"""

import gzip
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.core.hashing import Hasher

from tests.official_sets import cifar_members, serving, tar, with_files
from vit_jax.data.fetch.archives import OFFICIAL, CifarSet
from vit_jax.data.fetch.prepare import prepare

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("VIT_JAX_DATA" not in os.environ, reason="VIT_JAX_DATA names no folder with the real sets"),
]


def real(name):
    """The builder of a real set, and {split: (pixels, {label: values})} in the official order."""
    builder, made = tfds.builder(name, data_dir=os.environ["VIT_JAX_DATA"]), {}
    for split in ("train", "test"):
        records = builder.as_data_source(split)
        hashed = sorted(range(len(records)), key=Hasher(split).hash_key)
        pixels = np.zeros((len(records), *OFFICIAL[name].shape), np.uint8)
        labels = {key: np.zeros(len(records), np.uint8) for key in builder.info.features if key.endswith("label")}
        for position, record in enumerate(records):
            # Of MNIST, whose records have no id, only the order of TFDS's hash tells the index.
            i = int(record["id"][-5:]) if "id" in record else hashed[position]
            pixels[i] = record["image"]
            for key, values in labels.items():
                values[i] = record[key]
        made[split] = pixels, labels
    return builder, made


def official_files(name, builder, made):
    """{archive: bytes} in the official form."""
    if isinstance(OFFICIAL[name], CifarSet):
        names = {label: builder.info.features[label].names for label in OFFICIAL[name].labels}
        members, batches = cifar_members(name, made, names)
        assert batches == OFFICIAL[name].batches
        return {OFFICIAL[name].archives[0].name: tar(members)}
    blobs = []
    for pixels, labels in made.values():
        blobs.append(np.array([0x803, *pixels.shape[:3]], ">i4").tobytes() + pixels.tobytes())
        blobs.append(np.array([0x801, len(pixels)], ">i4").tobytes() + labels["label"].tobytes())
    return {a.name: gzip.compress(blob, 1) for a, blob in zip(OFFICIAL[name].archives, blobs, strict=True)}


def assert_equal(ours, theirs):
    """Two prepared sets are equal in features, names, order, pixels, labels and ids."""
    assert repr(ours.info.features) == repr(theirs.info.features) and ours.version == theirs.version
    for label in (key for key in theirs.info.features if key.endswith("label")):
        assert ours.info.features[label].names == theirs.info.features[label].names
    for split in ("train", "test"):
        for a, b in zip(ours.as_data_source(split), theirs.as_data_source(split), strict=True):
            assert a.keys() == b.keys() and np.array_equal(a["image"], b["image"])
            assert all(a[key] == b[key] for key in a if key != "image")


@pytest.mark.parametrize("name", ["cifar100", "mnist"])
def test_a_set_by_name_is_the_real_one(name, tmp_path, monkeypatch):
    builder, made = real(name)
    files = official_files(name, builder, made)
    with serving(files) as (address, _):
        monkeypatch.setitem(OFFICIAL, name, with_files(OFFICIAL[name], files, (address,)))
        prepare(tmp_path, name)
    assert_equal(tfds.builder(name, data_dir=tmp_path), builder)


TRAIN = """
import sys
from vit_jax.data.fetch.archives import *
from vit_jax.commands import train as command

OFFICIAL["cifar10"] = {official}
sys.argv[1:] = ["cifar10-48x4", "--max-steps", sys.argv[1]]
sys.exit(command.main())
"""


def test_training_by_name_alone_fetches_the_real_set_and_trains_on_it(tmp_path):
    """`train cifar10-48x4 --max-steps 20` in an empty home; only addresses, bytes and digests are replaced."""
    builder, made = real("cifar10")
    files = official_files("cifar10", builder, made)
    env = {**os.environ, "HOME": str(tmp_path)}
    env.pop("TFDS_DATA_DIR", None)
    with serving(files) as (address, asked):
        code = TRAIN.format(official=repr(with_files(OFFICIAL["cifar10"], files, (address,))))
        for steps, said in ((20, "prepared "), (21, "going on after step 20")):
            command = [sys.executable, "-c", code, str(steps)]
            done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
            assert done.returncode == 0 and said in done.stdout, done.stderr
    assert len(asked) == 1
    assert_equal(tfds.builder("cifar10", data_dir=tmp_path / "tensorflow_datasets"), builder)
