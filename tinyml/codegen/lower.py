"""Lower: a Kernel becomes a LoopNest. Movement becomes index arithmetic, padding a condition.

Each node is evaluated at a symbolic index, from the output down to the slots: what it needs is
asked for as (source, index, conditions), where all of the conditions must hold for a load to be
inside of its slot.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import lru_cache
from typing import Any

from tinyml import kernel, lazy
from tinyml.codegen.bounds import looked_up, require, settled
from tinyml.codegen.expr import Expr, Fold, Load, Place, Select, alu, const, looked_in, select, zero
from tinyml.codegen.nest import LoopNest, Nest, Store, Walk
from tinyml.codegen.places import mapped
from tinyml.dtype import float32, from_text
from tinyml.index import (
    ZERO,
    Axis,
    Linear,
    Range,
    Valid,
    bare,
    both,
    inside,
    linear,
    row_major,
    unravel,
    within,
)
from tinyml.interpret import identity
from tinyml.kernel import Kernel
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ops import Movement, Op

_LEAVING = Movement.PAD, Movement.SKEW  # whose index may lie outside of what is moved
Index = tuple[Linear, ...]
Request = tuple[LazyBuffer, Index, Valid]
Steps = Generator[Request, Expr, Expr]


def lower(k: Kernel) -> LoopNest:
    """The plainest loops that compute `k`: one element at a time, in order."""
    nests = tuple(
        _Lowering(number, part).nest()
        for number, part in enumerate(k.parts)
        if any(output.value.size for output in part)
    )
    return LoopNest(kernel.name(k), nests, k.slots)


class _Lowering:
    """Lowers one part. Folds of equal size share an axis, so that they can share a loop."""

    def __init__(self, number: int, part: tuple[kernel.Output, ...]) -> None:
        self.part = part
        self.mark = f"_{number}" if number else ""  # that names of this part's axes end in
        self.inner: list[Axis] = []  # what outputs walk inside a row
        self.folded: list[Axis] = []
        self.done: dict[Request, Expr] = {}  # a node that is asked for twice is evaluated once

    def nest(self) -> Nest:
        steps = self._steps_of_rows()
        walks: dict[tuple[Axis, ...], list[Store]] = {}
        for output in self.part:
            if output.value.size:
                index, axes = self._index_of(output, steps)
                walks.setdefault(axes, []).append(self._store(output, index))
        rows = tuple(a for i in steps for a in i.free)
        return Nest(rows, tuple(Walk(axes, tuple(stores)) for axes, stores in walks.items()))

    def _steps_of_rows(self) -> Index:
        """The index along each row axis, whose loop runs only over what is stored."""
        first = self.part[0]
        shape = first.value.shape
        rows = [Axis(f"i{n}{self.mark}", shape[a]) for n, a in enumerate(first.rows)]
        known = {a: linear(a) for a in rows}
        if first.where is not None and len(self.part) == 1:
            index, _ = self._index_of(first, tuple(known.values()))
            for r in _conditions(self.at(first.where, index)):
                for axis in rows:
                    if r.index - linear(axis) == ZERO:
                        start, end = max(r.low, 0), min(r.high, axis.high)
                        fewer = Axis(axis.name, end - start + 1)
                        known[axis] = (linear(fewer) if fewer.size > 1 else ZERO) + start
        return tuple(known.values())

    def _index_of(self, output: kernel.Output, rows: Index) -> tuple[Index, Any]:
        row_of = {axis: rows[n] for n, axis in enumerate(output.rows)}
        inside_row: list[Axis] = []
        index: list[Linear] = []
        for axis, size in enumerate(output.value.shape):
            if axis not in row_of and size != 1:
                inside_row.append(self._axis(self.inner, "j", size, inside_row))
                index.append(linear(inside_row[-1]))
            else:
                index.append(row_of.get(axis, ZERO))
        return tuple(index), tuple(inside_row)

    def _axis(self, pool: list[Axis], letter: str, size: int, taken: Iterable[Axis]) -> Axis:
        """The first axis of the pool that has this size and is not taken."""
        for axis in pool:
            if axis.size == size and axis not in taken:
                return axis
        pool.append(Axis(f"{letter}{len(pool)}{self.mark}", size))
        return pool[-1]

    def _store(self, output: kernel.Output, index: Index) -> Store:
        value = self.at(output.value, index)
        if output.index is None:
            sizes = [1 if a in output.across else n for a, n in enumerate(output.value.shape)]
            kept = tuple([ZERO if a in output.across else i for a, i in enumerate(index)])
            position = _in_memory(output, kept, tuple(sizes))
            op = output.op if output.across else None
            valid, value = self._within(output, index, value)
            pairs = zip(output.shape, output.held, strict=True)
            row = next(((whole, own) for whole, own in pairs if whole != own), None)
            return Store(output.slot, value.dtype, position, value, valid, op, row=row)
        asked = settled(self.at(output.index, index))
        looked = linear(asked.looked(output.shape[output.axis]))
        place = tuple(looked if a == output.axis else i for a, i in enumerate(index))
        position = row_major(place, output.shape)
        value = looked_up(value, asked, looked_in(position, ()))
        return Store(output.slot, value.dtype, position, value, (), output.op)

    def _within(self, output: kernel.Output, index: Index, value: Expr) -> tuple[Valid, Expr]:
        """Conditions on a store, and its value where they hold."""
        valid = () if output.where is None else _conditions(self.at(output.where, index))
        while isinstance(value, Select) and {*value.valid} <= {*valid}:
            value = value.value
        return valid, value

    def at(self, node: LazyBuffer, index: Index) -> Expr:
        """The value of `node` at `index`. Generators on a stack, so that depth costs nothing."""
        request = _request(node, index, ())
        stack: list[tuple[Request, Steps]] = [(request, self._steps(*request))]
        answer: Expr | None = None
        while stack:
            current, steps = stack[-1]
            try:
                wanted = steps.send(answer) if answer is not None else next(steps)
            except StopIteration as end:
                answer = self.done[current] = end.value
                stack.pop()
                continue
            wanted = _request(*wanted)
            answer = self.done.get(wanted)
            if answer is None:
                stack.append((wanted, self._steps(*wanted)))
        assert answer is not None
        return answer

    def _steps(self, node: LazyBuffer, index: Index, valid: Valid) -> Steps:
        """Yields a request for each source that is needed, and is sent its value."""
        match node:
            case lazy.Slot():
                plain = [bare(i) for i in index]
                pairs = zip(plain, node.shape, strict=True)
                safe = all(i.low >= 0 and i.high < n for i, n in pairs)  # wherever one is
                position = row_major(plain, node.shape)
                return Load(node.arg, node.dtype, position, () if safe else valid)
            case lazy.Const():
                return const(node.value, node.dtype)
            case lazy.Iota():
                return Place(bare(index[0]), node.dtype)
            case lazy.Map():
                operands = []
                for source in node.sources:
                    operands.append((yield source, index, valid))
                if isinstance(node, lazy.Require):
                    return require(node.fault, operands, valid)
                return mapped(node.op, node.dtype, *operands)
            case lazy.Reduce():
                return (yield from self._fold(node, index, valid))
            case lazy.Gather():
                data, looked = node.sources
                asked = settled((yield looked, index, valid))
                at = linear(asked.looked(data.shape[node.axis]))
                place_ = tuple(at if a == node.axis else i for a, i in enumerate(index))
                return looked_up((yield data, place_, valid), asked)
            case lazy.Move():
                return (yield from self._moved(node, index, valid))
        raise TypeError(f"cannot lower {node!r}")

    def _fold(self, node: lazy.Reduce, index: Index, valid: Valid) -> Steps:
        source = node.sources[0]
        if 0 in (source.shape[n] for n in node.axes):
            return const(identity(node.op, node.dtype), node.dtype)
        outside = tuple(i for n, i in enumerate(index) if n not in node.axes)
        kept = _relevant(outside, valid)  # the rest guards no load
        taken = {a for i in index for a in i.free} | {a for v in valid for a in v.free}
        while True:
            axes: list[Axis] = []
            inner = list(index)
            for n in node.axes:
                if source.shape[n] > 1:
                    axes.append(self._axis(self.folded, "r", source.shape[n], taken | {*axes}))
                    inner[n] = linear(axes[-1])
            body = yield source, tuple(inner), kept
            if not (again := _walked_again(body, frozenset(axes))):
                break
            taken |= again
        if node.dtype.is_half:  # halves are summed in float32, and rounded once
            body = alu(Op.CAST, float32, body)
        folded: Expr = Fold(node.op, body, tuple(axes)) if axes else body
        return alu(Op.CAST, node.dtype, folded)

    def _moved(self, node: lazy.Move, index: Index, valid: Valid) -> Steps:
        source, (_, arg) = node.sources[0], node.arg
        if node.movement is Movement.PAD:
            counts, text = arg
            fill = const(from_text(text, node.dtype), node.dtype)
            moved = [i - b for i, (b, _) in zip(index, counts, strict=True)]
        else:
            axis, by, step, _ = arg
            moved, fill = [*index], zero(node.dtype)
            moved[axis] = index[axis] + index[by] * step
        return (yield from self._guarded(source, tuple(moved), valid, fill))

    def _guarded(self, source: LazyBuffer, index: Index, valid: Valid, fill: Expr) -> Steps:
        """`source` at an index that may lie outside of it, where `fill` is."""
        ranges = [inside(i, 0, n - 1) for i, n in zip(index, source.shape, strict=True)]
        needed = both(ranges)
        if needed is None:
            return fill
        needed = both(Range(bare(v.index), v.low, v.high) for v in needed)  # now some always hold
        allowed = None if needed is None else both(valid, needed)
        if needed is None or allowed is None:
            return fill
        pairs = zip(index, source.shape, strict=True)
        promised = tuple(within(i, 0, n - 1) for i, n in pairs)  # where the conditions hold
        value = yield source, promised, allowed
        return select(needed, value, fill)


def _in_memory(output: kernel.Output, index: Index, shape: Shape) -> Linear:
    """Where an element of a value of that shape is in the output's memory."""
    if output.padding:
        return row_major(_reshaped(index, shape, output.held), output.shape)
    return row_major(index, shape)


