"""A large file of weights cut into several, with the index that Hugging Face's libraries read."""

from __future__ import annotations

from pathlib import Path

from vit_jax.files.atomic import write_json

from ..containers import open_source, writer
from ..containers.folder import INDEX
from ..containers.source import Spec, Tensor


def split(path: Path, largest: int) -> list[str]:
    """Cut a file that was just written into shards beside it, which take its place. `largest` is in bytes; a larger
    tensor has a shard of its own.
    """
    with open_source(str(path)) as source:
        tensors: dict[str, Tensor] = source.tree
        groups = _groups(tensors, largest)
        if len(groups) == 1:
            return [path.name]
        kept = {name: text for name, text in source.metadata.items() if name in ("format", "provenance")}
        files = [f"{path.stem}-{i:05}-of-{len(groups):05}{path.suffix}" for i in range(1, len(groups) + 1)]
        for file, group in zip(files, groups, strict=True):
            specs = {name: Spec(tensors[name].dtype, tensors[name].shape) for name in group}
            write = writer(file)[1]
            write(str(path.with_name(file)), specs, (((name,), tensors[name].read()) for name in group), kept)
        total = sum(tensor.nbytes for tensor in tensors.values())
    index = path.with_name(f"{path.name}{INDEX}")
    listed = {name: file for file, group in zip(files, groups, strict=True) for name in group}
    write_json(index, {"metadata": {"total_size": total}, "weight_map": listed})
    path.unlink()
    return [*files, index.name]


def _groups(tensors: dict[str, Tensor], largest: int) -> list[list[str]]:
    """The names of tensors, in their order, as many together as are not larger than a shard."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if groups[-1] and size + tensor.nbytes > largest:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += tensor.nbytes
    return groups
