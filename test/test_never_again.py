"""What users of the nearest relative keep hitting, each held by a test.

Numbers are threads of tinygrad/tinygrad. What other files hold already is in `HELD_ELSEWHERE`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import graphs
import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
import stages
from hypothesis import example, given, settings

from tinyml import Tensor, TinyJit, blame, config, lazy, nn, trace
from tinyml.device import Device, open_device
from tinyml.errors import NanError, OutOfMemoryError
from tinyml.graph import toposort

Array = npt.NDArray[Any]
HERE = Path(__file__).parent
nan = float("nan")

HELD_ELSEWHERE = {
    "#9108 random draws under a JIT": "test_jit.py::test_random_numbers_are_those_without_jit",
    "PR #14754 order of reads and writes": "schedule/test_assign_order.py::test_random_programs",
    "#16831 two tensors swap": "schedule/test_assign_order.py::test_two_tensors_swap",
    "#6803 a frozen branch": "test_jit.py::test_changing_host_values_raise",
    "footgun: shapes": "test_jit.py::test_other_arguments_raise",
    "footgun: item()": "test_jit.py::test_reading_on_the_host_raises_and_leaves_no_trace",
    "footgun: output memory": "test_jit.py::test_earlier_results_stay",
    "footgun: method state": "test_jit.py::test_methods_capture_for_each_instance",
    "#5184 a JIT in a JIT": "test_jit.py::test_a_jit_inside_a_jit",
    "#3604 64 bit on CUDA": "codegen/text/test_cuda.py::test_places_beyond_31_bits",
    "PR #12287 every runner agrees": "codegen/test_simulate.py::test_all_simple_runners_agree",
    "PR #7008 growth of scheduling": "test_scaling.py::test_scheduling",
    "#1412 growth of lowering": "test_scaling.py::test_lowering",
    "#8167 deep chains": "test_scaling.py::test_a_chain_of_a_hundred_thousand_ops",
    "#8617 many inputs": "test_scaling.py::test_ten_thousand_inputs",
    "#6732 and their values": "test_deep_graphs.py::test_a_stack_and_a_cat_of_ten_thousand_inputs",
    "#12625 kernel counts": "schedule/test_kernel_counts.py::test_kernel_count",
    "#242 memory of a JIT": "test_jit.py::test_interim_memory_is_shared",
    "PR #13146 no compiler": "runtime/test_cpu.py::test_a_missing_compiler_says_what_to_install",
    "#6905 bad compiler": "runtime/test_cpu.py::test_a_compiler_that_does_not_work_is_passed_over",
    "#2229 unwritable cache": "runtime/test_cpu.py::test_a_cache_that_cannot_be_written_does_not_"
    "stop_a_run",
    "PR #5026 errors of shapes": "test_errors.py::test_refused",
}


@pytest.mark.parametrize("what", HELD_ELSEWHERE)
def test_held_elsewhere(what: str) -> None:
    file, name = HELD_ELSEWHERE[what].split("::")
    assert f"def {name}(" in (HERE / file).read_text()


on_two = pytest.mark.parametrize("device", ["NUMPY", "CPU"], indirect=True)


@pytest.fixture
def cpu() -> Iterator[None]:
    """The generated C is the default device."""
    if not Device.available("CPU"):
        pytest.skip("no C compiler")
    before, Device.DEFAULT = Device.DEFAULT, "CPU"
    yield
    Device.DEFAULT = before


def leaf(values: Any) -> Tensor:
    """Float values that are real and want a gradient."""
    return Tensor(np.asarray(values, np.float32), requires_grad=True).realize()


# ---- silent wrong numbers ----


@on_two
def test_draws_do_not_depend_on_what_is_realized_first(device: str) -> None:
    """#16520: with the second draw realized first, both were the same."""

    def draws() -> list[Tensor]:
        Tensor.manual_seed(5)
        return [Tensor.rand(4), Tensor.randn(4), Tensor.rand(4)]

    wanted = [d.tolist() for d in draws()]
    assert wanted[0] != wanted[2]
    for order in ((2, 1, 0), (1, 2, 0), (2, 0, 1)):
        made = draws()
        for n in order:
            made[n].realize()
        assert [d.tolist() for d in made] == wanted


@on_two
def test_equal_parameters_have_gradients_of_their_own(device: str) -> None:
    """#9597: two parameters of one value were one node, and had twice the gradient."""
    a, b = Tensor(2.0, requires_grad=True), Tensor(2.0, requires_grad=True)
    (a * b + b).backward()
    assert a.grad is not None
    assert b.grad is not None
    assert (a.grad.item(), b.grad.item()) == (2, 3)
    x, y = (Tensor.ones(3, requires_grad=True) for _ in range(2))
    given_x, given_y = (x * 2 + y).sum().gradient(x, y)
    assert (given_x.tolist(), given_y.tolist()) == ([2, 2, 2], [1, 1, 1])


