"""Lanes in another type by one instruction, of which gcc 12 would make several."""

from __future__ import annotations

from collections.abc import Sequence

from tinyml.codegen.text.vector_parts import filled
from tinyml.frozen import dataclass

ELEMENTS = {1: "char", 2: "short", 4: "int", 8: "long long"}  # as gcc's functions call them
_LETTERS = {1: "b", 2: "w", 4: "d", 8: "q"}
_FLOATS = {("f32", "f64"): ("cvtps2pd", "float"), ("i32", "f64"): ("cvtdq2pd", "int")}
_REGISTERS = (16, 32, 64)
# gcc 11 and 12 fail where they merge a load of part of a register, a conversion and a blend.
_APART = ("#ifdef __AVX512VL__", '  __asm__("" : "+v"(low));', "#endif")


@dataclass(frozen=True)
class Instruction:
    """What gcc calls it, the macros that say that it is there, and what it takes and makes."""

    name: str
    macros: tuple[str, ...]
    takes: str  # elements
    makes: str
    more: str = ""  # arguments behind the vector

    @property
    def there(self) -> str:
        """Whether gcc has it."""
        return " && ".join([f"defined({macro})" for macro in self.macros])

    def lines(self, size: int, wanted: str, made: int) -> list[str]:
        """Statements that return `wanted` of a vector `a` of so many bytes."""
        given, word = "a", ELEMENTS.get(size)
        lines = [f"  typedef {self.takes} takes __attribute__((vector_size({max(16, size)})));"]
        lines += [f"  typedef {self.makes} makes __attribute__((vector_size({max(16, made)})));"]
        if word:  # part of a register
            lines += [f"  typedef {word} words __attribute__((vector_size(16)));"]
            lines += [f"  words low = {{({word})a}};", *_APART]
            given = "low"
        call = f"__builtin_ia32_{self.name}((takes){given}{self.more})"
        return [*lines, f"  const makes all = {call};", f"  return *(const {wanted} *)&all;"]


