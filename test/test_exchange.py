"""Arrays of other libraries: values arrive unchanged, and memory is shared where that is said."""

from __future__ import annotations

import array
import gc
import mmap
from typing import Any

import numpy as np
import pytest

from tinyml import Device, Tensor, TinyJit, dtypes
from tinyml.device import open_device
from tinyml.dtype import ALL, DType, bfloat16
from tinyml.errors import GradientError

torch = pytest.importorskip("torch")

SHAPES = ((), (0,), (3,), (2, 0), (2, 3))
BY_NAME = {d.name: getattr(torch, d.name) for d in ALL if hasattr(torch, d.name)}


def numbers(shape: tuple[int, ...], dtype: DType) -> Any:
    values = torch.arange(int(np.prod(shape)), dtype=torch.float64).reshape(shape) - 1
    if dtype.kind in "bu":
        values = values.abs()
    return values.to(BY_NAME[dtype.name])


def same(mine: Tensor, theirs: Any) -> None:
    assert (mine.shape, mine.dtype.name) == (tuple(theirs.shape), str(theirs.dtype)[6:])
    assert mine.tolist() == theirs.tolist()


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_to_torch_and_back(device: str, shape: tuple[int, ...], dtype: DType) -> None:
    theirs = numbers(shape, dtype)
    same(Tensor(theirs), theirs)
    mine = Tensor.from_dlpack(theirs)
    same(mine, theirs)
    back = torch.from_dlpack(mine)
    assert (back.dtype, back.shape, back.tolist()) == (theirs.dtype, theirs.shape, theirs.tolist())
    same(Tensor.from_dlpack(mine), theirs)


def test_what_is_not_row_major_arrives_in_order(device: str) -> None:
    theirs = torch.arange(12).reshape(3, 4)
    for seen in (theirs.T, theirs[:, ::2], theirs[1:, 1:3], theirs[:0], theirs[:, 0].expand(2, 3)):
        same(Tensor(seen), seen)
        same(Tensor.from_dlpack(seen), seen)
    mine = Tensor(theirs.numpy())
    same(mine.T, torch.from_dlpack(mine.T))
    backwards = np.arange(5)[::-1]
    assert Tensor.from_dlpack(backwards).tolist() == [4, 3, 2, 1, 0]
    if open_device(device).machine.dlpack_device == (1, 0):  # numpy knows the host alone
        assert np.from_dlpack(mine).tolist() == theirs.tolist()


def test_dlpack_shares_memory_on_the_host() -> None:
    theirs = torch.zeros(64)
    mine = Tensor.from_dlpack(theirs, device="CPU")
    theirs[1] = 5
    mine[2:4] = 7
    assert mine.realize().tolist()[:5] == [0, 5, 7, 7, 0]
    assert theirs.tolist()[:5] == [0, 5, 7, 7, 0]
    back = torch.from_dlpack(mine)
    assert back.data_ptr() == theirs.data_ptr()


@pytest.mark.parametrize("taken", [False, True])
def test_what_others_write_is_seen_by_views_that_were_computed(taken: bool) -> None:
    theirs = torch.zeros(64)
    mine = Tensor.from_dlpack(theirs, device="CPU") if taken else Tensor.zeros(64, device="CPU")
    mine = mine.contiguous() if not taken else mine
    theirs = theirs if taken else torch.from_dlpack(mine)
    several = [mine[1:], mine.reshape(8, 8).T, mine.reshape(8, 8).T[1], mine[::2].detach()]
    shown = [theirs[1:], theirs.reshape(8, 8).T, theirs.reshape(8, 8).T[1], theirs[::2]]
    step = TinyJit(lambda x: (x + 1).realize())
    for value in range(4):
        theirs[value * 8 + 1] = 5 + value
        assert [v.tolist() for v in several] == [v.tolist() for v in shown]
        theirs[value * 8 + 2] = 3 + value
        assert [v.sum().item() for v in several] == [v.sum().item() for v in shown]
        theirs[0] = value
        for v, there in zip(several, shown, strict=True):
            assert (v * 2).softmax().numpy() == pytest.approx((there * 2).softmax(-1).numpy())
        theirs[0] += 1
        assert step(several[3]).tolist() == (shown[3] + 1).tolist()


