"""The table of presets, and the untrained network of a preset, of a published size, or of a run.

`vit-SIZEPATCH`, such as vit-s16, and `PRESET-RECIPE` are made when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from ..config.dotted import replace_fields, value_at
from ..config.hints import nearest
from ..config.network import NetworkConfig
from ..config.run import RunConfig
from ..errors import Field, UserError
from ..machine.division import check_weights
from ..machine.numerics import random_key, with_fixed_settings
from ..models.vit_config import is_sized, size_of, sized_config
from ..plugins import Plugin, Table
from ..runs.values import with_fields
from .images import ImageName, published_preset
from .text import CaptionName, TextName
from .variants import PURPOSES, VARIANTS, Preset

if TYPE_CHECKING:
    from flax import nnx

    from ..models.captioner import Captioner
    from ..models.captioner_config import CaptionerConfig
    from ..models.transformer import Transformer
    from ..models.transformer_config import TransformerConfig
    from ..models.vit import ViT
    from ..models.vit_config import ViTConfig


def _ours(file: str, *names: str) -> dict[str, Plugin]:
    """Presets by names, each the function of a file with its name."""
    return {name: Plugin(f"vit_jax.presets.{file}:{name.replace('-', '_')}") for name in names}


# In the order of the help.
PRESETS: Table[Callable[[], Preset]] = Table(
    "preset",
    "presets",
    {
        **_ours("images", "digits"),
        **_ours("text", "numbers", "shapes"),
        "coco-caption": Plugin("vit_jax.extras.vectors.spec:coco_caption"),
        **_ours("text", "multi30k", "multi30k-tiny", "transformer-512x6", "denoise"),
        **_ours("images", "mnist", "mnist-stem", "mnist-20x1", "cifar10-48x4", "cifar10-48x4-distil", "cifar10-stem"),
        **_ours("images", "cifar10-128x6", "cifar10-128x6-gap", "cifar10-256x6", "cifar100-256x24", "cifar100-768x3"),
        **_ours("images", "vit-1024x6", "distil-1024x6", "finetune"),
    },
)
Count = int | None  # of classes, or of pixels; None: as the network is otherwise
DEFAULT, FINETUNE = "digits", "finetune"  # the preset of a command that names none, and with --init


def is_preset(name: str) -> bool:
    """Whether `preset` knows this name."""
    return name in VARIANTS or is_sized(name) or name in PRESETS


def preset(name: str) -> Preset:
    """The preset with this name."""
    if not isinstance(name, str):
        raise UserError("name", f"is {name!r:.40}", "give the name of a preset, such as 'digits'")
    if name in VARIANTS:
        base, _, kind = name.rpartition("-")
        variant, purpose = VARIANTS[name], PURPOSES[kind]
        help = f"As {base}, with other settings: {purpose}. {variant.help}"
        return Preset(replace_fields(PRESETS[base]().run, variant.fields), f"{base}: {purpose}", help)
    if is_sized(name):
        return published_preset(name)
    if name in PRESETS:
        made = PRESETS[name]
        with PRESETS.blaming(name):
            return made()
    if ours := size_of(name):
        raise UserError(f"there is no preset {name[:60]!r}", remedy=f"here it is {ours}")
    known = [*PRESETS.plugins(), *VARIANTS, "vit-s16", "vit-b16", "vit-b32"]
    raise UserError(f"there is no preset {name[:60]!r}{nearest(name, known)}")


@overload
def build(
    what: ImageName | RunConfig[ViTConfig], classes: Count = None, image: Count = None, seed: int = 0, **fields: Any
) -> ViT: ...
@overload
def build(
    what: TextName | RunConfig[TransformerConfig],
    classes: Count = None,
    image: Count = None,
    seed: int = 0,
    **fields: Any,
) -> Transformer: ...
@overload
def build(
    what: CaptionName | RunConfig[CaptionerConfig],
    classes: Count = None,
    image: Count = None,
    seed: int = 0,
    **fields: Any,
) -> Captioner: ...
@overload
def build(
    what: str | RunConfig, classes: Count = None, image: Count = None, seed: int = 0, **fields: Any
) -> nnx.Module: ...
@with_fixed_settings
def build(what: str | RunConfig, classes: Count = None, image: Count = None, seed: int = 0, **fields: Any) -> Any:
    """An untrained network: a Vision Transformer of a published size, or that of a preset or a run.

    Args:
        what: vit-SIZEPATCH (vit-ti16, vit-s16, vit-b32, vit-l16, vit-h14, vit-g14), a preset's name, or a run, such as
            `vit_jax.preset("digits").run`.
        classes: K; None: 1000 of a size, else those of the preset.
        image: height and width of an image, in pixels; None: 224 of a size, else that of the preset.
        fields: others of the network's config, such as pool="mean".

    Returns:
        A ViT, a Transformer or a Captioner.

    Raises:
        UserError: for an unknown name, a field that is out of range or that the preset leaves to its data, or a network
            that is too large for this machine.
    """
    from flax import nnx

    from ..models.build import network_class

    stated = fields | {name: x for name, x in (("classes", classes), ("image", image)) if x is not None}
    config = _config(what, stated)
    config.check()
    check_weights(config)
    return network_class(config)(config, rngs=nnx.Rngs(random_key(seed)))


def _config(what: str | RunConfig, stated: dict[str, Any]) -> NetworkConfig:
    """The config with what is stated. Raises UserError."""
    if isinstance(what, str) and (is_sized(what) or size_of(what)):
        return sized_config(what, **{"classes": 1000, "image": 224} | stated)
    if not isinstance(what, (str, RunConfig)):
        raise UserError(f"what is a {type(what).__name__}", remedy="give the name of a size or a preset, or a run")
    run = preset(what).run if isinstance(what, str) else what
    config = with_fields(run, {f"model.{name}": value for name, value in stated.items()}).model
    open_ = [name for name in config.marked("from_data") if not value_at(config, name) and name not in stated]
    if open_:
        counts = ", ".join(f'**{{"{name}": ...}}' if "." in name else f"{name}=..." for name in open_)
        raise UserError(Field(f"model.{open_[0]}"), "is what the data decides", f"give {counts}")
    return config
