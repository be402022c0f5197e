"""What functions on lanes of float32 and of float64 are made of, as C text.

KIND, BITS and REAL stand for a vector type, the integers of its size and its element; NARROW, WIDE
and VAST for the lanes of 16, 32 and 64 bytes. LANES and the types are filled in later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


def written_out(text: str) -> str:
    """C text where `p = [t: a, b, c]` is a polynomial: p = t * a + b, and then p = p * t + c.

    That of even and that of odd powers do not wait for each other: `p = [t, square: a, b, c]`.
    """
    return re.sub(r"  (F32 |F64 )?(\w+) = \[(\w+)(?:, (\w+))?:([^]]+)\];", _polynomial, text)


def _polynomial(found: re.Match[str]) -> str:
    kind, p, t, square, listed = found.groups()
    numbers = [number.strip() for number in listed.split(",")]
    if square is None:
        return _by_horner(kind or "", p, t, numbers)
    even, odd = numbers[-1::-2][::-1], numbers[-2::-2][::-1]
    lines = [_by_horner(kind, f"{p}_{n}", square, of) for n, of in (("even", even), ("odd", odd))]
    return "\n".join([*lines, f"  {kind}{p} = {p}_odd * {t} + {p}_even;"])


def _by_horner(kind: str, p: str, t: str, numbers: Sequence[str]) -> str:
    lines, so_far = [], f"{t} * {numbers[0]}"
    for number in numbers[1:]:
        sign = "-" if number.startswith("-") else "+"
        lines.append(f"  {kind}{p} = {so_far} {sign} {number.lstrip('-')};")
        kind, so_far = "", f"{p} * {t}"
    return "\n".join(lines)


def filled(text: str, marks: Mapping[str, str]) -> str:
    """A text in which what marks stand for is in their place, one mark after the other."""
    for mark, meant in marks.items():
        text = text.replace(mark, meant)
    return text


# by vector: the macro that says that there is such an instruction, and what its name ends in
MOVES = {
    "f32x4": ("__SSE4_1__", "ps"),
    "f32x8": ("__AVX__", "ps256"),
    "f64x2": ("__SSE4_1__", "pd"),
    "f64x4": ("__AVX__", "pd256"),
}


def select(kind: str, bits: str, m: str, asked: bool = True, moved: bool = False) -> str:
    """Statements that return `a` where the mask `m` is -1, `b` where it is 0.

    A comparison is what compilers make an op under a mask of, where there are such ops: it is
    `asked` for, but of comparisons, and of numbers, for each of which gcc 12 would fill a mask's
    register. Of `^` it makes one move under a mask; of `|`, as good elsewhere, three steps. Without
    such ops gcc moves floats as integers, which they wait to become: where they are `moved`, it
    is told the instruction, of which it knows nothing then, nor of numbers in it.
    """
    compared = f"#ifdef __AVX512F__\n  {m} = {m} != 0;\n#endif\n" if asked else ""
    plain = f"{compared}  return ({kind})(({m} & ({bits})a) ^ (~{m} & ({bits})b));"
    if not moved or kind not in MOVES:
        return plain
    macro, name = MOVES[kind]
    return (
        f"#if defined({macro}) && !defined(__AVX512F__) && !defined(__clang__)\n"
        f"  return __builtin_ia32_blendv{name}(b, a, ({kind}){m});\n#else\n{plain}\n#endif"
    )


# gcc unrolls it by itself
_LOOP = '_Pragma("clang loop unroll(full)") for (int i = 0; i < LANES; ++i)'


def lane_function(
    name: str, call: str, result: str, operands: Sequence[str], lanes: int | str
) -> str:
    """`call` on each lane."""
    letters = "abc"[: len(operands)]
    parameters = ", ".join(f"{t} {x}" for t, x in zip(operands, letters, strict=True))
    arguments = ", ".join(f"{x}[i]" for x in letters)
    return (
        f"static inline {result} {name}({parameters}) {{\n"
        f"  {result} r;\n"
        f"  {_LOOP.replace('LANES', str(lanes))} r[i] = {call}({arguments});\n"
        f"  return r;\n}}"
    )


def _per_lane(name: str, arity: int) -> str:
    """One of libm's functions, of which compilers make an instruction for all lanes."""
    call = f"__builtin_{name}END"
    return lane_function(f"{name}_KIND", call, "KIND", ["KIND"] * arity, "LANES") + "\n"


