"""Elementary functions on float64 lanes, as C text.

F64 and I64 stand for the vector types, LANES for their width. Arguments are reduced as in
`vector_math`: by a log(2) in two parts, the first so short that its multiples are exact (Cody and
Waite 1980). The polynomials are minimax, by Remez' exchange on their own intervals: below 4e-18
relative to the result, a thirtieth of an ulp, but where it is said. With what the last additions
and the reduced argument round, that is at most 0.9 ulp, of tan, tanh, atan and the normal
distribution function 1.5 (measured against mpmath: docs/numerics.md).
"""

from __future__ import annotations

from tinyml.codegen.text.vector_parts import circular, once, part, written_out
from tinyml.ops import Op

CLAMP64, _PICK, _SCALE = (part(f"{name}_KIND", "F64") for name in ("clamp", "pick", "scale"))
_SIGNED, _ANY = part("signed_KIND", "F64"), part("any_BITS", "F64")
_ABS, _FMA, _POWERED = (part(f"{name}_KIND", "F64") for name in ("abs", "fma", "powered"))
# the first 21 bits: products of two such numbers, and what they leave of others, are exact
_HEAD = once(
    "HEAD_F64",
    """static inline F64 head_F64(F64 x) {
  return (F64)((I64)(x) & -0x100000000);
}
""",
)
# a * b + c rounded once, and c - a * b where that is next to 0. Without an instruction, the first
# is rounded twice, and parts of a and b make the second
_FUSED = once(
    "FUSED_F64",
    """#if defined(__SSE2__) && !defined(__FMA__)
static inline F64 fused_F64(F64 a, F64 b, F64 c) {
  return a * b + c;
}
static inline F64 left_F64(F64 a, F64 b, F64 c) {
  const F64 first = head_F64(a), second = head_F64(b), rest = a - first;
  return c - first * second - rest * second - (b - second) * first - (b - second) * rest;
}
#else
static inline F64 fused_F64(F64 a, F64 b, F64 c) {
  return fma_F64(a, b, c);
}
static inline F64 left_F64(F64 a, F64 b, F64 c) {
  return fma_F64(-a, b, c);
}
#endif
""",
)

# t = START - n * log(2) for the nearest n; p * t * t is exp(t) - 1 - t
_EXP_PARTS = written_out("""
  F64 t = START;
  const F64 shifted = t * 1.4426950408889634 + 6755399441055744.0;  // rounds by losing low bits
  const F64 n = shifted - 6755399441055744.0;
  t = t - n * 0.6931471803691238;
  t = t - n * 1.9082149292705877e-10;
  const F64 tt = t * t;
  F64 p = [t, tt: 2.500008442577437e-08, 2.763024879588082e-07, 2.755758629088442e-06,
    2.4801493097828538e-05, 1.9841269506688846e-04, 1.3888888943631085e-03,
    8.333333333494399e-03, 4.1666666666530155e-02, 1.6666666666666413e-01,
    5.000000000000011e-01];
""")


def _exp_parts(start: str) -> str:
    return _EXP_PARTS.replace("START", start)


# s + rest is 1 + t
_EXP = f"""static inline F64 exp_F64(F64 x) {{{_exp_parts("clamp_F64(x, -1418.2, 710.0)")}
  const F64 s = 1.0 + t, rest = t - (s - 1.0);
  return scale_F64(p * (t * t) + rest + s, shifted);
}}
"""

# as in `vector_math`, with 2**1000 and 2**2023
LOGISTIC = f"""static inline F64 logistic_F64(F64 a, F64 b, F64 c) {{
  const F64 x = clamp_F64(b, -708.0, 1402.3);{_exp_parts("x")}
  const F64 most = clamp_F64(shifted, 0.0, 6755399441056744.0);
  const I64 none = {{0}}, one = none + 0x3ff0000000000000, far = (I64)(shifted) - (I64)(most);
  const F64 up = (F64)(((I64)(most) << 52) + one), down = (F64)(one - (far << 52));
  p = p * (t * t) + t;
  const F64 s = p + 0x1.0000000000004p0;
  F64 rest = p - (s - 1.0);
  rest = (s + rest) * c + rest;
  return a * down / (rest * up + 1.0 + s * up);
}}
"""