def test_what_is_written_by_others_reaches_no_tensor_that_was_only_equal() -> None:
    x = Tensor([1.0, 2.0], device="CPU").realize()
    given, equal = x.clone(), x.clone()
    Tensor.realize(given, equal)
    later, seen, shown = equal + 1, given.detach(), equal.detach()
    torch.from_dlpack(given).fill_(7)
    assert (given.tolist(), seen.tolist()) == ([7, 7], [7, 7])
    assert (equal.tolist(), shown.tolist(), later.tolist()) == ([1, 2], [1, 2], [2, 3])
    torch.from_dlpack(seen).fill_(8)
    assert given.tolist() == [8, 8]


@pytest.mark.parametrize("offset", [0, 1])
def test_a_blob_is_the_memory_itself(device: str, offset: int) -> None:
    """Of a size that is stored past the caches, and of any address that numbers may have."""
    values = np.zeros((3 << 20) + offset, np.float32)[offset:]
    there = values.ctypes.data, values.shape, dtypes.float32
    if device == "CUDA":
        with pytest.raises(ValueError, match="CUDA cannot use memory that begins at 0x"):
            Tensor.from_blob(*there)
        return
    if device == "EMU":  # whose memory has guards around it
        copied = Tensor.from_blob(*there)
        values[0] = 3
        assert copied[:2].tolist() == [0, 0]
        return
    blob = Tensor.from_blob(*there)
    later = blob + 1
    values[0] = 3
    assert later[:2].tolist() == [4, 1]
    blob.assign(blob + 2).realize()
    assert (values[0], values[1:].min(), values[1:].max()) == (5, 2, 2)
    raw = np.zeros(9, np.uint8)[1:]
    across = Tensor.from_blob(raw.ctypes.data, (2,), dtypes.float32)
    raw[:] = 1
    assert across.tolist() == [0, 0]


@pytest.mark.usefixtures("no_garbage")
def test_shared_memory_lives_as_long_as_somebody_looks_at_it() -> None:
    before = Device.memory_stats("CPU").in_use
    mine = Tensor.full((1000,), 3.0, device="CPU").contiguous().realize()
    theirs = torch.from_dlpack(mine)
    del mine
    gc.collect()
    others = [Tensor.full((1000,), 4.0, device="CPU").contiguous().realize() for _ in range(4)]
    assert theirs.tolist() == [3.0] * 1000
    del theirs, others
    gc.collect()
    assert Device.memory_stats("CPU").in_use == before
    kept = Tensor.from_dlpack(torch.full((64,), 2.0), device="CPU")
    gc.collect()
    assert (kept + 1).tolist() == [3.0] * 64


def test_a_copy_is_a_copy(device: str) -> None:
    theirs = torch.zeros(64)
    mine = Tensor.from_dlpack(theirs, copy=True)
    away = torch.from_dlpack(mine, copy=True)
    theirs += 1
    away += 2
    assert mine.tolist() == [0] * 64
    frozen = np.zeros(64, np.float32)
    frozen.flags.writeable = False
    taken = Tensor.from_dlpack(frozen)
    taken[0] = 1
    assert taken.tolist()[:2] == [1, 0]
    assert frozen[0] == 0
    with pytest.raises(BufferError, match="copy"):
        Tensor.from_dlpack(frozen, copy=False)
    with pytest.raises(BufferError, match="copy"):
        Tensor.from_dlpack(np.arange(6.0)[::2], copy=False)


def test_a_part_of_a_tensor_is_not_exported_without_a_copy(device: str) -> None:
    t = Tensor([1.0, 2.0, 3.0])
    with pytest.raises(BufferError, match="a part"):
        t[1:].__dlpack__(copy=False)
    if device != "CUDA":
        assert np.from_dlpack(t).tolist() == [1, 2, 3]


def test_dlpack_says_where_it_is(device: str) -> None:
    assert Tensor([1.0]).__dlpack_device__() == open_device(device).machine.dlpack_device
    on_host = Tensor([1.0, 2.0]).__dlpack__(dl_device=(1, 0))
    assert type(on_host).__name__ == "PyCapsule"
    with pytest.raises(BufferError, match="no way"):
        Tensor([1.0]).__dlpack__(dl_device=(4, 0))
    with pytest.raises(BufferError, match="detach"):
        Tensor([1.0], requires_grad=True).__dlpack__()
    with pytest.raises(TypeError, match="no __dlpack__"):
        Tensor.from_dlpack([1.0])
    with pytest.raises(TypeError, match="code 5"):
        Tensor.from_dlpack(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(GradientError, match="detach"):
        Tensor(torch.ones(2, requires_grad=True))


def test_numpy_sees_values(device: str) -> None:
    t = Tensor([[1.0, -2.0], [3.0, 4.0]])
    assert np.asarray(t).tolist() == t.tolist()
    assert np.asarray(t, dtype=np.int32).dtype == np.int32
    own = np.array(t)
    own[0, 0] = 9
    assert t.tolist() == [[1, -2], [3, 4]]
    assert np.concatenate([t, t]).shape == (4, 2)
    assert np.sum(t) == 6
    assert np.mean(t, axis=0).tolist() == [2, 1]
    with pytest.raises(GradientError, match=r"numpy\.sum"):
        np.sum(Tensor([1.0], requires_grad=True))
    asked = Tensor([[1.0, 2.0]], requires_grad=True)
    assert (np.shape(asked), np.ndim(asked), np.size(asked, axis=1)) == ((1, 2), 2, 2)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="copy= is of numpy 2")
