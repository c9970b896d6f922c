"""The tasks in PyTorch: augmentation, losses, target shifts and metrics, the counterpart of vit_jax/tasks.

They are written independently of vit_jax, so that a comparison of the two can find errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, assert_never

import torch
from torch import Tensor
from torch.nn import functional as F

from vit_jax.config.hints import nearest
from vit_jax.config.run import LossConfig, RunConfig
from vit_jax.data.captions.config import CaptionData
from vit_jax.data.captions.open import open_captions
from vit_jax.data.images.config import ImageData
from vit_jax.data.images.open import open_images
from vit_jax.data.texts.config import SentenceData
from vit_jax.data.texts.open import open_sentences
from vit_jax.errors import Field, UserError
from vit_jax.extras.vectors.spec import FeatureData
from vit_jax.extras.vectors.vectors import open_features
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.tasks.classify.distil_spec import DistilLoss
from vit_jax.text.record import open_one, open_tokenizers
from vit_jax.text.tokenizer import Ids

from .captioner import Captioner
from .decode import likeliest
from .labels import Labels, class_loss
from .transformer import Transformer
from .vit import ViT


def augment(images: Tensor, c: Any) -> Tensor:
    """Randomly cropped and flipped images: images uint8 [B, C, h, w] -> uint8 [B, C, h, w].

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


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    """Images as a network takes them: (x/255 - mean) / std for each channel. Shapes: images uint8 [B, C, h, w] ->
    `dtype` [B, C, h, w].
    """
    centre, spread = (torch.tensor(values, dtype=dtype, device=images.device).view(-1, 1, 1) for values in (mean, std))
    return (images.to(dtype) / 255 - centre) / spread


def cross_entropy(logits: Tensor, labels: Tensor, c: LossConfig) -> Tensor:
    """The mean cross entropy: logits [N, K], labels int64 [N] -> []."""
    if c.smoothing == "torch":
        return F.cross_entropy(logits, labels, label_smoothing=c.label_smoothing)
    if c.smoothing != "fairseq":
        assert_never(c.smoothing)
    log_p, e, other = F.log_softmax(logits, -1), c.label_smoothing, c.label_smoothing / (logits.shape[1] - 1)
    right = F.nll_loss(log_p, labels, reduction="none")
    losses = (1 - e - other) * right - other * log_p.sum(1)
    return losses[labels != -100].mean()


def distil_loss(logits: Tensor, distilled: Tensor, teacher: Tensor, labels: Tensor, c: DistilLoss) -> Tensor:
    """The loss [] of the logits [B, K] of a student's two heads, of a teacher's [B, K], and classes int64 [B]."""
    from_labels = class_loss(logits, labels, c, None)
    if c.hard:
        taught = F.cross_entropy(distilled, teacher.argmax(-1))
    else:
        log_q, p = F.log_softmax(distilled / c.temperature, -1), F.softmax(teacher / c.temperature, -1)
        taught = F.kl_div(log_q, p, reduction="sum") * c.temperature**2
        taught = taught / (distilled.numel() if c.divide_by_classes else len(distilled))
    return (1 - c.alpha) * from_labels + c.alpha * taught


def translate_loss(
    model: Transformer, source: Tensor, target: Tensor, c: LossConfig, ids: Ids, source_pad: int
) -> Tensor:
    """The mean cross entropy over the real tokens of targets: source int64 [B, S], target int64 [B, T] -> []."""
    read, labels = shift_target(target, ids)
    logits = model(source, read, source_padding=source != source_pad, target_padding=real(target, ids))  # [B, T+1, V]
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), c)


def shift_target(target: Tensor, ids: Ids) -> tuple[Tensor, Tensor]:
    """What the decoder reads of targets, and what it has to say: target int64 [B, T]."""
    read, labels = F.pad(target, (1, 0), value=ids.begin), F.pad(target, (0, 1), value=ids.pad)
    lengths = (target != ids.pad).sum(1, keepdim=True)
    labels = labels.scatter(1, lengths, ids.end)
    return read, labels.masked_fill(~real(target, ids) | (lengths == 0), -100)


def real(target: Tensor, ids: Ids) -> Tensor:
    """Where the decoder reads more than padding, [B, T+1]: the begin and the tokens of targets [B, T]."""
    return F.pad(target != ids.pad, (1, 0), value=True)


