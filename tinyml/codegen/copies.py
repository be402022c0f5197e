"""Copies: what is the same at each step of an axis that is written out is said once.

The rows of a register tile differ in where they read and write, and in the names of what they
hold. So one row is made, named and turned into text; the text is copied (`render.py`). Whoever
wants to see the instructions one by one gets them from `written_out`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Expr, Load, Name, Part, Select, Stored, Wide, rewrite, substitute
from tinyml.codegen.linear import EACH, Instr
from tinyml.codegen.matrices import Fragment, Matrix, Product
from tinyml.codegen.nest import Store
from tinyml.frozen import replace
from tinyml.graph import toposort
from tinyml.index import Axis, linear, substitute_valid

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
    slots = {store.slot for store in stores}
    asked = [r for store in stores for r in store.valid]
    for e in toposort(values):
        match e:
            case Load(slot=slot, valid=valid):
                if slot in slots:
                    return False
                asked += valid
            case Select(valid=valid):
                asked += valid
            case Stored(outside=outside):
                asked += [r for r, _ in outside]
            case Wide() | Part() | Fragment() | Matrix() | Product():
                return False
    return not any(axis in r.free and r.free <= within for r in asked)


def gathered(instrs: Iterable[Instr], families: Families) -> tuple[Instr, ...]:
    """Instructions with those of every step together, in a block for each axis.

    What has a name without the axis goes before it: it loads nothing that a step overwrites.
    """
    if not families:
        return tuple(i for i in instrs if i is not APART)
    made, block, axes = list[Instr](), list[Instr](), {*families.values()}
    own: Axis | None = None  # the block's
    for instr in (*instrs, APART):
        axis = _axis_of(instr, families, axes)
        stays = axis is None and isinstance(instr, (ir.Let, ir.Fetch))
        if own is not None and axis is not own and not stays:
            made += [ir.Begin(own, copied=True), *block, ir.End(own)]
            block, own = [], None
        if axis is not None:
            block.append(instr)
            own = axis
        elif instr is not APART:
            made.append(instr)
    return tuple(made)


def _axis_of(instr: Instr, families: Families, axes: Iterable[Axis]) -> Axis | None:
    """The axis at each of whose steps an instruction is another one."""
    match instr:
        case ir.Let(name) | ir.Update(name) | ir.Declare(name) | ir.AcrossLanes(name):
            return families.get(name.name)
        case ir.Put(position=position) | ir.Fetch(position=position):
            return next((a for a in axes if a in position.free), None)
    return None


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


def _at_step(instr: Instr, axis: Axis, step: int) -> Instr | None:
    """An instruction at one step; None if it does nothing there."""
    known = {axis: linear(step)}

    def one(e: Expr) -> Expr | None:
        if not isinstance(e, Name):
            return None
        name: Name = Name(e.name.replace(EACH, str(step)), e.dtype, e.lanes)
        return name

    def value(e: Expr) -> Expr:
        return rewrite(substitute(e, known), one)

    def named(name: Name) -> Name:
        again = one(name)
        assert isinstance(again, Name)
        return again

    match instr:
        case ir.Let(name, e) | ir.Declare(name, e) | ir.Update(name, _, e):
            return replace(instr, name=named(name), value=value(e))
        case ir.AcrossLanes(name, _, source):
            return replace(instr, name=named(name), source=named(source))
        case ir.Fetch(position=position):
            return replace(instr, position=position.substitute(known))
        case ir.Put(position=position, values=values, valid=valid):
            place, stored = position.substitute(known), tuple(map(value, values))
            held = substitute_valid(valid, known)
            return (
                None if held is None else replace(instr, position=place, values=stored, valid=held)
            )
    raise TypeError(f"cannot copy {instr}")
