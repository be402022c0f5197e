"""Vectors of which memory has a part: loads and stores under a mask, in C."""

from __future__ import annotations

from functools import lru_cache

from tinyml.codegen.text.c_text import MASKED, apart
from tinyml.codegen.text.vector_parts import filled

# by bytes of an element and lanes: what instructions for that end in, of what elements they are
_WAYS = {
    (4, 16): ("ups512", "float"),
    (4, 8): ("ups256", "float"),
    (4, 4): ("ups128", "float"),
    (8, 8): ("upd512", "double"),
    (8, 4): ("upd256", "double"),
    (2, 16): ("dquhi256", "short"),
    (2, 8): ("dquhi128", "short"),
    (1, 16): ("dquqi128", "char"),
}
# what AVX has: its masks are signs of lanes as large
_SIGNS = {(4, 8): ("ps256", "int"), (4, 4): ("ps", "int"), (8, 4): ("pd256", "long long")}
_LOADS = (
    "  return (KIND)LOAD((void *)(p + at), (VECTOR){0}, HELD);",
    "  return (KIND)LOAD((void *)(p + at), HELD);",
)


@lru_cache
def masked_load(
    name: str,
    kind: str,
    element: str,
    mask: str,
    bits: str,
    own: str,
    size: int,
    lanes: int,
    stride: int,
    taken: str,
    known: bool = False,
    inside: bool = False,
) -> str:
    """`lanes` elements from `at` on, 0 where the mask m is not set; `own` is m in `bits`.

    All of them are `taken`, without a branch, where they lie in the buffer, as those `inside` do
    always; else only what is asked for is touched, and nothing where all lie outside, as of the
    pieces of what is rolled. Whether the mask is `known` when this is compiled.
    """
    way = _way(*_LOADS, size, lanes)
    head = f"static inline {kind} {name}(const {element} *p, long at, long size, {mask} m) {{\n"
    pad = "  " if inside else "    "
    held = ""
    if known and size * lanes == MASKED:
        held, own = f"{pad}{bits} held = {own};\n{_HIDDEN}", "held"
    whole = f"{pad}{kind} all = {taken};\n{apart('all', size * lanes)}{held}"
    whole += f"{pad}return ({kind})(({bits})all & {own});\n"
    if inside:
        return f"{head}{whole}}}"
    return (
        f"{head}  if (__builtin_expect(at >= 0 && at < size - {(lanes - 1) * stride}, 1)) {{\n"
        f"{whole}  }}\n"
        f"  if (at <= -{lanes * stride} || at >= size) return ({kind}){{0}};\n"
        f"{way.replace('KIND', kind) if stride == 1 else ''}"
        f"  {kind} r = {{0}};\n{_unknown(lanes)}"
        f"  for (int i = 0; i < {lanes}; ++i) if (m[i]) r[i] = p[at + i * {stride}];\n"
        f"  return r;\n}}"
    )


# of a mask that it knows clang makes an expansion, which is slower than an `and`
_HIDDEN = """#if defined(__clang__) && defined(__AVX512F__)
  __asm__("" : "+v"(held));
#endif
"""


@lru_cache
def masked_store(name: str, kind: str, element: str, mask: str, size: int, lanes: int) -> str:
    """The elements where the mask is set; the others may be somebody else's."""
    signs = "  STORE((void *)p, HELD, (VECTOR)a);\n  return;"
    way = _way("  STORE((void *)p, (VECTOR)a, HELD);\n  return;", signs, size, lanes)
    return (
        f"static inline void {name}({element} *p, {kind} a, {mask} m) {{\n{way}{_unknown(lanes)}"
        f"  for (int i = 0; i < {lanes}; ++i) if (m[i]) p[i] = a[i];\n}}"
    )


@lru_cache
def spread_store(name: str, kind: str, element: str, places: str, size: int, lanes: int) -> str:
    """Elements two apart; what lies between may be written by another thread meanwhile."""
    even = f"{sum(1 << i for i in range(0, lanes, 2)):#x}"
    stored = [_spread(places, lanes, half, even) for half in range(2)]
    way = _way("\n".join([*stored, "  return;"]), "", size, lanes)
    singly = " ".join(f"p[{2 * n}] = a[{n}];" for n in range(lanes))
    return f"static inline void {name}({element} *p, {kind} a) {{\n{way}  {singly}\n}}"


def _unknown(lanes: int) -> str:
    """The mask m becomes one of which a compiler knows nothing before its lanes are asked.

    With AVX, gcc 11 and 12 fail (an internal error) where they know a part of it.
    """
    asked = '#if defined(__AVX__) && !defined(__AVX512F__)\n  __asm__("" : "+x"(m));\n#endif\n'
    return asked if lanes <= 8 else ""


def _spread(places: str, lanes: int, half: int, even: str) -> str:
    """The instruction that stores half of the elements two apart."""
    chosen = ", ".join(str(half * lanes // 2 + i // 2) for i in range(lanes))
    return f"""#if defined(__clang__)
  STORE((void *)(p + {half * lanes}), (VECTOR)__builtin_shufflevector(a, a, {chosen}), {even});
#else
  STORE((void *)(p + {half * lanes}), (VECTOR)__builtin_shuffle(a, ({places}){{{chosen}}}), {even});
#endif"""


def has_instruction(size: int, lanes: int) -> bool:
    """Whether there is one that stores some elements of a vector."""
    return (size, lanes) in _WAYS


def _way(text: str, signs: str, size: int, lanes: int) -> str:
    """The way with an instruction, if there is one for elements of so many bytes; that of AVX, too,
    by `signs`."""
    if (size, lanes) not in _WAYS:
        return ""
    suffix, element = _WAYS[size, lanes]
    marks = {name: f"__builtin_ia32_{name.lower()}{suffix}_mask" for name in ("LOAD", "STORE")}
    marks["VECTOR"] = vector = f"{element} __attribute__((vector_size({size * lanes})))"
    marks["HELD"] = f"__builtin_ia32_cvtd2mask{32 * lanes}(m)"
    present = " && ".join(f"defined(__AVX512{part}__)" for part in ("BW", "DQ", "VL"))
    ways = f"#if {present}\n{filled(text, marks)}\n"
    if signs and (size, lanes) in _SIGNS:
        suffix, own = _SIGNS[size, lanes]
        marks = {n: f"__builtin_ia32_mask{n.lower()}{suffix}" for n in ("LOAD", "STORE")}
        held = f"__builtin_convertvector(m, {own} __attribute__((vector_size({size * lanes}))))"
        marks |= {"VECTOR": vector, "HELD": held}
        ways += f"#elif defined(__AVX__)\n{filled(signs, marks)}\n"
    return f"{ways}#endif\n"