@on_two
@pytest.mark.parametrize("early", [False, True])
def test_multinomial_needs_nothing_realized_early(early: bool, device: str) -> None:
    """#4999: it was wrong unless something was realized on the way."""
    weights = Tensor.arange(4).reshape(2, 2).flip(0).float()  # ((2, 3), (0, 1))
    weights = weights.realize() if early else weights
    drawn = weights.multinomial(400, replacement=True).numpy()
    assert drawn[1].tolist() == [1] * 400
    assert drawn[0].mean() == pytest.approx(3 / 5, abs=0.1)


MOVES: dict[str, Callable[[Any, Any, int], Any]] = {
    "permute": lambda xp, x, n: x.transpose(1, 2, 0) if xp is np else x.permute(1, 2, 0),
    "flip": lambda xp, x, n: np.flip(x, n) if xp is np else x.flip(n),
    "pad": lambda xp, x, n: np.pad(x, [(a == n, n) for a in range(3)], constant_values=7)
    if xp is np
    else x.pad([(int(a == n), n) for a in range(3)], value=7),
    "shrink": lambda xp, x, n: x[:, x.shape[1] // 2 :, : -n or None],
    "step": lambda xp, x, n: x[tuple(slice(None, None, 2 if a == n else 1) for a in range(3))],
    "reshape": lambda xp, x, n: x.reshape(x.shape[2] * x.shape[0], 1, x.shape[1]),
    "repeat": lambda xp, x, n: np.tile(x, (1, 2, 1)) if xp is np else x.repeat(1, 2, 1),
    "roll": lambda xp, x, n: np.roll(x, n + 1, n) if xp is np else x.roll(n + 1, n),
}  # fmt: skip


@settings(max_examples=3)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(sorted(MOVES)), st.integers(0, 2)), max_size=7),
        min_size=25,
        max_size=25,
    )
)
@example([[("roll", 0), ("permute", 1), ("pad", 0), ("reshape", 2), ("pad", 1), ("step", 2)]])
def test_chains_of_movements_point_where_numpys_do(chains: list[list[tuple[str, int]]]) -> None:
    """#1152, #2614, #2845, #3407: views merged wrongly. Each chain is one index expression."""
    start = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    pairs = []
    for chain in chains:
        x, y = start, Tensor(start, device="CPU")
        for name, n in chain:
            if x.size < 2000:
                x, y = MOVES[name](np, x, n), MOVES[name](Tensor, y, n)
        pairs.append((x, y))
    Tensor.realize(*(y for _, y in pairs))
    for x, y in pairs:
        np.testing.assert_array_equal(y.numpy(), x)


@pytest.mark.parametrize("target", [stages.C, stages.CUDA], ids=["C", "CUDA"])
def test_indices_beyond_31_bits_are_computed_in_64(target: Any) -> None:
    """#3961, #3271: int32 overflow. Compiled only: one element repeated costs no memory."""

    def counters(rows: int) -> set[str]:
        """The types of what is counted to copy `rows` times 3 * 2**20 elements."""
        spread = lazy.expand(graphs.leaf(3, 1, 1 << 20), (3, rows, 1 << 20))
        k = stages.kernel_of(lazy.contiguous(spread))
        source = stages.compile(k, target).source
        return set(re.findall(r"\b((?:int|long)(?: long)?) \w+ =", source))

    assert counters(1 << 10) == {"long" if target is stages.C else "long long"}
    assert counters(2) == {"long" if target is stages.C else "int"}


@on_two
def test_an_int_outside_is_refused_and_negative_ones_wrap(device: str) -> None:
    """PR #5873: what is out of range gave zeros, silently."""
    table = Tensor(np.arange(15, dtype=np.float32).reshape(5, 3))
    assert table[Tensor([-1])].tolist() == table[-1:].tolist() == [[12, 13, 14]]
    assert table.gather(0, Tensor([[-5, -1, 0]])).tolist() == [[0, 13, 2]]
    for index in (5, -6):
        with pytest.raises(IndexError, match=rf"index {index} is out of bounds for axis 0"):
            table[index]


