"""How many kernels expressions take. The table with the reasons is test/expressions.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from expressions import EXPRESSIONS, Made

from tinyml import Tensor, defaults, lazy, nn, trace
from tinyml.device import Device
from tinyml.graph import toposort
from tinyml.kernel import Kernel
from tinyml.lazy import LazyBuffer
from tinyml.schedule import KernelItem, schedule


@pytest.fixture(autouse=True)
def _on_cpu() -> Iterator[None]:
    """NUMPY has no kernels; EMU and CUDA have those of CPU, or more: see fuse.CACHED."""
    if not Device.available("CPU"):
        pytest.skip("no C compiler")
    with defaults(device="CPU"):
        yield


def items(made: Made) -> list[KernelItem]:
    nodes = [tensor.lazy for tensor in made]
    return [item for item in schedule(nodes).items if isinstance(item, KernelItem)]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_kernel_count(name: str, request: pytest.FixtureRequest) -> None:
    wanted = EXPRESSIONS[name]
    if wanted.missing:
        request.applymarker(pytest.mark.xfail(strict=True, reason=wanted.missing))
    found = items(wanted.make())
    told = "\n\n".join(f"{item.kernel}\n" + "\n".join(item.reasons) for item in found)
    assert len(found) == wanted.kernels, f"{wanted.why}\n\n{told}"
    assert all(item.reasons for item in found)


def test_of_random_bits_one_byte_is_stored() -> None:
    """What decides in a forward and a backward pass; and it is made by who makes the product."""
    x, weight = Tensor.randn(24, 16).realize(), Tensor.randn(16, 40).realize()
    weight.requires_grad = True
    with Tensor.train():
        dropped = (x @ weight).dropout(0.2)
        (gradient,) = (dropped * dropped).sum().gradient(weight)
    made = [{o.dtype.name for o in item.outputs} for item in items((dropped, gradient))]
    assert len(made) == 2
    assert not any("uint32" in dtypes for dtypes in made)

    q, k, v = (Tensor.randn(2, 2, 40, 8).realize() for _ in range(3))
    q.requires_grad = True
    with Tensor.train():
        out = q.scaled_dot_product_attention(k, v, dropout_p=0.2)
        (gradient,) = (out * out).sum().gradient(q)
    outputs = [o for item in items((out, gradient)) for o in item.outputs]
    (bits,) = (o for o in outputs if not o.dtype.is_float)
    assert (bits.dtype.name, bits.size) == ("bool", 2 * 2 * 40 * 40)


def test_a_layernorm_and_its_gradient_fold_a_row_twice() -> None:
    """The mean, and then at once the variance and both means that the gradient is made of."""
    x, weight = (Tensor.randn(24, 40).realize() for _ in range(2))
    x.requires_grad = True
    out = x.layernorm()
    (gradient,) = (out * weight).sum().gradient(x)
    (item,) = items((out, gradient))
    deep: dict[LazyBuffer, int] = {}
    for node in toposort([output.value for output in item.kernel.outputs]):
        below = max([deep[source] for source in node.sources], default=0)
        deep[node] = below + isinstance(node, lazy.Reduce)
    assert max(deep.values()) == 2


def test_the_table_is_long_enough() -> None:
    assert len(EXPRESSIONS) >= 25
    assert all(e.why for e in EXPRESSIONS.values())


def test_launches_are_the_kernels_of_the_schedule() -> None:
    for name in ("layernorm", "mlp", "sgd"):
        made = EXPRESSIONS[name].make()
        planned = len(items(made))
        with trace.listen(trace.Launched) as launches:
            Tensor.realize(*made)
        assert len(launches) == planned


def test_results_of_several_shapes_have_memory_of_their_own() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).exp() + 1
    roots = schedule([x.lazy, x.reshape(4).lazy, x.reshape(1, 4).lazy]).roots
    assert len({*roots}) == 3


def test_what_is_said_twice_is_computed_once() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]]).realize()
    total = x.exp().sum(0)
    once, twice = items((total + total,)), items((x.exp().sum(0) + x.exp().sum(0),))
    assert [item.kernel for item in twice] == [item.kernel for item in once]


def test_equal_results_are_computed_once_and_change_apart() -> None:
    x = Tensor([1.0, 2.0]).realize()
    one, other = x + 1, x + 1
    assert len(items((one, other))) == 1
    Tensor.realize(one, other)
    one += 1
    assert (one.tolist(), other.tolist()) == ([3.0, 4.0], [2.0, 3.0])


def test_a_slope_is_made_of_what_the_forward_pass_stores() -> None:
    """Of gelu(x @ w + b) its argument, its result and the gradient of its argument have memory."""
    x, w, b, v = (Tensor.ones(*shape) for shape in ((24, 40), (40, 56), (56,), (56, 32)))
    for t in (x, w, b, v):
        t.realize().requires_grad_()
    loss = ((x @ w + b).gelu() @ v).square().sum()
    found = schedule([t.lazy for t in (loss, *loss.gradient(x, w, b, v))])
    outputs = [n for i in found.items if isinstance(i, KernelItem) for n in i.outputs]
    assert sum(n.size == 24 * 56 for n in outputs) == 3


@pytest.mark.parametrize("name", ["CPU", "EMU"])
@pytest.mark.parametrize(
    "norm", [nn.BatchNorm, lambda n: nn.GroupNorm(4, n)], ids=["batch", "group"]
)
@pytest.mark.parametrize("activation", [Tensor.relu, Tensor.silu], ids=["relu", "silu"])
def test_what_is_normalised_is_stored_once(
    name: str, norm: Callable[[int], Any], activation: Callable[[Tensor], Tensor]
) -> None:
    """Of a norm between convolutions, what it reads, what follows, and both gradients.

    What lies around the mean is made again of the array and its mean by whoever reads it.
    """
    size = 8 * 24 * 12 * 12
    with defaults(device=name):
        x, v = Tensor.ones(8, 16, 12, 12).realize(), Tensor.ones(16, 24, 1, 1).realize()
        w, scale, shift = (Tensor.ones(*s).realize() for s in ((24, 16, 3, 3), (24,), (24,)))
        parameters = [w, scale, shift, v]
        for t in parameters:
            t.requires_grad_()
        layer = norm(24)
        layer.weight, layer.bias = scale, shift
        with Tensor.train():
            loss = activation(layer(x.conv2d(w, padding=1))).conv2d(v).square().sum()
        found = schedule([t.lazy for t in (loss, *loss.gradient(*parameters))])
    outputs = [n for i in found.items if isinstance(i, KernelItem) for n in i.outputs]
    assert sum(n.size == size for n in outputs) == 4


def test_an_image_that_branches_read_has_a_kernel_for_the_gradient_of_each() -> None:
    """Sums of several convolutions at once have no registers left, and take long to compile."""
    x = Tensor.randn(2, 8, 12, 12).realize().requires_grad_()
    weights = [Tensor.randn(8, 8, 3, 3).realize() for _ in range(4)]
    first, *others = (x.conv2d(w, padding=1).relu() for w in weights)
    (gradient,) = sum(others, start=first).square().sum().gradient(x)
    folds = [str(item.kernel).count("sum(") for item in items((gradient,))]
    assert folds == [1] * len(folds)


@pytest.mark.parametrize("name", ["CPU", "EMU"])
def test_a_loss_stores_no_logits_less_their_largest(name: str) -> None:
    with defaults(device=name):
        x, w = Tensor.ones(64, 32).realize(), Tensor.ones(32, 96).realize().requires_grad_()
        y = Tensor.arange(64).realize()
        loss = (x @ w).sparse_categorical_crossentropy(y)
        found = schedule([t.lazy for t in (loss, *loss.gradient(w))])
    outputs = [n for i in found.items if isinstance(i, KernelItem) for n in i.outputs]
    assert sum(n.size == 64 * 96 for n in outputs) == 2  # logits, and their gradient


@pytest.mark.parametrize("name", ["CPU", "EMU"])
def test_numbers_that_rows_wait_for_keep_no_rows_apart(name: str) -> None:
    """A loss's gradient divides by how many labels count, which the loss divides by, too."""
    with defaults(device=name):
        arrays = np.zeros((4000, 37), np.float32), np.zeros(4000, np.int32), np.float32(0.5)
        x, labels, up = (Tensor(a).realize() for a in arrays)
        loss = x.requires_grad_().sparse_categorical_crossentropy(labels)
        (slope,) = loss.gradient(x, gradient=up)
        walked = [i for i in items((loss, slope)) if any(o.shape == x.shape for o in i.outputs)]
    (rows,) = walked
    assert x.lazy in rows.inputs
    assert "max" in str(rows.kernel)


