"""The flags that say which weights of a run a command takes."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.fields import option


@dataclass(frozen=True, kw_only=True)
class SelectionFlags:
    """Which checkpoint of a run, and which of its weights."""

    weights: str = option(
        "best",
        "best: the checkpoint with the best validation (without any: the last); last: the last one; "
        "mean:K: the mean of the weights of the last K that the run has kept (--keep of train)",
    )
    ema: bool = option(
        True,
        "take the averaged weights where validation chose them (of the last: if it has them); "
        "--no-ema: always the raw ones",
    )

    @property
    def averaged(self) -> bool | None:
        """`ema` as `vit_jax.load` takes it: None, as validation chose, or False, the raw weights."""
        return None if self.ema else False
