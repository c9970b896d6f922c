"""The worst texts of an evaluation: how alike texts are, which are the worst, and how they are shown."""

import numpy as np
import pytest
from PIL import Image

from vit_jax.tasks.worst import WORST, Wrong, chrf, draw_worst, summarise_worst, worst, write_worst

TEXTS = [
    "a big red square",
    "a small red square.",
    "",
    "x",
    "Äpfel und Birnen",
    "  a  big red   square ",
    "aaaaaaaaaa",
    "aab",
]


def test_chrf_of_a_text_is_that_of_sacrebleu():
    scorer = pytest.importorskip("sacrebleu").metrics.CHRF()
    rng = np.random.default_rng(0)
    texts = [*TEXTS, *("".join(rng.choice([*"ab  c"], rng.integers(1, 20))) for _ in range(40))]
    scores = set()
    for said in texts:
        for reference in filter(str.strip, texts):  # sacrebleu refuses nothing, but says 0 of an empty reference
            several = [reference, texts[int(rng.integers(0, 2))]]
            for references in ([reference], several):
                scores.add(chrf(said, references))
                assert chrf(said, references) == pytest.approx(scorer.sentence_score(said, references).score, abs=1e-9)
    assert len(scores) > 500 and {0.0, 100.0} <= scores


def test_the_worst_are_those_that_are_not_in_the_data_and_least_alike():
    names, references = (
        ["t[0]", "t[1]", "t[2]", "t[3]"],
        [["a red dog"], ["Two cats", "two birds"], ["a cow"], ["a hen"]],
    )
    said = ["a red dot", "TWO BIRDS", "xyz", "A hen"]
    assert [(w.number, w.name, w.predicted) for w in worst(names, references, said, cased=False)] == [
        (2, "t[2]", "xyz"),
        (0, "t[0]", "a red dot"),
    ]
    assert [w.number for w in worst(names, references, said, cased=True)] == [2, 1, 3, 0]


def test_a_file_of_the_worst_has_what_a_reader_compares(tmp_path):
    wrong = [Wrong(i, f"test[{i}]", ("drei Hunde", "3 Hunde"), f"zwei\n{i}", 7.25 + i) for i in range(WORST + 9)]
    write_worst(tmp_path / "worst.txt", wrong, [f"three\u2028{w.number}" for w in wrong], "of run x", 99)
    head, first, *rest = (tmp_path / "worst.txt").read_text(encoding="utf-8").split("\n\n")
    assert head == f"The {WORST} worst translations by chrF (0 to 100) of each sentence; of run x"
    assert first.splitlines() == [
        "test[0]  chrF 7.2",
        "  source     three\\u20280",
        *("  reference  drei Hunde", "  reference  3 Hunde", "  predicted  zwei\\n0"),
    ]
    assert len(rest) == WORST - 1
    lines = summarise_worst(wrong, 100, "worst.txt")
    assert lines[0] == "worst: test[0], chrF 7.2: 'zwei\\n0', not 'drei Hunde'"
    assert lines[3:] == ("59 of 100 are not as in the data; worst.txt has the worst",)


@pytest.mark.parametrize("count", [0, 1, pytest.param(30, marks=pytest.mark.slow)])
def test_a_sheet_of_the_worst_captions_shows_their_images(count, tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (40, 1, 1, 3)).astype(np.uint8)
    wrong = [Wrong(39 - i, f"test[{i}]", ("a dog " * 40,), "a cat", 1.0) for i in range(count)]
    draw_worst(lambda numbers: colours[numbers].repeat(8, 1).repeat(8, 2), wrong, 40, tmp_path / "worst.png", "caption")
    pixels = np.asarray(Image.open(tmp_path / "worst.png").convert("RGB")).reshape(-1, 3)
    drawn = {tuple(colour) for colour in np.unique(pixels, axis=0).tolist()}
    shown = [39 - i for i in range(40) if tuple(colours[39 - i, 0, 0].tolist()) in drawn]
    assert shown == [39 - i for i in range(min(count, 24))]
