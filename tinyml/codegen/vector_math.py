"""Elementary functions on float32 lanes, as C text.

F32 and I32 stand for the vector types, LANES for their width. Each reduces its argument to a
short interval, evaluates a polynomial there (minimax, Cephes' coefficients, S. Moshier 1992),
and puts the exponent or sign back. NaN, infinities, -0.0 and denormals come out as libm's.
"""

from __future__ import annotations

from tinyml.ops import Op

PICK = """static inline F32 pick_F32(I32 m, F32 a, F32 b) {
  return (F32)((m & (I32)a) | (~m & (I32)b));
}
"""

# p * 2**n in two steps, so that results may be denormal or overflow to infinity
SCALE = """static inline F32 scale_F32(F32 p, I32 n) {
  const I32 half = n >> 1;
  return p * (F32)((half + 127) << 23) * (F32)((n - half + 127) << 23);
}
"""

_ONCE = "#ifndef DONE_NAME_F32\n#define DONE_NAME_F32\nBODY#endif\n"


def _once(name: str, body: str) -> str:
    return _ONCE.replace("NAME", name).replace("BODY", body)


_PICK, _SCALE = _once("pick", PICK), _once("scale", SCALE)

_EXP = """static inline F32 exp_F32(F32 x) {
  const F32 zero = {0};
  F32 t = pick_F32(x < -104.0f, zero - 104.0f, pick_F32(x > 89.0f, zero + 89.0f, x));
  const F32 shifted = t * 1.44269504f + 12582912.0f;  // round to nearest by losing low bits
  const F32 n = shifted - 12582912.0f;
  t = t - n * 0.693359375f;
  t = t + n * 2.12194440e-4f;
  F32 p = t * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * t + 8.3334519073e-3f;
  p = p * t + 4.1665795894e-2f;
  p = p * t + 1.6666665459e-1f;
  p = p * t + 5.0000001201e-1f;
  p = p * (t * t) + t + 1.0f;
  return scale_F32(p, (I32)shifted - 0x4b400000);
}
"""

_EXP2 = """static inline F32 exp2_F32(F32 x) {
  const F32 zero = {0};
  F32 t = pick_F32(x < -151.0f, zero - 151.0f, pick_F32(x > 129.0f, zero + 129.0f, x));
  const F32 shifted = t + 12582912.0f;
  t = t - (shifted - 12582912.0f);
  F32 p = t * 1.535336188e-4f + 1.339887440e-3f;
  p = p * t + 9.618437357e-3f;
  p = p * t + 5.550332471e-2f;
  p = p * t + 2.402264791e-1f;
  p = p * t + 6.931472028e-1f;
  p = p * t + 1.0f;
  return scale_F32(p, (I32)shifted - 0x4b400000);
}
"""

# m in [sqrt(1/2), sqrt(2)) with x = m * 2**e; y is log(m) - (m - 1)
_LOG_PARTS = """
  const F32 zero = {0};
  const I32 small = x < 1.17549435e-38f;
  const F32 normal = pick_F32(small, x * 8388608.0f, x);
  const I32 bits = (I32)normal - 0x3f3504f3;
  const I32 exponent = (bits >> 23) - (small & 23);
  const F32 m = (F32)((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
  const F32 e = __builtin_convertvector(exponent, F32);
  const F32 z = m * m;
  F32 y = m * 7.0376836292e-2f - 1.1514610310e-1f;
  y = y * m + 1.1676998740e-1f;
  y = y * m - 1.2420140846e-1f;
  y = y * m + 1.4249322787e-1f;
  y = y * m - 1.6668057665e-1f;
  y = y * m + 2.0000714765e-1f;
  y = y * m - 2.4999993993e-1f;
  y = y * m + 3.3333331174e-1f;
  y = y * m * z;
"""

_LOG_ENDS = """
  r = pick_F32(x == __builtin_inff(), x, r);
  r = pick_F32(x == 0.0f, zero - __builtin_inff(), r);
  return pick_F32((x < 0.0f) | (x != x), zero + __builtin_nanf(""), r);
}
"""

_LOG = f"""static inline F32 log_F32(F32 x) {{{_LOG_PARTS}
  y = y - e * 2.12194440e-4f - z * 0.5f;
  F32 r = m + y + e * 0.693359375f;{_LOG_ENDS}"""

_LOG2 = f"""static inline F32 log2_F32(F32 x) {{{_LOG_PARTS}
  y = y - z * 0.5f;
  F32 r = y * 0.44269504f + m * 0.44269504f + y + m + e;{_LOG_ENDS}"""

