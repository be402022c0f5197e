"""A choice between the lanes of two vectors in C: by a mask, or of the larger or smaller."""

from __future__ import annotations

from functools import lru_cache

from tinyml.codegen.expr import Alu, Expr, Place
from tinyml.codegen.text.render import SIGN, Renderer, register
from tinyml.codegen.text.strength import UNARY, Text, binary, wrap
from tinyml.codegen.text.vector_parts import EXTREME512, select
from tinyml.dtype import bool_
from tinyml.ops import COMPARE, Op


def own_mask(renderer: Renderer, e: Expr, size: int, lanes: int) -> Text | None:
    """A mask of comparisons of numbers of so many bytes, in integers of as many; None if it is
    another one. Of a mask that becomes one of truths and that again, gcc makes each step."""
    if type(e) is not Alu or renderer.lanes(e) != lanes:
        return None
    one = e.operands[0]
    if e.op in COMPARE:
        places = type(one) is type(e.operands[1]) is Place  # ranges are asked another way
        if places or one.dtype is bool_ or register(one.dtype).itemsize != size:
            return None
        return binary(SIGN[e.op], *[renderer.text(o, lanes) for o in e.operands])
    if e.dtype is not bool_ or e.op not in (Op.AND, Op.OR, Op.NOT):
        return None
    masks = [own_mask(renderer, o, size, lanes) for o in e.operands]
    found = [m for m in masks if m]
    if len(found) < len(masks):
        return None
    return binary(SIGN[e.op], *found) if found[1:] else (f"~{wrap(found[0], UNARY)}", UNARY)


@lru_cache
def blend(
    name: str, kind: str, bits: str, mask: str, own: str, known: bool, either: bool, fixed: bool
) -> str:
    """`a` where the mask m is -1, `b` where it is 0; `own` is m in `bits`.

    Whether m is `known` when this is compiled, whether `either` may be other than 0, and whether
    one is a value that is known then (`fixed`).
    """
    chosen = select(kind, bits, "own", not known, either and not known)
    if known and (kind in _CHOICES or kind.endswith(("8x64", "16x32"))):
        chosen = _of_whole_registers(kind, either, fixed, chosen)
    return (
        f"static inline {kind} {name}({mask} m, {kind} a, {kind} b) {{\n"
        f"  {bits} own = {own};\n{chosen}\n}}"
    )


def _of_whole_registers(kind: str, either: bool, fixed: bool, chosen: str) -> str:
    """A choice by masks that compilers know is one move where they are told to choose, if the op
    before it is not made under the mask; else it is three steps, and by clang up to four shuffles.

    Of a value that gcc knows, too, it is one step of vectors, of which more are held than of masks.
    clang makes an `and`, not a slow expansion, where it is told nothing, as where one is 0 or lanes
    are bytes.
    """
    if not either or kind not in _CHOICES:
        there = "#if defined(__clang__) && defined(__AVX512DQ__)"
        return f'{there}\n  __asm__("" : "+v"(own));\n#endif\n{chosen}'
    function, lanes = _CHOICES[kind]
    by_gcc = f"  return __builtin_ia32_blendm{function}_mask(b, a, held);"
    return (
        f"#ifdef __AVX512DQ__\n  unsigned short held = __builtin_ia32_{lanes}(own);\n"
        f'#ifdef __clang__\n  __asm__("" : "+Yk"(held));\n'
        f"  return __builtin_ia32_select{function}(held, a, b);\n"
        f"#else\n{chosen if fixed else by_gcc}\n#endif\n"
        f"#else\n{chosen}\n#endif"
    )


# what compilers call a choice between vectors of 64 bytes, and the mask of it
_CHOICES = {
    "f32x16": ("ps_512", "cvtd2mask512"),
    "f64x8": ("pd_512", "cvtq2mask512"),
    "i32x16": ("d_512", "cvtd2mask512"),
    "i64x8": ("q_512", "cvtq2mask512"),
}


@lru_cache
def choose(name: str, kind: str, bits: str, mask: str, own: str, lanes: int) -> str:
    """Likewise for masks known when this is compiled, of one register at most without AVX-512.

    gcc makes one move of lanes that are chosen, but of `&` and `^` what they say: three steps. Of 0
    and something else it is one step, which is faster than the move.
    """
    numbers = ", ".join(map(str, range(lanes)))
    return (
        f"static inline {kind} {name}({mask} m, {kind} a, {kind} b) {{\n"
        f"  {bits} own = {own};\n"
        f"#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__clang__)\n"
        f"  return __builtin_shuffle(a, b, ({bits}){{{numbers}}} - ~own * {lanes});\n"
        f"#else\n{select(kind, bits, 'own', False)}\n#endif\n}}"
    )


def choose_number(name: str, chosen: str, kind: str) -> str:
    """The same where a or b is one value in all lanes: `NAME(m, a, b, n)`, n the bits of m.

    Of what `chosen` says of such lanes both compilers make up to five steps without AVX-512.
    """
    plain = f"#define {name}(m, a, b, n) {chosen}(m, a, b)"
    if kind not in _MOVES:
        return plain
    move, element = _MOVES[kind]
    of = f"{element} __attribute__((vector_size(32)))"
    made = f"#define {name}(m, a, b, n) (({kind})__builtin_ia32_{move}(({of})(b), ({of})(a), n))"
    return f"#if defined(__AVX2__) && !defined(__AVX512F__)\n{made}\n#else\n{plain}\n#endif"


# moves of lanes by a number that the text has, and of what elements these are
_MOVES = {
    "f32x8": ("blendps256", "float"),
    "f64x4": ("blendpd256", "double"),
    "i32x8": ("pblendd256", "int"),
    "u32x8": ("pblendd256", "int"),
}


def blend_either(name: str, blend: str, kind: str, mask: str) -> str:
    """`a` where m or n is -1, else `b`, for vectors that instructions take under a mask.

    gcc would join the masks, which takes longer than two moves; clang makes the second comparison
    under the mask of the first one.
    """
    return (
        f"static inline {kind} {name}({mask} m, {mask} n, {kind} a, {kind} b) {{\n"
        f"#if defined(__AVX512F__) && !defined(__clang__)\n"
        f'  b = {blend}(n, a, b);\n  __asm__("" : "+v"(b));\n  return {blend}(m, a, b);\n'
        f"#else\n  return {blend}(m | n, a, b);\n#endif\n}}"
    )


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
