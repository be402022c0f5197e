"""Values in C: types, vectors, and what each op says.

A vector of bools is a vector of int32 that are 0 or -1, whatever was compared; or of bytes, where
nothing else is computed.
"""

from __future__ import annotations

from functools import lru_cache

from tinyml.codegen import linear as ir
from tinyml.codegen.bounds import range_asked
from tinyml.codegen.expr import Alu, Expr, Load, Name, const, parts_of
from tinyml.codegen.linear import LinearKernel
from tinyml.codegen.narrow import is_narrow
from tinyml.codegen.text.c_choices import (
    blend,
    blend_either,
    choose,
    choose_number,
    extreme,
    own_mask,
)
from tinyml.codegen.text.c_convert import (
    WHOLE,
    converting,
    long_as_double,
    long_as_float,
    ways,
    whole,
    whole_long,
)
from tinyml.codegen.text.c_divide import divided, low_product
from tinyml.codegen.text.c_places import (
    NOTE,
    REQUIRE_RANGE,
    require,
    require_lanes,
    require_range,
)
from tinyml.codegen.text.c_polynomials import ON_LANES, polynomial
from tinyml.codegen.text.c_text import (
    HALF,
    LANE_BODIES,
    MASKED,
    function,
    half_lanes,
    lane_body,
    vector_type,
)
from tinyml.codegen.text.render import LIBM, PLAIN, Renderer, register
from tinyml.codegen.text.strength import ATOM, UNARY, Text, wrap
from tinyml.codegen.text.vector_parts import FMA_ALONE, lane_function
from tinyml.codegen.two_rows import two_rows
from tinyml.dtype import (
    ALL,
    DType,
    bfloat16,
    bool_,
    by_name,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
    uint32,
    uint64,
)
from tinyml.faults import Fault
from tinyml.frozen import cached_property
from tinyml.ops import Op

TYPES = {**PLAIN, "bool": "_Bool", "float16": "unsigned short", "bfloat16": "unsigned short"}
SHORT = {d.name: "u16" if d.is_half else f"{d.kind}{d.bitsize}" for d in ALL} | {"bool": "i32"}
BY = {int32: "", int8: "_by_bytes"}  # what names of functions of masks end in: `CValues.truths`
EXACT = frozenset({Op.ABS, Op.SQRT, Op.TRUNC, Op.FMA, Op.MOD})  # libm's in lanes too
POLYNOMIALS = {
    dtype: bodies.keys() - EXACT for dtype, bodies in ON_LANES.items()
}  # of one element, too


def _suffix(dtype: DType) -> str:
    """What C's math functions end in."""
    return "f" if dtype is float32 else ""


@lru_cache
def _vector(dtype: DType, lanes: int) -> tuple[str, str]:
    """A vector type in registers, and its definition."""
    kept = register(dtype)
    name = f"{SHORT[kept.name]}x{lanes}"
    return name, vector_type(name, TYPES[kept.name], kept.itemsize, lanes)


@lru_cache
def _memory_vector(dtype: DType, lanes: int) -> tuple[str, str]:
    """A vector type in memory, and its definition."""
    short = {"bool": "u8", "float16": "u16", "bfloat16": "u16"}.get(dtype.name)
    name = f"{short or SHORT[dtype.name]}x{lanes}"
    kind = "unsigned char" if dtype is bool_ else TYPES[dtype.name]
    return name, vector_type(name, kind, dtype.itemsize, lanes)


