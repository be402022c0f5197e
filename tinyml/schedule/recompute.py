"""Recompute: large products of matrices are not stored, but computed again by every reader.

That is rematerialization, as checkpoints do it, inside of kernels. Attention's scores are folded
along both axes in training: by what is made of them for the result and the gradient of the queries
along one, by the gradients of keys and values along the other. No one kernel makes all of that, and
in memory scores grow with the square of what they are made of. So each kernel makes those that it
meets, a few steps at a time (codegen/optimize/online.py). On a CPU that takes longer than to read
them, but not where a mask of positions leaves half of them out, as in causal attention: then it
stores no smaller ones, either.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from math import prod

from tinyml import lazy
from tinyml.frozen import dataclass
from tinyml.graph import reached
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement, Op
from tinyml.schedule.balance import WIDEST, factors_of, in_halves, is_cheap, is_long
from tinyml.schedule.contracts import contracts, narrowest
from tinyml.schedule.labels import FIXED, MIXED, Labels, factor_groups, through, trace
from tinyml.schedule.masks import Masks
from tinyml.schedule.powers import POWERS
from tinyml.schedule.rewrite import Changed, renewed
from tinyml.schedule.units import CARDS, Readers, ends_of, readers_of, until_folds


@dataclass(frozen=True)
class Limits:
    """From where on a device makes products again."""

    elements: int  # that are too many to store
    masked: int  # the same, if there is a mask on what is made of them
    steps: int  # of each fold over them
    rows: int  # that each fold leaves: what a device shares out
    led: bool  # whether fewer will do where folds of a row lead each other, as in a softmax
    depth: int  # of the fold that makes them, at most: what each element costs


INLINE = (lazy.Map, lazy.Move, lazy.Reduce)  # what kernels make of others, element by element

FEWER = 16  # times fewer rows of scores than steps leave a card's memory as busy as its cores
# A card wants many rows: hidden units of a model are too few. It keeps fewer elements than these in
# its cache. Scores are made again whatever they are, in half as many launches, unless they are no
# larger than their keys.
CARD = Limits(elements=1 << 20, masked=1 << 20, steps=32, rows=4096, led=True, depth=WIDEST)
LIMITS = {
    "CPU": Limits(elements=1 << 28, masked=1 << 24, steps=1024, rows=1, led=False, depth=128),
    "CUDA": CARD,
    "EMU": CARD,
}


def recomputed(order: Sequence[LazyBuffer], roots: Container[LazyBuffer]) -> frozenset[LazyBuffer]:
    """The products among `order` that are not stored, and folds of tiles that a scatter adds."""
    ways = {n: each for n, each in ways_of(order, roots).items() if not each.others}
    readers = readers_of(order) if any(each.tiles for each in ways.values()) else {}
    tiles = {t for each in ways.values() for t in each.tiles if _is_added(t, readers, roots)}
    return frozenset(tiles.union(ways))


@dataclass(frozen=True)
class Ways:
    """The reductions at which all that is computed from a product ends."""

    few: int  # times fewer rows than steps are enough; 0 if rows have to be many
    ends: tuple[lazy.Reduce, ...]
    tiles: tuple[lazy.Reduce, ...]  # those of them that keep rows and columns of the product
    others: tuple[lazy.Reduce, ...]  # those of them that it would not be computed again for


def ways_of(order: Sequence[LazyBuffer], roots: Container[LazyBuffer]) -> dict[lazy.Reduce, Ways]:
    """The large products among `order` that are folded along some long axes, and along others.

    And of which nothing is made that is wanted besides.
    """
    products = [node for node in order if isinstance(node, lazy.Reduce) and _may_be(node)]
    return {n: ways for n, (ways, _) in _found(order, products, roots).items()}


_Found = dict[lazy.Reduce, tuple[Ways, list[LazyBuffer]]]


def _found(
    order: Sequence[LazyBuffer],
    products: Iterable[lazy.Reduce],
    roots: Container[LazyBuffer],
    besides: bool = False,
) -> _Found:
    """Products that are folded both ways, with what of them is wanted `besides`, if that may be."""
    readers = readers_of(order) if products else {}
    folds = {node for node in order if isinstance(node, lazy.Reduce)}
    ends = {n: ends_of(n, readers, roots, besides) for n in products}
    # what there is of elements that folds of their rows lead; not what meets, in a product, what
    # they lead: so do hidden units, the gradient of a norm behind them
    led: set[LazyBuffer] = set()
    rows: set[LazyBuffer] = set()  # likewise, as powers of a softmax; not what a norm is made of
    for n, (found, made, _) in ends.items():
        alike = {m for m in made if m.size == n.size} if LIMITS[n.device].led else set()
        onward = _onward(found, readers) if alike else ()
        if any(reader in alike for e in onward for reader in readers[e]):  # the largest of a row
            led |= alike
            powers = any(isinstance(m, lazy.Map) and m.op in POWERS for m in alike)
            rows |= alike if powers else set()

    def attends(made: set[LazyBuffer]) -> bool:
        """Whether it is attention's scores: they meet another product, the gradient of weights."""
        met = sum(not made.isdisjoint(other) for _, other, _ in ends.values())
        return met > 1 and not rows.isdisjoint(made)

    walks = cache(partial(_walks, folds=folds))  # several products end in the same folds
    ways: _Found = {}
    for n, (found, made, wanted) in ends.items():
        scores = attends(made)
        few = FEWER if scores else int(not led.isdisjoint(made))
        pays = scores or n.device not in CARDS or is_cheap(n)
        if pays and (few or _is_large(n, readers)):
            each = _folded_both_ways(n, [(end, *walks(end)) for end in found], few)
            if each is not None:
                ways[n] = each, wanted
    return ways


