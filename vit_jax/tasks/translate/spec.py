"""The spec of translate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...config.dotted import replace_fields, value_at
from ...config.network import NetworkConfig
from ...config.outputs import SIDES, TRAINED, WORDS
from ...config.run import NO_DATA, OptimConfig, RunConfig
from ...data.captions.config import CaptionData
from ...data.texts.config import LEAST, TEXTS, SentenceData, is_side, numbered_words, size_of_side
from ...errors import Field, UserError, fields_inside
from ...files.lines import quote
from ...models.transformer_config import TransformerConfig
from ...text.record import make_tokenizers, record_tokenizers
from ..spec import MetadataEntry, StandIn, TaskSpec, check_length, vocabulary_of, with_sizes

USUAL_LENGTH = 512  # tokens of a text, of networks without a limit: as long as T5 was trained with


class Vocabularies(MetadataEntry[TransformerConfig]):
    """The words of both sides, {source: ..., target: ...}.

    Each is a list of words, or of other tokenizers {"size": ids, "tokenizer": digest of its files}.
    """

    def valid(self, value: Any) -> bool:
        return isinstance(value, dict) and value.keys() == set(SIDES) and all(map(is_side, value.values()))

    def fits(self, value: Any, model: TransformerConfig) -> bool:
        sizes = size_of_side(value["source"]), size_of_side(value["target"])
        return model.outputs > 0 and sizes == (model.source_vocabulary, model.target_vocabulary)

    def part_lacking(self, model: TransformerConfig) -> str:
        """The head, which models such as BartModel have not, and the decoder, which T5EncoderModel has not."""
        lacking = "a head" if model.decoder_depth else "a decoder and a head"
        return "" if model.outputs else f"{lacking}, which writes no texts"

    def default(self, model: TransformerConfig) -> tuple[dict[str, list[str]], str]:
        """Numbers as words -> ({side: words}, a note)."""
        if not (model.source_vocabulary and model.target_vocabulary and model.outputs):
            raise UserError(
                "a run of the task translate has words, but this network takes or gives vectors",
                remedy="write it as FILE.safetensors",
            )
        sizes = {"source": model.source_vocabulary, "target": model.target_vocabulary}
        return {side: numbered_words(size) for side, size in sizes.items()}, "words are called by their ids"

    def conflict(self, given: Any, wanted: Any) -> str:
        """A clause naming the first difference of two equally large sides; empty if either has only numbers."""
        for side in SIDES:
            a, b = given[side], wanted[side]
            if size_of_side(a) != size_of_side(b) or a == b or numbered_words(size_of_side(b)) in (a, b):
                continue
            if isinstance(a, Mapping) or isinstance(b, Mapping):
                return f"its {side} tokenizer is another than here"
            i = next(i for i, pair in enumerate(zip(a, b, strict=True)) if pair[0] != pair[1])
            return f"its {side} id {i} is {quote(a[i])} and here it is {quote(b[i])}"
        return ""

    def in_files(self, value: Any) -> bool:
        return any(isinstance(value[side], Mapping) for side in SIDES)


def parts(run: RunConfig) -> tuple[TransformerConfig, SentenceData]:
    """The network and the data of a run that translates."""
    return run.model, run.data  # type: ignore[return-value]


class TranslateSpec(TaskSpec):
    """Sentences to sentences, word by word."""

    network = TransformerConfig
    data = SentenceData
    computes = "vit_jax.tasks.translate.learn:Translate"
    main_metrics: ClassVar = {
        **{"exact_match": "exact match", "bleu": "BLEU", "bleu_lower": "BLEU in lower case", "chrf": "chrF"},
        **{"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rouge_l": "ROUGE-L", "rouge_lsum": "ROUGE-Lsum"},
        **{"accuracy": "accuracy", "perplexity": "perplexity", "loss": "loss"},
    }
    metadata: ClassVar = {"vocabulary": Vocabularies()}
    pipeline = "translation"
    unit = "sentences"

    @classmethod
    def check(cls, run: RunConfig) -> None:
        model, data = parts(run)
        if not model.encoder_depth:
            raise UserError(
                Field("model.encoder_depth"), "is 0, but sources are words, which need an encoder", "give 1 or more"
            )
        check_network(run.model, max(1, model.source_vocabulary, model.target_vocabulary, model.outputs))
        if not data.lengths or list(data.lengths) != sorted(set(data.lengths)):
            raise UserError(Field("data.lengths"), f"is {list(data.lengths)}", "give ascending numbers")
        check_tokenizer(data)
        check_languages(data)
        check_corrupt(data)
        if data.tokens < data.lengths[-1]:
            raise UserError(
                Field("data.tokens"),
                f"is {data.tokens}, which is less than one sentence of {data.lengths[-1]} tokens, the last of "
                "data.lengths",
                f"give at least {data.lengths[-1]}",
            )
        check_decoder(model, "model", data.lengths[-1], "the last of data.lengths")

    @classmethod
    def stand_in(cls, run: RunConfig, length: int = 0) -> StandIn:
        """Sentences of one length; of the tokenizer that the data has trained as many ids as it may have."""
        data = parts(run)[1]
        sizes = dict.fromkeys(run.model.marked("from_data"), vocabulary_of(data))
        if data.source == "numbers" and data.tokenizer == WORDS:
            sizes = number_words(parts(run)[0])
        run = with_sizes(run, sizes)
        c, n = parts(run)[0], check_length(length, data.lengths[-1], "the last of data.lengths")
        sides = {"source": c.source_vocabulary, "target": c.target_vocabulary}
        metadata = {"vocabulary": {side: numbered_words(size) for side, size in sides.items()}}
        of_training, of_evaluation = (
            {"source": ((rows, n), "int32"), "target": ((rows, n - 1), "int32")}
            for rows in (data.tokens // n, run.batch)
        )
        return StandIn(run, metadata, of_training, of_evaluation, n)

    @classmethod
    def untrained(cls, task: str, model: Any) -> RunConfig:
        """A run with this network that was never trained, on sentences as long as it takes."""
        longest = max(model.max_length or USUAL_LENGTH, 2)
        data = SentenceData(source=NO_DATA, lengths=(longest,), tokens=max(longest, 768))
        return RunConfig(task, model, data, optim=OptimConfig(name="sgd"))

    @classmethod
    def metadata_with_weights(cls, run: RunConfig) -> dict[str, Any]:
        c, data = parts(run)
        return record_tokenizers(*make_tokenizers(data.tokenizer, 0, (), (), c.one_embedding, data.spoken, data.task))


def number_words(model: TransformerConfig) -> dict[str, int]:
    """The sizes of the vocabularies of number words, as fields of a network."""
    from ...data.texts.numbers import ENGLISH, GERMAN
    from ...text.vocabulary import closed_vocabulary

    both = ((*ENGLISH, *GERMAN),) * 2 if model.one_embedding else (ENGLISH, GERMAN)
    source, target = (len(closed_vocabulary(words)) for words in both)
    return {"source_vocabulary": source, "target_vocabulary": target, "outputs": target}


def check_network(model: NetworkConfig, ids: int) -> None:
    """Check a network whose vocabularies may be left to the data."""
    with fields_inside("model"):
        replace_fields(model, {name: value_at(model, name) or ids for name in model.marked("from_data")}).check()


def check_languages(data: SentenceData) -> None:
    """Raise UserError where languages are stated of a tokenizer that is made here, and knows none."""
    for name in ("source_language", "target_language"):
        if (code := getattr(data, name)) and data.tokenizer in (WORDS, *TRAINED):
            raise UserError(
                Field(f"data.{name}"),
                f"is {code[:40]}, but data.tokenizer is {data.tokenizer}, which names no languages",
                "leave it out",
            )


def check_corrupt(data: SentenceData) -> None:
    """Raise UserError where texts are to be corrupted that are pairs, or texts without targets are not."""
    texts, kind = data.source.startswith(TEXTS), data.corrupt
    if texts and kind == "none":
        what = "is none, but texts have no targets of their own"
        raise UserError(Field("data.corrupt"), what, "give spans, or name pairs as data.source")
    if kind != "none" and not texts and data.source not in ("", NO_DATA):  # "": it has to be given yet
        what = f"is {kind}, but data.source {data.source[:60]} has pairs"
        raise UserError(Field("data.corrupt"), what, "leave it out, or give texts:FILE or texts:FOLDER")
    if kind != "none" and texts and data.tokenizer in (WORDS, *TRAINED):
        what = f"is {data.tokenizer}, which has no sentinels (<extra_id_0>), and data.corrupt is {kind}"
        raise UserError(Field("data.tokenizer"), what, "give the folder of a tokenizer of T5")
    if kind != "none" and (given := [f"data.{name}" for name in ("prefix", "task") if getattr(data, name)]):
        raise UserError(Field(given[0]), f"is for sources, but data.corrupt {kind} makes them", "leave it out")
    if data.task and data.tokenizer in (WORDS, *TRAINED):
        what = f"is {data.task[:40]}, which the config.json of a folder lists, but data.tokenizer is {data.tokenizer}"
        raise UserError(
            Field("data.task"), what, "give `data.tokenizer FOLDER` or `init FOLDER`, or data.prefix instead"
        )
    if kind != "none" and data.shuffle_sources:
        raise UserError(Field("data.shuffle_sources"), f"is set, but data.corrupt is {kind}", "leave one of them out")


def check_decoder(model: TransformerConfig, part: str, longest: int, field: str) -> None:
    """Check that a decoder can write."""
    with fields_inside(part):
        if 0 < model.max_length < longest:
            what = f"is {model.max_length} but {field} is {longest}"
            raise UserError(Field("max_length"), what, "raise one or lower the other")
        if not model.causal:
            what = "is False, so a token could attend to the ones that it predicts"
            raise UserError(Field("causal"), what, "set it to True")


def check_tokenizer(data: SentenceData | CaptionData) -> None:
    """Raise UserError naming the first invalid field of a run's tokenizer."""
    if not data.tokenizer:
        raise UserError(Field("data.tokenizer"), "is empty", "give words, bpe, unigram or the folder of a tokenizer")
    if data.tokenizer in TRAINED and data.vocabulary < LEAST:
        raise UserError(
            Field("data.vocabulary"),
            f"is {data.vocabulary}, but a tokenizer of {data.tokenizer} begins with all bytes",
            f"give at least {LEAST}",
        )
