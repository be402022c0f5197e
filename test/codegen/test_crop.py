"""Steps of folds that a mask leaves nothing of are not made; values stay what they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest
import stages
from stages import kernels

from tinyml import Tensor
from tinyml.codegen import crop
from tinyml.codegen import linear as ir
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.expr import Place, Select, nodes
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.scope import Known
from tinyml.codegen.target import Target
from tinyml.index import Axis, Range, linear, moved
from tinyml.kernel import Kernel
from tinyml.program import Language

N = 130


def memory(*shape: int) -> Tensor:
    return Tensor(np.zeros(shape, np.float32), device="CPU").realize()


def below(n: int = N) -> Tensor:
    """True at and below the diagonal."""
    positions = Tensor.arange(n, device="CPU")
    return positions.reshape(n, 1) >= positions


def near() -> Tensor:
    """True in a band."""
    positions = Tensor.arange(N, device="CPU")
    apart = positions.reshape(N, 1) - positions
    return (apart < 9) & (apart > -5)


def attention(mask: Callable[[], Tensor]) -> Tensor:
    q, k, v = (memory(1, 2, N, 8) for _ in range(3))
    return q.scaled_dot_product_attention(k, v, attn_mask=mask())


MASKED: dict[str, Callable[[], Tensor]] = {
    "lower triangle": lambda: memory(N, N).tril() @ memory(N, 40),
    "upper triangle, transposed": lambda: memory(N, N).triu(3).T @ memory(N, 40),
    "columns": lambda: below().where(memory(N, N), 0).sum(0),
    "largest": lambda: below().where(memory(N, N), -float("inf")).max(1),
    "largest without a first row": lambda: (~below()).T.where(memory(N, N), -float("inf")).max(1),
    "causal": lambda: attention(below),
    "window": lambda: attention(near),
    "added": lambda: attention(lambda: below().where(0.0, -float("inf"))),
}


def cropped(k: Kernel, target: Target) -> list[ir.Begin]:
    """The loops that leave steps out."""
    made = linearize(choose(lower(k), target)[1], vectors=target.language is Language.C)
    loops = [i for part in made.parts for i in part.instrs if isinstance(i, ir.Begin)]
    return [loop for loop in loops if loop.starts or loop.stops]


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("target", stages.TARGETS)
def test_masked_steps_are_left_out(name: str, target: str) -> None:
    found = kernels(MASKED[name]())
    assert any(cropped(k, stages.TARGETS[target]) for k in found)
    for k in found:
        stages.assert_right(k, target=stages.TARGETS[target])


@pytest.mark.parametrize("ends", [False, True])
def test_where_a_mask_leaves_all_of_a_step_nothing_is_asked(ends: bool) -> None:
    """Of a fold's loop, only the steps at the diagonal ask for each of several rows."""
    factor = memory(N, N).tril()
    (k,) = kernels((factor if ends else factor.T) @ memory(N, 40))
    instrs = linearize(choose(lower(k), stages.C)[1]).parts[0].instrs
    asks = list[bool]()
    for at, begin in enumerate(instrs):
        if isinstance(begin, ir.Begin) and (begin.starts or begin.stops):
            added = [i for i in instrs[at : ir.end_of(instrs, at)] if isinstance(i, ir.Update)]
            asks.append(any(isinstance(e, Select) for i in added for e in nodes(i.value)))
    assert asks == ([False, True] if ends else [True, False])


@pytest.mark.parametrize("panels", [2, 3, 5])
def test_of_few_panels_of_a_product_those_that_a_mask_leaves_out_are_not_made(panels: int) -> None:
    n, target = 16 * panels, stages.C
    scores = memory(8, 4, n, 32) @ memory(8, 4, 32, n)
    (k,) = kernels(below(n).where(scores * 0.5, -math.inf))
    assert any(len(b.stops) == 1 and b.axis.size == panels for b in cropped(k, target))
    stages.assert_right(k, 1e-5, target)


def test_a_loop_in_parts_walks_each_step_once() -> None:
    i, j, n = Axis("i", 20), Axis("j", 64), Axis("n", 3)
    row = linear(i) * 3 + linear(n)
    band = Range(linear(j) - row, -40, 1)
    loop = crop.begin(j, [band], {}, [i])
    parts = crop.parts(loop, [band], {}, [i])
    assert [held for _, held in parts] == [{}, {band: True}, {}]
    for at in range(i.size):
        known = {i: linear(at)}
        walked = [steps_of(part, known) for part, _ in parts]
        assert [*chain(*walked)] == steps_of(loop, known)
        for step in walked[1]:
            every = ({**known, j: linear(step), n: linear(m)} for m in range(n.size))
            assert all(moved(band, one).is_always for one in every)


