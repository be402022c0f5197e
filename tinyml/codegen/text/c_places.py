"""Indices in C: values that are asked for their range, and places that are looked up by them."""

from __future__ import annotations

from functools import lru_cache

from tinyml.codegen.text.vector_parts import filled

# clang makes vectors of long of such lanes and of all places, and takes each out of them again
AT_LANE = """static inline long at_lane(unsigned i) {
#ifdef __clang__
  __asm__("" : "+r"(i));
#endif
  return i;
}"""

LOOK = """static inline long look(long i, long size) {
  return (unsigned long)i < (unsigned long)size ? i : 0;  // never reads foreign memory
}"""

LOOK_LANE = """static inline long look_lane(unsigned i, long size) {
  const long at = at_lane(i);
  return at < size ? at : 0;
}"""

NOTE = """static __attribute__((cold, noinline)) void note(long *fault, long code, long value) {
  long none = 0;
  const int order = __ATOMIC_RELAXED;
  if (__atomic_compare_exchange_n(fault, &none, code, 0, order, order)) fault[1] = value;
}"""


def require(name: str, kind: str) -> str:
    """A value; the fault is noted if what is demanded of it does not hold."""
    return (
        f"static inline {kind} {name}({kind} value, _Bool holds, long code, long *fault) {{\n"
        f"  if (__builtin_expect(!holds, 0)) note(fault, code, (long)value);\n"
        f"  return value;\n}}"
    )


# the end of a range that is nearer: what else is known of the value is true of it, too
REQUIRE_RANGE = """static inline KIND NAME(
    KIND value, KIND low, KIND high, long code, long *fault) {
  const unsigned KIND above = value - low, most = high - low;
  if (__builtin_expect(above <= most, 1)) return value;
  note(fault, code, value);
  return value < low ? low : high;
}"""


def require_lanes(name: str, kind: str, mask: str, lanes: int) -> str:
    """Likewise for each lane; one branch for all of them."""
    return (
        f"static inline {kind} {name}({kind} value, {mask} holds, long code, long *fault) {{\n"
        f"  int all = -1;\n"
        f"  for (int i = 0; i < {lanes}; ++i) all &= holds[i];\n"
        f"  if (__builtin_expect(!all, 0))\n"
        f"    note(fault, code, {_first('!holds[LANE]', lanes)});\n"
        f"  return value;\n}}"
    )


# by bytes of a vector: the macro that says that there are the signs of its lanes, and what they are
_SIGNS = {
    16: ("__SSE2__", "movmskKIND"),
    32: ("__AVX__", "movmskKIND256"),
    64: ("__AVX512DQ__", "cvtLETTER2mask512"),
}
_RANGE = """static __attribute__((cold, noinline)) void NAME_note(
    long *fault, long code, ELEMENT *value, ELEMENT low, ELEMENT high) {
  for (int i = 0; i < LANES; ++i) {
    const ELEMENT end = value[i] < low ? low : value[i] > high ? high : value[i];
    if (end != value[i]) note(fault, code, value[i]);
    value[i] = end;
  }
}
static inline KIND NAME(KIND value, ELEMENT low, ELEMENT high, long code, long *fault) {
  const KIND wrong = (KIND)(((UNSIGNED)value - (UNSIGNED)(low - (KIND){0})) |
      ((UNSIGNED)(high - (KIND){0}) - (UNSIGNED)value));
  ELEMENT any = 0;
ANY
  if (__builtin_expect(any != 0, 0)) {
    KIND all = value;
    NAME_note(fault, code, (ELEMENT *)&all, low, high);
    value = all;
  }
  return value;
}"""


@lru_cache
def require_range(name: str, kind: str, unsigned: str, element: str, lanes: int, size: int) -> str:
    """Likewise for low <= value <= high: the sign of a difference tells, without a comparison.

    Who notes it is given a vector in memory: clang takes lanes out ahead of the branch.
    """
    loop = f"  for (int i = 0; i < {lanes}; ++i) any |= wrong[i] < 0;"
    if size in (4, 8) and size * lanes in _SIGNS:
        macro, call = _SIGNS[size * lanes]
        floats, letter, suffix = ("float", "d", "ps") if size == 4 else ("double", "q", "pd")
        given = f"({floats} __attribute__((vector_size({size * lanes}))))" * (size * lanes < 64)
        call = filled(call, {"KIND": suffix, "LETTER": letter})
        loop = (
            f"#ifdef {macro}\n  any = __builtin_ia32_{call}({given}wrong);\n#else\n{loop}\n#endif"
        )
    marks = {"ANY": loop, "NAME": name, "KIND": kind, "UNSIGNED": unsigned, "ELEMENT": element}
    return filled(_RANGE, {**marks, "LANES": str(lanes)})


def _first(condition: str, lanes: int) -> str:
    """The first lane of a value for which a condition holds. A loop would put it on the stack."""
    asked = [f"{condition.replace('LANE', str(i))} ? value[{i}]" for i in range(lanes - 1)]
    return " : ".join([*asked, f"value[{lanes - 1}]"])
