"""Docs name what is there: links lead somewhere, files and functions exist, no file is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
DESIGN = sorted(ROOT.glob("docs/design/*.md"))
FOLDERS = ("tinyml", "benchmarks", "examples", "test")
SOURCES = [p for f in FOLDERS for p in ROOT.glob(f"{f}/**/*") if p.suffix in (".py", ".c", ".h")]


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _prose(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def _anchors(page: Path) -> set[str]:
    """What GitHub makes of headings: small letters, no signs, hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", _prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def _is_named(file: str) -> bool:
    """Whether a name that pages give, as `text/c.py`, or with a `*`, is that of a source."""
    pattern = "(.*/)?" + re.escape(file).replace(r"\*", "[^/]*")
    return any(re.fullmatch(pattern, _name(path)) for path in SOURCES)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if not link.startswith(("http", "mailto:")):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in _anchors(target), link


@pytest.mark.parametrize("page", DESIGN, ids=_name)
def test_pages_name_files_and_functions_that_are_there(page: Path) -> None:
    named = re.findall(r"`([^`\n]+)`", _prose(page))
    files = [n for n in named if re.fullmatch(r"[\w*/]+\.(py|c|h)", n)]
    assert not [f for f in files if not _is_named(f)]
    functions = [n for n in named if re.fullmatch(r"[A-Za-z]\w*\._?[a-z]\w+", n) and n not in files]
    words = {w for path in SOURCES for w in re.findall(r"\w+", path.read_text())}
    assert not [f for f in functions if f.rpartition(".")[2] not in words]


@pytest.mark.parametrize("room", ["", "codegen/", "runtime/"])
def test_each_file_of_a_room_is_on_a_page(room: str) -> None:
    text = "\n".join(map(_prose, DESIGN))
    shown = set(re.findall(r"`(?:\w+/)*(\w+\.py)`", text))
    files = ROOT.glob(f"tinyml/{room}**/*.py" if room else "tinyml/*.py")
    names = {f.name for f in files if not f.stem.startswith("__") and "emu" not in f.parts}
    assert not sorted(names - shown)
