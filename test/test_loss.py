"""Losses against their definitions in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinyml import Tensor

Compare = Callable[..., None]


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def test_surprise_at_classes(device: str, compare: Compare, rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 4)).astype(np.float32) * 30
    y = np.array([1, 0, 3, 2, 1])
    each = -log_softmax(x)[np.arange(5), y]
    smooth = each * 0.9 - log_softmax(x).mean(1) * 0.1
    weight = np.array([1, 2, 0.5, 3], np.float32)
    t, classes = Tensor(x), Tensor(y)
    counted = y != 3
    compare(
        {
            "none": (t.cross_entropy(classes, reduction="none"), each),
            "sum": (t.cross_entropy(classes, reduction="sum"), each.sum()),
            "smooth": (t.cross_entropy(classes, label_smoothing=0.1), smooth.mean()),
            "probable": (t.cross_entropy(classes.one_hot(4).float()), each.mean()),
            "ignored": (
                t.sparse_categorical_crossentropy(classes, ignore_index=3),
                each[counted].mean(),
            ),
            "weighted": (
                t.log_softmax().nll_loss(classes, Tensor(weight)),
                (each * weight[y]).sum() / weight[y].sum(),
            ),
            "weighted by class": (
                t.cross_entropy(classes, weight=Tensor(weight), ignore_index=3),
                (each * weight[y])[counted].sum() / weight[y][counted].sum(),
            ),
            "in space": (
                Tensor(x.reshape(1, 5, 4).transpose(0, 2, 1)).cross_entropy(classes.reshape(1, 5)),
                each.mean(),
            ),
        },
        1e-4,
    )


def test_surprise_at_yes_or_no(device: str, compare: Compare) -> None:
    x = np.array([-300.0, -2.0, 0.0, 3.0, 300.0], np.float32)
    y = np.array([0.0, 1.0, 0.5, 1.0, 0.0], np.float32)
    p = np.array([0.0, 0.25, 0.5, 0.75, 1.0], np.float32)
    logits = np.maximum(x, 0) - x * y + np.log1p(np.exp(-np.abs(x)))
    chances = [0, -np.log(0.25), np.log(2), -np.log(0.75), 100]
    compare(
        {
            "logits": (Tensor(x).binary_crossentropy_logits(Tensor(y), reduction="none"), logits),
            "chances": (Tensor(p).binary_crossentropy(Tensor(y), reduction="none"), chances),
            "mean": (Tensor(x).binary_crossentropy_logits(Tensor(y)), logits.mean()),
            "weighted": (
                Tensor(p).binary_crossentropy(Tensor(y), weight=Tensor(y + 1)),
                (np.array(chances) * (y + 1)).mean(),
            ),
        },
        1e-4,
    )


def test_the_gradient_is_the_difference_of_probabilities(device: str) -> None:
    x = Tensor([[1.0, 2.0, 3.0], [1000.0, 0.0, -1000.0]], requires_grad=True)
    x.cross_entropy(Tensor([2, 1]), reduction="sum").backward()
    assert x.grad is not None
    wanted = np.exp(log_softmax(x.numpy())) - np.eye(3)[[2, 1]]
    np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-4, atol=1e-6)