@on_two
def test_an_index_from_data_that_is_outside_is_an_error(device: str) -> None:
    """PR #16877: what is read at such an index is nobody's business."""
    embedding = nn.Embedding(5, 3)
    for places in ([1, 7], [-6, 0]):
        wrong = max(places, key=abs)
        with pytest.raises(IndexError, match=rf"index {wrong} is out of bounds for axis 0 of \(5"):
            embedding(Tensor(places)).realize()
        for same in (Tensor.ones(5, 3), Tensor.ones(5, 3).log_softmax(0)):  # in every place
            with pytest.raises(IndexError, match=f"index {wrong} is out of bounds"):
                same[Tensor(places)].realize()
    assert embedding(Tensor([1, 4, -5])).shape == (3, 3)


@on_two
def test_nan_goes_through_extremes_and_orders(device: str) -> None:
    """#862, #1334, #14716: max, min, argmax and sort swallowed it."""
    x = np.array([[1, nan, 3, 2], [4, 3, 2, 1]], np.float32)
    t, one = Tensor(x), Tensor([1.0, nan])
    values, order = t.sort(descending=True)
    made = [t.max(1), t.min(1), t.argmax(1), t.argmin(1), values, order, t.cummax(1), t.cummin(1),
            one.maximum(Tensor([nan, 2.0])), one.minimum(0), t.max(), one.relu(),
            t.topk(2)[1]]  # fmt: skip
    Tensor.realize(*made)
    largest, smallest, at, least, values, order, rise, fall, *rest, top = (m.numpy() for m in made)
    np.testing.assert_array_equal(largest, [nan, 4])
    np.testing.assert_array_equal(smallest, [nan, 1])
    assert (at.tolist(), least.tolist()) == ([1, 0], [1, 3])
    np.testing.assert_array_equal(values[0], [nan, 3, 2, 1])
    assert (order[0].tolist(), top[0].tolist()) == ([1, 2, 3, 0], [1, 2])
    np.testing.assert_array_equal(rise[0], [1, nan, nan, nan])
    np.testing.assert_array_equal(fall[0], [1, nan, nan, nan])
    both, with_zero, whole, relu = rest
    assert np.isnan([*both, with_zero[1], whole, relu[1]]).all()


@on_two
def test_ties_in_halves_are_counted_in_float32(device: str) -> None:
    """#12296: 70,000 ties are infinity in a half. #738: ties share the gradient."""
    x = Tensor(np.ones(70_000, np.float16), requires_grad=True)
    x.max().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), np.float16(1 / 70_000))


