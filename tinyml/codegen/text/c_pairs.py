"""Pairs of bfloat16 in C: in one access, put together, and multiplied by one instruction."""

from __future__ import annotations

from functools import lru_cache

from tinyml.codegen.expr import Expr, Held, Load, Name
from tinyml.codegen.pairs import Dot, Pair
from tinyml.codegen.text.c_lanes import CLanes
from tinyml.codegen.text.strength import ATOM, UNARY, Text
from tinyml.codegen.text.vector_parts import filled
from tinyml.dtype import float32, uint32
from tinyml.ops import Op

# where halves may begin
_ANY = "typedef BITS pair_xLANES __attribute__((aligned(2), may_alias));"
_PAIRED = """static inline BITS paired_xLANES(FLOATS low, FLOATS high) {
  return (BITS)low >> 16 | ((BITS)high & 0xffff0000);
}"""
_ONE_PAIRED = """static inline unsigned paired_x1(float low, float high) {
  const union { float f; unsigned u; } a = {low}, b = {high};
  return a.u >> 16 | (b.u & 0xffff0000);
}"""
# The instruction has a name of its own in every version of a compiler. It takes what is denormal
# for 0, and rounds as all others do.
_DOT = """static inline FLOATS dot_xLANES(FLOATS sum, BITS a, BITS b) {
#if PRESENT
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#else
  sum += (FLOATS)(a & 0xffff0000) * (FLOATS)(b & 0xffff0000);
  return sum + (FLOATS)(a << 16) * (FLOATS)(b << 16);
#endif
}"""
INSTRUCTIONS = (4, 8, 16)  # how many lanes there are some for


class CPairs(CLanes):
    """What there is to say of pairs."""

    def held_by_lanes(self, e: Held, lanes: int) -> Text:
        match e:
            case Pair(sources=(low, high)):
                self.prelude[self._marked(_PAIRED, lanes) if lanes > 1 else _ONE_PAIRED] = None
                return f"paired_x{lanes}({self.value(low, lanes)}, {self.value(high, lanes)})", ATOM
            case Dot():
                width = _width(lanes)
                zero = self.splat(("0.0f", ATOM), float32, width)
                return _first(self._dot(zero, e, width), lanes)
        return super().held_by_lanes(e, lanes)

    def update(self, name: Name, op: Op, value: Expr) -> str:
        if not (isinstance(value, Dot) and op is Op.ADD):
            return super().update(name, op, value)
        width = _width(name.lanes)
        made = self._dot(self.text(name, width), value, width)
        return f"{name.name} = {_first(made, name.lanes)[0]};"

    def is_pair(self, e: Load) -> bool:
        """Whether a load takes two elements of its slot."""
        return e.dtype.itemsize > self.k.slots[e.slot][1].itemsize

    def pairs(self, place: str, lanes: int) -> Text:
        """Pairs side by side."""
        self.prelude[self._marked(_ANY, lanes)] = None
        return f"*(const pair_x{lanes} *)({place})", UNARY

    def _dot(self, start: Text, e: Dot, lanes: int) -> str:
        self.prelude[self._marked(_DOT, lanes)] = None
        a, b = (self.value(s, lanes) for s in e.sources)
        return f"dot_x{lanes}({start[0]}, {a}, {b})"

    def _marked(self, text: str, lanes: int) -> str:
        floats, bits = (self.vector(t, lanes) if lanes > 1 else "" for t in (float32, uint32))
        return _filled(text, lanes, floats, bits or "unsigned")


@lru_cache
def _filled(text: str, lanes: int, floats: str, bits: str) -> str:
    present = "defined(__AVX512BF16__) && defined(__AVX512VL__)" if lanes in INSTRUCTIONS else "0"
    marks = {"PRESENT": present, "LANES": str(lanes), "FLOATS": floats, "BITS": bits}
    return filled(text, marks)


def _width(lanes: int) -> int:
    """How many lanes are computed with: one element goes through the same instruction."""
    return lanes if lanes > 1 else INSTRUCTIONS[0]


def _first(made: str, lanes: int) -> Text:
    return (made, ATOM) if lanes > 1 else (f"{made}[0]", ATOM)
