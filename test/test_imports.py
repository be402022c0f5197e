"""The architecture, as imports: they point downwards, and never in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tinyml

ROOT = Path(tinyml.__file__).parent

# from the ground up; a module imports from floors below its own, and from its own room
FLOORS: list[set[str]] = [
    {"errors", "frozen", "telling"},
    {"dtype", "faults", "ops", "trace", "config", "cache", "ceilings", "turn", "setting", "shape"},
    {"graph", "roster"},
    {"index", "lazy", "program"},
    {"interpret", "merge", "notation", "varying"},
    {"kernel", "known"},
    {"codegen", "runtime", "schedule"},  # three strangers
    {"device", "draw"},
    {"alike", "plan", "search"},
    {"launch", "ledger", "prepare", "plan_cache"},
    {"reused"},
    {"realize"},
    {
        "mlops",
        "moves",
        "autograd",
        "functional",
        "methods",
        "tensor",
        "dtypes",
        "function",
        "checkpoint",
        "defaults",
    },  # what a Tensor is
    {"nn", "jit", "blame", "debug"},
    {"__init__"},
    {"explain"},
    {"__main__"},
]
CODEGEN = ("optimize", "choose", "linearize", "text")
LATE = {
    "device": "opens hardware whose libraries may be missing, at the last moment",
    "codegen.program_cache": "loads the generator when a kernel is new",
    "prepare": "loads the search when BEAM asks for one",
    "realize": "loads what makes plans when there is one to make",
    "jit.saved": "writes and reads programs when a step is pickled",
    "explain": "asks optional compilers what they are",
}
MAY_PRINT = {"debug", "explain", "__main__"}
MAY_READ_ENVIRONMENT = {
    "config": "the one place",
    "runtime.compiler": "hands the environment on to the compiler's process",
}
MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 40
# each entry is a question that has been answered; shrink one and the test asks to remove it
LONGER_FILES: dict[str, str] = {}
LONGER_FUNCTIONS: dict[str, str] = {}


Trees = dict[str, ast.Module]
Edges = dict[str, set[str]]


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {_name(path): path for path in sorted(ROOT.rglob("*.py"))}


@pytest.fixture(scope="module")
def trees() -> Trees:
    return {name: ast.parse(path.read_text(), str(path)) for name, path in MODULES.items()}


@pytest.fixture(scope="module")
def edges(trees: Trees) -> Edges:
    """What each module imports."""
    return {name: {m for m in imports(name, tree) if m != name} for name, tree in trees.items()}


def imports(name: str, tree: ast.AST) -> Iterator[str]:
    """The modules of tinyml that are imported anywhere below `tree`, for more than typing."""
    skipped = {id(n) for node in ast.walk(tree) if _is_typing(node) for n in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (_module(a.name) for a in node.names if a.name.startswith("tinyml"))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            if (node.module or "").split(".")[0] == "tinyml":
                yield from (_module(f"{node.module}.{a.name}") for a in node.names)


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _module(dotted: str) -> str:
    """The longest beginning of a dotted name that is a module."""
    parts = dotted.split(".")[1:]
    while parts and ".".join(parts) not in MODULES:
        parts.pop()
    return ".".join(parts) or "__init__"


def room(name: str) -> str:
    return name.split(".")[0]


def floor(name: str) -> int:
    found = [n for n, rooms in enumerate(FLOORS) if room(name) in rooms]
    assert found, f"tinyml/{name} is on no floor: add it to FLOORS"
    return found[0]


TENSOR_FLOOR = FLOORS[floor("tensor")]


def test_every_module_is_on_a_floor() -> None:
    assert all(floor(name) >= 0 for name in MODULES)


def test_imports_point_downwards(edges: Edges) -> None:
    wrong = [
        f"{a} imports {b}"
        for a, found in edges.items()
        for b in sorted(found)
        if room(a) != room(b) and floor(b) >= floor(a)
        and not (room(a) in TENSOR_FLOOR and room(b) in TENSOR_FLOOR)
    ]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_no_imports_in_a_circle_even_inside_functions(edges: Edges) -> None:
    done: set[str] = set()
    for start in edges:
        path: list[str] = []
        _walk(start, edges, path, done)


def _walk(name: str, edges: Edges, path: list[str], done: set[str]) -> None:
    assert name not in path, "circle: " + " -> ".join([*path[path.index(name) :], name])
    if name not in done:
        path.append(name)
        for below in sorted(edges.get(name, ())):
            _walk(below, edges, path, done)
        path.pop()
        done.add(name)


def test_strangers_never_meet(edges: Edges) -> None:
    """What is wanted, how to say it and where it runs are joined in device and plan only."""
    strangers = ("codegen", "runtime", "schedule")
    for name, found in edges.items():
        for other in strangers:
            if room(name) in strangers and room(name) != other:
                assert not [m for m in found if room(m) == other], f"{name} knows {other}"


def test_rooms_of_codegen_know_only_those_before_them(edges: Edges) -> None:
    def place(name: str) -> int:
        parts = name.split(".")
        return CODEGEN.index(parts[1]) if parts[0] == "codegen" and len(parts) > 2 else -1

    wrong = [
        f"{a} imports {b}"
        for a, found in edges.items()
        for b in sorted(found)
        if 0 <= place(a) < place(b)
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_are_at_the_top_unless_there_is_a_reason(trees: Trees) -> None:
    wrong = []
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and name not in LATE:
                hidden = sorted(set(imports(name, node)))
                wrong += [f"{name}.{node.name} imports {m}" for m in hidden]
    assert not wrong, "\n".join(wrong)


def test_only_config_reads_the_environment(trees: Trees) -> None:
    readers = {
        name
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb")
    }
    assert readers == set(MAY_READ_ENVIRONMENT)


def test_nothing_prints_outside_the_listeners(trees: Trees) -> None:
    printers = {
        name
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in ("print", "pprint")
    }
    assert {room(name) for name in printers} <= MAY_PRINT


def test_long_files_are_answered_questions() -> None:
    long = {
        name
        for name, path in MODULES.items()
        if len(path.read_text().splitlines()) > MOST_LINES_OF_A_FILE
    }
    assert long == set(LONGER_FILES)


def test_long_functions_are_answered_questions(trees: Trees) -> None:
    long = {
        f"{name}.{node.name}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if (node.end_lineno or 0) - node.lineno + 1 > MOST_LINES_OF_A_FUNCTION
    }
    assert long == set(LONGER_FUNCTIONS)


def test_there_are_no_modules_called_helpers() -> None:
    banned = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not [name for name in MODULES if banned & set(name.split("."))]
