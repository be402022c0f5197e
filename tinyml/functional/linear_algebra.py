"""Products of matrices, as a product of elements and a sum: the compiler sees a contraction.

    contraction ::= Alignment(first), Alignment(second), Alignment(result), space

That is two tensors multiplied element by element and added up along axes, as one step. All three
lie in one space of axes, with size 1 along those that they do not have. What is added up is what
the result lacks. The gradient of a factor is the contraction of the result's gradient with the
other factor, in the same space.
"""

from __future__ import annotations

import string
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from tinyml import lazy, mlops
from tinyml.dtype import DType, bool_, float32, int32, promote
from tinyml.dtypes import DTypeLike, to_dtype
from tinyml.errors import ShapeError
from tinyml.frozen import dataclass
from tinyml.functional.axes import check_tensors, is_tensor, wrong_type
from tinyml.functional.composed import sum_dtype
from tinyml.functional.steps import composition
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ops import Op
from tinyml.shape import broadcast_shape, inverse_order

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


@dataclass(frozen=True)
class Alignment:
    """How a tensor lies in a space: axis i is axis order[i] of its own, and then it is `shape`."""

    own: Shape
    order: tuple[int, ...]
    shape: Shape

    @classmethod
    def straight(cls, own: Shape, shape: Shape) -> Alignment:
        """With all axes in their order."""
        return cls(own, tuple(range(len(own))), shape)

    @cached_property
    def _ordered(self) -> Shape:
        return tuple([self.own[i] for i in self.order])

    @cached_property
    def _inverse(self) -> tuple[int, ...]:
        return inverse_order(self.order)

    def place(self, node: LazyBuffer) -> LazyBuffer:
        """The tensor's node in the space."""
        return lazy.reshape(lazy.permute(node, self.order), self.shape)

    def take(self, node: LazyBuffer) -> LazyBuffer:
        """The way back."""
        return lazy.permute(lazy.reshape(node, self._ordered), self._inverse)


@dataclass(frozen=True)
class Contraction:
    """Where two factors and the result lie in `space`."""

    first: Alignment
    second: Alignment
    result: Alignment
    space: Shape

    @cached_property
    def summed(self) -> tuple[int, ...]:
        """The axes of the space that the result does not have."""
        pairs = zip(self.result.shape, self.space, strict=True)
        return tuple([axis for axis, (own, all_) in enumerate(pairs) if own != all_])

    @cached_property
    def of_first(self) -> Contraction:
        """From the result's gradient and the second factor, the gradient of the first."""
        return Contraction(self.result, self.second, self.first, self.space)

    @cached_property
    def of_second(self) -> Contraction:
        """From the result's gradient and the first factor, the gradient of the second."""
        return Contraction(self.result, self.first, self.second, self.space)


class _Contract(mlops.Function):
    """The sum of x * y, multiplied and added up as `wide` and rounded to `dtype`."""

    __slots__ = ("dtype", "how", "wide")
    reads_inputs = True

    def __init__(self, how: Contraction, wide: DType, dtype: DType) -> None:
        self.how, self.wide, self.dtype = how, wide, dtype

    def forward(self, x: LazyBuffer, y: LazyBuffer) -> LazyBuffer:
        how, wide = self.how, self.wide
        first = lazy.expand(how.first.place(lazy.cast(x, wide)), how.space)
        second = lazy.expand(how.second.place(lazy.cast(y, wide)), how.space)
        product = lazy.map_(Op.MUL, first, second)
        return lazy.cast(how.result.take(lazy.reduce_(Op.ADD, product, how.summed)), self.dtype)

    def backward(self, grad: Tensor, out: Tensor) -> mlops.Grads:
        x, y = self.inputs
        of_x = of_y = None
        if self.wanted[0]:
            of_x = grad._apply(_Contract(self.how.of_first, self.wide, x.dtype), y)
        if self.wanted[1]:
            of_y = grad._apply(_Contract(self.how.of_second, self.wide, y.dtype), x)
        return of_x, of_y


def contract(x: Tensor, y: Tensor, how: Contraction, dtype: DType | None) -> Tensor:
    """x and y contracted; halves are multiplied and added up in float32."""
    result = dtype or promote(x.dtype, y.dtype)
    wide = float32 if result.is_half else (int32 if result is bool_ else result)
    return x._apply(_Contract(how, wide, result), y)


