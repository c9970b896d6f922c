"""Tokenizers of parts of words: exact texts, ids as other libraries give them, damaged folders, runs that keep one."""

import json
import shutil
import sys
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from flax import nnx

import vit_jax
from tests.test_dialect_seq2seq import CONFIGS
from tests.test_resume import Crash, at_step, crash
from vit_jax.commands import evaluate, predict
from vit_jax.config.run import OptimConfig, RunConfig
from vit_jax.data.base import GivenData
from vit_jax.data.texts import numbers
from vit_jax.data.texts.config import SentenceData
from vit_jax.errors import UserError
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.runs import Run
from vit_jax.runs.record import check_record
from vit_jax.tasks.computed import task_class
from vit_jax.tasks.translate.learn import corpus_scores
from vit_jax.text.record import make_one, make_tokenizers, open_tokenizers, record_tokenizers
from vit_jax.text.tokenizer import Ids
from vit_jax.training import train as training
from vit_jax.training.job import plan
from vit_jax.training.train import train

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("sacrebleu")

PAIRS = [
    (f"The {a} dog sees {numbers.english(n)} cats.", f"Der {b} Hund sieht {numbers.german(n)} Katzen.")
    for n, (a, b) in enumerate([("small", "kleine"), ("big", "große"), ("young", "junge"), ("grey", "graue")] * 40)
]
SOURCES, TARGETS = zip(*PAIRS, strict=True)
AWKWARD = [
    "Zwei  junge,\tweiße Männer – „so“ heißt's.",
    "naïve café", "cafe\u0301 in NFD", "日本語 and ру́сский", "👩‍👩‍👧 emoji",
    "  spaces around  ", "</s> <pad> <unk> <bos>", ">>de<< Hello", "a\u00a0b", "\u200bzero", "x" * 80,
    "1,234.5 %", "don't",     "A", ".", "\\n <0x0A> ▁Ġ", "tab\tand\rreturn",
]  # fmt: skip


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def trained(request):
    """A joint tokenizer that was trained on PAIRS, as (source, target)."""
    return make_tokenizers(request.param, 600, SOURCES, TARGETS, one=True)


def test_a_trained_tokenizer_gives_back_any_text_exactly(trained):
    source, target = trained
    assert 300 < len(source) == len(target) <= 600 and source.kept == target.kept and source.cased
    for text in (*AWKWARD, *SOURCES[:20], *TARGETS[:20]):
        for side in trained:
            ids = side.encode(text)
            assert ids.dtype == np.int32 and side.decode(ids) == unicodedata.normalize("NFC", text).strip(), text
            assert not {0, 1, 2} & set(ids.tolist()), "special tokens mean nothing in a text"
    assert source.ids == Ids(0, 1, 2, None, (0, 1))
    assert [x.tolist() for x in source.encode_all(SOURCES)] == [source.encode(x).tolist() for x in SOURCES]
    assert len(source.encode(SOURCES[0])) < len(SOURCES[0]), "it has learnt parts of words"
    assert target.decode([*target.encode("ein Hund"), 2, 9, 9]) == "ein Hund", "what comes after the end does not count"
    again = open_tokenizers(record_tokenizers(*trained))
    assert [x.kept for x in again] == [x.kept for x in trained]
    assert [x.encode("große Hunde").tolist() for x in again] == [x.encode("große Hunde").tolist() for x in trained]


def test_the_same_sentences_give_the_same_bpe_and_two_tables_two_tokenizers(trained):
    model = json.loads(trained[0].files["tokenizer.json"])["model"]
    kind = "bpe" if "merges" in model else "unigram"
    again = make_tokenizers(kind, 600, SOURCES, TARGETS, one=True)[0]
    assert again.kept["size"] == trained[0].kept["size"] and (kind == "unigram" or again.kept == trained[0].kept)
    apart = make_tokenizers(kind, 600, SOURCES, TARGETS, one=False)
    assert apart[0].encode("the dog").tolist() != apart[1].encode("the dog").tolist()
    assert {"source/tokenizer.json", "target/tokenizer.json", "ids.json"} < apart[0].files.keys()


