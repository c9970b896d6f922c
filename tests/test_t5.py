"""Folders of the T5 family in use: a text in, a text out, as `generate` of transformers says it; and back again."""

import json
import re
from functools import partial

import jax
import numpy as np
import pytest
from flax import nnx

import vit_jax
from tests.installed import library
from tests.test_tokenizer_classes import spiece, write
from vit_jax.commands import predict
from vit_jax.config.groups import trainable_table
from vit_jax.config.run import LoraConfig, OptimConfig, RunConfig
from vit_jax.config.trees import flatten, unflatten
from vit_jax.errors import UserError
from vit_jax.models.build import definition
from vit_jax.models.state import split_model
from vit_jax.tasks.translate import encoding, spec
from vit_jax.training.engine.engine import Engine
from vit_jax.training.engine.optim import Optimizer

slow = pytest.mark.slow
pytest.importorskip("tokenizers")
pytest.importorskip("sentencepiece")
SIZES = dict(d_model=24, d_kv=7, d_ff=40, num_layers=3, num_decoder_layers=2, num_heads=2, initializer_factor=3.0)
SIZES |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=20, decoder_start_token_id=0)
TEXTS = ["The small dog sees seven cats.", "A", "Ein  Hund\nsieht <extra_id_0> Katzen", "👩‍👩‍👧 日本"]
BYTES = {"tokenizer_class": "ByT5Tokenizer"}
FAMILY = {  # {name: (class, its settings, the files of its tokenizer, tokenizer_config.json)}
    "t5": ("T5", {}, spiece, {}),
    "flan": ("T5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, spiece, {}),
    "mt5": ("MT5", {}, spiece, {"extra_ids": 0, "tokenizer_class": "T5Tokenizer"}),
    "umt5": ("UMT5", {}, spiece, {"extra_ids": 30, "tokenizer_class": "T5Tokenizer"}),
    "byt5": ("T5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, dict, BYTES),
}


@pytest.fixture
def transformers():
    return library("transformers")


def made(transformers, name, folder, rows=0, **more):
    """(the network of a class with random weights, its tokenizer), saved in a folder."""
    import torch

    kind, settings, files, config = FAMILY[name]
    folder.mkdir(exist_ok=True)
    write(folder, files(), kind.lower(), config)
    tokenizer_class = transformers.ByT5Tokenizer if config == BYTES else transformers.T5Tokenizer
    tokenizer = tokenizer_class.from_pretrained(folder)
    torch.manual_seed(1)
    size = rows or -(-len(tokenizer) // 128) * 128
    settings = getattr(transformers, f"{kind}Config")(vocab_size=size, **SIZES, **settings, **more)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(settings).eval()
    model.save_pretrained(folder)
    return model, tokenizer


def said(model, tokenizer, texts=TEXTS, **settings):
    inputs = tokenizer(list(texts), return_tensors="pt", padding=True)
    rows = model.generate(**inputs, **{"max_new_tokens": 24, **settings})
    return [tokenizer.decode(cut(row), skip_special_tokens=True).strip() for row in rows.tolist()]


def cut(row):
    """The ids before the first end or padding after the decoder's first input, where ours stops; theirs skips them."""
    ends = [i for i, token in enumerate(row) if token in (0, 1) and i]
    return row[: ends[0] if ends else None]


def check_logits(network, model, tokenizer):
    """Of 40 tokens, beyond the last bucket: answers alone do not show the scale of logits, or a decoder's buckets."""
    import torch

    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    target = np.random.default_rng(0).integers(0, 100, (len(TEXTS), 40))
    with torch.no_grad():
        expected = model(**inputs, decoder_input_ids=torch.tensor(target)).logits.numpy()
    source, real = inputs["input_ids"].numpy(), inputs["attention_mask"].numpy().astype(bool)
    logits = nnx.jit(lambda net: net(source, target, source_padding=real))(network)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["t5", *(pytest.param(name, marks=slow) for name in FAMILY if name != "t5")])
def test_a_folder_says_what_generate_says_and_goes_back_with_its_tokenizer(name, transformers, tmp_path):
    model, tokenizer = made(transformers, name, tmp_path / "theirs")
    net = vit_jax.load(tmp_path / "theirs")
    theirs = said(model, tokenizer)
    assert [text.strip() for text in net.predict(TEXTS, max_length=24)] == theirs and len({*theirs}) > 2
    check_logits(net.model, model, tokenizer)
    layout = FAMILY[name][0].lower()
    vit_jax.export(net, tmp_path / "run")
    for source in (str(tmp_path / "theirs"), str(tmp_path / "run")):
        back = tmp_path / f"back-{len(source)}"
        vit_jax.export(source, back, to=layout)
        again = transformers.AutoTokenizer.from_pretrained(back)
        assert len(again) == len(tokenizer)
        assert [again(text)["input_ids"] for text in TEXTS] == [tokenizer(text)["input_ids"] for text in TEXTS]


def test_sources_and_answers_may_be_longer_than_those_of_training(transformers, tmp_path, capsys, monkeypatch):
    """700 tokens, where config.json states n_positions 512, and 60, where texts have 32."""
    import torch

    monkeypatch.setattr(spec, "USUAL_LENGTH", 32)

    model, tokenizer = made(transformers, "t5", tmp_path / "it", n_positions=512)
    monkeypatch.setattr(encoding, "MUCH", 4 * 2 * 1024**2)
    net, text = vit_jax.load(tmp_path / "it"), "The small dog sees seven cats. A" * 40
    inputs = tokenizer([text], return_tensors="pt")
    assert 690 < inputs["input_ids"].shape[1] < 1024
    assert net.predict([TEXTS[0], text], max_length=24) == said(model, tokenizer, [TEXTS[0], text])
    told = "1 x 1,024 tokens: in each layer the scores of their attention take 0.0 GB"
    assert capsys.readouterr().err.count(told) == 1
    with torch.no_grad():
        memory = model.get_encoder()(**inputs).last_hidden_state[0]
    np.testing.assert_allclose(net.encode(text).memory, memory.numpy(), rtol=0, atol=5e-4)
    assert len(net.attention(text)[0]) == inputs["input_ids"].shape[1]
    assert "any length" in repr(net)
    theirs = said(model, tokenizer, [TEXTS[0]], min_new_tokens=59, max_new_tokens=60)
    assert net.predict([TEXTS[0]], min_length=60, max_length=60) == theirs


@pytest.mark.parametrize(("name", "rows"), [("t5", 1024), ("umt5", 200), ("byt5", 259)])
def test_a_tokenizer_with_other_ids_than_the_network_is_refused(name, rows, transformers, tmp_path):
    _, tokenizer = made(transformers, name, tmp_path / "it", rows)
    ids = f"{len(tokenizer):,}"
    with pytest.raises(
        UserError, match=rf"ids for {ids} and {ids}, and the network for {rows:,} and {rows:,}; put there the one"
    ):
        vit_jax.load(tmp_path / "it")


def test_a_folder_of_bytes_that_names_no_tokenizer_is_told_how(transformers, tmp_path):
    made(transformers, "byt5", tmp_path / "it")
    (tmp_path / "it" / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match=r'of ByT5 that is a tokenizer_config\.json with \{"tokenizer_class": "ByT5Tok'):
        vit_jax.load(tmp_path / "it").predict("a")
    config = tmp_path / "it" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | BYTES))  # as Google published it
    assert isinstance(vit_jax.load(tmp_path / "it").predict("a", max_length=5), str)
    vit_jax.export(str(tmp_path / "it"), tmp_path / "back", to="t5")
    assert len(transformers.AutoTokenizer.from_pretrained(tmp_path / "back")) == 384


