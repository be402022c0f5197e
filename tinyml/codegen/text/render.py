"""Render: instructions become text. What the two dialects share; c.py and cuda.py differ.

Halves (float16, bfloat16) live in memory as 16 bits and in registers as float32 that is
rounded after every op, so that a fused program gives the values of its parts run alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod

import numpy as np

from tinyml import ops
from tinyml.codegen import linear as ir
from tinyml.codegen.expr import (
    Alu,
    Const,
    Expr,
    Held,
    Load,
    Name,
    Part,
    Place,
    Require,
    Select,
    Stored,
    Wide,
)
from tinyml.codegen.linear import Instr, LinearKernel
from tinyml.codegen.optimize.change import OptError
from tinyml.codegen.text.indices import Indices
from tinyml.codegen.text.strength import ATOM, TERNARY, UNARY, Text, binary, wrap
from tinyml.dtype import DType, bool_, float32, int64, uint64
from tinyml.faults import Fault
from tinyml.index import Axis, Linear, Valid
from tinyml.ops import COMPARE, Op
from tinyml.program import Box, Cost, Language, Program

# others mean something else in C
SIGN: dict[Op, str] = {
    op: s for op, s in ops.SIGN.items() if op not in (Op.IDIV, Op.MOD, Op.SHL, Op.SHR)
}
STAYS = COMPARE | {Op.NEG, Op.ABS, Op.MAX, Op.MIN, Op.WHERE}  # what halves give needs no rounding
LIBM = {
    Op.EXP: "exp", Op.EXP2: "exp2", Op.EXPM1: "expm1", Op.LOG: "log", Op.LOG2: "log2",
    Op.LOG1P: "log1p", Op.SIN: "sin", Op.COS: "cos", Op.ATAN: "atan", Op.TANH: "tanh",
    Op.ERF: "erf", Op.SQRT: "sqrt", Op.TRUNC: "trunc", Op.POW: "pow", Op.FMA: "fma",
    Op.TAN: "tan", Op.ABS: "fabs",
}  # fmt: skip
PLAIN = {  # types that are the same in C and in CUDA C
    "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned",
    "uint64": "unsigned long long", "int8": "signed char", "int16": "short", "int32": "int",
    "int64": "long long", "float32": "float", "float64": "double",
}  # fmt: skip


def register(dtype: DType) -> DType:
    """What a value of `dtype` is while it is computed with."""
    return float32 if dtype.is_half else dtype


class Renderer(Indices):
    """Writes one LinearKernel. Subclasses say what C and CUDA say differently."""

    language: Language
    types: dict[str, str]
    nan, infinity = ("", ""), ("", "")  # as float64, as float32
    index_type = "long"
    held = 0  # bytes of memory of the program's own
    inline = "static inline"  # what stands before a function of the prelude
    whole_number: str  # the function that makes int64 of a float

    # what each dialect says in its own way, if it has such at all
    signature: Callable[[str], str]
    body: Callable[[], list[str]]
    barrier: Callable[[], str]
    across_lanes: Callable[[Op, Name], str]
    across_threads: Callable[[Name, Op, int], str]
    put: Callable[[ir.Put], Iterable[str]]
    put_tile: Callable[[ir.PutTile], Iterable[str]]
    splat: Callable[[Text, DType, int], Text]
    load: Callable[[Load, int], Text]
    wide: Callable[[Wide], Text]
    part_of: Callable[[Part], Text]
    stored: Callable[[Stored, int], Text]
    require: Callable[[Fault, Expr, Expr, int], Text]  # notes the fault where the second is false
    _value_of: Callable[[str, DType], Text]  # the value of the bits that memory holds
    _bits_of: Callable[[Text, DType], Text]  # the way back
    call: Callable[[Op, DType, list[Text], int], Text]  # of an op that C has no operator for
    bitcast: Callable[[Text, DType, DType, int], Text]

    def __init__(self, k: LinearKernel) -> None:
        super().__init__()
        self.k = k
        self.prelude: dict[str, None] = {}
        self.faults: dict[Fault, None] = {}
        self._numbers: dict[tuple[Const, int], Text] = {}
        self.named: dict[str, Expr] = {}  # what names stand for
        self.in_order = False  # whether an assembler is to keep the order of the text

    # ---- the frame ----

    def render(self, name: str, head: Iterable[str], cost: Cost) -> Program:
        body = self.body()
        told = [f"fault {fault.code:#x}: {fault.text}" for fault in self.faults]
        told += ["its assembler keeps the order of the products"] * self.in_order
        said = [f"// {line}" for line in (*head, *told)]
        lines = [*said, f"{self.signature(name)} {{", *body, "}", ""]
        return Program(
            name,
            self.language,
            tuple(self.prelude),
            "\n".join(lines),
            len(self.k.slots),
            self.k.blocks,
            (*self.launched(), 1),
            self.shared_bytes(),
            cost,
            tuple(self.faults),
            self.boxes(),
            self.held,
            self.bounds(),
            self.in_order,
        )

    def launched(self) -> tuple[int, int]:
        """Threads along x and y."""
        return self.k.block

    def bounds(self) -> tuple[int, ...]:
        """What a compiler is told of launches."""
        return ()

    def boxes(self) -> tuple[Box, ...]:
        """What the card copies by itself."""
        return ()

    def shared_bytes(self) -> int:
        return 0

    def parts(self, block: str, depth: int) -> list[str]:
        """Every part, behind a test of the block number where there are several."""
        lines, start = list[str](), 0
        several = len(self.k.parts) > 1
        for number, part in enumerate(self.k.parts):
            pad = "  " * depth
            if several:
                word = "if" if number == 0 else "} else if"
                lines.append(f"{pad}{word} ({block} < {start + part.blocks}) {{")
            here = block if not start else f"({block} - {start})"
            lines += self.part(part, here, depth + several)
            start += part.blocks
        if several:
            lines.append(f"{'  ' * depth}}}")
        return lines

    def part(self, part: ir.Part, block: str, depth: int) -> list[str]:
        pad = "  " * depth
        lines = [pad + line for line in (*self.numbered(part.grid, block), *self.thread_axes(part))]
        first, abreast = 0, False  # of the lines that are copied
        for instr in part.instrs:
            if type(instr) is ir.Begin and instr.copied:
                self.copied, first, abreast = instr.axis.name, len(lines), instr.abreast
                continue
            if type(instr) is ir.End:
                if instr.axis.name == self.copied:
                    parts = [[line] for line in lines[first:]] if abreast else [lines[first:]]
                    lines[first:] = [copy for p in parts for copy in _copies(p, instr.axis.size)]
                    self.copied = ""
                    continue
                pad = pad[2:]
                lines.append(pad + "}")
                continue
            for line in self.instr(instr):
                lines.append(pad + line)
            if type(instr) is ir.Begin:
                pad += "  "
        return lines

    def thread_axes(self, part: ir.Part) -> Iterator[str]:
        yield from ()

    def numbered(self, axes: tuple[Axis, ...], number: str) -> Iterator[str]:
        """Axes out of their row-major position."""
        below = prod(a.size for a in axes)
        for position, axis in enumerate(axes):
            below //= axis.size
            text = f"{number} / {below}" if below > 1 else number
            if position and axis.size > 1:
                text = f"{text} % {axis.size}"
            yield f"const {self.index_type} {axis.name} = {text};"

    # ---- instructions ----

    def instr(self, instr: Instr) -> Iterable[str]:
        match instr:
            case ir.Let(name, value) | ir.Declare(name, value):  # most often; then the next ones
                kind = self.type_of(name)
                if isinstance(instr, ir.Let):
                    kind, self.named[name.name] = f"const {kind}", value
                return (f"{kind} {name.name} = {self.value(value, name.lanes)};",)
            case ir.Update(name, None, value):
                return (f"{name.name} = {self.value(value, name.lanes)};",)
            case ir.Update(name, Op() as op, value):
                return (self.update(name, op, value),)
            case ir.Put():
                return self.put(instr)
            case ir.PutTile():
                return self.put_tile(instr)
            case ir.Fetch():
                return self.fetch(instr)
            case ir.Begin(axis, starts, stops, kept=kept):
                return self.begin(axis, starts, stops, kept)
            case ir.Number(axes, at):
                text = self.index(at)
                return self.numbered(axes, wrap(text, UNARY) if len(axes) > 1 else text[0])
            case ir.AcrossLanes(name, op, source):
                return (f"{self.type_of(name)} {name.name} = {self.across_lanes(op, source)};",)
            case ir.AcrossThreads(name, op, threads):
                return (f"{name.name} = {self.across_threads(name, op, threads)};",)
            case ir.AcrossBlocks():
                return self.across_blocks(instr)
            case ir.Barrier():
                return (self.barrier(),)
        raise TypeError(f"{self.language.name} has no text for {instr}")

    def begin(
        self, axis: Axis, starts: tuple[Linear, ...], stops: tuple[Linear, ...], kept: bool = False
    ) -> Iterator[str]:
        i, first, last = axis.name, "0", str(axis.size)
        if axis.size == 1:  # at its only step
            bounds = [*(f"{self.index(s)[0]} <= 0" for s in starts)]
            bounds += [f"{self.index(s)[0]} > 0" for s in stops]
            yield f"if ({' && '.join(bounds)}) {{" if bounds else "{"
            return
        for start in starts:
            text = self.index(start)[0]
            first = text if first == "0" and start.low >= 0 else f"later({text}, {first})"
        for stop in stops:
            text = self.index(stop)[0]
            bounded = last == str(axis.size) and stop.high <= axis.size
            last = text if bounded else f"sooner({text}, {last})"
        for name, sign in (("later", ">"), ("sooner", "<")):
            if f"{name}(" in first + last:
                kind = self.index_type
                self.prelude[
                    f"{self.inline} {kind} {name}({kind} a, {kind} b) {{\n"
                    f"  return a {sign} b ? a : b;\n}}"
                ] = None
        if kept:
            yield f"const {self.index_type} {i}_first = {first};"
            first = f"{i}_first"
        if stops:  # worked out once
            first, last = f"{first}, {i}_stop = {last}", f"{i}_stop"
        declared = f"{self.index_type} {i} = {first};"
        if kept:
            yield declared
            declared = ";"
        yield f"for ({declared} {i} < {last}; ++{i}) {{"

    def update(self, name: Name, op: Op, value: Expr) -> str:
        lanes = name.lanes
        if op in (Op.ADD, Op.MUL) and name.dtype.is_float:
            return f"{name.name} {SIGN[op]}= {self.value(value, lanes)};"
        # the new value comes first: whether that is NaN is known before the last fold is done
        operands = [self.text(value, lanes), self.text(name, lanes)]
        return f"{name.name} = {self.alu(op, name.dtype, operands, lanes)[0]};"

    def across_blocks(self, across: ir.AcrossBlocks) -> Iterable[str]:
        raise OptError("cannot grid a fold: in C pieces of work do not wait for each other")

    def fetch(self, fetch: ir.Fetch) -> Iterable[str]:
        return ()  # many threads wait for memory in turn

    def guarded(self, valid: Valid, line: str) -> str:
        return f"if ({self.condition(valid)[0]}) {line}" if valid else line

    # ---- types and numbers ----

    def type_of(self, name: Name) -> str:
        return self.types[register(name.dtype).name]

    def number(self, value: float | int | bool, dtype: DType) -> Text:
        dtype = register(dtype)
        if dtype is bool_:
            return ("1" if value else "0"), ATOM
        if not dtype.is_float:
            return self.whole(int(value), dtype)
        single = dtype is float32
        if value != value:
            return self.nan[single], ATOM
        if value in (float("inf"), float("-inf")):
            text = self.infinity[single]
        else:
            text = _shortest(abs(value)) + "f" if single else repr(abs(value))
        negative = value < 0 or (value == 0 and str(value).startswith("-"))
        return (f"-{text}", UNARY) if negative else (text, ATOM)

    def whole(self, value: int, dtype: DType) -> Text:
        suffix = {"u": "u", "i": ""}[dtype.kind] + ("ll" if dtype.itemsize == 8 else "")
        if value == dtype.min and dtype.kind == "i" and dtype.itemsize >= 4:
            return f"(-{-(value + 1)}{suffix} - 1)", ATOM
        return (f"-{-value}{suffix}", UNARY) if value < 0 else (f"{value}{suffix}", ATOM)

    # ---- expressions ----

    def value(self, e: Expr, lanes: int = 1) -> str:
        return self.text(e, lanes)[0]

    def text(self, e: Expr, lanes: int = 1) -> Text:
        """The expression as text, spread over `lanes` if it is one value and they are many."""
        if type(e) is Name and (lanes == 1 or e.lanes == lanes):  # most are
            return e.name, ATOM
        if type(e) is Const:
            key = e, lanes
            return self._numbers.get(key) or self._numbers.setdefault(key, self._number(*key))
        own = self.lanes(e) if lanes > 1 else 1
        made = self.op(e, own) if type(e) is Alu else self.scalar_or_vector(e, own)
        return self.splat(made, e.dtype, lanes) if lanes > own else made

    def _number(self, e: Const, lanes: int) -> Text:
        text = self.number(e.value, e.dtype)
        return self.splat(text, e.dtype, lanes) if lanes > 1 else text

    def lanes(self, e: Expr) -> int:
        return 1

    def scalar_or_vector(self, e: Expr, lanes: int) -> Text:
        match e:
            case Name():
                return e.name, ATOM
            case Require(fault=fault, operands=(value, holds)):
                self.faults[fault] = None
                return self.require(fault, value, holds, lanes)
            case Alu():
                return self.op(e, lanes)
            case Const():
                return self.number(e.value, e.dtype)
            case Load():
                return self.load(e, lanes)
            case Wide():
                return self.wide(e)
            case Part():
                return self.part_of(e)
            case Place():
                return self.place(e, lanes)
            case Stored():
                return self.stored(e, lanes)
            case Select():
                return self.select(e, lanes)
            case Held():
                return self.held_by_lanes(e, lanes)
        raise TypeError(f"no text for {e}")

    def op(self, e: Alu, lanes: int) -> Text:
        texts, dtype = [self.text(o, lanes) for o in e.operands], e.operands[-1].dtype
        if e.op is Op.CAST or e.op is Op.BITCAST:
            convert = self.cast if e.op is Op.CAST else self.bitcast
            return convert(texts[0], dtype, e.dtype, lanes)
        return self.alu(e.op, dtype if e.op in COMPARE else e.dtype, texts, lanes)

    def place(self, e: Place, lanes: int) -> Text:
        return f"({self.types[e.dtype.name]}){wrap(self.index(e.index), UNARY)}", UNARY

    def guarded_load(self, valid: Valid, text: Text, zero: str = "0") -> Text:
        """What is loaded, where the conditions of the load hold."""
        if not valid:
            return text
        condition = wrap(self.condition(valid), TERNARY + 1)
        return f"{condition} ? {wrap(text, TERNARY + 1)} : {zero}", TERNARY

    def held_by_lanes(self, e: Held, lanes: int) -> Text:
        raise TypeError(f"{self.language.name} has no text for {e}")

    def select(self, e: Select, lanes: int) -> Text:
        condition = self.condition(e.valid)
        value, other = self.text(e.value, lanes), self.text(e.other, lanes)
        chosen = f"{wrap(condition, TERNARY + 1)} ? {wrap(value, TERNARY + 1)}"
        return f"{chosen} : {wrap(other, TERNARY)}", TERNARY

    def rounded(self, text: Text, dtype: DType, lanes: int) -> Text:
        """A value as a half holds it."""
        return self._value_of(self._bits_of(text, dtype)[0], dtype)

    def alu(self, op: Op, dtype: DType, operands: list[Text], lanes: int) -> Text:
        """An op on operands of `dtype`, rounded to it."""
        text = self.unrounded(op, register(dtype), operands, lanes)
        return self.rounded(text, dtype, lanes) if dtype.is_half and op not in STAYS else text

    def unrounded(self, op: Op, dtype: DType, operands: list[Text], lanes: int) -> Text:
        """An op on what registers hold."""
        if op in SIGN and op not in COMPARE and dtype is not bool_:  # most are
            return self.own_size(*binary(SIGN[op], *operands), dtype, lanes)
        if op is Op.WHERE:
            mask, value, other = operands
            return self.where(mask, value, other, dtype, lanes)
        if op is Op.NEG:
            return self.own_size(f"-{wrap(operands[0], UNARY + 1)}", UNARY, dtype, lanes)
        if op is Op.NOT:
            text = ("!" if dtype is bool_ and lanes == 1 else "~") + wrap(operands[0], UNARY)
            return self.own_size(text, UNARY, dtype, lanes)
        if op in COMPARE:
            return self.compare(SIGN[op], dtype, operands, lanes)
        if dtype is bool_ and op in (Op.ADD, Op.MUL, Op.MAX, Op.MIN):
            op = Op.OR if op in (Op.ADD, Op.MAX) else Op.AND
        if op in SIGN:
            return self.own_size(*binary(SIGN[op], *operands), dtype, lanes)
        return self.call(op, dtype, operands, lanes)

    def where(self, mask: Text, value: Text, other: Text, dtype: DType, lanes: int) -> Text:
        return f"{wrap(mask, 3)} ? {wrap(value, 3)} : {wrap(other, TERNARY)}", TERNARY

    def compare(self, sign: str, dtype: DType, operands: list[Text], lanes: int) -> Text:
        return binary(sign, *operands)

    def own_size(self, text: str, strength: int, dtype: DType, lanes: int) -> Text:
        """C computes small integers as int: bring the result back to its own size."""
        if lanes == 1 and dtype.kind in "ui" and dtype.itemsize < 4:
            return f"({self.types[dtype.name]})({text})", UNARY
        return text, strength

    def cast(self, value: Text, source: DType, target: DType, lanes: int) -> Text:
        if target is bool_:
            return f"{wrap(value, 9)} != 0", 8
        if source.is_float and target.is_int and target is not uint64:  # a smaller one wraps around
            self.prelude[self.whole_number] = None
            value, source = (f"whole({value[0]})", ATOM), int64
        if register(source) is not register(target):
            value = f"({self.types[register(target).name]}){wrap(value, UNARY)}", UNARY
        return self.rounded(value, target, lanes) if target.is_half else value


def _copies(lines: list[str], steps: int) -> list[str]:
    """Lines with the number of each step in its place."""
    pieces = "\n".join(lines).split(ir.EACH)
    return [str(step).join(pieces) for step in range(steps)]


def _shortest(value: float) -> str:
    """The shortest decimal text that reads back as the same float32."""
    text = str(np.float32(value))
    return text if any(c in text for c in ".e") else text + ".0"
