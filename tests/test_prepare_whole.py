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

from tests.image_sources import a_run, everything, open_dataset
from tests.official_sets import cifar_members, serving, tar, with_files
from vit_jax.extras.sets.archives import OFFICIAL, CifarSet
from vit_jax.extras.sets.prepare import prepare

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("VIT_JAX_DATA" not in os.environ, reason="VIT_JAX_DATA names no folder with the real sets"),
]


def official_files(name):
    """{archive: bytes} of a real set in the official form."""
    builder, made = tfds.builder(name, data_dir=os.environ["VIT_JAX_DATA"]), {}
    for split in ("train", "test"):
        records = builder.as_data_source(split)
        hashed = sorted(range(len(records)), key=Hasher(split).hash_key)
        pixels = np.zeros((len(records), *OFFICIAL[name].shape), np.uint8)
        labels = np.zeros(len(records), np.uint8)
        for position, record in enumerate(records):
            # Of MNIST, whose records have no id, only the order of TFDS's hash tells the index.
            i = int(record["id"][-5:]) if "id" in record else hashed[position]
            pixels[i], labels[i] = record["image"], record["label"]
        made[split] = pixels, labels
    if isinstance(OFFICIAL[name], CifarSet):
        members, batches = cifar_members(name, made, builder.info.features["label"].names)
        assert batches == OFFICIAL[name].batches
        return {OFFICIAL[name].archives[0].name: tar(members)}
    blobs = []
    for pixels, labels in made.values():
        blobs.append(np.array([0x803, *pixels.shape[:3]], ">i4").tobytes() + pixels.tobytes())
        blobs.append(np.array([0x801, len(pixels)], ">i4").tobytes() + labels.tobytes())
    return {a.name: gzip.compress(blob, 1) for a, blob in zip(OFFICIAL[name].archives, blobs, strict=True)}


def assert_equal(name, folder):
    """A run on a set of this folder is that on the real records: their images and labels, in their order."""
    fields = {"image": OFFICIAL[name].shape[0], "channels": OFFICIAL[name].shape[2]}
    ours, theirs = (open_dataset(a_run(name, dir=str(p), **fields)) for p in (folder, os.environ["VIT_JAX_DATA"]))
    assert ours.identity == theirs.identity and ours.outputs == theirs.outputs and ours.preprocess == theirs.preprocess
    for split, found in ours.splits.items():
        np.testing.assert_array_equal(everything(found), everything(theirs.splits[split]))
        np.testing.assert_array_equal(found.labels, theirs.splits[split].labels)


@pytest.mark.parametrize("name", ["cifar100", "mnist"])
def test_a_set_by_name_is_the_real_one(name, tmp_path, monkeypatch):
    files = official_files(name)
    with serving(files) as (address, _):
        monkeypatch.setitem(OFFICIAL, name, with_files(OFFICIAL[name], files, (address,)))
        prepare(tmp_path, name)
    assert_equal(name, tmp_path)


TRAIN = """
import sys
from vit_jax.extras.sets.archives import *
from vit_jax.commands import train as command

OFFICIAL["cifar10"] = {official}
sys.argv[1:] = ["cifar10-48x4", "--max-steps", sys.argv[1]]
sys.exit(command.main())
"""


def test_training_by_name_alone_fetches_the_real_set_and_trains_on_it(tmp_path):
    """`train cifar10-48x4 --max-steps 20` in an empty home; only addresses, bytes and digests are replaced."""
    files = official_files("cifar10")
    env = {**os.environ, "HOME": str(tmp_path)}
    env.pop("TFDS_DATA_DIR", None)
    with serving(files) as (address, asked):
        code = TRAIN.format(official=repr(with_files(OFFICIAL["cifar10"], files, (address,))))
        for steps, said in ((20, "prepared "), (21, "going on after step 20")):
            command = [sys.executable, "-c", code, str(steps)]
            done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
            assert done.returncode == 0 and said in done.stdout, done.stderr
    assert len(asked) == 1
    assert_equal("cifar10", tmp_path / "tensorflow_datasets")
