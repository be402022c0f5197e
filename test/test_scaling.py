"""Doubling a graph at most doubles the work: counted in calls, because clocks lie."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from cProfile import Profile
from random import Random
from typing import Any

import graphs
import numpy as np
import pytest
import stages
from cards import CARD
from graphs import add, leaf, mul

from tinyml import Tensor, TinyJit, defaults, lazy, ledger
from tinyml.codegen.compile import compile
from tinyml.codegen.target import Target
from tinyml.device import Device
from tinyml.dtype import float32, int32
from tinyml.graph import needing, numbered, toposort
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op
from tinyml.realize import compute
from tinyml.schedule import schedule

BOUND = 2.5


def calls(work: Callable[[], Any]) -> int:
    """How many Python functions `work` calls."""
    profile = Profile(builtins=False)
    gc.collect()
    gc.disable()  # what earlier tests left behind would be counted when it is collected
    try:
        profile.runcall(work)
    finally:
        gc.enable()
    return sum(entry.callcount for entry in profile.getstats())


def lines(work: Callable[[], Any]) -> int:
    """How many lines of Python `work` runs: loops count, too."""
    count = 0

    def counted(frame: object, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return counted

    before = sys.gettrace()
    gc.collect()
    gc.disable()
    sys.settrace(counted)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def chain(n: int) -> list[LazyBuffer]:
    x = y = leaf(8)
    for _ in range(n):
        y = add(y, x)
    return [y]


def tree(n: int) -> list[LazyBuffer]:
    """n leaves added in pairs."""
    level = [leaf(8) for _ in range(n)]
    while len(level) > 1:
        level = [add(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    return level


def diamonds(n: int) -> list[LazyBuffer]:
    """Every value read twice: there are 2 ** n paths."""
    x = leaf(8)
    for _ in range(n):
        x = mul(add(x, x), x)
    return [x]


def layers(n: int) -> list[LazyBuffer]:
    x = leaf(16, 16)
    for _ in range(n):
        x = graphs.softmax(graphs.matmul(x, leaf(16, 16)))
    return [x]


def siblings(n: int) -> list[LazyBuffer]:
    """n results that have nothing to do with each other."""
    return [add(leaf(4 + i), leaf(4 + i)) for i in range(n)]


def updates(n: int) -> list[LazyBuffer]:
    made = []
    for i in range(n):
        target = leaf(4 + i)
        made.append(lazy.assign(target, add(target, leaf(4 + i))))
    return made


def constants(n: int) -> list[LazyBuffer]:
    """Sums that read no memory."""
    x = lazy.const(1, float32, graphs.DEVICE, (8, 8))
    for _ in range(n):
        x = graphs.matmul(x, lazy.const(0.125, float32, graphs.DEVICE, (8, 8)))
    return [x]


def neighbours(n: int) -> list[LazyBuffer]:
    """Steps that each read the last one's result at five places: there are 5 ** n paths."""
    x = Tensor._of(leaf(8, 8))
    for _ in range(n):
        x = x.roll(1, 0) + x.roll(-1, 0) + x.roll(1, 1) + x.roll(-1, 1) - 4 * x
    return [x.lazy]


def shuffles(n: int) -> list[LazyBuffer]:
    """Indices divided by what none divides: in each step there are two of the one before."""
    x = leaf(4, 6)
    for _ in range(n):
        x = lazy.map_(Op.NEG, lazy.reshape(lazy.permute(x, (1, 0)), (4, 6)))
    return [x]


def turned(n: int) -> list[LazyBuffer]:
    """Steps that each read the last one's result as it is and in another order."""
    x = Tensor._of(leaf(60))
    for _ in range(n):
        x = x.reshape(6, 10).T.reshape(60) * 0.9 + x
    return [x.lazy]


def lookups(n: int) -> list[LazyBuffer]:
    x, index = Tensor._of(leaf(16, 4)), Tensor._of(leaf(16, dtype=int32))
    for _ in range(n):
        x = x[index] + 1
    return [x.lazy]


def joined(n: int) -> list[LazyBuffer]:
    """The gradient of pieces that are joined in another order: a sum of n, each under a mask."""
    x = Tensor._of(leaf(2 * n))
    (grad,) = Tensor.cat(*x.split(2)[::-1]).tanh().sum().gradient(x)
    return [grad.lazy]


SIZES = {chain: 800, tree: 256, diamonds: 200, layers: 12, siblings: 100, updates: 100}
SIZES |= {constants: 80, neighbours: 40, turned: 40, shuffles: 80, lookups: 80, joined: 640}
CHAINS = [chain, diamonds, layers, constants, neighbours, turned, shuffles, lookups, joined]


