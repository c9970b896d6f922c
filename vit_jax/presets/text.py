"""Presets that learn texts: translations and captions."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ..augmentation.config import ImageAugment
from ..config.run import LossConfig, OptimConfig, RunConfig
from ..data.captions.config import CaptionData
from ..data.texts.config import SentenceData
from ..models.captioner_config import CaptionerConfig
from ..models.transformer_config import TransformerConfig
from ..models.vit_config import ViTConfig
from .variants import FEW_EPOCHS, Preset

# For type checkers: the names of presets whose network is a Transformer or a captioner, and what they are.
TextName = Literal["numbers", "multi30k", "multi30k-tiny", "transformer-512x6", "denoise"]
CaptionName = Literal["shapes", "coco-caption"]
TextPreset = Preset[TransformerConfig]
CaptionPreset = Preset[CaptionerConfig]


def numbers() -> Preset:
    model = TransformerConfig(
        width=64, heads=4, hidden=128, encoder_depth=2, decoder_depth=2, tie="all",
        scale_embedding=True, init="fan_in", embedding_std=0.125,
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="translate",
            model=model,
            data=SentenceData(source="numbers"),
            optim=OptimConfig(name="adam", lr=2e-3, schedule="inverse_sqrt", warmup=1.6),
            loss=LossConfig(label_smoothing=0.1),
            epochs=8,
            batch=250,
        ),
        "number words, English to German, generated",
        "English number words to German ones (twenty one thousand one: ein und zwanzig tausend eins), generated, "
        "so nothing is downloaded. It translates all of 1,000 unseen numbers below 100,000 exactly (three seeds, last "
        "step; about 70 CPU seconds each), and none that are longer than those in training. To check that it needs "
        "the sources: --data.shuffle-sources.",
    )


def shapes() -> Preset:
    model = CaptionerConfig(
        vit=ViTConfig(
            image=32, patch=8, classes=0, width=64, depth=2, heads=4, hidden=128, cls_token=False, pool="mean",
            init="fan_in", position_std=0.3,
        ),
        text=TransformerConfig(
            width=64, heads=4, hidden=128, encoder_depth=0, decoder_depth=2, max_length=12, tie="decoder",
            scale_embedding=True, init="fan_in", embedding_std=0.125,
        ),
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="caption",
            model=model,
            data=CaptionData(source="shapes"),
            augment=ImageAugment(),
            optim=OptimConfig(name="adam", lr=3e-3, beta2=0.99, warmup=0.1, clip=1.0),
            epochs=5,
            batch=64,
        ),
        "captions of drawn scenes: a ViT and a decoder; 90 seconds",
        "Scenes of two coloured shapes, which are drawn here, so nothing is downloaded, and their captions: a small "
        "red circle left of a big blue square. A ViT and a Transformer's decoder, 64 wide, 2 blocks each. Beside test "
        "there are scenes with pairs of colour and shape that training has never shown (unseen), and two controls, "
        "test with the pictures of others (shuffled) and with grey ones (blank). It also reports the share of the "
        "decoder's attention, at the word that names a shape, that lies on the patches of that shape.",
    )


def multi30k() -> Preset:
    model = TransformerConfig(
        width=128, heads=4, hidden=256, encoder_depth=4, decoder_depth=4, activation="relu", tie="all",
        dropout=0.1, output_bias=False, scale_embedding=True, init="fan_in", embedding_std=0.088,
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="translate",
            model=model,
            data=SentenceData(
                source="pairs:en-de:multi30k", tokenizer="bpe", vocabulary=4000, tokens=1920, lengths=(16, 24, 32, 96)
            ),
            optim=replace(FEW_EPOCHS, beta2=0.98, weight_decay=0.1, pct_start=0.1, clip=1.0),
            loss=LossConfig(label_smoothing=0.1),
            epochs=8,
            batch=64,
        ),
        "English to German captions of pictures, 11 minutes",
        "Multi30k, English to German, raw text: 29,000 captions of pictures in train.en, train.de, val.en, ..., as its "
        "authors publish them (--data.source pairs:en-de:FOLDER). 128 wide, 4+4 pre-norm blocks, one vocabulary of "
        "4,000 parts of words for both languages and the head, and Muon for the hidden kernels. On test 2016 its BLEU "
        "(sacrebleu, 13a, cased) is 35.4, with --beam 5 37.0, its perplexity 5.3 (one seed, last step; 11 minutes of "
        "two CPU cores).",
    )


def multi30k_tiny() -> Preset:
    model = TransformerConfig(
        width=128, heads=4, hidden=256, encoder_depth=4, decoder_depth=4, activation="relu", norm_first=False,
        final_norm=False, eps=1e-5, position="fairseq", position_offset=2, scale_embedding=True, tie="all",
        output_bias=False, dropout=0.3, embedding_dropout=0.3, embedding_std=0.088,
    )  # fmt: skip
    data = SentenceData(  # the vocabulary: 256 bytes, three special ones and 10,000 merges
        source="pairs:en-de:multi30k-tokens", tokenizer="bpe", vocabulary=10_259, tokens=8192,
        lengths=(16, 24, 32, 96), bleu="none",
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="translate",
            model=model,
            data=data,
            optim=OptimConfig(
                name="adam",
                lr=5e-3,
                beta2=0.98,
                schedule="inverse_sqrt",
                warmup_steps=2000,
                weight_decay=0.0,
                clip=25.0,
            ),
            loss=LossConfig(label_smoothing=0.1),
            epochs=111,
            batch=64,
            keep=10,
        ),
        "Multi30k by a published recipe, as tokens; on a GPU",
        "Multi30k, English to German, by the recipe of fairseq's transformer_tiny in Wu et al. 2021 (arXiv "
        "2105.14462), whose text baseline has a BLEU of 41.02 on test 2016: 128 wide, 4+4 post-norm blocks, dropout "
        "0.3, about 8,000 steps of 8,192 tokens; over five hours on two CPU cores. Not yet trained to the end here. "
        "The texts are tokens in lower case, which is another measure than that of raw text. To make the files: pip "
        "install sacremoses, and for train, val and test, of en and of de: zcat RAW/train.en.gz | sacremoses -l en "
        "tokenize | sed 's/.*/\\L&/' > multi30k-tokens/train.en. Then train; and evaluate RUN --weights mean:10 --beam "
        "5. Other than there: parts of words are made of bytes, joined where they occur twice.",
    )


def transformer_512x6() -> Preset:
    model = TransformerConfig(
        width=512, heads=6, head_width=85, hidden=2048, encoder_depth=6, decoder_depth=6,
        activation="relu", norm_first=False, final_norm=False, eps=1e-5, dropout=0.1,
        attention_dropout=0.1, activation_dropout=0.1, embedding_dropout=0.1,
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="translate",
            model=model,
            data=SentenceData(source="pairs:en-de:multi30k", tokens=4608, lengths=(12, 16, 24, 48)),
            optim=OptimConfig(name="adam", lr=5e-4, beta2=0.98, schedule="inverse_sqrt", warmup=10.0, clip=1.0),
            loss=LossConfig(label_smoothing=0.1),
            epochs=30,
            batch=64,
        ),
        "pairs of text files; encoder-decoder, 6+6 layers",
        "The encoder-decoder of a teaching notebook: 6+6 post-norm layers, 512 wide, 6 heads of 85. The notebook's "
        "network takes and returns vectors; here it has embeddings and a head, and reads files train.en, train.de, ... "
        "(--data.source pairs:en-de:FOLDER). 200 small steps on Multi30k lower the loss from 8.4 to 6.0. "
        "Corrected: positions have one frequency per pair of columns (the notebook has a single one: model.position "
        "one_frequency); padding and later target tokens are masked; the head gives logits.",
    )


def denoise() -> Preset:
    model = TransformerConfig(
        width=512, heads=8, hidden=2048, encoder_depth=6, decoder_depth=6, activation="relu", norm_kind="rms",
        bias=False, output_bias=False, position="none", max_length=0, relative="shared", scale_attention=False,
        scale_output=True, tie="all", eps=1e-6, init="t5", embedding_std=1.0,
    )  # fmt: skip
    return Preset(
        RunConfig(
            task="translate",
            model=model,
            data=SentenceData(source="", corrupt="spans", tokens=8192, lengths=(64, 128, 256, 512)),
            optim=OptimConfig(lr=1e-4, weight_decay=0.0, warmup=0.1, clip=1.0),
            epochs=1,
            batch=16,
        ),
        "a T5 (--init) trained further on your texts, by span corruption",
        "One epoch of span corruption, as T5 was pretrained, for the weights of --init (a folder of T5, mT5, ByT5, UL2 "
        "or UMT5 with its tokenizer, or a run) on texts of yours, one in a line: --data.source texts:FILE or "
        "texts:FOLDER. The run then starts another, --init runs/denoise. Of ByT5 give --data.corrupt-length 20. "
        "Without --init it is t5-small's network from random weights, and --data.tokenizer names the folder of a "
        "tokenizer. AdamW, where Google took Adafactor.",
    )