def test_turns_that_look_up_what_the_turn_before_made_are_alike() -> None:
    """What is looked up and repeated is stored, if it cost something: kernels do not grow."""

    def search(turns: int) -> set[Kernel]:
        scores = Tensor.zeros(1)
        for _ in range(turns):
            scores = (scores.unsqueeze(1) + steps.sin()).flatten().topk(3)[0]
        return {item.kernel for item in items((scores,))}

    steps = Tensor.rand(5).realize()
    assert len(search(12)) == len(search(8))


@pytest.mark.parametrize("taps", [8, 16, 17, 18, 33])
def test_what_a_filter_reads_at_several_places_is_stored_if_it_costs_much(taps: int) -> None:
    x = Tensor.rand(100).realize()
    for value, kernels in ((x.sin(), 2), (x, 1)):
        padded = value.pad((0, taps))
        read = [padded[k : k + 100] * (k + 1) for k in range(taps)]
        assert len(items((sum(read[1:], start=read[0]),))) == kernels


def test_what_is_read_and_looked_up_too_is_stored_if_it_costs_much() -> None:
    """Each step of a sorting network reads its partner's place of the step before."""
    x, index = Tensor.rand(64).realize(), Tensor.arange(64)
    for step in (1, 2, 4, 8, 16, 32):
        partner = x[index ^ step]
        x = ((index & step) == 0).where(x.minimum(partner), x.maximum(partner))
    lookups = [str(item.kernel).count(" on axis 0]") for item in items((x,))]
    assert max(lookups) <= 2  # four of them, each in the index of the last, would be 15
    assert len(items((Tensor.rand(64).realize().sin()[index ^ 1] + 1,))) == 1


