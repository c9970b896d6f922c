"""Tokenizers that are made of the older files of their class: ids and texts of transformers' own, or a refusal."""

import io
import json
import random
import struct
import sys

import pytest

from tests.test_processes import python
from tests.test_tokenizers import AWKWARD, SOURCES, TARGETS
from vit_jax.errors import UserError
from vit_jax.text.folder import open_files, read_folder

tokenizers = pytest.importorskip("tokenizers")
spm = pytest.importorskip("sentencepiece")

CORPUS = SOURCES + TARGETS
LETTERS = "abz AZ09 \t\n.,'’-–éßÅñ＆Ａ①ﬁ日本ру́ไ👩‍👩\u200b\u00a0\u2028\u0301\u064b<>[]_▁Ġ#@s"
HARD = [
    "a great dog<sep>Great", "greater <mask>,",
    "<s> a </s> b <unk>c <mask> d", "x <mask>", "a<mask>", "[MASK] [CLS] x", "de_DE en_XX fra_Latn", "I'M don't we'll",
    "x <extra_id_0> y<extra_id_1></s>", "<extra_id_99>\n<extra_id_124>", "</s> a <unk> ", "<extra_id_5", "a </s></s>",
    "한국어 조선말", "हिन्दी में", "a\0b", "\ufeffbom", "½ ²", "http://x.y/z?q=1&r=2", "e\u0301\u0327",
]  # fmt: skip
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
AS_IT_IS = {"__type": "AddedToken", "lstrip": False, "rstrip": False}
START, END = "<|startoftext|>", "<|endoftext|>"


def texts(count=180):
    rng = random.Random(0)
    drawn = ("".join(rng.choices(LETTERS, k=rng.randint(1, 30))) for _ in range(count))
    return [text for text in (*AWKWARD, *HARD, *SOURCES[:9], *TARGETS[:9], *drawn) if text.strip()]


def of_t5(count):
    """As `texts`, with pieces that mean something to T5 among the letters, texts of white space, and long ones."""
    rng, parts = random.Random(1), [*LETTERS, *(f"<extra_id_{i}>" for i in (0, 1, 99, 100, 124)), "</s>", "<unk>", "\r"]
    drawn = ("".join(rng.choices(parts, k=rng.randint(1, 12))) for _ in range(count))
    return [*texts(), *drawn, "", " \n", "a great dog " * 300, "\N{CAT FACE}" * 999]


def merged(specials, suffix=""):
    """vocab.json and merges.txt of bytes in pairs."""
    parts, as_bytes = tokenizers.pre_tokenizers, tokenizers.pre_tokenizers.ByteLevel
    settings = {"end_of_word_suffix": suffix} if suffix else {}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(**settings))
    words = [parts.WhitespaceSplit(), as_bytes(add_prefix_space=False, use_regex=False)]
    made.pre_tokenizer = parts.Sequence(words) if suffix else as_bytes(add_prefix_space=False)
    alphabet = sorted(as_bytes.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, show_progress=False, initial_alphabet=alphabet, special_tokens=specials, **settings
    )
    made.train_from_iterator([text.lower() if suffix else text for text in CORPUS], trainer)
    model = json.loads(made.to_str())["model"]
    for letter in alphabet:
        model["vocab"].setdefault(letter + suffix, len(model["vocab"]))
    merges = "".join(f"{first} {second}\n" for first, second in model["merges"])
    return {"vocab.json": json.dumps(model["vocab"]).encode(), "merges.txt": f"#version: 0.2\n{merges}".encode()}


def word_pieces():
    letters = sorted({*"".join((*CORPUS, *AWKWARD)), *"".join(CORPUS).lower()})
    known = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{x}" for x in letters),
        "dog",
        "##og",
        "Hund",
    ]
    return {"vocab.txt": "".join(f"{piece}\n" for piece in known if piece.strip()).encode()}


def sentence_pieces(name="sentencepiece.bpe.model", kind="unigram", **ids):
    file = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=file, vocab_size=200, hard_vocab_limit=False, model_type=kind,
        minloglevel=2, normalization_rule_name="nmt_nfkc", num_threads=1, **ids,
    )  # fmt: skip
    return {name: file.getvalue()}


