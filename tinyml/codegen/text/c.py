"""The C dialect: plain C11 with GCC and Clang's vector types, for one processor core at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Alu, Const, Expr, Load, Name, Place, Select, Stored
from tinyml.codegen.linear import LinearKernel
from tinyml.codegen.text.c_divide import is_product
from tinyml.codegen.text.c_lanes import looks_along, valid_by_lane
from tinyml.codegen.text.c_masked import has_instruction
from tinyml.codegen.text.c_pairs import CPairs
from tinyml.codegen.text.c_shuffles import gathered, strided
from tinyml.codegen.text.c_text import (
    LARGE,
    MASKED,
    STREAMED,
    scattered,
    scattered_rows,
)
from tinyml.codegen.text.c_values import TYPES
from tinyml.codegen.text.render import SIGN, register
from tinyml.codegen.text.strength import ATOM, STRENGTH, TERNARY, UNARY, Text, wrap
from tinyml.codegen.two_rows import Rows, rows_of, two_rows
from tinyml.dtype import DType, bool_, int32
from tinyml.frozen import cached_property
from tinyml.index import Axis
from tinyml.ops import COMPARE, Op
from tinyml.program import Language

FEW_LOADS = 64  # of vectors, in a kernel
ON_STACK = 1 << 18  # elements of a tile at most that is no allocation of its own
# clang writes out few steps, each a loop of its own, and a processor reads ahead by where the code
# is that reads: sums of rows of 4096 took 1.4 times as long by 32 bytes
ROLLED = "#pragma clang loop unroll(disable)"
# gcc writes none out that gets longer by it: three colours of a pixel took 1.7 times as long
WRITTEN_OUT = "#pragma GCC unroll {}"
SHORT, FEW = 4, 32  # steps of such a loop, and instructions of all of them, at most
# gcc before 14 makes vectors of several products or elements that are summed up in order, and where
# they are read backwards, as windows of a gradient are, adds some of them twice (its bug 110381)
IN_ORDER = """#if defined(__clang__) || __GNUC__ >= 14
#define in_order(sum)
#elif defined(__x86_64__)
#define in_order(sum) __asm__("" : "+x"(sum))
#elif defined(__aarch64__)
#define in_order(sum) __asm__("" : "+w"(sum))
#else
#define in_order(sum) __asm__("" : "+m"(sum))
#endif"""


_JOINS = (Op.AND, Op.OR, Op.MUL, Op.ADD, Op.MAX, Op.MIN)  # of bools


