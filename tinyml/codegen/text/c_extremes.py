"""The larger or smaller of two vectors, as C text: by an instruction where there is one."""

from __future__ import annotations

from tinyml.codegen.text.vector_parts import EXTREME512, select
from tinyml.ops import Op


def extreme(name: str, op: Op, vector: str, bits: str, propagates_nan: bool) -> str:
    """The larger or smaller of two vectors; with floats, b if that is NaN, and a if that is."""
    mask = f"a {'>' if op is Op.MAX else '<'} b" + (" | a != a" if propagates_nan else "")
    lines, before = [f"  const {bits} m = ({bits})({mask});"], ""
    if vector in _EXTREMES:
        macro, kind = _EXTREMES[vector]
        instruction = f"__builtin_ia32_{op.name.lower()}{kind}(a, b)"
        known = f"({bits})(a != a)"
        if macro == "__AVX512F__":
            instruction, before = f"EXTREME512({op.name.lower()}, {kind}, a, b)", EXTREME512
            fixed, known = f"__builtin_ia32_fixupimm{kind}512_mask", "{0}"  # a, if that is NaN
            instruction = f"{fixed}({instruction}, a, 0x11 - ({bits}){{0}}, 0, -1, 4)"
        there = [f"  const {bits} m = {known};", f"  b = {instruction};  // b if one is NaN"]
        lines = [f"#ifdef {macro}", *there, "#else", *lines, "#endif"]
    if vector in _WHOLE_EXTREMES:  # clang finds it by itself
        macro, kind = _WHOLE_EXTREMES[vector]
        more = f", ({bits})a, -1" if kind.endswith("mask") else ""
        instruction = f"__builtin_ia32_p{op.name.lower()}{kind}"
        found = f"  return ({vector}){instruction}(({bits})a, ({bits})b{more});"
        lines = [f"#if defined({macro}) && !defined(__clang__)", found, "#endif", *lines]
    return before + "\n".join(
        [
            f"static inline {vector} {name}({vector} a, {vector} b) {{",
            *lines,
            f"{select(vector, bits, 'm', asked=False, moved=True)}\n}}",
        ]
    )


# where there is an instruction: the macro that says so, and what its name ends in
_EXTREMES = {
    "f32x4": ("__SSE__", "ps"),
    "f32x8": ("__AVX__", "ps256"),
    "f64x2": ("__SSE2__", "pd"),
    "f64x4": ("__AVX__", "pd256"),
    "f32x16": ("__AVX512F__", "ps"),
    "f64x8": ("__AVX512F__", "pd"),
}
_WHOLE_EXTREMES = {
    "i16x8": ("__SSE2__", "sw128"),
    "u16x8": ("__SSE4_1__", "uw128"),
    "i32x4": ("__SSE4_1__", "sd128"),
    "u32x4": ("__SSE4_1__", "ud128"),
    "i16x16": ("__AVX2__", "sw256"),
    "u16x16": ("__AVX2__", "uw256"),
    "i32x8": ("__AVX2__", "sd256"),
    "u32x8": ("__AVX2__", "ud256"),
    "i16x32": ("__AVX512BW__", "sw512_mask"),
    "u16x32": ("__AVX512BW__", "uw512_mask"),
    "i32x16": ("__AVX512F__", "sd512_mask"),
    "u32x16": ("__AVX512F__", "ud512_mask"),
    "i64x8": ("__AVX512F__", "sq512_mask"),
    "u64x8": ("__AVX512F__", "uq512_mask"),
}
