"""Gradients of workloads by numpy, for the reference: formulas from the textbook.

Each takes the upstream gradient and the inputs, and returns those of all inputs that have one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.dialect import NumpyOps, band

Gradients = Callable[..., tuple[npt.NDArray[Any], ...]]


def softmax_gradient(g: Any, x: Any) -> tuple[Any]:
    y = NumpyOps().softmax(x)
    return (y * (g - (g * y).sum(-1, keepdims=True)),)


def log_softmax_gradient(g: Any, x: Any) -> tuple[Any]:
    return (g - NumpyOps().softmax(x) * g.sum(-1, keepdims=True),)


def layer_norm_gradient(g: Any, x: Any, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
    centred = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    normal, gw = centred * scale, g * weight
    means = gw.mean(-1, keepdims=True), (gw * normal).mean(-1, keepdims=True)
    return scale * (gw - means[0] - normal * means[1]), (g * normal).sum(0), g.sum(0)


def rms_norm_gradient(g: Any, x: Any, weight: Any) -> tuple[Any, Any]:
    scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    normal, gw = x * scale, g * weight
    return scale * (gw - normal * (gw * normal).mean(-1, keepdims=True)), (g * normal).sum(0)


def cross_entropy_gradient(g: Any, x: Any, labels: Any) -> tuple[Any]:
    slope = NumpyOps().softmax(x)
    slope[np.arange(len(labels)), labels] -= 1
    return (g / len(labels) * slope,)


def dropout_gradient(g: Any, x: Any, share: float) -> tuple[Any]:
    return (NumpyOps().dropout(g, share),)


def conv_gradients(stride: int) -> Gradients:
    def gradients(g: Any, x: Any, weight: Any) -> tuple[Any, Any]:
        n, (_, inner, size, _), half = len(x), weight.shape, weight.shape[-1] // 2
        groups = x.shape[1] // inner
        g = g.reshape(n, groups, -1, *g.shape[2:])
        kernels = weight.reshape(groups, -1, inner, size, size)
        padded = np.pad(x, ((0, 0), (0, 0), (half, half), (half, half)))
        padded = padded.reshape(n, groups, inner, *padded.shape[2:])
        gx, gw = np.zeros_like(padded), np.empty_like(kernels)
        for i, j in itertools.product(range(size), repeat=2):  # the taps
            rows = slice(i, i + stride * g.shape[3], stride)
            columns = slice(j, j + stride * g.shape[4], stride)
            seen = padded[..., rows, columns]
            gw[..., i, j] = np.einsum("ngohw,ngchw->goc", g, seen, optimize=True)
            share = np.einsum("ngohw,goc->ngchw", g, kernels[..., i, j], optimize=True)
            gx[..., rows, columns] += share
        gx = gx.reshape(n, groups * inner, *gx.shape[3:])
        height, width = x.shape[2:]
        gx = gx[:, :, half : half + height, half : half + width]
        return gx, gw.reshape(weight.shape)

    return gradients


# ---- attention, head by head: the scores of all of them would be gigabytes ----

# Weights of values, and the way from a gradient of those to one of the scores.
Weighed = tuple[Any, Callable[[Any], Any]]


def attention_gradient(
    g: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    weigh: Callable[[Any], Weighed] | None = None,
    causal: bool = False,
    share: int = 1,
) -> tuple[Any, ...]:
    """A causal query sees a `share` of all keys at most. `weigh`: what is there for a softmax."""
    group = q.shape[1] // k.shape[1]  # heads that have their keys in common
    several = (np.repeat(x, group, 1) for x in (k, v))
    window = q.shape[-2] // share if causal else 0

    def weighed(scores: Any) -> Weighed:
        if window:
            scores[~band(np.arange(len(scores)), window)] = -np.inf
        return (weigh or softened)(scores)

    made = zip(
        *(_head_gradient(*head, weighed)[:3] for head in _heads(g, q, *several)), strict=True
    )
    gq, *others = (np.stack(part).reshape(*q.shape[:2], *part[0].shape) for part in made)
    return gq, *(x.reshape(*k.shape[:2], group, *x.shape[2:]).sum(2) for x in others)


def biased_gradient(g: Any, q: Any, k: Any, v: Any, bias: Any) -> tuple[Any, ...]:
    """That of the bias, too: of keys or of pairs, which all heads share."""
    made, total = [], np.zeros_like(bias)
    for head in _heads(g, q, k, v):
        *own, of_scores = _head_gradient(*head, lambda scores: softened(scores + bias))
        total += of_scores.reshape(-1, *bias.shape).sum(0)
        made.append(own)
    return *(np.stack(x).reshape(q.shape) for x in zip(*made, strict=True)), total


def sinks_gradient(g: Any, q: Any, k: Any, v: Any, sinks: Any) -> tuple[Any, ...]:
    """That of the sinks, too: a score of each head, whose weight has no value."""
    made, total = [], np.zeros_like(sinks)
    for n, head in enumerate(_heads(g, q, k, v)):
        one = n % sinks.size
        *own, of_scores = _head_gradient(*head, partial(_beside, sink=sinks.flat[one]))
        total.flat[one] += of_scores[:, -1].sum()
        made.append(own)
    return *(np.stack(x).reshape(q.shape) for x in zip(*made, strict=True)), total


def _heads(*arrays: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*(x.reshape(-1, *x.shape[-2:]) for x in arrays), strict=True)


def _head_gradient(
    g: Any, q: Any, k: Any, v: Any, weigh: Callable[[Any], Weighed]
) -> tuple[Any, Any, Any, Any]:
    """Of queries, keys, values and scores; the last with what `weigh` put beside them."""
    scale = q.shape[-1] ** -0.5
    weights, back = weigh(q @ k.T * scale)
    of_all = back(g @ v.T)
    scores = of_all[:, : len(k)]
    return scores @ k * scale, scores.T @ q * scale, weights.T @ g, of_all


def softened(scores: Any) -> Weighed:
    weights = NumpyOps().softmax(scores)
    return weights, lambda g: weights * (g - (g * weights).sum(-1, keepdims=True))


def capped(scores: Any, most: float) -> Weighed:
    bent = np.tanh(scores / most)
    weights, back = softened(bent * most)
    return weights, lambda g: back(g) * (1 - bent * bent)


def sigmoids(scores: Any) -> Weighed:
    weights = NumpyOps().sigmoid(scores)
    return weights, lambda g: g * weights * (1 - weights)


def _beside(scores: Any, sink: Any) -> Weighed:
    weights, back = softened(np.pad(scores, ((0, 0), (0, 1)), constant_values=sink))
    return weights[:, :-1], lambda g: back(np.pad(g, ((0, 0), (0, 1))))