# quadrant j of x, and t = x - j * pi/2 in three steps; large arguments go to libm lane by lane
_CIRCLE = """
  const I32 large = (x > 8192.0f) | (x < -8192.0f);
  const F32 shifted = x * 0.636619772f + 12582912.0f;
  const F32 n = shifted - 12582912.0f;
  const I32 j = (I32)shifted - 0x4b400000 + TURN;
  F32 t = x - n * 1.5703125f;
  t = t - n * 4.837512969970703125e-4f;
  t = t - n * 7.54978995489188216e-8f;
  const F32 z = t * t;
  F32 s = z * -1.9515295891e-4f + 8.3321608736e-3f;
  s = s * z - 1.6666654611e-1f;
  s = s * z * t + t;
  F32 c = z * 2.443315711809948e-5f - 1.388731625493765e-3f;
  c = c * z + 4.166664568298827e-2f;
  c = c * z * z - z * 0.5f + 1.0f;
  F32 r = pick_F32((j & 1) != 0, c, s);
  r = (F32)((I32)r ^ ((j & 2) << 30));
  int any = 0;
  for (int i = 0; i < LANES; ++i) any |= large[i];
  if (any)
    for (int i = 0; i < LANES; ++i)
      if (large[i]) r[i] = __builtin_NAMEf(x[i]);
  return r;
}
"""


def _circle(name: str, turn: int) -> str:
    head = f"static inline F32 {name}_F32(F32 x) {{"
    return head + _CIRCLE.replace("TURN", str(turn)).replace("NAME", name)


_TANH = """static inline F32 tanh_F32(F32 x) {
  const F32 a = (F32)((I32)x & 0x7fffffff);
  const F32 z = x * x;
  F32 p = z * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  p = p * z * x + x;
  const F32 q = 1.0f - 2.0f / (exp_F32(a + a) + 1.0f);
  const F32 far = (F32)((I32)q | ((I32)x & (I32)((I32){0} + (int)0x80000000)));
  return pick_F32(a < 0.625f, p, far);
}
"""

_ERF = """static inline F32 erf_F32(F32 x) {
  const F32 a = (F32)((I32)x & 0x7fffffff);
  const F32 z = x * x;
  F32 p = z * 7.853861353e-5f - 8.010193625e-4f;
  p = p * z + 5.188327685e-3f;
  p = p * z - 2.685381193e-2f;
  p = p * z + 1.128358514e-1f;
  p = p * z - 3.761262582e-1f;
  p = (p * z + 1.128379167f) * x;
  const F32 q = 1.0f / a, y = q * q;
  F32 u = y * 2.326819970e-2f - 1.387039388e-1f;
  u = u * y + 3.687424674e-1f;
  u = u * y - 5.824733027e-1f;
  u = u * y + 6.210004621e-1f;
  u = u * y - 4.944515323e-1f;
  u = u * y + 3.404879937e-1f;
  u = u * y - 2.741127028e-1f;
  u = u * y + 5.638259427e-1f;
  F32 v = y * -1.047766399e+1f + 1.297719955e+1f;
  v = v * y - 7.495518717e+0f;
  v = v * y + 2.921019019e+0f;
  v = v * y - 1.015265279e+0f;
  v = v * y + 4.218463358e-1f;
  v = v * y - 2.820767439e-1f;
  v = v * y + 5.641895067e-1f;
  F32 r = 1.0f - exp_F32(-z) * q * pick_F32(a < 2.0f, u, v);
  r = pick_F32(a > 4.0f, (F32){0} + 1.0f, r);
  r = (F32)((I32)r | ((I32)x & (I32)((I32){0} + (int)0x80000000)));
  return pick_F32((a < 1.0f) | (x != x), p, r);
}
"""


def _per_lane(name: str, arity: int) -> str:
    letters = "ab"[:arity]
    parameters = ", ".join(f"F32 {x}" for x in letters)
    arguments = ", ".join(f"{x}[i]" for x in letters)
    return (
        f"static inline F32 {name}_F32({parameters}) {{\n  F32 r;\n"
        f"  for (int i = 0; i < LANES; ++i) r[i] = __builtin_{name}f({arguments});\n"
        f"  return r;\n}}\n"
    )


BODIES: dict[Op, str] = {
    Op.EXP: _PICK + _SCALE + _EXP,
    Op.EXP2: _PICK + _SCALE + _EXP2,
    Op.LOG: _PICK + _LOG,
    Op.LOG2: _PICK + _LOG2,
    Op.SIN: _PICK + _circle("sin", 0),
    Op.COS: _PICK + _circle("cos", 1),
    Op.TANH: _PICK + _TANH,
    Op.ERF: _PICK + _ERF,
    Op.SQRT: _per_lane("sqrt", 1),
    Op.TRUNC: _per_lane("trunc", 1),
    Op.POW: _per_lane("pow", 2),
}
NEEDS: dict[Op, tuple[Op, ...]] = {Op.TANH: (Op.EXP,), Op.ERF: (Op.EXP,)}
