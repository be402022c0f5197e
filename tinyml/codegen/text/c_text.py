"""Pieces of C that kernels share: vector types, conversions, functions without an operator."""

from __future__ import annotations

from functools import lru_cache

from tinyml.codegen.text.vector_parts import filled, lane_function
from tinyml.ops import Op

MASKED = 64  # bytes of a vector that instructions take under a mask


def vector_type(name: str, element: str, size: int, lanes: int) -> str:
    """A vector that may lie anywhere an element may."""
    attributes = f"vector_size({size * lanes}), aligned({size}), may_alias"
    return f"typedef {element} {name} __attribute__(({attributes}));"


# Of what int64 cannot hold C says nothing: gcc takes the greatest number if it is a constant.
WHOLE = """static inline long long whole(double a) {
  return a >= -0x1p63 && a < 0x1p63 ? (long long)a : -9223372036854775807ll - 1;
}"""


def apart(value: str, size: int) -> str:
    """A vector of `size` bytes is loaded, for all lanes, before it meets a mask.

    Compilers would make one instruction of both: that waits for the mask, and then for memory.
    """
    asked = f'#ifdef __AVX512F__\n  __asm__("" : "+v"({value}));\n#endif\n'
    return asked if size == MASKED else ""


def loaded(kind: str, size: int) -> str:
    """A vector that was loaded for all lanes. Of 32 bytes that were loaded one by one clang would
    store each half by itself: half as many lines would be on their way to memory."""
    asked = apart("a", size) or f'#if {_SPLITS}\n  __asm__("" : "+x"(a));\n#endif\n'
    return f"static inline {kind} loaded_{kind}({kind} a) {{\n{asked}  return a;\n}}"


_SPLITS = "defined(__clang__) && defined(__AVX__)"


@lru_cache
def scattered(name: str, kind: str, element: str, lanes: int) -> str:
    """A vector stored from p on, at places a step apart."""
    lines = "\n".join([f"  p[{n} * step] = a[{n}];" for n in range(lanes)])
    return (
        f"static inline __attribute__((always_inline)) void "
        f"{name}({element} *p, {kind} a, long step) {{\n{lines}\n}}"
    )


@lru_cache
def scattered_rows(name: str, kind: str, element: str, lanes: int, by: int) -> str:
    """The same from the place `begin` of a row of `by` on; each next row is a jump further.

    A function that is called: inlined for each vector, it would take gcc four times as long.
    """
    lines = []
    for row, place in (divmod(n, by) for n in range(lanes)):
        first = f"(begin < {by - place} ? p : next)" if place else "p"
        at = f"{row * by + place} * step" + f" + {row} * jump" * (row > 0)
        lines.append(f"  {first}[{at}] = a[{row * by + place}];")
    return (
        f"static __attribute__((noinline)) void "
        f"{name}({element} *p, {kind} a, long step, long begin, long jump) {{\n"
        f"  {element} *next = p + jump;\n" + "\n".join(lines) + "\n}"
    )


def streaming_store(name: str, kind: str, element: str, size: int, count: int) -> str:
    """Vectors of `size` bytes, stored side by side past the caches where that is possible.

    Memory of somebody else may not be aligned as that asks for. All are made before it is asked,
    or clang makes each right before its store, where it waits for itself.
    """
    macro, builtin = _STREAMING.get(size, ("NEVER", ""))
    names = [f"a{n}" for n in range(count)]
    given = ", ".join([f"{kind} {a}" for a in names])
    clang, gcc, plain = (
        "\n".join([text.format(a=a, n=n) for n, a in enumerate(names)])
        for text in (
            "    __builtin_nontemporal_store((bits){a}, (bits *)p + {n});",
            f"    {builtin}((float *)((bits *)p + {{n}}), (bits){{a}});",
            f"  *(({kind} *)p + {{n}}) = {{a}};",
        )
    )
    return f"""static inline void {name}({element} *p, {given}) {{
  typedef float bits __attribute__((vector_size({size}), may_alias));
#if defined({macro})
  if ((unsigned long)p % {size} == 0) {{
#if defined(__clang__)
{clang}
#else
{gcc}
#endif
    return;
  }}
#endif
{plain}
}}"""


