"""Both trainers walk the same path; and a trainer that does not is seen."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.parity import curves


@pytest.mark.parametrize("name", curves.PRESETS)
def test_the_first_losses_of_both_trainers_are_the_same(name):
    ours, theirs = curves.losses(name, 4, shallow=True)
    assert len(ours) == 4 and ours.dtype == np.float64
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=curves.LIMIT)
    assert np.abs(np.diff(ours)).min() > 1e-3  # something moves


def test_another_beta_is_seen_within_four_steps(monkeypatch):
    import torch

    adamw = torch.optim.AdamW
    monkeypatch.setattr(
        torch.optim, "AdamW", lambda groups, **options: adamw(groups, **{**options, "betas": (0.9, 0.98)})
    )
    ours, theirs = curves.losses("digits", 4, shallow=True)
    assert np.abs(ours - theirs).max() > 100 * curves.LIMIT