def _conditions(mask: Expr) -> Valid:
    """Where a mask that is a moved True holds."""
    valid: Valid = ()
    while isinstance(mask, Select):
        valid += mask.valid
        mask = mask.value
    return valid


def _walked_again(body: Expr, axes: frozenset[Axis]) -> set[Axis]:
    """Those of the axes, walked around `body`, that folds within their loops walk, too.

    A fold that depends on nothing that is walked there is made before these loops.
    """
    found: set[Axis] = set()
    stack = [(body, axes)] if axes and body.has_fold else []
    seen = set(stack)
    while stack:
        e, around = stack.pop()
        if isinstance(e, Fold):
            if around.isdisjoint(e.free):
                continue
            found.update(axes.intersection(e.axes))
            around |= {*e.axes}
        below = {(source, around) for source in e.folding} - seen
        seen |= below
        stack += below
    return found


def _request(node: LazyBuffer, index: Index, valid: Valid) -> Request:
    """The request, made of what a node only moves, as long as no index leaves that."""
    while isinstance(node, lazy.Move) and node.movement not in _LEAVING:
        index = moved_index(node, index)
        node = node.sources[0]
    return node, index, _relevant(index, valid)


def _relevant(index: Index, valid: Valid) -> Valid:
    """The conditions without those on axes that an index does not use: they guard no load there.

    So a reduction inside a padded region does not depend on the place in that region, and is
    shared.
    """
    if not valid:
        return valid
    atoms = {atom for i in index for atom in (*i.free, *i.looked)}
    return tuple(v for v in valid if not atoms.isdisjoint((*v.free, *v.index.looked)))


def moved_index(node: lazy.Move, index: Index) -> Index:
    """The index into the source of a movement that never leaves it."""
    source, (_, arg) = node.sources[0], node.arg
    match node.movement:
        case Movement.RESHAPE:
            return _reshaped(index, node.shape, source.shape)
        case Movement.PERMUTE:
            return tuple(index[arg.index(a)] for a in range(len(arg)))
        case Movement.EXPAND:
            pairs = zip(index, source.shape, strict=True)
            return tuple(ZERO if n == 1 else i for i, n in pairs)
        case Movement.SHRINK:
            return tuple(i + start for i, (start, _) in zip(index, arg, strict=True))
        case Movement.FLIP:
            pairs = zip(index, source.shape, strict=True)
            return tuple((n - 1) - i if a in arg else i for a, (i, n) in enumerate(pairs))
    raise TypeError(f"{node!r} may leave its source")


@lru_cache(maxsize=4096)
def _reshaped(index: Index, shape: Shape, below: Shape) -> Index:
    if 0 in shape:
        return (ZERO,) * len(below)
    return unravel(row_major(index, shape), below)