_ONCE = "#ifndef DONE_NAME\n#define DONE_NAME\nBODY#endif\n"


def once(name: str, body: str) -> str:
    """A function that several others bring along."""
    return _ONCE.replace("NAME", name).replace("BODY", body)


# what gcc and clang call the same instruction for vectors of 64 bytes
EXTREME512 = once(
    "EXTREME512",
    """#ifdef __clang__
#define EXTREME512(op, kind, a, b) __builtin_ia32_##op##kind##512(a, b, 4)
#else
#define EXTREME512(op, kind, a, b) __builtin_ia32_##op##kind##512_mask(a, b, a, -1, 4)
#endif
""",
)

_TEXTS = {
    "pick_KIND": f"""static inline KIND pick_KIND(BITS m, KIND a, KIND b) {{
#if LANES == WIDE && defined(__AVX__) && !defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_blendvSUFFIX256(b, a, (KIND)m);
#elif LANES == NARROW && defined(__SSE4_1__) && !defined(__AVX512F__) && !defined(__clang__)
  return __builtin_ia32_blendvSUFFIX(b, a, (KIND)m);
#else
{select("KIND", "BITS", "m")}
#endif
}}
""",
    # p * 2**n for the n that was added to ZERO: in two steps, so that results may be denormal or
    # overflow to infinity. For the least n, where -inf is taken to, both factors are 0: to
    # underflow would take as long as all the rest
    "scale_KIND": """#if LANES >= NARROW && LANES <= VAST && defined(__AVX512VL__)
static inline KIND grown_KIND(KIND p, KIND n) {
#if LANES == VAST
  return __builtin_ia32_scalefSUFFIX512_mask(p, n, p, -1, 4);
#elif LANES == WIDE
  return __builtin_ia32_scalefSUFFIX256_mask(p, n, p, -1);
#else
  return __builtin_ia32_scalefSUFFIX128_mask(p, n, p, -1);
#endif
}
#endif
static inline KIND scale_KIND(KIND p, KIND shifted) {
#if LANES >= NARROW && LANES <= VAST && defined(__AVX512VL__)
  return grown_KIND(p, shifted - ZERO);
#else
STEPS
#endif
}
""",
    # `a`, or `b` with its sign if that is nearer to 0 or `a` is NaN
    "nearer_F32": """#if LANES >= 4 && LANES <= 16 && defined(__AVX512VL__) && defined(__AVX512DQ__)
static inline F32 nearer_F32(F32 a, F32 b) {
#if LANES == 16
  return __builtin_ia32_rangeps512_mask(a, b, 2, a, -1, 4);
#elif LANES == 8
  return __builtin_ia32_rangeps256_mask(a, b, 2, a, -1);
#else
  return __builtin_ia32_rangeps128_mask(a, b, 2, a, -1);
#endif
}
#endif
""",
    # of sixteen floats, those that the last four bits of numbers count
    "entry_F32": """#if LANES >= 4 && LANES <= 16 && defined(__AVX512F__)
static inline F32 entry_F32(const float *entries, F32 at) {
  typedef float wide __attribute__((vector_size(64), may_alias));
  typedef int bits __attribute__((vector_size(64)));
#if LANES == 16
  const bits where = (bits)at;
#elif defined(__clang__)
  const bits where = (bits)__builtin_shufflevector(
      at, at, 0, 1, 2, 3, 4 % LANES, 5 % LANES, 6 % LANES, 7 % LANES, 0, 0, 0, 0, 0, 0, 0, 0);
#elif LANES == 8
  const bits where = (bits)__builtin_ia32_ps512_256ps(at);
#else
  const bits where = (bits)__builtin_ia32_ps512_ps(at);
#endif
#ifdef __clang__
  const wide found = __builtin_ia32_permvarsf512(*(const wide *)entries, where);
#else
  const wide found = __builtin_ia32_permvarsf512_mask(*(const wide *)entries, where, (wide){0}, -1);
#endif
  return *(const F32 *)&found;
}
#endif
""",
    # x between two numbers; NaN stays NaN
    "clamp_KIND": """static inline KIND clamp_KIND(KIND x, REAL low, REAL high) {
  const KIND least = low - (KIND){0}, most = high - (KIND){0};
#if LANES == VAST && defined(__AVX512F__)
  return EXTREME512(max, SUFFIX, least, EXTREME512(min, SUFFIX, most, x));
#elif LANES == WIDE && defined(__AVX__)
  return __builtin_ia32_maxSUFFIX256(least, __builtin_ia32_minSUFFIX256(most, x));
#elif LANES == NARROW && defined(MACRO)
  return __builtin_ia32_maxSUFFIX(least, __builtin_ia32_minSUFFIX(most, x));
#else
  return pick_KIND(x < low, least, pick_KIND(x > high, most, x));
#endif
}
""",
    # whether any lane of a mask is set
    "any_BITS": """static inline int any_BITS(BITS m) {
#if LANES == VAST && defined(__AVX512DQ__)
  return __builtin_ia32_cvtLETTER2mask512(m) != 0;
#elif LANES == WIDE && defined(__AVX__)
  return __builtin_ia32_movmskSUFFIX256((KIND)m) != 0;
#elif LANES == NARROW && defined(MACRO)
  return __builtin_ia32_movmskSUFFIX((KIND)m) != 0;
#else
  WHOLE any = 0;
  for (int i = 0; i < LANES; ++i) any |= m[i];
  return any != 0;
#endif
}
""",
    # the magnitude of a with the sign of b
    "signed_KIND": """static inline KIND signed_KIND(KIND a, KIND b) {
  const BITS sign = (BITS){0} + (WHOLE)0x8ZEROS;
  return (KIND)((~sign & (BITS)a) ^ (sign & (BITS)b));
}
""",
    # a - n * b with the sign of b. A quotient that its digits hold is n, or is rounded up to n + 1:
    # then what is left is below 0, as exact as what is right. libm does the others, lane by lane
    "mod_KIND": """static inline KIND mod_KIND(KIND a, KIND b) {
  const KIND x = abs_KIND(a), y = abs_KIND(b), q = trunc_KIND(x / y);
  KIND r = fma_KIND(-q, y, x);
  r = pick_KIND(r < 0.0END, r + y, r);
  const BITS far = ~((q < 0x1pDIGITSEND) & (y < __builtin_infEND()));
  if (any_BITS(far))
    for (int i = 0; i < LANES; ++i)
      if (far[i]) r[i] = __builtin_fmodEND(x[i], y[i]);
  const BITS across = (((BITS)a ^ (BITS)b) < 0) & (r != 0.0END);
  return signed_KIND(pick_KIND(across, y - r, r), b);
}
""",
    # pow(a, b), where r is pow(|a|, b): 1 where it is 1 whatever the other one is, the sign of odd
    # powers, and NaN of negative numbers where b is not whole
    "powered_KIND": """static inline KIND powered_KIND(KIND a, KIND b, KIND r) {
  const KIND zero = {0}, whole = trunc_KIND(b), half = b * 0.5END;
  r = pick_KIND((b == 0.0END) | (a == 1.0END), zero + 1.0END, r);
  const BITS odd = (whole == b) & (trunc_KIND(half) != half);
  r = (KIND)((BITS)r ^ (odd & (BITS)a & (WHOLE)0x8ZEROS));
  const BITS none = (a < 0.0END) & (whole != b) & (a > -__builtin_infEND());
  return pick_KIND(none, zero + __builtin_nanEND(""), r);
}
""",
    "trunc_KIND": _per_lane("trunc", 1),
    # of floats without an instruction: sums of doubles that are not exact are made odd, so that
    # they are rounded once more as if they were rounded once (Boldo and Melquiond)
    "fma_KIND": f"""#if DIGITS == 24 && defined(__SSE2__) && !defined(__FMA__)
static inline KIND fma_KIND(KIND a, KIND b, KIND c) {{
  typedef double wide __attribute__((vector_size(8 * LANES)));
  typedef long long bits __attribute__((vector_size(8 * LANES)));
  const wide p = __builtin_convertvector(a, wide) * __builtin_convertvector(b, wide);
  const wide z = __builtin_convertvector(c, wide), s = p + z, t = s - p;
  const wide rest = (p - (s - t)) + (z - t);
  const bits up = (((bits)rest ^ (bits)s) >> 63) | 1, inexact = (rest < 0) | (rest > 0);
  return __builtin_convertvector((wide)((bits)s + (up & inexact & (((bits)s & 1) - 1))), KIND);
}}
#else
{_per_lane("fma", 3)}#endif
""",
    "abs_KIND": """static inline KIND abs_KIND(KIND x) {
  return (KIND)((BITS)(x) & 0x7ONES);
}
""",
}
# what more is in the bits of `shifted` is shifted out; of 64 bits, only shifts to the left are
# instructions everywhere
_STEPS = """  const I32 n = (I32)(shifted), half = n >> 1;
  return p * (F32)((half << 23) + 0x3f800000) * (F32)(((n - half) << 23) + 0x3f800000);"""