# by size: the macro that says that there is such an instruction, and what gcc calls it
_STREAMING = {
    16: ("__SSE__", "__builtin_ia32_movntps"),
    32: ("__AVX__", "__builtin_ia32_movntps256"),
    64: ("__AVX512F__", "__builtin_ia32_movntps512"),
}

# what was stored past the caches is seen by whoever learns that this thread is done
STREAMED = """static inline void streamed(void) {
#ifdef __SSE__
  __builtin_ia32_sfence();
#endif
}"""


def lane_place(name: str, vector: str, lanes: int) -> str:
    """The "quotient" or "remainder" of start, start + 1, ... by a number, for each lane.

    The number is at least `lanes`: then only one multiple of it can lie within the vector.
    """
    numbers = ", ".join(map(str, range(lanes)))
    results = {
        "quotient": "(int)(start / by) - (at >= (int)by)",
        "remainder": "at - ((at >= (int)by) & (int)by)",
    }
    return (
        f"static inline {vector} {name}_{vector}(long start, long by) {{\n"
        f"  const {vector} at = (int)(start % by) + ({vector}){{{numbers}}};\n"
        f"  return {results[name]};\n}}"
    )


def function(op: Op, kind: str, names: dict[str, str]) -> str:
    """A scalar function for a kind of dtype, with its type and name filled in."""
    return filled(FUNCTIONS[op][kind], names)


LARGE = """void *aligned_alloc(unsigned long, unsigned long);
void free(void *);
void abort(void);
static inline void *large(unsigned long bytes) {
  void *made = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!made) abort();
  return made;
}"""

HALF = {
    "bfloat16": """static inline float bfloat16_value(unsigned short bits) {
  const union { unsigned u; float f; } wide = {(unsigned)bits << 16};
  return wide.f;
}
static inline unsigned short bfloat16_bits(float value) {
  const union { float f; unsigned u; } wide = {value};
  const unsigned u = wide.u;
  if (value != value) return (unsigned short)(u >> 16 | 0x40);
  return (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}""",
    "float16": """#ifdef __F16C__
static inline float float16_value(unsigned short bits) {
  typedef short eight __attribute__((vector_size(16)));
  return __builtin_ia32_vcvtph2ps((eight){(short)bits})[0];
}
static inline unsigned short float16_bits(float value) {
  typedef float four __attribute__((vector_size(16)));
  return (unsigned short)__builtin_ia32_vcvtps2ph((four){value}, 0)[0];
}
#elif defined(__FLT16_MAX__) && !defined(__SSE__)
static inline float float16_value(unsigned short bits) {
  const union { unsigned short u; _Float16 h; } half = {bits};
  return (float)half.h;
}
static inline unsigned short float16_bits(float value) {
  const union { _Float16 h; unsigned short u; } half = {(_Float16)value};
  return half.u;
}
#else
static inline float float16_value(unsigned short bits) {
  const unsigned sign = (unsigned)(bits & 0x8000) << 16, rest = bits & 0x7fff;
  union { unsigned u; float f; } wide = {rest << 13};
  wide.f *= 0x1p112f;  // moves the exponent, and makes denormals normal
  if (rest >= 0x7c00) wide.u |= 0x7f800000;
  wide.u |= sign;
  return wide.f;
}
static inline unsigned short float16_bits(float value) {
  union { float f; unsigned u; } wide = {value};
  const unsigned sign = wide.u >> 16 & 0x8000;
  wide.u &= 0x7fffffff;
  if (wide.u > 0x7f800000) return (unsigned short)(sign | 0x7e00 | (wide.u >> 13 & 0x3ff));
  if (wide.u >= 0x477ff000) return (unsigned short)(sign | 0x7c00);
  if (wide.u < 0x38800000) {  // denormal: let an addition do the rounding
    wide.f += 0.5f;
    return (unsigned short)(sign | (wide.u - 0x3f000000));
  }
  wide.u += 0xc8000fff + (wide.u >> 13 & 1);
  return (unsigned short)(sign | wide.u >> 13);
}
#endif""",
}

