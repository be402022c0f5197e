"""A tensor as an object: what it is made from, what it says of itself, assignment."""

from __future__ import annotations

import array
import copy
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from tinyml import Tensor, dtypes, lazy


def test_made_from_anything(device: str) -> None:
    numbers = np.array([[1.5, 2.0], [3.0, 4.0]], np.float32)
    made = [
        Tensor(numbers),
        Tensor(numbers.T).T,
        Tensor(numbers.tolist()),
        Tensor([Tensor([1.5, 2.0]), Tensor([3.0, 4.0])]),
        Tensor(Tensor(numbers)),
        Tensor(memoryview(numbers)),
        Tensor(array.array("f", numbers.reshape(-1))).reshape(2, 2),
        Tensor(numbers.tobytes(), dtype=dtypes.float32).reshape(2, 2),
    ]
    if device != "CUDA":  # whose own memory alone can be named
        made.append(Tensor.from_blob(numbers.ctypes.data, (2, 2), dtypes.float32))
    Tensor.realize(*made)
    for tensor in made:
        np.testing.assert_array_equal(tensor.numpy(), numbers)
    assert Tensor(3).tolist() == 3
    assert Tensor(True).item() is True
    assert Tensor([]).shape == (0,)
    assert Tensor([[]]).shape == (1, 0)
    assert Tensor(None).shape == (0,)
    assert Tensor(b"\x01\x02").tolist() == [1, 2]
    with pytest.raises(AttributeError, match=r"replaced by \.assign"):
        made[0].data = numbers
    assert Tensor([1, 2.5]).dtype is dtypes.float32


def test_values_are_given_as_a_buffer(device: str) -> None:
    made = Tensor([[1, 2], [3, 4]], dtype="int16").data()
    assert (made.tolist(), made.format, made[1, 0]) == ([[1, 2], [3, 4]], "h", 3)
    none = Tensor.zeros(0, 2).data()
    assert (list(none), none.shape, none.itemsize) == ([], (0,), 4)


def test_the_array_it_was_made_from_may_change(device: str) -> None:
    source = np.zeros(3, np.float32)
    t = Tensor(source)
    source[:] = 1
    out = t.numpy()
    out[:] = 2
    assert t.tolist() == [0, 0, 0]


def test_creation(device: str, compare: object) -> None:
    pairs = {
        "zeros": (Tensor.zeros(2, 3), np.zeros((2, 3))),
        "ones": (Tensor.ones((2,)), np.ones(2)),
        "full": (Tensor.full((2, 2), 7), np.full((2, 2), 7)),
        "eye": (Tensor.eye(2, 3), np.eye(2, 3)),
        "arange": (Tensor.arange(5, 0, -2), np.arange(5, 0, -2)),
        "floats": (Tensor.arange(0.5, 2, 0.25), np.arange(0.5, 2, 0.25)),
        "linspace": (Tensor.linspace(-1, 1, 7), np.linspace(-1, 1, 7)),
        "like": (Tensor.zeros(2).full_like(3), np.full(2, 3)),
        "number": (Tensor.ones(), 1),
        "none": (Tensor.arange(0), np.arange(0)),
    }
    compare(pairs)  # type: ignore[operator]


def test_what_it_says_of_itself() -> None:
    t = Tensor.zeros(2, 3, dtype="float16")
    assert (t.shape, t.ndim, t.numel(), t.size(), t.size(1), len(t)) == ((2, 3), 2, 6, (2, 3), 3, 2)
    assert (t.element_size(), t.nbytes(), t.is_floating_point()) == (2, 12, True)
    assert "(2, 3) float16" in repr(t)
    assert [row.shape for row in t] == [(3,), (3,)]
    assert hash(t) == hash(t)
    assert t in {t}
    assert float(Tensor(2.5)) == 2.5
    assert bool(Tensor([1]))
    with pytest.raises(RuntimeError, match="exactly one"):
        bool(Tensor([1, 2]))
    assert np.asarray(Tensor([1.0, 2.0])).tolist() == [1, 2]
    assert (np.array([1.0, 2.0], np.float32) + Tensor([1.0, 1.0])).tolist() == [2, 3]