class CRenderer(CPairs):
    """LinearKernel to C."""

    language = Language.C

    def __init__(self, k: LinearKernel) -> None:
        super().__init__(k)
        self._lanes: dict[Expr, int] = {}
        self._told = dict[int, str]()  # by `id`: whether loops of the part are written out
        self._in_order = set[Name]()  # sums of the part, which the compiler is to leave so

    @cached_property
    def _chooses(self) -> bool:
        """Whether lanes choose between values, or join masks: clang compares under one, too."""
        ops = [e for e in self.values if type(e) is Alu]
        masks = [e for e in ops if e.op is Op.WHERE or (e.op in _JOINS and e.dtype is bool_)]
        return any(self.lanes(e) > 1 for e in masks)

    @cached_property
    def _calls(self) -> bool:
        """Whether so much is loaded that lists of elements would take compilers seconds."""
        return sum(type(e) is Load and self.lanes(e) > 1 for e in self.values) > FEW_LOADS

    def signature(self, name: str) -> str:
        fault = ", long *fault" if self.faults else ""
        return f"void {name}(void *const *buffers, long start, long end{fault})"

    def body(self) -> list[str]:
        puts = [i for p in self.k.parts for i in p.instrs if type(i) is ir.Put]
        written, lines = {put.slot for put in puts}, list[str]()
        for slot, (_, dtype) in enumerate(self.k.slots):
            kind = TYPES[dtype.name] if slot in written else f"const {TYPES[dtype.name]}"
            lines.append(f"  {kind} *restrict slot{slot} = buffers[{slot}];")
        large = [local for local in self.k.locals if local.size > ON_STACK]
        for local in self.k.locals:
            kind = TYPES[register(local.dtype).name]
            if local in large:
                self.prelude[LARGE] = None
                bytes_ = local.size * register(local.dtype).itemsize
                lines.append(f"  {kind} *restrict {local.name} = large({bytes_});")
            else:
                lines.append(f"  {kind} {local.name}[{local.size}] __attribute__((aligned(64)));")
        lines.append("  for (long block = start; block < end; ++block) {")
        lines += self.parts("block", 2)
        lines.append("  }")
        lines += [f"  free({local.name});" for local in large]
        if any(put.streams for put in puts):
            self.prelude[STREAMED] = None
            lines.append("  streamed();")
        return lines

    def part(self, part: ir.Part, block: str, depth: int) -> list[str]:
        self._told = dict.fromkeys(_summed_apart(part.instrs), ROLLED)
        short = {id(begin): begin.axis.size for begin in _short(part.instrs)}
        self._told |= {begin: WRITTEN_OUT.format(size) for begin, size in short.items()}
        self._in_order = _added_to_again(part.instrs, short)
        return super().part(part, block, depth)

    def instr(self, instr: ir.Instr) -> Iterable[str]:
        lines, told = super().instr(instr), self._told.get(id(instr))
        if type(instr) is ir.Update and instr.name in self._in_order:
            self.prelude[IN_ORDER] = None
            return (*lines, f"in_order({instr.name.name});")
        return (told, *lines) if told else lines

    def lanes(self, e: Expr) -> int:
        """How many lanes the value of an expression has."""
        if type(e) is Name:
            return e.lanes
        found = self._lanes.get(e)
        if found is None:
            found = 1
            for axis in e.free if type(e) is not Alu else ():  # an op has those of its operands
                if axis in self.k.lanes and axis.size > found:
                    found = axis.size
            for source in e.sources:  # not deep: what is gets names
                own = self.lanes(source)
                found = own if own > found else found
            self._lanes[e] = found
        return found

    def across_lanes(self, op: Op, source: Name) -> str:
        dtype, lanes = source.dtype, source.lanes
        name = f"across_{op.name.lower()}_{dtype.name}x{lanes}"
        lines, parts = self._halves(op, dtype, lanes)
        while len(parts) > 1:
            half = len(parts) // 2
            pairs = zip(parts[:half], parts[half:], strict=True)
            parts = [self.alu(op, dtype, [a, b], 1) for a, b in pairs]
        head = f"static inline {TYPES[register(dtype).name]} {name}({self.type_of(source)} a)"
        self.prelude["\n".join([f"{head} {{", *lines, f"  return {parts[0][0]};\n}}"])] = None
        return f"{name}({source.name})"

    def _halves(self, op: Op, dtype: DType, lanes: int) -> tuple[list[str], list[Text]]:
        """Halves of a vector combined until one lane has all: what makes them, and what remains.

        Down to 16 bytes the halves are vectors of their own, and from there on the upper lanes are
        moved down. Small integers remain, for gcc puts parts of their vectors into memory.
        """
        name, lines, size, held = "a", [], register(dtype).itemsize, lanes
        while lanes > 1 and size >= 4 and held * size >= 16:
            lanes //= 2
            held = max(lanes, 16 // size)
            kind = self.vector(dtype, held)
            low, high = f"*(const {kind} *)&{name}", f"*((const {kind} *)&{name} + 1)"
            if lanes < held:
                listed = ", ".join(f"{name}[{n % lanes + lanes}]" for n in range(held))
                low, high = name, f"({kind}){{{listed}}}"
            made = self.alu(op, dtype, [(low, UNARY), (high, UNARY)], held)[0]
            name = f"a{lanes}"
            lines.append(f"  const {kind} {name} = {made};")
        return lines, [(f"{name}[{n}]", ATOM) for n in range(lanes)]

    def load(self, e: Load, lanes: int) -> Text:
        lane = next(iter(e.free & self.k.lanes), None)
        if lanes == 1:
            bits = self._bits_at(e, self.index(e.position))
            return self.guarded_load(e.valid, self._value_of(bits[0], e.dtype))
        looked = any(self.lanes(s) > 1 for s in e.sources)
        if looked and (found := self.entry(e, lanes)):
            return found
        shared = lane is None or not any(lane in v.free for v in e.valid)
        stride = e.position.stride(lane) if lane is not None and not looked else None
        pair = self.is_pair(e)
        few = e.dtype.itemsize * lanes < MASKED  # of more clang takes 1.2 times as long, from afar
        apart = stride is None or (stride == 2 and not shared and few)
        if lane is not None and apart and not (looked or pair):
            if picked := self.picked(e, lane):
                return self._if_held(e, picked, lanes, shared)
            if rows := two_rows(e, lane):
                return self.text(rows, lanes)
        plain = shared and not looked
        found = self._near(e, lane, stride, pair) if lane is not None and plain else None
        if found is not None:
            return self._if_held(e, found, lanes, shared)
        if lane is not None and not (looked or shared or pair) and self.is_near(e, lane):
            return self._from_memory(self._masked(e, lane, stride), e.dtype, lanes)
        if lane is not None and plain and stride is not None and not pair:
            return self._if_held(e, self._strided(e, lane, stride), lanes, shared)
        places = self.index_by_lane(e.position, lane, lanes)
        ones = [
            "0" if held is None else self.guarded_load(held, self._bits_at(e, at))[0]
            for at, held in zip(places, valid_by_lane(e.valid, lane, lanes), strict=True)
        ]
        kind = self._memory_vector(e.dtype, lanes)
        text = f"({kind}){{{', '.join(ones)}}}", ATOM
        if e.dtype.itemsize * lanes == MASKED // 2:
            text = self._loaded(text, kind, MASKED // 2)
        return self._from_memory(text, e.dtype, lanes)

    def _if_held(self, e: Load, found: Text, lanes: int, shared: bool) -> Text:
        """What memory has, 0 where conditions that all lanes share fail; others it has met."""
        converted = self._from_memory(found, e.dtype, lanes)
        if not (e.valid and shared):
            return converted
        register_kind = self.vector(e.dtype, lanes)
        condition = wrap(self.condition(e.valid), TERNARY + 1)
        taken = f"({register_kind}){wrap(converted, UNARY)}"
        return f"{condition} ? {taken} : ({register_kind}){{0}}", TERNARY

    def _masked(self, e: Load, lane: Axis, stride: int | None) -> Text:
        """Elements where conditions of lanes hold; most vectors of a long row need no mask."""
        masked, held = self.masked_load(e, lane), self.all_lanes(e.valid, lane)
        whole = self._near(e, lane, stride, False) if held else None
        if not held or whole is None:
            return masked
        often = f"__builtin_expect({self.condition(held)[0]}, 1)"
        return f"{often} ? {wrap(whole, TERNARY + 1)} : {masked[0]}", TERNARY

    def _near(self, e: Load, lane: Axis, stride: int | None, pair: bool) -> Text | None:
        """Elements that one or two vectors in memory have, if they do."""
        if stride == 2 or (stride == 1 and not pair):
            place = self.beyond(f"slot{e.slot}", e.position, lane)
            if pair:
                return self.pairs(place, lane.size)
            found = self.run(e.dtype, lane.size, place, stride)
            if stride == 1 and e.dtype.itemsize * lane.size == MASKED and self._chooses:
                return self._loaded(found, self._memory_vector(e.dtype, lane.size), MASKED)
            return found
        return None if pair else self.picked(e, lane)

    def _strided(self, e: Load, lane: Axis, stride: int) -> Text:
        """Elements at even distances, however far."""
        made, kind = gathered if self._calls else strided, self._memory_vector(e.dtype, lane.size)
        name = f"{made.__name__}_{e.dtype.name}x{lane.size}"  # bools are bytes, of another type
        self.prelude[made(name, kind, TYPES[e.dtype.name], lane.size)] = None
        text = f"{name}({self.beyond(f'slot{e.slot}', e.position, lane)}, {stride})", ATOM
        if e.dtype.itemsize * lane.size == MASKED // 2 and not self._calls:
            return self._loaded(text, kind, MASKED // 2)
        return text

    def _bits_at(self, e: Load, at: Text) -> Text:
        if self.is_pair(e):
            return self.pairs(f"slot{e.slot} + {wrap(at, 12)}", 1)
        return f"slot{e.slot}[{at[0]}]", ATOM

    def put(self, put: ir.Put) -> Iterable[str]:
        value = put.values[0]
        free = put.position.free.union(*[v.free for v in put.valid])
        lane = next(iter(free & self.k.lanes), None)
        looked = put.position.looked
        apart = any(isinstance(a.value, Name) and a.value.lanes > 1 for a in looked)
        if lane is None and not apart:
            place = self.index(put.position)[0]
            return (self.guarded(put.valid, self._put_element(put, place, self.text(value))),)
        if lane is not None and put.position.stride(lane) == 1 and not apart:
            masked = any(lane in v.free for v in put.valid)
            if not masked or put.op is None:
                return (self.guarded(() if masked else put.valid, self._put_lanes(put, lane)),)
        if lane is not None and not apart and _is_spread(put, lane):
            stored = self._to_memory(self.text(value, lane.size), put.dtype, lane.size)
            start = self.beyond(f"slot{put.slot}", put.position, lane)
            return (self.guarded(put.valid, self.spread_put(start, put.dtype, stored, lane.size)),)
        return self._put_apart(put, lane)

    def _put_lanes(self, put: ir.Put, lane: Axis) -> str:
        start = self.beyond(f"slot{put.slot}", put.position, lane)
        if put.streams:
            texts = [self.text(value, lane.size) for value in put.values]
            made = [self._to_memory(text, put.dtype, lane.size)[0] for text in texts]
            return self.stream(start, put.dtype, made, lane.size)
        kind = self._memory_vector(put.dtype, lane.size)
        place = f"*({kind} *)({start})"
        text = self.text(put.values[0], lane.size)
        if put.op is not None:
            old = self._from_memory((place, UNARY), put.dtype, lane.size)
            text = self.alu(put.op, put.dtype, [old, text], lane.size)
        if any(lane in v.free for v in put.valid):
            stored = self._to_memory(text, put.dtype, lane.size)
            held = self.mask(put.valid, lane)
            return self.masked_put(start, put.dtype, stored, held, lane.size)
        return f"{place} = {self._to_memory(text, put.dtype, lane.size)[0]};"

    def fetch(self, fetch: ir.Fetch) -> Iterable[str]:
        return (f"__builtin_prefetch({self.beyond(f'slot{fetch.slot}', fetch.position)});",)

    def _put_apart(self, put: ir.Put, lane: Axis | None) -> Iterator[str]:
        looked = put.position.looked
        placed = [a.value.lanes for a in looked if isinstance(a.value, Name)]
        lanes = max(self.lanes(put.values[0]), lane.size if lane else 1, *placed)
        alike = put.op is None and not any(lane in v.free for v in put.valid)
        plain = alike and not (looked or put.dtype is bool_ or put.dtype.is_half)
        rows = rows_of(put.position, lane) if plain and lane is not None else None
        if rows is not None:
            yield self.guarded(put.valid, self._put_rows(put, rows, lanes))
            return
        yield "{"
        kind = self.vector(put.dtype, lanes)
        yield f"  const {kind} lanes = {self.value(put.values[0], lanes)};"
        sign = "-" if put.dtype is bool_ else ""
        places = self.index_by_lane(put.position, lane, lanes)
        held = valid_by_lane(put.valid, lane, lanes)
        for n, (place, valid) in enumerate(zip(places, held, strict=True)):
            if valid is not None:
                line = self._put_element(put, place[0], (f"{sign}lanes[{n}]", UNARY))
                yield f"  {self.guarded(valid, line)}"
        yield "}"

    def _put_rows(self, put: ir.Put, rows: Rows, lanes: int) -> str:
        """Elements stored at even distances, in one row or in several."""
        kind, element = self.vector(put.dtype, lanes), TYPES[put.dtype.name]
        name = f"scattered_{kind}"
        where = self.beyond(f"slot{put.slot}", rows.start)
        given = f"{where}, {self.value(put.values[0], lanes)}, {rows.step}"
        if rows.begin.high + lanes <= rows.by:
            self.prelude[scattered(name, kind, element, lanes)] = None
            return f"{name}({given});"
        name += f"_by{rows.by}"
        self.prelude[scattered_rows(name, kind, element, lanes, rows.by)] = None
        return f"{name}({given}, {self.index(rows.begin)[0]}, {rows.jump});"

    def _put_element(self, put: ir.Put, at: str, text: Text) -> str:
        place = f"slot{put.slot}[{at}]"
        if put.op is not None:
            text = self.alu(put.op, put.dtype, [self._value_of(place, put.dtype), text], 1)
        return f"{place} = {self._bits_of(text, put.dtype)[0]};"

    def put_tile(self, put: ir.PutTile) -> Iterable[str]:
        lane = next(iter(put.index.free & self.k.lanes), None)
        lanes = lane.size if lane is not None else 1
        if lane is not None and put.index.stride(lane) != 1:
            raise TypeError(f"{self.k.name}: {put.tile} does not lie along {lane.name}")
        place: Text = f"{put.tile}[{self.index(put.index)[0]}]", ATOM
        if lane is not None:
            kind = self._tile_vector(put.dtype, lanes)
            place = f"*({kind} *)({self.beyond(put.tile, put.index, lane)})", UNARY
        text = self.text(put.value, lanes)
        if put.op is not None:
            old = self._of_tile(place, put.dtype, lanes)
            text = self.alu(put.op, put.dtype, [old, text], lanes)
        if put.dtype is bool_ and lane is not None:
            text = self._to_memory(text, bool_, lanes)
        return (self.guarded(put.valid, f"{place[0]} = {text[0]};"),)

    def stored(self, e: Stored, lanes: int) -> Text:
        lane = next(iter(e.free & self.k.lanes), None)
        if lane is None or lanes == 1:
            return f"{e.name}[{self.index(e.index)[0]}]", ATOM
        kind = self._tile_vector(e.dtype, lanes)
        if e.index.stride(lane) == 1:
            text = f"*(const {kind} *)({self.beyond(e.name, e.index, lane)})", UNARY
            return self._of_tile(text, e.dtype, lanes)
        steps = self.index_by_lane(e.index, lane, lanes)
        listed = ", ".join([f"{e.name}[{step[0]}]" for step in steps])
        return self._of_tile((f"({kind}){{{listed}}}", ATOM), e.dtype, lanes)

    def _tile_vector(self, dtype: DType, lanes: int) -> str:
        """Values lie in tiles as in registers, but bools as in memory: a byte each."""
        return (self._memory_vector if dtype is bool_ else self.vector)(dtype, lanes)

    def _of_tile(self, text: Text, dtype: DType, lanes: int) -> Text:
        return self._from_memory(text, dtype, lanes) if dtype is bool_ and lanes > 1 else text

    def op(self, e: Alu, lanes: int) -> Text:
        match e.operands:
            case (Place(index=one), Place(index=other)) if e.op in COMPARE and lanes > 1:
                lane = next(iter((apart := one - other).free & self.k.lanes), None)
                if lane and (text := self.compared(apart, [(SIGN[e.op], 0)], lane)):
                    return text, STRENGTH[SIGN[e.op]]
            case (one, Const(value=by)) if lanes > 1 and is_product(e.op, e.dtype, by):
                return self.divided(e.op, self.text(one, lanes), int(by), lanes)
            case (Alu(op=Op.EQUAL, operands=(one, _) as sides),) if e.op is Op.NOT:
                texts = [self.text(side, lanes) for side in sides]
                return self.compare("!=", register(one.dtype), texts, lanes)
            case (Alu(op=Op.OR, operands=masks), *values) if e.op is Op.WHERE:
                if self.size_of(e.dtype) * lanes == MASKED:
                    texts = [self.text(side, lanes) for side in (*masks, *values)]
                    return self.blended_either(texts, e.dtype, lanes)
        return super().op(e, lanes)

    def place(self, e: Place, lanes: int) -> Text:
        if lanes == 1:
            return super().place(e, lanes)
        lane = next(iter(e.free & self.k.lanes), None)
        if lane is not None and (index := self.index_of_lanes(e.index, lane)) is not None:
            return self.cast((index, 11), int32, e.dtype, lanes)
        steps = self.index_by_lane(e.index, lane, lanes)
        return f"({self.vector(e.dtype, lanes)}){{{', '.join(s[0] for s in steps)}}}", ATOM

    def select(self, e: Select, lanes: int) -> Text:
        lane = next((a for v in e.valid for a in v.free & self.k.lanes), None)
        if lanes == 1:
            return super().select(e, lanes)
        apart = any(looks_along(v.index) for v in e.valid)
        if lane is None and not apart:  # one condition; casts, for arithmetic drops attributes
            kind, condition = self.vector(e.dtype, lanes), self.condition(e.valid)
            chosen = f"{wrap(condition, 3)} ? ({kind})({self.value(e.value, lanes)})"
            return f"{chosen} : ({kind})({self.value(e.other, lanes)})", TERNARY
        value, other = self.text(e.value, lanes), self.text(e.other, lanes)
        held = self.mask(e.valid, lane or Axis("lane", lanes))
        known = not apart and all(v.free <= {lane} for v in e.valid)
        if known and lane and self.is_split(lanes):
            bits = self.bits(self.size_of(e.dtype), lanes)
            held = self.known_mask(e.valid, lane, bits), ATOM
        if known and lane and not (type(e.other) is Const and e.other.value == 0):
            sides = e.value, e.other
            one = any(type(s) is not Const and self.lanes(s) == 1 for s in sides)
            each = valid_by_lane(e.valid, lane, lanes if one else 0)
            number = sum(1 << n for n, valid in enumerate(each) if valid is not None)
            fixed = any(type(s) is Const for s in sides)
            return self.chosen(held, number, value, other, e.dtype, lanes, fixed)
        return self.blended(held, value, other, e.dtype, lanes, known)


def _summed_apart(instrs: Iterable[ir.Instr]) -> Iterator[int]:
    """Loops, by `id`, each of whose steps sums up in a loop of its own: those of a LongFold."""
    around: list[tuple[ir.Begin, set[Expr]]] = []  # loops, and the sums that begin in each
    looped, apart = set[int](), set[int]()
    for instr in instrs:
        if type(instr) is ir.Update:
            for begin, own in around:
                if instr.value in own and instr.name not in own:
                    apart.add(id(begin))
        elif type(instr) is ir.Declare:
            for _, own in around:
                own.add(instr.name)
        elif type(instr) is ir.Begin:
            looped.update(id(begin) for begin, _ in around if not instr.copied)
            around.append((instr, set()))
        elif type(instr) is ir.End:
            begin, _ = around.pop()
            if not begin.copied and id(begin) in looped & apart:
                yield id(begin)


def _short(instrs: Iterable[ir.Instr]) -> Iterator[ir.Begin]:
    """Loops of few steps, which are known, without a loop in them; or around such folds: vectors
    of each step lie elsewhere, and a processor reads ahead by where the code is that reads."""
    around, counts, most = list[ir.Begin](), [0], FEW  # instructions of each, at all steps
    before: ir.Instr | None = None
    for instr in instrs:
        if isinstance(instr, ir.Begin):
            around.append(instr)
            counts.append(0)
            most = FEW
        elif isinstance(instr, ir.End):
            begin, count = around.pop(), counts.pop()
            count *= begin.axis.size
            known = not (begin.copied or begin.starts or begin.stops)
            short = known and 1 < begin.axis.size <= SHORT and count <= most
            if short:
                yield begin
            most = SHORT * FEW
            counts[-1] += count if short and isinstance(before, ir.Update) else most + 1
        else:
            counts[-1] += 1
        before = instr


def _added_to_again(instrs: Iterable[ir.Instr], short: Container[int]) -> set[Name]:
    """Sums of single floats that one step of a loop adds to more than once."""
    outside = Counter[Name]()
    around, found = [(outside, 1)], set[Name]()
    for instr in instrs:
        match instr:
            case ir.Begin(axis):
                count, times = around[-1]
                is_loop = not instr.copied and id(instr) not in short
                around.append((Counter(), 1) if is_loop else (count, times * axis.size))
            case ir.End():
                around.pop()
            case ir.Update(name, Op.ADD) if name.lanes == 1 and name.dtype.is_float:
                count, times = around[-1]
                count[name] += 1 if ir.EACH in name.name else times
                if count[name] > 1 and count is not outside:
                    found.add(name)
    return found


def _is_spread(put: ir.Put, lane: Axis) -> bool:
    """Whether whole vectors are stored whose elements lie two apart, as a phase of pixels does."""
    whole = put.op is None and not any(lane in v.free for v in put.valid)
    apart = has_instruction(put.dtype.itemsize, lane.size) and put.position.stride(lane) == 2
    return whole and apart
