"""How relevant each input token is for each output token, from the attention of all layers, in numpy.

Dimensions: L layers, N tokens, T of a decoder's target, S of its memory. `attention` is the mean over heads, or, for
Chefer's relevance, what `gradients.weighted_attention` gives of one value.
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


def chefer(attention: np.ndarray) -> np.ndarray:
    """The relevance of input tokens for output tokens (Chefer et al. 2021, arXiv 2103.15679, equation 6). Shapes:
    attention [L, N, N] -> float64 [N, N].
    """
    total = np.eye(attention.shape[-1])
    for layer in attention.astype(np.float64):
        total = total + layer @ total
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


def chefer_of_decoder(own: np.ndarray, crossed: np.ndarray, memory: np.ndarray, rows: slice) -> np.ndarray:
    """`chefer` from a decoder's tokens to the input of the encoder (equations 6 to 11): own [L, T, T], crossed [L, T,
    S], memory [N, N] -> float64 [T, N].
    """
    source = _evened(memory)[rows]
    target, total = np.eye(own.shape[1]), np.zeros((own.shape[1], memory.shape[1]))
    for layer, cross in zip(own.astype(np.float64), crossed.astype(np.float64), strict=True):
        total = total + layer @ total
        target = target + layer @ target
        total = total + _evened(target).T @ cross @ source
    return total


def _half_kept(layer: np.ndarray) -> np.ndarray:
    """Half of the attention [N, N] and half of the token itself, with rows that sum to 1."""
    step = 0.5 * layer + 0.5 * np.eye(len(layer))
    return step / step.sum(axis=-1, keepdims=True)


def _evened(relevance: np.ndarray) -> np.ndarray:
    """A relevance with I apart, and the rows of the rest scaled to sum 1 (equations 8 and 9); rows of 0 stay."""
    rest = relevance - np.eye(len(relevance))
    sums = rest.sum(axis=-1, keepdims=True)
    return np.divide(rest, sums, out=np.zeros_like(rest), where=sums > 0) + np.eye(len(relevance))
