"""From a path or a name to a model: our runs, and through convert files of any layout."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from . import transformer, vit
from .checkpoint import Checkpoints
from .config import ModelConfig, RunConfig, TransformerConfig, ViTConfig, parameters, to_dict
from .data import Preprocess, open_image
from .errors import UserError
from .layers import merge
from .presets import sized
from .runs import Run, find, flatten, is_foreign, unflatten
from .tasks import Classify, Translate, task, translate
from .text import Vocabulary, words
from .transformer import Transformer
from .vit import ViT

HEADS = ("head.", "distill_head.")  # the parameters that belong to a run's classes
HEAD_FIELDS = ("classes", "head_bias", "distill_head", "distill_norm")  # and the fields


@dataclass(frozen=True)
class Loaded:
    """A trained network, ready for images.

    `model(images)` is the network itself, on normalised images [B, h, w, C]; `predict` starts from
    files, Pillow images or uint8 arrays and does what evaluation did in training.
    """

    model: ViT
    run: RunConfig
    preprocess: Preprocess
    class_names: tuple[str, ...]
    step: int
    task: Classify

    def pixels(self, images: Sequence[Any]) -> np.ndarray:
        """Files, Pillow images or uint8 arrays [h, w, C] as one batch: uint8 [B, h, w, C]. Raises UserError."""
        from PIL import Image

        prepared = (*self.preprocess.image, self.preprocess.channels)

        def pixels(image: Any) -> np.ndarray:
            if isinstance(image, np.ndarray):
                if image.dtype == np.uint8 and image.shape == prepared and self.preprocess.keeps(*prepared):
                    return image
                if image.dtype != np.uint8 or not (image.ndim == 2 or (image.ndim == 3 and image.shape[-1] in (1, 3, 4))):
                    raise UserError(f"images: an array is {image.dtype} {list(image.shape)}; give uint8 pixels [h, w] or [h, w, C] of 1, 3 or 4 channels")
                image = Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image)
            if prepared[-1] not in (1, 3):
                raise UserError(f"images: this network takes {prepared[-1]} channels, which image files do not have; give uint8 arrays {list(prepared)}")
            return self.preprocess.apply(open_image(image) if isinstance(image, (str, os.PathLike)) else image)

        if not len(images):
            raise UserError("images: none given; give at least one")
        return np.stack([pixels(image) for image in images])

    def logits(self, images: Sequence[Any]) -> np.ndarray:
        """Images, as `pixels` takes them, to logits: float32 [B, K]."""
        normal = self.task.images({"image": self.pixels(images)}, self.model.dtype)
        return np.asarray(_forward(self.model, normal))

    def predict(self, images: Sequence[Any], top: int = 1) -> list[list[tuple[str, float]]]:
        """The `top` most probable classes of each image, as (name, probability). Raises UserError."""
        if not self.class_names:
            raise UserError("this network has no head, so it knows no classes; give weights with one, or take logits(images)")
        probabilities = np.asarray(jax.nn.softmax(self.logits(images), axis=-1))
        order = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top]
        return [[(self.class_names[k], float(row[k])) for k in best] for row, best in zip(probabilities, order, strict=True)]


@nnx.jit
def _forward(model: ViT, images: jax.Array) -> jax.Array:
    return model(images)


@dataclass(frozen=True)
class Translator:
    """A trained network, ready for sentences. `model(source, target)` is the network itself, on ids."""

    model: Transformer
    run: RunConfig
    source: Vocabulary
    target: Vocabulary
    step: int
    task: Translate

    def ids(self, texts: Sequence[str]) -> np.ndarray:
        """Sentences as one batch: int32 [B, S], padded with 0 to the run's greatest length. Raises UserError."""
        if isinstance(texts, str) or not len(texts):
            raise UserError("texts: none given; give a list of at least one sentence")
        longest = self.run.data.lengths[-1]
        out = np.zeros((len(texts), longest), np.int32)
        for row, text in zip(out, texts, strict=True):
            ids = self.source.encode(text)
            if len(ids) > longest:
                raise UserError(f"the text {text[:40]!r} has {len(ids)} words, more than the {longest} that this run was trained for: shorten it")
            row[: len(ids)] = ids
        return out

    def translate(self, texts: Sequence[str]) -> list[str]:
        """The likeliest translation of each sentence, word by word. Raises UserError."""
        return [self.target.decode(row) for row in np.asarray(_translate(self.model, jnp.asarray(self.ids(texts)), self.task.length))]

    def attention(self, text: str) -> tuple[list[str], list[str], np.ndarray]:
        """A sentence's words, those of its translation with its end (if it has one), and which of the former each of the latter looked at: float [L, H, T, S]."""
        found, maps = self.task.attention(self.model, jnp.asarray(self.ids([text])))
        asked, said = words(text), [*self.target.decode(np.asarray(found[0])).split(), "<eos>"][: found.shape[1]]  # one that never ends has no end
        return asked, said, np.asarray(maps)[0, :, :, : len(said), : len(asked)]