# almost half of the last place is added, and 1 more to odd numbers; a NaN stays one
_ROUND = "((BITS)a + 0x7fff + ((BITS)a >> 16 & 1)) | ((BITS)(a != a) & 0x7fc00000)"
_HALF_LANES = {
    ("bfloat16", "value"): "(WIDE)(__builtin_convertvector(a, BITS) << 16)",
    ("bfloat16", "upper"): "__builtin_convertvector(a >> 16, HALF)",
    ("bfloat16", "bits"): "bfloat16_upper_xLANES((BITS)a)",
    ("bfloat16", "cut"): f"bfloat16_upper_xLANES({_ROUND})",
    ("bfloat16", "rounded"): f"(WIDE)(({_ROUND}) & 0xffff0000)",
    ("float16", "rounded"): "float16_value_xLANES(float16_bits_xLANES(a))",
}
# a comparison of these clang would make one of halves, lane by lane
_OPAQUE = '({ WIDE v = (WIDE)VALUE; __asm__("" : "+x"(v)); v; })'
_X86 = {  # instructions that compilers do not find by themselves, and where they are
    ("bfloat16", "value", 8): (
        "defined(__AVX2__) && !defined(__clang__)",
        "(WIDE)((BITS)__builtin_ia32_pmovzxwd256((SHORTS)a) << 16)",
    ),
    ("bfloat16", "value", 16): (
        "defined(__AVX512F__) && !defined(__clang__)",
        "(WIDE)((BITS)__builtin_ia32_pmovzxwd512_mask((SHORTS)a, (INTS){0}, -1) << 16)",
    ),
    ("bfloat16", "upper", 8): (  # which packs whole, as nothing is above them
        "defined(__AVX2__) && !defined(__AVX512VL__) && !defined(__clang__)",
        "({ typedef long long parts __attribute__((vector_size(32)));"
        " const INTS v = (INTS)(a >> 16);"
        " const parts near = (parts)__builtin_ia32_packusdw256(v, v);"
        " const parts all = __builtin_shuffle(near, (parts){0, 2, 1, 3}); *(const HALF *)&all; })",
    ),
    ("bfloat16", "upper", 4): (
        "defined(__SSE4_1__) && !defined(__AVX512VL__) && !defined(__clang__)",
        "({ typedef short packed __attribute__((vector_size(16))); const INTS v = (INTS)(a >> 16);"
        " const packed all = __builtin_ia32_packusdw128(v, v); *(const HALF *)&all; })",
    ),
    ("bfloat16", "upper", 16): (
        "defined(__AVX512F__) && !defined(__clang__)",
        "(HALF)__builtin_ia32_pmovdw512_mask((INTS)(a >> 16), (SHORTS){0}, -1)",
    ),
    ("float16", "value", 4): (
        "defined(__SSE2__)",
        "({\n#ifdef __F16C__\n  typedef short eight __attribute__((vector_size(16)));"
        " typedef long long words __attribute__((vector_size(16)));"
        " (WIDE)__builtin_ia32_vcvtph2ps((eight)(words){(long long)a});\n#else\n"
        "  const INTS w = __builtin_convertvector(a, INTS), rest = w & 0x7fff;"
        " const INTS moved = (INTS)((FLOATS)(rest << 13) * 0x1p112f);"
        " (WIDE)(moved | ((rest > 0x7bff) & 0x7f800000) | (w & 0x8000) << 16);\n#endif\n  })",
    ),
    ("float16", "bits", 4): (  # each lane in the three ways of float16_bits
        "defined(__SSE2__)",
        "({ typedef short packed __attribute__((vector_size(16)));\n#ifdef __F16C__\n"
        "  const packed all = __builtin_ia32_vcvtps2ph((FLOATS)a, 0);\n#else\n"
        "  const INTS u = (INTS)a & 0x7fffffff, least = u < 0x38800000, most = u > 0x477fefff;"
        " const INTS plain = (u - 0x37fff001 + (u >> 13 & 1)) >> 13;"
        " const INTS small = (INTS)((FLOATS)u + 0.5f) - 0x3f000000;"
        " const INTS large = 0x7c00 | ((u > 0x7f800000) & (0x200 | (u >> 13 & 0x3ff)));"
        " const INTS made = (least & small) | (most & large) | (~(least | most) & plain);"
        " const INTS v = (made | ((INTS)a >> 16 & 0x8000)) << 16 >> 16;"
        " const packed all = __builtin_ia32_packssdw128(v, v);\n#endif\n  *(const HALF *)&all; })",
    ),
    ("float16", "value", 8): (
        "defined(__F16C__)",
        _OPAQUE.replace("VALUE", "__builtin_ia32_vcvtph2ps256((SHORTS)a)"),
    ),
    ("float16", "bits", 8): (
        "defined(__F16C__)",
        "(HALF)__builtin_ia32_vcvtps2ph256((FLOATS)a, 0)",
    ),
    ("float16", "value", 16): (
        "defined(__AVX512F__)",
        _OPAQUE.replace("VALUE", "__builtin_ia32_vcvtph2ps512_mask((SHORTS)a, (FLOATS){0}, -1, 4)"),
    ),
    ("float16", "bits", 16): (
        "defined(__AVX512F__)",
        "(HALF)__builtin_ia32_vcvtps2ph512_mask((FLOATS)a, 0, (SHORTS){0}, -1)",
    ),
}


