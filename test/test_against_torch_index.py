"""Moving, joining and indexing: values, gradients and dtypes are PyTorch's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from against_torch import Case, disagreements, draw, pair, same, torch

from tinyml import Tensor

F = torch.nn.functional
WHOLE = np.array([[-7, 3, 0], [5, -2, 1]], np.int32)


def movement() -> list[Case]:
    x = (2, 3, 4)
    return [
        same("reshape", lambda x: (x.reshape(4, -1), x.view(6, 4), x.flatten(1)), x),
        same("permute", lambda x: (x.permute(2, 0, 1), x.transpose(0, -1)), x),
        same("expand", lambda x: x.expand(2, -1, 4), (3, 1)),
        same("squeeze", lambda x: (x.squeeze(), x.squeeze(1), x.unsqueeze(-2)), (2, 1, 3, 1)),
        same("unflatten", lambda x: x.unflatten(2, (2, -1)), x),
        same("flip", lambda x: x.flip(0, 2), x),
        same("roll", lambda x: (x.roll(2, 1), x.roll((1, -2), (0, 2)), x.roll(5)), x),
        same("unfold", lambda x: (x.unfold(2, 3, 1), x.unfold(1, 2, 2)), (2, 5, 4)),
        same("repeat", lambda x: (x.repeat(2, 1, 3), x.repeat(2, 1, 1, 2)), x),
        same("repeat_interleave", lambda x: (x.repeat_interleave(2, 1), x.repeat_interleave(3)), x),
        same("repeat_interleave of each",
             lambda x, n: (x.repeat_interleave(n, 1), x[0, :, 0].repeat_interleave(n),
                           x.repeat_interleave(n[2:], -1), x[0, 0, 0].repeat_interleave(n[2])),
             x, np.array([2, 0, 3])),
        same("triangles", lambda x: (x.triu(), x.tril(-1), x.triu(2), x.tril(1), x.tril(1 << 40)),
             (2, 4, 3)),
        same("triangles of bools", lambda x: (x.triu(), x.tril(-1)), WHOLE > 0),
        same("diag", lambda x: (x.diag(), x.diag(1), x.diag(-2)), (4,)),
        same("diag of bools", lambda x: (x.diag(), x.diag(1)), np.array([True, False])),
        same("diag of nothing", lambda x: (x.diag(), x.diag(-2)), (0,)),
        same("diag of a matrix", lambda x: (x.diag(), x.diag(1), x.diag(-5)), (3, 4)),
        same("diagonal past the end", lambda x: x.diagonal(9), WHOLE),
        same("diagonal", lambda x: (x.diagonal(), x.diagonal(1), x.diagonal(-2), x.diagonal(9)),
             (4, 3)),
        same("diagonal of any axes", lambda x: (x.diagonal(0, -2, -1), x.diagonal(-1, 2, 0)), x),
        same("split", lambda x: (*x.split(2, 1), *x.split([1, 3], 2), *x.chunk(3, 2)), x),
        pair("cat", lambda x, y: x.cat(y, dim=1), lambda x, y: torch.cat((x, y), 1), x, (2, 2, 4)),
        pair("cat dtypes", Tensor.cat, lambda *xs: torch.cat(xs), WHOLE, (1, 3)),
        pair("cat nothing", lambda x, n: (n.cat(x, dim=2), x.cat(n, x, dim=-1), n.cat(n)),
             lambda x, n: (torch.cat((n, x), 2), torch.cat((x, n, x), -1), torch.cat((n, n))),
             x, (0,)),
        pair("cat no ints", lambda x, n: n.cat(x), lambda x, n: torch.cat((n, x)), WHOLE, (0,)),
        pair("stack", lambda x, y: x.stack(y, dim=-1), lambda x, y: torch.stack((x, y), -1), x, x),
        *(
            pair(
                f"meshgrid {how}",
                lambda x, y, h=how: x.meshgrid(y, indexing=h),
                lambda x, y, h=how: torch.meshgrid(x, y, indexing=h),
                (3,),
                (2,),
            )
            for how in ("ij", "xy")
        ),
        *(
            pair(
                f"pad {mode} {by}",
                lambda x, b=by, m=mode: x.pad(b, mode=m),
                lambda x, b=by, m=mode: F.pad(x, b, mode=m),
                (2, 3, 4, 4),
            )
            for mode in ("constant", "reflect", "replicate", "circular")
            for by in ((1, 2, 3, 0), (-1, 2, 0, 1), (-2, 0, 3, -1))
        ),
        pair("pad value", lambda x: x.pad((1, 1), value=2.5), lambda x: F.pad(x, (1, 1), value=2.5),
             WHOLE.astype(np.float32)),
    ]  # fmt: skip


INDICES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "int": lambda x, i, j: x[1],
    "negative": lambda x, i, j: x[-1, :, -2],
    "slices": lambda x, i, j: x[:, 1:, ::2],
    "negative slice": lambda x, i, j: x[..., -3:-1],
    "none": lambda x, i, j: x[None, :, None, 1],
    "tensor": lambda x, i, j: x[i],
    "tensor in the middle": lambda x, i, j: x[:, j],
    "tensors": lambda x, i, j: x[i, j],
    "tensors apart": lambda x, i, j: x[i, :, j],
    "tensor after slice": lambda x, i, j: x[1:, i, j],
    "tensor and none": lambda x, i, j: x[None, i, :, None],
    "tensor and int": lambda x, i, j: x[i, 1],
    "int and slice and tensor": lambda x, i, j: x[0, :, j],
    "ellipsis and tensor": lambda x, i, j: x[..., i],
    "2-d tensor": lambda x, i, j: x[i.reshape(2, 2), 1:],
    "broadcast tensors": lambda x, i, j: x[i.reshape(4, 1), j],
    "list": lambda x, i, j: x[[1, 0, 1], 2],
    "number, slice and tensor": lambda x, i, j: x[i[1], :, j],
    "number, none and tensor": lambda x, i, j: x[i[1], None, j],
    "numbers": lambda x, i, j: x[i[0], j[1], 1],
    "bool and tensor": lambda x, i, j: x[True, i, :, j],
    "bools": lambda x, i, j: x[True, 1, True],
    "no element": lambda x, i, j: x[..., False, True],
    "range": lambda x, i, j: x[range(2), :, range(2)],
}


def indexing() -> list[Case]:
    i, j = np.array([0, -1, 2, 0]), np.array([1, 0, -2, 1])
    cases = [same(name, f, (3, 4, 5), i, j) for name, f in INDICES.items()]
    tuples = pair(
        "lists as tuples",
        lambda x, i, j: (x[[i, j]], x[[[0, 1], [1, 2]]], x[[i, 1]], x[[slice(1), None, ..., 1]]),
        lambda x, i, j: (x[i, j], x[[0, 1], [1, 2]], x[i, 1], x[:1, None, ..., 1]),
        (3, 4, 5),
        i,
        j,
    )
    return [*cases, tuples]


def gathering() -> list[Case]:
    index = np.array([[0, 2, 1], [1, 0, 0], [0, 0, 2]])
    once = np.array([[0, 1, 2], [2, 0, 1]])
    cases = [
        same(f"gather {dim}", lambda x, i, d=dim: x.gather(d, i),
             (3, 4) if dim else (3, 3), index)
        for dim in (0, 1)
    ]  # fmt: skip
    cases += [
        same("scatter", lambda x, i, s: x.scatter(0, i, s), (3, 3), once, (2, 3)),
        same("scatter number", lambda x, i: x.scatter(1, i, 1.5), (3, 4), index),
        same("scatter fewer", lambda x, i, s: x.scatter(1, i, s),
             (4, 5), once, (3, 4), grad=False),
        pair("scatter add", lambda x, i, s: x.scatter(0, i, s, reduce="add"),
             lambda x, i, s: x.scatter_add(0, i, s), (3, 3), index, (3, 3)),
        pair("scatter multiply", lambda x, i, s: x.scatter(1, i, s, reduce="multiply"),
             lambda x, i, s: x.scatter_reduce(1, i, s, "prod"), (3, 3), index, (3, 3)),
        pair("one_hot", lambda x: x.one_hot(4), lambda x: F.one_hot(x, 4), index, narrow=True),
    ]  # fmt: skip
    for how, own in itertools.product(("sum", "prod", "mean", "amax", "amin"), (True, False)):
        cases.append(
            same(
                f"scatter_reduce {how} {own}",
                lambda x, i, s, h=how, o=own: x.scatter_reduce(0, i, s, h, include_self=o),
                (3, 3),
                index,
                (3, 3),
            )
        )
    base, zeros = draw("base", (3, 3)), draw("zeros", (3, 3))
    base[0, 1] = zeros[0, 0] = zeros[1, 1] = zeros[2, 1] = zeros[2, 2] = 0
    product = same("product with zeros", lambda x, i, s: x.scatter_reduce(0, i, s, "prod"),
                   base, index, zeros)  # fmt: skip
    ways: list[Callable[[Any, Any, Any], Any]] = [
        lambda x, i, s: x.scatter(0, i, s),
        lambda x, i, s: x.scatter(0, i, 2.5),
        lambda x, i, s: x.scatter_reduce(0, i, s, "sum"),
        lambda x, i, s: x.gather(0, i),
    ]
    nought, one = np.array(0), np.array([0])
    shapes = [((), nought, ()), ((), one, (1,)), ((3,), nought, ()), ((3,), one, ())]
    numbers = [same(f"0-d {i} {x} {index.shape} {s}", way, x, index, s)
               for i, way in enumerate(ways) for x, index, s in shapes]  # fmt: skip
    nowhere = [
        same(f"index {n} of {shape}", op, (3, 4), np.zeros(shape, np.int64), (3, 4), grad=n == 0)
        for shape in ((0,), (2, 0, 1))
        for n, op in enumerate(
            [
                lambda x, i, s: (x.gather(1, i), x * s),
                lambda x, i, s: x.scatter(0, i, 2.5),
                lambda x, i, s: x.scatter_reduce(1, i, s, "sum"),
            ]
        )
    ]
    twice = same("a number often", lambda x, i: x.gather(0, i), (), np.array([0, 0, -0]))
    return [*cases, product, *numbers, *nowhere, twice]


GROUPS = (movement, indexing, gathering)


@pytest.mark.parametrize("device", ["NUMPY", "CPU"], indirect=True)
@pytest.mark.parametrize("cases", GROUPS, ids=lambda group: group.__name__)
def test_group(device: str, cases: Callable[[], list[Case]]) -> None:
    found = disagreements(cases())
    assert not found, "\n".join(found)
