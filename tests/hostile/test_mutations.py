"""Random damage to valid files: each is refused in one sentence or read as written; digests catch changed values."""

from __future__ import annotations

import pytest

from tests.hostile.child import run
from tests.hostile.mutations import KINDS, damage

SHARES = {"orbax": 400, "shards": 1600}  # of 20,000; folders take longer
EACH = (20_000 - sum(SHARES.values())) // (len(KINDS) - len(SHARES)) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_do_no_harm(kind: str) -> None:
    _check(kind, 0, 10 if kind in SHARES else 60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_20000_damaged_files_do_no_harm(kind: str) -> None:
    _check(kind, 1, SHARES.get(kind, EACH))


def _check(kind: str, seed: int, count: int) -> None:
    outcome = run(damage, kind, seed, count)
    assert not outcome.failed and not outcome.refused, outcome
    assert sum(outcome.value.values()) == count and outcome.value["refused"] > count / 3
    assert outcome.grown < 256 << 20