def test_a_trained_tokenizer_is_the_same_to_transformers(trained, tmp_path):
    transformers = pytest.importorskip("transformers")
    for name, content in trained[0].files.items():
        (tmp_path / name).write_bytes(content)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (*AWKWARD, *SOURCES[:9]):
        ids = trained[0].encode(text).tolist()
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids
        assert theirs.decode(ids, skip_special_tokens=True) == trained[0].decode(ids), text


# ------------------------------------------------------------------------- tokenizers of Hugging Face


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    """A folder such as BART's: byte-level BPE, <s> and </s> around each text, and a model that begins with its end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=specials, show_progress=False, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(SOURCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.enable_truncation(4)  # as some files have it: a training script's, not the tokenizer's business here
    tokenizer.enable_padding(pad_id=1, length=8)
    folder = tmp_path_factory.mktemp("bart")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"model_type": "bart", **config}))
    (folder / "generation_config.json").write_text(
        json.dumps({"forced_bos_token_id": 0, "bad_words_ids": [[4], [5, 6]]})
    )
    names = {
        "unk_token": {"__type": "AddedToken", "content": "<unk>"},
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "bos_token": "<s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    return folder


def test_a_tokenizer_of_hugging_face_wraps_a_source_and_leaves_the_end_of_a_target_to_the_loss(bart):
    source, target = make_tokenizers(str(bart), 0, [], [], one=True)
    ids = Ids(pad=1, begin=2, end=2, unknown=3, banned=(4,), forced_begin=0, forced_end=2)
    assert source.ids == target.ids == ids and len(source) == len(target) > 300
    inside = source.tokenizer.encode("The small dog", add_special_tokens=False).ids
    assert source.encode("The small dog").tolist() == [0, *inside, 2] and len(inside) > 2
    assert target.encode("The small dog").tolist() == [0, *inside]
    assert source.cut(source.encode("The small dog"), 3).tolist() == [0, inside[0], 2]
    assert target.cut(target.encode("The small dog"), 3).tolist() == [0, *inside[:2]]
    assert source.tokens(source.encode("The dog"))[:2] == ["<s>", "The"]
    with pytest.raises(UserError, match=r"^the text 'a <pad>' holds '<pad>', by which the tokenizer pads sentences"):
        source.encode("a <pad>")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(bart)
    said = theirs.decode([0, *inside, 2], skip_special_tokens=True)
    assert target.decode([0, *inside, 2, 1, 1]) == source.decode([0, *inside]) == said and said.split() == [
        "The",
        "small",
        "dog",
    ]
    for text in ("The small dog sees two cats.", "naïve </s> café", "x"):
        assert theirs(text)["input_ids"] == source.encode(text).tolist()


def test_a_table_may_be_rounded_up(bart, tmp_path):
    """As NLLB's, which has two rows more than tokens: ids of no token are said as nothing; a run keeps the number."""
    size = len(make_tokenizers(str(bart), 0, [], [], one=True)[0])
    config = json.loads((bart / "config.json").read_text())
    for more, expected in ((2, size + 2), (-1, size), (128, size), ("2", size)):
        folder = changed(bart, tmp_path, config__json={**config, "vocab_size": size + more if more != "2" else more})
        source, target = make_tokenizers(folder, 0, [], [], one=True)
        assert len(source) == len(target) == source.kept["size"] == expected
        assert [len(x) for x in open_tokenizers(record_tokenizers(source, target))] == [expected] * 2
        assert target.decode([*target.encode("a dog"), expected - 1, 2]).strip() == "a dog" or more != 2


