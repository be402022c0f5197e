"""What joins arrays copies each of them, and asks for nothing at each element."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import stages
from graphs import memory
from stages import kernel_of

from tinyml import Tensor
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.expr import Expr, Load, Select, Wide, parts_of
from tinyml.codegen.linear import values_of
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.nest import LoopNest
from tinyml.codegen.optimize.opts import Opt, OptError, OptKind, apply
from tinyml.dtype import DType, bfloat16, float32, int8
from tinyml.kernel import Kernel


def rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return Tensor.cat(-x[..., half:], x[..., :half], dim=-1)


JOINED: dict[str, Callable[[], Tensor]] = {
    "columns": lambda: Tensor.cat(*(memory(40, 32) for _ in range(5)), dim=1),
    "rows": lambda: Tensor.cat(*(memory(40, 32) for _ in range(5))),
    "images": lambda: Tensor.cat(memory(3, 8, 9, 9), memory(3, 16, 9, 9), dim=1),
    "stacked": lambda: Tensor.stack(*(memory(1000) for _ in range(3))),
    "long": lambda: Tensor.cat(memory(70001), memory(50003)),
    "halves": lambda: rotated(memory(6, 10, 64)) * memory(10, 64),
}


def read(k: Kernel) -> list[Expr]:
    """What the text of a kernel loads and chooses."""
    made = linearize(choose(lower(k), stages.C)[1])
    instrs = [i for part in made.parts for i in part.instrs]
    found = parts_of([value for i in instrs for value in values_of(i)])
    return [e for e in found if isinstance(e, (Load, Select, Wide))]


def asks(e: Expr) -> bool:
    return isinstance(e, (Load, Select, Wide)) and e.valid != ()


@pytest.mark.parametrize("name", JOINED)
def test_what_is_joined_is_copied(name: str) -> None:
    k = kernel_of(JOINED[name]())
    assert not any(map(asks, read(k)))
    stages.assert_right(k, 0)


@pytest.mark.parametrize("dtype", [float32, bfloat16, int8], ids=str)
@pytest.mark.parametrize("sizes", [(31, 32, 5), (70, 1, 33), (16, 15, 200)], ids=str)
def test_whole_vectors_of_one_array_ask_nothing(sizes: tuple[int, ...], dtype: DType) -> None:
    k = kernel_of(Tensor.cat(*(memory(7, n, dtype=dtype) for n in sizes), dim=1))
    plain = {e.slot for e in read(k) if isinstance(e, (Load, Wide)) and not asks(e)}
    assert plain >= {slot for slot, size in enumerate(sizes, 1) if size > 30}
    stages.assert_right(k, 0)


@pytest.mark.parametrize("padding", [(1, 2), (40, 3), (0, 0, 5, 9), (2, 2, 30, 1)], ids=str)
@pytest.mark.parametrize("mode", ["constant", "reflect", "circular"])
def test_what_lies_around_is_as_it_was(padding: tuple[int, ...], mode: str) -> None:
    stages.assert_right(kernel_of(memory(3, 37, 100).pad(padding, mode=mode)), 0)


@pytest.mark.parametrize("steps", [1, 17, 96, -64])
def test_a_roll_is_two_copies(steps: int) -> None:
    k = kernel_of(memory(9, 128).roll(steps, 1))
    assert steps % 8 or not any(map(asks, read(k)))  # else one vector has both ends
    stages.assert_right(k, 0)


def test_more_arrays_than_pieces_are_right() -> None:
    stages.assert_right(kernel_of(Tensor.cat(*(memory(4, 130) for _ in range(30)))), 0)
    x = memory(3, 90)
    columns = [x[:, n : n + 1] for n in reversed(range(90))]
    for k in stages.kernels(Tensor.cat(*columns, dim=1)):
        stages.assert_right(k, 0)


def test_images_are_not_walked_once_for_each_of_their_borders() -> None:
    opts, _ = choose(lower(kernel_of(memory(64, 32, 56, 56).pad((1, 1, 1, 1)))), stages.C)
    assert not any(opt.kind is OptKind.CUT for opt in opts)


def sizes(nest: LoopNest) -> list[int]:
    return [one.rows[0].size for one in nest.nests]


def test_a_row_axis_is_cut_anywhere_but_at_its_ends() -> None:
    plain = lower(kernel_of(memory(8, 9) + 1))
    cut = apply(plain, Opt(OptKind.CUT, "i0", 6))
    assert sizes(cut) == [6, 2]
    assert sizes(apply(cut, Opt(OptKind.CUT, "i0", 3))) == [3, 2, 3]
    for step in (0, 8):
        with pytest.raises(OptError, match="i0 has 8 steps"):
            apply(plain, Opt(OptKind.CUT, "i0", step))