@lru_cache
def half_lanes(dtype: str, what: str, half: str, wide: str, bits: str, lanes: int) -> str:
    """What is made of `lanes` halves: "value", floats; "bits", of floats that are "rounded", or
    "cut", both at once, so that no bits are cleared that are shifted out; of "upper" bits."""
    source = {"value": half, "upper": bits}.get(what, wide)
    target = wide if what in ("value", "rounded") else half
    name, words = f"{dtype}_{what}", {"WIDE": wide, "BITS": bits, "HALF": half}
    words |= {"LANES": str(lanes), "SHORTS": f"short __attribute__((vector_size({2 * lanes})))"}
    words |= {
        f"{kind.upper()}S": f"{kind} __attribute__((vector_size({4 * lanes})))"
        for kind in ("float", "int")
    }

    def made(text: str) -> str:
        head = f"static inline {target} {name}_x{lanes}({source} a)"
        return f"{head} {{\n  return {filled(text, words)};\n}}"

    general = _HALF_LANES.get((dtype, what))
    plain = (
        made(general)
        if general
        else lane_function(f"{name}_x{lanes}", name, target, [source], lanes)
    )
    if (dtype, what, lanes) not in _X86:
        return plain
    present, text = _X86[dtype, what, lanes]
    return f"#if {present}\n{made(text)}\n#else\n{plain}\n#endif"


_SHL = """static inline TYPE NAME(TYPE a, TYPE b) {
  return b >= 0 && b < BITS ? (TYPE)((unsigned long long)a << b) : 0;
}"""
_SHR = """static inline TYPE NAME(TYPE a, TYPE b) {
  return b >= 0 && b < BITS ? a >> b : a < 0 ? -1 : 0;
}"""
_ROTL = "  return (TYPE)(a << (b & (BITS - 1)) | a >> (-b & (BITS - 1)));"  # of lanes, too
_MAX = "static inline TYPE NAME(TYPE a, TYPE b) { return a > b ? a : b; }"
_MIN = _MAX.replace(">", "<")
_MAX_OF_FLOATS = """static inline TYPE NAME(TYPE a, TYPE b) {
  const TYPE m = a > b ? a : b;  // without a branch, which could not be predicted
  return a != a ? a : m;
}"""