# ---- what users write ----


@composition
def dot(x: Tensor, w: Tensor, dtype: DTypeLike | None = None) -> Tensor:
    """The last axis of x with the second last (or only) axis of w."""
    return _product("matmul", x, x._coerce(w, "matmul"), dtype)


def _product(op: str, x: Tensor, w: Tensor, dtype: DTypeLike | None = None) -> Tensor:
    check_tensors(op, x, w=w)
    how = _rows_and_columns(op, x._lazy.shape, w._lazy.shape)
    return contract(x, w, how, None if dtype is None else to_dtype(dtype))


@lru_cache(maxsize=4096)  # most programs multiply the same few shapes
def _rows_and_columns(op: str, x: Shape, w: Shape) -> Contraction:
    """The last axis of x along the second last (or only) one of w, in the space (.., m, n, k)."""
    if not x or not w:
        raise ShapeError(f"{op}: both need at least one axis, got {x} and {w}")
    k = w[-min(len(w), 2)]
    if x[-1] != k:
        raise ShapeError(
            f"{op}: cannot multiply {x} with {w}: the last axis of the first ({x[-1]}) and axis "
            f"{-min(len(w), 2)} of the second ({k}) must be equal"
        )
    m, n = x[-2:-1], (w[-1:] if len(w) > 1 else ())
    batch = broadcast_shape(op, x[:-2], w[:-2])
    columns = (len(w) - 1, len(w) - 2) if n else (0,)
    of_x, of_w = ((1,) * (len(batch) - len(own)) + own for own in (x[:-2], w[:-2]))
    product = (*batch, *m, *n)
    return Contraction(
        Alignment.straight(x, (*of_x, *m, *(1 for _ in n), k)),
        Alignment(w, (*range(len(w) - 2), *columns), (*of_w, *(1 for _ in m), *n, k)),
        Alignment.straight(product, (*product, 1)),
        (*product, k),
    )


@composition
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: DTypeLike | None = None
) -> Tensor:
    """x @ weight + bias, computed in `dtype` if given; a weight of one axis scales."""
    check_tensors("linear", x, weight=weight, bias=bias)
    if dtype is not None:
        target = to_dtype(dtype)
        bias = None if bias is None else bias.cast(target)
        return linear(x.cast(target), weight.cast(target), bias)
    product = x * weight if weight.ndim == 1 else _product("linear", x, weight)
    return product if bias is None else product + bias


@composition
def einsum(formula: str, *tensors: Any, dtype: DTypeLike | None = None) -> Tensor:
    """Einstein's summation, e.g. einsum("ij,jk->ik", a, b)."""
    given: list[Tensor] = (
        list(tensors[0])
        if len(tensors) == 1 and isinstance(tensors[0], (list, tuple))
        else list(tensors)
    )
    if not given:
        raise ShapeError("einsum: at least one tensor is needed")
    if not isinstance(formula, str):
        raise wrong_type("einsum", "the formula", 'a str such as "ij,jk->ik"', formula)
    for n, operand in enumerate(given):
        if not is_tensor(operand):
            raise wrong_type("einsum", f"operand {n}", "a Tensor", operand)
        check_tensors("einsum", given[0], operand=operand)
    inputs, output = _parse(formula, tuple([t.ndim for t in given]))
    parts = [_diagonals(t, letters) for t, letters in zip(given, inputs, strict=True)]
    sizes = _sizes(formula, tuple([(t.shape, letters) for t, letters in parts]))
    if dtype is not None:
        result = to_dtype(dtype)
    else:
        every = output + "".join(letters for _, letters in parts)
        result = promote(*(_summing(t.dtype, letters, every) for t, letters in parts))
    wide = float32 if result.is_half else result
    (product, letters), *others = parts
    for number, (other, own) in enumerate(others, 1):
        later = output + "".join(letters for _, letters in parts[number + 1 :])
        kept = "".join(c for c in dict.fromkeys(letters + own) if c in later)
        kept = kept if number < len(others) else output
        how = _along_letters(letters, product.shape, own, other.shape, kept)
        product = contract(product, other, how, wide if number < len(others) else result)
        letters = kept
    order = output + "".join(c for c in letters if c not in output)  # of more than one: output
    product = product.permute([letters.index(c) for c in order])._broadcast_to(
        tuple(sizes[c] for c in order)
    )
    summed = tuple(range(len(output), len(order)))
    return (product.cast(wide).sum(summed, dtype=wide) if summed else product).cast(result)