def spiece(**more):
    """The vocabulary of T5, with its special ids."""
    return sentence_pieces("spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, **more)


def with_rows(files, rows):
    """The same with pieces that stand in no text, up to so many."""
    (model,) = files.values()
    count = spm.SentencePieceProcessor(model_proto=model).get_piece_size()
    pieces = (f"\N{LOWER ONE EIGHTH BLOCK}piece{i}".encode() for i in range(count, rows))
    messages = (b"\x0a" + bytes([len(piece)]) + piece + b"\x15" + struct.pack("<f", -30) for piece in pieces)
    return {"spiece.model": b"".join([model, *(b"\x0a" + bytes([len(m)]) + m for m in messages)])}


def of_m2m():
    model = sentence_pieces()
    pieces = spm.SentencePieceProcessor(model_proto=model["sentencepiece.bpe.model"])
    known = [*FAIRSEQ[:4], *(pieces.id_to_piece(i) for i in range(3, len(pieces), 2))]
    return {**model, "vocab.json": json.dumps({piece: i for i, piece in enumerate(known)}).encode()}


CASES = {  # {case: (its files, model_type, tokenizer_config.json)}
    "gpt2": (lambda: merged([END]), "gpt2", {}),
    "bart": (lambda: merged(FAIRSEQ), "bart", {}),
    "roberta-space": (
        lambda: merged(FAIRSEQ),
        "x",
        {"tokenizer_class": "RobertaTokenizerFast", "add_prefix_space": True},
    ),
    "gpt2-ends": (lambda: merged([END]), "gpt2", {"add_bos_token": True}),
    "bart-added": (
        lambda: merged(FAIRSEQ) | {"added_tokens.json": b'{"great": 440, "<sep>": 439}'},
        "bart",
        {
            "additional_special_tokens": ["<sep>"],
            "mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True},
        },
    ),
    "led": (lambda: merged(FAIRSEQ), "led", {}),
    "blenderbot": (lambda: merged(FAIRSEQ), "blenderbot", {}),
    "clip": (lambda: merged([START, END], "</w>"), "clip", {}),
    "bert": (word_pieces, "bert", {}),
    "bert-cased": (word_pieces, "x", {"tokenizer_class": "BertTokenizer", "do_lower_case": False}),
    "electra-accents": (word_pieces, "electra", {"strip_accents": False}),
    "t5": (lambda: spiece(), "t5", {}),
    "mt5": (lambda: spiece(), "mt5", {"extra_ids": 0, "additional_special_tokens": None}),
    "t5-sentinels-among-pieces": (
        lambda: spiece(user_defined_symbols=["<extra_id_1>", "<extra_id_0>"]),
        "t5",
        {"extra_ids": 2},
    ),
    "t5-256000": (lambda: with_rows(spiece(), 256_000), "t5", {}),
    "byt5": (dict, "t5", {"tokenizer_class": "ByT5Tokenizer"}),
    "byt5-settings": (
        dict,
        "t5",
        {"tokenizer_class": "ByT5Tokenizer", "extra_ids": 10, "eos_token": {"content": "</s>", **AS_IT_IS}},
    ),
    "trocr": (sentence_pieces, "trocr", {"tokenizer_class": "XLMRobertaTokenizer"}),
    "mbart": (sentence_pieces, "mbart", {"src_lang": "ro_RO"}),
    "mbart50": (sentence_pieces, "mbart", {"tokenizer_class": "MBart50Tokenizer", "src_lang": "gl_ES"}),
    "m2m-100": (of_m2m, "m2m_100", {"src_lang": "zu"}),
}


def write(folder, files, model_type="", config=None):
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if model_type:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def opened(folder):
    return open_files(read_folder(folder, alone=True), "it")[0]


def ids_of(side, text):
    """As `encode`, also of texts that hold what pads."""
    if hasattr(side, "bytes_of"):
        return side.bytes_of(text)
    if not hasattr(side, "skipped"):
        return side.encode(text).tolist()
    ids = side.tokenizer.encode(text).ids
    return side.begin + ids[side.skipped : len(ids) - side.dropped]


@pytest.mark.parametrize("form", ["older", "tokenizer.json"])
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case == "t5-256000" else []) for case in CASES]
)
def test_ids_and_texts_are_those_of_transformers(case, form, tmp_path):
    transformers = pytest.importorskip("transformers")
    make, model_type, config = CASES[case]
    folder = write(tmp_path, make(), model_type, config)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    if form != "older":
        theirs.save_pretrained(tmp_path)
        for name in ("merges.txt", "vocab.txt", *([] if case == "m2m-100" else ["vocab.json"])):
            (tmp_path / name).unlink(missing_ok=True)
    of_family = "t5" in case
    ours, decoded, every = opened(folder), set(), of_t5(300) if of_family else texts()
    special = {*theirs.all_special_ids, ours.ids.pad, ours.ids.end}
    special |= {i for token, i in theirs.get_vocab().items() if "<extra_id_" in token}
    for text in every:
        if case == "m2m-100" and ("<pad>" in text or not theirs.tokenize(text)):
            continue  # refused
        ids = ids_of(ours, text)
        assert ids == theirs(text)["input_ids"], text
        inside = [i for i in ids if i not in special and (case != "m2m-100" or i < len(ours.vocabulary) - 100)]
        assert ours.decode(inside) == theirs.decode(inside, skip_special_tokens=True), text
        decoded.add(ours.decode(inside))
    assert len(every) > (500 if of_family else 200) and len(decoded) > 60
    if of_family:
        assert len(ours) == len(theirs)