# by kind of dtype: floating, signed, unsigned
FUNCTIONS: dict[Op, dict[str, str]] = {
    Op.MAX: {"f": _MAX_OF_FLOATS, "i": _MAX, "u": _MAX},
    Op.MIN: {"f": _MAX_OF_FLOATS.replace(">", "<"), "i": _MIN, "u": _MIN},
    # erfc(x) at x = -b / sqrt(2), and its slope times what x lacks
    Op.NDTR: {
        "f": """static inline TYPE NAME(TYPE a, TYPE b) {
  const TYPE part = -0.70710678118654757, x = b * part;
  TYPE lost = __builtin_fmaSUFFIX(b, part, -x) + b * 4.8336466567264567e-17;
  lost = lost - lost == 0 ? lost * __builtin_expSUFFIX(-x * x) * 1.1283791670955126 : 0;
  return a * 0.5 * (__builtin_erfcSUFFIX(x) - lost);
}"""
    },
    Op.SHL: {"i": _SHL, "u": _SHL.replace("b >= 0 && ", "")},
    Op.SHR: {"i": _SHR, "u": _SHR.replace("b >= 0 && ", "").replace("a < 0 ? -1 : 0", "0")},
    Op.ROTL: {"u": f"static inline TYPE NAME(TYPE a, TYPE b) {{\n{_ROTL}\n}}"},
    Op.IDIV: {
        "u": """static inline TYPE NAME(TYPE a, TYPE b) { return b ? a / b : 0; }""",
        "i": """static inline TYPE NAME(TYPE a, TYPE b) {
  if (b == 0) return 0;
  if (b == -1) return (TYPE)(0ull - (unsigned long long)a);  // the least value has no negative
  const TYPE q = a / b;
  return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}""",
    },
    Op.MOD: {
        "u": """static inline TYPE NAME(TYPE a, TYPE b) { return b ? a % b : 0; }""",
        "i": """static inline TYPE NAME(TYPE a, TYPE b) {
  if (b == 0 || b == -1) return 0;
  const TYPE r = a % b;
  return r && (r < 0) != (b < 0) ? r + b : r;
}""",
        "f": """static inline TYPE NAME(TYPE a, TYPE b) {
  const TYPE r = __builtin_fmodSUFFIX(a, b);
  if (r == 0) return __builtin_copysignSUFFIX((TYPE)0, b);
  return (r < 0) != (b < 0) ? r + b : r;
}""",
    },
}

# on lanes, without branches, so that a compiler sees a divisor that is a number; masks are -1 or 0
_LANES_SHL = """  const MASK within = (UNSIGNED)b < BITS;
  return (TYPE)((UNSIGNED)within & (UNSIGNED)a << (UNSIGNED)(b & (BITS - 1)));"""
_LANES_SHR = """  const MASK within = (UNSIGNED)b < BITS;
  return a >> ((b & within) | (~within & (BITS - 1)));"""
# of magnitudes, which are whole also for the least value; a quotient below 0 is ~(those less 1)
_LANES_DIVIDE = """  const TYPE zero = b == 0, minus = a >> (BITS - 1), by = b >> (BITS - 1);
  const UNSIGNED below = (UNSIGNED)((by & (a > 0)) | (~by & minus));
  const UNSIGNED magnitude = (UNSIGNED)(a ^ minus) - (UNSIGNED)minus + below;
  const UNSIGNED safe = (UNSIGNED)(b ^ by) - (UNSIGNED)by - (UNSIGNED)zero;
  const TYPE q = (TYPE)(magnitude / safe ^ below) & ~zero;
"""

LANE_BODIES: dict[Op, dict[str, str]] = {
    Op.SHL: {"i": _LANES_SHL, "u": _LANES_SHL},
    Op.SHR: {
        "i": _LANES_SHR,
        "u": """  const MASK within = b < BITS;
  return (TYPE)within & a >> (b & (BITS - 1));""",
    },
    Op.ROTL: {"u": _ROTL},
    Op.IDIV: {
        "u": """  const TYPE zero = (TYPE)(b == 0);
  return a / (b - zero) & ~zero;""",
        "i": f"""{_LANES_DIVIDE}  return q;""",
    },
    Op.MOD: {
        "u": """  const TYPE safe = b - (TYPE)(b == 0);
  return a - a / safe * safe;""",
        "i": f"""{_LANES_DIVIDE}  return (a - q * b) & ~zero;""",
    },
}


def lane_body(op: Op, kind: str, names: dict[str, str]) -> str:
    """A function of two vectors for a kind of integers, with its types and name filled in."""
    return filled(f"static inline TYPE NAME(TYPE a, TYPE b) {{\n{LANE_BODIES[op][kind]}\n}}", names)
