"""A choice between the lanes of two vectors by a mask, in C."""

from __future__ import annotations

from functools import lru_cache

from tinyml.codegen.text.vector_parts import select


@lru_cache
def blend(name: str, kind: str, bits: str, mask: str, own: str, known: bool, either: bool) -> str:
    """`a` where the mask m is -1, `b` where it is 0; `own` is m in `bits`.

    Whether m is `known` when this is compiled, and whether `either` may be other than 0.
    """
    chosen = select(kind, bits, "own", not known, either and not known)
    if known and (kind in _CHOICES or kind.endswith(("8x64", "16x32"))):
        chosen = _by_clang(kind, either, chosen)
    return (
        f"static inline {kind} {name}({mask} m, {kind} a, {kind} b) {{\n"
        f"  {bits} own = {own};\n{chosen}\n}}"
    )


def _by_clang(kind: str, either: bool, chosen: str) -> str:
    """Of whole registers by masks that it knows clang makes one move where it is told to choose,
    not three steps; and an `and`, not a slow expansion, where it is told nothing, as where one is 0
    or lanes are bytes."""
    there = "#if defined(__clang__) && defined(__AVX512DQ__)"
    if not either or kind not in _CHOICES:
        return f'{there}\n  __asm__("" : "+v"(own));\n#endif\n{chosen}'
    function, lanes = _CHOICES[kind]
    told = f"__builtin_ia32_select{function}(__builtin_ia32_{lanes}(own), a, b)"
    return f"{there}\n  return {told};\n#else\n{chosen}\n#endif"


# what clang calls a choice between vectors of 64 bytes, and the mask of it
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
