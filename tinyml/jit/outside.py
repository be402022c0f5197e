"""Outside: the tensors that existed before a function was called, and which of them it uses.

A capture takes what the function uses from outside as data, so each of these tensors has to be
computed before, in memory of its own. That is done for those that the last call used. All others
are left alone: they may belong to another thread, in the middle of an op.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from types import CellType
from typing import Any, NamedTuple
from weakref import WeakSet

from tinyml import ledger, mlops
from tinyml import realize as realizing
from tinyml.errors import JitError, TinymlError
from tinyml.frozen import dataclass
from tinyml.functional import views
from tinyml.functional.views import root_of
from tinyml.jit.record import Recording
from tinyml.lazy import Data, LazyBuffer
from tinyml.ledger import memory
from tinyml.runtime.machine import Buffer
from tinyml.tensor import Tensor


class Somebodys(weakref.ref[Tensor]):
    """A tensor that somebody else holds. A pickle takes it along."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        tensor = self()
        return Somebodys, (Tensor() if tensor is None else tensor,)  # one that is dead at once


@dataclass(eq=False)
class State:
    """Memory that tensors outside hold."""

    number: int
    buffer: Buffer
    holders: list[Somebodys]
    read: bool  # by the step, before it is written, or by the caller as a result
    written: bool

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "buffer": None}  # what lies there goes with its holders

    def alive(self) -> list[Tensor]:
        """The tensors that hold it."""
        return [t for ref in self.holders if (t := ref()) is not None]


class Before:
    """The tensors that there were when a capture began.

    What the function drops before it computes is dropped here, too: gradients of the step before
    are not kept beside new ones.
    """

    def __init__(self, inputs: list[Tensor]) -> None:
        given = {id(t) for t in inputs}
        self.leaves: dict[int, tuple[weakref.ref[Tensor], Data]] = {}
        self.unready = WeakSet[Buffer]()  # several tensors have one, or a view for itself
        known = ledger.in_memory()
        self.buffers = WeakSet(buffer for _, buffer in known)
        self.held = WeakSet[Buffer]()  # by tensors
        for leaf, buffer in known:
            held = holders(leaf)
            for t in held:
                self.leaves[id(t)] = weakref.ref(t, partial(self._dropped, id(t))), leaf
                self.held.add(buffer)
            own = [t for t in held if views.has_own(t)]
            if (
                buffer.several
                or len(own) > 1
                or any(root_of(t) is not None and id(t) not in given for t in own)
            ):
                self.unready.add(buffer)
        self.trained = set(map(id, gradients().values()))  # who had a gradient
        self.pending: dict[int, tuple[weakref.ref[Any], LazyBuffer]] = {
            id(t): (weakref.ref(t), t._lazy) for t in ledger.pending()
        }

    def _dropped(self, key: int, reference: weakref.ref[Tensor]) -> None:
        if key in self.leaves and self.leaves[key][0] is reference:
            del self.leaves[key]

    def leaf(self, tensor: Any) -> Data | None:
        """The leaf that a tensor had; None if it was not there, or not real."""
        reference, leaf = self.leaves.get(id(tensor), (None, None))
        return leaf if reference is not None and reference() is tensor else None

    def waiting(self, tensor: Any) -> LazyBuffer | None:
        """The node that a tensor had, if it was not real; None if it was, or not there."""
        reference, node = self.pending.get(id(tensor), (None, None))
        return node if reference is not None and reference() is tensor else None

    def has(self, tensor: Any) -> bool:
        """Whether a tensor was there."""
        return self.leaf(tensor) is not None or self.waiting(tensor) is not None

    def had(self, tensor: Any) -> bool:
        """Whether a tensor, and no view, was there, with values in memory or made of such."""
        if self.leaf(tensor) is not None:
            return True
        node = self.waiting(tensor) if root_of(tensor) is None else None
        return node is not None and ledger.has_data(node)

    def was_ready(self, recording: Recording) -> bool:
        """Whether all that was used was data, in memory that no other tensor had."""
        return not recording.waiting and self.unready.isdisjoint(recording.numbers)


def holders(leaf: Data) -> list[Tensor]:
    """The tensors whose values are those of a leaf."""
    return [t for t in leaf.readers.members() if t._lazy is leaf]


def used(recording: Recording) -> list[weakref.ref[Tensor]]:
    """The tensors that a call read, assigned to, or left behind."""
    leaves = [leaf for leaf, buffer in ledger.in_memory() if buffer in recording.numbers]
    return [
        *recording.waiting,
        *map(weakref.ref, recording.left()),
        *(weakref.ref(tensor) for leaf in leaves for tensor in holders(leaf)),
    ]


Trained = tuple[weakref.ref[Tensor], bool]  # and whether it required a gradient


def trained(recording: Recording, used: Iterable[weakref.ref[Tensor]]) -> list[Trained]:
    """Which of the tensors that a call used required a gradient after it, unless it says so."""
    alive = [(reference, t) for reference in used if (t := reference()) is not None]
    return [(r, bool(t._requires_grad)) for r, t in alive if id(t) not in recording.flagged]


def are_trained(known: Iterable[Trained]) -> bool:
    """Whether nobody froze some, or let them be trained, since.

    What an optimizer makes of that, it makes in one call, and a replay would in each.
    """
    return all((t := r()) is None or bool(t._requires_grad) is then for r, then in known)


def constant_gradients(recording: Recording) -> list[Tensor]:
    """Gradients that a call left behind, and that are the same whatever the data are.

    They are to have memory, as others have: what adds to them, perhaps another step, can write it.
    """
    left = {id(t): t for t in recording.left() if not ledger.has_data(t._lazy)}
    if not left:
        return []
    known = gradients()
    return [t for key, t in left.items() if key in known]