def test_no_copy_is_a_view_that_cannot_be_written() -> None:
    t = Tensor([1.0, 2.0], device="CPU").realize()
    seen = np.array(t, copy=False)
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 1
    t.assign(Tensor([5.0, 6.0], device="CPU")).realize()
    assert seen.tolist() == [5, 6]
    for refused in (t.cast(bfloat16), t[:1].cast("int8")):
        with pytest.raises(ValueError, match="copy=False"):
            np.asarray(refused, dtype=np.float32, copy=False)


def test_ufuncs_are_ops(device: str, compare: Any) -> None:
    values = np.array([[0.5, -0.25], [0.75, 1.0]], np.float32)
    t, other = Tensor(values), np.array([2.0, 4.0], np.float32)
    pairs = {
        "exp": (np.exp(t), np.exp(values)),
        "abs": (np.absolute(t), np.absolute(values)),
        "arcsin": (np.arcsin(t), np.arcsin(values)),
        "array first": (other - t, other - values),
        "array last": (t / other, values / other),
        "product": (np.eye(2, dtype=np.float32) @ t, values),
        "maximum": (np.maximum(other, t), np.maximum(other, values)),
        "number": (np.float64(3) * t, 3 * values),
        "weak": (np.int64(3) + t, 3 + values),
    }
    assert all(p[0].dtype is dtypes.float32 for p in pairs.values())
    compare(pairs)
    assert (np.int64(3) + Tensor([1, 2])).dtype is dtypes.int32
    assert isinstance(np.hypot(t, 1), np.ndarray)  # Tensor has none
    assert np.add.reduce(t, axis=0).tolist() == values.sum(0).tolist()
    sums = np.zeros((2, 2), np.float32)
    sums += t
    assert sums.tolist() == values.tolist()


def test_numpys_names_are_names_of_ops() -> None:
    from tinyml.functional import exchange

    for theirs, mine in exchange._METHODS.items():
        assert isinstance(getattr(np, theirs), np.ufunc)
        assert hasattr(Tensor, mine)
    assert all(isinstance(getattr(np, name), np.ufunc) for name in exchange._UFUNCS)


def test_bytes_of_any_kind(device: str) -> None:
    wanted = [1.5, -2.0, 3.0]
    raw = np.array(wanted, np.float32).tobytes()
    with mmap.mmap(-1, len(raw)) as mapped:
        mapped.write(raw)
        for given in (raw, bytearray(raw), mapped):
            assert Tensor(given, dtype="float32").tolist() == wanted
    assert Tensor(memoryview(np.array(wanted))[::2]).tolist() == [1.5, 3.0]
    assert Tensor(array.array("h", [1, -2])).dtype is dtypes.int16
    assert Tensor(range(3)).tolist() == [0, 1, 2]


def test_only_cards_have_a_cuda_array_interface(device: str) -> None:
    t = Tensor([[1.0, 2.0]])
    if t.__dlpack_device__()[0] == 2:
        interface = t.__cuda_array_interface__
        assert (interface["shape"], interface["typestr"]) == ((1, 2), "<f4")
    else:
        assert not hasattr(t, "__cuda_array_interface__")


def test_a_part_is_given_away_in_memory_of_its_own() -> None:
    whole = Tensor([[1.0, 2.0], [3.0, 4.0]], device="CPU").realize()
    for part in (whole.T, whole[1:], whole[:, ::2]):
        theirs = torch.from_dlpack(part)
        theirs.fill_(9)
        assert whole.tolist() == [[1, 2], [3, 4]]
    torch.from_dlpack(whole.detach()).fill_(9)
    assert whole.tolist() == [[9, 9], [9, 9]]
