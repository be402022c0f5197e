"""How much code there is: formatted lines of each room, the longest files and functions.

    python benchmarks/size.py

Counted after `ruff format` at 100 columns where ruff is installed, so that squeezing a line
buys nothing. Blank lines and comments count.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Span:
    """A piece of code and its length."""

    lines: int
    where: str


def main() -> None:
    rooms, files, functions = count(ROOT / "tinyml")
    print("| room | lines | files |\n| --- | ---: | ---: |")
    for room, lines in sorted(rooms.items(), key=lambda item: -item[1]):
        print(f"| {room} | {lines} | {sum(_room(f.where) == room for f in files)} |")
    total = sum(rooms.values())
    print(f"| all of tinyml | {total} | {len(files)} |")
    print(f"| without nn | {total - rooms['nn']} | |\n")
    lengths = sorted(f.lines for f in functions)
    middle, most = lengths[len(lengths) // 2], lengths[len(lengths) * 9 // 10]
    print(f"{len(functions)} functions: median {middle} lines, nine of ten at most {most}\n")
    for name, spans in (("files", files), ("functions", functions)):
        print(f"Longest {name}:")
        for span in sorted(spans, key=lambda s: -s.lines)[:8]:
            print(f"{span.lines:6} {span.where}")


def count(package: Path) -> tuple[Counter[str], list[Span], list[Span]]:
    """Lines by room, files and functions of a package."""
    rooms: Counter[str] = Counter()
    files: list[Span] = []
    functions: list[Span] = []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package).as_posix()
        text = formatted(path.read_text())
        rooms[_room(where)] += len(text.splitlines())
        files.append(Span(len(text.splitlines()), where))
        functions += [
            Span((node.end_lineno or node.lineno) - node.lineno + 1, f"{where}: {node.name}")
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
    return rooms, files, functions


def _room(where: str) -> str:
    """A folder is a room; the modules beside the folders share one."""
    return where.split("/")[0] if "/" in where else "(top)"


def formatted(text: str) -> str:
    """The text as ruff formats it; as it is where there is no ruff."""
    command = [sys.executable, "-m", "ruff", "format", "--line-length", "100", "-"]
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True)
    except OSError:
        return text
    return done.stdout if done.returncode == 0 else text


if __name__ == "__main__":
    main()
