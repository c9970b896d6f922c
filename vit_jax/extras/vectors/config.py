"""The config of a run on vectors of pictures with captions."""

from __future__ import annotations

from dataclasses import dataclass

from ...config.fields import identity
from ...config.run import DataConfig


@dataclass(frozen=True)
class FeatureData(DataConfig):
    """The source of pictures with captions, of which another network has made a vector each."""

    source: str = identity(
        "coco-features:coco_captioning",
        "coco-features:FOLDER, with coco2014_captions.h5, coco2014_vocab.json and train2014_vgg16_fc7_pca.h5 (or "
        "another width: train2014_vgg16_fc7.h5), and the same of val2014, as the course cs231n hands them out (extra: "
        "captions)",
        place=True,
    )
    validation: float = identity(
        0.05,
        "share of train, by picture, drawn by seed, for validation if the folder has no val2014; 0: none",
        at_least=0,
        below=1,
    )
    test: float = identity(
        0.05, "share of train, by picture, the same for every seed, for the final test; 0: none", at_least=0, below=1
    )
    length: int = identity(17, "most tokens of a caption, <END> included; longer captions are refused", at_least=2)