def _is_added(node: lazy.Reduce, readers: Readers, roots: Container[LazyBuffer]) -> bool:
    """Whether all that is made of a fold is added to one array by index, by threads of a card.

    On a CPU one thread would make all of it.
    """
    ends, made, wanted = ends_of(node, readers, roots, besides=True)
    if node.device not in CARDS or ends or len(wanted) != 1 or wanted[0] in roots:
        return False
    (added,) = (reader for reader in readers[wanted[0]] if reader not in made)
    return isinstance(added, lazy.Scatter) and added.op is Op.ADD and wanted[0] is added.sources[2]


def in_tiles(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values, with what is wanted of products that are made again as folds of one step.

    As folds over a batch of one: a kernel makes tiles of the products, and nothing but its result
    is stored. So is the gradient of a bias of pairs. It is not done for a few that are taken by
    index, as a loss takes one of each row: all of them would be stored for these.
    """
    if not any(isinstance(n, lazy.Reduce) and _may_be(n) for n in order):
        return {}
    others = [n for n in order if not isinstance(n, (*INLINE, lazy.Gather))]
    read = dict.fromkeys(chain(roots, *[n.sources for n in others]))
    found = _found(order, dict.fromkeys(p for m in read for p in _inside(m)), {*roots}, True)
    ends = {end for ways, _ in found.values() for end in ways.ends}
    wanted = {m for _, besides in found.values() for m in besides}
    for n, (ways, besides) in found.items():
        if ways.others or not _leaves_both(n, (), ways.few):
            wanted.difference_update(besides)
    floats = [m for m in wanted if m.dtype.is_float]  # of folds: a product might as well be read
    steps = {m: _in_one_step(m) for m in floats if not ends.isdisjoint(until_folds([m]))}
    if not (steps and all(m in steps for _, besides in found.values() for m in besides)):
        return {}
    changed: Changed = {}
    for node, again in renewed(order, changed):
        if not (isinstance(node, INLINE) or steps.keys().isdisjoint(node.sources)):
            changed[node] = again.with_sources(tuple(map(steps.get, node.sources, again.sources)))
    return changed | {m: step for m, step in steps.items() if m in roots}


def _inside(node: LazyBuffer) -> list[lazy.Reduce]:
    """The products as large as a node that it is made of, together with other folds."""
    folds = [e for e in until_folds([node]) if isinstance(e, lazy.Reduce) and e is not node]
    products = [fold for fold in folds if fold.size == node.size and _may_be(fold)]
    return products if len(products) < len(folds) else []


def _in_one_step(node: LazyBuffer) -> LazyBuffer:
    """The same as a sum over an axis of size 1, below moves and casts."""
    cast = lazy.is_map(node, Op.CAST) and node.sources[0].dtype.is_float
    if cast or lazy.is_move(node, Movement.RESHAPE, Movement.PERMUTE):
        return node.with_sources((_in_one_step(node.sources[0]),))
    shape = (1, *node.shape)
    source = lazy.reshape(node, shape)
    added = lazy.node(lazy.Reduce, shape, node.dtype, node.device, (source,), (Op.ADD, (0,)))
    return lazy.reshape(added, node.shape)


def _may_be(node: lazy.Reduce) -> bool:
    """Whether a fold is a product, and worth it."""
    limits = LIMITS.get(node.device)
    if limits is None or not contracts(node):
        return False
    smallest = limits.steps**2 if limits.led else min(limits.masked, limits.elements)
    deep = node.sources[0].size > limits.depth * node.size
    return node.size >= smallest and not deep


def _is_large(node: lazy.Reduce, readers: Readers) -> bool:
    limits = LIMITS[node.device]
    masks = Masks(())  # of positions, on what is made of each of its elements
    masked = node.size >= limits.masked and any(
        e.arg is Op.WHERE and masks.of(e) for e in _onward((node,), readers) if e != node
    )
    return node.size >= limits.elements or masked or (limits.led and is_long(node))


def _onward(nodes: Iterable[LazyBuffer], readers: Readers) -> Iterator[LazyBuffer]:
    """Nodes, and all that is made of them, element by element."""
    inline = (lazy.Map, lazy.Move)
    return reached(nodes, lambda e: [r for r in readers[e] if isinstance(r, inline)])


def _walks(
    end: lazy.Reduce, folds: Container[LazyBuffer]
) -> tuple[Sequence[int], dict[LazyBuffer, list[Labels]]]:
    """How many steps a fold walks along each axis of what it moves, and how that walks others."""
    base, steps = _before_moves(end)
    found: dict[LazyBuffer, list[Labels]] = {}
    for use in trace([(base, tuple(range(len(base.shape))))], folds)[0]:
        found.setdefault(use.node, []).append(use.labels)
    return steps, found


def _folded_both_ways(
    node: lazy.Reduce,
    ends: Sequence[tuple[lazy.Reduce, Sequence[int], Mapping[LazyBuffer, list[Labels]]]],
    few: int,
) -> Ways | None:
    """The ways, if some folds that a product ends in are along other long axes than others."""
    found: set[tuple[int, ...]] = set()
    tiles: list[lazy.Reduce] = []
    others: list[lazy.Reduce] = []
    for end, steps, uses in ends:
        for labels in uses.get(node, ()):
            along = {a: steps[x] for a, x in enumerate(labels) if x >= 0 and steps[x] > 1}
            if MIXED in labels:
                others.append(end)
            elif is_worth_it(node, along, few):
                found.add(tuple(along))
            else:
                (tiles if _leaves_both(node, along, few) else others).append(end)
    every = tuple([end for end, _, _ in ends])
    return Ways(few, every, (*tiles,), (*others,)) if len(found) > 1 else None


def is_worth_it(node: lazy.Reduce, along: Mapping[int, int], few: int) -> bool:
    """Whether a fold by so many steps `along` some axes of a product has the length and the rows.

    Fewer rows will do of what is too large to store whatever it takes, if they are as many as the
    steps along each axis; a `few`, if they are so many times fewer than all the steps, or blocks
    share these. A mask alone is no reason if a part of an axis is folded: no kernel adds up what it
    makes across such a fold (`Fusion._join_across`).
    """
    limits, walked = LIMITS[node.device], prod(along.values())
    longest = max(along.values(), default=1)
    least = longest if is_long(node) else walked if few else limits.rows
    least = 1 if few == FEWER and in_halves(node) else least // max(few, 1)
    whole = all(n == node.shape[a] for a, n in along.items())
    large = few > 0 or node.size >= limits.elements or whole
    return large and longest >= limits.steps and node.size // walked >= min(limits.rows, least)


def has_steps(node: lazy.Reduce) -> bool:
    """Whether a fold has as many steps as folds over what is made again have to have."""
    limits = LIMITS.get(node.device)
    return limits is not None and node.sources[0].size >= limits.steps * max(1, node.size)


def _leaves_both(node: lazy.Reduce, along: Container[int], few: int) -> bool:
    """Whether a fold leaves rows and columns of a product: tiles of it are made for each step.

    As for a bias of attention that all of a batch share. A mask alone is no reason: it leaves out
    no steps of such a fold.
    """
    limits = LIMITS[node.device]
    if not few and node.size < limits.elements:
        return False
    left = [prod(node.shape[a] for a in own if a not in along) for own in own_axes(node)]
    return min(left) >= limits.steps and prod(left) >= limits.rows


def _before_moves(end: lazy.Reduce) -> tuple[LazyBuffer, Sequence[int]]:
    """What a fold moves, and how many steps it walks along each axis of that.

    Along an axis that it splits it may fold a part: heads that share a key are some of the heads.
    """
    node = end.sources[0]
    steps = [n if a in end.axes else 1 for a, n in enumerate(node.shape)]
    while isinstance(node, lazy.Move):
        below = _steps_below(node, steps)
        if below is None:
            break
        node, steps = node.sources[0], below
    return node, steps


def _steps_below(move: lazy.Move, steps: Sequence[int]) -> list[int] | None:
    """The steps of a fold along the axes of what is moved; None if nothing says which they are."""
    below = [1] * len(move.sources[0].shape)
    if move.movement is Movement.PERMUTE:
        for axis, n in zip(move.arg[1], steps, strict=True):
            below[axis] = n
        return below
    if move.movement is not Movement.RESHAPE or not move.size:
        return None
    shape = move.sources[0].shape
    for tops, bottoms in factor_groups(move.shape, shape):
        walked, whole = prod(steps[a] for a in tops), prod(move.shape[a] for a in tops)
        long = [a for a in bottoms if shape[a] > 1]
        if len(long) > 1 and walked not in (1, whole):
            return None
        for a in long:
            below[a] = walked if len(long) == 1 else min(walked, shape[a])
    return below


def own_axes(product: lazy.Reduce) -> tuple[set[int], set[int]]:
    """The axes of a product that only its first factor has, and those that only the other has."""
    one, other = map(_walked, factors_of(product))
    return one - other, other - one


def _walked(factor: LazyBuffer) -> set[int]:
    """The axes along which a factor is not repeated."""
    labels: Labels = tuple(range(len(factor.shape)))
    base = narrowest(factor)
    while factor is not base:
        labels = through(factor, labels) if isinstance(factor, lazy.Move) else labels
        factor = factor.sources[0]
    return {x for x, n in zip(labels, base.shape, strict=True) if n > 1} - {FIXED, MIXED}