@pytest.mark.parametrize("template", ["<mask> $A </s>", "$A </s> <mask>"])
def test_a_target_begins_with_the_language_that_is_forced(bart, tmp_path, template):
    """Of NLLB and mBART, whose tokenizer states the language of the source, before the text or after its end."""
    from tokenizers import Tokenizer, processors

    folder = changed(bart, tmp_path, generation_config__json={"forced_bos_token_id": 7})
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("<mask>", 4), ("</s>", 2)]
    )
    tokenizer.save(f"{folder}/tokenizer.json")
    source, target = make_tokenizers(folder, 0, [], [], one=True)
    inside = source.tokenizer.encode("The small dog", add_special_tokens=False).ids
    around = {"<mask>": [4, *inside, 2], "$A": [*inside, 2, 4]}[template.split()[0]]
    assert source.encode("The small dog").tolist() == around and len(inside) > 2
    assert target.encode("The small dog").tolist() == [7, *inside] and target.ids.forced_begin == 7
    assert target.cut(target.encode("The small dog"), 3).tolist() == [7, *inside[:2]]


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    """A folder such as Marian's, its SentencePiece models trained on PAIRS and numbers."""
    spm = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("marian")
    pieces = []
    for side, texts in (("source", SOURCES), ("target", TARGETS)):
        with open(folder / f"{side}.spm", "wb") as file:
            spm.SentencePieceTrainer.train(
                sentence_iterator=iter(texts), model_writer=file, vocab_size=120, hard_vocab_limit=False,
                minloglevel=2, normalization_rule_name="nmt_nfkc", num_threads=1,
            )  # fmt: skip
        model = spm.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        pieces += [model.id_to_piece(i) for i in range(model.get_piece_size())]
    known = [p for p in dict.fromkeys(pieces) if p not in ("<unk>", "<s>", "</s>")][::2]  # some are unknown
    entries = ["</s>", "<unk>", *known, ">>de<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(entries)}))
    return folder


def test_sentencepiece_pairs_give_the_ids_and_texts_of_marians_tokenizer(marian):
    transformers = pytest.importorskip("transformers")
    source, target = make_tokenizers(str(marian), 0, [], [], one=True)
    last = len(source) - 1
    assert source.ids == Ids(pad=last, begin=last, end=0, unknown=1, banned=(last,))
    theirs = transformers.MarianTokenizer.from_pretrained(str(marian))
    texts = [*AWKWARD, *SOURCES, *TARGETS, *map(numbers.english, range(0, 99_000, 130)), "a </s> b<unk>c"]
    texts = [text for text in texts if "<pad>" not in text and text.strip()]
    assert len({*texts}) > 1000
    for text in texts:
        ids = theirs(text)["input_ids"]
        assert source.encode(text).tolist() == ids, text
        said = target.encode(text).tolist()
        assert [*said, 0] == theirs(text_target=text)["input_ids"], text
        said = [i for i in said if i]  # what follows an end is not part of a text here
        assert target.decode([*said, 0, last]) == theirs.decode([*said, 0, last], skip_special_tokens=True), text
    assert len({target.decode(target.encode(text)) for text in texts}) > 500


def test_separate_vocabularies_are_two(marian, tmp_path):
    shutil.copytree(marian, tmp_path / "two")
    known = make_tokenizers(str(marian), 0, [], [], one=True)[1].model.encode("Der Hund", out_type=str)[0]
    (tmp_path / "two" / "target_vocab.json").write_text(json.dumps({"</s>": 0, "<unk>": 1, known: 2, "<pad>": 3}))
    source, target = make_tokenizers(str(tmp_path / "two"), 0, [], [], one=False)
    assert len(target) == 4 and target.ids.pad == 3 and source.ids.pad == len(source) - 1
    assert target.encode("Der Hund").tolist()[0] == 2 and set(target.encode("Der Hund").tolist()) == {1, 2}
    with pytest.raises(
        UserError, match=r"have ids of their own, but the network has one table.*set model.tie to decoder"
    ):
        make_tokenizers(str(tmp_path / "two"), 0, [], [], one=True)


def test_a_trained_tokenizer_has_words_with_their_marks():
    """And splits what has none as GPT-2 does, after a space in front."""
    words = ["नमस्ते", "किताब", "خواهم", "می\u200cخواهم", "cat"]
    one = make_tokenizers("bpe", 600, [" ".join(words)] * 9, [words[0]] * 9, one=True)[0]
    assert [one.tokens(one.encode(word)) for word in words] == [[word] for word in words]
    theirs = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    for text in (unicodedata.normalize("NFC", each).strip() for each in (*AWKWARD[:2], *AWKWARD[5:], *SOURCES[:9])):
        normal = one.tokenizer.normalizer.normalize_str(text)
        split = [piece for piece, _ in one.tokenizer.pre_tokenizer.pre_tokenize_str(normal)]
        assert split == [piece for piece, _ in theirs.pre_tokenize_str(text)]


@pytest.mark.parametrize("end", ["\r\n", "\n\n"])
def test_line_ends_and_byte_order_marks_of_older_files_change_no_id(tmp_path, end):
    pieces = [*sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), "do", "dog", "<|endoftext|>"]
    lines, found = ["#version: 0.2", "d o", "do g", ""], []
    for name, mark, between in (("plain", "", "\n"), ("other", "\ufeff", end)):
        (folder := tmp_path / name).mkdir()
        (folder / "merges.txt").write_bytes((mark + between.join(lines)).encode())
        (folder / "vocab.json").write_text(mark + json.dumps({piece: i for i, piece in enumerate(pieces)}))
        (folder / "tokenizer_config.json").write_text(mark + json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
        found.append(make_one(str(folder), 0, ()))
    assert found[0].files == found[1].files
    assert [x.encode("dog d\r\n").tolist() for x in found] == [[257, *(pieces.index(c) for c in "ĠdčĊ")]] * 2


# ------------------------------------------------------------------------------------------ bad input


def changed(folder, tmp_path, **contents):
    """A copy of a folder with other contents of files, None for none; dots in names are underscores."""
    shutil.copytree(folder, tmp_path / "changed", dirs_exist_ok=True)
    for name, content in contents.items():
        file = tmp_path / "changed" / name.replace("__", ".")
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return str(tmp_path / "changed")


@pytest.mark.parametrize(
    "contents, says",
    [
        (dict(tokenizer__json=None), r"has no tokenizer; give words, bpe, unigram or a folder with tokenizer.json"),
        (dict(tokenizer__json=b"{"), r"tokenizer.json: is no tokenizer that can be read \(.*\); restore it, or give"),
        (dict(tokenizer__json=b"\xff"), "is no tokenizer that can be read"),
        (dict(tokenizer__json={"model": {"type": "BPE", "vocab": {}, "merges": []}}), "is no tokenizer that can be"),
        (dict(config__json=b"{"), r"config.json: cannot be read as JSON"),
        (dict(config__json={"pad_token_id": 500, "eos_token_id": 2, "decoder_start_token_id": 2}),
         r"its pad is the id 500, but its ids end at 3\d\d; correct one of them"),
        (dict(config__json={"pad_token_id": 2, "eos_token_id": 2, "decoder_start_token_id": 2}), "pads with its end"),
        (dict(config__json=None, generation_config__json=None, tokenizer_config__json={"eos_token": "</s>"}),
         "states no pad_token; add it to its tokenizer_config.json"),
        (dict(ids__json={"source": {}}), "ids.json does not hold the ids of the source; restore it"),
        (dict(ids__json={"source": {"pad": "1", "begin": 2, "end": 2, "banned": []}}), "does not hold the ids"),
    ],
)  # fmt: skip
def test_a_damaged_tokenizer_is_one_sentence(bart, tmp_path, contents, says):
    with pytest.raises(UserError, match=says) as error:
        make_tokenizers(changed(bart, tmp_path, **contents), 0, [], [], one=True)
    assert "data.tokenizer" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "contents, says",
    [
        (dict(target__spm=None), "has source.spm but no target.spm; put it there"),
        (dict(target__spm=b"no model"), "target.spm: is no tokenizer that can be read"),
        (dict(vocab__json=None), "has source.spm but no vocab.json"),
        (dict(vocab__json=["a"]), "vocab.json: holds no JSON object"),
        (dict(vocab__json={"a": 1, "b": 1}), "vocab.json is no list of pieces with an id each"),
        (dict(vocab__json={"a": -1}), "vocab.json is no list of pieces with an id each"),
        (dict(vocab__json={"</s>": 0, "<pad>": 1}), "has no <unk>"),
        (dict(vocab__json={"</s>": 0, "<unk>": 1}), "states no pad_token"),
    ],
)
def test_a_damaged_pair_is_one_sentence(marian, tmp_path, contents, says):
    with pytest.raises(UserError, match=says) as error:
        make_tokenizers(changed(marian, tmp_path, **contents), 0, [], [], one=True)
    assert "data.tokenizer" in str(error.value) and "\n" not in str(error.value)


