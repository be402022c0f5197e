"""Associate: a sum of products of products is made of the other order, if that is there.

The gradient of a softmax adds up weights times their gradients. Where the weights p were for a
mean of values v, as in attention, these gradients are products themselves, of g and v:

    sum over j of p[i, j] * (sum over d of g[i, d] * v[j, d])
    = sum over d of g[i, d] * (sum over j of p[i, j] * v[j, d])

In parentheses is now the result of attention. So the sum is as long as a value, not as a row of
scores, and needs none of them. Dao et al., "FlashAttention" (2022), do that by hand (B.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod

from tinyml import lazy
from tinyml.frozen import dataclass
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op
from tinyml.schedule.contracts import contracts
from tinyml.schedule.labels import FIXED, MIXED, PLACED, Labels, through
from tinyml.schedule.rewrite import Changed, renewed

SHORTER = 2  # times that the new sum is shorter
MOST = 64  # nodes that a product is looked for in: powers of powers have no end

Factor = tuple[LazyBuffer, Labels]  # a factor, and the walked axis of each of its axes


@dataclass(frozen=True)
class _Sum:
    """A sum over `folded` of the product of factors with their powers, perhaps negative."""

    negative: bool
    powers: Mapping[Factor, int]
    folded: frozenset[int]

    @cached_property
    def inside(self) -> dict[Factor, int]:
        """The factors that are not the same all along what is folded."""
        folded = self.folded.isdisjoint
        return {f: n for f, n in self.powers.items() if not folded(f[1])}

    @cached_property
    def met(self) -> frozenset[LazyBuffer]:
        """What these are, wherever their axes lie."""
        return frozenset([node for node, _ in self.inside])


def associate(order: Sequence[LazyBuffer], _: Sequence[LazyBuffer]) -> Changed:
    """The same values, with sums of products of products made of products that are there."""
    changed: Changed = {}
    products: dict[LazyBuffer, _Sum] = {}  # as far as their factors are known
    for node, _again in renewed(order, changed):
        if not (isinstance(node, lazy.Reduce) and _adds_up(node)):
            continue
        if contracts(node):
            made = _factors(node, range(len(node.sources[0].shape)))
            products |= {node: made} if made is not None else {}
        elif len(products) > 1 and (other := _other_order(node, products, changed)) is not None:
            changed[node] = other
    return changed


def _adds_up(node: lazy.Reduce) -> bool:
    """Whether it is a sum in full precision: a factor that is rounded to a half is another one."""
    plain = node.op is Op.ADD and node.size > 0
    return plain and node.dtype.is_float and not node.dtype.is_half


def _factors(node: lazy.Reduce, walked: Sequence[int]) -> _Sum | None:
    """What a sum adds up, if its axes are walked so; None if axes of a factor are merged, if it is
    divided by itself, which is NaN of 0, or if no factor walks one of the sum's: each term is added
    several times."""
    folded = frozenset(walked[a] for a in node.axes if node.sources[0].shape[a] > 1)
    powers: dict[Factor, int] = {}
    negative = False
    stack = [(node.sources[0], tuple(walked), 1)]
    for each, labels, power in stack:  # grows
        if len(stack) > MOST:
            return None
        if lazy.is_move(each, *PLACED):
            below = through(each, labels)
            if MIXED not in below:
                stack.append((each.sources[0], below, power))
                continue
        elif lazy.is_map(each, Op.MUL, Op.DIV, Op.NEG):
            negative ^= each.op is Op.NEG
            powered = (power, -power if each.op is Op.DIV else power)
            stack += [(s, labels, n) for s, n in zip(each.sources, powered, strict=False)]
            continue
        labels = tuple([FIXED if n == 1 else x for x, n in zip(labels, each.shape, strict=True)])
        if MIXED in labels:
            return None
        powers[each, labels] = powers.get((each, labels), 0) + power
    walked_by = {x for _, labels in powers for x in labels}
    whole = folded <= walked_by and all(powers.values())
    return _Sum(negative, powers, folded) if whole else None


def _other_order(
    node: lazy.Reduce, products: Mapping[LazyBuffer, _Sum], changed: Mapping[LazyBuffer, LazyBuffer]
) -> LazyBuffer | None:
    """A sum of products of products, made of one of the `products` that has the sum inside."""
    shape = node.sources[0].shape
    outer = _factors(node, range(len(shape)))
    within = [f for f in outer.inside if f[0] in products] if outer else []
    if outer is None or len(within) != 1 or outer.powers[within[0]] != 1:
        return None
    fold, labels = within[0]
    assert isinstance(fold, lazy.Reduce)
    own = dict(zip(fold.axes, range(len(shape), len(shape) + len(fold.axes)), strict=True))
    inner = _factors(fold, [own.get(a, label) for a, label in enumerate(labels)])
    sizes = (*shape, *(fold.sources[0].shape[a] for a in fold.axes))
    if inner is None or SHORTER * _length(inner, sizes) > _length(outer, sizes):
        return None
    powers = Counter(outer.powers)
    del powers[within[0]]
    powers.update(inner.powers)
    if not all(powers.values()):
        return None
    both = _Sum(outer.negative ^ inner.negative, powers, outer.folded)
    for product, factors in products.items():
        alike = product is not fold and factors.met == both.met
        names = _names(factors, both) if alike else None
        rest = _rest(both, product, factors, names) if names is not None else None
        if rest is not None:
            made = _multiplied(rest, inner.folded, len(sizes), changed)
            made = lazy.expand(lazy.reshape(made, made.shape[: len(shape)]), node.shape)
            return lazy.map_(Op.NEG, made) if both.negative ^ factors.negative else made
    return None


def _length(made: _Sum, sizes: Sequence[int]) -> int:
    return prod(sizes[label] for label in made.folded)


def _names(product: _Sum, wanted: _Sum) -> dict[int, int] | None:
    """The axes of a product by their numbers in a sum, of which it folds all that is folded."""
    mine, its = wanted.inside, product.inside
    if sorted(mine.values()) != sorted(its.values()):
        return None
    names = {FIXED: FIXED}
    for (node, labels), power in mine.items():
        same = [other for (each, other), n in its.items() if each is node and n == power]
        if len(same) != 1:
            return None
        for label, other in zip(labels, same[0], strict=True):
            if names.setdefault(other, label) != label:
                return None
    known = all(label in names for _, labels in product.powers for label in labels)
    if not known or len({*names.values()}) < len(names):
        return None
    return names if {names[label] for label in product.folded} == wanted.folded else None


def _rest(
    both: _Sum, product: LazyBuffer, factors: _Sum, names: Mapping[int, int]
) -> Counter[Factor] | None:
    """What the product is multiplied by, and the product: all that nothing is folded along.

    None if it had to lose a factor or divisor that it has, as nothing takes a 0 back.
    """
    rest = Counter({f: n for f, n in both.powers.items() if not both.folded.intersection(f[1])})
    for (node, labels), power in factors.powers.items():
        if not factors.folded.intersection(labels):
            own = node, tuple(names[x] for x in labels)
            rest[own] -= power
            if rest[own] * power < 0:
                return None
    axes = enumerate(product.shape)
    rest[product, tuple(FIXED if n == 1 else names[a] for a, n in axes)] += 1
    return rest


def _multiplied(
    powers: Mapping[Factor, int],
    folded: frozenset[int],
    rank: int,
    changed: Mapping[LazyBuffer, LazyBuffer],
) -> LazyBuffer:
    """Factors with their powers, of axes where labels say; those with folded ones are added up."""
    inside = {f: n for f, n in powers.items() if folded.intersection(f[1])}
    outside = {f: n for f, n in powers.items() if f not in inside}
    made = lazy.reduce_(Op.ADD, _times(None, inside, rank, changed), folded)
    return _times(made, outside, rank, changed)


def _times(
    made: LazyBuffer | None,
    powers: Mapping[Factor, int],
    rank: int,
    changed: Mapping[LazyBuffer, LazyBuffer],
) -> LazyBuffer:
    """`made`, or the first factor, times all others; quotients come last."""
    for node, labels in sorted(powers, key=lambda f: powers[f] < 0):
        placed, power = _placed(changed.get(node, node), labels, rank), powers[node, labels]
        for _ in range(abs(power)):
            op = Op.DIV if power < 0 else Op.MUL
            made = placed if made is None else lazy.map_(op, made, placed)
    assert made is not None
    return made


def _placed(node: LazyBuffer, labels: Labels, rank: int) -> LazyBuffer:
    """A factor with each axis where its label says."""
    walked = [a for a, label in enumerate(labels) if label != FIXED]
    order = sorted(walked, key=lambda a: labels[a])
    flat = lazy.reshape(node, tuple(node.shape[a] for a in walked))
    shape = [1] * rank
    for a in walked:
        shape[labels[a]] = node.shape[a]
    return lazy.reshape(lazy.permute(flat, [walked.index(a) for a in order]), tuple(shape))
