"""Made-up sources of images of every kind, and a run's data opened as its task opens it."""

import io
import json

import numpy as np
from PIL import Image

from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.run import RunConfig
from vit_jax.data.images.config import ImageData
from vit_jax.data.images.open import open_images
from vit_jax.models.vit_config import ViTConfig


def a_run(source, image=8, channels=1, classes=0, seed=0, normalize="set", **data):
    model = ViTConfig(image=image, channels=channels, patch=2, classes=classes)
    return RunConfig(
        "classify", model, ImageData(source=str(source), **data), ImageAugment(normalize=normalize), seed=seed
    )


def open_dataset(run):
    """As the task opens it, which jax would have to be loaded for."""
    c = run.model
    return open_images(run.data, c.image, c.channels, normalize=run.augment.normalize, classes=c.classes, seed=run.seed)


def names(split):
    return [split.name(i) for i in range(len(split))]


def everything(split):
    return split.take(np.arange(len(split)))


def write_images(root, number=4, classes=("cat", "dog"), size=(20, 14), seed=0):
    """root/CLASS/K.png (K.jpg for odd K) of noise, `size` is (width, height)."""
    rng = np.random.default_rng(seed)
    for name in classes:
        (root / name).mkdir(parents=True)
        for k in range(number):
            Image.fromarray(rng.integers(0, 256, (*size[::-1], 3), np.uint8)).save(
                root / name / f"{k}.{'jpg' if k % 2 else 'png'}"
            )
    return root


def write_npz(path, n=20, classes=2, shape=(8, 8), seed=0, **more):
    arrays = {
        "images": np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8),
        "labels": np.arange(n) % classes,
    }
    np.savez(path, **(arrays | more))
    return path


def write_tfds(
    root,
    name="pets",
    splits=(("train", 20), ("test", 6)),
    version="1.0.0",
    label="label",
    dtype="uint8",
    stored="array_record",
    encoding="png",
):
    """A prepared TFDS set of grey 6x5 images, labels 0, 1, 0, 1, ...; returns {split: uint8 [n, 5, 6]}."""
    from array_record.python.array_record_module import ArrayRecordWriter
    from tensorflow_datasets.proto import tf_example_pb2

    folder = root / name / version
    folder.mkdir(parents=True)
    pixels, sizes = {}, {}
    for split, n in splits:
        pixels[split] = np.random.default_rng([n, len(split)]).integers(0, 256, (n, 5, 6), np.uint8)
        writer = ArrayRecordWriter(str(folder / f"{name}-{split}.{stored}-00000-of-00001"), "group_size:1")
        for i, image in enumerate(pixels[split]):
            file, example = io.BytesIO(), tf_example_pb2.Example()
            Image.fromarray(image).save(file, encoding, lossless=True)  # which is for WebP
            example.features.feature["image"].bytes_list.value.append(file.getvalue())
            example.features.feature["label"].int64_list.value.append(i % 2)
            writer.write(example.SerializeToString())
            sizes[split] = sizes.get(split, 0) + len(example.SerializeToString())
        writer.close()
    place = "tensorflow_datasets.core.features"
    features = {
        "image": {
            "pythonClassName": f"{place}.image_feature.Image",
            "image": {"shape": {"dimensions": ["5", "6", "1"]}, "dtype": dtype},
        },
        label: {"pythonClassName": f"{place}.class_label_feature.ClassLabel", "classLabel": {"numClasses": "2"}},
    }
    spec = {"pythonClassName": f"{place}.features_dict.FeaturesDict", "featuresDict": {"features": features}}
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    shards = [
        {"name": s, "numBytes": str(sizes[s]), "shardLengths": [str(n)], "filepathTemplate": template}
        for s, n in splits
    ]
    info = {"name": name, "version": version, "fileFormat": stored, "moduleName": "a.b", "splits": shards}
    (folder / "features.json").write_text(json.dumps(spec))
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / f"{label}.labels.txt").write_text("cat\ndog\n")
    return pixels