@pytest.mark.parametrize("make", SIZES, ids=lambda f: f.__name__)
def test_scheduling(make: Callable[[int], list[LazyBuffer]]) -> None:
    small, large = make(SIZES[make]), make(2 * SIZES[make])
    schedule(make(4))  # what is done once
    once, twice = calls(lambda: schedule(small)), calls(lambda: schedule(large))
    assert twice < BOUND * once, f"{once} calls, then {twice}"


@pytest.mark.parametrize("make", CHAINS, ids=lambda f: f.__name__)
def test_lowering(make: Callable[[int], list[LazyBuffer]]) -> None:
    def lowered(n: int) -> int:
        kernels = stages.kernels(*make(n))
        return calls(lambda: [stages.compile(k, stages.C) for k in kernels])

    lowered(4)
    size = SIZES[make] // 4
    once, twice = lowered(size), lowered(2 * size)
    assert twice < BOUND * once, f"{once} calls, then {twice}"


@pytest.mark.parametrize("target", [stages.C, CARD], ids=["C", "CUDA"])
def test_squares_of_squares_are_added_up(target: Target) -> None:
    def lowered(n: int) -> int:
        x = leaf(6, 8)
        for _ in range(n):
            x = mul(x, x)
        k = stages.kernel_of(lazy.reduce_(Op.ADD, x, (0,)))
        return calls(lambda: compile(k, target))

    lowered(2)
    once, twice = lowered(10), lowered(20)  # which multiply the same a million times
    assert twice < BOUND * once, f"{once} calls, then {twice}"


@pytest.mark.parametrize(("shape", "most"), [("chain", 20), ("updates", 40)])
def test_realizing_by_a_plan_that_is_known(shape: str, most: int) -> None:
    if not Device.available("CPU"):
        pytest.skip("no C compiler")
    x = Tensor([1.0, 2.0], device="CPU").realize()

    def recorded(n: int) -> list[LazyBuffer]:
        if shape == "updates":
            targets = [Tensor([0.0, i], device="CPU").realize() for i in range(n)]
            return [lazy.assign(t.lazy, add(t.lazy, x.lazy)) for t in targets]
        y = x
        for _ in range(n):
            y = y + x
        return [y.lazy]

    def again(n: int) -> int:
        compute(recorded(n))
        roots = recorded(n)
        return lines(lambda: compute(roots))

    once, twice, four_times = again(20), again(40), again(80)
    assert four_times - twice < BOUND * (twice - once)
    nodes = len(toposort(recorded(80))) - len(toposort(recorded(40)))
    assert (four_times - twice) / nodes < most, "lines of Python for each further node"


@pytest.mark.parametrize(
    ("roots", "most"),
    [
        ([graphs.matmul(leaf(48, 64), leaf(64, 48))], 7000),
        ([graphs.softmax(leaf(16, 104))], 7000),
    ],
    ids=["product", "softmax"],
)
def test_a_new_kernel_takes_few_calls(roots: list[LazyBuffer], most: int) -> None:
    k = stages.kernels(*roots)[-1]
    assert calls(lambda: compile(k, stages.C)) < most


@pytest.mark.parametrize("op", ["svd", "qr", "inverse", "cholesky", "det"])
def test_steps_that_take_a_matrix_apart_are_recorded_in_few_calls(op: str) -> None:
    x = Tensor.eye(16).contiguous().realize()

    def record() -> list[LazyBuffer]:
        made = getattr(x, op)()
        return [t.lazy for t in (made if isinstance(made, tuple) else (made,))]

    nodes = len(toposort(record()))
    assert calls(record) < 4 * nodes


def test_what_is_added_to_a_graph_is_numbered_behind_it() -> None:
    x = leaf(8)
    y = add(x, x)
    z = mul(y, leaf(8))
    before = numbered([y])
    after = numbered([z, y], dict(before))
    assert after.items() >= before.items()
    assert {*after} == {*toposort([y, z])}
    assert sorted(after.values()) == [*range(len(after))]


@pytest.mark.parametrize("seed", range(20))
def test_which_roots_need_a_leaf_that_is_looked_for(seed: int) -> None:
    random = Random(seed)
    nodes = [leaf(8) for _ in range(6)]
    looked_for, besides = {*random.sample(nodes, 2)}, set[LazyBuffer]()
    need = {*looked_for}
    for _ in range(40):
        made = add(random.choice(nodes[-12:]), random.choice(nodes))
        nodes.append(made)
        if random.random() < 0.1:
            besides.add(made)
        elif not need.isdisjoint(made.sources):
            need.add(made)
    roots = random.sample(nodes, 15)
    found = needing(roots, looked_for.__contains__, besides)
    assert found == [root for root in roots if root in need]
    assert 0 < len(found) < len(roots)


def test_a_walk_ends_at_the_first_leaf_that_is_looked_for() -> None:
    x, asked = leaf(8), list[LazyBuffer]()

    def is_x(node: LazyBuffer) -> bool:
        asked.append(node)
        return node is x

    below = add(x, *chain(10))
    roots = [mul(below, leaf(8)), add(leaf(8), below), add(below, leaf(8)), *chain(20)]
    assert needing(roots, is_x) == roots[:3]
    assert asked == [x, roots[1].sources[0], *[n for n in toposort(roots[3:]) if not n.sources]]


