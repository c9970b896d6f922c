"""How relevant each input token is for each output token, from the attention of all layers, in numpy.

Dimensions: L layers, N tokens, T of a decoder's target, S of its memory. `attention` is the mean over heads.
"""

from __future__ import annotations

import numpy as np


def rollout(attention: np.ndarray) -> np.ndarray:
    """Attention rollout, from the output tokens to the input tokens (Abnar and Zuidema 2020, section 3): attention [L,
    N, N] -> float64 [N, N].

    It is the product A_L ... A_1 of A_l = 0.5 attention_l + 0.5 I, each with rows normalised to sum 1. It knows no
    class: it is the same for all outputs.
    """
    total = np.eye(attention.shape[-1])
    for layer in attention.astype(np.float64):
        total = _half_kept(layer) @ total
    return total


def rollout_of_decoder(own: np.ndarray, crossed: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """`rollout` from a decoder's tokens to the input of the encoder: own [L, T, T], crossed [L, T, S], memory [S, N] ->
    float64 [T, N].

    Half of a token goes on, and half is what it attends to, in each attention to the target and to the memory.
    """
    total = np.zeros((own.shape[1], memory.shape[1]))
    for layer, cross in zip(own.astype(np.float64), crossed.astype(np.float64), strict=True):
        total = _half_kept(layer) @ total
        total = 0.5 * total + 0.5 * cross @ memory
    return total


def _half_kept(layer: np.ndarray) -> np.ndarray:
    """Half of the attention [N, N] and half of the token itself, with rows that sum to 1."""
    step = 0.5 * layer + 0.5 * np.eye(len(layer))
    return step / step.sum(axis=-1, keepdims=True)
