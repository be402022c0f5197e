"""Elementary functions on float32 lanes, as C text.

F32 and I32 stand for the vector types, LANES for their width. Each reduces its argument to a
short interval, evaluates a polynomial there (minimax, Cephes' coefficients, S. Moshier 1992),
and puts the exponent or sign back. NaN, infinities, -0.0 and denormals come out as libm's;
docs/numerics.md has the measured errors, all below 2 ulp.
"""

from __future__ import annotations

from tinyml.codegen.text.vector_parts import SQRT, circular, part, written_out
from tinyml.ops import Op

_PICK, _SIGNED, _SCALE = (part(f"{name}_KIND", "F32") for name in ("pick", "signed", "scale"))
_ABS, _ANY, _CLAMP = (part(name, "F32") for name in ("abs_KIND", "any_BITS", "clamp_KIND"))
_POWERED = part("powered_KIND", "F32")
_ENTRY, _NEARER = part("entry_F32", "F32"), part("nearer_F32", "F32")

# t = START - n * log(2) for the nearest n; p * t * t is exp(t) - 1 - t
_EXP_PARTS = written_out("""
  F32 t = START;
  const F32 shifted = t * 1.44269504f + 12582912.0f;  // round to nearest by losing low bits
  const F32 n = shifted - 12582912.0f;
  t = t - n * 0.693359375f;
  t = t + n * 2.12194440e-4f;
  F32 p = [t: 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
    1.6666665459e-1f, 5.0000001201e-1f];
""")


def _exp_parts(start: str) -> str:
    return _EXP_PARTS.replace("START", start)


# 2**(n + k/16) * exp(t): a register holds all 2**(k/16), another one what these lack, as parts of
# them. Where x is so large that t says nothing, n does: t is 1 at most then, also where it is NaN
_EXP_BY_ENTRIES = """
  static const float roots[16] __attribute__((aligned(64))) = {
    1.0f, 1.0442737f, 1.0905077f, 1.1387886f, 1.1892071f, 1.2418578f, 1.2968396f,
    1.3542556f, 1.4142135f, 1.4768262f, 1.5422108f, 1.6104903f, 1.6817929f, 1.7562522f,
    1.8340081f, 1.9152066f};
  static const float lacking[16] __attribute__((aligned(64))) = {
    0.0f, 4.628547e-8f, -1.19921575e-8f, 4.7297824e-8f, 3.193418e-8f, 3.6210572e-8f,
    -3.099072e-8f, -7.475213e-9f, 1.7114271e-8f, -3.0476834e-8f, 5.233334e-9f,
    6.1075918e-9f, -1.4719605e-8f, -5.258795e-9f, -6.1282597e-9f, 5.1406093e-9f};
  const F32 shifted = x * 1.44269504f + 786432.0f;  // round to sixteenths
  const F32 n = shifted - 786432.0f, root = entry_F32(roots, shifted);
  F32 t = x - n * 0.693359375f;
  t = nearer_F32(t + n * 2.12194440e-4f, (F32){0} + 1.0f);
  F32 p = [t: 0.16666667f, 0.50001618f, 1.0f];
  p = p * t + entry_F32(lacking, shifted);
  return grown_F32(p * root + root, n);"""

_EXP = f"""static inline F32 exp_F32(F32 x) {{
#if LANES >= 4 && LANES <= 16 && defined(__AVX512VL__) && defined(__AVX512DQ__)
{written_out(_EXP_BY_ENTRIES.lstrip(chr(10)))}
#else
{_exp_parts("clamp_F32(x, -176.1f, 89.0f)").lstrip(chr(10))}
  return scale_F32(p * (t * t) + t + 1.0f, shifted);
#endif
}}
"""

