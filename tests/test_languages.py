"""Tokenizers of several languages: stated by files or flags, as transformers generates with them, kept by runs."""

import json

import pytest
from flax import nnx

import vit_jax
from convert.verify.libraries import load
from tests.test_tokenizer_classes import of_m2m, sentence_pieces, spm, write
from vit_jax.commands import predict
from vit_jax.config.hints import nearest
from vit_jax.errors import UserError
from vit_jax.text.classes import Spoken
from vit_jax.text.record import make_tokenizers, open_tokenizers, record_tokenizers

slow = pytest.mark.slow
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
transformers = load("transformers")

TEXTS = ["The small dog sees two cats.", "Der große Hund", "x y z", "naïve café"]
SIZES = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 1), ("ffn_dim", 48))}
SIZES |= dict(d_model=32, encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=64)
SIZES |= dict(init_std=0.4, scale_embedding=True)
STATED = {"nllb": ("fra_Latn", "deu_Latn"), "m2m": ("fr", "de"), "mbart": ("fr_XX", "de_DE"), "marian": ("", "deu")}
STATED |= {"legacy": STATED["nllb"], "mbart50": STATED["mbart"]}
OTHER = {"nllb": ("eng_Latn", "zul_Latn"), "m2m": ("en", "zu"), "mbart": ("en_XX", "zh_CN"), "marian": ("", "cmn_Hans")}
OTHER |= {"legacy": OTHER["nllb"], "mbart50": OTHER["mbart"]}


def as_nllb(folder, config):
    """With a tokenizer.json, as published: of its pieces alone transformers 5 would not know its languages."""
    made = transformers.AutoTokenizer.from_pretrained(
        write(folder, sentence_pieces(kind="bpe"), "m2m_100", {"tokenizer_class": "NllbTokenizer"})
    )
    model = json.loads(made.backend_tokenizer.to_str())["model"]
    (folder / "sentencepiece.bpe.model").unlink()
    merges = [tuple(pair) for pair in model["merges"]]
    transformers.NllbTokenizer(vocab=model["vocab"], merges=merges, **config).save_pretrained(folder)


def as_marian(folder):
    model = sentence_pieces()["sentencepiece.bpe.model"]
    pieces = spm.SentencePieceProcessor(model_proto=model)
    known = ["</s>", "<unk>", *(pieces.id_to_piece(i) for i in range(3, len(pieces)))]
    known += [">>fra<<", ">>deu<<", ">>cmn_Hans<<", "<pad>"]
    vocabulary = json.dumps({piece: i for i, piece in enumerate(known)}).encode()
    write(folder, {"source.spm": model, "target.spm": model, "vocab.json": vocabulary}, "marian")
    return len(known)


def state(folder, file="tokenizer_config.json", **values):
    path = folder / file
    known = json.loads(path.read_text()) | values if path.exists() else values
    path.write_text(json.dumps({key: value for key, value in known.items() if value is not None}))


def started(name, folder):
    """Settings of a model of these tokenizers, which its config.json states."""
    if name == "marian":
        size = as_marian(folder)
        return "Marian", dict(vocab_size=size, pad_token_id=size - 1, decoder_start_token_id=size - 1, eos_token_id=0)
    if name in ("nllb", "legacy"):
        as_nllb(folder, {"legacy_behaviour": name == "legacy"})
        return "M2M100", {"vocab_size": 404}
    if name == "m2m":
        write(folder, of_m2m(), "m2m_100", {"tokenizer_class": "M2M100Tokenizer"})
        return "M2M100", {"vocab_size": len(json.loads((folder / "vocab.json").read_text())) + 108}
    made = {"mbart": "MBartTokenizer", "mbart50": "MBart50Tokenizer"}[name]
    write(folder, sentence_pieces(), "mbart", {"tokenizer_class": made})
    size = len(transformers.AutoTokenizer.from_pretrained(folder))
    return "MBart", {"vocab_size": size, "decoder_start_token_id": 2 if name == "mbart50" else None}


@pytest.fixture(params=STATED)
def speaking(request, tmp_path):
    """(name, a folder with a model's config and its tokenizer, whose config states the languages of STATED)."""
    name, folder = request.param, tmp_path / "folder"
    folder.mkdir()
    kind, sizes = started(name, folder)
    getattr(transformers, f"{kind}Config")(**SIZES, **sizes).save_pretrained(folder)
    source, target = STATED[name]
    state(folder, **({"target_lang": target} if name == "marian" else {"src_lang": source, "tgt_lang": target}))
    return name, folder


