"""Layouts: what a card's products read lies in memory as they copy it to their tiles.

A card copies pieces of 16 bytes past the registers, from where whole pieces begin.

- Channels: images that are read through windows lie with their channels innermost. Along channels
  all of a piece lies at one place of a window, and so within the image's edge or beyond it; along
  pixels a window begins anywhere. So who makes an image, or the weights of a window, stores them
  so, at the same cost; and what is made of an image element by element, or what it is made of, lies
  as it does. What is asked for stays as it is.
- Rows: those of an intermediate array are padded, so that each begins at whole 16 bytes; rows of
  50257 halves begin anywhere. Behind each row there are a few elements that are nobody's: who
  writes the row may write them, and nobody takes them for data.
- Copies: of what is in memory already products read a copy that lies so, if they multiply it for
  long enough.
- Along folds: warpgroups read halves either way, floats only along the fold (TF32). So a factor
  that lies along another axis, as B in A @ B and both in A.T @ B, is stored once more in another
  order: by a kernel of its own, through tiles, or by the product that makes it. That is done if
  warps would take longer by more than the copies do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from math import prod

from tinyml import lazy
from tinyml.dtype import float32
from tinyml.kernel import longer_rows
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement, Op
from tinyml.schedule.balance import LAUNCH, factors_of, in_halves, is_long, worth_a_copy
from tinyml.schedule.contracts import added_by, contracts, narrowest, widens
from tinyml.schedule.fuse import Fusion
from tinyml.schedule.group import folded
from tinyml.schedule.labels import FIXED, MIXED, Labels, through, unmoved, unshaped
from tinyml.schedule.recompute import recomputed
from tinyml.schedule.rewrite import Changed, renewed
from tinyml.schedule.units import CARDS, by_element
from tinyml.shape import inverse_order

PIECE = 16  # bytes
WIDE = 16 * PIECE  # bytes of a row that is worth padding: memory grows by a sixteenth at most
FLOPS = 33  # in the time of a byte, of warps that multiply floats: 138 TFLOP/s of 4.2 TB/s
SAVED = 0.6  # of their time, by warpgroups

Order = tuple[int, ...]  # of axes, as a permutation has it

# ---- channels ----


def channels_last(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values; images and weights of windows are made with their axes in another order."""
    wanted = [(base, axes) for base, axes in _wanted(order) if isinstance(base, lazy.Map)]
    orders = _spread(order, wanted, {*roots}) if wanted else {}
    changed: Changed = {}
    made: Changed = {}  # as it is stored
    for node, _again in renewed(order, changed) if orders else ():
        folds = isinstance(node, lazy.Reduce) and node.sources[0] in made
        axes = orders.get(node.sources[0] if folds else node)
        if axes is not None:
            sources = [made.get(s) or _permuted(changed.get(s, s), axes) for s in node.sources]
            lies = _lying(node, axes, tuple(sources))
            made |= {} if folds else {node: lies}
            changed[node] = lazy.permute(lies, inverse_order(axes))
    return changed


def _lying(node: LazyBuffer, axes: Order, sources: tuple[LazyBuffer, ...]) -> LazyBuffer:
    """A map or a fold whose sources have their axes in this order."""
    if isinstance(node, lazy.Reduce):
        return lazy.reduce_(node.op, sources[0], [axes.index(a) for a in node.axes])
    return node.with_sources(sources, sources[0].shape)


def _permuted(node: LazyBuffer, axes: Order) -> LazyBuffer:
    """What is repeated is repeated along other axes, so that it can still be seen to be."""
    if lazy.is_move(node, Movement.EXPAND):
        return lazy.expand(_permuted(node.sources[0], axes), tuple([node.shape[a] for a in axes]))
    return lazy.permute(node, axes)


def _wanted(order: Iterable[LazyBuffer]) -> Iterator[tuple[LazyBuffer, Order]]:
    """Factors of products with windows, and in which order they are to lie."""
    for node in order:
        if not (isinstance(node, lazy.Reduce) and node.op is Op.ADD and node.device in CARDS):
            continue
        read, windows = _factors(node)
        for base, labels in read if windows else ():
            inner = [a for a, x in enumerate(labels) if x == MIXED or x in windows]
            outer = [a for a in range(min(inner, default=0)) if base.shape[a] > 1]
            if not (outer and base.dtype.is_half and isinstance(base, (lazy.Map, lazy.Data))):
                continue
            last, times = outer[-1], node.sources[0].size // base.size
            worth = isinstance(base, lazy.Map) or worth_a_copy(base, times)
            if worth and base.shape[last] * base.dtype.itemsize % PIECE == 0:
                yield base, (*(a for a in range(len(labels)) if a != last), last)