_STEPS64 = """  const I64 n = (I64)shifted << 52, half = ((I64)shifted << 51) & -0x10000000000000;
  const I64 one = (I64){0} + 0x3ff0000000000000;
  return p * (F64)(half + one) * (F64)(n - half + one);"""
SCALE = f"static inline F32 scale_F32(F32 p, F32 shifted) {{\n{_STEPS}\n}}\n"  # for all machines

_MARKS = {
    "F32": {
        "KIND": "F32", "BITS": "I32", "REAL": "float", "WHOLE": "int", "END": "f",
        "SUFFIX": "ps", "LETTER": "d", "MACRO": "__SSE__", "STEPS": _STEPS,
        "NARROW": "4", "WIDE": "8", "VAST": "16", "8ZEROS": "80000000", "7ONES": "7fffffff",
        "DIGITS": "24",
        "ZERO": "12582912.0f",
    },
    "F64": {
        "KIND": "F64", "BITS": "I64", "REAL": "double", "WHOLE": "long long", "END": "",
        "SUFFIX": "pd", "LETTER": "q", "MACRO": "__SSE2__", "STEPS": _STEPS64,
        "NARROW": "2", "WIDE": "4", "VAST": "8", "DIGITS": "53",
        "8ZEROS": "8" + 15 * "0", "7ONES": "7" + 15 * "f", "ZERO": "6755399441055744.0",
    },
}  # fmt: skip


