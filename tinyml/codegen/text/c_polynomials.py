"""Functions that are polynomials on lanes, with all that they call, as C text."""

from __future__ import annotations

from tinyml.codegen.text.c_text import vector_type
from tinyml.codegen.text.vector_math import BODIES, NEEDS
from tinyml.codegen.text.vector_math64 import BODIES64, CLAMP64
from tinyml.codegen.text.vector_parts import filled
from tinyml.dtype import DType, float32, float64
from tinyml.ops import Op

ON_LANES = {float32: BODIES, float64: BODIES64}  # what is computed by polynomials


def polynomial(op: Op, dtype: DType, vector: str, integer: str, lanes: int) -> list[str]:
    """A function of lanes of float32 or float64, after the functions that it calls."""
    needed = NEEDS.get(op, ()) if dtype is float32 else ()
    pieces = [text for n in needed for text in polynomial(n, dtype, vector, integer, lanes)]
    marks = {"LANES": str(lanes), f"F{dtype.bitsize}": vector, f"I{dtype.bitsize}": integer}
    if op is Op.POW and dtype is float32:
        pieces += _wide(lanes // 2)
        marks |= _halves(lanes, lanes // 2)
    return [*pieces, filled(ON_LANES[dtype][op], marks)]


def _wide(lanes: int) -> list[str]:
    """What computes in float64 what float32 is too short for."""
    marks = {"F64": f"f64x{lanes}", "I64": f"i64x{lanes}", "LANES": str(lanes)}
    return [
        vector_type(f"f32x{lanes}", "float", 4, lanes),
        vector_type(f"f64x{lanes}", "double", 8, lanes),
        vector_type(f"i64x{lanes}", "long long", 8, lanes),
        filled(CLAMP64, marks),
    ]


def _halves(lanes: int, few: int) -> dict[str, str]:
    """How the lanes of a vector are shared out between two."""
    marks = {"HALF": f"f32x{few}", "F64": f"f64x{few}", "I64": f"i64x{few}"}
    for name in ("e", "m", "y"):
        marks[f"FIRST({name})"] = ", ".join(f"{name}[{n}]" for n in range(few))
        marks[f"LAST({name})"] = ", ".join(f"{name}[{n}]" for n in range(few, lanes))
    both = (f"{name}[{n}]" for name in ("first", "last") for n in range(few))
    return {**marks, "BOTH": ", ".join(both)}