def test_no_tokenizer_and_no_library(monkeypatch):
    with pytest.raises(UserError, match=r"^data\.tokenizer /no/where: there is no such folder; give words, bpe"):
        make_tokenizers("/no/where", 0, [], [], one=True)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"^tokenizers is needed but not installed: pip install .*\[text\]'?$"):
        make_tokenizers("bpe", 600, SOURCES, TARGETS, one=True)


# ----------------------------------------------------------------------------------------------- runs

TINY = RunConfig(
    task="translate",
    model=TransformerConfig(
        **dict(width=8, heads=2, hidden=8, encoder_depth=1, decoder_depth=1, tie="all", embedding_std=0.5, dropout=0.1),
        **dict(norm_first=False, final_norm=False, position="concatenated", eps=1e-5, max_length=40),  # as Marian
    ),
    data=SentenceData(source="pairs", tokens=40 * 16, lengths=(40,), tokenizer="bpe", vocabulary=600),
    optim=OptimConfig(name="adam", lr=1e-2, schedule="constant"),
    epochs=2,
    batch=32,
    log_every=1,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory, quick_compilation, without_pictures):
    """(TINY on a table of PAIRS, a run of it that never stopped, one that was stopped, killed and resumed)."""
    there = tmp_path_factory.mktemp("texts")
    (there / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    its = replace(TINY, data=replace(TINY.data, source=f"tsv:{there / 'pairs.tsv'}"))
    whole, parts = Run(there / "whole"), Run(there / "parts")
    jobs, open_job = [], training.open_job

    def once(run, data, folder, *rest):
        """Compiled once; the data of a run that goes on is what its own tokenizer makes of it."""
        if not jobs:
            jobs.append(open_job(run, data, folder, *rest))
        stated = replace(run, model=jobs[0].stated.model)
        planned, order, _ = plan(stated, data)
        return replace(jobs[0], stated=stated, run=planned, folder=folder, data=data, order=order)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "open_job", once)
        train(its, preset="numbers", folder=whole)
        assert train(replace(its, max_steps=3), preset="numbers", folder=parts)["step"] == 3
        with pytest.MonkeyPatch.context() as kill, pytest.raises(Crash):
            at_step(kill, 5, crash)
            train(its, preset="numbers", folder=parts)
        assert parts.complete_steps()[0] == 3
        train(its, preset="numbers", folder=parts)
    return its, whole, parts


