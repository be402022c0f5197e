"""Indices and conditions over the lanes of a vector in C, and memory where conditions hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from tinyml.codegen.bounds import bounds
from tinyml.codegen.expr import Expr, Load, Name, Part
from tinyml.codegen.text.c_masked import masked_load, masked_store, spread_store
from tinyml.codegen.text.c_places import AT_LANE, LOOK, LOOK_LANE
from tinyml.codegen.text.c_shuffles import entry, every_second, length, of_another, picked
from tinyml.codegen.text.c_text import lane_place, loaded, streaming_store
from tinyml.codegen.text.c_values import TYPES, CValues
from tinyml.codegen.text.render import register
from tinyml.codegen.text.strength import ATOM, UNARY, Text, wrap
from tinyml.dtype import DType, bool_, int32
from tinyml.index import (
    Atom,
    Axis,
    Linear,
    Looked,
    Quotient,
    Range,
    Remainder,
    both,
    linear,
    map_looked,
    moved,
    substitute_valid,
)
from tinyml.index import Valid as Conditions

NEAR = 8  # elements from one lane to the next
LONG = 4  # vectors of a row at least, of which a branch leaves masks to the ends


class CLanes(CValues):
    """What differs from lane to lane, computed for all lanes at once."""

    def index_of_lanes(self, i: Linear, lane: Axis) -> str | None:
        """The values of an index along `lane` as a vector of int32; None if not to be had."""
        if not (_is_plain(i) and _is_int(i)):
            return None
        vector = self.vector(int32, lane.size)
        apart = Linear(tuple((a, f) for a, f in i.terms if lane not in a.free), 0)
        step = i.factor(lane)
        numbers = ", ".join([str(i.constant + step * n) for n in range(lane.size)])
        parts = [f"({vector}){{{numbers}}}"] if step or i.constant else []
        for atom, factor in i.terms:
            if isinstance(atom, (Quotient, Remainder)) and lane in atom.free:
                text = self._atom_of_lanes(atom, lane, vector)
                parts.append(text if factor == 1 else f"{text} * {factor}")
        if apart.terms:
            parts.append(f"(int){wrap(self.index(apart), UNARY)}")
        return " + ".join(parts)

    def _atom_of_lanes(self, atom: Quotient | Remainder, lane: Axis, vector: str) -> str:
        name = "quotient" if isinstance(atom, Quotient) else "remainder"
        inner, by = atom.inner, atom.by
        lift = max(0, -(inner.low // by))  # C rounds towards zero: lift the dividend above it
        if inner.stride(lane) == 1 and by >= lane.size:
            self.prelude[lane_place(name, vector, lane.size)] = None
            start = self.index(inner.substitute({lane: linear(0)}) + lift * by)[0]
            text = f"{name}_{vector}({start}, {by})"
        else:
            sign = "/" if isinstance(atom, Quotient) else "%"
            text = f"(({self.index_of_lanes(inner + lift * by, lane)}) {sign} {by})"
        return f"({text} - {lift})" if lift and isinstance(atom, Quotient) else text

    def mask(self, valid: Conditions, lane: Axis) -> Text:
        """Where conditions hold along `lane`, as a vector of bools."""
        texts = [self._range_of_lanes(v, lane) for v in valid if lane in v.free]
        if any(text is None for text in texts) or any(looks_along(v.index) for v in valid):
            return self._mask_by_lane(valid, lane)
        common = tuple(v for v in valid if lane not in v.free)
        if common:
            texts.append(self.splat((f"({self.condition(common)[0]})", ATOM), bool_, lane.size)[0])
        return " & ".join(f"({text})" for text in texts), 7

    def known_mask(self, valid: Conditions, lane: Axis, bits: str) -> str:
        """Where conditions on lanes alone hold, in `bits`: gcc would convert what it knows."""
        held = valid_by_lane(valid, lane, lane.size)
        return f"({bits}){{{', '.join('0' if v is None else '-1' for v in held)}}}"

    def _range_of_lanes(self, v: Range, lane: Axis) -> str | None:
        sides = [(">=", v.low)] if v.index.low < v.low else []
        sides += [("<=", v.high)] if v.index.high > v.high else []
        return self.compared(v.index, sides, lane)

    def compared(self, i: Linear, sides: Iterable[tuple[str, int]], lane: Axis) -> str | None:
        """Whether i `sign` number, along `lane`: what is the same for all lanes is one number.

        Of several such sides, whether all of them hold.
        """
        same = Linear(tuple([(a, f) for a, f in i.terms if lane not in a.free]), 0)
        others = [(sign, number, number - same) for sign, number in sides]
        along = self.index_of_lanes(i - same, lane)
        plain = _is_plain(i) and _is_int(i) and all(_is_int(other) for _, _, other in others)
        if along is None or not plain:
            return None
        texts = []
        for sign, number, other in others:
            bound = f"(int){wrap(self.index(other), UNARY)}" if same.terms else str(number)
            texts.append(f"{along} {sign} {bound}")
        return ") & (".join(texts)

    def _mask_by_lane(self, valid: Conditions, lane: Axis) -> Text:
        mask = []
        for held in valid_by_lane(valid, lane, lane.size):
            always_or_never = "0" if held is None else "-1"
            mask.append(f"-({self.condition(held)[0]})" if held else always_or_never)
        return f"({self.vector(bool_, lane.size)}){{{', '.join(mask)}}}", ATOM

    def index_by_lane(self, i: Linear, lane: Axis | None, lanes: int) -> list[Text]:
        """An index as text, for each lane."""
        stride = i.stride(lane) if lane is not None else 0
        if stride is not None and not i.looked:
            return [self.index(i, lane, n * stride) for n in range(lanes)]
        at = [{} if lane is None else {lane: linear(n)} for n in range(lanes)]
        return [self.index(lane_index(i.substitute(at[n]), n)) for n in range(lanes)]

    def looked(self, value: Expr, size: int) -> Text:
        text = self.value(value)
        lane = text.endswith("]") and value.dtype.itemsize < 8
        self.prelude |= {AT_LANE: None} if lane else {}
        if self._is_inside(value, size):
            return (f"at_lane({text})", ATOM) if lane else (f"(long){text}", UNARY)
        self.prelude[LOOK_LANE if lane else LOOK] = None
        return f"look{'_lane' if lane else ''}({text}, {size})", ATOM

    def _is_inside(self, value: Expr, size: int) -> bool:
        """Whether a value lies in [0, size), once what is required of it was asked for."""
        if isinstance(value, Name) and value.name.endswith("]"):  # a lane
            value = self.named.get(value.name.partition("[")[0], value)
        low, high = bounds(value, self.named)
        return low >= 0 and high < size

    def is_near(self, e: Load, lane: Axis) -> bool:
        """Whether the elements for all lanes lie so close that all of them may be read."""
        stride = e.position.stride(lane)
        return stride is not None and 0 < stride <= NEAR

    def run(self, dtype: DType, lanes: int, place: str, stride: int) -> Text:
        """Elements at a place and behind it; or every second of them."""
        kind = self._memory_vector(dtype, lanes)
        if stride == 1:
            return f"*(const {kind} *)({place})", UNARY
        size, name = dtype.itemsize, f"second_{dtype.name}x{lanes}"
        places = self.bits(size, lanes)
        self.prelude[every_second(name, kind, TYPES[dtype.name], places, lanes, size)] = None
        return f"{name}({place})", ATOM

    def _loaded(self, text: Text, kind: str, size: int) -> Text:
        self.prelude[loaded(kind, size)] = None
        return f"loaded_{kind}({text[0]})", ATOM

    def picked(self, e: Load, lane: Axis) -> Text | None:
        """Elements whose distances are known, out of vectors that have them; None if too far.

        Where it is known of all lanes whether they hold, 0 in those that do not. Not of halves, as
        clang would take longer to widen them.
        """
        at = e.position.at_each([{lane: linear(n)} for n in range(lane.size)])
        held = valid_by_lane(e.valid, lane, lane.size) if _asks(e, lane) else [()] * lane.size
        first = next((at[n] for n, valid in enumerate(held) if valid is not None), None)
        apart = any(place.terms != at[0].terms for place in at)
        if e.dtype.is_half or first is None or apart or any(held):
            return None
        every = [None if v is None else p.constant for p, v in zip(at, held, strict=True)]
        found = self._of_vectors(e, first - first.constant, every)
        if found is None or None not in every:
            return found
        mask = ", ".join("0" if n is None else "-1" for n in every)
        kind, bits = self._memory_vector(e.dtype, lane.size), self.bits(e.dtype.itemsize, lane.size)
        return f"({kind})(({bits}){wrap(found, UNARY)} & ({bits}){{{mask}}})", UNARY

    def _of_vectors(self, e: Load, base: Linear, at: Sequence[int | None]) -> Text | None:
        """Lanes at so many elements from a place, None where it does not matter."""
        known = [n for n in at if n is not None]
        size, lanes, least = prod(self.k.slots[e.slot][0]), len(at), min(known)
        before = max(0, base.high + least + lanes - size)
        start = base + least
        if max(known) - least < lanes - before and start.low >= before:  # the slot has a whole one
            count, start, least = lanes, start - before, least - before
        else:
            count = length([n - least for n in known], e.dtype.itemsize, lanes)
        if not count:
            return None
        places = [0 if n is None else n - least for n in at]
        widths = [n for n in (2**bit for bit in range(8)) if count <= n <= lanes]
        kinds, element = [self._memory_vector(e.dtype, n) for n in widths], TYPES[e.dtype.name]
        name = f"picked{count}_{kinds[-1]}_{'_'.join(map(str, places))}"
        self.prelude[picked(name, kinds, element, places, count)] = None
        return f"{name}({self.beyond(f'slot{e.slot}', start)})", ATOM

    def entry(self, e: Load, lanes: int) -> Text | None:
        """Elements looked up in a table that one or two registers hold; None if it is no such."""
        apart = [t for t in e.position.terms if self._differs(t[0])]
        held = register(e.dtype).itemsize == 4 and lanes in (8, 16) and e.dtype is not bool_
        if not held or e.valid or len(apart) != 1:
            return None
        ((atom, factor),) = apart
        if factor != 1 or not isinstance(atom, Looked) or atom.size > 2 * lanes:
            return None
        start = e.position - linear(atom)
        kind, places = self.vector(e.dtype, lanes), self.vector(int32, lanes)
        parts = [
            self._run_of(e, start + n, atom.size - n, lanes) for n in range(0, atom.size, lanes)
        ]
        name = f"entry{len(parts)}_{kind}"
        self.prelude[entry(name, kind, places, lanes, len(parts))] = None
        at = self.converted(self.text(atom.value, lanes)[0], atom.value.dtype, int32, lanes)
        return f"{name}({', '.join(parts)}, {at})", ATOM

    def _differs(self, atom: Atom) -> bool:
        """Whether an atom of an index is not the same in all lanes."""
        looked = any(self.lanes(found.value) > 1 for found in linear(atom).looked)
        return looked or not atom.free.isdisjoint(self.k.lanes)

    def _run_of(self, e: Load, start: Linear, count: int, lanes: int) -> str:
        """So many elements of a vector, the rest of it 0."""
        place, kind = self.beyond(f"slot{e.slot}", start), self._memory_vector(e.dtype, lanes)
        listed = ", ".join(f"({place})[{n}]" for n in range(count))
        text = (f"*(const {kind} *)({place})" if count >= lanes else f"({kind}){{{listed}}}"), UNARY
        return self._from_memory(text, e.dtype, lanes)[0]

    def part_of(self, e: Part) -> Text:
        """Lanes of a vector spread over those of another one."""
        (lane,) = e.lane.free & self.k.lanes
        chosen = [str(e.lane.substitute({lane: linear(n)})) for n in range(lane.size)]
        kind, places = self.vector(e.dtype, lane.size), self.bits(self.size_of(e.dtype), lane.size)
        name = f"spread_{kind}_{chosen.count(chosen[0])}_from{chosen[0]}"
        self.prelude[of_another(name, kind, places, ", ".join(chosen))] = None
        return f"{name}({self.value(e.wide, lane.size)})", ATOM

    def masked_load(self, e: Load, lane: Axis) -> Text:
        """Elements at even distances, as memory has them, 0 where a lane's conditions fail."""
        lanes, stride = lane.size, e.position.stride(lane)
        assert stride is not None
        kind, mask = self._memory_vector(e.dtype, lanes), self.vector(bool_, lanes)
        start = e.position.substitute({lane: linear(0)})
        bits = self.bits(e.dtype.itemsize, lanes)
        known, most = all(v.free == {lane} for v in e.valid), prod(self.k.slots[e.slot][0])
        inside = start.low >= 0 and start.high + (lanes - 1) * stride < most
        name = f"masked_{e.dtype.name}x{lanes}" + (f"_by{stride}" if stride > 1 else "")
        name += "_known" * known + "_inside" * inside
        own, held = self.mask_bits(e.dtype.itemsize, lanes), self.mask(e.valid, lane)[0]
        if known and self.is_split(lanes):
            mask, own, held = bits, "m", self.known_mask(e.valid, lane, bits)
        listed = ", ".join(f"p[at + {n * stride}]" for n in range(lanes))
        taken = f"({kind}){{{listed}}}"
        if stride <= 2:
            taken = self.run(e.dtype, lanes, "p + at", stride)[0]
        element, size = TYPES[e.dtype.name], e.dtype.itemsize
        vector = kind, element, mask, bits, own, size, lanes, stride
        self.prelude[masked_load(name, *vector, taken, known, inside)] = None
        return f"{name}(slot{e.slot}, {self.index(start)[0]}, {most}, {held})", ATOM

    def all_lanes(self, valid: Conditions, lane: Axis) -> Conditions | None:
        """When all lanes hold conditions, if most vectors of a row do."""
        along = [v for v in valid if lane in v.free]
        ends: list[Range] = []
        for v in along:
            index, stride = v.index, v.index.stride(lane)
            if not stride or stride < 0 or index.high - index.low < LONG * lane.size * stride:
                return None
            ends.append(moved(Range(index, v.low, index.high), {lane: linear(0)}))
            ends.append(moved(Range(index, index.low, v.high), {lane: linear(lane.size - 1)}))
        return both(ends, [v for v in valid if v not in along])

    def masked_put(self, start: str, dtype: DType, value: Text, held: Text, lanes: int) -> str:
        """Elements side by side stored where the mask is set."""
        kind, mask = self._memory_vector(dtype, lanes), self.vector(bool_, lanes)
        name = f"store_{dtype.name}x{lanes}"
        element, size = TYPES[dtype.name], dtype.itemsize
        self.prelude[masked_store(name, kind, element, mask, size, lanes)] = None
        return f"{name}({start}, {value[0]}, {held[0]});"

    def spread_put(self, start: str, dtype: DType, value: Text, lanes: int) -> str:
        """Elements stored two apart."""
        kind, size = self._memory_vector(dtype, lanes), dtype.itemsize
        places, name = self.bits(size, lanes), f"spread_{dtype.name}x{lanes}"
        self.prelude[spread_store(name, kind, TYPES[dtype.name], places, size, lanes)] = None
        return f"{name}({start}, {value[0]});"

    def stream(self, start: str, dtype: DType, values: list[str], lanes: int) -> str:
        """Vectors side by side stored past the caches."""
        kind, size = self._memory_vector(dtype, lanes), dtype.itemsize * lanes
        name = f"stream{len(values) if len(values) > 1 else ''}_{dtype.name}x{lanes}"
        element = TYPES[dtype.name]
        self.prelude[streaming_store(name, kind, element, size, len(values))] = None
        return f"{name}({start}, {', '.join(values)});"