def test_nllb_of_its_pieces_has_its_languages_behind_them(tmp_path):
    """As v4 and the published tokenizer.json have it; v5 forgets the languages: its code is an unknown word there."""
    transformers = pytest.importorskip("transformers")
    config = {"tokenizer_class": "NllbTokenizer", "src_lang": "fra_Latn"}
    folder = write(tmp_path, sentence_pieces(kind="bpe"), "m2m_100", config)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), opened(folder)
    assert theirs.convert_tokens_to_ids("fra_Latn") == theirs.unk_token_id
    codes = transformers.models.nllb.tokenization_nllb.FAIRSEQ_LANGUAGE_CODES
    code = len(ours) - 1 - len(codes) + codes.index("fra_Latn")
    assert len(codes) == 202 and ours.number("<mask>") == len(ours) - 1
    for text in texts():
        if not any(token in text for token in ("<mask>", "fra_Latn")):
            assert ids_of(ours, text) == [code, *theirs(text)["input_ids"][1:]], text


def test_a_class_that_is_not_known_or_not_stated_is_refused_by_name(tmp_path):
    folder = write(tmp_path, merged(FAIRSEQ))
    with pytest.raises(UserError, match=r"has merges\.txt, from which several classes can make a tokenizer, and names"):
        opened(folder)
    # One in Python alone, one of no files, no class, and what is no tokenizer.
    for name in ("TapasTokenizer", "PreTrainedTokenizerFast", "NoTokenizer", "pipeline"):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
        its = name.removesuffix("Fast")
        with pytest.raises(
            UserError, match=rf"has merges\.txt and is of '{its}', from which transformers makes no token"
        ):
            opened(folder)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    with pytest.raises(UserError, match=r"has merges\.txt but no spiece\.model; put it there"):
        opened(folder)


@pytest.mark.parametrize("content", [b"", b"\x0a\xff\xff\xff\xff\x7f", b"no model", b"\x0a\x02\x0a\xff", b"\x80" * 30])
def test_a_damaged_model_of_pieces_is_one_sentence(tmp_path, content):
    with pytest.raises(UserError, match=r"spiece\.model: is no tokenizer that can be read \(.+\); restore it"):
        opened(write(tmp_path, {"spiece.model": content}, "t5"))


def test_a_run_needs_no_transformers_where_a_tokenizer_json_was_made(tmp_path, monkeypatch):
    files = read_folder(write(tmp_path, merged(FAIRSEQ), "bart"))
    ids = open_files(files, "it")[0].encode("a great dog").tolist()
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert open_files(files, "it")[0].encode("a great dog").tolist() == ids
    with pytest.raises(UserError, match=r"^transformers is needed but not installed: pip install .*\[text\]'?$"):
        read_folder(str(tmp_path))