def test_a_run_keeps_its_tokenizer_and_resumes_with_it_to_the_bit(run):
    _, whole, parts = run
    files = {"tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json", "tokenizer/ids.json"}
    assert whole.record()["files"].keys() == files and all((whole.path / name).is_file() for name in files)
    assert whole.record()["data"] == parts.record()["data"] and whole.config().data.tokenizer == "bpe"
    step = whole.complete_steps()[0]
    assert whole.saved(step)["arrays"] == parts.saved(step)["arrays"] and whole.summary()["test"].keys() == {
        "last",
        "best",
    }
    assert parts.record()["vocabulary"]["source"]["size"] == len(vit_jax.load(parts.path).source)


def test_the_tokenizer_is_part_of_what_a_run_is(run, tmp_path):
    its, whole, _ = run
    shutil.copytree(whole.path, tmp_path / "run")
    file = tmp_path / "run" / "tokenizer" / "tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json: is not the file that the run began with; restore the file"):
        vit_jax.load(tmp_path / "run")
    own = task_class("translate").open_data(replace(its, data=its.data.in_folder(tmp_path / "run")))
    assert not own.same_as(whole.record()["data"])
    kept = replace(its, data=its.data.in_folder(whole.path))
    assert task_class("translate").open_data(kept).same_as(whole.record()["data"])
    file.unlink()
    with pytest.raises(UserError, match=r"tokenizer.json: cannot be read \(No such file"):
        vit_jax.load(tmp_path / "run")


