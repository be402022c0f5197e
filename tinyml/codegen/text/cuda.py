"""The CUDA dialect: CUDA C for one thread; lanes are scalars loaded and stored side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Alu, Expr, Held, Load, Name, Part, Stored, Wide
from tinyml.codegen.linear import LinearKernel
from tinyml.codegen.matrices import (
    Aside,
    Bundle,
    Exchanged,
    Fragment,
    Neighbours,
    Piece,
    Product,
    makes_halves,
)
from tinyml.codegen.optimize.panels import ROW, ROWS
from tinyml.codegen.pairs import multiple
from tinyml.codegen.target import Target
from tinyml.codegen.text import cuda_bounds
from tinyml.codegen.text.cuda_aside import AsideRenderer
from tinyml.codegen.text.cuda_text import (
    ACROSS,
    ATOMIC,
    COMBINE,
    FRAGMENT,
    FRAGMENT_TF32,
    FRAGMENTS,
    HEADERS,
    LOOK,
    NEIGHBOURS,
    ON_LANES,
    PACK,
    PUT_SOME,
    READ_IF,
    REQUIRE,
    ROUGH,
    ROUND,
    SWIZZLED,
    WHOLE,
    WIDENED_LANE,
    function,
    lane_functions,
    product_of,
)
from tinyml.codegen.text.indices import reach
from tinyml.codegen.text.render import LIBM, PLAIN, SIGN, register
from tinyml.codegen.text.strength import ATOM, UNARY, Text, binary, wrap
from tinyml.dtype import DType, bfloat16, bool_, float32
from tinyml.faults import Fault
from tinyml.frozen import replace
from tinyml.index import Axis, Linear, Range
from tinyml.ops import Op
from tinyml.program import REGISTERS, Language, launch_bounds

TYPES = {**PLAIN, "bool": "bool", "float16": "__half", "bfloat16": "__nv_bfloat16"}
WIDENED = {"float16": "__half2float", "bfloat16": "__bfloat162float"}
NARROWED = {"float16": "__float2half_rn", "bfloat16": "__float2bfloat16_rn"}
LARGE = 2**31 - 1
_ADDED = Op.ADD, float32
_LANE = re.compile(r"widened<(\d+)>\(([^()]*)\)")


class CudaRenderer(AsideRenderer):
    """LinearKernel to CUDA C."""

    language = Language.CUDA
    types = TYPES
    nan = "__longlong_as_double(0x7ff8000000000000ll)", "__int_as_float(0x7fffffff)"
    infinity = "__longlong_as_double(0x7ff0000000000000ll)", "__int_as_float(0x7f800000)"
    index_type = "int"
    inline = "__device__ __forceinline__"
    whole_number = WHOLE
    both = " & ", 7  # no branches: most conditions of a load are those of another one, too

    def __init__(self, k: LinearKernel, target: Target) -> None:
        super().__init__(k)
        self.target = target
        self.reach = max((prod(shape) for shape, _ in k.slots), default=0)
        if self.reach > LARGE or k.blocks > LARGE // 1024:
            self.index_type = "long long"
        self.prelude[PACK] = None
        self.aside = {}
        self.rough = _rough([i for part in k.parts for i in part.instrs])
        self.steps: dict[int, int] = {}  # of loops that a compiler must not write out whole
        self.panels = {local.name: local.dtype for local in k.locals if local.panels}
        threads, shared = prod(self.launched()), self.shared_bytes()
        self.waiting = cuda_bounds.in_memory(k, target, threads, shared)
        self.in_order = bool(self.waiting)
        for dtype in (*(dtype for _, dtype in k.slots), *(local.dtype for local in k.locals)):
            if dtype.is_half:
                self.prelude[HEADERS[dtype.name]] = None

    # ---- the frame ----

    def signature(self, name: str) -> str:
        written = {i.slot for p in self.k.parts for i in p.instrs if isinstance(i, ir.Put)}
        parameters = []
        for slot, (_, dtype) in enumerate(self.k.slots):
            const = "" if slot in written else "const "
            parameters.append(f"{const}{TYPES[dtype.name]} *__restrict__ slot{slot}")
        if self.faults:
            parameters.append("long long *fault")
        parameters += [f"const tinyml_tensor_map *box{n}" for n in range(len(self.boxes()))]
        bounds = launch_bounds(self.bounds())
        return f'extern "C" __global__ void {bounds} {name}({", ".join(parameters)})'

    def bounds(self) -> tuple[int, ...]:
        threads, shared = prod(self.launched()), self.shared_bytes()
        if self.waiting:
            return threads, cuda_bounds.TOGETHER
        return cuda_bounds.bounds(self.k, self.target, threads, shared)

    def body(self) -> list[str]:
        lines = list(self._body())
        if self.reach > LARGE and self.index_type == "int":  # positions in what is never stored
            self.index_type = "long long"
            self._sums.clear()
            lines = list(self._body())
        return lines

    def _body(self) -> Iterator[str]:
        offsets, shared = [0] * len(self.k.parts), ""
        if self.k.locals:  # the first kernel of a unit says how an array of this name is aligned
            alignment = max(map(_alignment, self.k.locals))
            shared = f"tinyml_shared_{alignment}"
            yield f"  extern __shared__ __align__({alignment}) unsigned char {shared}[];"
        for local in sorted(self.k.locals, key=_alignment, reverse=True):
            kind, offset = TYPES[local.dtype.name], offsets[local.part]
            place = f"{shared} + {offset}" if offset else shared
            if not local.place:
                yield f"  {kind} *const {local.name} = ({kind} *)({place});"
                offsets[local.part] += _aligned(local)
        for local in (each for each in self.k.locals if each.place):
            yield f"  {TYPES[local.dtype.name]} *const {local.name} = {local.place};"
        for number, axis in enumerate((ir.TX, "ty")):
            if self.k.block[number] > 1:
                yield f"  const {self.index_type} {axis} = threadIdx.{'xy'[number]};"
        yield from self.parts(f"({self.index_type})blockIdx.x", 1)

    def shared_bytes(self) -> int:
        sizes = [0] * len(self.k.parts)
        for local in self.k.locals:
            sizes[local.part] += 0 if local.place else _aligned(local)
        return max(sizes)

    def thread_axes(self, part: ir.Part) -> Iterator[str]:
        self.threads = prod(a.size for a in part.threads)
        number = f"(ty % {self.threads})" if self.threads < self.k.block[1] else "ty"
        if all(a.name != "ty" for a in part.threads):
            yield from self.numbered(part.threads, number)

    def part(self, part: ir.Part, block: str, depth: int) -> list[str]:
        self.steps = dict(cuda_bounds.steps_of(part.instrs, REGISTERS // prod(self.k.block)))
        if self.in_order:
            part = replace(part, instrs=cuda_bounds.to_and_fro(part.instrs))
        return super().part(part, block, depth)

    def axis(self, name: str) -> str:
        along = {ir.TX: 0, "ty": 1}.get(name)
        return "0" if along is not None and self.k.block[along] == 1 else name

    def across_threads(self, name: Name, op: Op, threads: int) -> str:
        dtype = register(name.dtype)
        self.prelude[self.combine(op, dtype)] = None
        self.prelude[ACROSS] = None
        kind = TYPES[dtype.name]
        struct = f"combine_{op.name.lower()}_{dtype.name}"
        return f"across<{struct}, {threads}, {prod(self.k.block)}>(({kind}){name.name})"

    def combine(self, op: Op, dtype: DType) -> str:
        combined = self.unrounded(op, dtype, [("a", ATOM), ("b", ATOM)], 1)[0]
        text = COMBINE.replace("NAME", f"combine_{op.name.lower()}_{dtype.name}")
        return text.replace("TYPE", TYPES[dtype.name]).replace("VALUE", combined)

    def text(self, e: Expr, lanes: int = 1) -> Text:
        """One thread's value; only packs, which are loaded and stored, have lanes."""
        return self.scalar_or_vector(e, 1)

    # ---- memory ----

    def load(self, e: Load, lanes: int) -> Text:
        element = self._element(e.slot, e.position)
        if e.dtype is not self.k.slots[e.slot][1]:  # its bits
            return self.guarded_load(e.valid, (f"bits_as<{TYPES[e.dtype.name]}>({element})", ATOM))
        return self.guarded_load(e.valid, self._value_of(element, e.dtype))

    def _element(self, slot: int, position: Linear) -> str:
        return f"slot{slot}[{self._position(position)}]"

    def _position(self, position: Linear) -> str:
        return self.index(position)[0]

    def _value_of(self, text: str, dtype: DType) -> Text:
        convert = WIDENED.get(dtype.name)
        return (f"{convert}({text})", ATOM) if convert else (text, ATOM)

    def _bits_of(self, text: Text, dtype: DType) -> Text:
        name, widened = NARROWED.get(dtype.name), f"{WIDENED.get(dtype.name)}("
        if dtype is bfloat16 and (lane := _LANE.fullmatch(text[0])):
            return f"{lane[2]}.at[{lane[1]}]", ATOM
        if name and text[1] == ATOM and text[0].startswith(widened):  # as it was
            return text[0][len(widened) : -1], ATOM
        rounds = dtype is bfloat16 and text[1] == ATOM and text[0].startswith("rounded(")
        unrounded = text[0][len("rounded(") : -1] if rounds else text[0]
        return (f"{name}({unrounded})", ATOM) if name else text

    def type_of(self, name: Name) -> str:
        if name.lanes > 1:
            return self.pack(name.dtype, name.lanes)
        return "volatile " * (name in self.waiting) + super().type_of(name)

    def lanes(self, e: Expr) -> int:
        return e.lanes if isinstance(e, (Wide, Name)) else 1

    def wide(self, e: Wide) -> Text:
        kind = self.pack(e.dtype, e.lanes)
        place = f"(const {kind} *)(slot{e.slot} + {wrap(self.index(e.position), 12)})"
        if e.valid and e.dtype.is_half:
            self.prelude[READ_IF] = None
            return f"read_if({self.condition(e.valid)[0]}, {place})", ATOM
        place = f"*{place}"
        return self.guarded_load(e.valid, (place, UNARY), f"{kind}{{}}")

    def part_of(self, e: Part) -> Text:
        if e.dtype is bfloat16 and not e.lane.terms and self.lanes(e.wide) % 2 == 0:
            self.prelude[WIDENED_LANE] = None
            return f"widened<{e.lane.constant}>({self.value(e.wide)})", ATOM
        return self._value_of(f"{self.value(e.wide)}.at[{e.lane}]", e.dtype)

    def put(self, put: ir.Put) -> Iterator[str]:
        rough, self.rough = self.rough, self.rough if put.dtype.is_half else frozenset()
        line = self._put_line(put)
        self.rough = rough
        if put.once and self.k.block[0] > 1:
            line = f"if ({ir.TX} == 0) {line}"
        if self.threads < self.k.block[1]:  # a store in place must be done by one thread only
            line = f"if (ty < {self.threads}) {line}"
        yield self.guarded(put.valid, line)

    def _put_line(self, put: ir.Put) -> str:
        bits = [self._bits_of(self.text(value), put.dtype)[0] for value in put.values]
        if len(bits) > 1:
            kind = self.pack(put.dtype, len(bits))
            if put.dtype is bool_:  # in braces no int becomes one by itself, as a | b is
                bits = [f"bool({b})" for b in bits]
            place = f"slot{put.slot} + {wrap(self.index(put.position), 12)}"
            values = f"{kind}{{{', '.join(bits)}}}"
            if put.some is not None:
                return self._put_some(place, values, put.some)
            return f"*({kind} *)({place}) = {values};"
        place = self._element(put.slot, put.position)
        if put.op is None:
            return f"{place} = {bits[0]};"
        dtype = put.dtype
        self.prelude[self.combine(put.op, register(dtype))] = None
        self.prelude[ATOMIC] = None
        struct = f"combine_{put.op.name.lower()}_{register(dtype).name}"
        return f"atomic<{struct}>(&{place}, {self.text(put.values[0])[0]});"

    def _put_some(self, place: str, values: str, some: Range) -> str:
        self.prelude[PUT_SOME] = None
        ends = (some.index * -1 + end for end in (some.low, some.high))
        numbers = ", ".join(f"({self.index_type})({self.index(end)[0]})" for end in ends)
        return f"put_some({place}, {values}, {numbers});"

    def put_tile(self, put: ir.PutTile) -> Iterator[str]:
        place = self._in_tile(put.tile, put.index)
        text = self.text(put.value)
        if put.op is not None:
            text = self.alu(put.op, put.dtype, [self._value_of(place, put.dtype), text], 1)
        if put.dtype is float32 and put.tile in self.panels:
            self.prelude[FRAGMENTS] = None
            text = f"__uint_as_float(tinyml_tf32({text[0]}))", ATOM
        yield self.guarded(put.valid, f"{place} = {self._bits_of(text, put.dtype)[0]};")

    def stored(self, e: Stored, lanes: int) -> Text:
        return self._value_of(self._in_tile(e.name, e.index), e.dtype)

    def _in_tile(self, tile: str, index: Linear) -> str:
        return f"{tile}[{self._place_in(tile, index)[0]}]"

    def _place_in(self, tile: str, index: Linear) -> Text:
        if tile not in self.panels:
            return self.index(index)
        self.prelude[SWIZZLED] = None
        row = ROW // self.panels[tile].itemsize
        whole = _multiples(index, ROWS * row)  # pieces, which stay as they are
        whole = whole if (index - whole).low >= 0 else whole - whole + whole.constant
        place = f"swizzled<{row}>({self.index(index - whole)[0]})", ATOM
        moved = whole.terms or whole.constant
        return (f"{place[0]} + {wrap(self.index(whole), 12)}", 11) if moved else place

    def held_by_lanes(self, e: Held, lanes: int) -> Text:
        if isinstance(e, Aside):
            return self.set_aside(e)
        if isinstance(e, Exchanged):
            self.prelude[FRAGMENTS] = None
            (values,) = e.sources
            held = self._packed(values) if isinstance(values, Bundle) else self.value(values)
            return f"tinyml_exchanged({held}, {self.axis(e.lane.name)})", ATOM
        if isinstance(e, Neighbours):
            self.prelude[NEIGHBOURS] = None
            return f"neighbours<{e.first}, {e.lanes}>({self.value(e.sources[0])})", ATOM
        if not isinstance(e, Piece):
            return super().held_by_lanes(e, lanes)
        place = f"{e.name} + {wrap(self._place_in(e.name, e.index), 12)}"
        return f"*(const {self.pack(e.dtype, e.lanes)} *)({place})", UNARY

    def _packed(self, e: Bundle) -> str:
        bits = (self._bits_of(self.text(v), e.dtype)[0] for v in e.values)
        return f"{self.pack(e.dtype, e.lanes)}{{{', '.join(bits)}}}"

    # ---- matrix products ----

    def instr(self, instr: ir.Instr) -> Iterator[str]:
        match instr:
            case ir.Begin() if id(instr) in self.steps:
                *before, loop = super().instr(instr)
                yield from (*before, f"#pragma unroll {self.steps[id(instr)]}", loop)
            case ir.Let(name, Fragment() | Bundle() as held):
                self.prelude[FRAGMENTS] = self.prelude[FRAGMENT] = None
                yield f"const fragment {name.name} = {self._held(held)};"
            case ir.Declare(name, value) if name.lanes > 1:  # sums, or what will be multiplied
                yield f"{_kind_of(value) or self.type_of(name)} {name.name} = {{}};"
            case ir.Update(name, Op.ADD, Product(a=a, b=b) as e) if not e.of_warpgroup:
                self.prelude[product_of(a.dtype, self.target.capability)] = None
                operands = ", ".join([name.name, self.value(a), self.value(b)])
                yield f"add_product_{a.dtype.name}({operands});"
            case ir.Update(name, Op.MUL, Bundle(values=values)):
                for n, value in enumerate(values):
                    yield f"{name.name}.at[{n}] *= {self.value(value)};"
            case ir.Copy(tile=tile, slot=slot, valid=valid, when=when):
                self.prelude[FRAGMENTS] = None
                nbytes = instr.lanes * instr.dtype.itemsize
                kind, few = ("16", "") if nbytes == 16 else ("_few", f"<{nbytes}>")
                places = f"{tile} + {wrap(self._place_in(tile, instr.index), 12)}"
                places += f", slot{slot} + {wrap(self.index(instr.position), 12)}"
                condition = f", {self.condition(valid)[0]}" if valid else ""
                ending = "_or_zero" if valid else ""
                if instr.left is not None:
                    left = self.index(instr.left * instr.dtype.itemsize)[0]
                    condition, ending = f"{condition or ', true'}, {left}", "_begin"
                yield self.guarded(
                    when, f"tinyml_cp_async{kind}{ending}{few}({places}{condition});"
                )
            case ir.Commit():
                self.prelude[FRAGMENTS] = None
                yield "tinyml_cp_async_commit();"
            case ir.Together():
                yield from self.together(instr)
            case ir.Await(groups):
                yield f"tinyml_cp_async_wait<{groups}>();"
            case _:
                yield from super().instr(instr)

    def _held(self, e: Fragment | Bundle) -> str:
        """What a lane holds of a matrix: 16 bytes of a row of its tile, or values it gathered."""
        if isinstance(e, Fragment):
            place = f"{e.name} + {wrap(self.index(e.index), 12)}"
            if e.dtype is float32:
                self.prelude[FRAGMENT_TF32] = None
                return f"load_fragment_tf32({place})"
            return f"load_fragment<{'true' if e.crosswise else 'false'}>({place})"
        if e.dtype is float32:
            return f"{{{', '.join(f'tinyml_tf32({self.value(v)})' for v in e.values)}}}"
        bits = [self._bits_of(self.text(v), e.dtype)[0] for v in e.values]
        pairs = zip(bits[::2], bits[1::2], strict=True)
        kind = self.pack(e.dtype, 2)
        return f"{{{', '.join(f'bits_as<unsigned>({kind}{{{a}, {b}}})' for a, b in pairs)}}}"

    def looked(self, value: Expr, size: int) -> Text:
        self.prelude[LOOK] = None
        return f"look<{self.index_type}>({self.value(value)}, {size})", ATOM

    # ---- indices ----

    def index(self, i: Linear, but: Axis | None = None, more: int = 0) -> Text:
        self.reach = max(self.reach, reach(i) + abs(more))
        return super().index(i, but, more)

    def within(self, v: Range) -> Text:
        """low <= index <= high in one comparison: what is too low is very large without a sign."""
        if v.low <= v.index.low or v.high >= v.index.high:
            return super().within(v)
        unsigned = "unsigned long long" if self.index_type == "long long" else "unsigned"
        return f"({unsigned})({self.index(v.index - v.low)[0]}) <= {v.high - v.low}", 9

    # ---- values ----

    def rounded(self, text: Text, dtype: DType, lanes: int) -> Text:
        self.prelude[HEADERS[dtype.name]] = None
        if dtype is not bfloat16:
            return super().rounded(text, dtype, lanes)
        self.prelude[ROUND] = None
        return f"rounded({text[0]})", ATOM

    def unrounded(self, op: Op, dtype: DType, operands: list[Text], lanes: int) -> Text:
        if dtype.kind == "i" and op in (Op.NEG, Op.ADD, Op.MUL):  # wraps around only when unsigned
            kind = "unsigned long long" if dtype.itemsize == 8 else "unsigned"
            unsigned: list[Text] = [(f"({kind}){wrap(o, UNARY)}", UNARY) for o in operands]
            negative = op is Op.NEG
            text = f"0u - {unsigned[0][0]}" if negative else binary(SIGN[op], *unsigned)[0]
            return self.own_size(text, UNARY, dtype, lanes)
        if dtype is float32 and op in self.rough:
            self.prelude[FRAGMENTS] = None
            return f"rough_{op.name.lower()}({', '.join(o[0] for o in operands)})", ATOM
        return super().unrounded(op, dtype, operands, lanes)

    def own_size(self, text: str, strength: int, dtype: DType, lanes: int) -> Text:
        if dtype.kind == "i":
            return f"({TYPES[dtype.name]})({text})", UNARY
        return super().own_size(text, strength, dtype, lanes)

    def op(self, e: Alu, lanes: int) -> Text:
        """A power of a sum: what is the same for many is multiplied once, a number with others."""
        a = e.operands[0]
        if not (e.op in self.rough and e.op is Op.EXP and isinstance(a, Alu)):
            return super().op(e, lanes)
        scaled, other = (*a.operands, a)[:2]
        found = multiple(scaled)
        # of a mask's -1e9, which is added, exactly 0 is to be left
        if (a.op, a.dtype) != _ADDED or found is None:
            return super().op(e, lanes)
        self.prelude[FRAGMENTS] = None
        arguments = map(self.value, (found[0], other, found[1]))
        return f"rough_exp_of_sum({', '.join(arguments)})", ATOM

    def call(self, op: Op, dtype: DType, operands: list[Text], lanes: int) -> Text:
        arguments = ", ".join(o[0] for o in operands)
        if op in LIBM:
            return f"{LIBM[op]}{'f' if dtype is float32 else ''}({arguments})", ATOM
        kind = TYPES[dtype.name]
        if op in ON_LANES:
            self.prelude.update(dict.fromkeys(lane_functions(op, dtype)))
            return f"{op.name.lower()}_{kind}({arguments})", ATOM
        name = f"{op.name.lower()}_{dtype.name}"
        self.prelude[function(op, dtype, kind, name)] = None
        return f"{name}({arguments})", ATOM

    def require(self, fault: Fault, value: Expr, holds: Expr, lanes: int) -> Text:
        self.prelude[REQUIRE] = None
        kind = TYPES[register(value.dtype).name]
        given = f"{self.value(value)}, {self.value(holds)}"
        return f"require<{kind}>({given}, {fault.code:#x}, fault)", ATOM

    def bitcast(self, value: Text, source: DType, target: DType, lanes: int) -> Text:
        bits = self._bits_of(value, source)[0]  # where short, an int in C++ if it is computed
        kinds = f"{TYPES[target.name]}, {TYPES[source.name]}"
        return self._value_of(f"bits_as<{kinds}>({bits})", target)