# p * t is 2**t - 1 - t * log(2), for the float64 next to log(2); s + rest is 1 + t * log(2)
_EXP2_PARTS = written_out("""
  const F64 tt = t * t;
  F64 p = [t, tt: 4.43630464870327e-10, 7.07358592420303e-09, 1.017818468796241e-07,
    1.321543657394284e-06, 1.5252733546700478e-05, 1.5403530454129652e-04,
    1.3333558146686358e-03, 9.618129107596941e-03, 5.550410866482074e-02,
    2.4022650695910122e-01, 2.3190468138462996e-17];
  const F64 r = t * 0.6931471805599453, s = 1.0 + r, rest = r - (s - 1.0);
""")

_EXP2 = f"""static inline F64 exp2_F64(F64 x) {{
  F64 t = clamp_F64(x, -2046.0, 1025.0);
  const F64 shifted = t + 6755399441055744.0;
  t = t - (shifted - 6755399441055744.0);{_EXP2_PARTS}  return scale_F64(p * t + rest + s, shifted);
}}
"""

# 1 + m in [sqrt(1/2), sqrt(2)) with x = (1 + m) * 2**e
_LOG_SPLIT = """
  const I64 small = x < 0x1p-1022;
  const F64 normal = pick_F64(small, x * 0x1p54, x);
  const I64 bits = (I64)normal - 0x3fe6a09e667f3bcd;
  const I64 exponent = (bits >> 52) - (small & 54);
  const F64 m = (F64)((bits & 0xfffffffffffff) + 0x3fe6a09e667f3bcd) - 1.0;
  const F64 e = (F64)(exponent + 0x4338000000000000) - 6755399441055744.0;"""

# with s = m / (2 + m), a series in s * s: log(1 + m) is m - half + s * y
_LOG_PARTS = _LOG_SPLIT + written_out("""
  const F64 zero = {0};
  const F64 s = m / (m + 2.0), z = s * s, half = m * m * 0.5;
  F64 y = [z: 1.4796119865882246e-01, 1.5314034414213232e-01, 1.8183564921703096e-01,
    2.222219856242745e-01, 2.857142874248528e-01, 3.9999999999414276e-01,
    6.666666666666734e-01];
""")

_LOG_ENDS = """
  r = pick_F64(x == __builtin_inf(), x, r);
  r = pick_F64(x == 0.0, zero - __builtin_inf(), r);
  r = pick_F64((x < 0.0) | (x != x), zero + __builtin_nan(""), r);
"""

_LOG = f"""static inline F64 log_F64(F64 x) {{{_LOG_PARTS}
  y = s * (y * z + half) + e * 1.9082149292705877e-10;
  F64 r = e * 0.6931471803691238 - ((half - y) - m);{_LOG_ENDS}  return r;
}}
"""

# log(u) for the float u nearest to 1 + x, and what u lacks divided by u: log's derivative
_LOG1P = f"""static inline F64 log1p_F64(F64 less) {{
  const F64 x = 1.0 + less;{_LOG_PARTS}
  y = s * (y * z + half) + e * 1.9082149292705877e-10 + (less - (x - 1.0)) / x;
  F64 r = e * 0.6931471803691238 - ((half - y) - m);{_LOG_ENDS}  return signed_F64(r, less);
}}
"""

# log(1 + m) is high + low, where products of `high` with 21 bits of 1/log(2) are exact
_LOG2 = f"""static inline F64 log2_F64(F64 x) {{{_LOG_PARTS}
  const F64 high = head_F64(m - half);
  const F64 low = m - high - half + s * (y * z + half), first = high * 1.4426946640014648;
  const F64 sum = e + first, more = e - sum + first;
  const F64 rest = low * 1.4426950408889634 + high * 3.768874985636099e-07 + more;
  F64 r = rest + sum;{_LOG_ENDS}  return r;
}}
"""

# twice sum + more is exp(t) * 2**n - 1, where 2**n is twice `up`: it may be beyond the largest
# float. What t lacks is `low`, what the sum lacks `lost`
_EXPM1_PARTS = f"""{_exp_parts("y")}
  const F64 low = y - n * 0.6931471803691238 - t - n * 1.9082149292705877e-10;
  const F64 up = (F64)(((I64)shifted << 52) + 0x3fe0000000000000);
  const F64 less = up - 0.5, sum = t * up + less, lost = less - sum + t * up;
  const F64 more = (p * (t * t) + low) * up + lost;
"""
_EXPM1 = f"""static inline F64 expm1_F64(F64 x) {{
  const F64 y = clamp_F64(x, -40.0, 710.0);{_EXPM1_PARTS}
  return signed_F64((more + sum) * 2.0, x);
}}
"""