_translate = nnx.jit(translate, static_argnums=2)


def build(name: str, classes: int = 1000, image: int = 224, seed: int = 0, **fields: Any) -> ViT:
    """An untrained network by name (vit-ti16, vit-s16, vit-b32, vit-l16, vit-h14, vit-g14).

    `fields` are ViTConfig's, such as pool="mean". Raises UserError on an unknown name.
    """
    return ViT(sized(name, classes, image, **fields), rngs=nnx.Rngs(seed))


def load(
    path: str | os.PathLike[str], which: str = "best", ema: bool | None = None, *, layout: str = "", model: str = "", key: str = "",
    fields: Mapping[str, Any] | None = None,
) -> Loaded | Translator | Network:  # fmt: skip
    """A network with its weights and all that it takes to use it.

    `path` is a run's folder, or its name inside runs/: a Loaded, or a Translator where the run is on sentences.
    `which` is "best" (by validation; the last where nothing was chosen) or "last". `ema` asks for the averaged
    weights; None takes them where the run kept them.

    Or it is a file or folder of any layout that `python -m convert formats` lists, or hf://owner/name: a Loaded where
    it says how images become inputs, else a Network. What its tensors cannot tell is said as to `python -m convert`:
    `layout` (--from), `model`, `key`, `fields` ({"heads": 12}, --set). Weights become float32; float64 ones stay.
    Raises UserError.
    """
    path = os.fspath(path)
    if is_foreign(path):
        return _foreign(path, layout=layout, model=model, key=key, sets=fields or {})
    folder = find(path)
    record = folder.record()
    run = folder.config()
    step, tree = weights(folder, run.model, which, ema)
    network = _network(run, tree)
    if isinstance(run.model, TransformerConfig):
        source, target = (Vocabulary(record["vocabulary"][side]) for side in ("source", "target"))
        its = task(run)
        assert isinstance(its, Translate) and isinstance(network, Transformer)
        return Translator(network, run, source, target, step, its)
    return _loaded(network, run, record["preprocess"], record["class_names"], step)


@dataclass(frozen=True)
class Network:
    """A network from a file that does not say how its inputs are made: `model` is called on normalised images, or on ids."""

    model: ViT | Transformer
    run: RunConfig


def _network(run: RunConfig, tree: dict[str, Any]) -> ViT | Transformer:
    """A run's network with these parameters (a nested dict of arrays)."""
    if run.compute_dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    network = vit if isinstance(run.model, ViTConfig) else transformer
    return merge(network.definition(run.model, dtype=jnp.dtype(run.compute_dtype)), jax.tree.map(jnp.asarray, tree))


def _loaded(network: Any, run: RunConfig, preprocess: dict[str, Any], class_names: Sequence[str], step: int) -> Loaded:
    how = Preprocess.from_dict(preprocess)
    its = task(run, how.mean, how.std)
    assert isinstance(its, Classify)
    return Loaded(network, run, how, tuple(class_names), step, its)


def _foreign(path: str, **said: Any) -> Loaded | Network:
    """A file of another layout as a network of ours."""
    config, facts, arrays = converted(path, **said)
    double = any(x.dtype == np.float64 for x in arrays.values())
    kind = "classify" if isinstance(config, ViTConfig) else "translate"
    run = RunConfig(task=kind, model=config, compute_dtype="float64" if double else "float32")  # type: ignore[arg-type]
    network = _network(run, unflatten(arrays))
    if facts.preprocess is None or not isinstance(config, ViTConfig):
        return Network(network, run)
    names = facts.class_names or [str(k) for k in range(config.classes)]
    return _loaded(network, run, facts.preprocess, names, 0)


def converted(path: str, **said: Any) -> tuple[ModelConfig, Any, dict[str, np.ndarray]]:
    """(config, what else the file says, {our dotted name: float32 array, or float64 where it is}) of a file of any layout.

    `said` are convert.reading.Options' fields. Raises UserError.
    """
    from convert.reading import Options, read
    from convert.road import plan, stream

    reading = read(path, Options(**said))
    with reading.source:
        way = plan(reading, "vit-jax")
        arrays = {name: x if x.dtype == np.float64 else x.astype(np.float32) for name, x in stream(way) if name in way.specs}
    return way.config, way.facts, arrays


def convert_first(error: UserError, path: str) -> UserError:
    """An error of the bridge for a command that has none of the flags which its remedy names: convert has."""
    if not re.search(r"--(accept|file|from|key|model|set|step)(?![\w.-])", str(error)):
        return error
    return UserError(f"{error}: do so in `python -m convert {shlex.quote(path)} X.safetensors`, then give X.safetensors here")