def test_realizing_several_at_once(device: str) -> None:
    a = Tensor([1.0, 2.0])
    b, c = a + 1, a * 2
    assert Tensor.realize(b, c) is b
    assert (b.tolist(), c.tolist()) == ([2, 3], [2, 4])


def test_assignment_is_in_program_order(device: str) -> None:
    x = Tensor([1.0, 2.0]).realize()
    doubled = x * 2
    x.assign(x + 10)
    later = x * 2
    x += 100
    Tensor.realize(later, x, doubled)
    assert doubled.tolist() == [2, 4]
    assert later.tolist() == [22, 24]
    assert x.tolist() == [111, 112]


def test_what_is_saved_before_an_assignment_may_be_assigned_to(device: str) -> None:
    x, y = (Tensor(values, device=device).realize() for values in ([1.0, 2.0], [3.0, 4.0]))
    tripled = y * 3
    y.assign(x * 2)  # reads x, and so is done before the next
    x.assign(x + 1).realize()
    assert [x.tolist(), y.tolist(), tripled.tolist()] == [[2, 3], [2, 4], [9, 12]]


def test_inplace_operators_rebind_what_is_being_differentiated(device: str) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    y += x
    y *= y
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [18, 36]


def test_writing_into_a_part_keeps_the_gradient(device: str) -> None:
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * 2
    y[1] = x[0] * 5
    (y * Tensor([1.0, 10.0, 100.0])).sum().backward()
    assert x.grad is not None
    Tensor.realize(y, x.grad)
    assert y.tolist() == [2, 5, 6]
    assert x.grad.tolist() == [52, 0, 200]


def test_copies(device: str) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert y.tolist() == [1, 2]
        assert y.requires_grad
        assert y.device == device
    kept = x.detach().clone()
    x.assign(Tensor([5.0, 6.0]))
    assert kept.tolist() == [1, 2]
    assert not x.detach().requires_grad


def test_between_devices(device: str) -> None:
    x = Tensor([1.0, 2.0], device="NUMPY", requires_grad=True)
    y = x.to(device) * 3
    assert y.device == device
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.device == "NUMPY"
    assert x.grad.tolist() == [3, 3]


class Parameter(Tensor):
    """As who comes from torch may have one."""


def test_a_tensor_of_a_class_of_ones_own_is_an_operand_like_others() -> None:
    w, x = Parameter([[1.0, 2.0], [3.0, 4.0]], requires_grad=True), Tensor([[1.0, 1.0]])
    assert (w @ x.T).tolist() == (w.matmul(x.T)).tolist() == [[3], [7]]
    assert (w + x).tolist() == (x + w).tolist() == [[2, 3], [4, 5]]
    assert w[Tensor([1])].tolist() == w[[Tensor([1])]].tolist() == [[3, 4]]
    assert w.clip(Tensor(2.0), 3.0).tolist() == [[2, 2], [3, 3]]
    assert (w > 2).where(w, x).tolist() == [[1, 1], [3, 4]]
    assert w.gather(1, Tensor([[1], [0]])).tolist() == [[2], [3]]
    assert Parameter(x).tolist() == x.tolist()
    y = Parameter([0.0, 0.0, 1.0])
    y[:2] = w[0] * 2
    y.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [[2, 2], [0, 0]]


def test_a_list_of_tensors_is_where_they_are_or_where_it_is_wanted(device: str) -> None:
    x = Tensor([1.0, 2.0], device="NUMPY", requires_grad=True)
    beside = Tensor([[3, 4], x])
    assert (beside.device, beside.tolist()) == ("NUMPY", [[3, 4], [1, 2]])
    assert Tensor([[x[0], 5], [6, 7]]).device == "NUMPY"
    moved = Tensor([x, Tensor([3.0, 4.0], device=device), [5, 6]], device=device)
    assert (moved.device, moved.tolist()) == (device, [[1, 2], [3, 4], [5, 6]])
    (moved * moved).sum().backward()
    assert x.grad is not None
    assert (x.grad.device, x.grad.tolist()) == ("NUMPY", [2, 4])