def _factors(product: lazy.Reduce) -> tuple[list[tuple[LazyBuffer, Labels]], set[int]]:
    """What is multiplied, its axes as the sum walks them, and the sum's axes that step windows."""
    windows, source = set[int](), product.sources[0]
    top, labels = _below(source, tuple(range(len(source.shape))), windows)
    if not lazy.is_map(top, Op.MUL):
        return [], windows
    return [_below(factor, labels, windows) for factor in top.sources], windows


def _below(node: LazyBuffer, labels: Labels, windows: set[int]) -> tuple[LazyBuffer, Labels]:
    """What lies below moves and casts that make halves wider."""
    base = narrowest(node)
    while node is not base:
        if isinstance(node, lazy.Move):
            if lazy.is_move(node, Movement.SKEW):
                windows.add(labels[node.arg[1][1]])
            labels = through(node, labels)
        node = node.sources[0]
    return base, labels


def _spread(
    order: Iterable[LazyBuffer], wanted: Iterable[tuple[LazyBuffer, Order]], roots: set[LazyBuffer]
) -> dict[LazyBuffer, Order]:
    """By map, in which order it is made: as all that are connected with it element by element.

    Those stay as they are if some of them are asked for, or are read in several orders.
    """
    maps = [node for node in order if isinstance(node, lazy.Map)]
    groups: dict[LazyBuffer, list[LazyBuffer]] = {}
    for node in maps:
        joined = {id(g): g for s in node.sources if (g := groups.get(s)) and s.shape == node.shape}
        group = max(joined.values(), key=len, default=list[LazyBuffer]())
        for other in joined.values():
            group += other if other is not group else []
            groups |= dict.fromkeys(other, group)
        group.append(node)
        groups[node] = group
    kept = roots.union(n.sources[1] for n in order if isinstance(n, lazy.Assign))
    found: dict[int, set[Order]] = {}
    for group, axes in ((groups[base], axes) for base, axes in wanted):
        found.setdefault(id(group), set()).add(axes if kept.isdisjoint(group) else ())
    return {
        node: axes
        for node in maps
        for axes in found.get(id(groups[node]), ())
        if axes and len(found[id(groups[node])]) == 1
    }


# ---- rows, and copies ----


def paddings(
    fusion: Fusion, stored: Iterable[LazyBuffer], roots: Iterable[LazyBuffer]
) -> dict[LazyBuffer, int]:
    """How many elements are put behind each row of what is stored, where there are any."""
    outside = {*roots, *(s for u in fusion.uses if isinstance(u, lazy.Copy) for s in u.sources)}
    made = (u for u in stored if isinstance(u, (lazy.Map, lazy.Reduce, lazy.Move)))
    inside = (u for u in made if u.device in CARDS and u not in outside and u in fusion.group_of)
    found = ((u, _lacking(u)) for u in inside)
    return {u: padding for u, padding in found if padding and _is_multiplied(u, fusion)}