def test_of_few_steps_nothing_is_asked_that_the_loop_says_itself() -> None:
    i, j = Axis("i", 9), Axis("j", 9)
    before = Range(linear(j) - linear(i), -8, 0)
    loop = crop.begin(j, [before], {}, [i])
    assert loop.stops
    assert crop.parts(loop, [before], {}, [i]) == [(loop, {before: True})]


@pytest.mark.parametrize("at_first", [True, False])
def test_a_loop_is_in_parts_where_a_condition_turns(at_first: bool) -> None:
    """What is sure of the first and the last steps is sure for all that is made at once."""
    i, j, n = Axis("i", 20), Axis("j", 64), Axis("n", 3)
    after = linear(j) - linear(i) * 3 - linear(n)
    turns = Range(after, -61, -1) if at_first else Range(after, 0, 63)
    loop = ir.Begin(j)
    parts = crop.parts(loop, [turns], {}, [i])
    assert [held for _, held in parts] == [{turns: at_first}, {}, {turns: not at_first}]
    for at in range(i.size):
        known = {i: linear(at)}
        walked = [steps_of(part, known) for part, _ in parts]
        assert [*chain(*walked)] == [*range(j.size)]
        for steps, (_, held) in zip(walked, parts, strict=True):
            for step in steps if held else ():
                every = ({**known, j: linear(step), n: linear(m)} for m in range(n.size))
                now = [moved(turns, one) for one in every]
                assert [r.low <= r.index.constant <= r.high for r in now] == [held[turns]] * 3


@pytest.mark.parametrize("target", stages.TARGETS)
def test_where_a_condition_has_turned_nothing_is_asked(target: str) -> None:
    """Of two comparisons a sort makes one before the diagonal, and the other one behind it."""
    key = memory(N)
    mine, other = key.reshape(N, 1), key.reshape(1, N)
    (k,) = kernels((~below()).T.where(other <= mine, other < mine).int().sum(1))
    made = (
        linearize(choose(lower(k), stages.TARGETS[target])[1], vectors=target == "C")
        .parts[0]
        .instrs
    )
    asks = set[bool]()
    for at, begin in enumerate(made):
        if isinstance(begin, ir.Begin) and (begin.starts or begin.stops):
            added = [i for i in made[at : ir.end_of(made, at)] if isinstance(i, ir.Update)]
            asks.add(any(isinstance(e, Select) for i in added for e in nodes(i.value)))
    assert asks == ({False, True} if target == "C" else set())
    stages.assert_right(k, target=stages.TARGETS[target])


def steps_of(loop: ir.Begin, known: Known) -> list[int]:
    first = max([0, *(s.substitute(known).constant for s in loop.starts)])
    return [
        *range(first, min([loop.axis.size, *(s.substitute(known).constant for s in loop.stops)]))
    ]


@pytest.mark.parametrize("name", ["lower triangle", "causal", "window"])
def test_on_machines(name: str, device: str) -> None:
    rng = np.random.default_rng(4)
    a, b, c = (rng.standard_normal((2, N, N)).astype(np.float32) for _ in range(3))
    x, y, z = (Tensor(t, device=device) for t in (a, b, c))
    positions = np.arange(N)[:, None] - np.arange(N)
    if name == "lower triangle":
        np.testing.assert_allclose((x.tril() @ y).numpy(), np.tril(a) @ b, 1e-4, 1e-4)
        return
    mask = positions >= 0 if name == "causal" else (positions < 9) & (positions > -5)
    scores = np.where(mask, a @ b.swapaxes(1, 2) * N**-0.5, -np.inf)
    power = np.exp(scores - scores.max(-1, keepdims=True))
    apart = Tensor.arange(N, device=device).reshape(N, 1) - Tensor.arange(N, device=device)
    held = apart >= 0 if name == "causal" else (apart < 9) & (apart > -5)
    made = x.scaled_dot_product_attention(y, z, attn_mask=held).numpy()
    np.testing.assert_allclose(made, power / power.sum(-1, keepdims=True) @ c, 1e-4, 1e-4)