def test_who_reads_what_is_overwritten_is_found_without_a_walk_through_all_they_read() -> None:
    def found(length: int) -> int:
        x, y = Tensor([1.0, 2.0]).realize(), Tensor([1.0, 2.0]).realize()
        deep = y.lazy
        for _ in range(length):
            deep = mul(deep, y.lazy)  # which no tensor holds
        z = Tensor._of(add(x.lazy, deep))
        buffers = [id(ledger.memory[x.lazy])]
        ledger.pending()  # drops who is noted and not there any more
        reading = list[object]()
        count = lines(lambda: reading.extend(ledger.pending_readers(buffers)))
        assert any(reader is z for reader in reading)
        return count

    assert found(1000) <= found(4) + 20


def test_a_chain_of_a_hundred_thousand_ops() -> None:
    roots = chain(100_000)
    (x,) = [n for n in toposort(roots) if isinstance(n, lazy.Data)]
    (found,) = stages.interpreted(roots, {x: np.ones(8, np.float32)})
    assert found.tolist() == [100_001] * 8
    made = schedule(roots)
    assert 1 < len(made.items) < 5000
    assert max(len(item.nodes) for item in made.items) < 50


def test_ten_thousand_inputs() -> None:
    if not Device.available("CPU"):
        pytest.skip("no C compiler")
    parts = [Tensor([float(i)], device="CPU") for i in range(10_000)]
    made = schedule([Tensor.stack(parts).lazy])
    assert len(made.items) < 1000
    assert max(len(item.nodes) for item in made.items) < 100


@pytest.mark.parametrize("jit", [False, True])
def test_a_sum_that_nobody_looks_at_costs_each_step_the_same(jit: bool) -> None:
    with defaults(device="CPU" if Device.available("CPU") else "NUMPY"):
        weight, total = Tensor([1.0, 2.0]).realize(), Tensor([0.0, 0.0]).realize()

        def step(x: Tensor) -> Tensor:
            weight.assign(weight * 0.5 + x).realize()
            return (weight - x).realize()

        one: Callable[[Tensor], Tensor] = TinyJit(step) if jit else step
        given, wanted, value = Tensor([1.0, 4.0]).realize(), np.zeros(2), np.array([1.0, 2.0])
        counts = []
        for turn in range(120):
            if turn in (9, 10, 109, 110):
                taken: list[Tensor] = []
                counts.append(lines(lambda taken=taken: taken.append(one(given))))  # type: ignore[misc]
                total = total + taken[0] * 3
            else:
                total = total + one(given) * 3
            value = value * 0.5 + [1, 4]
            wanted += (value - [1, 4]) * 3
            if turn == 60:
                read = weight + total  # who reads what is assigned to keeps what was there
                kept = value + wanted
        assert min(counts[2:]) < 2 * min(counts[:2]), counts
        np.testing.assert_allclose(total.numpy(), wanted, 1e-5)
        np.testing.assert_allclose(read.numpy(), kept, 1e-5)


def test_a_table_of_counts_that_nobody_looks_at_costs_each_step_the_same() -> None:
    with defaults(device="CPU" if Device.available("CPU") else "NUMPY"):
        weight, table = Tensor([1.0, 2.0]).realize(), Tensor.zeros(3, 3)
        places, step = Tensor([0, 1, 2]).realize(), Tensor([1.0, 4.0]).realize()

        def update() -> None:
            weight.assign(weight * 0.5 + step).realize()

        counts = []
        for _ in range(16):
            table[places, places] += 1  # what this writes is reshaped to the table, and back
            counts.append(lines(update))
        assert min(counts[-3:]) < 1.5 * min(counts[3:6]), counts
        np.testing.assert_array_equal(table.numpy(), 16 * np.eye(3))


def test_what_is_added_up_in_place_is_recorded_in_the_same_time_each_step() -> None:
    def recorded(n: int) -> tuple[Tensor, Tensor]:
        x = weight = Tensor([1.0, 0.5], requires_grad=True)
        total = Tensor(0.0)
        for _ in range(n):
            x = x * weight
            total += x.sum()
        return total, weight

    recorded(4)
    once, twice = (lines(lambda n=n: recorded(n)) for n in (60, 120))  # type: ignore[misc]
    assert twice < BOUND * once, f"{once} lines, then {twice}"
    total, weight = recorded(10)
    (found,) = total.gradient(weight)
    powers = np.arange(2, 12)
    wanted = [sum(powers * w ** (powers - 1)) for w in (1.0, 0.5)]
    np.testing.assert_allclose(found.numpy(), wanted, 1e-5)