TASKS = {
    "summarization": {"prefix": "summarize: ", "num_beams": 3, "max_length": 9, "min_length": 4, "early_stopping": True}
    | {"length_penalty": 2.0, "no_repeat_ngram_size": 3},
    "translation_en_to_de": {"prefix": "translate English to German: ", "num_beams": 2, "max_length": 12},
}


def with_tasks(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "task_specific_params": TASKS}))


@pytest.mark.parametrize("task", ["summarization", pytest.param("translation_en_to_de", marks=slow)])
def test_a_task_of_config_json_has_its_prefix_and_its_search(task, transformers, tmp_path, capsys):
    model, tokenizer = made(transformers, "t5", tmp_path / "it")
    with_tasks(tmp_path / "it")
    settings = dict(TASKS[task])
    prefix = settings.pop("prefix")
    theirs = said(model, tokenizer, [prefix + text for text in TEXTS], **settings, max_new_tokens=None)
    ours = [text.strip() for text in vit_jax.load(tmp_path / "it", task=task).predict(TEXTS)]
    assert ours == theirs != said(model, tokenizer, TEXTS, **settings, max_new_tokens=None)
    again = vit_jax.predict(tmp_path / "it", TEXTS, prefix=prefix, beam=1, max_length=8)
    assert [text.strip() for _, text in again] == said(model, tokenizer, [prefix + t for t in TEXTS], max_new_tokens=8)
    assert predict.command([str(tmp_path / "it"), TEXTS[0], "--data.task", task]) == 0
    assert capsys.readouterr().out.strip() == theirs[0]
    with pytest.raises(
        UserError, match=r"data\.task is summarisation, but its config\.json has no such task; nearest: su"
    ):
        vit_jax.load(tmp_path / "it", task="summarisation")


