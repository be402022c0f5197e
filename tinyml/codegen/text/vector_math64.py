"""Elementary functions on float64 lanes, as C text.

F64 and I64 stand for the vector types, LANES for their width. Arguments are reduced as in
`vector_math`: by a log(2) in two parts, the first so short that its multiples are exact (Cody and
Waite 1980). The polynomials are minimax, by Remez' exchange on their own intervals: below 4e-18
relative to the result, a thirtieth of an ulp. With what the last additions and the reduced
argument round, that is at most 0.9 ulp (measured against mpmath: docs/numerics.md). Other ops
go to libm, lane by lane.
"""

from __future__ import annotations

from tinyml.codegen.text.vector_parts import part, written_out
from tinyml.ops import Op

CLAMP64, _PICK, _SCALE = (part(f"{name}_KIND", "F64") for name in ("clamp", "pick", "scale"))

# t = START - n * log(2) for the nearest n; p * t * t is exp(t) - 1 - t
_EXP_PARTS = written_out("""
  F64 t = START;
  const F64 shifted = t * 1.4426950408889634 + 6755399441055744.0;  // rounds by losing low bits
  const F64 n = shifted - 6755399441055744.0;
  t = t - n * 0.6931471803691238;
  t = t - n * 1.9082149292705877e-10;
  F64 p = [t: 2.500008442577437e-08, 2.763024879588082e-07, 2.755758629088442e-06,
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
  F64 p = [t: 4.43630464870327e-10, 7.07358592420303e-09, 1.017818468796241e-07,
    1.321543657394284e-06, 1.5252733546700478e-05, 1.5403530454129652e-04,
    1.3333558146686358e-03, 9.618129107596941e-03, 5.550410866482074e-02,
    2.4022650695910122e-01, 2.3190468138462996e-17];
  const F64 r = t * 0.6931471805599453, s = 1.0 + r, rest = r - (s - 1.0);
  return scale_F64(p * t + rest + s, shifted);
}
""")

# 1 + m in [sqrt(1/2), sqrt(2)) with x = (1 + m) * 2**e; with s = m / (2 + m), a series in s * s
_LOG = written_out("""static inline F64 log_F64(F64 x) {
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
  y = s * (y * z + half) + e * 1.9082149292705877e-10;
  F64 r = e * 0.6931471803691238 - ((half - y) - m);
  r = pick_F64(x == __builtin_inf(), x, r);
  r = pick_F64(x == 0.0, zero - __builtin_inf(), r);
  r = pick_F64((x < 0.0) | (x != x), zero + __builtin_nan(""), r);
  return r;
}
""")

BODIES64: dict[Op, str] = {
    Op.EXP: CLAMP64 + _SCALE + _EXP,
    Op.LOGISTIC: CLAMP64 + LOGISTIC,
    Op.EXP2: CLAMP64 + _SCALE + _EXP2,
    Op.LOG: _PICK + _LOG,
    Op.ABS: part("abs_KIND", "F64"),
    Op.MOD: part("mod_KIND", "F64"),
}
