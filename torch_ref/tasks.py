"""The tasks in PyTorch: augmentation, losses and target shifts, the counterpart of vit_jax/tasks.

They are written independently of vit_jax, so that a comparison of the two can find errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from vit_jax.config import LossConfig, RunConfig, nearest, network_of
from vit_jax.data import open_images, open_sentences
from vit_jax.errors import UserError
from vit_jax.text import BOS, EOS, PAD

from .transformer import Transformer
from .vit import ViT


def augmented(images: Tensor, c: Any) -> Tensor:
    """Randomly cropped and flipped images: uint8 [B, C, h, w] -> uint8 [B, C, h, w].

    A crop has the size of the image; it is taken from the image padded with black on all sides.
    """
    batch, _, h, w = images.shape
    if c.crop_padding:
        padded = F.pad(images, [c.crop_padding] * 4)
        top, left = torch.randint(2 * c.crop_padding + 1, (2, batch, 1), device=images.device)
        rows = top + torch.arange(h, device=images.device)  # [B, h]
        columns = left + torch.arange(w, device=images.device)  # [B, w]
        each = torch.arange(batch, device=images.device).view(-1, 1, 1)
        images = padded[each, :, rows.unsqueeze(2), columns.unsqueeze(1)]  # [B, h, w, C]
        images = images.permute(0, 3, 1, 2)  # [B, C, h, w]
    if c.flip:
        coin = torch.rand(batch, 1, 1, 1, device=images.device) < 0.5
        images = torch.where(coin, images.flip(3), images)
    return images


def normalised(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    """(x/255 - mean) / std for each channel: uint8 [B, C, h, w] -> `dtype` [B, C, h, w]."""
    centre, spread = (torch.tensor(values, dtype=dtype, device=images.device).view(-1, 1, 1) for values in (mean, std))
    return (images.to(dtype) / 255 - centre) / spread


def classify_loss(model: ViT, images: Tensor, labels: Tensor, c: LossConfig) -> Tensor:
    """The mean cross entropy [] of normalised images [B, C, h, w] with classes int64 [B]."""
    return F.cross_entropy(model(images), labels, label_smoothing=c.label_smoothing)


def translate_loss(model: Transformer, source: Tensor, target: Tensor, c: LossConfig) -> Tensor:
    """The mean cross entropy [] over the real tokens of targets int64 [B, T], given sources int64 [B, S]."""
    read, labels = shifted(target)
    logits = model(source, read, source_padding=source != PAD, target_padding=read != PAD)  # [B, T+1, V]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=c.label_smoothing)


def shifted(target: Tensor) -> tuple[Tensor, Tensor]:
    """(inputs of the decoder, its labels): BOS and the target, and the target and EOS; [B, T] -> two of [B, T+1].

    A row of padding only, which fills up a batch, has no label.
    """
    read, labels = F.pad(target, (1, 0), value=BOS), F.pad(target, (0, 1), value=PAD)
    lengths = (target != PAD).sum(1, keepdim=True)
    end = torch.where(lengths > 0, EOS, PAD).to(target)
    return read, labels.scatter(1, lengths, end)


class Classify:
    """Classification of images, in batches {image: uint8 [B, h, w, C], label [B]}."""

    def __init__(self, run: RunConfig, metadata: Mapping[str, Any]):
        preprocess = metadata["preprocess"]
        self.run, self.mean, self.std = run, tuple(preprocess["mean"]), tuple(preprocess["std"])

    @staticmethod
    def open_data(run: RunConfig) -> Any:
        """Open, check and split the data of a run. Raises UserError."""
        c, data, augment = cast(Any, (run.model, run.data, run.augment))  # their classes are those of the task's row
        how = {"normalize": augment.normalize, "mean": augment.mean, "std": augment.std}
        return open_images(data, c.image, c.channels, **how, classes=c.classes, seed=run.seed)

    def loss(self, model: ViT, batch: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The loss of a batch []; images are augmented if the model is in training mode."""
        images = batch["image"].permute(0, 3, 1, 2)  # [B, h, w, C] -> [B, C, h, w]
        images = augmented(images, self.run.augment) if model.training else images
        return classify_loss(
            model, normalised(images, self.mean, self.std, dtype), batch["label"].long(), self.run.loss
        )


class Translate:
    """Translation of sentences, in batches of ids {source [B, S], target [B, T]}."""

    def __init__(self, run: RunConfig, metadata: Mapping[str, Any]):
        self.run = run

    @staticmethod
    def open_data(run: RunConfig) -> Any:
        """Open, check and split the data of a run. Raises UserError."""
        c, data = cast(Any, (run.model, run.data))  # of the classes that its row names
        wanted = {name: getattr(c, name) for name in network_of(c).from_data}
        return open_sentences(data, one_vocabulary=c.one_embedding, wanted=wanted, seed=run.seed)

    def loss(self, model: Transformer, batch: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The loss of a batch []."""
        return translate_loss(model, batch["source"].long(), batch["target"].long(), self.run.loss)


TASKS: dict[str, Any] = {"classify": Classify, "translate": Translate}


def task_of(run: RunConfig) -> Any:
    """The class of a run's task. Raises UserError if it is not implemented here."""
    if run.task not in TASKS:
        raise UserError(
            f"task is {run.task}, which the PyTorch reference does not have{nearest(run.task, list(TASKS))}"
        )
    return TASKS[run.task]
