"""Along folds: what tensor cores multiply as floats lies along what is folded.

Warpgroups read halves either way, floats only along the fold (TF32). So a factor that lies along
another axis, as B in A @ B and both in A.T @ B, is stored once more in another order: by a kernel
of its own, through tiles, or by the product that makes it. That is done if warps would take longer
by more than the copies do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from tinyml import lazy
from tinyml.dtype import float32
from tinyml.lazy import LazyBuffer
from tinyml.schedule.balance import LAUNCH, factors_of, in_halves, is_long
from tinyml.schedule.channels import PIECE, copied
from tinyml.schedule.labels import FIXED, MIXED, Labels, through, unmoved
from tinyml.schedule.recompute import recomputed
from tinyml.schedule.rewrite import Changed, renewed
from tinyml.schedule.units import added_by, by_element, contracts

FLOPS = 33  # in the time of a byte, of warps that multiply floats: 138 TFLOP/s of 4.2 TB/s
SAVED = 0.6  # of their time, by warpgroups

Order = tuple[int, ...]  # of axes, as a permutation has it


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
