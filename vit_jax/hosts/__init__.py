"""Several processes, on one machine or many, that train one run together: jax.distributed, and what it lacks.

place (what `--hosts` states), watch (who is lost), group (`Hosts`: what the processes tell each other). Arrays, and the
steps that all do together, are in vit_jax/step.py.
"""

from __future__ import annotations

from .group import ALONE, Hosts, differing, joined
from .place import read_place

__all__ = ["ALONE", "Hosts", "differing", "joined", "read_place"]