@slow
def test_a_run_keeps_its_prefix_and_what_starts_from_it_has_it_too(transformers, tmp_path, working_folder, inside):
    made(transformers, "t5", tmp_path / "it")
    with_tasks(tmp_path / "it")
    (working_folder / "pairs.tsv").write_text("".join(f"the dog {i}\tder Hund {i}\n" for i in range(40)))
    common = ["--data.source", "tsv:pairs.tsv", "--data.lengths", "64", "--data.tokens", "1024", "--epochs", "1"]
    first = ["train", "--init", tmp_path / "it", *common, "--name", "r", "--data.task", "translation_en_to_de"]
    for words in (first, ["train", "--resume", "runs/r"], ["train", "--init", "runs/r", *common, "--name", "same"]):
        done = inside(*words, cwd=working_folder)
        assert done.returncode == 0, done.stderr
    other = inside("train", "--init", "runs/r", *common, "--name", "o", "--data.prefix", "say: ", cwd=working_folder)
    told = " ".join((other.stdout + other.stderr).split())
    assert "it was trained with data.prefix 'translate English to German: ', and this run has 'say: '" in told
    # Another task has its own prefix, also where the run had one of its own; both may be stated.
    summarize = ["--data.task", "summarization"]
    for name, source, words in (
        ("t", "r", summarize),
        ("ot", "o", summarize),
        ("both", "r", [*summarize, "--data.prefix", "sum: "]),
    ):
        done = inside("train", "--init", f"runs/{source}", *common, "--name", name, *words, cwd=working_folder)
        assert done.returncode == 0, done.stderr
    for name, prefix, search in (
        ("r", "translate English to German: ", (2, 11)),
        ("same", "translate English to German: ", (2, 11)),
        ("o", "say: ", (2, 11)),
        ("t", "summarize: ", (3, 8)),
        ("ot", "summarize: ", (3, 8)),
        ("both", "sum: ", (3, 8)),
    ):
        net = vit_jax.load(working_folder / "runs" / name)
        assert (net.task.decoding.beam, net.task.decoding.max_length) == search
        assert net.encoded("the dog")[0].tolist() == net.source.encode(f"{prefix}the dog").tolist()
    with pytest.raises(UserError, match=r"data\.prefix is 'x: ', but .*o was trained with 'say: ': leave it out"):
        vit_jax.load(working_folder / "runs" / "o", prefix="x: ")


TUNED = {  # {how: (options of a run, the names and the number of what its step may change)}
    "LoRA": ({"lora": LoraConfig(2)}, r"(encoder|decoder)\.blocks\.\d\.\w*attention\.(query|value)\.kernel", 14),
    "a frozen encoder": ({"optim": OptimConfig(freeze=("encoder.*",))}, r"decoder\..*|target\.embedding", 29),
}


@pytest.mark.parametrize("how", ["LoRA", pytest.param("a frozen encoder", marks=slow)])
def test_a_step_of_tuning_changes_what_it_may_and_no_other_bit(how, transformers, tmp_path, quick_compilation):
    """LoRA by its default maps: queries and values of both stacks and of what lies between them; the head is tied."""
    made(transformers, "t5", tmp_path / "it")
    net, (options, changing, count) = vit_jax.load(tmp_path / "it"), TUNED[how]
    run = RunConfig("translate", net.run.model, net.run.data, batch=2, init="given", **options)
    engine = Engine(run, partial(definition, run.model), net.task, Optimizer(run.optim, 1, 1, trainable_table(run)))
    given = jax.device_get(flatten(split_model(net.model)[1]))
    ids = np.stack([net.source.encode(f"{text} dog sees seven cats.")[:8] for text in ("A", "The small")])
    state, _ = engine.train(engine.start(unflatten(given)), {"source": ids, "target": ids[:, :7]})
    done = engine.gather(state)
    changed = {name for name, x in flatten(done.parameters).items() if not np.array_equal(x, given[name])}
    assert changed == {name for name in given if re.fullmatch(changing, name)} and len(changed) == count
    for name, x in flatten((done.lora or {}).get("kernels", {})).items():  # which the factors are added to
        np.testing.assert_array_equal(x, given[name])
