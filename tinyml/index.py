"""Index arithmetic: where an element is, as a sum of axes with whole-number factors.

    linear ::= factor * atom + ... + constant
    atom   ::= Axis | Quotient(linear, n) | Remainder(linear, n) | Looked(value)

Written with ordinary operators; every rule is applied when an expression is built, and every
expression knows its bounds, so no `/` or `%` stays where a plain stride says the same. All
divisors are positive and division rounds towards minus infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import gcd
from typing import Any, TypeAlias

from tinyml.graph import Interned, maker


class Atom(Interned):
    """Something a Linear can multiply and add. `low` and `high` are reached bounds or wider."""

    __slots__ = ("free", "high", "low", "text")
    text: str
    low: int
    high: int
    free: frozenset[Axis]

    def __repr__(self) -> str:
        return self.text


class Axis(Atom):
    """A loop variable: 0 <= axis < size.

    With `more`, something is also done at axis == size, after the loop: see nest.Split.
    """

    __slots__ = ("more", "name", "size")

    def __init__(self, name: str, size: int, more: bool = False) -> None:
        self.text = self.name = name
        self.size, self.more = size, more
        self.low, self.high = 0, max(size - 1, 0) + more
        self.free = frozenset((self,))


class Quotient(Atom):
    """inner // by"""

    __slots__ = ("by", "inner")

    def __init__(self, inner: Linear, by: int) -> None:
        self.inner, self.by, self.free = inner, by, inner.free
        self.low, self.high = inner.low // by, inner.high // by
        self.text = f"({inner})//{by}"


class Remainder(Atom):
    """inner % by"""

    __slots__ = ("by", "inner")

    def __init__(self, inner: Linear, by: int) -> None:
        self.inner, self.by, self.free = inner, by, inner.free
        same_period = inner.low // by == inner.high // by
        self.low = inner.low % by if same_period else 0
        self.high = inner.high % by if same_period else by - 1
        self.text = f"({inner})%{by}"


class Looked(Atom):
    """A value of the program used as an index: an integer expression; 0 where not in [0, size)."""

    __slots__ = ("size", "value")

    def __init__(self, value: Any, size: int, key: str) -> None:
        self.value, self.size, self.free = value, size, value.free
        self.low, self.high = 0, max(size - 1, 0)
        self.text = f"[{key}]"  # the same in every process, because terms are ordered by it


class Within(Atom):
    """inner, where some condition promises low <= inner <= high.

    Only for simplifying below that condition: `bare` takes it off again.
    """

    __slots__ = ("inner",)

    def __init__(self, inner: Linear, low: int, high: int) -> None:
        self.inner, self.low, self.high, self.free = inner, low, high, inner.free
        self.text = f"<{inner}>"


Terms: TypeAlias = tuple[tuple[Atom, int], ...]