def classify_metrics(logits: Tensor, labels: Tensor, averaged: Tensor | None = None) -> dict[str, float]:
    """The metrics of n images, counted over all images: logits [n, K], labels int64 [n]."""
    n, classes = logits.shape
    order = logits.argsort(stable=True, dim=-1, descending=True)  # of equal logits the first class comes first
    predicted = order[:, 0]
    confusion = torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes).double()
    right, true, found = confusion.diag(), confusion.sum(1), confusion.sum(0)
    over = torch.arange(classes) if averaged is None else averaged
    metrics = {
        "loss": F.cross_entropy(logits.float() if logits.dtype != torch.float64 else logits, labels, reduction="none"),
        "accuracy": (predicted == labels).double(),
        "balanced_accuracy": (right / true)[true > 0],
    }
    if classes > 5:
        metrics["accuracy_top5"] = (order[:, :5] == labels[:, None]).any(1).double()
    total = right.sum() / n  # of all classes precision, recall and F1 are the same share
    each = {
        "precision": (right / found.clamp(min=1), total),
        "recall": (right / true.clamp(min=1), total),
        "f1": (2 * right / (found + true).clamp(min=1), total),
    }
    metrics |= {f"{name}_macro": values[over] for name, (values, _) in each.items()}
    metrics |= {f"{name}_micro": value for name, (_, value) in each.items()}
    return {name: values.double().mean().item() for name, values in metrics.items()}