# s + rest is exp(t), where rest * up is below 0, so that little is lost beside 1
_LOGISTIC = f"""static inline F32 logistic_F32(F32 a, F32 b, F32 c) {{
  const F32 x = clamp_F32(b, -87.0f, 157.2f);{_exp_parts("x")}
  p = p * (t * t) + t;
  const F32 s = p + 1.00000024f;
  F32 rest = p - (s - 1.0f);
  rest = (s + rest) * c + rest;
"""
# of 2**n, 2**100 at most are in `up`; 2**227 and more make `down` 0
_LOGISTIC_LARGE = """  const F32 most = clamp_F32(shifted, 0.0f, 12583012.0f);
  const I32 far = (I32)(shifted) - (I32)(most);
  const F32 up = (F32)(((I32)(most) << 23) + 0x3f800000), down = (F32)(0x3f800000 - (far << 23));
  return a * down / (rest * up + 1.0f + s * up);
"""
LOGISTIC = f"{_LOGISTIC}{_LOGISTIC_LARGE}}}\n"
# Few vectors have large exponents, and where an instruction scales, it makes small results of a
# quotient that is not: to divide takes ten times as long where they are denormal, or 0. A quarter
# of the quotient is not infinite where `a` is not
_LOGISTIC_LANES = f"""{_LOGISTIC}#if LANES >= 4 && defined(__SSE__)
  if (!any_I32(b > 87.0f)) {{
    const F32 up = (F32)(((I32)(shifted) << 23) + 0x3f800000);
    return a / (rest * up + 1.0f + s * up);
  }}
#endif
#if LANES >= 4 && LANES <= 16 && defined(__AVX512VL__)
  const F32 four = (F32){{0}} + 4.0f, less = clamp_F32(n, 0.0f, 227.0f);
  const F32 up = grown_F32(four, n - less), down = grown_F32(four, -less);
  const F32 power = pick_F32(b >= 157.2f, (F32){{0}} - __builtin_inff(), 2.0f - less);
  return grown_F32(a / (rest * up + down + s * up), power);
#else
{_LOGISTIC_LARGE}#endif
}}
"""

# (exp(t) - 1) * 2**n + 2**n - 1, where 2**n is up * wide: it may be beyond the largest float
_EXPM1 = f"""static inline F32 expm1_F32(F32 x) {{{_exp_parts("clamp_F32(x, -20.0f, 89.0f)")}
  const I32 whole = (I32)shifted - 0x4b400000, half = whole >> 1;
  const F32 up = (F32)((half + 127) << 23), wide = (F32)((whole - half + 127) << 23);
  const F32 less = up - (F32)((half - whole + 127) << 23);
  p = p * (t * t) + t;
  return signed_F32((p * up + less) * wide, x);
}}
"""

_EXP2 = written_out("""static inline F32 exp2_F32(F32 x) {
  F32 t = clamp_F32(x, -254.0f, 129.0f);
  const F32 shifted = t + 12582912.0f;
  t = t - (shifted - 12582912.0f);
  F32 p = [t: 1.535336188e-4f, 1.339887440e-3f, 9.618437357e-3f, 5.550332471e-2f,
    2.402264791e-1f, 6.931472028e-1f, 1.0f];
  return scale_F32(p, shifted);
}
""")

# 1 + m in [sqrt(1/2), sqrt(2)) with x = (1 + m) * 2**e
_LOG_SPLIT = """
  const I32 small = x < 1.17549435e-38f;
  const F32 normal = pick_F32(small, x * 8388608.0f, x);
  const I32 bits = (I32)normal - 0x3f3504f3;
  const I32 exponent = (bits >> 23) - (small & 23);
  const F32 m = (F32)((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
  F32 e = __builtin_convertvector(exponent, F32);"""

# y is log(1 + m) - m
_LOG_PARTS = _LOG_SPLIT + written_out("""
  const F32 zero = {0}, z = m * m;
  F32 y = [m: 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f,
    1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f,
    3.3333331174e-1f];
  y = y * m * z;
""")

