"""int64 divided by a number on lanes, in C: the upper half of a product, made of four products.

Compilers take each number by itself, as no processor has that of lanes.
"""

from __future__ import annotations

from functools import lru_cache

from tinyml.codegen.text.vector_parts import filled
from tinyml.dtype import DType, int64
from tinyml.ops import Op

# by bytes of a vector: the macro that says that gcc has it, and what it calls it
_PRODUCTS = {
    16: ("__SSE2__", "__builtin_ia32_pmuludq128(LOW(a), LOW(b))"),
    32: ("__AVX2__", "__builtin_ia32_pmuludq256(LOW(a), LOW(b))"),
    64: ("__AVX512F__", "__builtin_ia32_pmuludq512_mask(LOW(a), LOW(b), (SIGNED){0}, -1)"),
}
_PRODUCT = """static inline KIND low_product_KIND(KIND a, KIND b) {
#if defined(MACRO) && !defined(__clang__)
  return (KIND)FOUND;
#else
  return (a & 0xffffffff) * (b & 0xffffffff);
#endif
}"""
# of what is below 2**63; a quotient below 0 is ~(that of the magnitude less 1)
_DIVIDED = """static inline SIGNED NAME(SIGNED a) {
  const SIGNED minus = a >> 63;
  const KIND low = LESSull - (KIND){0}, high = MOREull - (KIND){0};
  const KIND x = (KIND)(a ^ minus), y = x >> 32;
  const KIND part = low_product_KIND(y, low) + (low_product_KIND(x, low) >> 32);
  const KIND rest = low_product_KIND(x, high) + (part & 0xffffffff);
  const KIND all = low_product_KIND(y, high) + (part >> 32) + (rest >> 32);
  const KIND q = all >> MOVED;
  return MADE;
}"""
_QUOTIENT = "(SIGNED)q ^ minus"
_REMAINDER = f"a - ({_QUOTIENT}) * BYll"
# r or BY - 1 - r, where r is what the magnitude leaves, of which its lower half tells
_LEFT = "(SIGNED)(x - low_product_KIND(q, BYull - (KIND){0})) & 0xffffffff"
_SHORT = f"(({_LEFT}) ^ minus) + (minus & BYll)"


def is_product(op: Op, dtype: DType, by: float) -> bool:
    """Whether numbers are divided so: by others, one shift or no op is enough."""
    whole = op in (Op.IDIV, Op.MOD) and dtype is int64
    return whole and by > 2 and int(by) & (int(by) - 1) != 0


@lru_cache
def low_product(signed: str, unsigned: str, size: int) -> str:
    """The products of the lower halves of int64."""
    macro, found = _PRODUCTS.get(size, ("NEVER", ""))
    low = f"(int __attribute__((vector_size({size}))))"
    marks = {"KIND": unsigned, "SIGNED": signed, "MACRO": macro, "LOW": low}
    return filled(_PRODUCT, {"FOUND": filled(found, marks), **marks})


def divided(name: str, op: Op, signed: str, unsigned: str, by: int) -> str:
    """A quotient or remainder of a vector by a number (Granlund and Montgomery, "Division by
    Invariant Integers using Multiplication", 1994)."""
    bits = (by - 1).bit_length()
    factor = (1 << 63 + bits) // by + 1  # 64 bits
    made = _QUOTIENT if op is Op.IDIV else _SHORT if by < 1 << 32 else _REMAINDER
    marks = {"NAME": name, "MADE": made, "SIGNED": signed, "KIND": unsigned, "BY": str(by)}
    marks |= {"LESS": str(factor & 0xFFFFFFFF), "MORE": str(factor >> 32), "MOVED": str(bits - 1)}
    return filled(_DIVIDED, marks)