@dataclass(frozen=True)
class Together:
    """Without AVX-512: low bytes of elements are moved together within 16 bytes, then those of both
    halves. gcc would make two vectors of elements of half the size, or keep low bytes by a mask
    before it packs them: up to twice as many steps."""

    large: int  # bytes of the elements that they are of
    small: int
    lanes: int

    @property
    def there(self) -> str:
        macro = "__AVX2__" if self.large * self.lanes == 32 else "__SSSE3__"
        return f"defined({macro}) && !defined(__AVX512VL__)"

    def lines(self, size: int, wanted: str, made: int) -> list[str]:
        near = [at + n for n in range(0, 16, self.large) for at in range(self.small)]
        count, halves = len(near), size // 16
        places = [n + half for half in range(0, size, 16) for n in near + [0] * (16 - count)]
        listed = ", ".join(map(str, places))
        lines = [
            f"  typedef char bytes __attribute__((vector_size({size})));",
            f"  const bytes all = __builtin_shuffle((bytes)a, (bytes){{{listed}}});",
        ]
        if halves == 1:
            return [*lines, f"  return *(const {wanted} *)&all;"]
        units = 16 // count
        both = ", ".join(str(n // 2 + n % 2 * units) for n in range(units))
        return [
            *lines,
            f"  typedef {ELEMENTS[count]} parts __attribute__((vector_size(16)));",
            "  const parts low = *(const parts *)&all, high = *((const parts *)&all + 1);",
            f"  const parts joined = __builtin_shuffle(low, high, (parts){{{both}}});",
            f"  return *(const {wanted} *)&joined;",
        ]


Way = Instruction | Together


def converting(
    ways: Sequence[Way], name: str, source: tuple[str, int], target: tuple[str, int], plain: str
) -> str:
    """A function `name` of a vector type of so many bytes; `plain` is what others make of a."""
    (kind, size), (wanted, made) = source, target
    text, word = f"static inline {wanted} {name}({kind} a) {{\n", "#if"
    for way in ways:
        body = "\n".join(way.lines(size, wanted, made))
        text += f"{word} {way.there} && !defined(__clang__)\n{body}\n"
        word = "#elif"
    return f"{text}#else\n  return {plain};\n#endif\n}}"


# by bytes of a vector: the macro that says that there is what asks whether `square < MOST` in all
# lanes, which are -1 or a number
_SIGNS = "__builtin_ia32_movmskKIND((FLOATS)(square < MOST))"
_WITHIN = {
    16: ("__SSE2__", _SIGNS),
    32: ("__AVX__", _SIGNS.replace("KIND", "KIND256")),
    64: ("__AVX512F__", "__builtin_ia32_cmpKIND512_mask(square, MOST - (FLOATS){0}, 1, -1, 4)"),
}


def _within(floats: str, kind: str, most: str, lanes: int, made: str) -> str:
    """Statements that return what is `made` of numbers none of which is too large, as nearly always
    they are: what waits for it waits for less."""
    found = _WITHIN.get({"ps": 4, "pd": 8}[kind] * lanes)
    if not found:
        return ""
    asked = filled(found[1], {"FLOATS": floats, "KIND": kind, "MOST": most})
    test = f"(unsigned short)({asked}) == {(1 << lanes) - 1}"
    return f"#ifdef {found[0]}\n  if (__builtin_expect({test}, 1)) return {made};\n#endif\n"


def whole(name: str, floats: str, integers: str, lanes: int, narrow: bool) -> str:
    """int32 of float32, as of int64 that wrap around; 0 of what is no number.

    Few processors have an instruction for int64. To add a large number and take it away rounds, if
    it has the sign of what it is added to: also what lies half way between numbers up to 2**23.
    A `narrow` integer is made of it, of which the highest bit is no part.
    """
    end = "" if narrow else f" | ({integers})(rest == 0x1p62f) << 31"
    plain = f"__builtin_convertvector(a, {integers})"
    return f"""static inline {integers} {name}({floats} a) {{
  const {floats} square = a * a;
{_within(floats, "ps", "0x1p62f", lanes, plain)}\
  const {floats} large = ({floats})((({integers})a & (-0x7fffffff - 1)) | 0x4b400000);
  const {floats} part = a - (a * 0x1p-32f + large - large) * 0x1p32f, rest = part * part;
  const {integers} near = ({integers})(rest < 0x1p62f);
  return __builtin_convertvector(({floats})(near & ({integers})part), {integers}){end};
}}"""


# Of what int64 cannot hold C says nothing: gcc takes the greatest number if it is a constant.
WHOLE = """static inline long long whole(double a) {
  return a >= -0x1p63 && a < 0x1p63 ? (long long)a : -9223372036854775807ll - 1;
}"""
# by lanes
_LONGS = {2: "128_mask(NONE)", 4: "256_mask(NONE)", 8: "512_mask(NONE, 4)"}
_ROUND = {2: ("__SSE4_1__", ""), 4: ("__AVX2__", "256")}


def whole_long(floats: str, integers: str, lanes: int) -> str:
    """int64 of float64, the least of what they cannot hold.

    AVX-512 has it as an instruction. Elsewhere compilers take each number by itself: those of up
    to 51 bits, as nearly all are, are the digits of a large number.
    """
    text = f"static inline {integers} whole_long_x{lanes}({floats} a) {{\n"
    if lanes in _LONGS:
        call = _LONGS[lanes].replace("NONE", f"a, ({integers}){{0}}, -1")
        text += f"""#if defined(__AVX512DQ__) && defined(__AVX512VL__)
  return ({integers})__builtin_ia32_cvttpd2qq{call};
#endif
"""
    if lanes in _ROUND:
        macro, size = _ROUND[lanes]
        made = f"({integers})(__builtin_ia32_roundpd{size}(a, 3) + 0x1.8p52) - 0x4338000000000000ll"
        within = _within(floats, "pd", "0x1p102", lanes, made)
        text += f"  const {floats} square = a * a;\n#ifdef {macro}\n{within}#endif\n"
    return f"""{text}  const {integers} near = ({integers})(a * a < 0x1p126);
  return __builtin_convertvector(({floats})(near & ({integers})a), {integers}) | ~near << 63;
}}"""


def long_as_double(name: str, kind: str, wanted: str, unsigned: str, signed: bool) -> str:
    """Integers of 8 bytes as float64, rounded once: each half is the digits of a large number.

    Without AVX-512 there is no instruction, and compilers take each number by itself.
    """
    sign, zero = ("80000000", "0x1.00000801p84") if signed else ("00000000", "0x1.00000001p84")
    return f"""static inline {wanted} {name}({kind} a) {{
#if defined(__SSE2__) && !defined(__AVX512DQ__)
  const {unsigned} low = (({unsigned})a & 0xffffffffull) | 0x4330000000000000ull;
  const {unsigned} high = (({unsigned})a >> 32) ^ 0x45300000{sign}ull;
  return ({wanted})high - {zero} + ({wanted})low;
#else
  return __builtin_convertvector(a, {wanted});
#endif
}}"""


def long_as_float(name: str, kind: str, wanted: str, wide: str, signed: bool) -> str:
    """Integers of 8 bytes as float32, four at a time, rounded once: those of up to 52 bits, as
    nearly all are, are the digits of a large float64. Compilers take each number by itself."""
    least, bias, zero = (
        ("0x8000000000000", "0x4338", "0x1.8p52") if signed else ("0", "0x4330", "0x1p52")
    )
    return f"""static inline {wanted} {name}({kind} a) {{
#if defined(__AVX2__) && !defined(__AVX512DQ__)
  typedef long long longs __attribute__((vector_size(32)));
  const longs some = (longs)a + {least}, beyond = ~0xfffffffffffffll - (longs){{0}};
  if (__builtin_expect(__builtin_ia32_ptestz256(some, beyond), 1))
    return __builtin_convertvector(({wide})((longs)a + {bias}000000000000ll) - {zero}, {wanted});
#endif
  return __builtin_convertvector(a, {wanted});
}}"""


def ways(source: str, target: str, lanes: int) -> tuple[Way, ...]:
    """How a vector of `source`, such as u8, becomes one of `target` at once, the best first."""
    found = instruction(source, target, lanes)
    made: list[Way] = [found] if found else []
    large, small = _size(source), _size(target)
    if "f" not in source + target and large > small and large * lanes in (16, 32):
        made.append(Together(large, small, lanes))
    return (*made,)


def instruction(source: str, target: str, lanes: int) -> Instruction | None:
    """What converts a vector of `source` to one of `target`, such as u8 to i32, if there is one."""
    made, large = lanes * _size(target), lanes * max(_size(source), _size(target))
    if large not in _REGISTERS:
        return None
    if (source, target) in _FLOATS and made > 16:
        name, takes = _FLOATS[source, target]
        if made == 32:
            return Instruction(f"{name}256", ("__AVX__",), takes, "double")
        more = ", (makes){0}, -1" + (", 4" if source == "f32" else "")
        return Instruction(f"{name}512_mask", ("__AVX512F__",), takes, "double", more)
    if "f" in source + target or _size(source) == _size(target):
        return None
    return _integers(source, target, large)


def _integers(source: str, target: str, large: int) -> Instruction | None:
    (small, _), letters = sorted((_size(source), _size(target))), _LETTERS
    way = f"{letters[_size(source)]}{letters[_size(target)]}"
    wide = "__AVX512BW__" if way in ("bw", "wb") else "__AVX512F__"
    takes, makes = ELEMENTS[_size(source)], ELEMENTS[_size(target)]
    masked = ", (makes){0}, -1"
    if _size(target) == small:
        if large == 16 or small == 4:  # of those gcc makes one
            return None
        macros = (wide,) if large == 64 else (wide, "__AVX512VL__")
        return Instruction(f"pmov{way}{8 * large}_mask", macros, takes, makes, masked)
    name = f"pmov{'z' if source[0] == 'u' else 's'}x{way}{8 * large}"
    if large == 64:
        return Instruction(f"{name}_mask", (wide,), takes, makes, masked)
    return Instruction(name, ("__SSE4_1__" if large == 16 else "__AVX2__",), takes, makes)


def _size(kind: str) -> int:
    """Bytes of an element."""
    return int(kind[1:]) // 8