_LOG_ENDS = """
  r = pick_F32(x == __builtin_inff(), x, r);
  r = pick_F32(x == 0.0f, zero - __builtin_inff(), r);
  r = pick_F32((x < 0.0f) | (x != x), zero + __builtin_nanf(""), r);
"""

_LOG = f"""static inline F32 log_F32(F32 x) {{{_LOG_PARTS}
  y = y - e * 2.12194440e-4f - z * 0.5f;
  F32 r = m + y + e * 0.693359375f;{_LOG_ENDS}  return r;
}}
"""

# log(u) for the float u nearest to 1 + x, and what u lacks divided by u: log's derivative
_LOG1P = f"""static inline F32 log1p_F32(F32 less) {{
  const F32 x = 1.0f + less;{_LOG_PARTS}
  y = y - e * 2.12194440e-4f - z * 0.5f + (less - (x - 1.0f)) / x;
  F32 r = m + y + e * 0.693359375f;{_LOG_ENDS}  return signed_F32(r, less);
}}
"""

_LOG2 = f"""static inline F32 log2_F32(F32 x) {{{_LOG_PARTS}
  y = y - z * 0.5f;
  F32 r = y * 0.44269504f + m * 0.44269504f + y + m + e;{_LOG_ENDS}  return r;
}}
"""

# quadrant j of a = |x|, and t + low = a - j * pi/2 in four steps, whose factors have few bits, so
# that only t is rounded; large arguments go to libm lane by lane
_QUADRANT = """
  const F32 a = (F32)((I32)x & 0x7fffffff);
  const I32 large = a > 8192.0f;
  const F32 shifted = a * 0.636619772f + 12582912.0f;
  const F32 n = shifted - 12582912.0f;
  const I32 j = (I32)shifted + TURN;  // but for bits that nobody asks
  F32 t = a - n * 1.5703125f;
  const F32 exact = t - n * 4.837512969970703125e-4f;
  t = exact - n * 7.549533620476723e-8f;
  const F32 low = exact - t - n * 7.549533620476723e-8f - n * 2.563344152e-12f;
"""

_CIRCLE = """  const F32 z = t * t;
  F32 s = z * -1.9515295891e-4f + 8.3321608736e-3f;
  s = s * z - 1.6666654611e-1f;
  s = s * (z * t) + low + t;
  F32 c = z * 2.443315711809948e-5f - 1.388731625493765e-3f;
  c = c * z + 4.166664568298827e-2f;
  c = c * (z * z) - t * low - z * 0.5f + 1.0f;
  F32 r = pick_F32((j & 1) != 0, c, s);
"""

# t + rest without its rounding is y + low; in odd quadrants, -1 over that
_TAN = written_out("""  const F32 z = t * t;
  F32 p = [z: 4.380862229e-3f, 8.303889626e-5f, 1.083819568e-2f, 2.128264494e-2f,
    5.405945703e-2f, 1.333267242e-1f, 3.333334923e-1f];
  p = p * (z * t);
  const F32 rest = (t + p) * (t + p) * low + low + p, y = t + rest;
  const F32 lost = rest - (y - t), q = -1.0f / y;
  F32 r = pick_F32((j & 1) != 0, q * q * lost + q, y);
""")

_TANH = written_out("""static inline F32 tanh_F32(F32 x) {
  const F32 a = (F32)((I32)x & 0x7fffffff);
  const F32 z = x * x;
  F32 p = [z: -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
    1.33314422036e-1f, -3.33332819422e-1f];
  p = p * z * a + a;
  const F32 q = 1.0f - 2.0f / (exp_F32(a + a) + 1.0f);
  return signed_F32(pick_F32(a < 0.625f, p, q), x);
}
""")

