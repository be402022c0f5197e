"""Split: reductions and assignments are rewritten before anything is fused.

A sum of sums becomes one sum, and results that are cut off are not folded at all. A large
reduction to few results becomes two, so that it has rows to share out, and so does one down tall
columns, so that rows are read whole. The pieces depend on sizes alone, never on the machine or its
threads: a program gives the same bits wherever it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from itertools import chain
from math import prod

from tinyml import lazy
from tinyml.dtype import float32, to_text
from tinyml.interpret import identity
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement, Op
from tinyml.schedule.contracts import contracts
from tinyml.schedule.labels import ONE_TO_ONE
from tinyml.schedule.powers import exact
from tinyml.schedule.rewrite import Changed, renewed
from tinyml.schedule.units import CARDS, ends_of, readers_of, until_folds
from tinyml.shape import replaced

FEW_RESULTS = 256  # more results than this keep a machine busy by themselves
FEW_PRODUCTS = 1 << 17  # the same of products of matrices
LARGE = 16384  # elements folded into one result
IMAGES = 8192  # likewise, along several axes
COLUMNS = 2048  # sums down up to so many columns are done in pieces, so that whole rows are read
TALL = 2048  # if the columns have so many elements
PIECES = 64  # of them
MOST_PIECES = 512
PIECE = 1024  # elements that one piece of other folds has, about
EXTREMES = frozenset({Op.MAX, Op.MIN})
ROUNDED = frozenset({Op.ADD, Op.MUL})  # each time, by index in memory


def join_sums(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values, with a sum that only another sum reads, through moves, made part of it.

    So the gradient of a convolution is one contraction, and not windows that are added up later.
    And a fold of which only a part is read, as below a gradient's padding, folds only that part.
    A product that is added up to one number stays one, and is made in tiles.
    """
    readers = Counter(chain.from_iterable([node.sources for node in order]))
    shared = {node for node, count in readers.items() if count > 1}.union(roots)
    changed: Changed = {}
    for node, again in renewed(order, changed):
        if isinstance(node, lazy.Reduce) and node.op is Op.ADD:
            fold = _moved_sum(node.sources[0], shared, ONE_TO_ONE)
            joins = fold is not None and (node.size > 1 or not contracts(fold))
        else:
            joins = _is_part(node, shared)
        if joins:
            changed[node] = _as_one(again)
    return changed


_REARRANGE = frozenset({Movement.RESHAPE, Movement.PERMUTE, Movement.SHRINK, Movement.FLIP})


def _is_part(node: LazyBuffer, shared: set[LazyBuffer]) -> bool:
    """Whether a node is cut out of a fold that nobody else reads.

    A sum may be padded, too, if less than it is left, as where every other element is taken.
    """
    if not lazy.is_move(node, Movement.SHRINK):
        return False
    fold = _moved_fold(node.sources[0], shared, _REARRANGE)
    if fold is not None:
        return True
    fold = _moved_sum(node.sources[0], shared, _REARRANGE | {Movement.PAD})
    return fold is not None and node.size < fold.size


def _moved_sum(
    node: LazyBuffer, shared: set[LazyBuffer], kinds: frozenset[Movement]
) -> lazy.Reduce | None:
    """The sum that nobody else reads, and that `node` moves in some of these ways."""
    fold = _moved_fold(node, shared, kinds)
    return fold if fold is not None and fold.op is Op.ADD else None


def _moved_fold(
    node: LazyBuffer, shared: set[LazyBuffer], kinds: frozenset[Movement]
) -> lazy.Reduce | None:
    """Likewise any fold. Where it is padded, that is with zeros."""
    while lazy.is_move(node, *kinds) and node not in shared:
        if node.movement is Movement.PAD and node.arg[1][1] != to_text(0, node.dtype):
            return None
        node = node.sources[0]
    if isinstance(node, lazy.Reduce) and node.size > 0 and node not in shared:
        return node
    return None


def _as_one(node: LazyBuffer) -> LazyBuffer:
    """A sum of moved sums as one sum, or a part of a moved fold as a fold of a part.

    The inner fold's axes come along, behind all others.
    """
    own, moved = (node.axes, node.sources[0]) if isinstance(node, lazy.Reduce) else ((), node)
    op, value, tail = _opened(moved)
    axes = (*own, *range(len(value.shape) - len(tail), len(value.shape)))
    return lazy.reshape(lazy.reduce_(op, value, axes), node.shape)


def _opened(node: LazyBuffer) -> tuple[Op, LazyBuffer, lazy.Shape]:
    """What a moved fold folds, moved the same way, with the folded axes behind all others."""
    chain, below = [], node
    while not isinstance(below, lazy.Reduce):
        chain.append(below)
        below = below.sources[0]
    value, tail = unfolded(below, below.sources[0])
    for move in reversed(chain):
        value = with_tail(move, value, tail)
    return below.op, value, tail


