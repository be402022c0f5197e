"""Text of expressions, and how strongly its outermost operator binds, as in C."""

from __future__ import annotations

_BY_STRENGTH = {12: "* / %", 11: "+", 9: "< <=", 8: "== !=", 7: "&", 6: "^", 5: "|"}
STRENGTH = {sign: strength for strength, signs in _BY_STRENGTH.items() for sign in signs.split()}
ATOM, UNARY, TERNARY = 15, 14, 2
Text = tuple[str, int]  # and how strongly its outermost operator binds


def wrap(text: Text, strength: int) -> str:
    """Parentheses where the text binds less strongly than its surroundings need."""
    return text[0] if text[1] >= strength else f"({text[0]})"


def binary(sign: str, left: Text, right: Text) -> Text:
    """`left sign right`; `a + -b` reads better as `a - b`."""
    strength = STRENGTH[sign]
    if sign == "+" and right[0].startswith("-") and right[1] == UNARY:
        return f"{wrap(left, strength)} - {right[0][1:]}", strength
    return f"{wrap(left, strength)} {sign} {wrap(right, strength + 1)}", strength