def gradients() -> dict[int, Tensor]:
    """Everybody who has a gradient, by the `id` of that."""
    real = (t for leaf, _ in ledger.in_memory() for t in holders(leaf))
    pending = (t for t in ledger.pending() if isinstance(t, Tensor))
    return {id(t._grad): t for t in chain(real, pending) if t._grad is not None}


def unready(recording: Recording) -> str:
    """What a capture found outside that was not ready, for whoever wonders why there is none."""
    waiting = (reference() for reference in recording.waiting)
    shapes = list(dict.fromkeys(t.shape for t in waiting if isinstance(t, Tensor)))
    of = f" (of shape {' or '.join(map(str, shapes))})" if shapes else ""
    return (
        f"it uses a tensor from outside{of} that the call before did not use, and that was not "
        "computed before this one: pass it as an argument, or make it once, outside the loop"
    )


def prepare(inputs: list[Tensor], used: list[Tensor]) -> None:
    """Let each of these have its values in memory of its own.

    Views have none, but for arguments: whoever uses others reads their roots.
    """
    given = {id(t) for t in inputs}
    roots = [root for t in [*used, *inputs] if (root := root_of(t)) is not None]
    tensors = list({id(t): t for t in [*inputs, *used, *roots]}.values())
    own = [t for t in tensors if root_of(t) is None and ledger.has_data(t._lazy)]
    try:
        realizing.realize(own)
    except TinymlError:  # one cannot be computed: that is for whoever looks at it
        for tensor in own:
            with suppress(TinymlError):
                tensor.realize()
    for tensor in used:
        if type(tensor._lazy) is Data and root_of(tensor) is not None and id(tensor) not in given:
            views.unrealize(tensor)
    Tensor.realize(*inputs) if inputs else None
    for tensor in tensors:
        leaf = tensor._lazy
        if type(leaf) is not Data:
            continue
        if memory[leaf].several or sum(map(views.has_own, holders(leaf))) > 1:
            (tensor.lazy,) = realizing.compute([mlops.Clone().forward(leaf)])
    buffers = {id(memory[t._lazy]) for t in own if type(t._lazy) is Data}
    realizing.keep_values(buffers, {id(t) for t in tensors})


# ---- arguments that a function reads by another name, too ----


class Named(NamedTuple):
    """The tensor that an argument was, or showed, when the function was captured, and how."""

    number: int
    root: Somebodys
    moves: tuple[views.Move, ...]


def named_arguments(inputs: Sequence[Tensor], named: Iterable[Tensor]) -> list[Named]:
    """Which (realized) arguments have the memory of a tensor that the code leads to.

    Where the code reads that tensor, a replay would read the argument.
    """
    nodes = [n for tensor in named for n in (tensor._lazy, views.shown_by(tensor)[0]._lazy)]
    known = {id(memory[node]) for node in nodes if type(node) is Data}
    found = [i for i, t in enumerate(inputs) if id(memory[t._lazy]) in known]  # type: ignore[index]
    shown = [(i, *views.shown_by(inputs[i])) for i in found]
    return [Named(i, Somebodys(root), moves) for i, root, moves in shown]


def are_still(named: Iterable[Named], inputs: Sequence[Tensor]) -> bool:
    """Whether these arguments are what they were."""
    for number, reference, moves in named:
        root, now = views.shown_by(inputs[number])
        if root is not reference() or now != moves:
            return False
    return True


# ---- what a function adds tensors to in each call, as `losses.append(loss)` does ----
# A replay does not call the function, and would add nothing. A list that has what the call before
# left behind, and more of this call's, grows; an attribute, a gradient or a key whose tensor is
# replaced does not, and what is made once is not made again.

_GROWS = (list, dict, set, deque)
_DEPTH = 3  # of containers within each other


class Growing:
    """What holds some tensors, outside, and how much that was."""

    def __init__(self, left: Iterable[weakref.ref[Tensor]]) -> None:
        """`left` is what the call before left behind."""
        containers = [x for x in gc.get_objects() if _holds(x)]  # none of ours yet
        self._before: list[tuple[Any, int]] = []
        level: list[Any] = [tensor for reference in left if (tensor := reference()) is not None]
        for _ in range(_DEPTH if level else 0):
            wanted = set(map(id, level))
            level = [x for x in containers if not wanted.isdisjoint(map(id, _parts(x)))]
            self._before += [(x, len(x)) for x in level if type(x) in _GROWS]

    def check(self, function: Any, names: Mapping[int, str], left: list[Any]) -> None:
        """JitError if something has grown by what this call left behind; `names` are by `id`."""
        new = set(map(id, left))
        for container, count in self._before:
            if len(container) > count and any(id(t) in new for t in _within(container, _DEPTH)):
                name = f"the {type(container).__name__} {names.get(id(container), 'outside')}"
                called = getattr(function, "__name__", repr(function))
                raise JitError(
                    f"{called}: each call adds a Tensor to {name}. A replay does not call the "
                    "function, and would add nothing: return the tensor, and add it outside"
                )


def _holds(value: Any) -> bool:
    """Whether this is a container, and not what Python keeps a tensor's attributes in."""
    return type(value) in (*_GROWS, tuple) and not (type(value) is dict and "_lazy" in value)


def _parts(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _within(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth >= 0 and isinstance(value, (*_GROWS, tuple)):
        for part in list(_parts(value)):
            yield from _within(part, depth - 1)


def content(cell: CellType, nothing: object = None) -> Any:
    """What a name of a function around stands for, or `nothing` if it has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return nothing
