"""The C dialect: plain C11 with GCC and Clang's vector types, for one processor core at a time.

A vector of bools is a vector of int32 that are 0 or -1, whatever was compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from tinyml.codegen import linear as ir
from tinyml.codegen.c_text import (
    FUNCTIONS,
    HALF,
    INTEGER_DIVISION,
    LOOK,
    blend,
    float_function,
    lane_function,
    vector_type,
)
from tinyml.codegen.expr import Expr, Load, Name, Place, Select, Stored
from tinyml.codegen.linear import LinearKernel
from tinyml.codegen.render import ATOM, SIGN, TERNARY, UNARY, Renderer, Text, binary, register, wrap
from tinyml.dtype import DType, bool_, float32, int32
from tinyml.graph import toposort
from tinyml.index import Axis, Linear, Looked, linear, map_looked, substitute_valid
from tinyml.ops import BITWISE, COMPARE, Op
from tinyml.program import Language

TYPES = {
    "bool": "_Bool", "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned",
    "uint64": "unsigned long long", "int8": "signed char", "int16": "short", "int32": "int",
    "int64": "long long", "float16": "unsigned short", "bfloat16": "unsigned short",
    "float32": "float", "float64": "double",
}  # fmt: skip
SHORT = {
    "bool": "i32", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "int8": "i8",
    "int16": "i16", "int32": "i32", "int64": "i64", "float16": "u16", "bfloat16": "u16",
    "float32": "f32", "float64": "f64",
}  # fmt: skip
LIBM = {
    Op.EXP: "exp", Op.EXP2: "exp2", Op.LOG: "log", Op.LOG2: "log2", Op.SIN: "sin", Op.COS: "cos",
    Op.TANH: "tanh", Op.ERF: "erf", Op.SQRT: "sqrt", Op.TRUNC: "trunc", Op.POW: "pow",
}  # fmt: skip
EXACT = frozenset({Op.SQRT, Op.TRUNC, Op.POW})  # libm's in lanes too


class CRenderer(Renderer):
    """LinearKernel to C."""

    language = Language.C
    types = TYPES

    def __init__(self, k: LinearKernel, check: bool = False) -> None:
        super().__init__(k)
        self.check = check
        self._lanes: dict[Expr, int] = {}

    # ---- the frame ----

    def signature(self, name: str) -> str:
        return f"void {name}(void *const *buffers, long start, long end)"

    def body(self) -> Iterator[str]:
        written = {i.slot for p in self.k.parts for i in p.instrs if isinstance(i, ir.Put)}
        for slot, (_, dtype) in enumerate(self.k.slots):
            kind = TYPES[dtype.name] if slot in written else f"const {TYPES[dtype.name]}"
            yield f"  {kind} *restrict slot{slot} = buffers[{slot}];"
        for local in self.k.locals:
            kind = TYPES[register(local.dtype).name]
            yield f"  {kind} {local.name}[{local.size}] __attribute__((aligned(64)));"
        yield "  for (long block = start; block < end; ++block) {"
        yield from self.parts("block", 2)
        yield "  }"

    # ---- lanes ----

    def lanes(self, e: Expr) -> int:
        """How many lanes the value of an expression has."""
        if e not in self._lanes:
            for part in toposort([e], self._lanes):
                own = [a.size for a in part.free & self.k.lanes]
                named = [part.lanes] if isinstance(part, Name) else []
                below = [self._lanes[s] for s in part.sources]
                self._lanes[part] = max([1, *own, *named, *below])
        return self._lanes[e]

    def vector(self, dtype: DType, lanes: int) -> str:
        """The name of a vector type, defined in the prelude."""
        name = f"{SHORT[register(dtype).name]}x{lanes}"
        kind = "int" if dtype is bool_ else TYPES[register(dtype).name]
        size = 4 if dtype is bool_ else register(dtype).itemsize
        self.prelude[vector_type(name, kind, size, lanes)] = None
        return name

    def _memory_vector(self, dtype: DType, lanes: int) -> str:
        """The vector type of elements as memory holds them."""
        short = {"bool": "u8", "float16": "u16", "bfloat16": "u16"}.get(dtype.name)
        name = f"{short or SHORT[dtype.name]}x{lanes}"
        kind = "unsigned char" if dtype is bool_ else TYPES[dtype.name]
        self.prelude[vector_type(name, kind, dtype.itemsize, lanes)] = None
        return name

    def type_of(self, name: Name) -> str:
        if name.lanes > 1:
            return self.vector(name.dtype, name.lanes)
        return TYPES[register(name.dtype).name]

    def splat(self, text: Text, dtype: DType, lanes: int) -> Text:
        kind = self.vector(dtype, lanes)
        if dtype is bool_:
            return f"-(int){wrap(text, UNARY)} - ({kind}){{0}}", 11
        if register(dtype).itemsize < 4:
            text = f"({TYPES[dtype.name]}){wrap(text, UNARY)}", UNARY
        return f"{wrap(text, 11)} - ({kind}){{0}}", 11  # x - 0 is x, also for -0.0

    def across_lanes(self, op: Op, source: Name) -> str:
        parts: list[Text] = [(f"{source.name}[{n}]", ATOM) for n in range(source.lanes)]
        while len(parts) > 1:  # halves first, as a register is folded
            half = len(parts) // 2
            pairs = zip(parts[:half], parts[half:], strict=True)
            parts = [self.alu(op, source.dtype, [a, b], 1) for a, b in pairs]
        return parts[0][0]

    # ---- memory ----

    def load(self, e: Load, lanes: int) -> Text:
        lane = next(iter(e.free & self.k.lanes), None)
        if lanes == 1:
            return self._guarded_load(e, self._element(e.slot, e.dtype, e.position))
        looked = any(self.lanes(s) > 1 for s in e.sources)
        shared = lane is None or not any(lane in v.free for v in e.valid)
        if lane is not None and not looked and shared and e.position.stride(lane) == 1:
            start = self.index(e.position.substitute({lane: linear(0)}))
            kind = self._memory_vector(e.dtype, lanes)
            text = f"*(const {kind} *)(slot{e.slot} + {wrap(start, 12)})", UNARY
            converted = self._from_memory(text, e.dtype, lanes)
            if e.valid:
                register_kind = self.vector(e.dtype, lanes)
                condition = wrap(self.condition(e.valid), TERNARY + 1)
                taken = f"({register_kind}){wrap(converted, UNARY)}"
                return f"{condition} ? {taken} : ({register_kind}){{0}}", TERNARY
            return converted
        elements = []
        for n in range(lanes):
            one = _lane_of(e, lane, n, lanes)
            elements.append(
                "0" if one is None
                else self._guarded_load(one, self._element(one.slot, one.dtype, one.position))[0]
            )  # fmt: skip
        listed = ", ".join(f"-({e_})" if e.dtype is bool_ else e_ for e_ in elements)
        return f"({self.vector(e.dtype, lanes)}){{{listed}}}", ATOM

    def _guarded_load(self, e: Load, element: Text) -> Text:
        if not e.valid:
            return element
        condition = wrap(self.condition(e.valid), TERNARY + 1)
        return f"{condition} ? {wrap(element, TERNARY + 1)} : 0", TERNARY

    def _element(self, slot: int, dtype: DType, position: Linear) -> Text:
        return self._value_of(f"slot{slot}[{self.index(position)[0]}]", dtype)

    def _value_of(self, text: str, dtype: DType) -> Text:
        if not dtype.is_half:
            return text, ATOM
        self.prelude[HALF[dtype.name]] = None
        return f"{dtype.name}_value({text})", ATOM

    def _bits_of(self, text: Text, dtype: DType) -> Text:
        if not dtype.is_half:
            return text
        self.prelude[HALF[dtype.name]] = None
        return f"{dtype.name}_bits({text[0]})", ATOM

    def _from_memory(self, text: Text, dtype: DType, lanes: int) -> Text:
        if dtype is bool_:
            return f"-__builtin_convertvector({text[0]}, {self.vector(bool_, lanes)})", UNARY
        if dtype.is_half:
            return self._half_lanes(dtype, "value", text, lanes)
        return text

    def _to_memory(self, text: Text, dtype: DType, lanes: int) -> Text:
        if dtype is bool_:
            kind = self._memory_vector(bool_, lanes)
            return f"__builtin_convertvector(-({text[0]}), {kind})", ATOM
        if dtype.is_half:
            return self._half_lanes(dtype, "bits", text, lanes)
        return text

    def _half_lanes(self, dtype: DType, what: str, text: Text, lanes: int) -> Text:
        self.prelude[HALF[dtype.name]] = None
        memory, wide = self._memory_vector(dtype, lanes), self.vector(float32, lanes)
        source, target = (memory, wide) if what == "value" else (wide, memory)
        name = f"{dtype.name}_{what}"
        self.prelude[lane_function(name, name, target, [source], lanes)] = None
        return f"{name}_x{lanes}({text[0]})", ATOM

    def put(self, put: ir.Put) -> Iterator[str]:
        value = put.values[0]
        lane = next(iter(put.position.free & self.k.lanes), None)
        looked = [a for a, _ in put.position.terms if isinstance(a, Looked)]
        apart = any(isinstance(a.value, Name) and a.value.lanes > 1 for a in looked)
        if lane is None and not apart:
            yield self.guarded(put.valid, self._put_element(put, put.position, self.text(value)))
        elif lane is not None and put.position.stride(lane) == 1 and not apart:
            yield self.guarded(put.valid, self._put_lanes(put, lane))
        else:
            yield from self._put_apart(put, lane)

    def _put_lanes(self, put: ir.Put, lane: Axis) -> str:
        start = self.index(put.position.substitute({lane: linear(0)}))
        kind = self._memory_vector(put.dtype, lane.size)
        place = f"*({kind} *)(slot{put.slot} + {wrap(start, 12)})"
        text = self.text(put.values[0], lane.size)
        if put.op is not None:
            old = self._from_memory((place, UNARY), put.dtype, lane.size)
            text = self.alu(put.op, put.dtype, [old, text], lane.size)
        return f"{place} = {self._to_memory(text, put.dtype, lane.size)[0]};"

    def _put_apart(self, put: ir.Put, lane: Axis | None) -> Iterator[str]:
        lanes = max(self.lanes(put.values[0]), lane.size if lane else 1)
        yield "{"
        kind = self.vector(put.dtype, lanes)
        yield f"  const {kind} lanes = {self.value(put.values[0], lanes)};"
        for n in range(lanes):
            position = put.position.substitute({lane: linear(n)}) if lane else put.position
            position = _lane_index(position, n)
            sign = "-" if put.dtype is bool_ else ""
            line = self._put_element(put, position, (f"{sign}lanes[{n}]", UNARY))
            valid = substitute_valid(put.valid, {lane: linear(n)}) if lane else put.valid
            if valid is not None:
                yield f"  {self.guarded(valid, line)}"
        yield "}"

    def _put_element(self, put: ir.Put, position: Linear, text: Text) -> str:
        place = f"slot{put.slot}[{self.index(position)[0]}]"
        if put.op is not None:
            text = self.alu(put.op, put.dtype, [self._value_of(place, put.dtype), text], 1)
        return f"{place} = {self._bits_of(text, put.dtype)[0]};"

    def put_tile(self, put: ir.PutTile) -> Iterator[str]:
        lane = next(iter(put.index.free & self.k.lanes), None)
        if lane is None:
            place = f"{put.tile}[{self.index(put.index)[0]}]"
            yield self.guarded(put.valid, f"{place} = {self.value(put.value)};")
            return
        start = self.index(put.index.substitute({lane: linear(0)}))
        kind = self.vector(put.dtype, lane.size)
        yield f"*({kind} *)({put.tile} + {wrap(start, 12)}) = {self.value(put.value, lane.size)};"

    def stored(self, e: Stored, lanes: int) -> Text:
        lane = next(iter(e.free & self.k.lanes), None)
        if lane is None or lanes == 1:
            return f"{e.name}[{self.index(e.index)[0]}]", ATOM
        start = self.index(e.index.substitute({lane: linear(0)}))
        kind = self.vector(e.dtype, lanes)
        if e.index.stride(lane) == 1:
            return f"*(const {kind} *)({e.name} + {wrap(start, 12)})", UNARY
        steps = [self.index(e.index.substitute({lane: linear(n)}))[0] for n in range(lanes)]
        return f"({kind}){{{', '.join(f'{e.name}[{s}]' for s in steps)}}}", ATOM

    def looked(self, value: Expr, size: int) -> Text:
        self.prelude[LOOK[self.check]] = None
        return f"look({self.value(value)}, {size})", ATOM

    # ---- values ----

    def place(self, e: Place, lanes: int) -> Text:
        if lanes == 1:
            return f"({TYPES[e.dtype.name]}){wrap(self.index(e.index), UNARY)}", UNARY
        lane = next(iter(e.free & self.k.lanes), None)
        steps = [
            self.index(_lane_index(e.index.substitute({lane: linear(n)}) if lane else e.index, n))
            for n in range(lanes)
        ]
        return f"({self.vector(e.dtype, lanes)}){{{', '.join(s[0] for s in steps)}}}", ATOM

    def select(self, e: Select, lanes: int) -> Text:
        lane = next((a for v in e.valid for a in v.free & self.k.lanes), None)
        if lanes == 1:
            return super().select(e, lanes)
        if lane is None:  # one condition for all lanes; casts, for arithmetic drops attributes
            kind, condition = self.vector(e.dtype, lanes), self.condition(e.valid)
            chosen = f"{wrap(condition, 3)} ? ({kind})({self.value(e.value, lanes)})"
            return f"{chosen} : ({kind})({self.value(e.other, lanes)})", TERNARY
        mask = []
        for n in range(lanes):
            valid = substitute_valid(e.valid, {lane: linear(n)})
            always_or_never = "0" if valid is None else "-1"
            mask.append(f"-({self.condition(valid)[0]})" if valid else always_or_never)
        listed: Text = f"({self.vector(bool_, lanes)}){{{', '.join(mask)}}}", ATOM
        return self.where(listed, self.text(e.value, lanes), self.text(e.other, lanes), e.dtype, lanes)

    def where(self, mask: Text, value: Text, other: Text, dtype: DType, lanes: int) -> Text:
        if lanes == 1:
            return f"{wrap(mask, 3)} ? {wrap(value, 3)} : {wrap(other, TERNARY)}", TERNARY
        kind = self.vector(dtype, lanes)
        bits = self._mask_type(dtype, lanes)
        self.prelude[blend(kind, bits, self.vector(bool_, lanes))] = None
        return f"blend_{kind}({mask[0]}, {value[0]}, {other[0]})", ATOM

    def _mask_type(self, dtype: DType, lanes: int) -> str:
        size = 4 if dtype is bool_ else register(dtype).itemsize
        signed = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}[size]
        name = f"{SHORT[signed]}x{lanes}"
        self.prelude[vector_type(name, TYPES[signed], size, lanes)] = None
        return name

    def alu(self, op: Op, dtype: DType, operands: list[Text], lanes: int) -> Text:
        text = self._alu(op, register(dtype), operands, lanes)
        if dtype.is_half and op not in COMPARE and op not in (Op.NEG, Op.MAX, Op.MIN, Op.WHERE):
            return self._rounded(text, dtype, lanes)
        return text

    def _rounded(self, text: Text, dtype: DType, lanes: int) -> Text:
        if lanes == 1:
            return self._value_of(self._bits_of(text, dtype)[0], dtype)
        bits = self._half_lanes(dtype, "bits", text, lanes)
        return self._half_lanes(dtype, "value", bits, lanes)

    def _alu(self, op: Op, dtype: DType, operands: list[Text], lanes: int) -> Text:
        if op is Op.WHERE:
            return self.where(operands[0], operands[1], operands[2], dtype, lanes)
        if op is Op.NEG:
            return self._wrapped(f"-{wrap(operands[0], UNARY + 1)}", UNARY, dtype, lanes)
        if op is Op.NOT:
            sign = "!" if dtype is bool_ and lanes == 1 else "~"
            return self._wrapped(f"{sign}{wrap(operands[0], UNARY)}", UNARY, dtype, lanes)
        if op in COMPARE:
            return self._compare(op, dtype, operands, lanes)
        if dtype is bool_ and op in (Op.ADD, Op.MUL, Op.MAX, Op.MIN):
            op = Op.OR if op in (Op.ADD, Op.MAX) else Op.AND
        if op in SIGN and (op not in (Op.ADD, Op.MUL) or dtype.is_float):
            return self._wrapped(*binary(SIGN[op], *operands), dtype, lanes)
        if op in (Op.ADD, Op.MUL):
            return self._whole(op, dtype, operands, lanes)
        return self._call(op, dtype, operands, lanes)

    def _whole(self, op: Op, dtype: DType, operands: list[Text], lanes: int) -> Text:
        """Integers wrap around, which C promises for unsigned ones only."""
        if dtype.kind == "u" or dtype.itemsize < 4:
            return self._wrapped(*binary(SIGN[op], *operands), dtype, lanes)
        unsigned = {4: "uint32", 8: "uint64"}[dtype.itemsize]
        if lanes > 1:
            kind = f"{SHORT[unsigned]}x{lanes}"
            self.prelude[vector_type(kind, TYPES[unsigned], dtype.itemsize, lanes)] = None
            back = self.vector(dtype, lanes)
        else:
            kind, back = TYPES[unsigned], TYPES[dtype.name]
        parts: list[Text] = [(f"({kind}){wrap(o, UNARY)}", UNARY) for o in operands]
        return f"({back})({binary(SIGN[op], *parts)[0]})", UNARY

    def _wrapped(self, text: str, strength: int, dtype: DType, lanes: int) -> Text:
        """C computes small integers as int: bring the result back to its own size."""
        if lanes == 1 and dtype.kind in "ui" and dtype.itemsize < 4:
            return f"({TYPES[dtype.name]})({text})", UNARY
        return text, strength

    def _compare(self, op: Op, dtype: DType, operands: list[Text], lanes: int) -> Text:
        if lanes > 1 and dtype is bool_:
            operands = operands[::-1]  # true is -1 in a lane, and below false
        text = binary(SIGN[op], *operands)
        if lanes > 1 and dtype is not bool_ and dtype.itemsize != 4:
            return f"__builtin_convertvector({text[0]}, {self.vector(bool_, lanes)})", ATOM
        return text

    def _call(self, op: Op, dtype: DType, operands: list[Text], lanes: int) -> Text:
        """Ops that C has no operator for, as functions of the prelude."""
        arguments = ", ".join(o[0] for o in operands)
        if op in LIBM and lanes == 1:
            if dtype is float32 and op not in EXACT:  # the same bits as in a vector
                text = self._call(op, dtype, [self.splat(o, dtype, 4) for o in operands], 4)
                return f"{text[0]}[0]", ATOM
            suffix = "f" if dtype is float32 else ""
            return f"__builtin_{LIBM[op]}{suffix}({arguments})", ATOM
        kind = TYPES[dtype.name]
        name = f"{op.name.lower()}_{SHORT[dtype.name]}"
        if op in LIBM:
            vector = self.vector(dtype, lanes)
            if dtype is float32:
                integer = self.vector(int32, lanes)
                for piece in float_function(op, vector, integer, lanes):
                    self.prelude[piece] = None
                return f"{LIBM[op]}_{vector}({arguments})", ATOM
            self.prelude[
                lane_function(name, f"__builtin_{LIBM[op]}", vector, [vector] * len(operands), lanes)
            ] = None
            return f"{name}_x{lanes}({arguments})", ATOM
        if op in (Op.MAX, Op.MIN) and lanes > 1:
            sign = ">" if op is Op.MAX else "<"
            vector, bits = self.vector(dtype, lanes), self._mask_type(dtype, lanes)
            mask = f"a {sign} b | a != a" if dtype.is_float else f"a {sign} b"
            self.prelude[
                f"static inline {vector} {name}_x{lanes}({vector} a, {vector} b) {{\n"
                f"  const {bits} m = ({bits})({mask});\n"
                f"  return ({vector})((m & ({bits})a) | (~m & ({bits})b));\n}}"
            ] = None
            return f"{name}_x{lanes}({arguments})", ATOM
        text = (FUNCTIONS | INTEGER_DIVISION)[op]
        body = text["f" if dtype.is_float else dtype.kind] if isinstance(text, dict) else text
        bits = str(8 * dtype.itemsize)
        suffix = "f" if dtype is float32 else ""
        for mark, with_ in (("TYPE", kind), ("NAME", name), ("BITS", bits), ("SUFFIX", suffix)):
            body = body.replace(mark, with_)
        self.prelude[body] = None
        if lanes > 1:
            vector = self.vector(dtype, lanes)
            self.prelude[lane_function(name, name, vector, [vector] * len(operands), lanes)] = None
            return f"{name}_x{lanes}({arguments})", ATOM
        return f"{name}({arguments})", ATOM

    def cast(self, value: Text, source: DType, target: DType, lanes: int) -> Text:
        if target is bool_:
            if lanes > 1:
                zero = f"({self.vector(source, lanes)}){{0}}"
                test = f"{wrap(value, 9)} != {zero}"
                if source is bool_ or register(source).itemsize == 4:
                    return test, 8
                return f"__builtin_convertvector({test}, {self.vector(bool_, lanes)})", ATOM
            return f"{wrap(value, 9)} != 0", 8
        if lanes > 1:
            return self._cast_lanes(value, source, target, lanes)
        kind = TYPES[register(target).name]
        if source.is_float and target.is_int and target.itemsize < 8:
            value = f"(long long){wrap(value, UNARY)}", UNARY
        text = (
            value
            if register(source) is register(target)
            else (f"({kind}){wrap(value, UNARY)}", UNARY)
        )
        return self._rounded(text, target, 1) if target.is_half else text

    def _cast_lanes(self, value: Text, source: DType, target: DType, lanes: int) -> Text:
        if source is bool_:
            value = f"-({value[0]})", UNARY
            source = int32
        text = value
        if register(source) is not register(target):
            if source.is_float and target.is_int and target.itemsize < 8:
                value = (
                    f"__builtin_convertvector({value[0]}, {self._int64(lanes)})", ATOM
                )  # fmt: skip
            kind = self.vector(target, lanes)
            text = f"__builtin_convertvector({value[0]}, {kind})", ATOM
        return self._rounded(text, target, lanes) if target.is_half else text

    def _int64(self, lanes: int) -> str:
        self.prelude[vector_type(f"i64x{lanes}", "long long", 8, lanes)] = None
        return f"i64x{lanes}"

    def bitcast(self, value: Text, source: DType, target: DType, lanes: int) -> Text:
        if source.is_half:
            value = (
                self._half_lanes(source, "bits", value, lanes)
                if lanes > 1
                else self._bits_of(value, source)
            )
        if lanes > 1:
            kind = self._memory_vector(target, lanes)
            text: Text = f"({kind}){wrap(value, UNARY)}", UNARY
            return self._from_memory(text, target, lanes) if target.is_half else text
        a, b = TYPES[source.name], TYPES[target.name]
        text = f"((union {{ {a} from; {b} to; }}){{{value[0]}}}).to", ATOM
        return self._value_of(text[0], target)


def _lane_of(e: Load, lane: Axis | None, n: int, lanes: int) -> Load | None:
    """The load of one lane; None if it is not valid there."""
    one: Expr = e
    if lane is not None:
        one = e.substitute({lane: linear(n)})
    if not isinstance(one, Load):
        return None
    valid = tuple(type(v)(_lane_index(v.index, n), v.low, v.high) for v in one.valid)
    load: Load = Load(one.slot, one.dtype, _lane_index(one.position, n), valid)
    return load


def _lane_index(index: Linear, n: int) -> Linear:
    """The index with every looked-up vector replaced by its lane n."""

    def lane(atom: Looked) -> Looked:
        if not (isinstance(atom.value, Name) and atom.value.lanes > 1):
            return atom
        value: Name = Name(f"{atom.value.name}[{n}]", atom.value.dtype, 1)
        return value.looked(atom.size)

    return map_looked(index, lane)