def test_arguments_have_the_names_that_others_give_them() -> None:
    """torch says dim and keepdim, numpy axis and keepdims, tinygrad k and min."""
    x = Tensor([[1.0, 3.0], [2.0, 0.0]])
    says: list[Callable[..., Tensor]] = [x.sum, x.var, x.logsumexp, x.all, x.softmax, x.argmax]
    says += [x.cumsum, lambda **k: x.cat(x, **k), lambda **k: Tensor.stack(x, x, **k)]
    says += [lambda **k: x.roll(1, **k), lambda **k: x.sort(**k)[1], x.unsqueeze]
    for say in says:
        for axis in (0, 1):
            assert say(axis=axis).tolist() == say(dim=axis).tolist() == say(dims=axis).tolist()
    assert x.mean(dim=1, keepdims=True).shape == x.mean(axis=1, keepdim=True).shape == (2, 1)
    assert x.topk(1, axis=0, sorted=True)[0].tolist() == [[2.0, 3.0]]
    assert x.triu(k=1).tolist() == x.triu(diagonal=1).tolist() == [[0.0, 3.0], [0.0, 0.0]]
    for bounded in (x.clip(min=1, max=2), x.clip(1, 2), x.hardtanh(min=1, max=2)):
        assert bounded.tolist() == [[1.0, 2.0], [2.0, 1.0]]
    assert (-x).leaky_relu(negative_slope=0.5).tolist() == [[-0.5, -1.5], [-1.0, 0.0]]
    assert x.flip(axis=1).tolist() == x.flip(dims=(1,)).tolist() == x.flip(1).tolist()
    assert Tensor.arange(1, end=3).tolist() == [1, 2]
    for pair_in_torch in (x.max, x.min, x.cummax, x.cummin):
        with pytest.raises(TypeError, match="axis= gives the values alone"):
            pair_in_torch(dim=0)  # type: ignore[call-arg]
    for wrong in ({"dim": 0, "axis": 0}, {"dimension": 0}):
        with pytest.raises(TypeError, match="dim"):
            x.sum(**wrong)  # type: ignore[arg-type]


def test_training_is_a_setting_for_a_while() -> None:
    assert not Tensor.training
    with Tensor.train():
        assert Tensor.training
        with Tensor.train(False):
            assert not Tensor.training
        assert Tensor.training

    @Tensor.train()
    def inside() -> bool:
        return Tensor.training

    assert inside()
    assert not Tensor.training


def test_importing_needs_numpy_only() -> None:
    code = (
        "import sys, tinyml; print([m for m in ('torch', 'pycuda', 'scipy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_ops_record_few_nodes() -> None:
    shapes = ((4, 3), (2, 3, 6, 6), (4, 3, 3, 3), (4,))
    x, image, filters, bias = (Tensor(np.ones(shape, np.float32)) for shape in shapes)
    places = Tensor([0, 2, 1])
    most: dict[Callable[[], object], int] = {
        lambda: x[1:]: 1,
        lambda: x[1]: 2,
        lambda: x[places]: 10,
        lambda: x.mean(): 3,
        lambda: x.softmax(): 8,
        lambda: x.cat(x, dim=1): 7,
        lambda: image.conv2d(filters, bias): 16,
        lambda: image.max_pool2d(): 12,
        lambda: Tensor.einsum("ij,kj->ik", x, x): 8,
    }
    for record, count in most.items():
        record()  # constants are kept
        made: list[lazy.LazyBuffer] = []
        lazy.known.listeners.append(made.append)
        try:
            result = record()
        finally:
            lazy.known.listeners.remove(made.append)
        assert len(made) <= count, "\n".join(map(str, made))
        assert result is not None


def test_to_look_at_values_copies_them_once() -> None:
    x = Tensor.ones(1 << 18).contiguous().realize()
    x.numpy()
    tracemalloc.start()
    values = x.numpy()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert values.nbytes <= most < 1.5 * values.nbytes
    values[0] = 5
    assert x[0].item() == 1