@on_two
def test_whole_division_and_remainder_by_all_signs(device: str) -> None:
    """#3133, #1495: signs as C has them, or Python; on tensors and on constants."""
    left, right = (
        np.array([7, -7, 7, -7, 6, -6], np.int32),
        np.array([2, 2, -2, -2, 3, -3], np.int32),
    )
    x, y = Tensor(left), Tensor(right)
    made = [x // y, x % y, x.div(y, rounding_mode="trunc"), x // -2, x % -2, 7 // y, -7 % y,
            x.float() % y.float(), x.float() // -2]  # fmt: skip
    Tensor.realize(*made)
    cut = np.trunc(left / right)
    wanted = [left // right, left % right, cut, left // -2, left % -2, 7 // right, -7 % right,
              left % right, left // -2]  # fmt: skip
    for mine, other in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(mine.numpy(), other)


@on_two
def test_a_step_that_is_captured_computes_what_it_did_before(device: str) -> None:
    """#6803, #7637: results under the JIT were others. Eager and captured, side by side."""
    w = leaf(np.linspace(-1, 1, 6).reshape(2, 3))
    kept = Tensor.zeros(2).realize()

    def step(x: Tensor) -> Tensor:
        y = (x @ w).relu() + Tensor.rand(3)
        kept.assign(kept * 0.5 + x)
        return y.softmax(-1) + kept.sum()

    captured, inputs = TinyJit(step), np.random.default_rng(0).standard_normal((5, 2))
    results = []
    for run in (step, captured):
        Tensor.manual_seed(3)
        kept.assign(Tensor.zeros(2)).realize()
        results.append([run(Tensor(v.astype(np.float32))).numpy() for v in inputs])
    np.testing.assert_array_equal(*results)


# ---- speed and memory ----


def launched(make: Callable[[], list[Tensor]]) -> list[Any]:
    """The kernels that ran for what `make` makes."""
    made = make()
    with trace.listen(trace.KernelRan) as ran:
        Tensor.realize(*made)
    return ran


def test_looking_up_costs_what_is_looked_up(cpu: None) -> None:
    """#1612, #2433, #4314, PR #8756: embedding and gather were O(n * vocabulary)."""
    words = Tensor(np.arange(8) * 6000)
    table = Tensor.zeros(50_000, 16).contiguous().realize()
    (ran,) = launched(lambda: [table[words]])
    assert ran.program.cost.nbytes < 4096
    layer = nn.Embedding(50_000, 16)
    layer.weight.assign(table).realize()
    loss = layer(words).square().sum()
    loss.backward()
    assert layer.weight.grad is not None
    for node in toposort([loss.lazy, layer.weight.grad.lazy]):
        assert node.size <= table.numel()


@pytest.mark.usefixtures("no_garbage")
def test_memory_is_free_after_its_last_use(cpu: None) -> None:
    """#242, PR #9283: a chain of stored values holds two of them, not all."""
    x = Tensor.ones(1 << 18).contiguous().realize()  # 1 MB
    y = x
    for _ in range(12):
        y = (y.flip(0) + 1).contiguous()  # backwards, so that it is a kernel of its own
    with trace.listen(trace.Allocated) as given:
        y.realize()
    before = open_device("CPU").machine.memory_stats().in_use - (1 << 20)
    assert max(e.in_use for e in given) - before <= 3 << 20


@pytest.mark.usefixtures("no_garbage")
def test_after_running_out_of_memory_work_goes_on(cpu: None) -> None:
    """#2448: what had been allocated stayed so."""
    x = Tensor.ones(8).contiguous().realize()
    machine = open_device("CPU").machine
    before = machine.memory_stats().in_use
    with pytest.raises(OutOfMemoryError, match=r"bytes"):
        (x + 1).contiguous().reshape(8, 1, 1).expand(8, 1 << 30, 1 << 24).contiguous().realize()
    assert machine.memory_stats().in_use == before
    assert (x + 1).tolist() == [2] * 8


def test_the_same_input_gives_the_same_bits(cpu: None) -> None:
    """#6411: also with another number of threads, and at another place in memory."""
    x = np.random.default_rng(1).standard_normal((300, 700)).astype(np.float32)
    found = set()
    for threads in (1, 2, 2):
        with config.override(threads=threads):
            t = Tensor(x)
            made = t.sum(), (t @ t.T).softmax(1).sum(0), t.cumsum(1)[:, -1], t.std(0)
            Tensor.realize(*made)
            found.add(b"".join(m.numpy().tobytes() for m in made))
    assert len(found) == 1


# ---- usability ----


@on_two
def test_nan_is_traced_to_the_line_that_made_it(device: str) -> None:
    """#4497: "should be able to debug nan loss"."""
    end = blame.start()
    try:
        x = leaf([1.0, 2.0, 0.5])
        masked = (x > 1).where((x - 1).log(), 0)  # its NaN is nowhere in the result
        assert np.isfinite(masked.numpy()).all()
        shifted = (x * 2 - 2) + masked
        rooted = shifted.sqrt()  # this line
        loss = (rooted * 3).mean()
        with pytest.raises(NanError, match=r"NaN is made by SQRT of \(3,\) at (.*):(\d+)$") as info:
            loss.realize()
    finally:
        end()
    file, line = str(info.value).rsplit(" at ")[-1].rsplit(":", 1)
    assert Path(file) == Path(__file__)
    assert "# this line" in Path(file).read_text().splitlines()[int(line) - 1]
    assert np.isnan(loss.item())  # without being asked nobody looks


def test_an_error_of_shapes_comes_from_the_line_that_made_it() -> None:
    """PR #5026, #6352: strange errors, and late."""
    x = Tensor.zeros(2, 3)
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(4, 2\)") as info:
        x.reshape(4, 2)  # this line, not one that realizes
    own = [f for f in traceback.extract_tb(info.tb) if f.filename == __file__]
    assert "# this line" in Path(__file__).read_text().splitlines()[(own[-1].lineno or 0) - 1]


@on_two
def test_masks_of_bool_choose_elements(device: str) -> None:
    """#9416: reading, writing and counting what a mask chooses."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    mask = x % 3 == 1
    t, m = Tensor(x), Tensor(mask)
    np.testing.assert_array_equal(t[m].numpy(), x[mask])
    np.testing.assert_array_equal(t[m[:, 0]].numpy(), x[mask[:, 0]])
    np.testing.assert_array_equal(t.masked_select(m).numpy(), x[mask])
    assert t[m & (t < 0)].shape == (0,)
    t[m] = -1
    np.testing.assert_array_equal(t.numpy(), np.where(mask, -1, x))


def test_a_gradient_comes_back_through_a_copy_to_another_device(cpu: None) -> None:
    """#9828: there was none."""
    x = Tensor([1.0, 2.0], requires_grad=True)
    (x * 2).to("NUMPY").square().sum().backward()
    assert x.grad is not None
    assert (x.grad.device, x.grad.tolist()) == ("CPU", [8, 16])
