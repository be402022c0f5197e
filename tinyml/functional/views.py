"""Views: tensors that show elements of another one, whatever is assigned to either of them.

    view ::= root, Move*        the root is a tensor that is no view

A move reads elements of a tensor, and puts values back at their places. A view is read anew
when its root was assigned to; what is assigned to the view goes back through its moves into the
root. A root that has no memory and was not assigned to is kept for its views only while there are
two of them: one view that nobody else could write to is a tensor like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from tinyml import lazy, ledger
from tinyml import realize as realizing
from tinyml.autograd import enable_grad, in_blocks, mode, no_grad
from tinyml.dtype import DType, bool_
from tinyml.errors import ShapeError
from tinyml.frozen import dataclass
from tinyml.moves import Expand, Rearrangement
from tinyml.turn import turn

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


_Data, _Assign = lazy.Data, lazy.Assign  # looking these up takes its time


class Move(Protocol):
    """Which elements a view shows, and where."""

    def read(self, x: Tensor) -> Tensor:
        """What the view shows of x."""

    def write(self, old: Tensor, value: Tensor) -> Tensor:
        """`old`, with `value` where `read(old)` reads."""


@dataclass(frozen=True)
class Rearranged:
    """What one rearrangement shows: `kind(arg)`."""

    kind: Callable[[Any], Rearrangement]
    arg: Any

    def read(self, x: Tensor) -> Tensor:
        return x._shown(self.kind, self.arg)

    def write(self, old: Tensor, value: Tensor) -> Tensor:
        if self.kind is Expand and value.numel() != old.numel():
            raise ShapeError(
                f"assign: {old.shape} was expanded to {self.arg}, so several elements of the "
                "target are one; assign to a .clone() of it"
            )
        return placed(self.kind(self.arg), old, value)


def placed(shown: Rearrangement, old: Tensor, value: Tensor) -> Tensor:
    """`old`, with `value` where a rearrangement, of which no element is several, shows it."""
    new = shown.back(value, old.shape)
    if value.numel() == old.numel():
        return new
    return shown.back(value._full(value.shape, True, bool_), old.shape).where(new, old)


@dataclass(frozen=True)
class Bitcasted:
    dtype: DType

    def read(self, x: Tensor) -> Tensor:
        return x.bitcast(self.dtype)

    def write(self, old: Tensor, value: Tensor) -> Tensor:
        return value.bitcast(old.dtype)


@dataclass(frozen=True)
class Detached:
    """The same elements; neither reading nor writing is recorded."""

    def read(self, x: Tensor) -> Tensor:
        return x.detach()

    def write(self, old: Tensor, value: Tensor) -> Tensor:
        return value


rearranged = lru_cache(maxsize=4096)(Rearranged)  # the same few are made again and again


class Family:
    """The views of one root that had no memory when they were made; they may keep it alive."""

    __slots__ = ("__weakref__", "_for_good", "_views", "kept")

    def __init__(self) -> None:
        self.kept: Tensor | None = None
        self._for_good = False
        self._views: list[ref[Tensor]] = []

    @staticmethod
    def of(root: Tensor) -> Family:
        """The family of this root, which lives as long as one of its views."""
        family = root._family and root._family()
        if family is None:
            family = Family()
            root._family = ref(family)
        return family

    def join(self, view: Tensor, root: Tensor) -> None:
        """One more view."""
        if self._for_good:
            return
        self._views.append(ref(view))
        if self.kept is None and len(self._views) > 1 and self._several():
            self.kept = root

    def keep(self, root: Tensor) -> None:
        """Keep the root for good: it holds new values now, which its views are still to read."""
        self.kept, self._for_good = root, True
        self._views.clear()

    def settle(self) -> None:
        """Let go of the root if only one view is left."""
        if self.kept is not None and not self._for_good and not self._several():
            self.kept = None

    def _several(self) -> bool:
        alive = (view for view in self._views if view() is not None)
        if next(alive, None) is not None and next(alive, None) is not None:
            return True
        self._views = [view for view in self._views if view() is not None]
        return False


class View:
    """How a tensor follows its root."""

    __slots__ = (
        *("above", "family", "kept", "move", "node", "recorded", "root", "seen", "steady"),
        "written",
    )
    kept: Tensor | None
    family: Family | None

    def __init__(self, root: Tensor, above: View | None, move: Move) -> None:
        node = root._lazy
        if type(node) is _Data or type(node) is _Assign:  # memory lives as long as its views
            self.kept, self.family = root, None
        else:
            self.kept, self.family = None, Family.of(root)
        self.root, self.node, self.seen = ref(root), ref(node), mode.assignments
        self.above, self.move, self.steady = above, move, False
        self.written: Tensor | None = None  # if detached: the last value whose record it took over
        self.recorded: bool = (
            (not in_blocks() or mode.recording)
            and type(move) is not Detached
            and (above is None or above.recorded)
        )

    def note(self, root: Tensor) -> None:
        """The view shows what the root holds now."""
        self.seen, self.node = mode.assignments, ref(root._lazy)

    def moves(self) -> tuple[Move, ...]:
        """From the root to the view."""
        found: list[Move] = []
        view: View | None = self
        while view is not None:
            found.append(view.move)
            view = view.above
        return tuple(reversed(found))


def read(root: Tensor, moves: tuple[Move, ...]) -> Tensor:
    """What a view with these moves shows of a tensor."""
    for move in moves:
        root = move.read(root)
    return root


def follow(view: Tensor, source: Tensor, move: Move) -> Tensor:
    """Let `view`, which is `move` of `source`, show what is assigned to the source, and back."""
    above = source._view
    root = None if above is None else above.root()
    if root is None:
        root, above = source, None
    how = view._view = View(root, above, move)
    if how.family is not None:
        how.family.join(view, root)
    return view


def root_of(tensor: Tensor) -> Tensor | None:
    """The tensor whose elements this one shows; None if it has its own."""
    return None if tensor._view is None else tensor._view.root()


def shown_by(tensor: Tensor) -> tuple[Tensor, tuple[Move, ...]]:
    """The tensor whose elements this one shows, and how; itself if it has its own."""
    view = tensor._view
    root = None if view is None else view.root()
    return (tensor, ()) if view is None or root is None else (root, view.moves())


def has_own(tensor: Tensor) -> bool:
    """Whether a tensor has a node of its own, and not that of the tensor that it shows."""
    root = root_of(tensor)
    return root is None or lazy.assigned(root._lazy) is not lazy.assigned(tensor._lazy)


def leaf_of(tensor: Tensor) -> lazy.Data:
    """The leaf with a tensor's values, which are computed if they are not there."""
    realize((tensor,))
    leaf = tensor.lazy
    assert isinstance(leaf, _Data)
    return leaf