# half / (half + 1), and what half and the divisor lack, divided by it: it is 1 / (1 - q). Where
# half is above 1, that is 1 - 1 / (half + 1)
_TANH = f"""static inline F64 tanh_F64(F64 x) {{
  const F64 y = clamp_F64((F64)((I64)x & 0x7fffffffffffffff) * 2.0, 0.0, 44.0);{_EXPM1_PARTS}
  const F64 half = more + sum, by = half + 1.0, rest = more - (half - sum);
  const I64 far = half > 1.0;
  const F64 q = pick_F64(far, (F64){{0}} + 1.0, half) / by;
  const F64 near = (rest - q * (half - (by - 1.0) + rest)) * (1.0 - q) + q;
  return signed_F64(pick_F64(far, 1.0 - q, near), x);
}}
"""

# quadrant j of a = |x|, and t + low = a - j * pi/2 in four steps: j is below 2**20, the factors but
# for the last have 33 bits, so that products are exact; larger arguments go to libm lane by lane
_QUADRANT = """
  const F64 a = (F64)((I64)x & 0x7fffffffffffffff);
  const I64 large = a > 0x1p20;
  const F64 shifted = a * 0.6366197723675814 + 6755399441055744.0;
  const F64 n = shifted - 6755399441055744.0;
  const I64 j = (I64)shifted + TURN;  // but for bits that nobody asks
  const F64 first = a - n * 1.5707963267341256;
  const F64 second = first - n * 6.077100506303966e-11;
  const F64 third = second - n * 2.0222662487111665e-21;
  F64 low = first - second - n * 6.077100506303966e-11;
  low = second - third - n * 2.0222662487111665e-21 + low - n * 8.4784276603689e-32;
  const F64 t = third + low;
  low = low - (t - third);
"""

# s + t is the sine, c + w the cosine
_CIRCLE_PARTS = written_out("""  const F64 z = t * t, half = z * 0.5, w = 1.0 - half;
  F64 s = [z: 1.5896197372877123e-10, -2.5050747213004536e-08, 2.75573136179796e-06,
    -0.00019841269829580047, 0.008333333333322108, -0.1666666666666663];
  F64 c = [z: -1.1358513979680993e-11, 2.087570041670561e-09, -2.7557314176245156e-07,
    2.4801587288841417e-05, -0.001388888888887304, 0.041666666666666595];
  s = s * (z * t) + (low - low * half);
  c = c * (z * z) - t * low + (1.0 - w - half);
""")
_CIRCLE = f"{_CIRCLE_PARTS}  F64 r = pick_F64((j & 1) != 0, c + w, s + t);\n"

# a quotient, and what its parts lack
_TAN = f"""{_CIRCLE_PARTS}  const I64 odd = (j & 1) != 0;
  const F64 sine = s + t, cosine = c + w, more = s - (sine - t), rest = c - (cosine - w);
  const F64 by = pick_F64(odd, sine, cosine), q = pick_F64(odd, -cosine, sine) / by;
  F64 r = (pick_F64(odd, -rest, more) - q * pick_F64(odd, more, rest)) / by + q;
"""

# of |x| up to 1/2; beyond that of what is left of pi/4, and beyond 2 of what is left of pi/2
_ATAN = written_out("""static inline F64 atan_F64(F64 x) {
  const F64 zero = {0}, one = zero + 1.0, a = (F64)((I64)x & 0x7fffffffffffffff);
  const I64 near = a <= 0.5, far = a > 2.0;
  const F64 over = pick_F64(near, a, pick_F64(far, -one, a - 1.0));
  const F64 t = over / pick_F64(near, one, pick_F64(far, a, a + 1.0)), z = t * t;
  F64 p = [z: -0.008347947132484015, 0.023625893421762505, -0.03709759030780817,
    0.0458855496872074, -0.052297700789069944, 0.058777627505346555, -0.06666217986227092,
    0.07692276998277223, -0.09090907665398394, 0.1111111106841692, -0.1428571428495807,
    0.1999999999999324, -0.33333333333333315];
  const F64 from = pick_F64(far, zero + 1.5707963267948966, zero + 0.7853981633974483);
  const F64 less = pick_F64(far, zero + 6.123233995736766e-17, zero + 3.061616997868383e-17);
  p = p * (z * t);
  return signed_F64(pick_F64(near, p + t, p + less + t + from), x);
}
""")

