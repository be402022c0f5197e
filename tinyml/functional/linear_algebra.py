"""Products of matrices, as a product of elements and a sum: the compiler sees a contraction."""

from __future__ import annotations

import string
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tinyml.dtype import DType, float32, promote
from tinyml.dtypes import DTypeLike, to_dtype
from tinyml.errors import ShapeError
from tinyml.functional.axes import check_tensors, is_tensor, wrong_type
from tinyml.functional.composed import sum_dtype
from tinyml.functional.contraction import Alignment, Contraction, contract
from tinyml.functional.steps import composition
from tinyml.lazy import Shape
from tinyml.shape import broadcast_shape

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


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