def unfolded(fold: lazy.Reduce, source: LazyBuffer) -> tuple[LazyBuffer, lazy.Shape]:
    """What a fold folds, in its shape and with the folded axes behind all others; their sizes."""
    tail = tuple([source.shape[a] for a in fold.axes])
    order = [a for a in range(len(source.shape)) if a not in fold.axes] + list(fold.axes)
    return lazy.reshape(lazy.permute(source, order), (*fold.shape, *tail)), tail


def with_tail(move: LazyBuffer, value: LazyBuffer, tail: lazy.Shape) -> LazyBuffer:
    """The move of the leading axes of `value`, which has more axes behind them."""
    assert isinstance(move, lazy.Move)
    rank, (_, arg) = len(move.sources[0].shape), move.arg
    match move.movement:
        case Movement.RESHAPE:
            return lazy.reshape(value, (*arg, *tail))
        case Movement.PERMUTE:
            return lazy.permute(value, (*arg, *range(rank, rank + len(tail))))
        case Movement.PAD:
            return lazy.pad(value, (*arg[0], *((0, 0) for _ in tail)), 0)
        case Movement.SHRINK:
            return lazy.shrink(value, (*arg, *((0, n) for n in tail)))
        case Movement.FLIP:
            return lazy.flip(value, arg)
        case Movement.SKEW:
            return lazy.skew(value, *arg)
    raise TypeError(f"{move!r} repeats elements")


def add_up_wide(order: Sequence[LazyBuffer], _: Sequence[LazyBuffer]) -> Changed:
    """The same values, with halves that are combined by index as floats, and rounded once."""
    changed: Changed = {}
    if not any(type(node) is lazy.Scatter for node in order):
        return changed
    for node, again in renewed(order, changed):
        if isinstance(again, lazy.Scatter) and again.dtype.is_half and again.op in ROUNDED:
            base, index, source = again.sources
            base, source = lazy.cast(base, float32), lazy.cast(source, float32)
            wide = lazy.scatter(base, index, source, again.axis, again.op)
            changed[node] = lazy.cast(wide, node.dtype)
    return changed


