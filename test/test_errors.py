"""What is asked wrongly is refused at the call, with a type that can be caught and a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tinyml import Tensor
from tinyml.errors import DeviceError, ShapeError

X = Tensor.zeros(2, 3)
I = Tensor([1, 2])  # noqa: E741
V = Tensor.zeros(1, 1, 4, 4)

REFUSED: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (ValueError, "negative", lambda: Tensor.zeros(2, -1)),
    (ValueError, "negative", lambda: Tensor.full((-1,), 3)),
    (ValueError, "negative", lambda: Tensor.eye(-2)),
    (ValueError, "not both", lambda: Tensor.zeros((2, 3), 4)),
    (ValueError, "and the axis as dim=", lambda: Tensor.stack([X, X], X)),
    (IndexError, "no axis", lambda: Tensor(1.0).cat(Tensor(2.0))),
    (RuntimeError, "named once", lambda: X.sum((0, -2))),
    (IndexError, "max: axis 0", lambda: Tensor.zeros(0, 3).max()),
    (RuntimeError, "min: axis 0", lambda: Tensor.zeros(0, 3).min(0)),
    (IndexError, "argmax: axis 0", lambda: Tensor.zeros(0, 3).argmax()),
    (IndexError, "mask of size 2", lambda: X[:, Tensor([True, False])]),
    (RuntimeError, "and not inf", lambda: I.masked_fill(I > 1, float("inf"))),
    (NotImplementedError, "more than once", lambda: X.pad((3, -1), mode="circular")),
    (IndexError, "sum: axis 2", lambda: X.sum(2)),
    (IndexError, "squeeze: axis", lambda: X.squeeze(-3)),
    (IndexError, "cumsum: axis", lambda: X.cumsum(2)),
    (IndexError, "cumprod: axis", lambda: X.cumprod(4)),
    (IndexError, "unfold: axis", lambda: X.unfold(2, 1, 1)),
    (IndexError, "too many", lambda: X[0, 0, 0]),
    (IndexError, "out of bounds", lambda: X[2]),
    (IndexError, r"index 3 is out of bounds for axis 1", lambda: X[:, [0, 3]]),
    (IndexError, r"index -3 is out of bounds for axis 0", lambda: X[[[0], [-3]], [0, 1]]),
    (IndexError, "single ellipsis", lambda: X[..., ...]),
    (IndexError, "too many", lambda: Tensor(1.0)[:]),
    (IndexError, "integers", lambda: X[Tensor([1.0])]),
    (ValueError, "step", lambda: X[::0]),
    (IndexError, "broadcast", lambda: X[[0, 1], [0, 1, 2]]),
    (TypeError, "cannot be deleted", lambda: X.__delitem__(0)),
    (TypeError, "setitem: the value must be .*, got .a.", lambda: X.__setitem__(0, "a")),
    (TypeError, "slice", lambda: X[Tensor(0) : Tensor(1)]),
    (RuntimeError, "permute", lambda: X.permute(0)),
    (RuntimeError, "once", lambda: X.permute(0, 0)),
    (RuntimeError, "once", lambda: X.flip(0, 0)),
    (RuntimeError, "only one size", lambda: X.reshape(-1, -1)),
    (RuntimeError, "windows of 4", lambda: X.unfold(1, 4, 1)),
    (RuntimeError, "steps of 0", lambda: X.unfold(1, 1, 0)),
    (RuntimeError, "length", lambda: X.roll((1, 2), 0)),
    (RuntimeError, "indexing", lambda: I.meshgrid(I, indexing="ab")),
    (RuntimeError, r"cannot multiply \(2, 3\) with \(2, 3\)", lambda: X @ X),
    (RuntimeError, "integers", lambda: X & X),
    (RuntimeError, "integers", lambda: ~X),
    (RuntimeError, "cast the base", lambda: I**-1),
    (RuntimeError, "rounding_mode", lambda: X.div(X, rounding_mode="up")),
    (RuntimeError, "not both", lambda: _masked_and_causal()),
    (RuntimeError, "broadcast", lambda: X + Tensor.zeros(2)),
    (ValueError, "cannot reshape", lambda: X.reshape(5)),
    (ValueError, "pairs", lambda: X.pad(((1, 1),))),
    (ValueError, "reduction", lambda: X.cross_entropy(I, reduction="max")),
    (RuntimeError, "even number", lambda: X.pad((1, 2, 3))),
    (RuntimeError, "larger than axis", lambda: X.pad((3, 3), mode="reflect")),
    (RuntimeError, "cannot expand", lambda: X.expand(2, 4)),
    (RuntimeError, "padding", lambda: V.conv2d(V, padding=(1, 2, 3))),
    (RuntimeError, "padding", lambda: V.max_pool2d(2, padding=(1, 2, 3))),
    (RuntimeError, "cannot take 4", lambda: X.topk(4)),
    (RuntimeError, "negative", lambda: Tensor.linspace(0, 1, -1)),
    (RuntimeError, "bool", lambda: Tensor.linspace(0, 1, 3, dtype="bool")),
    (RuntimeError, "operands", lambda: Tensor.einsum("ij,jk->ik", X)),
    (RuntimeError, "sizes", lambda: Tensor.einsum("ij,ij->i", X, Tensor.zeros(2, 2))),
    (RuntimeError, "stride must be", lambda: V.conv2d(V, stride=0)),
    (RuntimeError, "takes away all", lambda: V.conv_transpose2d(V[..., :2, :2], padding=3)),
    (RuntimeError, "smaller than the stride", lambda: V.conv_transpose2d(V, output_padding=1)),
    (RuntimeError, "no room", lambda: V.max_unpool2d(V.int(), 2, padding=4)),
    (IndexError, "is empty", lambda: Tensor.zeros(0, 3).gather(0, Tensor([[0, 0, 0]]))),
    (RuntimeError, "groups", lambda: V.conv2d(Tensor.zeros(1, 2, 3, 3))),
    (NotImplementedError, "mode", lambda: X.pad((1, 1), mode="typo")),
    (AttributeError, "no dtype", lambda: X.sum(dtype="")),
    (AttributeError, "no dtype", lambda: X.cast("float33")),
    (RuntimeError, "at least one", lambda: X.clip()),
    (ValueError, "not below 0", lambda: X.isclose(X, rtol=-1)),
    (DeviceError, "there are", lambda: Tensor([1], device="TPU")),
    (TypeError, "cannot be made", lambda: Tensor(object())),
    (ValueError, "rectangular", lambda: Tensor([[1], [1, 2]])),
    (RuntimeError, "exactly one", lambda: X.item()),
    (ShapeError, "agree", lambda: X.cat(Tensor.zeros(2, 2))),
    (ShapeError, "equal", lambda: X.stack(Tensor.zeros(2, 2))),
    (ShapeError, "broadcast", lambda: X.assign(Tensor.zeros(3, 3))),
    (TypeError, "need an axis", lambda: len(Tensor(1.0))),
]


def _masked_and_causal() -> Tensor:
    mask = Tensor.ones(2, 2, dtype="bool")
    return X.scaled_dot_product_attention(X, X, attn_mask=mask, is_causal=True)


@pytest.mark.parametrize(("kind", "words", "call"), REFUSED, ids=[w for _, w, _ in REFUSED])
def test_refused(kind: type[Exception], words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=words):
        call()
