"""Generated text as files, so that a change of codegen is a diff that somebody reads."""

from __future__ import annotations

from collections.abc import Callable

import graphs
import pytest
import stages
from graphs import leaf
from products import product

from tinyml.codegen.compile import compile
from tinyml.dtype import bfloat16
from tinyml.program import Program, translation_unit

GRAPHS = {
    "elementwise": lambda: graphs.elementwise(64, 100),
    "softmax": lambda: graphs.softmax(leaf(64, 256)),
    "linear_relu": lambda: graphs.linear_relu(64, 128, 96),
    "halves": lambda: product(64, 128, 96, bfloat16),
    "convolution": lambda: graphs.convolution(2, 8, 16, 16, 16),
    "embedding_gradient": lambda: graphs.embedding_gradient(50, 16, 32),
}
ENDINGS = {"C": "c", "CUDA": "cu"}


def programs(name: str, dialect: str, plain: bool) -> tuple[Program, ...]:
    kernels = stages.kernels(GRAPHS[name]())
    opts = [] if plain else None
    return tuple(compile(k, stages.TARGETS[dialect], opts, verify=True) for k in kernels)


@pytest.mark.parametrize("dialect", ENDINGS)
@pytest.mark.parametrize("name", GRAPHS)
def test_golden(name: str, dialect: str, golden: Callable[[str, str], None]) -> None:
    text = translation_unit(programs(name, dialect, plain=False))
    golden(f"{name}.{ENDINGS[dialect]}", text)


def test_golden_without_opts(golden: Callable[[str, str], None]) -> None:
    golden("plain_softmax.c", translation_unit(programs("softmax", "C", plain=True)))


def test_text_is_the_same_in_every_run() -> None:
    assert programs("softmax", "C", plain=False) == programs("softmax", "C", plain=False)