# 2**(b * log2(x)): the logarithm, b and their product are in two parts, of which the first has 21
# bits. With q = m / (m + 2), whose first part is o, and w = q * q, log(1 + m) is two thirds of
# q * (3 + w + w * w * g). The polynomial (Remez' exchange, in mpmath at 45 digits) is 2**-66 of the
# sum off; roundings leave 2**-64, times log(2) * 1024 at most: a quarter of an ulp.
_LOG_OF_BASE = written_out(f"""{_LOG_SPLIT}
  const F64 by = m + 2.0, part = 1.0 / by, first = head_F64(by), last = m - (first - 2.0);
  const F64 o = head_F64(m * part), lost = (m - o * first - o * last) * part;
  const F64 q = o + lost, z = o * o, over = lost * (o + q), w = z + over, ww = w * w;
  F64 g = [w, ww: 0.19794380394937197, 0.19885241284509023, 0.23080135236271832,
    0.27272676570631277, 0.33333333779609514, 0.428571428551512, 0.6000000000000338];
  g = g * ww + over;
  const F64 most = head_F64(g + z + 3.0), least = g - (most - 3.0 - z);
  const F64 product = o * most, more = lost * most + least * q;
  const F64 high = head_F64(product + more), low = more - (high - product);
  const F64 start = high * 0.9617962837219238;
  const F64 end = high * 4.102040517767816e-07 + low * 0.9617966939259756;
  const F64 digits = head_F64(e + start + end), others = end - (digits - e - start);
""")
# clamped exponents make what is too large, or too small, as any beyond them; so do clamped sums
_POW = f"""static inline F64 pow_F64(F64 a, F64 b) {{
  const F64 x = abs_F64(a), y = clamp_F64(b, -0x1p65, 0x1p65), whole = head_F64(y);{_LOG_OF_BASE}
  const F64 ends = pick_F64(x == 0.0, (F64){{0}} - __builtin_inf(), x) * y;
  const I64 within = (x > 0.0) & (x < __builtin_inf());
  const F64 much = clamp_F64(pick_F64(within, whole * digits, ends), -2045.5, 1024.5);
  const F64 little = clamp_F64((y - whole) * digits + y * others, -0.25, 0.25);
  const F64 shifted = much + little + 6755399441055744.0;
  const F64 left = much - (shifted - 6755399441055744.0), t = left + little;{_EXP2_PARTS}
  const F64 rests = (left - t + little) * (s * 0.6931471805599453) + rest;
  return powered_F64(a, b, scale_F64(p * t + rests + s, shifted));
}}
"""

# of |x| up to 1, x times a polynomial; beyond that 1 - erfc(x), where exp(x * x) * erfc(x) is a
# polynomial in (x - 1) / (x + 3.5), at 6 and more all but 0 (Remez' exchange, in mpmath at 45
# digits): a tenth of an ulp off
_ERF = written_out(f"""static inline F64 erf_F64(F64 x) {{
  const F64 a = abs_F64(x), z = x * x, size = clamp_F64(a, 1.0, 6.0), zz = z * z;
  F64 near = [z, zz: -7.903148514691532e-10, 1.3781484483918932e-08, -1.6223752327416722e-07,
    1.6449583341885948e-06, -1.4924927907352891e-05, 0.00012055305869986381,
    -0.0008548326384939186, 0.00522397761682071, -0.02686617064461269, 0.11283791670955377,
    -0.37612638903183865, 0.1283791670955126];
  const F64 u = (size - 1.0) / (size + 3.5), uu = u * u;
  F64 v = [u, uu: -0.006263035905030769, 0.010176577929814136, 0.019745101090361032,
    -0.06692614953238717, -0.015309538179699149, 0.4242427124323649, -1.160578533683294,
    1.896935365145803, -2.196963375631766, 1.8965700512520862, -1.2294540665275357,
    0.427583576155807];{_exp_parts("size * -size")}
  v = v * (F64)(((I64)shifted << 52) + 0x3ff0000000000000);
  return signed_F64(pick_F64(a < 1.0, near * a + a, 1.0 - (p * (t * t) + t + 1.0) * v), x);
}}
""")