def split_reductions(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values, with large reductions done in two steps."""
    changed: Changed = {}
    whole = _cascades(order, {*roots})
    for node, again in renewed(order, changed):
        split = _split(again) if isinstance(again, lazy.Reduce) and node not in whole else again
        if split is not again:
            changed[node] = split
    return changed


def _cascades(order: Sequence[LazyBuffer], roots: Container[LazyBuffer]) -> set[LazyBuffer]:
    """On a card, long folds over another one that nobody else reads, and that follow its largest.

    As in attention of a token to many: blocks share all of them at once.
    """
    folds = (n for n in order if isinstance(n, lazy.Reduce) and n.device in CARDS)
    tops = [n for n in folds if n.op in EXTREMES and _folded(n) >= IMAGES]
    readers = readers_of(order) if tops else {}
    found = set[LazyBuffer]()
    for top in tops:
        for made in (f for f in folds_read(top) if f.size == top.sources[0].size):
            ends, between, wanted = ends_of(made, readers, roots)
            inner = [e for e in ends if any(e in folds_read(other) for other in ends)]
            below = [ends_of(e, readers, roots) for e in inner]
            alone = not wanted and all(w or {*e} <= ends.keys() for e, _, w in below)
            alike = all(_folded(e) == _folded(top) for e in ends)
            if inner and alone and alike and all(map(exact, between)):
                found |= ends.keys()
    return found


def _folded(node: lazy.Reduce) -> int:
    return prod(node.sources[0].shape[a] for a in node.axes)


def share_assigned(order: Sequence[LazyBuffer], _: Sequence[LazyBuffer]) -> Changed:
    """The same values, with what is assigned read from its new place.

    Whoever reads the value of an assignment then reads the assignment itself, so that a kernel
    makes both at once and need not keep the old values for it.
    """
    places: dict[LazyBuffer, LazyBuffer] = {}
    for node in order:
        if isinstance(node, lazy.Assign):
            target, value = node.sources
            if isinstance(target, lazy.Data) and isinstance(value, lazy.Map):
                places.setdefault(value, node)
    made = {*places.values()}  # each where its value is
    changed: Changed = {}
    plain: Changed = {}  # what is asked for by itself has its own memory
    for node, again in renewed([node for node in order if node not in made], changed):
        if again is not node:
            plain[node] = again
        if (assign := places.get(node)) is not None:
            changed[node] = plain[assign] = changed[assign] = assign.with_sources(
                (assign.sources[0], again)
            )
    return plain


def _is_product(node: lazy.Reduce) -> bool:
    """Whether a product of matrices, of which no factor is folded along the same axis before.

    Such a factor, as attention's weights are, waits in a cache from one fold to the next; what is
    folded along images and pixels, as the gradient of a convolution's weights is, does not. On a
    card blocks have pieces of the fold in one launch.
    """
    if not contracts(node) or node.device in CARDS:
        return False
    return len(node.axes) > 1 or all(map(contracts, folds_read(node)))


def _sums_columns(node: lazy.Reduce) -> bool:
    """Whether a few long columns, of nothing that is folded down them before, are added up."""
    if node.op is not Op.ADD or contracts(node) or not FEW_RESULTS < node.size <= COLUMNS:
        return False
    if len(node.axes) > 1 and node.device in CARDS:  # blocks share such a fold
        return False
    if not _are_columns(node) or _folded(node) < TALL:
        return False
    return all({*node.axes}.isdisjoint(fold.axes) for fold in folds_read(node))


def _are_columns(node: lazy.Reduce) -> bool:
    """Whether results lie side by side, and so do the elements that are folded into them."""
    return prod(node.sources[0].shape[max(node.axes) + 1 :]) == node.size


def folds_read(node: lazy.Reduce) -> Iterator[lazy.Reduce]:
    """The folds that a fold is made of, but not those that these are made of."""
    return (e for e in until_folds(node.sources) if isinstance(e, lazy.Reduce))


def _split(node: lazy.Reduce) -> LazyBuffer:
    source = node.sources[0]
    folded = _folded(node)
    if source.size == 0:
        return node
    if _sums_columns(node):
        return _columns_in_pieces(node, PIECES)
    if node.size > FEW_PRODUCTS or folded < (LARGE if len(node.axes) == 1 else IMAGES):
        return node
    pieces = max(2, folded // PIECE)
    axis = max(node.axes, key=lambda a: source.shape[a])
    if node.size > FEW_RESULTS:
        axis = node.axes[0]  # of a convolution that of images, whose windows do not overlap
        if source.shape[axis] == 1 or not _is_product(node):
            return node
        return lazy.reshape(_in_pieces(_to_front(node, axis), 0, pieces), node.shape)
    if node.device in CARDS:
        if len(node.axes) > 1 < node.size and _are_columns(node):
            return _columns_in_pieces(node, MOST_PIECES)
    elif len(node.axes) > 1 < prod(node.shape[node.axes[0] :]):
        return _far_apart(node, pieces)
    return _in_pieces(node, axis, pieces)


def _far_apart(node: lazy.Reduce, pieces: int) -> LazyBuffer:
    """Pieces of the first axis, whose steps lie furthest apart: memory is read in long runs."""
    shape, (first, *rest) = node.sources[0].shape, node.axes
    if shape[first] * node.size > FEW_RESULTS:
        return _in_pieces(node, first, pieces)
    return _in_pieces(node, max(rest, key=shape.__getitem__), pieces // shape[first], (first,))


def _to_front(node: lazy.Reduce, axis: int) -> lazy.Reduce:
    """The same fold with an axis in front, so that each of its pieces has results of its own.

    Else those of all pieces, which cores make at the same time, share the lines of a cache.
    """
    order = sorted(range(len(node.shape)), key=lambda a: a != axis)
    moved = lazy.permute(node.sources[0], order)
    made = lazy.reduce_(node.op, moved, [order.index(a) for a in node.axes])
    assert isinstance(made, lazy.Reduce)
    return made


def _columns_in_pieces(node: lazy.Reduce, pieces: int) -> LazyBuffer:
    """The first axes number pieces, as far as these are not too many, and so do parts of a next."""
    shape = node.sources[0].shape
    for axis in node.axes:
        if shape[axis] > pieces:
            break
        pieces //= shape[axis]
    return _in_pieces(node, axis, pieces, tuple(a for a in node.axes if a < axis))


def _in_pieces(
    node: lazy.Reduce, axis: int, pieces: int, outer: tuple[int, ...] = ()
) -> LazyBuffer:
    """A fold of folds of pieces of an axis; `outer` axes number pieces, too."""
    if node.dtype.is_half:  # pieces are not rounded: a half is summed in float32
        wide = lazy.reduce_(node.op, lazy.cast(node.sources[0], float32), node.axes)
        assert isinstance(wide, lazy.Reduce)
        return lazy.cast(_in_pieces(wide, axis, pieces, outer), node.dtype)
    source = node.sources[0]
    size = source.shape[axis]
    pieces = min(MOST_PIECES, max(pieces, 1), size)
    pieces = next((p for p in range(pieces, pieces // 2, -1) if size % p == 0), pieces)
    length = -(-size // pieces)
    more = pieces * length - size
    counts = replaced(((0, 0),) * len(source.shape), axis, (0, more))
    source = lazy.pad(source, counts, identity(node.op, node.dtype))
    shape = (*source.shape[:axis], pieces, length, *source.shape[axis + 1 :])
    inner = tuple(a + (a >= axis) for a in node.axes if a not in outer)
    first = lazy.reduce_(node.op, lazy.reshape(source, shape), inner)
    return lazy.reshape(lazy.reduce_(node.op, first, (*outer, axis)), node.shape)