def test_what_is_joined_of_many_parts_and_looked_up_is_stored() -> None:
    """Each lane would choose by itself among 9 parts, as in a crop of an image that is padded."""
    x, places = Tensor.rand(6, 8).realize(), Tensor.randint(50, low=0, high=10).realize()
    padded, rows = x.pad((2, 2, 2, 2), mode="reflect"), Tensor.arange(10).unsqueeze(1)
    assert len(items((padded[rows, places] + 1,))) == 2
    assert len(items((padded[0, places[:3]] + 1,))) == 1  # few of its elements
    assert len(items((x.pad((2, 2, 2, 2))[rows, places] + 1,))) == 1  # one part


def test_what_is_cut_and_joined_again_is_not_stored() -> None:
    assert len(items((Tensor.rand(100).realize().sin().roll(9) * 2,))) == 1


def test_of_what_is_chosen_from_halves_of_a_word_the_choice_is_stored() -> None:
    """Both halves are read of a word that costs much; what is made of both is a quarter of it."""
    x = Tensor.randint(64, high=1 << 20).cast("uint32").realize()
    word = x
    for n in range(12):
        word = (word * 3 + n) ^ (word >> 3)
    chosen = ((word & 65535) < (word >> 16)).where(Tensor.ones(64), 0.0)
    first, second = chosen.reshape(8, 8).sum(1), chosen.reshape(8, 8).sum(0)
    made = [{o.dtype.name for o in item.outputs} for item in items((first, second))]
    assert not any("uint32" in dtypes for dtypes in made), made
