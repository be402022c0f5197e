"""Gradients: whether ops are recorded, and the walk back through what was recorded.

Every tensor that requires a gradient and was computed has a record (an applied
`mlops.Function`) that names its inputs. `backpropagate` visits the tensors below a result,
results first, and adds up what each record says about its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Any

from tinyml.errors import GradientError
from tinyml.mlops import Function, Grads

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


class _Mode:
    """Whether ops are recorded, and how many assignments have been made so far."""

    __slots__ = ("assignments", "recording")

    def __init__(self) -> None:
        self.recording = True
        self.assignments = 0


mode = _Mode()


class _Recording(ContextDecorator):
    def __init__(self, recording: bool) -> None:
        self._recording = recording
        self._before: list[bool] = []

    def __enter__(self) -> _Recording:
        self._before.append(mode.recording)
        mode.recording = self._recording
        return self

    def __exit__(self, *_: object) -> None:
        mode.recording = self._before.pop()


def no_grad(function: Callable[..., Any] | None = None) -> Any:
    """Compute without recording: `with no_grad():`, `@no_grad` and `@no_grad()`."""
    return _Recording(False) if function is None else _Recording(False)(function)


def enable_grad() -> _Recording:
    """Record again inside of `no_grad`."""
    return _Recording(True)


class Freed(Function):
    """What stands in the place of a record after backward has used it."""

    __slots__ = ()

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        raise GradientError(
            "the graph behind this tensor was freed by an earlier backward(); call that one with "
            "retain_graph=True, or add the losses up and call backward() once"
        )


FREED = Freed()
FREED.inputs = ()
FREED.clock = 0


def _computed_before(root: Tensor, follow: Callable[[Tensor], bool]) -> list[Tensor]:
    """`root` and the recorded tensors that it was computed from, inputs first."""
    done: dict[Tensor, None] = {}
    stack = [(root, False)]
    while stack:
        tensor, ready = stack.pop()
        record = tensor._record
        if tensor in done or record is None:
            continue
        if record is not FREED and not any(map(follow, record.inputs)):
            continue  # a leaf: what it was computed from is of no interest
        if ready:
            done[tensor] = None
            continue
        stack.append((tensor, True))
        stack.extend((t, False) for t in record.inputs if t not in done and follow(t))
    return list(done)


def _requires_grad(tensor: Tensor) -> bool:
    return tensor.requires_grad


def _propagate(
    order: list[Tensor],
    found: dict[Tensor, Tensor],
    wants: Callable[[Tensor], bool],
    keep: set[Any],
) -> None:
    """Walk `order` backwards, adding to `found` the gradients of the inputs that are wanted."""
    for tensor in reversed(order):
        grad = found.get(tensor) if tensor in keep else found.pop(tensor, None)
        record = tensor._record
        if grad is None or record is None:
            continue
        _check_unchanged(record)
        record.wanted = tuple(map(wants, record.inputs))
        parts = record.backward(grad, tensor)
        for source, part, wanted in zip(record.inputs, parts, record.wanted, strict=True):
            if part is None or not wanted:
                continue
            sum_so_far = found.get(source)
            found[source] = part if sum_so_far is None else sum_so_far + part


def _check_unchanged(record: Function) -> None:
    for number, source in enumerate(record.inputs):
        if source._assigned > record.clock and (record.reads_inputs or source._record is not None):
            raise GradientError(
                f"input {number} of {type(record).__name__} {source.shape} was assigned to after "
                "the op was computed, and the gradient needs the value it had; assign after "
                "backward(), or use a copy (.clone()) in one of the two places"
            )


def backward(root: Tensor, seed: Tensor, retain_graph: bool) -> dict[Tensor, Tensor]:
    """d root / d leaf for every leaf that requires a gradient; the graph is freed."""
    found = {root: seed}
    order = _computed_before(root, _requires_grad)
    with _Recording(False):
        _propagate(order, found, _requires_grad, set())
    if not retain_graph:
        for tensor in order:
            tensor._record = FREED
    return found


def gradient(root: Tensor, targets: Iterable[Tensor], seed: Tensor) -> list[Tensor]:
    """d root / d target for each target, recorded so that it can be differentiated again."""
    asked = list(targets)
    for number, target in enumerate(asked):
        if not target.dtype.is_float:
            raise GradientError(
                f"gradient: target {number} is {target.dtype}; only floats have one"
            )
    order = _computed_before(root, lambda _: True)
    path = set(asked)
    between = []  # what depends on a target
    for tensor in order:
        record = tensor._record
        if record is not None and any(t in path for t in record.inputs):
            path.add(tensor)
            between.append(tensor)
        elif record is FREED and tensor not in path:
            between.append(tensor)  # whatever it depended on is not known any more
    found = {root: seed} if root in path or root._record is FREED else {}
    with _Recording(True):
        _propagate(between, found, path.__contains__, set(asked))
    for number, target in enumerate(asked):
        if target not in found:
            raise GradientError(
                f"gradient: target {number} {target.shape} is not in the graph of the result; a "
                "tensor that is realized on the way needs requires_grad=True to stay in it"
            )
    return [found[target] for target in asked]
