"""Words and ids, number words against hand-written cases, and batches by token budget."""

import dataclasses
import functools
import gzip
import io
import json
import random
import sys
import unicodedata

import numpy as np
import pytest

from vit_jax.commands.prediction.inputs import Inputs
from vit_jax.commands.prediction.sources import sentences
from vit_jax.data.batches import batches, evaluation_batches
from vit_jax.data.order import TokenOrder
from vit_jax.data.texts import numbers
from vit_jax.data.texts.config import SentenceData
from vit_jax.data.texts.pairs import read_pairs
from vit_jax.errors import UserError
from vit_jax.presets.table import preset
from vit_jax.tasks.caption.score import plain
from vit_jax.tasks.computed import task_class
from vit_jax.text.record import make_tokenizers, open_tokenizers
from vit_jax.text.vocabulary import Vocabulary, closed_vocabulary, count_words, is_mark, words

# ------------------------------------------------------------------------------------- vocabularies


def test_words_are_lower_case_and_punctuation_stands_apart():
    assert words("Zwei junge, weiße Männer.") == ["zwei", "junge", ",", "weiße", "männer", "."]
    assert words(" \n ") == []


SCRIPTS = {
    "Hindi": ("नमस्ते, दुनिया!", ["नमस्ते", ",", "दुनिया", "!"]),
    "decomposed Latin": ("Cafe\u0301 n\u0303a-e\u0308", ["cafe\u0301", "n\u0303a", "-", "e\u0308"]),
    "Persian with joiners": ("می\u200cخواهم", ["می\u200cخواهم"]),
    "emoji": ("👍🏽 ❤\ufe0f!", ["👍🏽", "❤\ufe0f", "!"]),
    "a mark that follows nothing": (" \u0301a", ["\u0301", "a"]),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_marks_belong_to_the_character_before_them(script):
    """Whatever is split can be said as it is written, but for case and the spaces around punctuation."""
    text, expected = SCRIPTS[script]
    assert words(text) == expected
    vocabulary = closed_vocabulary(expected)
    said = vocabulary.decode(vocabulary.encode(text))
    assert said == " ".join(expected) == vocabulary.compared(text) and plain(text) == [
        word for word in expected if any(map(str.isalnum, word))
    ]


def test_words_are_those_that_are_found_letter_by_letter():
    """In random texts of all planes of Unicode; \u200b is a word, as any character that is no letter."""
    every = [chr(i) for i in range(0x20000) if unicodedata.category(chr(i)) not in ("Cs", "Co", "Cn")]
    pools, draw = (every, [c for c in every if is_mark(c)], "abc é.,!_1", "\u200b  ", "👍🏽👩"), random.Random(0)
    for _ in range(2000):
        text, found, last = "".join(draw.choice(draw.choice(pools)) for _ in range(12)), list[str](), ""
        for c in text.lower():
            letter = "letter" if c.isalnum() or c == "_" else "other"
            if not c.isspace() and ((last and is_mark(c)) or last == letter == "letter"):
                found[-1] += c
            elif not c.isspace():
                found.append(c)
            last = "" if c.isspace() else last if last and is_mark(c) else letter
        assert words(text) == found


def test_a_vocabulary_of_the_first_runs_is_read_as_it_was_written(tmp_path):
    """It has marks as words of their own, which no vocabulary has now."""
    old, new = (count_words(["नमस्ते दुनिया", "नमस्ते e \u0301", "e \u0301"], apart=apart) for apart in (True, False))
    assert new.entries[4:] == ("e", "नमस्ते") and not new.remark and {"न", "मस"} & {*new.entries} == set()
    assert old.encode("नमस्ते").size == 4 and "ते" not in old.entries and "older version" in old.remark
    for one in (old, new):
        read = [Vocabulary(one.entries), open_tokenizers({"vocabulary": {"source": one.kept, "target": ["a"]}})[1]]
        assert [each.apart for each in read] == [one.apart] * 2
        assert (read[0].encode("नमस्ते cafe\u0301") == one.encode("नमस्ते cafe\u0301")).all()
        for record in ({"vocabulary": {"source": ["a"], "target": one.kept}}, {"words": one.kept}):
            (tmp_path / "config.json").write_text(json.dumps(record))
            kept = SentenceData().in_folder(tmp_path).tokenizer
            assert kept == ("words-apart" if one is old else "words")
            assert make_tokenizers(kept, 0, ["नमस्ते"] * 2, ["नमस्ते"] * 2, one=True)[0].apart == one.apart


def test_ids_go_there_and_back():
    vocabulary = closed_vocabulary(["one", "two", "one"])
    assert vocabulary.entries == ("<pad>", "<bos>", "<eos>", "one", "two")
    assert vocabulary.encode("two one TWO").tolist() == [4, 3, 4] and vocabulary.encode("one").dtype == np.int32
    ids = vocabulary.ids
    assert (ids.pad, ids.begin, ids.end, ids.unknown, ids.banned) == (0, 1, 2, None, (0, 1))
    assert vocabulary.decode([4, 3, ids.end, 4]) == vocabulary.decode([4, 3, ids.pad, 4]) == "two one"
    assert vocabulary.decode([ids.end]) == ""


def test_a_closed_vocabulary_names_the_word_that_it_lacks():
    with pytest.raises(
        UserError, match=r"the text 'two tree' has the word 'tree', which is not in the vocabulary; nearest: three$"
    ):
        closed_vocabulary(["one", "two", "three"]).encode("two tree")
    for empty in ("", "  "):
        with pytest.raises(UserError, match=rf"the text '{empty}' has no words; give at least one"):
            closed_vocabulary(["one"]).encode(empty)


def test_a_counted_vocabulary_has_what_occurs_twice_and_takes_any_word():
    vocabulary = count_words(["b a", "a c b", "a"])
    assert vocabulary.entries == ("<pad>", "<bos>", "<eos>", "<unk>", "a", "b")
    assert vocabulary.encode("c a zzz b").tolist() == [3, 4, 3, 5] and vocabulary.ids.unknown == 3
    assert Vocabulary(vocabulary.entries).open and not closed_vocabulary(["a"]).open


def test_a_special_name_is_no_word():
    assert not {0, 1, 2} & set(count_words(["<pad> a", "<eos> a"]).encode("<pad> <bos> <eos>").tolist())


# ------------------------------------------------------------------------------------- number words

HAND_WRITTEN = {
    1: ("one", "eins"),
    21: ("twenty one", "ein und zwanzig"),
    121: ("one hundred twenty one", "ein hundert ein und zwanzig"),
    21_021: ("twenty one thousand twenty one", "ein und zwanzig tausend ein und zwanzig"),
    101_101: ("one hundred one thousand one hundred one", "ein hundert ein tausend ein hundert eins"),
    999_999: (
        "nine hundred ninety nine thousand nine hundred ninety nine",
        "neun hundert neun und neunzig tausend neun hundert neun und neunzig",
    ),
}


@pytest.mark.parametrize("n", HAND_WRITTEN)
def test_numbers_in_words(n):
    assert (numbers.english(n), numbers.german(n)) == HAND_WRITTEN[n]


def value(text, units, tens, hundred, thousand):
    """The number of words, read the other way round: by adding and multiplying."""
    known = {w: i for i, w in enumerate(units.split())} | {w: 10 * i for i, w in enumerate(tens.split(), 2)}
    total = part = 0
    for word in text.split():
        if word == thousand:
            total, part = 1000 * part, 0
        else:
            part = 100 * part if word == hundred else part + {**known, "eins": 1, "und": 0}[word]
    return total + part


def english_value(text):
    units = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    tens = "twenty thirty forty fifty sixty seventy eighty ninety"
    return value(text, f"{units} seventeen eighteen nineteen", tens, "hundred", "thousand")


def german_value(text):
    units = "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn"
    tens = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"
    return value(text, f"{units} siebzehn achtzehn neunzehn", tens, "hundert", "tausend")


def test_all_numbers_read_back():
    chosen = [*range(2000), *range(0, 1_000_000, 997), 999_999]
    for n in chosen:
        assert (english_value(numbers.english(n)), german_value(numbers.german(n))) == (n, n)
        assert set(numbers.english(n).split()) <= set(numbers.ENGLISH) and set(numbers.german(n).split()) <= set(
            numbers.GERMAN
        )
    assert len({numbers.german(n) for n in chosen}) == len(set(chosen))


# ------------------------------------------------------------------------------------------- splits

RUN = preset("numbers").run


def open_dataset(run):
    return task_class(run.task).open_data(run)


@functools.cache
def the_numbers():
    """The data of RUN, which no test changes."""
    return open_dataset(RUN)


def test_no_number_is_in_two_splits():
    data = the_numbers()
    read = {
        name: {english_value(data.source.decode(row)) for row in split.source} for name, split in data.splits.items()
    }
    assert {name: len(found) for name, found in read.items()} == {
        "train": 9000,
        "validation": 1000,
        "test": 1000,
        "longer": 500,
    }
    assert max(max(read[name]) for name in ("train", "validation", "test")) < 100_000 <= min(read["longer"])
    assert len(set().union(*read.values())) == 11_500
    for name, split in data.splits.items():
        for source, target in zip(split.source[:50], split.target[:50], strict=True):
            assert german_value(data.target.decode(target)) == english_value(data.source.decode(source)), name
    other = open_dataset(dataclasses.replace(RUN, seed=1))
    assert np.array_equal(other.splits["test"].source, data.splits["test"].source), "test is the same for every seed"
    assert not np.array_equal(other.splits["validation"].source, data.splits["validation"].source)
    assert data.splits["test"].chance == pytest.approx(1 / 1000)


def test_tied_tables_share_a_vocabulary():
    data = the_numbers()
    assert data.source is data.target and len(data.source) == 65
    apart = open_dataset(dataclasses.replace(RUN, model=dataclasses.replace(RUN.model, tie="decoder")))
    assert (len(apart.source), len(apart.target)) == (33, 35)
    sized = RUN.model.with_sizes(apart.sizes)
    assert (sized.source_vocabulary, sized.target_vocabulary, sized.outputs) == (33, 35, 35)


def test_shuffled_sources_are_the_same_sources_for_other_targets():
    plain, control = the_numbers(), open_dataset(with_data(shuffle_sources=True))
    a, b = plain.splits["train"], control.splits["train"]
    assert np.array_equal(a.target, b.target) and sorted(map(bytes, a.source)) == sorted(map(bytes, b.source))
    assert (a.source == b.source).all(1).mean() < 0.01
    assert np.array_equal(plain.splits["test"].source, control.splits["test"].source), (
        "what is asked in the end is the truth"
    )


def with_data(**fields):
    return dataclasses.replace(RUN, data=dataclasses.replace(RUN.data, **fields))


# ------------------------------------------------------------------------------------------ batches


def test_every_pair_once_an_epoch_within_the_budget():
    data = open_dataset(with_data(tokens=256))
    train, order = data.splits["train"], data.order(RUN.batch, RUN.seed)
    steps = order.steps_per_epoch
    epochs = []
    for start in (0, steps):
        seen = []
        for batch in batches(train, order, start, start + steps):
            rows, length = batch["source"].shape
            assert batch["target"].shape == (rows, length - 1) and length in RUN.data.lengths
            assert 256 - length < rows * length <= 256
            real = batch["source"].any(1)
            assert np.array_equal(real, batch["target"].any(1)) and (np.diff(real.astype(int)) <= 0).all(), (
                "real rows come first"
            )
            seen += [bytes(np.pad(row, (0, 16 - length))) for row in batch["source"][real]]
        assert sorted(seen) == sorted(map(bytes, train.source))
        epochs.append(seen)
    assert epochs[0] != epochs[1]


def test_batches_are_a_function_of_seed_and_step():
    data = the_numbers()
    order, again, other = (data.order(RUN.batch, seed) for seed in (0, 0, 1))
    late = 2 * order.steps_per_epoch + 5
    assert np.array_equal(again.indices(late), order.indices(late))  # asked for first, and after
    assert [order.indices(s).tolist() for s in range(5)] == [again.indices(s).tolist() for s in range(5)]
    assert [order.indices(s).tolist() for s in range(5)] != [other.indices(s).tolist() for s in range(5)]


def test_lengths_are_mixed_within_an_epoch():
    padded = np.repeat([4, 8, 12], [40, 80, 120])
    order = TokenOrder(padded, {4: 10, 8: 5, 12: 3}, seed=0)
    lengths = [int(padded[order.indices(s)[0]]) for s in range(order.steps_per_epoch)]
    assert order.steps_per_epoch == 4 + 16 + 40 and lengths != sorted(lengths)
    assert all(len(set(padded[order.indices(s)])) == 1 for s in range(order.steps_per_epoch))


def test_a_target_is_padded_with_room_for_its_end():
    """A pair of 3 words in and 4 out needs a length of 5: the decoder reads a begin, or says an end, besides."""
    data = the_numbers()
    split = data.splits["test"]
    source, target = (split.source != 0).sum(1), (split.target != 0).sum(1)
    needed = np.maximum(source, target + 1)
    assert (split.padded >= needed).all() and (needed > split.padded - 4).all()


def test_a_split_is_read_whole_in_a_shape_for_each_length():
    """Each pair once, the short ones first, and padded to no more than a length that one of its batch needs."""
    split = the_numbers().splits["test"]
    shapes, seen = [], []
    for batch, indices in evaluation_batches(split, 128):
        (rows, length), real = batch["source"].shape, len(indices)
        assert rows == 128 and batch["target"].shape == (128, length - 1) and length == split.padded[indices].max()
        assert np.array_equal(batch["source"][:real], split.source[indices, :length])
        assert np.array_equal(batch["target"][:real], split.target[indices, : length - 1])
        assert not split.source[indices, length:].any() and not split.target[indices, length - 1 :].any()
        shapes.append(length)
        seen += indices.tolist()
    assert sorted(seen) == list(range(len(split))) and shapes == sorted(shapes)
    assert 1 < len({*shapes}) <= len(RUN.data.lengths) and len(shapes) == -(-len(split) // 128)


# ------------------------------------------------------------------------------------ pairs in files


@pytest.fixture
def folder(tmp_path):
    """train, val and two tests of English and German, one of them compressed."""
    for name, count in (("train", 12), ("val", 3), ("test_b", 2), ("test_a", 4)):
        for language, text in (("en", "A dog, number"), ("de", "Ein Hund, Nummer")):
            lines = "".join(f"{text} {name} {i % 3}.\n" for i in range(count)).encode()
            if name == "val":
                (tmp_path / f"{name}.{language}").write_bytes(lines)
            else:
                (tmp_path / f"{name}.{language}.gz").write_bytes(gzip.compress(lines))
    return tmp_path


def on(path, **fields):
    model = dataclasses.replace(RUN.model, tie="decoder")
    data = {"source": f"pairs:en-de:{path}", **fields}
    return dataclasses.replace(RUN, model=model, data=SentenceData(**data))


def test_pairs_of_files(folder):
    data = open_dataset(on(folder))
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 12, "validation": 3, "test": 4}
    assert data.source.decode(data.splits["train"].source[1]) == "a dog , number train 1 ."
    assert data.target.decode(data.splits["train"].target[2]) == "ein hund , nummer train 2 ."
    # What only validation has is unknown: words come from train.
    assert data.source.decode(data.splits["validation"].source[0]) == "a dog , number <unk> 0 ."
    turned = open_dataset(dataclasses.replace(on(folder), data=SentenceData(source=f"pairs:de-en:{folder}")))
    assert np.array_equal(turned.splits["test"].source[:, :15], data.splits["test"].target)
    assert data.identity == open_dataset(on(folder)).identity
    (folder / "val.de").write_text("Ein Hund.\n" * 3)
    assert data.identity != open_dataset(on(folder)).identity


@pytest.mark.parametrize(
    "source, says",
    [
        (
            "digits",
            "data.source is digits, which has no sentences: give numbers, pairs:FROM-TO:FOLDER, pairs:FILE",
        ),
        ("pairs:nowhere", "data.source is pairs:nowhere: give pairs:FROM-TO:FOLDER"),
        ("pairs:en-de:/no/where", "there is no folder /no/where"),
        ("pairs:en-fr:{folder}", r"train\.fr\.gz cannot be read \(No such file"),
        ("pairs:fr-en:{folder}", r"has no pairs in train.fr and train.en"),
    ],
)
def test_sources_that_are_none(folder, source, says):
    with pytest.raises(UserError, match=says):
        open_dataset(dataclasses.replace(RUN, data=SentenceData(source=source.format(folder=folder))))


def test_files_that_do_not_fit(folder):
    line = "Ein Hund.\n"
    for content, fields, says in (
        (line.encode(), {}, r"val\.en has 3 lines and val\.de has 1; give as many"),
        (f"{line}\n{line}".encode(), {}, r"val\.de line 2: is empty; mend it"),
        (b"Ein H\xffnd.\n" * 3, {}, r"val\.de line 1: is no UTF-8 \(it has the byte 0xff\); save the file as UTF-8$"),
        (line.encode() * 3, {"lengths": (3, 7)}, r"train\.de\.gz line 1: 'Ein .*' has 7 words, which is more than 6"),
    ):
        (folder / "val.de").write_bytes(content)
        with pytest.raises(UserError, match=says):
            open_dataset(on(folder, **fields))


def test_sizes_that_are_not_the_datas():
    with pytest.raises(
        UserError, match=r"model\.outputs is 66 but data.source numbers has 65 ids: give `model.outputs 0"
    ):
        open_dataset(dataclasses.replace(RUN, model=dataclasses.replace(RUN.model, outputs=66)))


def test_pairs_of_two_files_and_of_a_table(folder, tmp_path):
    """Validation and test are held out of them, and the same sentences are the same data."""
    pairs = [(f"A dog, number {i % 7}.", f"Ein Hund, Nummer {i % 7}.") for i in range(40)]
    (tmp_path / "a-b.en").write_text("".join(a + "\n" for a, _ in pairs), encoding="utf-8-sig")
    (tmp_path / "a.de.gz").write_bytes(gzip.compress("\n".join(b for _, b in pairs).encode()))
    (tmp_path / "t.tsv").write_text("".join(f"{a}\t{b}\tby whom\n" for a, b in pairs), encoding="utf-8")
    sources = (f"pairs:{tmp_path}/a-b.en,{tmp_path}/a.de.gz", f"tsv:{tmp_path}/t.tsv")
    files, table = (open_dataset(dataclasses.replace(on(folder), data=SentenceData(source=s))) for s in sources)
    assert {name: len(split) for name, split in files.splits.items()} == {"train": 29, "validation": 3, "test": 8}
    assert files.identity["content"] == table.identity["content"]
    told = "t.tsv has 3 columns from line 1 on: the first two are source and target, the others are not read"
    assert table.remarks[0] == told and told not in files.remarks
    assert files.metadata() == table.metadata() and files.source.decode(files.splits["test"].source[0])[:5] == "a dog"
    assert files.splits["test"].references[0].startswith("Ein Hund, Nummer ")


@pytest.mark.parametrize(
    "source, content, says",
    [
        ("pairs:{0}/a", b"", "give pairs:FROM-TO:FOLDER, pairs:FILE,FILE, tsv:FILE"),
        ("pairs:{0}/t.tsv,{0}/none", b"a\n", r"none cannot be read \(No such file or directory\); give UTF-8"),
        ("tsv:{0}/t.tsv", b"a\tb\nc\n", "line 2: 'c' is no pair; give a source, a tab and a target"),
        ("tsv:{0}/t.tsv", b"a\tb\nc\td\te\n", "t.tsv line 2: has 3 columns, and line 1 has 2; give a source, a tab"),
        ("tsv:{0}/t.tsv", b"a\tb\nc\t\xe4\n", r"t.tsv line 2: is no UTF-8 \(it has the byte 0xe4\); save the file as"),
        ("tsv:{0}/t.gz", b"no gzip", r"t.gz cannot be read \(Not a gzipped file"),
        ("tsv:{0}/t.gz", gzip.compress(b"a\tb\n" * 99, mtime=0)[:-9], "t.gz cannot be read"),
    ],
)
def test_files_of_pairs_that_are_none(tmp_path, source, content, says):
    (tmp_path / ("t.gz" if "t.gz" in source else "t.tsv")).write_bytes(content)
    with pytest.raises(UserError, match=says) as error:
        open_dataset(on(".", source=source.format(tmp_path)))
    assert str(error.value).startswith("data.source") and "\n" not in str(error.value)


SEPARATORS = ["\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"]  # at which str.splitlines breaks a line


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_end_with_lf_or_crlf_and_nothing_else_in_every_kind_of_file(tmp_path, monkeypatch, end):
    texts = [f"one{separator}two" for separator in SEPARATORS]
    mark = "\ufeff" if end == "\r\n" else ""
    for name, rows in (("a", texts), ("b", texts[::-1]), ("t", map("\t".join, zip(texts, texts[::-1], strict=True)))):
        (tmp_path / name).write_bytes((mark + end.join(rows) + end).encode())
    pairs = list(zip(texts, texts[::-1], strict=True))
    assert list(read_pairs(f"pairs:{tmp_path}/a,{tmp_path}/b")["train"]) == pairs
    assert list(read_pairs(f"tsv:{tmp_path}/t")["train"]) == pairs
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper((tmp_path / "a").open("rb")))
    given = Inputs("ids", [str(tmp_path / "a"), "-"], "")
    assert [text for group in given.groups(64) for text in group] == texts * 2


