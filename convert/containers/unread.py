"""Files and folders of other programs that are not read: how each is known, what it is, and what to do instead."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable
from typing import NamedTuple

from vit_jax.errors import UserError

FROM_ITS_LIBRARY = "save it from its library as safetensors, .pt, .npz or msgpack"
BEFORE = "give the weights that it was made from"
UNPACK = "unpack it"

FIRST_BYTES = (  # of a file, what it is, the remedy
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "run `git lfs pull`, or download it"),
    (b"\x93NUMPY", "a single array of numpy without names", "save all tensors as one .npz"),
    (b"\x89HDF", "an HDF5 file", FROM_ITS_LIBRARY),
    (b"GGUF", "a GGUF file, whose weights are quantised", BEFORE),
    (b"\x1f\x8b", "a gzip archive", UNPACK),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", UNPACK),
    (b"7z\xbc\xaf", "a 7z archive", UNPACK),
    (b"PK\x05\x06", "an empty zip archive", "get the file again"),
)


class Other(NamedTuple):
    """A kind of checkpoint, known by the name of a file of it; `{}` in the remedy is the folder of that file."""

    pattern: str
    what: str
    remedy: str


OTHERS = (
    Other(
        "*.distcp",
        "a checkpoint of torch.distributed, in parts",
        "make one file of it with torch.distributed.checkpoint.format_utils.dcp_to_torch_save({!r}, 'X.pt') and give "
        "X.pt",
    ),
    Other(
        "zero_to_fp32.py",
        "a checkpoint of DeepSpeed, in parts",
        "make one set of weights of it with `python {0}/zero_to_fp32.py {0} OUT` and give OUT",
    ),
    Other(
        "*zero_pp_rank_*.pt",
        "a checkpoint of DeepSpeed, in parts",
        "make one set of weights of it with deepspeed.utils.zero_to_fp32 and give that",
    ),
    Other(
        "target.*coder.*",
        "a checkpoint of t5x",
        "make a Flax folder of it with transformers 4 (convert_t5x_checkpoint_to_flax.py) and give that",
    ),
    Other("saved_model.pb", "a SavedModel of TensorFlow", FROM_ITS_LIBRARY),
    Other("*.ckpt*.index", "a checkpoint of TensorFlow", FROM_ITS_LIBRARY),
    Other("*.data-?????-of-?????", "a part of a checkpoint of TensorFlow", FROM_ITS_LIBRARY),
    Other("*.h5", "an HDF5 file", FROM_ITS_LIBRARY),
    Other("*.keras", "an archive of Keras", FROM_ITS_LIBRARY),
    Other("*.pdparams", "a file of PaddlePaddle", FROM_ITS_LIBRARY),
    Other("*.gguf", "a GGUF file, whose weights are quantised", BEFORE),
    *(
        Other(pattern, "a program, from which no weights are read", BEFORE)
        for pattern in ("*.onnx", "*.stablehlo", "*.tflite", "*.mlmodel", "*.mlpackage", "*.engine", "openvino_model.*")
    ),
)


def other(names: Iterable[str]) -> tuple[str, Other] | None:
    """(one of these names of files, the kind of checkpoint that it tells), or None where none tells one."""
    names = sorted(names)
    for kind in OTHERS:
        if found := fnmatch.filter(names, kind.pattern):
            return found[0], kind
    return None


def check_folder(folder: str, folders: Iterable[str] = ("",)) -> None:
    """Raise UserError where a folder, or one of these inside it, holds a checkpoint that is not read."""
    for inside in folders:
        place = os.path.join(folder, inside) if inside else folder
        if found := other(os.listdir(place)):
            name, kind = found
            raise UserError(place, f"holds {kind.what} ({name})", kind.remedy.format(place))