def _toward(source: DType, target: DType) -> DType:
    """The next step of a conversion: to integers of twice or half the size, or to the target."""
    if source.is_float or (target.is_float and source.itemsize >= 4):
        return target
    goal = int32 if target.is_float else target
    size = min(2 * source.itemsize, max(source.itemsize // 2, goal.itemsize))
    sign = "u" if source.kind == "u" else ""
    return goal if size == goal.itemsize else by_name(f"{sign}int{8 * size}")


class CValues(Renderer):
    """Types and ops in C, on scalars and on vectors."""

    types = TYPES
    whole_number = WHOLE
    nan, infinity = (
        ('__builtin_nan("")', '__builtin_nanf("")'),
        ("__builtin_inf()", "__builtin_inff()"),
    )

    def __init__(self, k: LinearKernel) -> None:
        super().__init__(k)
        self._functions: dict[tuple[Op, DType, int, int], str] = {}  # those of the prelude

    @cached_property
    def truths(self) -> DType:
        """What bools are in lanes."""
        instrs = [i for part in self.k.parts for i in part.instrs]
        simple = all(type(i) in (ir.Begin, ir.End, ir.Let, ir.Put, ir.Fetch) for i in instrs)
        plain = simple and not any(i.valid for i in instrs if type(i) is ir.Put)
        whole = min([a.size for a in self.k.lanes], default=0) >= 16  # a register is full
        narrow = whole and plain and is_narrow(self.k.slots, self.values)
        return int8 if narrow and not any(map(self._is_joined, self.values)) else int32

    def _is_joined(self, e: Expr) -> bool:
        """Whether lanes are loaded as a choice of two rows, by a condition on places."""
        return type(e) is Load and any(two_rows(e, lane) for lane in e.free & self.k.lanes)

    @cached_property
    def values(self) -> list[Expr]:
        """All that instructions compute with."""
        return parts_of(e for part in self.k.parts for i in part.instrs for e in ir.values_of(i))

    def size_of(self, dtype: DType) -> int:
        """Bytes of an element in a vector register."""
        return (self.truths if dtype is bool_ else register(dtype)).itemsize

    def is_split(self, lanes: int) -> bool:
        """Whether no register has a mask of so many lanes."""
        return lanes * self.truths.itemsize > MASKED

    def vector(self, dtype: DType, lanes: int) -> str:
        """The name of a vector type, defined in the prelude."""
        name, definition = _vector(self.truths if dtype is bool_ else dtype, lanes)
        self.prelude[definition] = None
        return name

    def _memory_vector(self, dtype: DType, lanes: int) -> str:
        """The vector type of elements as memory holds them."""
        name, definition = _memory_vector(dtype, lanes)
        self.prelude[definition] = None
        return name

    def type_of(self, name: Name) -> str:
        if name.lanes > 1:
            return self.vector(name.dtype, name.lanes)
        return super().type_of(name)

    def splat(self, text: Text, dtype: DType, lanes: int) -> Text:
        kind = self.vector(dtype, lanes)
        if dtype is bool_:
            narrow = "" if self.truths is int32 else "(signed char)"
            return f"{narrow}-(int){wrap(text, UNARY)} - ({kind}){{0}}", 11
        if register(dtype).itemsize < 4:
            text = f"({TYPES[dtype.name]}){wrap(text, UNARY)}", UNARY
        return f"{wrap(text, 11)} - ({kind}){{0}}", 11  # x - 0 is x, also for -0.0

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
            return f"-{self.converted(text[0], uint8, self.truths, lanes)}", UNARY
        if dtype.is_half:
            return self._half_lanes(dtype, "value", text, lanes)
        return text

    def _to_memory(self, text: Text, dtype: DType, lanes: int) -> Text:
        if dtype is bool_:
            return self.converted(f"-({text[0]})", self.truths, uint8, lanes), ATOM
        if dtype.is_half:
            return self._half_lanes(dtype, "bits", text, lanes)
        return text

    def _half_lanes(self, dtype: DType, what: str, text: Text, lanes: int) -> Text:
        """`what` is made of halves on lanes; bits are made of values that are rounded."""
        if dtype is float16:
            self.prelude[HALF[dtype.name]] = None
            if what == "rounded":  # which is made of the others
                self._half_lanes(
                    dtype, "bits", self._half_lanes(dtype, "value", text, lanes), lanes
                )
        half, wide = self._memory_vector(dtype, lanes), self.vector(float32, lanes)
        bits = self.vector(uint32, lanes) if dtype is bfloat16 else ""
        rounded = f"{dtype.name}_rounded_x{lanes}("
        if what == "bits" and text[1] == ATOM and text[0].startswith(rounded):  # by bits, too
            text = text[0][len(rounded) : -1], ATOM
            what = "cut" if bits else what
        for made in ("upper", what) if what in ("bits", "cut") and bits else (what,):
            self.prelude[half_lanes(dtype.name, made, half, wide, bits, lanes)] = None
        return f"{dtype.name}_{what}_x{lanes}({text[0]})", ATOM

    def where(self, mask: Text, value: Text, other: Text, dtype: DType, lanes: int) -> Text:
        if lanes == 1:
            return super().where(mask, value, other, dtype, lanes)
        return self.blended(mask, value, other, dtype, lanes)

    def op(self, e: Alu, lanes: int) -> Text:
        size, mask = self.size_of(e.dtype), e.operands[0]
        apart = lanes > 1 and e.op is Op.WHERE and size != self.truths.itemsize
        if apart and (own := own_mask(self, mask, size, lanes)):
            value, other = (self.text(o, lanes) for o in e.operands[1:])
            return self.blended(own, value, other, e.dtype, lanes, own=True)
        return super().op(e, lanes)

    def blended(
        self,
        mask: Text,
        value: Text,
        other: Text,
        dtype: DType,
        lanes: int,
        known: bool = False,
        own: bool = False,
        fixed: bool = False,
    ) -> Text:
        """A choice lane by lane; whether the mask is `known` when the text is compiled, and a value
        (`fixed`), and whether the mask has its `own` size, not that of truths."""
        kind = self.vector(dtype, lanes)
        bits = self._mask_type(dtype, lanes)
        some = self.value(const(0, dtype), lanes) not in (value[0], other[0])  # 0 is one step
        by = f"{'_known' * known}{'_own' * own}{BY[self.truths]}"
        name = f"blend_{kind}{by}{'_fixed' * (fixed and some)}{'' if some else '_or_0'}"
        alike = not (own or (known and self.is_split(lanes)))
        masks = self.vector(bool_, lanes) if alike else bits
        held = self.mask_bits(self.size_of(dtype), lanes) if alike else "m"
        self.prelude[blend(name, kind, bits, masks, held, known, some, fixed)] = None
        return f"{name}({mask[0]}, {value[0]}, {other[0]})", ATOM

    def chosen(
        self, mask: Text, held: int, value: Text, other: Text, dtype: DType, lanes: int, fixed: bool
    ) -> Text:
        """A choice by a mask that is known when the text is compiled, of two values but 0.

        Where one of these is a single value, `held` are the mask's bits, else 0.
        """
        if self.size_of(dtype) * lanes > MASKED // 2:
            return self.blended(mask, value, other, dtype, lanes, True, fixed=fixed)
        kind, masks = self.vector(dtype, lanes), self.vector(bool_, lanes)
        bits, own = self._mask_type(dtype, lanes), self.mask_bits(self.size_of(dtype), lanes)
        if self.is_split(lanes):
            masks, own = bits, "m"
        self.prelude[choose(f"chosen_{kind}", kind, bits, masks, own, lanes)] = None
        if not held:
            return f"chosen_{kind}({mask[0]}, {value[0]}, {other[0]})", ATOM
        self.prelude[choose_number(f"number_{kind}", f"chosen_{kind}", kind)] = None
        given = ", ".join(f"({text})" for text, _ in (mask, value, other))  # of a macro
        return f"number_{kind}({given}, {held})", ATOM

    def blended_either(self, operands: list[Text], dtype: DType, lanes: int) -> Text:
        """A choice between two values by two masks: the first where either is set."""
        kind, (mask, _, value, other) = self.vector(dtype, lanes), operands
        blend = self.blended(mask, value, other, dtype, lanes)[0].partition("(")[0]
        name = f"either_{kind}{BY[self.truths]}"
        self.prelude[blend_either(name, blend, kind, self.vector(bool_, lanes))] = None
        return f"{name}({', '.join(text for text, _ in operands)})", ATOM

    def _mask_type(self, dtype: DType, lanes: int) -> str:
        return self.bits(self.size_of(dtype), lanes)

    def bits(self, size: int, lanes: int) -> str:
        """The vector type of integers of so many bytes."""
        return self._memory_vector(by_name(f"int{8 * size}"), lanes)

    def rounded(self, text: Text, dtype: DType, lanes: int) -> Text:
        if lanes == 1:
            return super().rounded(text, dtype, lanes)
        return self._half_lanes(dtype, "rounded", text, lanes)

    def compare(self, sign: str, dtype: DType, operands: list[Text], lanes: int) -> Text:
        if lanes > 1 and dtype is bool_:
            operands = operands[::-1]  # true is -1 in a lane, and below false
        text = super().compare(sign, dtype, operands, lanes)
        if lanes > 1 and dtype is not bool_ and dtype.itemsize != self.truths.itemsize:
            bits = by_name(f"int{dtype.bitsize}")
            return self.converted(text[0], bits, self.truths, lanes), ATOM
        return text

    def call(self, op: Op, dtype: DType, operands: list[Text], lanes: int) -> Text:
        arguments = ", ".join(o[0] for o in operands)
        if lanes == 1 and op in POLYNOMIALS.get(dtype, ()):
            wide = self.call(op, dtype, [self.splat(o, dtype, 4) for o in operands], 4)
            return f"{wide[0]}[0]", ATOM  # the same bits as in a vector
        if op in LIBM and lanes == 1 and not (op is Op.FMA and dtype is float32):
            return f"__builtin_{LIBM[op]}{_suffix(dtype)}({arguments})", ATOM
        key = op, dtype, len(operands), lanes
        known = self._functions.get(key) or self._functions.setdefault(key, self._function(*key))
        return f"{known}({arguments})", ATOM

    def divided(self, op: Op, value: Text, by: int, lanes: int) -> Text:
        """A quotient or remainder of int64 by a number."""
        signed, unsigned = self.vector(int64, lanes), self.vector(uint64, lanes)
        self.prelude[low_product(signed, unsigned, 8 * lanes)] = None
        name = f"{op.name.lower()}_{signed}_by{by}"
        self.prelude[divided(name, op, signed, unsigned, by)] = None
        return f"{name}({value[0]})", ATOM

    def _function(self, op: Op, dtype: DType, arity: int, lanes: int) -> str:
        """The name of a function, defined in the prelude."""
        name = f"{op.name.lower()}_{SHORT[dtype.name]}"
        vector = self.vector(dtype, lanes) if lanes > 1 else ""
        if op is Op.FMA and dtype is float32 and not vector:
            self._function(op, dtype, arity, 4)
            self.prelude[FMA_ALONE] = None
            return name
        if vector and op in ON_LANES.get(dtype, ()):
            integer = self._mask_type(dtype, lanes)
            pieces = polynomial(op, dtype, vector, integer, lanes)
            self.prelude.update(dict.fromkeys(pieces))
            return f"{op.name.lower()}_{vector}"
        if op in (Op.MAX, Op.MIN) and vector:
            bits = self._mask_type(dtype, lanes)
            self.prelude[extreme(f"{name}_x{lanes}", op, vector, bits, dtype.is_float)] = None
            return f"{name}_x{lanes}"
        if op in LANE_BODIES and vector and dtype.is_int:
            self.prelude[lane_body(op, dtype.kind, self._lane_names(name, dtype, lanes))] = None
            return f"{name}_x{lanes}"
        call = f"__builtin_{LIBM[op]}" if op in LIBM else name
        if op not in LIBM:
            kind = "f" if dtype.is_float else dtype.kind
            types = {"TYPE": TYPES[dtype.name], "BITS": str(8 * dtype.itemsize)}
            self.prelude[function(op, kind, {**types, "NAME": name, "SUFFIX": _suffix(dtype)})] = (
                None
            )
        if not vector:
            return call
        text = lane_function(f"{name}_x{lanes}", call, vector, [vector] * arity, lanes)
        self.prelude[text] = None
        return f"{name}_x{lanes}"

    def _lane_names(self, name: str, dtype: DType, lanes: int) -> dict[str, str]:
        unsigned = by_name(f"uint{dtype.bitsize}")
        return {
            "UNSIGNED": self.vector(unsigned, lanes),
            "MASK": self._mask_type(dtype, lanes),
            "TYPE": self.vector(dtype, lanes),
            "BITS": str(dtype.bitsize),
            "NAME": f"{name}_x{lanes}",
        }

    def require(self, fault: Fault, value: Expr, holds: Expr, lanes: int) -> Text:
        self.prelude[NOTE] = None
        kept = register(value.dtype)
        name = f"require_{kept.name}" + (f"x{lanes}{BY[self.truths]}" if lanes > 1 else "")
        between = range_asked(value, holds)
        if between is not None:
            return self._require_range(fault, value, between, lanes)
        if lanes > 1:
            mask = self.vector(bool_, lanes)
            text = require_lanes(name, self.vector(kept, lanes), mask, lanes)
        else:
            text = require(name, TYPES[kept.name])
        self.prelude[text] = None
        given = f"{self.value(value, lanes)}, {self.value(holds, lanes)}"
        return f"{name}({given}, {fault.code:#x}, fault)", ATOM

    def _require_range(
        self, fault: Fault, value: Expr, between: tuple[int, int], lanes: int
    ) -> Text:
        """By one comparison, where clang makes two; within the range after a fault, too."""
        dtype = value.dtype
        element, name = TYPES[dtype.name], f"require_range_{dtype.name}" + f"x{lanes}" * (lanes > 1)
        if lanes > 1:
            kind = self.vector(dtype, lanes)
            unsigned = self._memory_vector(by_name(f"u{dtype.name}"), lanes)
            text = require_range(name, kind, unsigned, element, lanes, dtype.itemsize)
        else:
            text = REQUIRE_RANGE.replace("NAME", name).replace("KIND", element)
        self.prelude[text] = None
        ends = ", ".join(self.number(end, dtype)[0] for end in between)
        return f"{name}({self.value(value, lanes)}, {ends}, {fault.code:#x}, fault)", ATOM

    def cast(self, value: Text, source: DType, target: DType, lanes: int) -> Text:
        if lanes == 1:
            return super().cast(value, source, target, lanes)
        if target is bool_:
            return self._truth(value, source, lanes)
        text = self._cast_lanes(value, source, target, lanes)
        return self.rounded(text, target, lanes) if target.is_half else text

    def _truth(self, value: Text, source: DType, lanes: int) -> Text:
        test = f"{wrap(value, 9)} != ({self.vector(source, lanes)}){{0}}"
        if source is bool_ or register(source).itemsize == self.truths.itemsize:
            return test, 8
        bits = by_name(f"int{source.bitsize}")
        return self.converted(test, bits, self.truths, lanes), ATOM

    def _cast_lanes(self, value: Text, source: DType, target: DType, lanes: int) -> Text:
        if source is bool_ and target.is_float:  # one step, where -m and a conversion are three
            one, zero = (self.value(const(n, target), lanes) for n in (1, 0))
            return self.blended(value, (one, 11), (zero, 11), target, lanes)
        if source is bool_:
            value, source = (f"-({value[0]})", UNARY), self.truths
        if register(source) is register(target):
            return value
        source, target, text = register(source), register(target), value[0]
        if source is float32 and target.is_int and target.itemsize < 8:
            narrow = target.itemsize < 4
            name = f"{'low_' if narrow else ''}whole_x{lanes}"
            kinds = self.vector(source, lanes), self.vector(int32, lanes)
            self.prelude[whole(name, *kinds, lanes, narrow)] = None
            text, source = f"{name}({text})", int32
        elif source.is_float and target.is_int and target is not uint64:
            text = self.converted(text, source, float64, lanes)
            kinds = self.vector(float64, lanes), self.vector(int64, lanes)
            self.prelude[whole_long(*kinds, lanes)] = None
            text, source = f"whole_long_x{lanes}({text})", int64
        return self.converted(text, source, target, lanes), ATOM

    def converted(self, text: str, source: DType, target: DType, lanes: int) -> str:
        """Lanes in another dtype, by steps that compilers have instructions for."""
        goal = int32 if target.is_float and source.itemsize < 4 else target
        kind, wanted = SHORT[source.name], SHORT[goal.name]
        if source is target:
            return text
        if source.itemsize == goal.itemsize == 1:
            return f"(({self._memory_vector(goal, lanes)})({text}))"
        found = ways(kind, wanted, lanes)
        if not found:
            goal = _toward(source, target)
            made = self._by_steps(text, source, goal, lanes)
            return self.converted(made, goal, target, lanes)
        name = f"{kind}_as_{wanted}_x{lanes}"
        sides = [(self._memory_vector(d, lanes), d.itemsize * lanes) for d in (source, goal)]
        plain = self._by_steps("a", source, goal, lanes)
        self.prelude[converting(found, name, sides[0], sides[1], plain)] = None
        return self.converted(f"{name}({text})", goal, target, lanes)

    def _by_steps(self, text: str, source: DType, target: DType, lanes: int) -> str:
        while source is not target:
            before, source = source, _toward(source, target)
            kind = self._memory_vector(source, lanes)
            wide = before.is_int and before.itemsize == 8
            if wide and (source is float64 or (source is float32 and lanes == 4)):
                text = self._of_longs(text, before, source, lanes)
            else:
                text = f"__builtin_convertvector({text}, {kind})"
        return text

    def _of_longs(self, text: str, source: DType, target: DType, lanes: int) -> str:
        name, signed = f"{SHORT[source.name]}_as_{SHORT[target.name]}_x{lanes}", source.kind == "i"
        kind, wanted = self._memory_vector(source, lanes), self._memory_vector(target, lanes)
        make, through = (long_as_double, uint64) if target is float64 else (long_as_float, float64)
        self.prelude[make(name, kind, wanted, self._memory_vector(through, lanes), signed)] = None
        return f"{name}({text})"

    def mask_bits(self, size: int, lanes: int) -> str:
        """The mask m in integers of another size."""
        return self.converted("m", self.truths, by_name(f"int{8 * size}"), lanes)

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
