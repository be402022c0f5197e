"""Indices and conditions as text: the same in both dialects."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tinyml.codegen.expr import Expr
from tinyml.codegen.linear import EACH
from tinyml.codegen.text.strength import ATOM, UNARY, Text, wrap
from tinyml.index import Atom, Axis, Linear, Looked, Quotient, Range, Remainder, Terms, Valid


class Indices:
    """Writes sums of axes."""

    looked: Callable[[Expr, int], Text]  # an index that is looked up, into so many elements
    both = " && ", 4  # what joins conditions, and how strongly

    def __init__(self) -> None:
        self._sums: dict[tuple[Terms, Axis | None], Text] = {}
        self._steps: dict[tuple[Terms, Axis | None], str] = {}
        self.copied = ""  # the axis whose steps are copies of the text

    def index(self, i: Linear, but: Axis | None = None, more: int = 0) -> Text:
        """An index and `more` as text, largest strides first; where the axis `but` is 0."""
        constant = i.constant + more
        key = i.terms, but
        text = self._sums.get(key) or self._sums.setdefault(key, self._sum(*key))
        if not text[0]:
            return (str(constant), ATOM if constant >= 0 else UNARY)
        if constant:
            return f"{wrap(text, 11)} {'+' if constant > 0 else '-'} {abs(constant)}", 11
        return text

    def beyond(self, base: str, i: Linear, but: Axis | None = None) -> str:
        """A place so far behind another one; where the axis `but` is 0.

        Numbers are steps of their own: of sums with them clang makes an `or`, which no address has.
        """
        key = i.terms, but
        steps = self._steps.get(key) or self._steps.setdefault(key, self._apart(*key))
        number = f" {'+' if i.constant > 0 else '-'} {abs(i.constant)}" if i.constant else ""
        return f"{base}{steps}{number}"

    def _apart(self, terms: Terms, but: Axis | None) -> str:
        known = [term for term in terms if self.copied and term[0].text == self.copied]
        sums = (self._sum(part, but) for part in ([t for t in terms if t not in known], known))
        return "".join(f" + {wrap(text, 12)}" for text in sums if text[0])

    def _sum(self, terms: Iterable[tuple[Atom, int]], but: Axis | None) -> Text:
        text: Text = "", ATOM
        if self.copied:  # a number: last, where compilers add it to others
            terms = sorted(terms, key=lambda term: term[0].text == self.copied)
        for atom, factor in terms:
            if atom is but:
                continue
            inner = (self.axis(atom.text), ATOM) if type(atom) is Axis else self.atom(atom)
            size = abs(factor)
            term = inner if size == 1 else (f"{wrap(inner, 12)} * {size}", 12)
            if not text[0]:
                text = term if factor > 0 else (f"-{wrap(term, UNARY)}", UNARY)
            else:
                sign = "+" if factor > 0 else "-"
                text = f"{wrap(text, 11)} {sign} {wrap(term, 12)}", 11
        return text

    def atom(self, atom: object) -> Text:
        match atom:
            case Axis(name=name):
                return self.axis(name), ATOM
            case Quotient(inner=inner, by=by):
                return self.quotient(inner, by)
            case Remainder(inner=inner, by=by):
                if inner.low >= 0:
                    return f"{wrap(self.index(inner), 12)} % {by}", 12
                return f"({wrap(self.index(inner), 12)} % {by} + {by}) % {by}", 12
            case Looked(value=value, size=size):
                return self.looked(value, size)
        raise TypeError(f"no text for {atom!r}")

    def quotient(self, inner: Linear, by: int) -> Text:
        if inner.low >= 0:
            return f"{wrap(self.index(inner), 12)} / {by}", 12
        lift = -(inner.low // by)  # C rounds towards zero: lift the dividend above it first
        return f"{wrap(self.index(inner + lift * by), 12)} / {by} - {lift}", 11

    def axis(self, name: str) -> str:
        return EACH if name == self.copied else name

    def condition(self, valid: Valid) -> Text:
        texts, (sign, strength) = [self.within(v) for v in valid], self.both
        if len(texts) == 1:
            return texts[0]
        return sign.join(wrap(t, strength + 1) for t in texts), strength

    def within(self, v: Range) -> Text:
        """low <= index <= high, leaving out a side that the bounds already promise."""
        copied = next((a for a in v.free if a.name == self.copied), None)
        stride = v.index.stride(copied) if copied is not None else 0
        index = wrap(self.index(v.index, copied if stride else None), 10)
        less = ""
        if stride:  # a number, which compilers add to the other one
            less = f" {'-' if stride > 0 else '+'} {EACH}" + f" * {abs(stride)}" * (abs(stride) > 1)
        sides = [f"{index} >= {v.low}{less}"] if v.index.low < v.low else []
        sides += [f"{index} <= {v.high}{less}"] if v.index.high > v.high else []
        return (sides[0], 9) if len(sides) == 1 else (" && ".join(sides), 4)


def reach(i: Linear) -> int:
    """The largest magnitude that is met while the terms of an index are added up."""
    low = high = reach = 0
    for atom, factor in i.terms:
        ends = factor * atom.low, factor * atom.high
        low, high = low + min(ends), high + max(ends)
        reach = max(reach, *map(abs, ends), -low, high)
    return max(reach, -(low + i.constant), high + i.constant)