def weights(folder: Run, model: ModelConfig, which: str = "best", ema: bool | None = None) -> tuple[int, dict[str, Any]]:
    """(step, parameters as a nested dict of numpy arrays), as `load` chooses them.

    Damaged checkpoints that were passed over are named on stderr. Raises UserError.
    """
    checkpoints, shapes = Checkpoints(folder), {n: np.broadcast_to(np.float32(0), s) for n, s in parameters(model).items()}
    saved, skipped = checkpoints.restore(shapes)
    if saved is None:
        raise UserError(f"{folder}: nothing has been saved here yet; let it train until its first checkpoint")
    for reason in skipped:
        print(f"skipped  {reason}", file=sys.stderr)
    best = (saved.notes.get("best") or {}).get("step")
    if which == "best" and best is not None and best != saved.step:
        try:
            saved = checkpoints.read(best, shapes)
        except UserError as error:
            raise UserError(f"{folder}: the best weights cannot be used, {error}; take the last with --weights last") from error
    averaged = saved.state.ema
    if ema and averaged is None:
        raise UserError(f"{folder}: keeps no averaged weights; train with --ema 0.999 to have them")
    chosen = averaged if averaged is not None and ema is not False else saved.state.parameters
    return saved.step, chosen


def export(path: str | os.PathLike[str], file: str | os.PathLike[str], which: str = "best", ema: bool | None = None) -> None:
    """Write a run's weights, chosen as in `load`, to FILE.safetensors under our dotted names, whole or not at all.

    Its metadata has the run's config. `--init FILE` takes it here and in torch_ref. Raises UserError, also where
    the file exists.
    """
    from safetensors.numpy import save_file

    file, folder = Path(file), find(os.fspath(path))
    if file.suffix != ".safetensors" or file.exists():
        raise UserError(f"{file}: {'exists; choose another name' if file.exists() else 'is not named .safetensors; name it so'}")
    _, tree = weights(folder, folder.config().model, which, ema)
    tensors = {name: np.ascontiguousarray(x) for name, x in flatten(tree).items()}
    partial = file.with_name(file.name + ".tmp")
    save_file(tensors, partial, metadata={"format": "vit-jax", "config": json.dumps(to_dict(folder.config()))})
    os.replace(partial, file)


def starting_weights(run: RunConfig, fresh: dict[str, Any]) -> dict[str, Any]:
    """Parameters for a run with `init`: another run's or a file's, over the random ones in `fresh` (flat).

    Everything must be there with the same shape; only the head may be left out, with `new_head`.
    Raises UserError naming the first parameter that does not fit.
    """
    source, given = _given(run)
    given = {name: x for name, x in given.items() if not (run.new_head and name.startswith(HEADS))}
    for name, array in fresh.items():
        if name in given and given[name].shape != array.shape:
            hint = "add --new-head to start the head anew" if name.startswith(HEADS) else f"give the model fields of {source}"
            raise UserError(f"init {run.init}: {name} is {list(given[name].shape)} there and {list(array.shape)} here; {hint}")
        if name not in given and not (run.new_head and name.startswith(HEADS)):
            raise UserError(f"init {run.init}: has no {name}; give the model fields of {source}")
    if unclaimed := sorted(given.keys() - fresh.keys()):
        raise UserError(f"init {run.init}: its {unclaimed[0]} has no place in this network; give the model fields of {source}")
    return {**fresh, **given}


def _given(run: RunConfig) -> tuple[str, dict[str, Any]]:
    """(where a run's starting weights come from, {dotted name: array}): another run, or a file of any layout."""
    if not is_foreign(run.init, run.dir):
        source = find(run.init, run.dir)
        return str(source), flatten(weights(source, source.config().model)[1])
    from convert.layout import function_fields, normal

    # What neither the file nor its side files tell is as this run has it; what they tell must not differ.
    try:
        config, _, arrays = converted(run.init, otherwise=run.model, unfit="give this run the fields of the file, as in --model.image 32 --model.patch 4")
    except UserError as error:
        raise UserError(f"init {convert_first(error, run.init)}") from error
    theirs, mine = normal(config), normal(run.model)
    other = [n for n in function_fields(type(mine)) if getattr(theirs, n) != getattr(mine, n) and not (run.new_head and n in HEAD_FIELDS)]
    if other:
        said = ", ".join(f"its {n} is {getattr(theirs, n)!r}, here it is {getattr(mine, n)!r}" for n in other)
        flags = [_flag(n, getattr(theirs, n)) for n in other if n != "classes"]
        hints = [f"give {' '.join(flags)}"] * bool(flags) + ["add --new-head to start the head anew"] * ("classes" in other)
        raise UserError(f"init {run.init}: {said}; {' and '.join(hints)}")
    return run.init, arrays


def _flag(name: str, value: Any) -> str:
    """How the command of training is told a field of its network."""
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--model.{'' if value else 'no-'}{name}"
    return f"--model.{name} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
