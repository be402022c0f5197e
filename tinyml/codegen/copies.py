"""Copies: what is the same at each step of an axis that is written out is said once.

The rows of a register tile differ in where they read and write, and in the names of what they
hold. So one row is made, named and turned into text; the text is copied (`render.py`). Whoever
wants to see the instructions one by one gets them from `written_out`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import (
    Expr,
    Image,
    Load,
    Name,
    Part,
    Select,
    Stored,
    Wide,
    nodes,
    rewrite,
    substitute,
)
from tinyml.codegen.linear import EACH, Instr
from tinyml.codegen.matrices import Fragment, Matrix, Product
from tinyml.codegen.nest import Store, Tile
from tinyml.frozen import replace
from tinyml.graph import toposort
from tinyml.index import Axis, Linear, Range, linear, moved, substitute_valid

APART = Instr()  # what stands before it is done for all steps before what stands behind it
Families = Mapping[str, Axis]  # whose steps the values are that have a name with EACH in it


def alike(axis: Axis, stores: Sequence[Store], within: Set[Axis]) -> bool:
    """Whether stores of folds differ from step to step in their places only.

    Then all of one step may be done before the next one, as nobody reads what they overwrite.
    What is decided by axes `within` instructions alone, a step, a lane, is known where steps are
    written out one by one.
    """
    values = [store.value for store in stores]
    if not all(value.has_fold and axis in value.free for value in values):
        return False
    for store in stores:
        if store.op or store.position.looked or any(v.index.looked for v in store.valid):
            return False
    slots, made = {store.slot for store in stores}, toposort(values)
    if not _said_once(made) or any(isinstance(e, Load) and e.slot in slots for e in made):
        return False
    asked = chain(_asked(made), *(store.valid for store in stores))
    return not any(axis in r.free and r.free <= within for r in asked)


def alike_in_tile(axis: Axis, tile: Tile, value: Expr, within: Set[Axis]) -> bool:
    """Whether what a tile is filled with differs from step to step in its places only.

    A step that reads the tile itself reads what it overwrites, and nothing of another step. No
    condition vanishes at some of the steps where they are written out one by one.
    """
    made = nodes(value)
    places = [e.index for e in made if isinstance(e, Stored) and e.name == tile.name]
    if not _said_once(made) or any(axis not in place.free for place in (tile.index, *places)):
        return False
    return not _vanishes(axis, _asked(made), within)


def alike_abreast(axis: Axis, stores: Sequence[Store], within: Set[Axis]) -> bool:
    """Whether what is made to be stored differs from step to step in its places only.

    All is made before any of it is stored. No condition vanishes at some of the steps, and no place
    is known that lanes lie at, where steps are written out one by one.
    """
    for store in stores:
        if store.op or store.some or store.position.looked or axis not in store.position.free:
            return False
    made = toposort(store.value for store in stores)
    asked = chain(_asked(made), *(store.valid for store in stores))
    places = (e.position for e in made if isinstance(e, Load))
    known = any(_divides(axis, place, within) for place in places)
    return _said_once(made) and not known and not _vanishes(axis, asked, within)


def _divides(axis: Axis, place: Linear, within: Set[Axis]) -> bool:
    """Whether a number that is known at each step is divided."""
    return any(type(a) is not Axis and axis in a.free <= within for a, _ in place.terms)


def _vanishes(axis: Axis, asked: Iterable[Range], within: Set[Axis]) -> bool:
    """Whether one of the conditions, at some step, is not asked where steps are written out."""
    asked = [r for r in asked if axis in r.free]
    if any(r.free <= within for r in asked):
        return True
    steps: list[Image] = [{axis: linear(step)} for step in range(axis.size if asked else 0)]
    return any(moved(r, step).is_always for r in asked for step in steps)


def _said_once(made: Iterable[Expr]) -> bool:
    return not any(isinstance(e, (Wide, Part, Fragment, Matrix, Product)) for e in made)


def _asked(made: Iterable[Expr]) -> Iterator[Range]:
    """The conditions in expressions."""
    for e in made:
        match e:
            case Load(valid=valid) | Select(valid=valid):
                yield from valid
            case Stored(outside=outside):
                yield from (r for r, _ in outside)


def gathered(
    instrs: Iterable[Instr], families: Families, axes: Mapping[Axis, bool]
) -> tuple[Instr, ...]:
    """Instructions with those of every step together, in a block for each axis; or `abreast`.

    What has a name without the axis goes before it: it loads nothing that a step overwrites.
    """
    if not axes:
        return tuple(i for i in instrs if i is not APART)
    made, block = list[Instr](), list[Instr]()
    own: Axis | None = None  # the block's
    for instr in (*instrs, APART):
        axis = _axis_of(instr, families, axes)
        stays = axis is None and isinstance(instr, (ir.Let, ir.Fetch))
        if own is not None and axis is not own and not stays:
            made += [ir.Begin(own, copied=True, abreast=axes[own]), *block, ir.End(own)]
            block, own = [], None
        if axis is not None:
            block.append(instr)
            own = axis
        elif instr is not APART:
            made.append(instr)
    return tuple(made)


def _axis_of(instr: Instr, families: Families, axes: Iterable[Axis]) -> Axis | None:
    """The axis at each of whose steps an instruction is another one."""
    if isinstance(instr, (ir.Let, ir.Update, ir.Declare, ir.AcrossLanes)):
        return families.get(instr.name.name)
    if not isinstance(instr, (ir.Put, ir.Fetch, ir.PutTile)):
        return None
    place = instr.index if isinstance(instr, ir.PutTile) else instr.position
    return next((a for a in axes if a in place.free), None)


def written_out(instrs: Sequence[Instr]) -> Iterator[Instr]:
    """The instructions one by one."""
    at = 0
    while at < len(instrs):
        begin = instrs[at]
        if isinstance(begin, ir.Begin) and begin.copied:
            end = ir.end_of(instrs, at)
            for step in range(begin.axis.size):
                steps = (_at_step(i, begin.axis, step) for i in instrs[at + 1 : end])
                yield from (i for i in steps if i is not None)
            at = end
        else:
            yield begin
        at += 1


def named_at(e: Expr, step: int) -> Expr:
    """An expression in names of every step, at one of them."""

    def one(e: Expr) -> Expr | None:
        if not isinstance(e, Name):
            return None
        name: Name = Name(e.name.replace(EACH, str(step)), e.dtype, e.lanes)
        return name

    return rewrite(e, one)


def _at_step(instr: Instr, axis: Axis, step: int) -> Instr | None:
    """An instruction at one step; None if it does nothing there."""
    known = {axis: linear(step)}

    def value(e: Expr) -> Expr:
        return named_at(substitute(e, known), step)

    def named(name: Name) -> Name:
        again = named_at(name, step)
        assert isinstance(again, Name)
        return again

    match instr:
        case ir.Let(name, e) | ir.Declare(name, e) | ir.Update(name, _, e):
            return replace(instr, name=named(name), value=value(e))
        case ir.AcrossLanes(name, _, source):
            return replace(instr, name=named(name), source=named(source))
        case ir.Fetch(position=position):
            return replace(instr, position=position.substitute(known))
        case ir.PutTile(index=position, value=e):
            return replace(instr, index=position.substitute(known), value=value(e))
        case ir.Put(position=position, values=values, valid=valid):
            place, stored = position.substitute(known), tuple(map(value, values))
            held = substitute_valid(valid, known)
            return (
                None if held is None else replace(instr, position=place, values=stored, valid=held)
            )
    raise TypeError(f"cannot copy {instr}")
