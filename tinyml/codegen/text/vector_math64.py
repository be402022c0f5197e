"""Elementary functions on float64 lanes, as C text.

F64 and I64 stand for the vector types, LANES for their width. Arguments are reduced as in
`vector_math`: by a log(2) in two parts, the first so short that its multiples are exact (Cody and
Waite 1980). The polynomials are minimax, by Remez' exchange on their own intervals: below 4e-18
relative to the result, a thirtieth of an ulp. With what the last additions and the reduced
argument round, that is at most 0.9 ulp, of tan, tanh and atan 1.5 (measured against mpmath:
docs/numerics.md). Other ops go to libm, lane by lane.
"""

from __future__ import annotations

from tinyml.codegen.text.vector_parts import circular, part, written_out
from tinyml.ops import Op

CLAMP64, _PICK, _SCALE = (part(f"{name}_KIND", "F64") for name in ("clamp", "pick", "scale"))
_SIGNED, _ANY = part("signed_KIND", "F64"), part("any_BITS", "F64")

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

# p * t is 2**t - 1 - t * log(2), for the float64 next to log(2)
_EXP2 = written_out("""static inline F64 exp2_F64(F64 x) {
  F64 t = clamp_F64(x, -2046.0, 1025.0);
  const F64 shifted = t + 6755399441055744.0;
  t = t - (shifted - 6755399441055744.0);
  const F64 tt = t * t;
  F64 p = [t, tt: 4.43630464870327e-10, 7.07358592420303e-09, 1.017818468796241e-07,
    1.321543657394284e-06, 1.5252733546700478e-05, 1.5403530454129652e-04,
    1.3333558146686358e-03, 9.618129107596941e-03, 5.550410866482074e-02,
    2.4022650695910122e-01, 2.3190468138462996e-17];
  const F64 r = t * 0.6931471805599453, s = 1.0 + r, rest = r - (s - 1.0);
  return scale_F64(p * t + rest + s, shifted);
}
""")

# 1 + m in [sqrt(1/2), sqrt(2)) with x = (1 + m) * 2**e; with s = m / (2 + m), a series in s * s:
# log(1 + m) is m - half + s * y
_LOG_PARTS = written_out("""
  const F64 zero = {0};
  const I64 small = x < 0x1p-1022;
  const F64 normal = pick_F64(small, x * 0x1p54, x);
  const I64 bits = (I64)normal - 0x3fe6a09e667f3bcd;
  const I64 exponent = (bits >> 52) - (small & 54);
  const F64 m = (F64)((bits & 0xfffffffffffff) + 0x3fe6a09e667f3bcd) - 1.0;
  const F64 e = (F64)(exponent + 0x4338000000000000) - 6755399441055744.0;
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
  const F64 high = (F64)((I64)(m - half) & -0x100000000);
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

BODIES64: dict[Op, str] = {
    Op.EXP: CLAMP64 + _SCALE + _EXP,
    Op.LOGISTIC: CLAMP64 + LOGISTIC,
    Op.EXP2: CLAMP64 + _SCALE + _EXP2,
    Op.EXPM1: CLAMP64 + _SIGNED + _EXPM1,
    Op.LOG: _PICK + _LOG,
    Op.LOG2: _PICK + _LOG2,
    Op.LOG1P: _PICK + _SIGNED + _LOG1P,
    Op.SIN: _PICK + _ANY + circular("sin", "F64", _QUADRANT, _CIRCLE, "((j << 62) ^ (I64)x)"),
    Op.COS: _PICK + _ANY + circular("cos", "F64", _QUADRANT, _CIRCLE, "(j << 62)", turn=1),
    Op.TAN: _PICK + _ANY + circular("tan", "F64", _QUADRANT, _TAN, "(I64)x"),
    Op.ATAN: _PICK + _SIGNED + _ATAN,
    Op.TANH: CLAMP64 + _SIGNED + _TANH,
    Op.ABS: part("abs_KIND", "F64"),
    Op.MOD: part("mod_KIND", "F64"),
}
