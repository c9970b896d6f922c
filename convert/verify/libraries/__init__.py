"""Who builds a file's network independently of our tables: a library that reads the file's own names.

LIBRARIES has, for every dialect or single layout of it, who does so for `--verify` and for tests/parity alike. Nobody
is named for layouts whose modules no installable version of a library has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...layout import Layout
from ..weights import Weights
from . import timm, timm_eva, torch_nn, torch_ref, transformers, transformers_encoders, vit_pytorch
from .built import Built, NotLoaded, Unavailable, load

__all__ = [
    "LIBRARIES", "OURS", "Built", "Library", "NotLoaded", "Unavailable", "build", "library_of", "load", "stand_in",
]  # fmt: skip


@dataclass(frozen=True)
class Library:
    """A library by its name, and the function that has it build a file's network.

    The function raises Unavailable where the library has no such network, NotLoaded where it does not load the file,
    and ImportError where it is not installed.
    """

    name: str
    build: Callable[[Weights], Built]


OURS = ("vit-jax", "torch-ref")  # dialects of this project: each of its two networks is the other's independent check
_NEWER = Library("vit-pytorch", vit_pytorch.vit_pytorch)
_WRAPPER = Library("vit-pytorch", vit_pytorch.load_distilled)
_GOOGLE = Library("timm", timm.google)
_SENTENCES = Library("transformers", transformers.sentences)
LIBRARIES: dict[str, Library] = {
    "vit-jax": Library("torch_ref", torch_ref.own_file),
    "vit-jax@resnet": Library("torchvision", torch_nn.our_resnet),
    "torch-ref": Library("torch_ref", torch_ref.torch_file),
    "timm": Library("timm", timm.own_file),
    "timm-eva": Library("timm", timm_eva.own_file),
    "torchvision": Library("torchvision", torch_nn.torchvision),
    "torchvision-resnet": Library("torchvision", torch_nn.torchvision_resnet),
    "clip": Library("timm", timm.clip),
    "dinov2": Library("timm", timm.dinov2),
    "dinov3": Library("timm", timm_eva.dinov3),
    "augreg": _GOOGLE,
    "big-vision": _GOOGLE,
    **dict.fromkeys(("vit-pytorch@1.4", "vit-pytorch@1.16", "vit-pytorch@1.16.1", "simple-vit@1.4.1"), _NEWER),
    **dict.fromkeys(("vit-pytorch-distill@1.4", "vit-pytorch-distill@1.16.5"), _WRAPPER),
    "huggingface": Library("transformers", transformers.images),
    **dict.fromkeys(transformers_encoders.TOWERS, Library("transformers", transformers_encoders.encoder)),
    "huggingface-flax": Library("transformers", transformers.flax_images),
    **dict.fromkeys(("marian", "bart", "mbart", "m2m-100", "t5", "mt5", "umt5"), _SENTENCES),
    **dict.fromkeys(("flax-seq2seq", "flax-t5"), Library("transformers", transformers.flax_sentences)),
    "vision-encoder-decoder": Library("transformers", transformers.captions),
    "torch-transformer": Library("torch", torch_nn.torch_transformer),
}


def library_of(layout: Layout) -> Library | None:
    """Who builds files of a layout independently of our table; None where nobody does."""
    return LIBRARIES.get(layout.name) or LIBRARIES.get(layout.dialect)


def build(weights: Weights) -> tuple[Built | None, str]:
    """The file's network as its library builds it -> (the network, ""), or (None, why that is not done, a clause)."""
    library, departures = library_of(weights.layout), weights.layout.departures(weights.config)
    if library is None:
        return None, f"no library is known to build {weights.layout.name}"
    if departures:
        return None, f"it is not {library.name}'s own function, as {', '.join(departures)}"
    try:
        return library.build(weights), ""
    except ImportError as error:
        return None, f"{library.name} cannot be imported ({error})"
    except Unavailable as error:
        return None, str(error)


def stand_in(weights: Weights) -> Built:
    """torch_ref's network with what our table read: it checks our two networks, not the table."""
    return torch_ref.with_parameters(weights.config, weights.parameters)