def test_a_run_with_a_tokenizer_is_used_as_any_other(run, tmp_path, capsys):
    its, whole, _ = run
    net = vit_jax.load(whole.path)
    said = net.translate(list(SOURCES[:3]))
    assert net.predict(SOURCES[0]) == said[0] and "tokens" in repr(net)
    asked, says, maps = net.attention(SOURCES[0])
    assert maps.shape[-2:] == (len(says), len(asked)) and asked[0] == "The"
    assert predict.command([str(whole.path), SOURCES[0], "--attention", str(tmp_path / "maps.png")]) == 0
    assert capsys.readouterr().out.splitlines() == said[:1]
    assert evaluate.command([str(whole.path), "--csv", str(tmp_path / "out.csv")]) == 0
    rows = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "source,true,predicted" and len(rows) == 33 and any(SOURCES[i] in rows[1] for i in range(160))
    other = vit_jax.evaluate(whole.path, data=[("The dog sees one cats.", "Der Hund sieht eine Katzen.")])[1]
    assert other.predicted.shape == (1, 40)
    for given, name in ((net, "from-memory"), (str(whole.path), "from-folder")):
        vit_jax.export(given, tmp_path / name)
        assert vit_jax.load(tmp_path / name).translate(list(SOURCES[:3])) == said, "the tokenizer goes along"
    vit_jax.export(net, tmp_path / "weights.safetensors")
    assert vit_jax.load(tmp_path / "weights.safetensors").lacks == ("vocabulary",)
    again = replace(its, data=replace(its.data, tokenizer=str(whole.path / "tokenizer")))
    data = task_class("translate").open_data(again, GivenData(PAIRS[:50]))
    assert data.source.kept == net.source.kept, "another run may take it over"