def test_without_torch_it_is_made_in_silence(tmp_path):
    folder = write(tmp_path, merged(FAIRSEQ), "bart")
    code = (
        "import sys; sys.modules['torch'] = None; from vit_jax.text.folder import read_folder; read_folder(sys.argv[1])"
    )
    done = python(code, folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "case, config, says",
    [
        ("t5", {"extra_ids": 10**9}, r"tokenizer_config\.json: extra_ids is 1000000000; give at most 1,048,576"),
        ("byt5", {"extra_ids": 10**9, "tokenizer_class": "ByT5Tokenizer"}, r"extra_ids is 1000000000; give at most"),
        ("bart", {"mask_token": {"content": 3}}, r"merges\.txt: is no tokenizer that can be read"),
        ("nested", {}, r"vocab\.json: cannot be read as JSON \(it is nested too deeply|.*lists and objects"),
    ],
)
def test_what_a_config_counts_is_bounded_and_its_errors_are_one_sentence(case, config, says, tmp_path):
    files, model_type = {
        **{"t5": (spiece, "t5"), "byt5": (dict, "t5"), "bart": (lambda: merged(FAIRSEQ), "bart")},
        **{"nested": (lambda: {**merged(FAIRSEQ), "vocab.json": b"[" * 100_000}, "bart")},
    }[case]
    with pytest.raises(UserError, match=says) as error:
        opened(write(tmp_path, files(), model_type, config))
    assert "\n" not in str(error.value)


def test_a_config_names_no_file_and_no_code(tmp_path):
    """Neither what lies beside the folder is read, nor what lies in it run."""
    (tmp_path / "secret.json").write_text('{"secret": 0, "<s>": 1, "</s>": 2, "<pad>": 3, "<unk>": 4}')
    (folder := tmp_path / "it").mkdir()
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    secret = str(tmp_path / "secret.json")
    names = dict.fromkeys(("vocab", "vocab_file", "merges", "tokenizer_file", "fast_tokenizer_files"), secret)
    config = {**names, "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}, "trust_remote_code": True}
    plain = read_folder(write(folder, merged(FAIRSEQ), "bart"))
    assert read_folder(write(folder, {}, "bart", config))["tokenizer.json"] == plain["tokenizer.json"]
    assert not (tmp_path / "ran").exists()


def tokenizer_json(**parts):
    made = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "!": 1, "<pad>": 2, "<s>": 3, "</s>": 4}, []))
    for name, part in parts.items():
        setattr(made, name, part)
    return made.to_str().encode()


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_a_tokenizer_that_makes_texts_without_end_is_refused(part, tmp_path):
    module = {"normalizer": tokenizers.normalizers, "decoder": tokenizers.decoders}[part]
    ten = module.Sequence([module.Replace("a", "a" * 10)] * 12)
    tokens = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    folder = write(tmp_path, {"tokenizer.json": tokenizer_json(**{part: ten})}, "", tokens)
    with pytest.raises(UserError, match=r"tokenizer\.json: .*\(it may make a text 1,000,000,000,000 times as long\)"):
        opened(folder)


def test_a_text_that_a_tokenizer_cannot_split_or_makes_too_long_is_named(tmp_path):
    slow = tokenizers.pre_tokenizers.Split(tokenizers.Regex("(a+)+$"), "isolated")
    tokens = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    grown = tokenizers.normalizers.Replace("!", "!" * 100)
    files = {"tokenizer.json": tokenizer_json(pre_tokenizer=slow, normalizer=grown)}
    side = opened(write(tmp_path, files, "", tokens))
    with pytest.raises(UserError, match=r"^the text 'a{40}!': cannot be split by its tokenizer \(.*\); leave it out"):
        side.encode("a" * 40 + "!")
    with pytest.raises(
        UserError, match=r"^the text '!+.*: may have more than 16,777,216 letters as its tokenizer norma"
    ):
        side.encode("!" * 200_000)
    assert side.encode("a!").tolist() == [0] + [1] * 100
