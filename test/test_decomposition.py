"""Matrices taken apart and solved: exact, orthogonal, differentiable, also where it is hard."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from against_torch import Case, disagreements, draw, pair, torch

from tinyml import Tensor, defaults, trace
from tinyml.errors import ShapeError

SQUARE = draw("square", (2, 3, 3)) + 2 * np.eye(3, dtype=np.float32)
POSITIVE = SQUARE @ SQUARE.swapaxes(-1, -2) + np.eye(3, dtype=np.float32)
DIAGONAL = np.diag(np.array([4.0, -2.0, 1.0], np.float32))


def _pair(
    name: str, ours: Callable[..., object], theirs: Callable[..., object], *a: object
) -> Case:
    return pair(name, ours, theirs, *a, rtol=1e-3, atol=1e-5, grad_atol=1e-3)


def test_results_and_gradients_are_torchs() -> None:
    """Of numbers, batches, vectors; and of matrices that are triangular already."""
    solve, inverse, det = torch.linalg.solve, torch.linalg.inv, torch.linalg.det
    qr, cholesky = torch.linalg.qr, torch.linalg.cholesky
    cases = [
        _pair("solve", Tensor.solve, solve, SQUARE, (2, 3, 2)),
        _pair("solve a vector", Tensor.solve, solve, SQUARE[0], (3,)),
        _pair("solve one for all", Tensor.solve, solve, SQUARE, (3, 2)),
        _pair("inverse", Tensor.inverse, inverse, SQUARE),
        _pair("inverse of a diagonal", Tensor.inverse, inverse, DIAGONAL),
        _pair("inverse of 3 of 3 x 3", Tensor.inverse, inverse, np.stack([POSITIVE[0]] * 3)),
        _pair("det", Tensor.det, det, SQUARE),
        _pair("det of a diagonal", Tensor.det, det, DIAGONAL),
        _pair("det of a number", Tensor.det, det, (1, 1)),
        _pair("cholesky", Tensor.cholesky, cholesky, POSITIVE),
        _pair("qr", Tensor.qr, qr, SQUARE),
        _pair("qr of wide", lambda x: x.qr()[1], lambda x: qr(x)[1], (2, 3)),
        _pair("qr of tall", lambda x: x.qr()[1][:2], lambda x: qr(x)[1], (3, 2)),
    ]
    with defaults(device="NUMPY"):
        assert disagreements(cases) == []


def test_singular_values_and_their_gradients_are_torchs() -> None:
    def near(x: object, svd: Callable[..., tuple[Tensor, ...]]) -> Tensor:
        u, s, v = svd(x, full_matrices=False)
        return (u[..., :1] * s[..., None, :1]) @ v[..., :1, :]  # the nearest matrix of rank 1

    cases = [
        _pair("values", lambda x: x.svd()[1], torch.linalg.svdvals, (3, 2)),
        _pair("rank 1", lambda x: near(x, Tensor.svd), lambda x: near(x, torch.linalg.svd), SQUARE),
        _pair(
            "diagonal", lambda x: near(x, Tensor.svd), lambda x: near(x, torch.linalg.svd), DIAGONAL
        ),
    ]
    with defaults(device="NUMPY"):
        assert disagreements(cases) == []


def _hard(kind: str) -> np.ndarray:
    turn, other = (np.linalg.qr(draw(name, (7, 7), "float64"))[0] for name in ("turn", "other"))
    values = {
        "equal": np.ones(7),
        "graded": np.logspace(0, -6, 7),
        "clustered": np.array([1, 1, 1 - 1e-5, 1e-3, 1e-3, 1e-3, 1e-6]),
        "rank 2": np.array([1.0, 0.5, 0, 0, 0, 0, 0]),
        "huge": np.logspace(30, 25, 7),
        "tiny": np.logspace(-30, -34, 7),
    }
    whole = {"ones": np.ones((7, 7)), "zeros": np.zeros((7, 7)), "unit": np.eye(7)}
    return whole[kind] if kind in whole else turn * values[kind] @ other


def test_svd_is_accurate_and_orthogonal_of_any_matrix() -> None:
    kinds = ["equal", "graded", "clustered", "rank 2", "huge", "tiny", "ones", "zeros", "unit"]
    matrices = np.stack([_hard(kind) for kind in kinds]).astype(np.float32)
    parts = Tensor(matrices, device="NUMPY").svd()
    Tensor.realize(*parts)
    for kind, x, u, s, v in zip(kinds, matrices, *(p.numpy() for p in parts), strict=True):
        largest = max(float(np.abs(x).max()), 1e-38)
        exact = np.linalg.svd(x.astype(np.float64), compute_uv=False)
        np.testing.assert_allclose(u.T @ u, np.eye(7), atol=2e-5, err_msg=kind)
        np.testing.assert_allclose(v @ v.T, np.eye(7), atol=2e-5, err_msg=kind)
        np.testing.assert_allclose(u * (s / largest) @ v, x / largest, atol=2e-5, err_msg=kind)
        np.testing.assert_allclose(s / largest, exact / largest, atol=2e-5, err_msg=kind)


def test_every_device_computes_the_same(device: str) -> None:
    x = Tensor(SQUARE)
    near = x.newton_schulz(20, params=(1.5, -0.5))
    results = (*x.svd(), *x.qr(), x.inverse(), x.det(), Tensor(POSITIVE).cholesky(), near)
    Tensor.realize(*results)
    u, s, v, q, r, inverse, det, low, near_values = (p.numpy() for p in results)
    np.testing.assert_allclose(near_values, u @ v, atol=1e-3)
    np.testing.assert_allclose(u * s[..., None, :] @ v, SQUARE, atol=1e-5)
    np.testing.assert_allclose(q @ r, SQUARE, atol=1e-5)
    np.testing.assert_allclose(inverse, np.linalg.inv(SQUARE), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(det, np.linalg.det(SQUARE), rtol=1e-4)
    np.testing.assert_allclose(low, np.linalg.cholesky(POSITIVE), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (2, 3, 1), (1, 1), (3, 0), (2, 0, 3), (0, 0)])
def test_full_and_reduced_svd(shape: tuple[int, ...]) -> None:
    x = Tensor(draw("svd", shape), device="NUMPY")
    full, reduced = x.svd(), x.svd(full_matrices=False)
    Tensor.realize(*full, *reduced)
    m, n, k = *shape[-2:], min(shape[-2:])
    assert [p.shape[-2:] for p in (full[0], full[2])] == [(m, m), (n, n)]
    assert [p.shape[-2:] for p in (reduced[0], reduced[2])] == [(m, k), (k, n)]
    u, s, v = (p.numpy() for p in reduced)
    np.testing.assert_allclose(u * s[..., None, :] @ v, x.numpy(), atol=1e-5)
    whole = full[0].numpy()
    units = np.broadcast_to(np.eye(m), whole.shape)
    np.testing.assert_allclose(whole @ whole.swapaxes(-1, -2), units, atol=1e-5)


def test_dtypes_and_empty_matrices() -> None:
    whole, half = Tensor([[1, 2], [3, 4]]), Tensor.eye(2).half()
    np.testing.assert_allclose(whole.inverse().numpy(), [[-2, 1], [1.5, -0.5]], rtol=1e-5)
    assert [p.dtype.name for p in (*half.svd(), half.det(), half.qr()[0])] == ["float16"] * 5
    assert Tensor(np.eye(2)).inverse().dtype.name == "float64"
    assert Tensor.zeros(0, 0).det().item() == 1
    nothing = Tensor.zeros(2, 0, 3, requires_grad=True)
    assert nothing.svd()[1].sum().gradient(nothing)[0].shape == (2, 0, 3)
    assert Tensor.zeros(0, 3, 3).solve(Tensor.zeros(0, 3, 2)).shape == (0, 3, 2)


def test_what_is_no_matrix_is_refused() -> None:
    x = Tensor.zeros(2, 3)
    for op in (Tensor.det, Tensor.inverse, Tensor.cholesky):
        with pytest.raises(ShapeError, match=r"square matrix, got \(2, 3\)"):
            op(x)
    with pytest.raises(ShapeError, match="needs 3 rows"):
        Tensor.eye(3).solve(Tensor.zeros(2, 2))
    with pytest.raises(ShapeError, match="expected a matrix"):
        Tensor.zeros(3).svd()


@pytest.mark.parametrize("op", ["cholesky", "solve", "qr", "det"])
def test_larger_matrices_take_no_more_kernels(op: str) -> None:
    """With gradients: each column's step is the same kernels."""

    def lowered(n: int) -> int:
        x = Tensor(np.eye(n, dtype=np.float32) + 0.1, device="CPU", requires_grad=True)
        y = x.solve(x[0]) if op == "solve" else getattr(x, op)()
        y = y[0] if op == "qr" else y
        (y * y).sum().backward()
        with trace.listen(trace.KernelLowered) as kernels:
            assert x.grad is not None
            x.grad.realize()
        return len(kernels)

    assert lowered(12) <= lowered(6) + 3