def test_scores_are_those_of_sacrebleu_on_texts(run, capsys):
    """BLEU and chrF of the texts as they were written, cased, with their signatures; BLEU chooses the best weights."""
    import sacrebleu

    its, whole, _ = run
    assert whole.summary()["best"].keys() == {"step", "bleu", "loss", "weights"}
    _, result = vit_jax.evaluate(whole.path)
    net, test = vit_jax.load(whole.path), task_class("translate").open_data(its).splits["test"]
    predicted = np.pad(test.target, ((0, 0), (0, 1)))[::-1]  # each translation is that of another sentence
    counts = {name: np.ones(len(predicted)) for name in ("loss", "tokens", "right")}
    result = net.task.score(None, test, {"predicted": predicted, **counts})
    said = test.references[::-1]
    assert set(said) <= set(TARGETS) and len({*said}) > 20
    bleu, chrf = (f(said, [test.references]).score for f in (sacrebleu.corpus_bleu, sacrebleu.corpus_chrf))
    assert (result.metrics["bleu"], result.metrics["chrf"]) == (bleu, chrf) and 1 < bleu < 99
    assert result.metrics["perplexity"] == pytest.approx(np.exp(result.metrics["loss"]))
    assert result.notes[0].startswith("BLEU is nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert whole.summary()["notes"] == list(result.notes) and result.notes[0] in capsys.readouterr().err
    assert corpus_scores(["ein HUND sieht zwei Katzen ."], ["Ein Hund sieht zwei Katzen."], cased=False)[0][
        "bleu"
    ] == pytest.approx(100)
    scores, signatures = corpus_scores(["ein HUND sieht zwei Katzen ."], ["Ein Hund sieht zwei Katzen."], cased=True)
    assert scores["bleu"] < 60 and scores["bleu_lower"] == pytest.approx(100)
    assert "case:mixed" in signatures[0] and "case:lc|eff:no|tok:13a" in signatures[2]
    tokens = [["ein HUND , der läuft ."], ["Ein Hund , der steht ."]]
    scores, signatures = corpus_scores(*tokens, cased=True, words="none")
    assert scores["bleu"] == sacrebleu.corpus_bleu(tokens[0], [tokens[1]], lowercase=True, tokenize="none").score > 0
    assert "case:lc" in signatures[0] and "tok:none" in signatures[0]


def test_a_unigram_is_not_trained_on_data_that_no_file_holds():
    its = replace(TINY, data=replace(TINY.data, tokenizer="unigram"))
    with pytest.raises(UserError, match=r"^data\.tokenizer is unigram, which no two trainings make alike"):
        task_class("translate").open_data(its, GivenData(PAIRS))


@pytest.mark.parametrize(
    "path", ["../tokenizer.json", "/etc/passwd", "tokenizer/../../x", "tokenizer", "tokenizer/.hidden"]
)
def test_a_strangers_run_names_no_files_outside_its_folder(run, path):
    record = {**run[1].record(), "files": {path: "0" * 32}}
    with pytest.raises(UserError, match=r"config\.json: its files is damaged"):
        check_record(record, "config.json")


def test_a_file_that_is_too_large_or_none_is_not_read(bart, tmp_path, monkeypatch):
    there = changed(bart, tmp_path, tokenizer__json=None)
    (tmp_path / "changed" / "tokenizer.json").mkdir()
    with pytest.raises(UserError, match=r"tokenizer\.json: is no regular file"):
        make_tokenizers(there, 0, [], [], one=True)
    monkeypatch.setattr(sys.modules["vit_jax.text.folder"], "LARGEST", 100)
    with pytest.raises(UserError, match="has more than 100 bytes"):
        make_tokenizers(str(bart), 0, [], [], one=True)


def test_a_run_that_starts_from_weights_takes_the_tokenizer_beside_them(run):
    """As they are trained on other sentences: the weights fit, and no words have to be the same."""
    from vit_jax.config.trees import unflatten
    from vit_jax.weights import start as starting

    _, whole, _ = run
    base = replace(starting.base(str(whole.path)), init=str(whole.path))
    filled = starting.fill_run(base, {"data.source": "pairs"}, own=False)
    assert filled.data.tokenizer == str(whole.path / "tokenizer") and filled.task == "translate"
    filled = replace(filled, data=replace(filled.data, lengths=(40,)))
    data = task_class("translate").open_data(filled, GivenData([("A red fox.", "Ein roter Fuchs.")] * 20))
    sized = replace(filled, model=filled.model.with_sizes(data.sizes))
    started = starting.start(sized, data.metadata())
    assert "it gives the network, data.tokenizer" in " ".join(started.description.split())
    assert unflatten(started.parameters).keys() == {"target", "encoder", "decoder", "head"}
    stated = starting.fill_run(base, {"data.source": "pairs", "data.tokenizer": "bpe"}, own=False)
    assert stated.data.tokenizer == "bpe", "what the user states goes before"


def test_a_run_goes_back_to_hugging_face_with_its_tokenizer_and_its_special_ids(run, tmp_path, inside):
    """No --set is needed: what pads, begins and ends is what the run's tokenizer says."""
    _, whole, _ = run
    done = inside("convert", whole.path, tmp_path / "folder", "--to", "marian")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    ids = {"pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": 2}
    assert config.items() >= ids.items()
    assert json.loads((tmp_path / "folder" / "generation_config.json").read_text())["bad_words_ids"] == [[0], [1]]
    said = vit_jax.load(whole.path).translate(list(SOURCES[:3]))
    assert vit_jax.load(tmp_path / "folder").translate(list(SOURCES[:3])) == said, "a Translator, as of the run"
    assert inside("predict", tmp_path / "folder", SOURCES[0]).stdout == f"{said[0]}\n"
    generation = tmp_path / "folder" / "generation_config.json"
    stated = json.loads(generation.read_text())
    generation.write_text(json.dumps({**stated, "num_beams": 3, "num_return_sequences": 2, "max_length": 9}))
    net = vit_jax.load(tmp_path / "folder")
    assert (net.task.decoding.beam, net.task.decoding.nbest, net.task.decoding.max_length) == (3, 2, 8)
    ranked = vit_jax.predict(tmp_path / "folder", SOURCES[0])
    assert ranked == net.predict(SOURCES[0]) and ranked[0][1] > ranked[1][1], "as it says, unless flags say otherwise"
    assert isinstance(vit_jax.predict(tmp_path / "folder", SOURCES[0], beam=1, nbest=1), str)
    generation.write_text(json.dumps(stated))
    source, _ = make_tokenizers(str(tmp_path / "folder"), 0, [], [], one=True)
    assert source.encode(SOURCES[0]).tolist() == vit_jax.load(whole.path).source.encode(SOURCES[0]).tolist()
    other = make_tokenizers("bpe", 520, ["a b c d", "b c d e"] * 9, [], one=True)[0].files
    for name, content in other.items():
        (tmp_path / "folder" / name).write_bytes(content)
    with pytest.raises(UserError, match=r"the tokenizer beside it has ids for 2\d\d and 2\d\d, and the network for 4"):
        vit_jax.load(tmp_path / "folder")


def test_a_network_without_a_head_is_told_so_with_a_tokenizer_beside_it_and_without(tmp_path):
    ends = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    tokenizer = make_tokenizers("bpe", 520, SOURCES, [], one=True)[0]
    sizes = dict.fromkeys(("source_vocabulary", "target_vocabulary"), len(tokenizer))
    headless = vit_jax.Transformer(replace(CONFIGS["bart@base"], **sizes), rngs=nnx.Rngs(0))
    vit_jax.export(headless, tmp_path / "folder", to="bart@base", fields=ends)
    for files in ({}, tokenizer.files):
        for name, content in files.items():
            (tmp_path / "folder" / name).write_bytes(content)
        with pytest.raises(
            UserError, match=r"without a head, which writes no texts; .* with `init .*folder.*` and `new_head True`;"
        ):
            vit_jax.predict(tmp_path / "folder", "a b")


@pytest.mark.slow
def test_ctranslate2_opens_a_folder_written_here_and_says_the_same(marian, tmp_path, monkeypatch, inside):
    """A trained Marian whose row of padding is zero, as in public ones: CTranslate2 begins with a vector of zeros.

    Then the same after more training here.
    """
    monkeypatch.setitem(sys.modules, "torchvision", None)  # one that does not fit torch would keep Marian from loading
    ctranslate2, transformers = pytest.importorskip("ctranslate2"), pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from ctranslate2.converters import TransformersConverter

    from tests.parity.trained import fit

    shutil.copytree(marian, tmp_path / "theirs")
    source, target = make_tokenizers(str(marian), 0, [], [], one=True)
    ids = source.ids
    sizes = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 2), ("ffn_dim", 64))}
    special = dict(pad_token_id=ids.pad, eos_token_id=ids.end, decoder_start_token_id=ids.begin, bos_token_id=None)
    heads = dict(encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=64)
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=len(source), d_model=32, scale_embedding=True, activation_function="swish", dropout=0.0,
        **sizes, **special, **heads,
    )  # fmt: skip
    model = transformers.MarianMTModel(config)
    table = model.get_input_embeddings().weight
    table.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([ids.pad]), 0.0))
    given = [(source.encode(a).tolist(), target.encode(b).tolist()) for a, b in PAIRS]

    def logits(rows, inputs):
        return model(input_ids=rows, attention_mask=(rows != ids.pad).long(), decoder_input_ids=inputs).logits

    fit(model.parameters(), logits, given, ids, 500)
    assert not table[ids.pad].any()
    model.eval().save_pretrained(tmp_path / "theirs")

    pieces = [*json.loads((marian / "vocab.json").read_text())]
    rows = [[pieces[i] for i in source.encode(text)] for text in SOURCES]

    def said(name):
        """The greedy texts of a folder, which are those of CTranslate2, as those of beams are."""
        TransformersConverter(str(tmp_path / name)).convert(str(tmp_path / f"{name}-ct2"))
        translator = ctranslate2.Translator(str(tmp_path / f"{name}-ct2"), device="cpu", compute_type="float32")
        every = []
        # By default it stops at as many finished beams as are asked for, with a patience of 4 where no other can win.
        for beams, stop, patience in ((1, "false", 1), (4, "true", 1), (4, "false", 4)):
            found = translator.translate_batch(rows, beam_size=beams, patience=patience, max_decoding_length=60)
            theirs = [target.decode([pieces.index(piece) for piece in each.hypotheses[0]]) for each in found]
            ours = [said for _, said in vit_jax.predict(tmp_path / name, SOURCES, beam=beams, early_stopping=stop)]
            print(f"{beams} beams, stop {stop}: {len({*ours})} distinct texts of {len({*map(len, ours)})} lengths")
            assert ours == theirs and len({*ours}) > 40 and len({*map(len, ours)}) > 10
            every.append(ours)
        return every[0]

    vit_jax.export(vit_jax.load(tmp_path / "theirs"), tmp_path / "ours", to="marian")
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS[::-1]), encoding="utf-8")
    flags = (
        "--init theirs --data.source tsv:pairs.tsv --data.lengths 64 --data.tokens 1024 --optim.lr 1e-3 --name tuned"
    )
    done = inside("train", *flags.split(), "--epochs", 2)
    assert done.returncode == 0, done.stderr
    assert inside("convert", "runs/tuned", "tuned", "--to", "marian", "--step", "last").returncode == 0
    assert not np.asarray(vit_jax.load(tmp_path / "tuned").model.target.embedding[...])[ids.pad].any()
    assert said("ours") != said("tuned")