def _asks(e: Load, lane: Axis) -> bool:
    """Whether lanes are loaded under conditions of their own."""
    return any(lane in v.free for v in e.valid)


def _is_plain(i: Linear) -> bool:
    """Whether an index looks no value up."""
    inner = [a.inner for a, _ in i.terms if isinstance(a, (Quotient, Remainder))]
    return not any(isinstance(a, Looked) for a, _ in i.terms) and all(map(_is_plain, inner))


def _is_int(i: Linear) -> bool:
    """Whether an index is an int, wherever it is."""
    return i.low >= -(1 << 31) and i.high < 1 << 31


def looks_along(i: Linear) -> bool:
    """Whether an index looks up a vector: another place for each lane."""
    return any(lane_index(i, n) != i for n in (0, 1))


def valid_by_lane(valid: Conditions, lane: Axis | None, lanes: int) -> list[Conditions | None]:
    """Conditions for each lane; None where they never hold."""
    if not any(lane in v.free or v.index.looked for v in valid):
        return [valid] * lanes
    found: list[Conditions | None] = []
    for n in range(lanes):
        one = tuple([Range(lane_index(v.index, n), v.low, v.high) for v in valid])
        found.append(one if lane is None else substitute_valid(one, {lane: linear(n)}))
    return found


def lane_index(index: Linear, n: int) -> Linear:
    """The index with every looked-up vector replaced by its lane n."""

    def lane(atom: Looked) -> Looked:
        if not (isinstance(atom.value, Name) and atom.value.lanes > 1):
            return atom
        value: Name = Name(f"{atom.value.name}[{n}]", atom.value.dtype, 1)
        return value.looked(atom.size)

    return map_looked(index, lane)