def realize(tensors: Sequence[Tensor]) -> None:
    """Compute tensors, in one schedule."""
    for tensor in tensors:
        if tensor._view is not None:
            renew(tensor, tensor._view)
    realizing.realize(tensors)


def is_detached(tensor: Tensor) -> bool:
    """Whether what is written to a view is not recorded."""
    return tensor._view is not None and _cut(tensor._view.moves())


def _cut(moves: tuple[Move, ...]) -> bool:
    return any(isinstance(move, Detached) for move in moves)


def shows(tensor: Tensor, source: Tensor, move: Move) -> bool:
    """Whether a tensor is this view of the source."""
    view = tensor._view
    if view is None or view.move != move:
        return False
    root = root_of(source)
    if root is None:
        return view.root() is source and view.above is None
    return view.root() is root and view.above is source._view


def refresh(tensor: Tensor, view: View) -> None:
    """Read a view anew if its root has changed."""
    root = view.root()
    if root is None:
        tensor._view = None
        return
    if mode.assignments > view.seen and root._assigned > view.seen:
        _read_anew(tensor, view, root)
    elif (known := view.node()) is not root._lazy:
        own = type(tensor._lazy) is lazy.Data and tensor._lazy is not known
        if not own:  # the root was realized: its values are not to be computed twice
            unrealize(tensor)


def renew(tensor: Tensor, view: View) -> None:
    """Before its values are used: read a view anew also if others may have written to its root."""
    refresh(tensor, view)
    root, node = view.root(), tensor._lazy
    if root is None or view.steady or type(node) is not _Data or type(root._lazy) is not _Data:
        return
    if node is not root._lazy and ledger.memory[root._lazy].shared:
        unrealize(tensor)


@contextmanager
def steady(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Inside of the block, what others write to the roots of these is not looked for."""
    views = [view for t in tensors if (view := t._view) is not None]
    for view in views:
        view.steady = True
    try:
        yield
    finally:
        for view in views:
            view.steady = False


def unrealize(tensor: Tensor) -> None:
    """Let a view be computed from its root again, though its values were computed already."""
    view, root = tensor._view, root_of(tensor)
    if view is not None and root is not None:
        view.note(root)
        with no_grad():
            tensor.lazy = read(root, view.moves())._lazy


def _read_anew(tensor: Tensor, view: View, root: Tensor) -> None:
    view.note(root)
    with enable_grad() if view.recorded else no_grad():
        now = read(root, view.moves())
    if (written := _written_above(view)) is not None:
        now.requires_grad, now._record = written.requires_grad, written._record
    is_leaf = tensor.requires_grad and tensor._record is None
    if (view.recorded or written is not None) and not is_leaf:
        tensor.requires_grad, tensor._record = now.requires_grad, now._record
    tensor.lazy = now._lazy
    tensor._assigned = root._assigned


def _written_above(view: View) -> Tensor | None:
    """What a view shows of a value that was recorded when it went into a detached view above."""
    moves: list[Move] = []
    while view.above is not None:
        moves.append(view.move)
        view = view.above
        if view.written is not None:
            with enable_grad():
                return read(view.written, tuple(reversed(moves)))
    return None


def give_away(tensor: Tensor) -> None:
    """Others may write to a realized tensor's memory from now on.

    What was recorded until now reads what is there now, and so do tensors that have the same
    memory only because they were equal.
    """
    leaf = tensor.lazy
    assert isinstance(leaf, _Data)
    root, buffer = root_of(tensor), ledger.memory[leaf]
    with turn:
        realizing.keep_values({id(buffer)}, {id(tensor if root is None else root)})
        buffer.shared, buffer.several = True, False


def written(tensor: Tensor, root: Tensor, value: Tensor) -> Tensor:
    """The root, with `value` where the view `tensor` shows it."""
    view = tensor._view
    assert view is not None
    moves = view.moves()
    with no_grad() if _cut(moves) or not mode.recording else enable_grad():
        levels = [root._before_assignment()]
        for move in moves[:-1]:
            levels.append(move.read(levels[-1]))
        for move, level in zip(reversed(moves), reversed(levels), strict=True):
            value = move.write(level, value)
    return value