# of |x| up to 1, and beyond that what 1/|x| leaves of pi/2; coefficients by Lawson's iteration
_ATAN = written_out("""static inline F32 atan_F32(F32 x) {
  const F32 zero = {0}, a = (F32)((I32)x & 0x7fffffff);
  const I32 far = a > 1.0f;
  const F32 t = pick_F32(far, 1.0f / a, a), z = t * t;
  F32 p = [z: 2.920691855e-3f, -1.636792719e-2f, 4.321185872e-2f, -7.552213967e-2f,
    1.066600457e-1f, -1.421105564e-1f, 1.999377310e-1f, -3.333315253e-1f];
  p = p * (z * t);
  const F32 rest = zero - 4.371139e-8f - p - t + 1.57079637f;
  return signed_F32(pick_F32(far, rest, p + t), x);
}
""")

_ERF = written_out("""static inline F32 erf_F32(F32 x) {
  const F32 a = (F32)((I32)x & 0x7fffffff);
  const F32 z = x * x;
  F32 p = [z: 7.853861353e-5f, -8.010193625e-4f, 5.188327685e-3f, -2.685381193e-2f,
    1.128358514e-1f, -3.761262582e-1f];
  p = (p * z + 0.128379167f) * a + a;
  const F32 q = 1.0f / a, y = q * q;
  F32 u = [y: 2.326819970e-2f, -1.387039388e-1f, 3.687424674e-1f, -5.824733027e-1f,
    6.210004621e-1f, -4.944515323e-1f, 3.404879937e-1f, -2.741127028e-1f, 5.638259427e-1f];
  F32 v = [y: -1.047766399e+1f, 1.297719955e+1f, -7.495518717e+0f, 2.921019019e+0f,
    -1.015265279e+0f, 4.218463358e-1f, -2.820767439e-1f, 5.641895067e-1f];
  F32 r = 1.0f - exp_F32(-z) * q * pick_F32(a < 2.0f, u, v);
  r = pick_F32(a > 4.0f, (F32){0} + 1.0f, r);
  return signed_F32(pick_F32((a < 1.0f) | (x != x), p, r), x);
}
""")


# With size = |b| and y = 2 / (size + 3.3125), exp(size * size / 2) * P(N(0, 1) > size) is y times a
# polynomial in y (relative error below 1e-8, by Lawson's iteration). What the roundings of y and
# of size * size change is `more`, to first order; ay - less is a * y.
NDTR = written_out(f"""static inline F32 ndtr_F32(F32 a, F32 b) {{
  const F32 zero = {{0}}, size = clamp_F32(abs_F32(b), 0.0f, 18.6f);
  const F32 z = size * size;{_exp_parts("z * -0.5f")}
  const F32 s = 1.0f + t, rest = t - (s - 1.0f) + p * (t * t);
  const F32 q = size + 3.3125f, y = pick_F32(b < -18.0f, zero, 2.0f / q);
  F32 more = fma_F32(q - 3.3125f - size, y, fma_F32(-y, q, zero + 2.0f));
  more = more * (y * 1.4952f + 0.426f) - fma_F32(size, size, -z) * 0.5f;
  const F32 u = y - 0.259765625f, v = u * u;
  F32 odd = [v: 2.88128686f, -1.65933692f, 0.594682157f, 1.36214077f];
  F32 even = [v: -3.21481109f, 1.35917437f, -1.27107537f, 1.55336511f,
    0.781736791f];
  const F32 r = odd * u + even, least = zero + 0.334187746f, high = fma_F32(r, u, least);
  const F32 low = high * more + fma_F32(r, u, least - high);
  const F32 made = fma_F32(high, s, high * rest + low * (s + rest));
  const F32 finite = clamp_F32(a, -3.40282347e38f, 3.40282347e38f), ay = finite * y;
  const F32 less = fma_F32(finite - a, y, fma_F32(-finite, y, ay));
  const F32 below = scale_F32(fma_F32(made, ay, -(made * less)), shifted);
  return pick_F32(b <= 0.0f, below, a - clamp_F32(below, -3.40282347e38f, 3.40282347e38f));
}}
""")