def of_kind(text: str, kind: str) -> str:
    """A text with the marks of F32 or F64 filled in."""
    return filled(text, _MARKS[kind])


_NEEDS = {
    "powered_KIND": ("trunc_KIND", "pick_KIND"),
    "clamp_KIND": ("pick_KIND",),
    "mod_KIND": ("abs_KIND", "trunc_KIND", "fma_KIND", "pick_KIND", "any_BITS", "signed_KIND"),
}


def part(name: str, kind: str) -> str:
    """A function that others bring along, such as pick_KIND of F32, after those that it calls."""
    before = EXTREME512 if name == "clamp_KIND" else ""
    needs = before + "".join(part(need, kind) for need in _NEEDS.get(name, ()))
    return needs + once(of_kind(name, kind), of_kind(_TEXTS[name], kind))


# a float by itself, as one of four
FMA_ALONE = """static inline float fma_f32(float a, float b, float c) {
#if defined(__SSE2__) && !defined(__FMA__)
  return fma_f32x4(a - (f32x4){0}, b - (f32x4){0}, c - (f32x4){0})[0];
#else
  return __builtin_fmaf(a, b, c);
#endif
}"""


# what a quadrant makes negative, and lanes that are too large, for which libm is called
_LARGE = """  r = (KIND)((BITS)r ^ (SIGN & (WHOLE)0x8ZEROS));
  if (any_BITS(large))
    for (int i = 0; i < LANES; ++i)
      if (large[i]) r[i] = __builtin_NAMEEND(x[i]);
  return r;
}
"""


def circular(name: str, kind: str, quadrant: str, formula: str, sign: str, turn: int = 0) -> str:
    """A function of angles: `formula` makes r of what `quadrant`, moved by `turn`, leaves of x."""
    head = f"static inline {kind} {name}_{kind}({kind} x) {{{quadrant.replace('TURN', str(turn))}"
    return head + formula + of_kind(_LARGE, kind).replace("NAME", name).replace("SIGN", sign)


SQRT = of_kind(_per_lane("sqrt", 1), "F32")
ABS = of_kind(_TEXTS["abs_KIND"], "F32")
