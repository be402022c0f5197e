"""Group: products of warpgroups, which are made while threads go on, are begun and waited for.

Those of one step of a loop are a group, up to where their sums are read. It is waited for at once;
or, where a step's boxes are released behind the next step's products, a group later, and by all at
the end of the loop.

The last products of a step may be made beside the first ones of the next step. A step of attention
makes scores, then powers of them, then sums of what they multiply. Tensor cores would be idle while
powers are worked out: so the sums of a step wait for the scores of the next one, and both are begun
at once. Those of the last step follow the loop.

    for r:  scores(r); powers(r); sums(r)
    for r:  scores(r); if r > first: sums(r - 1); powers(r)
    if any: sums(last)

What sums multiply is kept in names that are declared before the loop, and in tiles that are kept
for one step more (Tile.late).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from tinyml.codegen.expr import Name, const, parts_of
from tinyml.codegen.linear import (
    AwaitBoxes,
    AwaitProducts,
    Begin,
    BeginProducts,
    Declare,
    End,
    EndProducts,
    Instr,
    Let,
    Update,
    end_of,
)
from tinyml.codegen.matrices import Bundle, Matrix, Product, by_warpgroup
from tinyml.codegen.scope import names_of
from tinyml.dtype import float32
from tinyml.frozen import replace
from tinyml.index import Axis, Linear, linear
from tinyml.ops import Op

_ONCE = Axis("once", 1)


def grouped(instrs: Sequence[Instr], late: Mapping[Axis, int]) -> tuple[Instr, ...]:
    """The instructions with what begins and ends groups of products.

    Loops over axes that are `late` make a step's last products with the next step's first, if they
    can: so many stages their tiles have.
    """
    if not any(by_warpgroup(i.value) for i in instrs if type(i) is Update):
        return tuple(instrs)
    made: list[Instr] = []
    groups: list[list[int]] = []  # where products are that no inner loop makes
    between, every = set[str](), set[str]()  # names of what else is read: since the last of them
    boxes, at = False, 0
    while at < len(instrs):
        instr, end, read = instrs[at], at, set[str]()
        boxes = boxes or isinstance(instr, AwaitBoxes)
        if isinstance(instr, Update) and by_warpgroup(instr.value):
            if not groups or not between.isdisjoint(names_of(made[n] for n in groups[-1])):
                groups.append([])
            groups[-1].append(len(made))
            between = set()
            made.append(instr)
        elif isinstance(instr, Begin):
            end = end_of(instrs, at)
            inner = grouped(instrs[at + 1 : end], late)
            same = sum(isinstance(i, Begin) and i.axis.name == instr.axis.name for i in instrs)
            again = _deferred(instr, inner, late.get(instr.axis, 0)) if same == 1 else None
            made += again or [instr, *inner, instrs[end], *_left(inner)]
            read = names_of(inner)
        else:
            made.append(instr)
            read = names_of([instr])
        between, every, at = between | read, every | read, end + 1
    for group in reversed(groups):
        _wait(made, group, every, boxes)
    return tuple(made)


def _wait(made: list[Instr], group: Sequence[int], every: Set[str], boxes: bool) -> None:
    """What begins a group, and waits for it: later, if none of `every` name is that of its sums."""
    updates = [i for n in group if isinstance(i := made[n], Update)]
    sums = tuple(dict.fromkeys(i.name for i in updates))
    apart = every.isdisjoint(n.name for n in sums) and all(map(_in_memory, updates))
    under_way = boxes and apart
    behind = [EndProducts(), AwaitProducts(sums, int(under_way), under_way)]
    made[group[-1] + 1 : group[-1] + 1] = behind
    made.insert(group[0], BeginProducts(sums))


def _in_memory(product: Update) -> bool:
    """Whether both factors lie in shared memory: registers are needed for others."""
    return isinstance(product.value, Product) and isinstance(product.value.a, Matrix)


def _left(inner: Iterable[Instr]) -> list[Instr]:
    """What waits for the groups that a loop leaves behind."""
    waits = [i for i in inner if isinstance(i, AwaitProducts)]
    return [AwaitProducts(waits[-1].names, 0)] if waits and waits[-1].under_way else []


class _Group(NamedTuple):
    """Products of a step that are begun and waited for together, from here to there."""

    begin: int
    end: int  # where they are waited for
    sums: tuple[Name, ...]


class _Parts(NamedTuple):
    """A step: what is begun first, what is begun last, and all between and behind."""

    first: _Group
    last: _Group
    products: list[Update]  # the last ones
    scales: list[Update]  # of their sums
    others: list[Instr]  # between
    held: list[Let]  # what they multiply
    ending: Sequence[Instr]


def _deferred(begin: Begin, step: Sequence[Instr], stages: int) -> list[Instr] | None:
    """A loop that makes a step's last products with the first ones of the next, if it can.

    Its tiles have so many stages.
    """
    parts = _parts(step) if stages else None
    if parts is None or not all(_repeats(i, begin.axis, stages) for i in parts.products):
        return None
    kept, last = {let.name: _late(let.name) for let in parts.held}, parts.last

    def again(at: Linear) -> Iterator[Instr]:
        """The products of the step before."""
        before = {begin.axis: at + (stages - 1)}  # which lies where it does
        yield BeginProducts(last.sums)
        yield from (_of_kept(i, kept, before) for i in parts.products)
        yield EndProducts()

    at, (first, behind) = linear(begin.axis), map(linear, ends_of(begin.axis))
    beside = [*again(at), AwaitProducts(parts.first.sums, 1)]
    return [
        *(Declare(late, _zeros(late)) for late in kept.values()),
        replace(begin, kept=True),
        *step[: parts.first.end],
        *_if((), (at - first,), beside),
        *_if((at - first,), (), [AwaitProducts(parts.first.sums, 0)]),
        *parts.others,
        AwaitProducts(last.sums, 0),
        *parts.scales,
        *parts.held,
        *(Update(late, None, name) for name, late in kept.items()),
        *parts.ending,
        End(begin.axis),
        *_if((), (behind - first,), [*again(behind), AwaitProducts(last.sums, 0)]),
    ]


def ends_of(axis: Axis) -> tuple[Axis, Axis]:
    """The first step of a loop that is `kept`, and what lies behind its last one."""
    return Axis(f"{axis.name}_first", axis.size + 1), Axis(axis.name, axis.size + 1)


def _parts(step: Sequence[Instr]) -> _Parts | None:
    """A step whose last products multiply registers; nothing but products reads their sums."""
    groups = _groups(step)
    if len(groups) < 2:
        return None
    first, last = groups[0], groups[-1]
    inside, ending = step[last.begin + 1 : last.end - 1], step[last.end + 1 :]
    products = [i for i in inside if isinstance(i, Update) and by_warpgroup(i.value)]
    lets = {i.name: i for i in step if isinstance(i, Let)}
    held = _held(products, lets)
    between = [i for i in (*step[first.end + 1 : last.begin], *inside) if i not in products]
    scales = [i for i in between if isinstance(i, Update) and i.name in last.sums]
    others = [i for i in between if i not in scales and i not in held]
    later = {i.name.name for i in (*others, *scales) if isinstance(i, Update)}
    late = {name.name for name in (*last.sums, *(let.name for let in held))}
    if (
        not held
        or not all(_is_scale(i, lets) for i in scales)
        or not late.isdisjoint(names_of([*step[: first.end + 1], *others, *ending]))
        or not names_of(held).isdisjoint(later)
    ):
        return None
    return _Parts(first, last, products, scales, others, held, ending)


def _groups(step: Sequence[Instr]) -> list[_Group]:
    """The groups of products of a step, if none is begun in a loop within it."""
    groups, begun, depth = list[_Group](), 0, 0
    for n, instr in enumerate(step):
        depth += (type(instr) is Begin) - (type(instr) is End)
        if isinstance(instr, BeginProducts):
            begun = n
            if depth:
                return []
        elif isinstance(instr, AwaitProducts):
            if depth or instr.left:
                return []
            groups.append(_Group(begun, n, instr.names))
    return groups


def _held(products: Iterable[Update], lets: Mapping[Name, Let]) -> list[Let]:
    """What a step puts into the registers that products read; nothing, if they read others."""
    found = [i.value.a for i in products if isinstance(i.value, Product)]
    made = [lets[a] for a in dict.fromkeys(found) if isinstance(a, Name) and a in lets]
    whole = len(made) == len({*found}) and all(isinstance(let.value, Bundle) for let in made)
    return made if whole else []


def _repeats(product: Update, axis: Axis, stages: int) -> bool:
    """Whether what it reads in a tile lies where it did so many steps before."""
    if not isinstance(product.value, Product) or not isinstance(product.value.b, Matrix):
        return False
    index = product.value.b.index
    return index.substitute({axis: linear(axis) + stages}) is index


def _is_scale(update: Update, lets: Mapping[Name, Let]) -> bool:
    """Whether sums are scaled by what a step has given names."""
    read = [e for e in parts_of([update.value]) if type(e) is Name]
    return update.op is Op.MUL and all(name in lets for name in read)


def _late(name: Name) -> Name:
    late: Name = Name(f"{name.name}_late", name.dtype, name.lanes)
    return late


def _zeros(name: Name) -> Bundle:
    return Bundle((const(0.0, float32),) * name.lanes, name.dtype)


def _of_kept(product: Update, kept: dict[Name, Name], before: dict[Axis, Linear]) -> Update:
    p = product.value
    assert isinstance(p, Product)
    assert isinstance(p.a, Name)
    assert isinstance(p.b, Matrix)
    b = p.b.again((), before)
    return replace(product, value=Product(kept[p.a], b, p.bound, p.lane, p.lanes))


def _if(
    low: tuple[Linear, ...], high: tuple[Linear, ...], instrs: Iterable[Instr]
) -> Iterator[Instr]:
    """Instructions that are executed where `low` are not above, and `high` are above 0."""
    yield Begin(_ONCE, low, high)
    yield from instrs
    yield End(_ONCE)
