"""Lanes taken from other places, in C: by a move of whole vectors, or by a function."""

from __future__ import annotations

from collections.abc import Sequence


def every_second(name: str, kind: str, element: str, places: str, lanes: int, size: int) -> str:
    """`lanes` elements of `size` bytes with gaps of one between them, out of vectors that end with
    the last one.

    Of two halves of a register gcc makes three moves across them, where the first of two within
    each of them does.
    """
    every = [n if n < lanes else n + 1 for n in range(0, 2 * lanes, 2)]
    listed = ", ".join(map(str, every))
    made = f"__builtin_shuffle(first, last, ({places}){{{listed}}})"
    if lanes * size == 32 and size >= 4:
        near = lanes // 4  # elements of 8 bytes
        parts = [every[n : n + near] for n in range(0, lanes, near)]
        order = [near * n + at for n in (0, 2, 1, 3) for at in range(near)]
        crossed = ", ".join(str(n) for half in (0, 2, 1, 3) for n in parts[half])
        made = f"__builtin_shuffle(first, last, ({places}){{{crossed}}})"
        made = f"__builtin_shuffle({made}, ({places}){{{', '.join(map(str, order))}}})"
    return f"""static inline {kind} {name}(const {element} *p) {{
  const {kind} first = *(const {kind} *)p, last = *(const {kind} *)(p + {lanes - 1});
#if defined(__clang__)
  return __builtin_shufflevector(first, last, {listed});
#else
  return {made};
#endif
}}"""


def of_another(name: str, kind: str, places: str, chosen: str) -> str:
    """Each lane is that lane of another vector which is `chosen`."""
    return f"""static inline {kind} {name}({kind} a) {{
#if defined(__clang__)
  return __builtin_shufflevector(a, a, {chosen});
#else
  return __builtin_shuffle(a, ({places}){{{chosen}}});
#endif
}}"""


def length(places: Sequence[int], size: int, lanes: int) -> int:
    """Lanes of the vectors that elements of `size` bytes are picked out of, at `places` from 0 on.

    All that lies between the first and the last of them is read, and no more. 0 if two vectors do
    not hold it, or it is less than a vector of so many lanes.
    """
    hull = max(places) + 1
    least = 16 // size if size >= 4 else 8 // size
    count = max(least, 1 << min(hull, lanes).bit_length() - 1)
    held = hull <= 2 * lanes and count <= min(lanes, max(hull, lanes // 2))
    return count if held else 0


def picked(name: str, kinds: Sequence[str], element: str, places: Sequence[int], count: int) -> str:
    """Elements at `places` from p on, out of one or two vectors of `count` lanes.

    `kinds` are vectors of so many lanes, of twice as many, and so on, up to those asked for.
    Listed one by one, gcc would put some into memory and read them all at once, which waits until
    they are there; clang would read each lane by itself.
    """
    hull, part = max(places) + 1, kinds[0]
    first = f"*(const {part} *)p"
    if hull < count < len(places):  # part of a register: its lanes are listed, over and over
        first = f"({part}){{{', '.join(f'p[{n % hull}]' for n in range(count))}}}"
    apart, lines, both = max(0, hull - count), [f"  const {part} a0 = {first};"], "a0, a0"
    if apart:
        lines.append(f"  const {part} b0 = *(const {part} *)(p + {apart});")
        both = "a0, b0"
    for n, kind in enumerate(kinds[1:], 1):
        joined = ", ".join(map(str, range(count << n)))
        lines.append(f"  const {kind} a{n} = __builtin_shufflevector({both}, {joined});")
        both = f"a{n}, a{n}"
    chosen = ", ".join(str(n if n < count else n - apart + count) for n in places)
    listed = ", ".join(f"p[{n}]" for n in places)
    made = "\n".join([*lines, f"  return __builtin_shufflevector({both}, {chosen});"])
    return f"""static inline {kinds[-1]} {name}(const {element} *p) {{
#if defined(__clang__) || __GNUC__ >= 12
{made}
#else
  return ({kinds[-1]}){{{listed}}};
#endif
}}"""


def strided(name: str, kind: str, element: str, lanes: int) -> str:
    """A vector loaded from p on, of places a step apart. clang would make slow gathers of them."""
    listed = ", ".join(f"at[{n} * step]" for n in range(lanes))
    return f"""static inline __attribute__((always_inline))
{kind} {name}(const {element} *p, long step) {{
#ifdef __clang__
  const volatile {element} *at = p;
#else
  const {element} *at = p;
#endif
  return ({kind}){{{listed}}};
}}"""


def gathered(name: str, kind: str, element: str, lanes: int) -> str:
    """The same by a function that is called: inlined, each takes compilers seven times as long
    where a kernel has hundreds. Each element is loaded by itself, as clang would make gathers.
    """
    listed = ", ".join(f"at[{n} * step]" for n in range(lanes))
    return (
        f"static __attribute__((noinline)) {kind} {name}(const {element} *p, long step) {{\n"
        f"  const volatile {element} *at = p;\n  return ({kind}){{{listed}}};\n}}"
    )


def entry(name: str, kind: str, places: str, lanes: int, parts: int) -> str:
    """Each lane has an element of a table that one vector holds, or two, by its number there."""
    bits, macro = (512, "__AVX512F__") if lanes == 16 else (256, "__AVX2__")
    one = f"({kind})__builtin_ia32_permvarsi{bits}(({places})PART, at)"
    first, second = one.replace("PART", "a"), one.replace("PART", "b")
    listed = ", ".join(f"held[at[{n}] & {parts * lanes - 1}]" for n in range(lanes))
    given, both = (f"{kind} a, {kind} b", "a, b") if parts == 2 else (f"{kind} a", "a")
    chosen = f"  return {first};"
    if parts == 2:
        chosen = f"""  const {places} beyond = (at & {lanes}) != 0;
  return ({kind})((({places}){second} & beyond) | (({places}){first} & ~beyond));"""
    return f"""static inline {kind} {name}({given}, {places} at) {{
#if !defined(__clang__)
  return __builtin_shuffle({both}, at);
#elif defined({macro})
{chosen}
#else
  const {kind} parts[] = {{{both}}};
  const __typeof__(a[0]) *held = (const __typeof__(a[0]) *)parts;
  return ({kind}){{{listed}}};
#endif
}}"""