def opened(folder, languages=("", "")):
    return make_tokenizers(str(folder), 0, [], [], one=True, spoken=Spoken(*languages))


def theirs_of(name, folder, languages):
    """(tokenizer of transformers, texts that it encodes, id of the target's language, where it has one)."""
    source, target = languages
    if name == "marian":
        return transformers.MarianTokenizer.from_pretrained(folder), [f">>{target}<< {text}" for text in TEXTS], None
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, src_lang=source, tgt_lang=target)
    return tokenizer, TEXTS, tokenizer.convert_tokens_to_ids(f"__{target}__" if name == "m2m" else target)


def test_stated_languages_stand_where_transformers_puts_them_and_a_users_go_before_them(speaking):
    name, folder = speaking
    for languages, given in ((STATED[name], ("", "")), (OTHER[name], OTHER[name])):
        source, target = opened(folder, given)
        tokenizer, texts, code = theirs_of(name, folder, languages)
        assert [source.encode(text).tolist() for text in TEXTS] == [tokenizer(text)["input_ids"] for text in texts]
        inner = [text for text in tokenizer(text_target=list(TEXTS))["input_ids"]]
        assert [{*target.encode(text).tolist()} | {target.ids.end} for text in TEXTS] == [
            {*ids} - ({code} if name == "mbart" else set()) for ids in inner
        ]
        if code is not None:
            first = (target.ids.begin, None) if name == "mbart" else (2, target.ids.forced_begin)
            assert first == ((code, None) if name == "mbart" else (2, code))
        kept = open_tokenizers(record_tokenizers(source, target))  # as a run does, which has no config.json of a model
        assert [kept[0].encode(text).tolist() for text in TEXTS] == [source.encode(text).tolist() for text in TEXTS]
        assert kept[1].ids == target.ids


def test_languages_that_nothing_states_are_asked_for_by_their_flags(speaking):
    name, folder = speaking
    state(folder, src_lang=None, tgt_lang=None, target_lang=None)
    source, target = OTHER[name]
    with pytest.raises(UserError, match=r"give .*`data\.target_language`.*there are \w+, \w+, ") as error:
        opened(folder)[0].encode("x")
    assert len(str(error.value)) < 500 and ("`data.source_language" in str(error.value)) == bool(source)
    if source:
        for given, missing in (((source, ""), "target"), (("", target), "source")):
            with pytest.raises(
                UserError, match=rf"language of its {missing}s; give `data\.{missing}_language`: there are "
            ):
                opened(folder, given)
    with pytest.raises(UserError, match=r"^data\.target_language is klingon, which is no language of its tokenizer"):
        opened(folder, (source, "klingon"))
    assert nearest("de", ["ydd_Hebr", "deu_Latn"]) == "; nearest: deu_Latn, ydd_Hebr"
    if source:
        state(folder, tgt_lang="xx")
        with pytest.raises(
            UserError, match=r"zer_config\.json: tgt_lang is xx, which is .* with `data\.target_language`;"
        ):
            opened(folder, (source, ""))


@pytest.mark.parametrize("speaking", ["marian"], indirect=True)
def test_a_source_of_marian_may_name_its_language_itself(speaking):
    _, folder = speaking
    source = opened(folder)[0]  # whose config states deu
    assert source.encode(">>cmn_Hans<< x y").tolist() == opened(folder, ("", "cmn_Hans"))[0].encode("x y").tolist()
    with pytest.raises(UserError, match=r"^the text '>>xy<< a' begins with no language that its tokenizer knows; give"):
        source.encode(">>xy<< a")
    with pytest.raises(UserError, match=r"^data\.source_language is eng, but .* names no languages of sources: leave"):
        opened(folder, ("eng", ""))


@pytest.mark.parametrize("speaking", ["nllb", "mbart"], indirect=True)
def test_two_statements_that_differ_are_refused_and_generation_settings_alone_are_taken(speaking):
    name, folder = speaking
    target, code = OTHER[name][1], theirs_of(name, folder, OTHER[name])[2]
    state(
        folder,
        "generation_config.json",
        **{"decoder_start_token_id" if name == "mbart" else "forced_bos_token_id": code},
    )
    with pytest.raises(
        UserError, match=rf"begin with {target}, and its tokenizer_config.json states tgt_lang .*; name"
    ):
        opened(folder)
    state(folder, tgt_lang=None)
    ids = opened(folder)[1].ids
    assert code == (ids.begin if name == "mbart" else ids.forced_begin)


