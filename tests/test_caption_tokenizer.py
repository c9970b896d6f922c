"""A captioner with a tokenizer of Hugging Face: trained, spoken by both libraries, fine-tuned, and given back."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import vit_jax
from vit_jax.data.captions import open as captions
from vit_jax.data.captions import shapes
from vit_jax.tasks.can import Searches

END = "<|endoftext|>"
# Of the form of GPT-2, and trained no longer than it takes to say different captions of different pictures.
WORDS = (
    "shapes --model.vit.eps 1e-12 --model.vit.cls-token --model.text.width 48 --model.text.activation gelu_tanh "
    "--model.text.eps 1e-5 --model.text.position learned --model.text.no-output-bias --model.text.no-scale-embedding "
    "--model.text.embedding-std 0.3 --model.text.max-length 26 --data.length 24 --data.drawn 6400 --epochs 2 "
    "--log-every 100 --data.tokenizer tok --name own"
)


def as_gpt2(folder):
    """A tokenizer of bytes in pairs, trained on captions of scenes; one token begins, ends and pads."""
    tokenizers = pytest.importorskip("tokenizers")
    parts = tokenizers.pre_tokenizers
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = parts.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=[END], initial_alphabet=sorted(parts.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(shapes.draw(300, 1).captions, trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {name: END for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **names}))


@pytest.mark.slow
def test_a_folder_is_what_generate_says_and_goes_back_with_all_its_files(inside, working_folder, monkeypatch):
    """Tokens, greedy and of beam 4, and texts; then on one's own pictures, and to a folder of the library again."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.parity.libraries import load

    transformers = load("transformers")
    monkeypatch.setattr(captions, "SPLITS", {"validation": 8, "test": 8, "unseen": 8})
    monkeypatch.chdir(working_folder)
    as_gpt2(working_folder / "tok")
    for words in (["train", *WORDS.split()], ["convert", "runs/own", "theirs", "--to", "vision-encoder-decoder"]):
        done = inside(*words, cwd=working_folder)
        assert done.returncode == 0, done.stderr
    net, pixels = vit_jax.load("theirs"), shapes.draw(32, 99).pixels
    assert net.task.target.ids.pad == net.task.target.ids.end == 0 and net.task.decoding.max_length == 20
    model = transformers.VisionEncoderDecoderModel.from_pretrained("theirs").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained("theirs")
    images = torch.from_numpy(np.ascontiguousarray(np.asarray(net.inputs(pixels)).transpose(0, 3, 1, 2)))
    for beam in (1, 4):
        out = model.generate(pixel_values=images, num_beams=beam)
        searching = replace(net, task=net.task.able(Searches).with_settings({**vars(net.task.decoding), "beam": beam}))
        said = searching.predict(pixels)
        assert said == tokenizer.batch_decode(out, skip_special_tokens=True)
        ids = [net.task.target.encode(text).tolist() for text in said]
        assert ids == [net.task.target.ids.until_end(row) for row in out[:, 1:].numpy()]
        print(f"beam {beam}: {len({*said})} different captions of {len({len(row) for row in ids})} lengths")
        assert len({*said}) > 16
    rows = []
    for i, (image, text) in enumerate(zip(pixels, shapes.draw(32, 99).captions, strict=True)):
        Image.fromarray(image).save(f"{i}.png")
        rows.append((f"{i}.png", f"Look: {text}"))
    with open("captions.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("image", "caption"), *rows])
    done = inside("predict", "theirs", "0.png", "--attention", "a.png", cwd=working_folder)
    assert done.returncode == 0 and done.stdout.strip() == f"0.png: {net.predict(pixels[0])}", done.stderr
    assert Image.open("a.png").size[0] > 600
    tuned = ["--init", "theirs", "--data.source", "captions:.", "--data.length", 26, "--epochs", 2, "--batch", 8]
    done = inside("train", *tuned, "--name", "tuned", cwd=working_folder)
    assert done.returncode == 0, done.stderr
    done = inside("convert", "runs/tuned", "back", "--to", "vision-encoder-decoder", cwd=working_folder)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (working_folder / "back").iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "generation_config.json"} <= names
    again = transformers.AutoTokenizer.from_pretrained("back")
    assert again(rows[0][1]).input_ids == vit_jax.load("back").task.target.encode(rows[0][1]).tolist()
    transformers.VisionEncoderDecoderModel.from_pretrained("back")