@pytest.mark.parametrize("content", [b"a\tb\rc\td\r", b"\xef\xbb\xbfa\tb\rc\td"])
def test_a_text_whose_lines_end_with_cr_alone_is_not_taken_for_one_line(tmp_path, content):
    (tmp_path / "t").write_bytes(content)
    for read in (lambda: list(read_pairs(f"tsv:{tmp_path}/t")["train"]), lambda: sentences([f"{tmp_path}/t"])):
        with pytest.raises(UserError, match=r"t: ends its lines with CR alone; save it with LF or CRLF$"):
            read()


def test_a_sentence_that_cannot_be_used_is_named_by_its_file_and_line_wherever_it_is_split(tmp_path):
    """Also one that is held out, and a long one is quoted in part; so is a line of a file for predict."""
    lines = [f"a b {i}\ta b {i}" for i in range(40)]
    for at in (3, 20, 39):
        long = " ".join(["word"] * 400)
        (tmp_path / "t").write_text("\n".join([*lines[:at], f"a b\t{long}", *lines[at + 1 :]]))
        with pytest.raises(UserError, match=rf": t line {at + 1}: 'word .*\.\.\.' has 400 words, which") as error:
            open_dataset(on(".", source=f"tsv:{tmp_path}/t", test=0.3, validation=0.3))
        assert len(str(error.value)) < 400
    (tmp_path / "t").write_text("one\ntwo three\n")
    with pytest.raises(UserError, match=r"the text 'two three' \(.*/t line 2\) has the word 'three'"):
        [closed_vocabulary(["one", "two"]).encode(text) for text in sentences([f"{tmp_path}/t"])]


def test_long_sentences_are_cut_and_counted_where_that_is_asked_for(folder):
    data = open_dataset(on(folder, lengths=(3, 6), cut=True))
    cut = data.splits["train"]
    assert (cut.target[0] != 0).sum() == 5 and (cut.source[0] != 0).sum() == 6 and set(cut.padded) == {6}
    assert data.remarks[0] == "train: 24 of 24 sentences are longer than 6 and were cut"
    assert (
        data.target.decode(cut.target[0]) == "ein hund , nummer train"
        and cut.references[0] == "Ein Hund, Nummer train 0."
    )