def _lacking(node: LazyBuffer) -> int:
    """How many elements a row lacks of whole pieces, if it is wide and not the only one."""
    *before, width = [n for n in node.shape if n != 1] or [1]
    wide = prod(before) > 1 and width * node.dtype.itemsize >= WIDE
    return -width % (PIECE // node.dtype.itemsize) if wide else 0


def _is_multiplied(unit: LazyBuffer, fusion: Fusion) -> bool:
    """Whether a product of matrices makes or reads it, and it is made in one go."""
    group, made = fusion.group_of[unit], unshaped(unit)
    added = not {*folded(made)}.isdisjoint(group.places.get(made, ()))
    groups = (group, *(fusion.group_of[reader] for reader in fusion.readers.get(unit, ())))
    return not added and any(each.contracts for each in groups)


def copied(base: LazyBuffer, axes: Order) -> LazyBuffer:
    """What is in memory, read from a copy of it in another order."""
    return lazy.permute(lazy.contiguous(lazy.permute(base, axes)), inverse_order(axes))


def copied_factors(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values; halves in memory are read from copies with whole rows, or channels last."""
    copies = _with_whole_rows(order)
    copies |= {b: copied(b, axes) for b, axes in _wanted(order) if isinstance(b, lazy.Data)}
    changed: Changed = {}
    for node, _again in renewed(order, changed) if copies else ():
        if (isinstance(node, lazy.Move) or widens(node)) and node.sources[0] in copies:
            changed[node] = node.made_of(copies)
    return changed


def _with_whole_rows(order: Iterable[LazyBuffer]) -> Changed:
    """Factors whose rows lack some of a piece, each as it is read from a copy that has them."""
    times = Counter[LazyBuffer]()
    for node in order:
        if isinstance(node, lazy.Reduce) and node.device in CARDS and contracts(node):
            read = map(_read_whole, factors_of(node)) if in_halves(node) else ()
            for base in filter(None, read):
                times[base] += node.sources[0].size // max(1, base.size)
    return {b: _padded(b) for b, n in times.items() if _lacking(b) and worth_a_copy(b, n)}


def _read_whole(factor: LazyBuffer) -> LazyBuffer | None:
    """What is in memory that a factor is, its rows as they lie there."""
    while isinstance(factor, lazy.Move) or widens(factor):
        if isinstance(factor, lazy.Move) and not _keeps_rows(factor):
            return None
        factor = factor.sources[0]
    return factor if isinstance(factor, lazy.Data) else None


def _keeps_rows(move: lazy.Move) -> bool:
    before, after = ([n for n in node.shape if n != 1] for node in (move.sources[0], move))
    shaped = lazy.is_move(move, Movement.RESHAPE) and before == after
    return shaped or lazy.is_move(move, Movement.PERMUTE, Movement.EXPAND)


def _padded(base: LazyBuffer) -> LazyBuffer:
    shape = longer_rows(base.shape, _lacking(base))
    more = tuple([(0, whole - n) for whole, n in zip(shape, base.shape, strict=True)])
    whole = lazy.contiguous(lazy.pad(base, more))
    return lazy.shrink(whole, tuple([(0, n) for n in base.shape]))


# ---- along folds ----


def along_folds(
    order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer], devices: Container[str]
) -> Changed:
    """The same values; the devices' products of floats read what lies along their folds."""
    stored = _stored(order, roots, devices)
    changed: Changed = {}
    made: dict[tuple[LazyBuffer, Order], LazyBuffer] = {}  # one copy for all that read it so
    for node, again in renewed(order, changed) if stored else ():
        if node in stored:
            read = [_read(factor) for factor in factors_of(again)]
            orders = [_order(again, chain[-1], labels) for chain, labels in read]
            if None in orders or not _worth(again, [c[-1] for c, _ in read], orders):
                continue
            factors = list[LazyBuffer]()
            for (chain, _), axes in zip(read, orders, strict=True):
                base = chain[-1]
                if axes and (base, axes) not in made:
                    made[base, axes] = copied(base, axes)
                factors.append(_moved(chain, made[base, axes]) if axes else chain[0])
            changed[node] = _product(again, factors)
    return changed


def _stored(
    order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer], devices: Container[str]
) -> set[LazyBuffer]:
    """Products of floats, but for those of a cascade: what these meet is nowhere stored."""
    products = [n for n in order if n.device in devices and contracts(n) and not in_halves(n)]
    within = recomputed(order, {*roots}) if products else frozenset[LazyBuffer]()
    factors = {n: {unmoved(factor) for factor in factors_of(n)} for n in products}
    times = Counter(base for bases in factors.values() for base in bases)

    def cascades(base: LazyBuffer) -> bool:
        made = [n for n in by_element(base) if contracts(n)]
        return any(n in within or (times[base] == 1 and is_long(n)) for n in made)

    return {n for n in products if n not in within and not any(map(cascades, factors[n]))}


def _read(factor: LazyBuffer) -> tuple[list[LazyBuffer], Labels]:
    """A factor and what is below its moves, one by one; which axes of it walk those of the last.

    As far down as each axis walks one.
    """
    chain, labels = [factor], tuple(range(len(factor.shape)))
    while isinstance(move := chain[-1], lazy.Move):
        below = through(move, labels)
        if MIXED in below:
            break
        labels = below
        chain.append(move.sources[0])
    return chain, labels


def _order(product: LazyBuffer, base: LazyBuffer, labels: Labels) -> Order | None:
    """In which order a factor is to lie: () as it does, None if no order is any good."""
    assert isinstance(product, lazy.Reduce)
    walked = [a for a, label in enumerate(labels) if label != FIXED and base.shape[a] > 1]
    folded = [a for a in walked if labels[a] in product.axes]
    apart = len({labels[a] for a in walked}) == len(walked)
    whole = folded and base.shape[folded[-1]] * base.dtype.itemsize % PIECE == 0
    if base.dtype is not float32 or not (apart and whole):
        return None
    if walked[-1] in folded:
        return ()
    return (*(a for a in range(len(labels)) if a not in folded), *folded)


def _worth(
    product: LazyBuffer, bases: Sequence[LazyBuffer], orders: Sequence[Order | None]
) -> bool:
    copies = {base for base, axes in zip(bases, orders, strict=True) if axes}
    nbytes = sum(2 * base.size * base.dtype.itemsize + LAUNCH for base in copies)
    return 0 < FLOPS * nbytes < SAVED * 2 * product.sources[0].size


def _moved(chain: Sequence[LazyBuffer], base: LazyBuffer) -> LazyBuffer:
    for move in chain[-2::-1]:
        base = move.with_sources((base,), move.shape)
    return base


def _product(product: LazyBuffer, factors: Sequence[LazyBuffer]) -> LazyBuffer:
    terms = added_by(product)
    changed = {terms: terms.with_sources(tuple(factors), terms.shape)}
    above, node = [product], product
    while node.sources[0] is not terms:
        above.append(node := node.sources[0])
    for each in reversed(above):
        changed[each] = each.made_of(changed)
    return changed[product]