def _multiples(index: Linear, size: int) -> Linear:
    """What of an index is a multiple of a size, whatever its axes are."""
    terms = tuple((atom, factor) for atom, factor in index.terms if factor % size == 0)
    return Linear(terms, index.constant - index.constant % size)


def _alignment(local: ir.Local) -> int:
    return ROWS * ROW if local.panels else 16


def _aligned(local: ir.Local) -> int:
    alignment = _alignment(local)
    return -(-local.size * local.dtype.itemsize // alignment) * alignment


def _rough(instrs: Sequence[ir.Instr]) -> frozenset[Op]:
    """What need not be as good as a float: where halves are made for products, all of `ROUGH`.

    Where halves are made of products, and nothing else, logistics: what follows a quotient or a
    power there may be a step (`floor`), or a difference that leaves little of it.
    """
    if any(isinstance(i, ir.Let) and makes_halves(i.value) for i in instrs):
        return ROUGH
    sums = (i.value for i in instrs if isinstance(i, ir.Update))
    multiplies = any(isinstance(value, Product) and value.a.dtype.is_half for value in sums)
    halves = multiplies and all(i.dtype.is_half for i in instrs if isinstance(i, ir.Put))
    return frozenset((Op.LOGISTIC,)) if halves else frozenset()


def _kind_of(declared: Expr) -> str:
    return "fragment" if isinstance(declared, Bundle) else ""