# As in `vector_math`, with y = 2 / (size + 3.5) and size * size in two parts: what their roundings
# change is `low` and, to first order, `more`. The polynomial is exp(size * size / 2) * P(N(0, 1) >
# size) / y (Remez' exchange, in mpmath at 45 digits), 1.7e-17 off, a seventh of an ulp.
_NDTR = written_out(f"""static inline F64 ndtr_F64(F64 a, F64 b) {{
  const F64 zero = {{0}}, size = clamp_F64(abs_F64(b), 0.0, 39.0), whole = head_F64(size);
  const F64 square = whole * whole * -0.5, lack = (size - whole) * (size + whole) * 0.5;
  const F64 x = square - lack;{_exp_parts("x")}
  const F64 beside = square - x - lack;
  const F64 low = x - n * 0.6931471803691238 - t - n * 1.9082149292705877e-10 + beside;
  const F64 s = 1.0 + t, rest = p * (t * t) + (t - (s - 1.0)) + low * (p * (t * t) + s);
  const F64 q = size + 3.5, y = pick_F64(b < -39.0, zero, 2.0 / q);
  const F64 more = (left_F64(y, q, zero + 2.0) + (q - 3.5 - size) * y) * (y * 1.71043 + 0.412716);
  const F64 u = y - 0.212890625, uu = u * u;
  F64 r = [u, uu: -2442.158208792967, 6389.396088777388, -6443.685640333733, 2312.079167200992,
    944.0856638887682, -1087.2800865675467, 66.68713934022256, 298.9416203328153,
    -81.68822481378895, -78.27953008889052, 36.93415657462143, 22.817136942081813,
    -14.499125861140191, -8.509941945600305, 5.449483965992843, 4.37281343275912,
    -1.6707355833313506, -2.8452915264237224, -0.38013756662545073, 1.683764151140732,
    2.0405948433720686, 1.4353105568456437];
  const F64 least = zero + 0.30945682882395836, second = zero + 0.7457071114569503;
  const F64 last = fused_F64(r, u, second), high = fused_F64(last, u, least);
  const F64 lost = fused_F64(last, u, least - high) + fused_F64(r, u, second - last) * u;
  const F64 made = high * s, over = (high * more + lost) * (s + rest) + high * rest;
  const F64 finite = clamp_F64(a, -0x1.fffffffffffffp1023, 0x1.fffffffffffffp1023), ay = finite * y;
  const F64 less = left_F64(finite, y, ay) + (finite - a) * y;
  const F64 tail = (over - left_F64(high, s, made)) * ay - made * less;
  const F64 below = scale_F64(made * ay + tail, shifted);
  const F64 lower = clamp_F64(below, -0x1.fffffffffffffp1023, 0x1.fffffffffffffp1023);
  return pick_F64(b <= 0.0, below, a - lower);
}}
""")

BODIES64: dict[Op, str] = {
    Op.EXP: CLAMP64 + _SCALE + _EXP,
    Op.LOGISTIC: CLAMP64 + LOGISTIC,
    Op.EXP2: CLAMP64 + _SCALE + _EXP2,
    Op.EXPM1: CLAMP64 + _SIGNED + _EXPM1,
    Op.LOG: _PICK + _LOG,
    Op.LOG2: _PICK + _HEAD + _LOG2,
    Op.LOG1P: _PICK + _SIGNED + _LOG1P,
    Op.SIN: _PICK + _ANY + circular("sin", "F64", _QUADRANT, _CIRCLE, "((j << 62) ^ (I64)x)"),
    Op.COS: _PICK + _ANY + circular("cos", "F64", _QUADRANT, _CIRCLE, "(j << 62)", turn=1),
    Op.TAN: _PICK + _ANY + circular("tan", "F64", _QUADRANT, _TAN, "(I64)x"),
    Op.ATAN: _PICK + _SIGNED + _ATAN,
    Op.TANH: CLAMP64 + _SIGNED + _TANH,
    Op.ERF: CLAMP64 + _SIGNED + _ABS + _ERF,
    Op.ABS: _ABS,
    Op.MOD: part("mod_KIND", "F64"),
    Op.POW: CLAMP64 + _SCALE + _ABS + _HEAD + _POWERED + _POW,
    Op.TRUNC: part("trunc_KIND", "F64"),
    Op.NDTR: CLAMP64 + _SCALE + _ABS + _FMA + _HEAD + _FUSED + _NDTR,
}
