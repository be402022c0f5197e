"""Simulate: run a LinearKernel with numpy, every thread at once.

A value is an array of shape (threads, lanes), with 1 where there are no lanes: whoever walks a
GRID or THREAD axis is a line of it, a loop is a loop of Python, and the lanes of a vector are
columns. Halves are rounded after every op, as the generated text does.

All threads take each instruction together, so that a race would go unnoticed. Three rules make
up for it: what is put into a tile shows only after a barrier, an element is not filled between
two barriers in which another thread reads it, and no two store different values at one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from simulate_products import dot_of, pair_of, product, tf32

from tinyml import interpret
from tinyml.codegen import linear as ir
from tinyml.codegen.copies import written_out
from tinyml.codegen.expr import (
    Alu,
    Const,
    Expr,
    Held,
    Load,
    Name,
    Part,
    Place,
    Require,
    Select,
    Stored,
    Wide,
    nodes,
)
from tinyml.codegen.linear import Instr, LinearKernel
from tinyml.codegen.linearize.group_products import ends_of
from tinyml.codegen.matrices import (
    WARP,
    Aside,
    Bundle,
    Exchanged,
    Fragment,
    Matrix,
    Neighbours,
    Piece,
    Product,
)
from tinyml.codegen.optimize.fragments import WARPS
from tinyml.codegen.optimize.panels import ROW, STEP
from tinyml.codegen.pairs import Dot, Pair
from tinyml.dtype import DType
from tinyml.errors import VerifyError
from tinyml.index import Atom, Axis, Linear, Looked, Quotient, Range, Remainder, further
from tinyml.ops import MEANING, Op

Array = npt.NDArray[Any]
LATEST = 1 << 62  # after all threads
SEVERAL, NOBODY = np.full((1, 1), LATEST - 2), np.full((1, 1), LATEST - 1)  # and in their place
_Put = tuple[str, tuple[Array, Array], Array]  # a tile, block and place, values


def simulate(k: LinearKernel, buffers: Sequence[Array]) -> None:
    """Execute: fill the outputs among `buffers` (compute dtypes, C-contiguous, one per slot)."""
    slots = [buffer.reshape(-1) for buffer in buffers]
    if any(not np.shares_memory(a, b) for a, b in zip(slots, buffers, strict=True) if a.size):
        raise ValueError("simulate fills its buffers in place: they must be C-contiguous")
    with np.errstate(all="ignore"):
        for part in k.parts:
            _Threads(k, part, slots).run([*written_out(part.instrs)])


class _Threads:
    """All threads of all blocks of one part."""

    def __init__(self, k: LinearKernel, part: ir.Part, slots: list[Array]) -> None:
        self.k, self.slots = k, slots
        self.size = prod(k.block)
        number = np.arange(part.blocks * self.size).reshape(-1, 1)
        self.number, self.block, self.tx = number, number // self.size, number % k.block[0]
        ty = number // k.block[0] % k.block[1]
        self.lanes = {a: np.arange(a.size).reshape(1, -1) for a in k.lanes}
        self.axes: dict[Axis, Array] = dict(self.lanes)
        self.by_name = {ir.TX: self.tx, "ty": ty}
        self.axes.update(_numbered(part.grid, self.block))
        threads = prod(a.size for a in part.threads)
        self.axes.update(_numbered(part.threads, ty % threads))
        self.stores = ty < threads  # a part may need fewer than others
        self.names, self.aside = dict[str, Array](), dict[str, list[Array]]()
        self.active, self.tiles = np.ones((1, 1), np.bool_), _Tiles(k, part.blocks)

    # ---- instructions ----

    def run(self, instrs: Sequence[Instr]) -> None:
        at = 0
        while at < len(instrs):
            instr = instrs[at]
            if isinstance(instr, ir.Begin):
                end = ir.end_of(instrs, at)
                self._loop(instr, instrs[at + 1 : end])
                at = end
            else:
                self.step(instr)
            at += 1

    def _loop(self, begin: ir.Begin, body: Sequence[Instr]) -> None:
        """Every step; blocks that leave it out change nothing meanwhile."""
        starts = [self.index(start) for start in begin.starts]
        stops = [self.index(stop) for stop in begin.stops]
        around = self.active
        if begin.kept:
            first = np.max(np.broadcast_arrays(0, *starts), axis=0)
            end = np.min(np.broadcast_arrays(begin.axis.size, *stops), axis=0)
            ends = first, np.maximum(first, end)
            self.axes.update(zip(ends_of(begin.axis), ends, strict=True))
        for step in range(begin.axis.size):
            self.axes[begin.axis] = np.full((1, 1), step)
            for bound in starts:
                self.active = self.active & (bound <= step)
            for bound in stops:
                self.active = self.active & (step < bound)
            if self.active.any():
                self.run(body)
            self.active = around

    def step(self, instr: Instr) -> None:
        match instr:
            case ir.Number(axes, place):  # a block that has no tile any more changes nothing
                number = np.minimum(self.index(place), prod(a.size for a in axes) - 1)
                self.axes.update(_numbered(axes, number))
            case ir.Let(name, value) | ir.Declare(name, value):
                self._set(name, self.value(value))
            case ir.Update(name, op, value):
                new, old = self.value(value), self.value(name)
                new = new if op is None else self._alu(op, name.dtype, [old, new])
                self._set(name, np.where(self.active, new, old))
            case ir.AcrossLanes(name, op, source):
                lanes = self.value(source)
                self._set(name, interpret.ACCUMULATE[op].reduce(lanes, axis=1, keepdims=True))
            case ir.AcrossThreads(name, op, threads):
                parts = self.value(name).reshape(-1, threads, max(1, name.lanes))
                folded = interpret.ACCUMULATE[op].reduce(parts, axis=1, keepdims=True)
                self._set(name, np.broadcast_to(folded, parts.shape).reshape(len(self.block), -1))
            case ir.AcrossBlocks(names, _, part):
                self.aside |= {n.name: self._set_aside(self.value(n), part.high + 1) for n in names}
            case ir.Together():
                self._together(instr)
            case ir.Put():
                self._put(instr)
            case ir.PutTile(tile=tile, index=index, value=value, valid=valid, op=op):
                at, chosen = self.index(index), self.condition(valid) & self.active
                new = self.value(value)
                if op is not None:
                    old = self._read(tile, at)
                    new = interpret.rounded(np.asarray(MEANING[op](old, new)), value.dtype)
                self.tiles.put(tile, self.block, at, new, chosen, self.number)
            case _:
                self._ahead(instr)

    def _ahead(self, instr: Instr) -> None:
        """What is begun before it is needed, and what waits for it. Products are made at once."""
        match instr:
            case ir.Copy():
                self._copy(instr)
            case ir.Commit():
                self.tiles.commit()
            case ir.Await(groups):
                self.tiles.wait(groups)
            case ir.Barrier():
                self.tiles.barrier()
            case ir.AwaitBoxes(copies=copies):
                for copied in copies:
                    self._bring(copied)
            case ir.Produce() | ir.Release() | ir.Fetch() | ir.Fence():
                pass  # changes no value
            case ir.BeginProducts() | ir.EndProducts() | ir.AwaitProducts():
                pass
            case _:
                raise TypeError(f"cannot simulate {instr}")

    def _copy(self, copy: ir.Copy) -> None:
        side, chosen = np.arange(copy.lanes), self.condition(copy.when) & self.active
        made = chosen & self.condition(copy.valid) & (not copy.left or side < self.index(copy.left))
        new = self._load(copy.slot, self.index(copy.position) + side, made)
        at = self.index(copy.index) + side
        self.tiles.copy(copy.tile, self.block, at, new, chosen)

    def _bring(self, copied: ir.BoxCopy) -> None:
        """Elements of each block's boxes, by lines; zeros where there are none."""
        box, slot, threads = copied.box, self.slots[copied.box.slot], slice(None, None, self.size)
        line, along = np.arange(box.box[1]).reshape(-1, 1), np.arange(box.box[0])
        block = self.block[threads, :, None]
        active = np.broadcast_to(self.active, self.block.shape)[threads, 0]

        def of_block(index: Linear) -> Array:
            return np.broadcast_to(self.index(index), self.block.shape)[threads, :, None]

        strides = 1, *(stride // box.itemsize for stride in box.strides)
        for panel, (x, y, z) in enumerate(copied.at):
            where = of_block(x) + along, of_block(y) + line, of_block(z) + 0 * line
            position = np.full((1, 1, 1), box.offset // box.itemsize)
            valid = np.ones((1, 1, 1), np.bool_)
            for w, stride, size in zip(where, strides, box.sizes, strict=True):
                position, valid = position + w * stride, valid & (w >= 0) & (w < size)
            place = of_block(copied.index + panel * prod(box.box)) + line * box.box[0] + along
            values = np.where(valid, slot[np.where(valid, position, 0)], 0)
            self.tiles.bring(copied.tile, block[active], place[active], values[active])

    def _set(self, name: Name, value: Array) -> None:
        value = np.broadcast_to(value, (len(self.block), max(name.lanes, value.shape[1])))
        if value.shape[1] > max(name.lanes, 1):
            raise VerifyError(f"{self.k.name}: {name.name} cannot hold {value.shape[1]} lanes")
        self.names[name.name] = interpret.rounded(value, name.dtype)

    def _set_aside(self, value: Array, parts: int) -> list[Array]:
        """By part, what each block's tile has of it: the parts of one are neighbours."""
        tiles = np.repeat(value.reshape(-1, parts, self.size * value.shape[1]), parts, axis=0)
        return [*tiles.swapaxes(0, 1).reshape(parts, *value.shape)]

    def _together(self, brought: ir.Together) -> None:
        values, some = self.value(brought.name).copy(), slice(brought.first, brought.end)
        made = interpret.ACCUMULATE[brought.op].reduce(self.aside[brought.name.name], axis=0)
        values[:, some] = made[:, some]
        self._set(brought.name, values)

    def _put(self, put: ir.Put) -> None:
        chosen = self.condition(put.valid) & self.active & self.stores
        if put.once:
            chosen = chosen & (self.tx == 0)
        for n, value in enumerate(put.values):
            own = chosen & self.condition([further(put.some, n)] if put.some else ())
            self._put_value(put, self.index(put.position + n * put.step), self.value(value), own)

    def _put_value(self, put: ir.Put, position: Array, value: Array, chosen: Array) -> None:
        slot = self.slots[put.slot]
        shapes = [position.shape, value.shape, chosen.shape, self.block.shape]
        shape = np.broadcast_shapes(*shapes)
        chosen = np.broadcast_to(chosen, shape)
        at = np.broadcast_to(position, shape)[chosen]
        values = np.broadcast_to(value, shape)[chosen].astype(slot.dtype)
        if at.size and (at.min() < 0 or at.max() >= slot.size):
            raise VerifyError(f"{self.k.name}: writes slot{put.slot}[{at.min()}..{at.max()}]")
        if put.op is not None:
            interpret.ACCUMULATE[put.op].at(slot, at, values)
            slot[...] = interpret.rounded(slot, put.dtype)
            return
        slot[at] = values
        if not _same(slot[at], values):
            raise VerifyError(f"{self.k.name}: threads store different values in slot{put.slot}")

    # ---- values ----

    def value(self, root: Expr) -> Array:
        done: dict[Expr, Array] = {}
        for e in nodes(root):
            done[e] = self._value(e, done)
        return done[root]

    def _value(self, e: Expr, done: Mapping[Expr, Array]) -> Array:
        match e:
            case Const():
                return interpret.rounded(np.full((1, 1), e.value, e.dtype.compute), e.dtype)
            case Name(name=name):
                return self.names[name]
            case Place(index=index):
                return interpret.rounded(self.index(index), e.dtype)
            case Load(slot=slot, position=position, valid=valid):
                at, held = self.index(position), self.condition(valid)
                low, dtype = self._load(slot, at, held), self.k.slots[slot][1]
                if e.dtype.itemsize == dtype.itemsize:
                    return low if e.dtype is dtype else interpret.bitcast(low, dtype, e.dtype)
                return pair_of(low, self._load(slot, at + 1, held))
            case Wide():
                return self._wide(e)
            case Part(wide=wide, lane=lane):
                values, at = done[wide], self.index(lane)
                return np.take_along_axis(values, np.resize(at, (len(values), at.shape[1])), 1)
            case Stored(name=name, index=index):
                return self._read(name, self.index(index))
            case Held():
                return self._held(e, done)
            case Select(valid=valid, value=value, other=other):
                return np.where(self.condition(valid), done[value], done[other])
            case Require(fault=fault, operands=(value, holds)):
                return interpret.required(fault, done[value], done[holds])
            case Alu(op=op, operands=operands):
                values_of = [done[o] for o in operands]
                if op is Op.CAST:
                    return interpret.cast(values_of[0], operands[0].dtype, e.dtype)
                if op is Op.BITCAST:
                    return interpret.bitcast(values_of[0], operands[0].dtype, e.dtype)
                return self._alu(op, e.dtype, values_of)
        raise TypeError(f"cannot simulate {e}")

    def _held(self, e: Held, done: Mapping[Expr, Array]) -> Array:
        match e:
            case Pair(sources=(low, high)):
                return pair_of(done[low], done[high])
            case Dot(sources=(a, b)):
                return dot_of(done[a], done[b])
            case Fragment():
                return self._fragment(e)
            case Piece(name=name, index=index, lanes=lanes):
                at = self.index(index) + np.arange(lanes)
                return self._read(name, at)
            case Aside(name=name, part=part):
                return self.aside[name][int(self.index(part).item())]
            case Exchanged(sources=(values,), lanes=lanes):
                pairs = np.broadcast_to(done[values], (len(self.block), lanes))
                by_lane: Array = pairs.reshape(-1, lanes // 2, lanes // 2, 2).swapaxes(1, 2)
                return by_lane.reshape(pairs.shape)
            case Neighbours(first=first, sources=(values,), lanes=lanes):
                return done[values][:, first : first + lanes]
            case Bundle(values=values_):
                held = np.hstack([np.broadcast_to(done[v], self.block.shape) for v in values_])
                return interpret.rounded(held, e.dtype)
            case Matrix():
                return self._matrix(e)
            case Product(a=a, b=b, lanes=lanes):
                return product(done[a], done[b], lanes, e.of_warpgroup)
        raise TypeError(f"cannot simulate {e}")

    def _alu(self, op: Op, dtype: DType, operands: list[Array]) -> Array:
        return interpret.rounded(np.asarray(MEANING[op](*operands)), dtype)

    def _load(self, number: int, position: Array, valid: Array) -> Array:
        slot = self.slots[number]
        shape = np.broadcast_shapes(position.shape, valid.shape, (len(self.block), 1))
        valid, position = np.broadcast_to(valid, shape), np.broadcast_to(position, shape)
        at = position[valid]
        if at.size and (at.min() < 0 or at.max() >= slot.size):
            raise VerifyError(f"{self.k.name}: reads slot{number}[{at.min()}..{at.max()}]")
        values = np.zeros(shape, slot.dtype)
        values[valid] = slot[at]
        return values

    def _wide(self, e: Wide) -> Array:
        start, held = self.index(e.position), self.condition(e.valid)
        if start.size and (start % e.lanes).any():
            raise VerifyError(f"{self.k.name}: {e} is not aligned")
        last = np.maximum(start, self.slots[e.slot].size - 1)  # what is behind is not used
        return self._load(e.slot, np.minimum(start + np.arange(e.lanes), last), held)

    def _fragment(self, e: Fragment) -> Array:
        """A lane's 16 bytes are four of each of the four matrices."""
        own = np.broadcast_to(self.index(e.index), self.block.shape).reshape(-1, WARP)
        lane, each, held = np.arange(WARP), e.lanes // 4, []
        for n in range(e.lanes):
            matrix, odd = divmod(n, each)
            row, column = lane // 4, lane % 4 * each + odd
            row, column = (column, row) if e.crosswise else (row, column)
            held.append(own[:, matrix * 8 + row] + column)
        return self._read(e.name, np.stack(held, axis=-1).reshape(len(self.block), e.lanes))

    def _read(self, tile: str, at: Array) -> Array:
        """Elements of a tile, as each thread sees them."""
        return self.tiles.read(tile, self.block, at, np.where(self.active, self.number, -1))

    def _matrix(self, e: Matrix) -> Array:
        """That of each warpgroup, by lines."""
        threads = slice(None, None, WARP * WARPS)
        start = np.broadcast_to(self.index(e.index), self.block.shape)[threads]
        size, row = e.dtype.itemsize, ROW // e.dtype.itemsize
        line, k = np.arange(e.lines).reshape(-1, 1), np.arange(STEP // size)
        rows, columns = line * row + k, line // row * (e.leading // size) + line % row + k * row
        at = (columns if e.crosswise else rows).reshape(1, -1)
        values: Array = self.tiles.read(e.name, self.block[threads], start + at)
        shaped = values.reshape(-1, e.lines, len(k))
        return shaped if e.dtype.is_half else tf32(shaped)

    # ---- indices ----

    def index(self, i: Linear) -> Array:
        total = np.full((1, 1), i.constant)
        for atom, factor in i.terms:
            total = total + self._atom(atom) * factor
        return total

    def _atom(self, atom: Atom) -> Array:
        match atom:
            case Axis(name=name):
                value = self.by_name.get(name)
                return self.axes[atom] if value is None else value
            case Quotient(inner=inner, by=by):
                return self.index(inner) // by
            case Remainder(inner=inner, by=by):
                return self.index(inner) % by
            case Looked(value=value, size=size):
                return interpret.looked(self.value(value), size)
        raise TypeError(f"cannot simulate {atom!r}")

    def condition(self, valid: Sequence[Range]) -> Array:
        holds = np.ones((1, 1), np.bool_)
        for v in valid:
            index = self.index(v.index)
            holds = holds & (v.low <= index) & (index <= v.high)
        return holds


class _Tiles:
    """Shared memory: one copy of each tile per block."""

    def __init__(self, k: LinearKernel, blocks: int) -> None:
        self.alone, self.name = prod(k.block) == 1, k.name
        self.place = {t.name: t.place or t.name for t in k.locals}
        own = [t for t in k.locals if not t.place]
        self.shown = {t.name: np.zeros((blocks, t.size), t.dtype.compute) for t in own}
        self.written = {name: tile.copy() for name, tile in self.shown.items()}
        # the first and the last thread that has read an element since the last barrier
        self.first = {name: np.zeros(tile.shape, np.int64) for name, tile in self.shown.items()}
        self.last = {name: np.zeros(tile.shape, np.int64) for name, tile in self.shown.items()}
        self.barrier()
        self.groups: list[list[_Put]] = [[]]  # of copies under way; the last one is still open

    def put(self, tile: str, *given: Array) -> None:
        self._write(self._checked(self.place[tile], *given))

    def copy(self, tile: str, block: Array, at: Array, value: Array, chosen: Array) -> None:
        put = self._checked(self.place[tile], block, at, value, chosen, NOBODY)
        self.groups[-1].append(put)

    def bring(self, tile: str, block: Array, at: Array, values: Array) -> None:
        """Values that all see at once."""
        tile = self.place[tile]
        self.written[tile][block, at] = self.shown[tile][block, at] = values

    def commit(self) -> None:
        self.groups.append([])

    def wait(self, groups: int) -> None:
        """All groups but the last so many, and the open one, arrive."""
        while len(self.groups) > groups + 1:
            for put in self.groups.pop(0):
                self._write(put)

    def _checked(self, tile: str, *given: Array) -> _Put:
        shape = np.broadcast_shapes(*(x.shape for x in given))
        block, at, value, chosen, thread = (np.broadcast_to(x, shape) for x in given)
        where, own = (block[chosen], at[chosen]), thread[chosen]
        others = (self.first[tile][where] < own) | (self.last[tile][where] > own)
        if others.any() and not self.alone:
            raise VerifyError(f"{self.name}: {tile} is filled while others may read it")
        return tile, where, value[chosen]

    def _write(self, put: _Put) -> None:
        tile, where, value = put
        self.written[tile][where] = value
        if self.alone:
            self.shown[tile] = self.written[tile]

    def read(self, tile: str, block: Array, at: Array, thread: Array = SEVERAL) -> Array:
        tile = self.place[tile]
        if at.size and (at.min() < 0 or at.max() >= self.shown[tile].shape[1]):
            raise VerifyError(f"{self.name}: reads {tile}[{at.min()}..{at.max()}]")
        if not self.alone:
            block_, at_, thread = np.broadcast_arrays(block, at, thread)
            reads = thread >= 0
            where = block_[reads], at_[reads]
            np.minimum.at(self.first[tile], where, thread[reads])
            np.maximum.at(self.last[tile], where, thread[reads])
        return np.asarray(self.shown[tile][block, at])

    def barrier(self) -> None:
        for name in self.first:
            self.first[name][...], self.last[name][...] = LATEST, -1
        self.shown = {name: tile.copy() for name, tile in self.written.items()}


def _numbered(axes: tuple[Axis, ...], number: Array) -> Iterator[tuple[Axis, Array]]:
    """Axes out of their row-major position, the first one without a bound: as the text does."""
    below = prod(a.size for a in axes)
    for position, axis in enumerate(axes):
        below //= axis.size
        step = number // below
        yield axis, step % axis.size if position else step


def _same(a: Array, b: Array) -> bool:
    return bool(np.all((a == b) | ((a != a) & (b != b))))