@lru_cache(maxsize=4096)  # most programs write the same few formulas
def _along_letters(first: str, x: Shape, second: str, w: Shape, kept: str) -> Contraction:
    """Two tensors multiplied where their letters meet, and added up along those that go."""
    sizes = {c: n for c, n in zip(first + second, x + w, strict=True) if n == 1}
    sizes |= {c: n for c, n in zip(first + second, x + w, strict=True) if n != 1}
    order = kept + "".join(sorted(set(sizes) - set(kept)))

    def lying(letters: str, own: Shape) -> Alignment:
        places = tuple(sorted(range(len(own)), key=lambda a: order.index(letters[a])))
        shape = tuple([own[letters.index(c)] if c in letters else 1 for c in order])
        return Alignment(own, places, shape)

    result = lying(kept, tuple([sizes[c] for c in kept]))
    return Contraction(lying(first, x), lying(second, w), result, tuple([sizes[c] for c in order]))


@lru_cache(maxsize=4096)
def _parse(formula: str, ranks: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
    """The letters of each input and of the output; an ellipsis becomes letters of its own."""
    text = formula.replace(" ", "")
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(ranks):
        raise ShapeError(f"einsum: {formula!r} has {len(inputs)} operands, got {len(ranks)}")
    for letters in (*inputs, output):
        plain = letters.replace("...", "", 1)
        if plain and not plain.isalpha():
            raise ShapeError(f"einsum: {formula!r} is made of letters, and of one ... per operand")
    hidden = [rank - len(i.replace("...", "")) for i, rank in zip(inputs, ranks, strict=True)]
    most = max([h for h, i in zip(hidden, inputs, strict=True) if "..." in i], default=0)
    free = [c for c in string.ascii_uppercase + string.ascii_lowercase if c not in text][:most]
    expanded = []
    for letters, count in zip(inputs, hidden, strict=True):
        if count < 0 or (count and "..." not in letters):
            raise ShapeError(f"einsum: {letters!r} in {formula!r} does not fit its operand's axes")
        expanded.append(letters.replace("...", "".join(free[most - count :])))
    if not arrow:
        every = "".join(expanded)
        once = sorted({c for c in every if every.count(c) == 1 and c not in free})
        output = "..." * bool(free) + "".join(once)
    output = output.replace("...", "".join(free))
    if len(set(output)) != len(output) or not set(output) <= set("".join(expanded)):
        raise ShapeError(f"einsum: the output of {formula!r} must name input letters, each once")
    return tuple(expanded), output


def _summing(dtype: DType, letters: str, every: str) -> DType:
    """The dtype of a factor; that of its sum if it alone has one of its letters."""
    return dtype if all(every.count(c) > 1 for c in letters) else sum_dtype(dtype)


def _diagonals(x: Tensor, letters: str) -> tuple[Tensor, str]:
    """Where a letter comes several times, the diagonal of those axes."""
    if len(set(letters)) == len(letters):
        return x, letters
    for c in sorted({c for c in letters if letters.count(c) > 1}):
        while letters.count(c) > 1:
            i, j = letters.index(c), letters.rindex(c)
            n, m = x.shape[i], x.shape[j]
            if n != m:
                raise ShapeError(f"einsum: {c!r} stands for the sizes {n} and {m} of {x.shape}")
            x, letters = (
                x.diagonal(0, i, j),
                letters[:i] + letters[i + 1 : j] + letters[j + 1 :] + c,
            )
    return x, letters


@lru_cache(maxsize=4096)
def _sizes(formula: str, parts: tuple[tuple[Shape, str], ...]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for shape, letters in parts:
        for c, n in zip(letters, shape, strict=True):
            known = sizes.get(c, 1)
            if n not in (1, known) and known != 1:
                raise ShapeError(f"einsum: {c!r} in {formula!r} has the sizes {known} and {n}")
            sizes[c] = n if known == 1 else known
    return sizes
