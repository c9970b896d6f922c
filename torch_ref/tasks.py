"""What is learnt, in PyTorch: augmentation, losses and shifts of vit_jax/tasks, written again so that comparing the two can find a fault."""

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
    """Randomly shifted and flipped images [B, C, h, w]: a crop of the image padded with black, mirrored or not."""
    batch, _, h, w = images.shape
    if c.crop_padding:
        padded = F.pad(images, [c.crop_padding] * 4)
        top, left = torch.randint(2 * c.crop_padding + 1, (2, batch, 1), device=images.device)
        rows, columns = (
            top + torch.arange(h, device=images.device),
            left + torch.arange(w, device=images.device),
        )  # [B, h], [B, w]
        each = torch.arange(batch, device=images.device).view(-1, 1, 1)
        images = padded[each, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(
            0, 3, 1, 2
        )  # [B, h, w, C] -> [B, C, h, w]
    if c.flip:
        coin = torch.rand(batch, 1, 1, 1, device=images.device) < 0.5
        images = torch.where(coin, images.flip(3), images)
    return images


def normalised(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    """(x/255 - mean) / std, a channel at a time: uint8 [B, C, h, w] -> dtype."""
    centre, spread = (torch.tensor(values, dtype=dtype, device=images.device).view(-1, 1, 1) for values in (mean, std))
    return (images.to(dtype) / 255 - centre) / spread


def classify_loss(model: ViT, images: Tensor, labels: Tensor, c: LossConfig) -> Tensor:
    """Mean cross entropy of normalised images [B, C, h, w] and their classes [B]."""
    return F.cross_entropy(model(images), labels, label_smoothing=c.label_smoothing)


def translate_loss(model: Transformer, source: Tensor, target: Tensor, c: LossConfig) -> Tensor:
    """Mean cross entropy over the real tokens of targets [B, T], each said from those before it; ids padded with 0."""
    read, labels = shifted(target)
    logits = model(source, read, source_padding=source != PAD, target_padding=read != PAD)  # [B, T+1, V]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=c.label_smoothing)


def shifted(target: Tensor) -> tuple[Tensor, Tensor]:
    """What the decoder reads, BOS and the target, and what it is to say, the target and EOS: [B, T] -> [B, T+1] twice.

    A row that is all padding fills a batch up and says nothing.
    """
    read, labels = F.pad(target, (1, 0), value=BOS), F.pad(target, (0, 1), value=PAD)
    lengths = (target != PAD).sum(1, keepdim=True)
    end = torch.where(lengths > 0, EOS, PAD).to(target)
    return read, labels.scatter(1, lengths, end)


class Classify:
    """Classes of images: batches {image: uint8 [B, h, w, C], label [B]}."""

    def __init__(self, run: RunConfig, kept: Mapping[str, Any]):
        self.run, self.mean, self.std = run, tuple(kept["preprocess"]["mean"]), tuple(kept["preprocess"]["std"])

    @staticmethod
    def open(run: RunConfig) -> Any:
        """The data of a run. Raises UserError."""
        c, data, augment = cast(Any, (run.model, run.data, run.augment))  # of the classes that its row names
        return open_images(data, c.image, c.channels, normalize=augment.normalize, classes=c.classes, seed=run.seed)

    def loss(self, model: ViT, batch: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The loss of a batch; a model in training sees its images augmented."""
        images = batch["image"].permute(0, 3, 1, 2)  # [B, h, w, C] -> [B, C, h, w]
        images = augmented(images, self.run.augment) if model.training else images
        return classify_loss(
            model, normalised(images, self.mean, self.std, dtype), batch["label"].long(), self.run.loss
        )


class Translate:
    """Sentences from sentences: batches {source [B, S], target [B, T]}."""

    def __init__(self, run: RunConfig, kept: Mapping[str, Any]):
        self.run = run

    @staticmethod
    def open(run: RunConfig) -> Any:
        """The data of a run. Raises UserError."""
        c: Any = run.model
        wanted = {name: getattr(c, name) for name in network_of(c).from_data}
        return open_sentences(run.data, one_vocabulary=c.one_embedding, wanted=wanted, seed=run.seed)  # type: ignore[arg-type]

    def loss(self, model: Transformer, batch: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The loss of a batch."""
        return translate_loss(model, batch["source"].long(), batch["target"].long(), self.run.loss)


TASKS: dict[str, Any] = {"classify": Classify, "translate": Translate}


def task_of(run: RunConfig) -> Any:
    """The class of a run's task. Raises UserError where this reference has none."""
    if run.task not in TASKS:
        raise UserError(
            f"task is {run.task}, which the PyTorch reference does not have{nearest(run.task, list(TASKS))}"
        )
    return TASKS[run.task]
