"""Gradients: whether ops are recorded, and the walk back through what was recorded.

Every tensor that requires a gradient and was computed has a record (an applied
`mlops.Function`) that names its inputs. `backpropagate` visits the tensors below a result,
results first, and adds up what each record says about its inputs.

A graph can be walked again until something is assigned to: whoever assigns (an optimizer's
step) would have to save for it the values that are overwritten, so it is freed then. With
`retain_graph=True` it stays. Gradients that `gradient` finds are recorded in turn.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tinyml import mlops
from tinyml.errors import GradientError
from tinyml.mlops import Grads
from tinyml.setting import Block, Setting
from tinyml.turn import short_lock

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

_F = TypeVar("_F", bound=Callable[..., Any])


_recording = Setting("recording", True)
in_blocks = _recording.blocks.get  # what blocks say of it; asked first, in a third of the time


class _Mode:
    """Whether ops are recorded, and how many assignments there were."""

    __slots__ = ("_counting", "assignments", "gradients_set", "walks")

    def __init__(self) -> None:
        self.assignments = 0
        self.gradients_set = 0  # how often somebody got another gradient, or lost one
        self.walks = 0  # back through what was recorded
        self._counting = short_lock()

    @property
    def recording(self) -> bool:
        """Whether ops are recorded here."""
        return _recording.now

    def count(self) -> int:
        """Count an assignment; its number, which is above all earlier ones."""
        with self._counting:
            self.assignments += 1
            return self.assignments


class _Spent(threading.local):
    """The graphs that backward has been through in this thread, since it last assigned."""

    def __init__(self) -> None:
        self.tensors: list[weakref.ref[Tensor]] = []


mode = _Mode()
_spent = _Spent()


class Moment:
    """When a captured step assigned to its tensors: the value of `mode.assignments` then.

    All of them share it, so that a replay need not go through them.
    """

    __slots__ = ("clock",)

    def __init__(self) -> None:
        self.now()

    def now(self) -> None:
        """It is this assignment."""
        self.clock = mode.count()


@overload
def no_grad(function: None = None) -> Block: ...


@overload
def no_grad(function: _F) -> _F: ...


def no_grad(function: _F | None = None) -> Block | _F:
    """Compute without recording: `with no_grad():`, `@no_grad` and `@no_grad()`."""
    block = Block("no_grad()", (_recording, False))
    return block if function is None else block(function)


def enable_grad() -> Block:
    """Record again inside of `no_grad`."""
    return Block("enable_grad()", (_recording, True))


# ---- records that are no applied primitive ----


class Deferred(mlops.Function):
    """The record of a composition, which is worked out when somebody walks through it."""

    __slots__ = ("__weakref__",)
    # the record of the last step, as if all had been recorded one by one
    opened: Callable[[], mlops.Function]


def record_of(tensor: Tensor) -> mlops.Function | None:
    """How a tensor was made, for those who look into it."""
    record = tensor._record
    if isinstance(record, Deferred):
        record = tensor._record = record.opened()
    return record


class Freed(mlops.Function):
    """What stands in the place of a record that was freed."""

    __slots__ = ()

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        raise GradientError(
            "the graph behind this tensor was freed: backward() went through it, and then a "
            "tensor was assigned to, as an optimizer's step does; take the .detach() of what one "
            "step leaves to the next (h = h.detach()), call that backward() with "
            "retain_graph=True, or add the losses up and call backward() once"
        )


FREED = Freed()
FREED.inputs = ()
FREED.clock = 0


# ---- graphs that nobody needs any more ----


def note_assignment() -> int:
    """Count an assignment, and free the graphs that backward has been through."""
    _free(tensor for reference in _spent.tensors if (tensor := reference()) is not None)
    _spent.tensors.clear()
    return mode.count()


def _free(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        if tensor._record is not None:
            tensor._record = FREED
            if tensor._past:  # or they would be kept in memory, though nobody goes there any more
                tensor._past = ()


# ---- hooks ----


class Hook:
    """A function that is called with the gradient of a tensor, until `remove()`."""

    def __init__(
        self,
        hooks: dict[int, Callable[[Tensor], Tensor | None]],
        function: Callable[[Tensor], Tensor | None],
    ) -> None:
        self._hooks, self._number = hooks, next(_hook_numbers)
        hooks[self._number] = function  # which stays there when nobody holds this

    def remove(self) -> None:
        """Call the function no more."""
        self._hooks.pop(self._number, None)


_hook_numbers = itertools.count()


def _hooked(tensor: Tensor, grad: Tensor) -> Tensor:
    """The gradient after all hooks of `tensor`, each of which may replace it."""
    for hook in tuple((tensor._hooks or {}).values()):
        answer = hook(grad)
        if answer is None:
            continue
        if getattr(answer, "shape", None) != grad.shape:
            raise GradientError(
                f"a hook of a tensor {tensor.shape} gave {answer!r} in place of its gradient; it "
                "gives a tensor of the same shape, or None to leave the gradient as it is"
            )
        grad = answer.cast(grad.dtype)
    return grad


# ---- the walk ----


def _computed_before(roots: Iterable[Tensor], follow: Callable[[Tensor], bool]) -> list[Tensor]:
    """`roots` and the recorded tensors that they were computed from, inputs first."""
    done: dict[Tensor, None] = {}
    stack = [(root, False) for root in roots]
    while stack:
        tensor, ready = stack.pop()
        if ready:
            done[tensor] = None
        if tensor in done or (record := record_of(tensor)) is None:
            continue
        if record.clock < mode.assignments:  # it names what an input was then
            record.inputs = tuple([t._version_at(record.clock) for t in record.inputs])
        below = [(t, False) for t in record.inputs if follow(t)]
        if below or record is FREED:  # else a leaf: what it was computed from is of no interest
            stack.append((tensor, True))
            stack += below
    return list(done)


def _requires_grad(tensor: Tensor) -> bool:
    return bool(tensor._requires_grad if tensor._view is None else tensor.requires_grad)


def _propagate(
    order: list[Tensor],
    found: dict[Tensor, Tensor],
    wants: Callable[[Tensor], bool],
    keep: set[Any],
    unasked: Collection[Tensor] = (),
) -> None:
    """Walk `order` backwards, adding to `found` the gradients of the inputs that are wanted.

    Whose gradient is not complete is `unasked`: its hooks wait for whoever adds it up.
    """
    mode.walks += 1
    for tensor in reversed(order):
        if tensor._hooks and tensor in found:
            found[tensor] = _hooked(tensor, found[tensor])
        grad = found.get(tensor) if tensor in keep else found.pop(tensor, None)
        record = tensor._record
        if grad is None or record is None:
            continue
        if record.clock < mode.assignments:
            _check_unchanged(record)
        record.wanted = tuple(map(wants, record.inputs))
        parts = record.gradients(grad, tensor)
        for source, part, wanted in zip(record.inputs, parts, record.wanted, strict=True):
            if part is None or not wanted:
                continue
            sum_so_far = found.get(source)
            found[source] = part if sum_so_far is None else sum_so_far + part
    walked = {*order, *unasked}
    for leaf in [t for t in found if t._hooks and t not in walked]:
        found[leaf] = _hooked(leaf, found[leaf])


def _check_unchanged(record: mlops.Function) -> None:
    for number, source in enumerate(record.inputs):
        if source._changed_after(record.clock) and (record.reads_inputs or source._is_computed()):
            raise GradientError(
                f"input {number} of {type(record).__name__} {source.shape} was assigned to after "
                "the op was computed, and the gradient needs the value it had; assign after "
                "backward(), or use a copy (.clone()) in one of the two places"
            )


def behind(roots: Sequence[Tensor], since: int) -> set[Tensor]:
    """All that `roots` were computed from, with or without a gradient, by what was recorded since.

    What older values were computed from is no longer read.
    """
    order = _computed_before(roots, lambda _: True)
    records = {t: r for t in order if (r := record_of(t)) is not None and r.clock >= since}
    return {*records, *(t for r in records.values() for t in r.inputs)}.difference(roots)


def read_since(roots: Sequence[Tensor], since: int) -> list[Tensor]:
    """What requires a gradient, and is older than what `roots` were computed by since then."""
    order = _computed_before(roots, _requires_grad)
    made = {t: r for t in order if (r := t._record) is not None and r.clock >= since}
    found = dict.fromkeys(t for t in [*roots, *(t for r in made.values() for t in r.inputs)])
    return [t for t in found if t not in made and t.requires_grad]


def backward(root: Tensor, seed: Tensor, retain_graph: bool | None) -> dict[Tensor, Tensor]:
    """d root / d tensor for leaves that require a gradient, and for who retains one."""
    found = {root: seed}
    order = _computed_before([root], _requires_grad)
    with no_grad():
        _propagate(order, found, _requires_grad, {t for t in order if t._retains_grad})
    if retain_graph is None:
        _spent.tensors = [r for r in _spent.tensors if r() is not None]
        _spent.tensors += [weakref.ref(tensor) for tensor in order]
    elif not retain_graph:
        _free(order)
    return found


def partials(
    roots: Sequence[Tensor],
    seeds: Sequence[Tensor],
    targets: Sequence[Tensor],
    given: Sequence[Tensor] = (),
) -> dict[Tensor, Tensor]:
    """The sum of d root / d target * seed over the roots, for each target they depend on.

    What depends on a target by way of one of the tensors `given` does not count, and whose hooks
    are not called: that is for who made them.
    """
    path, constant = set(targets), set(given)
    between = []  # what depends on a target
    for tensor in _computed_before(roots, lambda _: True):
        if tensor in constant:
            continue
        record = tensor._record
        depends = record is not None and any(t in path for t in record.inputs)
        # whatever a freed one depended on is not known: who comes there is told
        if depends or (record is FREED and tensor not in path):
            path.add(tensor)
            between.append(tensor)
    found: dict[Tensor, Tensor] = {}
    for root, seed in zip(roots, seeds, strict=True):
        if root in path:
            found[root] = found[root] + seed if root in found else seed
    _propagate(between, found, path.__contains__, set(targets), constant)
    return found


def keep_version(view: Tensor, result: Tensor) -> None:
    """Before `result` is assigned to a view that no root remembers for: let its graph name the view
    as it is, or it would lead from the new values to themselves."""
    before = view._before_assignment()
    for tensor in _computed_before([result], lambda _: True):  # gradient() follows all, too
        record = tensor._record
        if record is not None and any(t is view for t in record.inputs):
            record.inputs = tuple([before if t is view else t for t in record.inputs])


def gradient(root: Tensor, targets: Iterable[Tensor], seed: Tensor) -> list[Tensor]:
    """d root / d target for each target, recorded so that it can be differentiated again."""
    asked = list(targets)
    for number, target in enumerate(asked):
        if not target.dtype.is_float:
            raise GradientError(
                f"gradient: target {number} is {target.dtype}; only floats have one"
            )
    with enable_grad():
        found = partials([root], [seed], asked)
    for number, target in enumerate(asked):
        if target not in found:
            raise GradientError(
                f"gradient: target {number} {target.shape} is not in the graph of the result; a "
                "tensor that is realized on the way needs requires_grad=True to stay in it"
            )
    return [found[target] for target in asked]