@slow
def test_a_network_says_what_generate_says_in_the_languages_stated_and_in_others(speaking, tmp_path, capsys):
    """Of files, of flags, of a run that keeps them, and of the folder that it goes back to."""
    name, folder = speaking
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    model.save_pretrained(folder)

    def generated(languages):
        tokenizer, texts, code = theirs_of(name, folder, languages)
        told = {"marian": {}, "mbart": {"decoder_start_token_id": code}}.get(name, {"forced_bos_token_id": code})
        return model.generate(**tokenizer(texts, return_tensors="pt", padding=True), **told, max_new_tokens=24).tolist()

    def said(path, languages=("", "")):
        source, target = languages
        found = vit_jax.predict(path, TEXTS, max_length=24, source_language=source, target_language=target)
        return [text for _, text in found]

    decode = opened(folder)[1].decode
    there, other = ([decode(row[1:]) for row in generated(languages[name])] for languages in (STATED, OTHER))
    assert said(folder) == there != other == said(folder, OTHER[name])
    source, target = OTHER[name]
    vit_jax.export(vit_jax.load(folder, source_language=source, target_language=target), tmp_path / "run")
    assert said(tmp_path / "run") == other and said(tmp_path / "run", STATED[name]) == there
    layout = {"marian": "marian", "mbart": "mbart", "mbart50": "mbart"}.get(name, "m2m-100")
    vit_jax.export(str(tmp_path / "run"), tmp_path / "back", to=layout)
    assert said(tmp_path / "back") == other
    if name != "marian":  # whose tokenizer leaves the language to the text
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
        written = type(model).from_pretrained(tmp_path / "back").eval()
        rows = written.generate(**tokenizer(TEXTS, return_tensors="pt", padding=True), max_new_tokens=24)
        assert [decode(row[1:]) for row in rows.tolist()] == other, "its own files say it all"
    flags = ["--data.target-language", target, *(["--data.source-language", source] if source else [])]
    capsys.readouterr()
    assert predict.command([str(folder), TEXTS[0], "--max-length", "24", *flags]) == 0
    assert capsys.readouterr().out == f"{other[0]}\n"


@slow
@pytest.mark.parametrize("speaking", ["nllb"], indirect=True)
def test_a_run_keeps_its_languages_and_another_may_start_from_it_in_others(speaking, working_folder, inside):
    name, folder = speaking
    transformers.AutoModelForSeq2SeqLM.from_config(transformers.AutoConfig.from_pretrained(folder)).save_pretrained(
        folder
    )
    (working_folder / "pairs.tsv").write_text("".join(f"the dog {i}\tder hund {i}\n" for i in range(40)))
    source, target = OTHER[name]
    common = ["--data.source", "tsv:pairs.tsv", "--data.lengths", "64", "--data.tokens", "1024", "--epochs", "1"]
    first = ["train", "--init", folder, *common, "--name", "r", "--data.source-language", source]
    for words in (
        [*first, "--data.target-language", target],
        [*first, "--data.target-language", target],
        ["train", "--resume", "runs/r"],
        ["train", "--init", "runs/r", *common, "--name", "same"],
        ["train", "--init", "runs/r", *common, "--name", "other", "--data.target-language", "fra_Latn"],
    ):
        done = inside(*words, cwd=working_folder)
        assert done.returncode == 0, done.stderr
    for run, code in (("r", target), ("same", target), ("other", "fra_Latn")):
        stated = json.loads((working_folder / "runs" / run / "tokenizer" / "tokenizer_config.json").read_text())
        assert (stated["src_lang"], stated["tgt_lang"]) == (source, code)


def test_a_tokenizer_of_ones_own_has_no_languages_whatever_its_model(tmp_path):
    files = make_tokenizers("bpe", 600, TEXTS * 9, TEXTS * 9, one=True)[0].files
    write(tmp_path, {name: files[name] for name in ("tokenizer.json",)}, "mbart")
    state(tmp_path, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")
    assert opened(tmp_path)[0].encode("x y").tolist()
    with pytest.raises(UserError, match=r"^data\.target_language is de_DE, but .* names no languages: leave it out"):
        opened(tmp_path, ("", "de_DE"))


def test_languages_of_a_network_that_reads_no_sentences_are_refused(tmp_path):
    config = vit_jax.ViTConfig(image=8, patch=4, width=8, depth=1, heads=2, hidden=16, classes=3)
    vit_jax.export(vit_jax.ViT(config, rngs=nnx.Rngs(0)), tmp_path / "vit.safetensors")
    with pytest.raises(UserError, match=r"^data\.target_language is de, but .* holds a ViT, which reads no sentences"):
        vit_jax.load(tmp_path / "vit.safetensors", target_language="de")