# 2**(y * (e + log2(1 + m))) in float64, whose rounding no float32 sees. F64, I64 and HALF have
# half as many lanes as F32, so that no vector is wider than a register. Coefficients at Chebyshev
# points: log2(1 + m) / s in s * s with s = m / (m + 2), to 3e-14; 2**t for |t| <= 1/2, to 6e-11
_POWER = written_out("""static inline HALF power_HALF(HALF e, HALF m, HALF y) {
  const F64 less = __builtin_convertvector(m, F64), s = less / (less + 2.0), z = s * s;
  F64 p = [z: 0.28288718263073565, 0.31990666088914738, 0.41220922733052445,
    0.57707794263026180, 0.96179669411235946, 2.8853900817778504];
  p = (p * s + __builtin_convertvector(e, F64)) * __builtin_convertvector(y, F64);
  const F64 x = clamp_F64(p, -200.0, 200.0), shifted = x + 6755399441055744.0;
  const F64 t = x - (shifted - 6755399441055744.0);
  F64 r = [t: 1.5303700711365693e-05, 1.5469729214118296e-04, 1.3333478473685416e-03,
    9.6180256133180340e-03, 5.5504109063258665e-02, 2.4022651213498092e-01,
    6.9314718055683244e-01, 9.9999999995956179e-01];
  const F64 scale = (F64)(((I64)shifted << 52) + 0x3ff0000000000000);
  return __builtin_convertvector(r * scale, HALF);
}
""")
_POW = f"""static inline F32 pow_F32(F32 a, F32 b) {{
  const F32 x = abs_F32(a), y = clamp_F32(b, -1e30f, 1e30f);{_LOG_SPLIT}
  const F32 far = pick_F32(x == 0.0f, (F32){{0}} - __builtin_inff(), e);
  e = pick_F32(x < __builtin_inff(), far, x);
  const HALF first = power_HALF((HALF){{FIRST(e)}}, (HALF){{FIRST(m)}}, (HALF){{FIRST(y)}});
  const HALF last = power_HALF((HALF){{LAST(e)}}, (HALF){{LAST(m)}}, (HALF){{LAST(y)}});
  return powered_F32(a, b, (F32){{BOTH}});
}}
"""

_FMA = part("fma_KIND", "F32")

BODIES: dict[Op, str] = {
    Op.EXP: _CLAMP + _SCALE + _ENTRY + _NEARER + _EXP,
    Op.LOGISTIC: _CLAMP + _SCALE + _ANY + _LOGISTIC_LANES,
    Op.EXP2: _CLAMP + _SCALE + _EXP2,
    Op.EXPM1: _CLAMP + _SIGNED + _EXPM1,
    Op.LOG: _PICK + _LOG,
    Op.LOG2: _PICK + _LOG2,
    Op.LOG1P: _PICK + _SIGNED + _LOG1P,
    Op.SIN: _PICK + _ANY + circular("sin", "F32", _QUADRANT, _CIRCLE, "((j << 30) ^ (I32)x)"),
    Op.COS: _PICK + _ANY + circular("cos", "F32", _QUADRANT, _CIRCLE, "(j << 30)", turn=1),
    Op.TAN: _PICK + _ANY + circular("tan", "F32", _QUADRANT, _TAN, "(I32)x"),
    Op.ATAN: _PICK + _SIGNED + _ATAN,
    Op.TANH: _PICK + _SIGNED + _TANH,
    Op.ERF: _PICK + _SIGNED + _ERF,
    Op.ABS: _ABS,
    Op.SQRT: SQRT,
    Op.TRUNC: part("trunc_KIND", "F32"),
    Op.MOD: part("mod_KIND", "F32"),
    Op.POW: _CLAMP + _ABS + _POWERED + _POWER + _POW,
    Op.FMA: _FMA,
    Op.NDTR: _CLAMP + _SCALE + _ABS + _FMA + NDTR,
}
NEEDS: dict[Op, tuple[Op, ...]] = {Op.TANH: (Op.EXP,), Op.ERF: (Op.EXP,)}
