"""Lanes in another type by one instruction, of which gcc 12 would make several."""

from __future__ import annotations

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

    def text(self, name: str, source: tuple[str, int], target: tuple[str, int], plain: str) -> str:
        """A function `name` of a vector type of so many bytes; `plain` is what others make of a."""
        (kind, size), (wanted, made) = source, target
        given, word = "a", ELEMENTS.get(size)
        lines = [f"  typedef {self.takes} takes __attribute__((vector_size({max(16, size)})));"]
        lines += [f"  typedef {self.makes} makes __attribute__((vector_size({max(16, made)})));"]
        if word:  # part of a register
            lines += [f"  typedef {word} words __attribute__((vector_size(16)));"]
            lines += [f"  words low = {{({word})a}};", *_APART]
            given = "low"
        call = f"__builtin_ia32_{self.name}((takes){given}{self.more})"
        lines += [f"  const makes all = {call};", f"  return *(const {wanted} *)&all;"]
        there = " && ".join([f"defined({macro})" for macro in self.macros])
        head = f"static inline {wanted} {name}({kind} a) {{\n#if {there} && !defined(__clang__)\n"
        return head + "\n".join(lines) + f"\n#else\n  return {plain};\n#endif\n}}"


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