class Classify:
    """Classification of images, in batches {image: uint8 [B, h, w, C], label [B]}."""

    def __init__(self, run: RunConfig, metadata: Mapping[str, Any]):
        preprocess = metadata["preprocess"]
        self.run, self.mean, self.std = run, tuple(preprocess["mean"]), tuple(preprocess["std"])
        self.labels = Labels(run.loss, metadata)
        self.selection = self.labels.selection  # the metric of the best weights, and its sign

    @staticmethod
    def open_data(run: RunConfig) -> Any:
        """Open, check and split the data of a run."""
        c, data = run.model, run.data
        assert isinstance(c, ViTConfig) and isinstance(data, ImageData)
        how = {name: getattr(run.augment, name) for name in ("normalize", "mean", "std", "repeats")}
        return open_images(data, c.image, c.channels, **how, classes=c.classes, seed=run.seed)

    def loss(self, model: ViT, batch: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The loss of a batch []; images are augmented if the model is in training mode."""
        images = batch["image"].permute(0, 3, 1, 2)  # [B, h, w, C] -> [B, C, h, w]
        images = augment(images, self.run.augment) if model.training else images
        return self.labels.loss(model(normalise(images, self.mean, self.std, dtype)), batch["label"])

    def outputs(self, model: ViT, batch: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """The logits [B, K] of a batch."""
        images = batch["image"].permute(0, 3, 1, 2)
        return {"logits": model(normalise(images, self.mean, self.std, dtype))}

    def metrics(self, split: Any, out: Mapping[str, Tensor]) -> dict[str, float]:
        """The metrics of a split, from the outputs of all its examples."""
        if self.labels.kind != "class":
            return self.labels.metrics(out["logits"], torch.as_tensor(split.labels))
        averaged = None if split.classes is None else torch.as_tensor(split.classes)
        return classify_metrics(out["logits"], torch.as_tensor(split.labels).long(), averaged)


class Translate:
    """Translation of sentences, in batches of ids {source [B, S], target [B, T]}."""

    selection: ClassVar[tuple[str, int]] = ("exact_match", 1)

    def __init__(self, run: RunConfig, metadata: Mapping[str, Any]):
        self.run, (source, target) = run, open_tokenizers(metadata)
        self.ids, self.source_pad = target.ids, source.ids.pad
        self.hook: Any = None  # of the row of padding

    @staticmethod
    def open_data(run: RunConfig) -> Any:
        """Open, check and split the data of a run."""
        c, data = run.model, run.data
        assert isinstance(c, TransformerConfig) and isinstance(data, SentenceData)
        wanted = {name: getattr(c, name) for name in c.marked("from_data")}
        return open_sentences(data, one_vocabulary=c.one_embedding, wanted=wanted, seed=run.seed)

    def loss(self, model: Transformer, batch: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The loss of a batch []. Where a target begins with padding whose row is zero (Marian), it stays zero."""
        if self.hook is None and self.ids.begin == self.ids.pad and model.table is not None:
            weight, row = model.table.weight, torch.tensor([self.ids.pad])
            self.hook = weight.register_hook(lambda g: g if weight[row].any() else g.index_fill(0, row.to(g.device), 0))
        source, target = batch["source"].long(), batch["target"].long()
        return translate_loss(model, source, target, self.run.loss, self.ids, self.source_pad)

    def outputs(self, model: Transformer, batch: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """For each sentence: the sum of its losses, its tokens, how many are predicted right, and its translation."""
        source, target, ids = batch["source"].long(), batch["target"].long(), self.ids
        read, labels = shift_target(target, ids)
        padding = source != self.source_pad
        memory = model.encode(source, source_padding=padding)
        logits = model(source, read, source_padding=padding, target_padding=real(target, ids))
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
        data = self.run.data
        assert isinstance(data, SentenceData)
        return {
            "loss": losses.double().sum(1),
            "tokens": (labels != -100).sum(1),
            "right": (logits.argmax(-1) == labels).sum(1),
            "predicted": likeliest(model, memory, padding, data.lengths[-1], ids),
        }

    def metrics(self, split: Any, out: Mapping[str, Tensor]) -> dict[str, float]:
        """The metrics of all sentences of a split: split int [n, T]."""
        target, tokens = torch.as_tensor(split.target).long(), out["tokens"].sum().item()
        truth = F.pad(target, (0, out["predicted"].shape[1] - target.shape[1]), value=self.ids.pad)
        unknown = -1 if self.ids.unknown is None else self.ids.unknown
        exact = ((out["predicted"] == truth) & (truth != unknown)).all(1)
        return {
            "loss": out["loss"].sum().item() / tokens,
            "accuracy": out["right"].sum().item() / tokens,
            "exact_match": exact.double().mean().item(),
        }


class Caption:
    """Captions of images, in batches {image: uint8 [B, h, w, C], target: ids [B, T]}."""

    selection: ClassVar[tuple[str, int]] = ("exact_match", 1)

    def __init__(self, run: RunConfig, metadata: Mapping[str, Any]):
        preprocess = metadata["preprocess"]
        self.run, self.mean, self.std = run, tuple(preprocess["mean"]), tuple(preprocess["std"])
        self.ids = open_one("words", metadata).ids

    @staticmethod
    def open_data(run: RunConfig) -> Any:
        """Open, check and split the data of a run."""
        c, data = run.model, run.data
        assert isinstance(c, CaptionerConfig) and isinstance(data, CaptionData)
        how = {name: getattr(run.augment, name) for name in ("normalize", "mean", "std")}
        return open_captions(data, c.vit.image, c.vit.channels, c.vit.grid, **how, words=c.text.outputs, seed=run.seed)

    def inputs(self, batch: Mapping[str, Tensor], dtype: torch.dtype, training: bool) -> Tensor:
        """The network's input of a batch: normalised images [B, C, h, w], augmented in training."""
        images = batch["image"].permute(0, 3, 1, 2)  # [B, h, w, C] -> [B, C, h, w]
        images = augment(images, self.run.augment) if training else images
        return normalise(images, self.mean, self.std, dtype)

    def loss(self, model: Captioner, batch: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The loss of a batch []."""
        read, labels = shift_target(batch["target"].long(), self.ids)
        logits = model(self.inputs(batch, dtype, model.training), read)
        return cross_entropy(logits.flatten(0, 1), labels.flatten(), self.run.loss)

    def outputs(self, model: Captioner, batch: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """For each example: the sum of its losses, its tokens, how many are predicted right, and its caption."""
        given, data = self.inputs(batch, dtype, training=False), self.run.data
        assert isinstance(data, CaptionData | FeatureData)
        read, labels = shift_target(batch["target"].long(), self.ids)
        logits = model(given, read)
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
        return {
            "loss": losses.double().sum(1),
            "tokens": (labels != -100).sum(1),
            "right": (logits.argmax(-1) == labels).sum(1),
            "predicted": likeliest(model, model.encode(given), None, data.length, self.ids),
        }

    def metrics(self, split: Any, out: Mapping[str, Tensor]) -> dict[str, float]:
        """The metrics of all captions of a split: split int [n, T]."""
        target, tokens = torch.as_tensor(split.target).long(), out["tokens"].sum().item()
        truth = F.pad(target, (0, out["predicted"].shape[1] - target.shape[1]), value=self.ids.pad)
        unknown = -1 if self.ids.unknown is None else self.ids.unknown
        exact = ((out["predicted"] == truth) & (truth != unknown)).all(1)
        return {
            "loss": out["loss"].sum().item() / tokens,
            "accuracy": out["right"].sum().item() / tokens,
            "exact_match": exact.double().mean().item(),
        }


class CaptionFeatures(Caption):
    """Captions of vectors, in batches {vectors: float32 [B, 1, C], target: ids [B, T]}.

    The best weights are those of the best exact match: CIDEr-D, by which vit_jax chooses, is not written again here.
    """

    def __init__(self, run: RunConfig, metadata: Mapping[str, Any]):
        self.run, self.ids = run, open_one("words", metadata).ids

    @staticmethod
    def open_data(run: RunConfig) -> Any:
        """Open, check and split the data of a run."""
        c, data = run.model, run.data
        assert isinstance(c, CaptionerConfig) and isinstance(data, FeatureData)
        return open_features(data, c.memory_width, c.text.outputs, run.seed)

    def inputs(self, batch: Mapping[str, Tensor], dtype: torch.dtype, training: bool) -> Tensor:
        """The network's input of a batch: its vectors [B, 1, C]."""
        return batch["vectors"].to(dtype)


TASKS: dict[str, Any] = {
    "caption": Caption,
    "caption-features": CaptionFeatures,
    "classify": Classify,
    "translate": Translate,
}


def task_of(run: RunConfig) -> Any:
    """The class of a run's task."""
    if run.task not in TASKS:
        raise UserError(
            Field("task"), f"is {run.task}, which the PyTorch reference does not have{nearest(run.task, list(TASKS))}"
        )
    return TASKS[run.task]