class Linear(Interned):
    """A sum of atoms with factors, and a constant. Build with `linear(...)` and operators."""

    __slots__ = ("_text", "constant", "free", "high", "looked", "low", "terms")

    def __init__(self, terms: Terms, constant: int) -> None:
        self.terms, self.constant = terms, constant
        low, high, self.free, self.looked = _without_constant(terms)
        self.low, self.high = low + constant, high + constant
        self._text: str | None = None

    def factor(self, atom: Atom) -> int:
        """The factor of `atom` as a term of its own; 0 if it is none."""
        return next((f for a, f in self.terms if a is atom), 0)

    def stride(self, axis: Axis) -> int | None:
        """By how much the value grows per step of `axis`; None if that is not one number."""
        return _stride(self.terms, axis) if axis in self.free else 0

    # ---- operators ----

    def __add__(self, other: Linear | int) -> Linear:
        if isinstance(other, int):
            return _linear(self.terms, self.constant + other) if other else self
        return _sum((*self.terms, *other.terms), self.constant + other.constant)

    __radd__ = __add__

    def __sub__(self, other: Linear | int) -> Linear:
        return self + other * -1

    def __rsub__(self, other: int) -> Linear:
        return self * -1 + other

    def __mul__(self, by: int) -> Linear:
        if by == 0:
            return ZERO
        if by == 1 or self is ZERO:
            return self
        return _linear(tuple([(a, f * by) for a, f in self.terms]), self.constant * by)

    __rmul__ = __mul__

    def __floordiv__(self, by: int) -> Linear:
        """Whole multiples come out of the quotient; what remains below `by` vanishes."""
        if by == 1:
            return self
        return _divmod(self, by)[0]

    def __mod__(self, by: int) -> Linear:
        """Whole multiples vanish."""
        if by == 1:
            return ZERO
        return _divmod(self, by)[1]

    def _split(self, by: int) -> tuple[Linear, Linear]:
        """(q, r) with self == q * by + r, and only what `by` does not divide in r.

        A flipped axis keeps its sign where r is not below 0: r is small then, as the axis is.
        """
        if any(factor < 0 for _, factor in self.terms):
            whole, rest = self._divided(by, signed=True)
            if rest.low >= 0:
                return whole, rest
        return self._divided(by)

    def _divided(self, by: int, signed: bool = False) -> tuple[Linear, Linear]:
        whole, rest = [], []
        for atom, factor in self.terms:
            quotient, left = divmod(factor, by)
            if signed and factor < 0 < left:
                quotient, left = quotient + 1, left - by
            if quotient:
                whole.append((atom, quotient))
            if left:
                rest.append((atom, left))
        quotient, left = divmod(self.constant, by)
        return _linear(tuple(whole), quotient), _sum(tuple(rest), left)

    def _parts(self, by: int) -> tuple[int, Linear, Linear]:
        """(n, q, r) with self == q * n + r and 0 <= r < n, for the largest n that divides `by`."""
        for common in sorted({gcd(by, f) for _, f in self.terms}, reverse=True):
            terms = tuple([(a, f) for a, f in self.terms if f % common])
            low = _linear(terms, self.constant % common)
            if low.low >= 0 and low.high < common:
                apart = tuple([(a, f // common) for a, f in self.terms if f % common == 0])
                return common, _linear(apart, self.constant // common), low
        return 1, self, ZERO

    def substitute(self, known: Mapping[Axis, Linear]) -> Linear:
        """The same expression with axes replaced."""
        if self.free.isdisjoint(known):
            return self
        constant = self.constant
        kept: list[tuple[Atom, int]] = []
        added: list[tuple[Atom, int]] = []
        for term in self.terms:
            atom, factor = term
            if type(atom) is Axis:
                new = known.get(atom)
            else:
                new = None if atom.free.isdisjoint(known) else _replaced(atom, known)
            if new is None:
                kept.append(term)
                continue
            constant += new.constant * factor
            for a, f in new.terms:
                added.append((a, f * factor))
        if not added:  # what is left of a sum in order is in order
            return _linear(tuple(kept), constant)
        return _sum((*kept, *added), constant)

    def at_each(self, steps: Sequence[Mapping[Axis, Linear]]) -> list[Linear]:
        """The same expression at several steps, at each of which the same axes are replaced."""
        if not steps or self.free.isdisjoint(steps[0]):
            return [self] * len(steps)
        kept = tuple([term for term in self.terms if term[0].free.isdisjoint(steps[0])])
        moving = [(a, f) for a, f in self.terms if isinstance(a, Axis) and a in steps[0]]
        divided = len(kept) + len(moving) < len(self.terms)
        if divided or any(at[a].terms for a, _ in moving for at in steps):
            return [self.substitute(at) for at in steps]
        constants = [sum([f * at[a].constant for a, f in moving]) for at in steps]
        return [_linear(kept, self.constant + n) for n in constants]  # what is left is in order

    def __str__(self) -> str:
        if self._text is None:
            parts = ["-" * (f < 0) + a.text + f"*{abs(f)}" * (f * f != 1) for a, f in self.terms]
            if self.constant or not parts:
                parts.append(str(self.constant))
            self._text = " + ".join(parts).replace("+ -", "- ")
        return self._text

    __repr__ = __str__


_linear = maker(Linear)


def _looked_in(atom: Atom) -> tuple[Looked, ...]:
    match atom:
        case Looked():
            return (atom,)
        case Quotient(inner=inner) | Remainder(inner=inner) | Within(inner=inner):
            return inner.looked
    return ()


# The same few axes and numbers come again and again, in one kernel and in the next: so what was
# worked out lately is looked up.


@lru_cache(maxsize=4096)
def _stride(terms: Terms, axis: Axis) -> int | None:
    stride = 0
    for atom, factor in terms:
        if atom is axis:
            stride += factor
        elif axis in atom.free:
            return None
    return stride


@lru_cache(maxsize=4096)
def _without_constant(terms: Terms) -> tuple[int, int, frozenset[Axis], tuple[Looked, ...]]:
    """Bounds of a sum, the axes in it, and its atoms that look a value up."""
    low, high, free, looked = 0, 0, list[Axis](), tuple[Looked, ...]()
    for atom, factor in terms:
        if factor > 0:
            low, high = low + factor * atom.low, high + factor * atom.high
        else:
            low, high = low + factor * atom.high, high + factor * atom.low
        if type(atom) is Axis:
            free.append(atom)
        else:
            free += atom.free
            looked += _looked_in(atom)
    return low, high, frozenset(free), looked


@lru_cache(maxsize=4096)
def _divmod(index: Linear, by: int) -> tuple[Linear, Linear]:
    """Quotient and remainder: who asks for one most often asks for the other."""
    whole, rest = index._split(by)
    if rest.low // by == rest.high // by:
        return whole + rest.low // by, rest - rest.low // by * by
    common, high, low = rest._parts(by)
    if common > 1:
        part = by // common
        return whole + high // part, high % part * common + low
    quotient, remainder = linear(Quotient(rest, by)), linear(Remainder(rest, by))
    if len(rest.terms) == 1 and rest.constant == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Quotient):
            quotient = atom.inner // (atom.by * by)
        elif isinstance(atom, Remainder) and atom.by % by == 0:
            remainder = atom.inner % by
    return whole + quotient, remainder


@lru_cache(maxsize=4096)
def linear(value: Atom | int) -> Linear:
    """An atom or a number as a Linear. An axis of size 1 is 0."""
    if isinstance(value, int):
        return _linear((), value)
    if value.low == value.high:
        return _linear((), value.low)
    return _linear(((value, 1),), 0)


def within(index: Linear, low: int, high: int) -> Linear:
    """The index with bounds that a condition promises."""
    if low <= index.low and index.high <= high:
        return index
    return linear(Within(index, max(low, index.low), min(high, index.high)))


def bare(index: Linear) -> Linear:
    """The index without promised bounds: what is computed, whether or not they hold."""
    if all(isinstance(a, (Axis, Looked)) for a, _ in index.terms):
        return index
    return _changed(index, lambda a: bare(a.inner) if isinstance(a, Within) else linear(a))


def _changed(index: Linear, change: Callable[[Atom], Linear]) -> Linear:
    """The index with something in place of each atom that is not divided out of others."""
    result = _linear((), index.constant)
    for atom, factor in index.terms:
        match atom:
            case Quotient(inner=inner, by=by):
                new = _changed(inner, change) // by
            case Remainder(inner=inner, by=by):
                new = _changed(inner, change) % by
            case _:
                new = change(atom)
        result = result + new * factor
    return result


def _replaced(atom: Atom, known: Mapping[Axis, Linear]) -> Linear:
    match atom:
        case Axis():
            return known[atom]
        case Within(inner=inner):
            return within(inner.substitute(known), atom.low, atom.high)
        case Quotient(inner=inner, by=by):
            return inner.substitute(known) // by
        case Remainder(inner=inner, by=by):
            return inner.substitute(known) % by
        case Looked():
            return linear(atom.value.looked(atom.size, known))
    raise TypeError(f"cannot substitute in {atom!r}")


def map_looked(index: Linear, change: Callable[[Looked], Atom]) -> Linear:
    """The same index with every value that it looks up replaced."""
    if not index.looked:
        return index
    return _changed(index, lambda a: linear(change(a) if isinstance(a, Looked) else a))


@lru_cache(maxsize=4096)
def _sum(terms: Terms, constant: int) -> Linear:
    if len(terms) < 2:
        return _linear(terms, constant)
    factors: dict[Atom, int] = {}
    for atom, factor in terms:
        factors[atom] = factors.get(atom, 0) + factor
    kept = {a: f for a, f in factors.items() if f} if 0 in factors.values() else factors
    for atom in [*kept] if Remainder in map(type, kept) else ():  # x // n * n + x % n is x
        if type(atom) is Remainder and atom in kept:
            factor = kept[atom]
            quotient = atom.inner // atom.by * (atom.by * factor)
            if quotient.terms and all(kept.get(a) == f for a, f in quotient.terms):
                for a, _ in quotient.terms:
                    del kept[a]
                del kept[atom]
                whole = atom.inner * factor
                rest = constant - quotient.constant + whole.constant
                return _sum((*kept.items(), *whole.terms), rest)
    if len(kept) < 2:
        return _linear(tuple(kept.items()), constant)
    # largest stride first, so that positions read from the outermost axis inwards
    return _linear(tuple(sorted(kept.items(), key=lambda t: (-abs(t[1]), t[0].text))), constant)


ZERO = _linear((), 0)


class Range(Interned):
    """The condition low <= index <= high."""

    __slots__ = ("free", "high", "index", "low")

    def __init__(self, index: Linear, low: int, high: int) -> None:
        self.index, self.low, self.high, self.free = index, low, high, index.free

    @property
    def is_always(self) -> bool:
        return self.low <= self.index.low and self.index.high <= self.high

    def __repr__(self) -> str:
        return f"{self.low} <= {self.index} <= {self.high}"


_range = maker(Range)
Valid = tuple[Range, ...]


def inside(index: Linear, low: int, high: int) -> Range:
    """low <= index <= high, without the constant, common factors, and bounds never missed."""
    low, high = low - index.constant, high - index.constant
    common = gcd(*[f for _, f in index.terms])
    terms = tuple([(a, f // common) for a, f in index.terms]) if common > 1 else index.terms
    if common > 1:
        low, high = -(-low // common), high // common
    index = _linear(terms, 0)
    return _range(index, max(low, index.low), min(high, index.high))


def steps_by(index: Linear, along: Sequence[Axis], size: int) -> bool:
    """Whether an index counts along axes, the first one fastest, and else in steps of `size`."""
    step = 1
    for axis in along:
        if index.stride(axis) != step:
            return False
        step *= axis.size
    others = all(f % size == 0 for atom, f in index.terms if atom not in along)
    return step % size == 0 and others and index.constant % size == 0


def uniform(condition: Range, along: Sequence[Axis], size: int) -> bool:
    """Whether a condition holds for all or for none of each `size` steps along axes."""
    low = condition.low % size == 0 or condition.low <= condition.index.low
    high = (condition.high + 1) % size == 0 or condition.high >= condition.index.high
    return steps_by(condition.index, along, size) and low and high


def both(*conditions: Iterable[Range]) -> Valid | None:
    """All conditions together, without those that always hold; None if they never do."""
    kept: dict[Range, None] = {}
    for condition in chain(*conditions):
        low, high, index = condition.low, condition.high, condition.index
        if index.high < low or high < index.low or low > high:
            return None
        if low > index.low or index.high > high:
            kept[condition] = None
    return tuple(kept)


def substitute_valid(valid: Valid, known: Mapping[Axis, Linear]) -> Valid | None:
    """The conditions with axes replaced; None if they never hold."""
    if not valid or all(v.free.isdisjoint(known) for v in valid):
        return valid
    return both([moved(v, known) for v in valid])


def moved(v: Range, known: Mapping[Axis, Linear]) -> Range:
    """The condition with axes replaced. A side that could not be missed still cannot."""
    index = v.index.substitute(known)
    low = v.low if v.low > v.index.low else index.low
    high = v.high if v.high < v.index.high else index.high
    return inside(index, low, high)


def further(v: Range, steps: int) -> Range:
    """The condition asked of an index so much further on."""
    return Range(v.index + steps, v.low, v.high)


def row_major(index: Sequence[Linear], shape: Sequence[int]) -> Linear:
    """The position of `index` in an array of `shape`."""
    terms: list[tuple[Atom, int]] = []
    constant, step = 0, 1
    for i, n in zip(index[::-1], shape[::-1], strict=True):
        for atom, factor in i.terms:
            terms.append((atom, factor * step))
        constant += i.constant * step
        step *= n
    return _sum(tuple(terms), constant)


def numbered(axes: Sequence[Axis]) -> Linear:
    """The number of a step of several axes, of which the last one goes fastest."""
    return row_major([linear(a) for a in axes], [a.size for a in axes])


@lru_cache(maxsize=4096)
def unravel(position: Linear, shape: tuple[int, ...]) -> tuple[Linear, ...]:
    """The index whose position in `shape` is `position`."""
    index: list[Linear] = []
    for size in reversed(shape):
        position, rest = _divmod(position, size) if size > 1 else (position, ZERO)
        index.append(rest)
    return tuple(reversed(index))