def test_gradients_of_masked_attention() -> None:
    """Kernels of scores leave steps out: what waits in memory is masked before and after."""
    n = 48
    q, k, v = (memory(1, 1, n, 8) for _ in range(3))
    out = q.scaled_dot_product_attention(k, v, is_causal=True)
    found = kernels(*out.square().sum().gradient(q, k, v))
    of_scores = [one for one in found if any(shape.count(n) > 1 for shape, _ in one.slots)]
    assert len(of_scores) >= len(found) - 1  # the sum of values times the result has none
    assert all(cropped(one, stages.C) for one in of_scores)
    for one in found:
        stages.assert_right(one, 1e-3)


SPELLINGS: dict[str, Callable[[], Tensor]] = {
    "compared": below,
    "less": lambda: Tensor.arange(N).reshape(N, 1) + 1 > Tensor.arange(N),
    "negated": lambda: ~(Tensor.arange(N).reshape(N, 1) < Tensor.arange(N)),
    "both": lambda: below() & (Tensor.arange(N) < 50),
    "neither": lambda: ~(~below() | (Tensor.arange(N) >= 50)),
    "ones": lambda: Tensor.ones(N, N).tril().bool(),
    "scaled": lambda: Tensor.arange(N).reshape(N, 1) * 2 - 1 > -(-Tensor.arange(N) * 2),
    "wider": lambda: Tensor.arange(N).reshape(N, 1).cast("int64") >= Tensor.arange(N),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_mask_of_positions_is_conditions_however_it_is_written(name: str) -> None:
    mask = SPELLINGS[name]()
    (k,) = kernels(mask.where(memory(N, N), -float("inf")).max(1))
    assert not any(isinstance(e, Place) for one in lower(k).nests for e in one.exprs)
    x = np.random.default_rng(5).standard_normal((N, N)).astype(np.float32)
    arrays = [np.zeros(k.slots[0][0], np.float32), x]
    stages.simulated(stages.C, None)(k, arrays)
    wanted = np.where(mask.numpy(), x, -np.inf).max(1)
    np.testing.assert_array_equal(arrays[0].reshape(-1), wanted)


def test_numbers_that_an_int_cannot_hold_stay_what_they_are() -> None:
    """Only an index that fits its dtype is one; what wraps around is computed."""
    positions = Tensor.arange(N, device="CPU").cast("int8") * 3
    (k,) = kernels((positions < 0).where(memory(N), 0).sum())
    arrays = [np.zeros(k.slots[0][0], np.float32), np.ones(N, np.float32)]
    stages.simulated(stages.C, None)(k, arrays)
    assert arrays[0].sum() == ((np.arange(N, dtype=np.int8) * np.int8(3)) < 0).sum()


def test_what_is_demanded_of_masked_elements_is_demanded_still() -> None:
    """An index out of range is an error, whether or not a mask hides what it would give."""
    index = Tensor([0] * (N - 1) + [N], device="CPU").realize()
    made = (Tensor.arange(N, device="CPU") < 9).where(memory(N).gather(0, index), 0).sum()
    with pytest.raises(IndexError):
        made.numpy()


@pytest.mark.parametrize("size", [3, 64, 300, 5000, 40000])
def test_a_row_that_a_mask_leaves_nothing_of_is_nan_whatever_its_length(
    size: int, device: str
) -> None:
    """As by other libraries; and what a mask leaves nothing of in other rows is 0, or -inf."""
    kept = Tensor.arange(3).unsqueeze(1) > Tensor.arange(size)
    masked = kept.where(Tensor.ones(3, size).contiguous().realize(), -math.inf)
    softmax, log_softmax = masked.softmax().numpy(), masked.log_softmax().numpy()
    assert np.isnan([softmax[0], log_softmax[0]]).all()
    np.testing.assert_array_equal(softmax[1:, :2], [[1, 0], [0.5, 0.5]])
    assert (softmax[1:, 2:] == 0).all()
    assert (log_softmax[1:, 2:] == -math.inf).all()


def test_a_column_that_a_mask_leaves_nothing_of_is_nan(device: str) -> None:
    kept = Tensor.arange(100) < Tensor.arange(17).unsqueeze(1) + 50
    masked = kept.where(Tensor.ones(17, 100).contiguous().realize(), -math.inf)
    made = masked.softmax(0).half().numpy()
    assert np.isnan(made).all(0).tolist() == [False] * 66 + [True] * 34
    assert (made[:10, 60:66] == 0).all()
