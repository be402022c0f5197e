"""`pytest --update-golden` rewrites the golden files; the diff is what one reviews."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent.parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite test/golden/*")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text): the text is that of the file."""
    update = request.config.getoption("--update-golden", default=False)

    def compare(name: str, text: str) -> None:
        place = GOLDEN / name
        if update:
            place.write_text(text)
        wanted = place.read_text() if place.exists() else "no such file\n"
        assert text == wanted, f"{place} differs: look, then pytest --update-golden"

    return compare
