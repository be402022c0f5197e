"""Ledger: which leaf has which buffer, who holds which node, and who still reads what.

`memory` is the only place that says where a leaf's values are; the graph does not know. Whoever
holds a node that is not real yet is watched: what is overwritten in place must have been read by
everybody who wanted the old values.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Container, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from tinyml import lazy, trace
from tinyml.graph import needing
from tinyml.lazy import Data, LazyBuffer
from tinyml.roster import Roster
from tinyml.runtime.machine import Buffer
from tinyml.turn import short_lock

memory: weakref.WeakKeyDictionary[Data, Buffer] = weakref.WeakKeyDictionary()
_gradients: weakref.WeakKeyDictionary[LazyBuffer, list[weakref.ref[Holder]]]
_gradients = weakref.WeakKeyDictionary()  # that backward() made of a node


class Holder(Protocol):
    """Somebody who holds a node: a Tensor."""

    @property
    def lazy(self) -> LazyBuffer: ...

    @lazy.setter
    def lazy(self, node: LazyBuffer) -> None: ...

    @property
    def _lazy(self) -> LazyBuffer: ...  # the same, though it may be read anew when it is asked for

    _record: Any  # what gradients go on by, which is forgotten where a node is taken that is real

    @property
    def _is_leaf(self) -> bool: ...  # whether it is a parameter, if it was given to `keep`

    @property
    def _followed(self) -> Holder | None: ...  # whose values it shows, read anew from there


class Tape(Protocol):
    """The record of a composition, which makes the tensors between its steps when it is opened."""

    @property
    def closed(self) -> bool: ...  # whether they are not there yet

    def opened(self) -> object: ...  # makes them


changing = short_lock()  # held by who gives another node to what other threads may assign to
_pending, _deferred, _parameters = Roster(), Roster(), Roster()
_held = trace.listeners(trace.Held)  # every op asks whether there are any


def watch(holder: Holder, node: LazyBuffer) -> None:
    """Note that `holder` holds `node` now. To be called whenever its node changes."""
    (node.readers if type(node) is Data else _pending).note(holder)
    if _held:
        trace.emit(trace.Held(holder))


def watch_all(holders: Sequence[Holder], nodes: Sequence[LazyBuffer]) -> None:
    """As `watch`, of several."""
    if _held or Data in map(type, nodes):
        for holder, node in zip(holders, nodes, strict=True):
            watch(holder, node)
    else:
        _pending.note_all(holders)


def keep(holder: Holder) -> None:
    """Note a parameter: who computes with its values before they are real makes it real, too."""
    if type(holder._lazy) is not Data:
        _parameters.note(holder)


def defer(tape: Tape) -> None:
    """Note a record whose steps, and the tensors between them, are not there yet."""
    _deferred.note(tape)
    if _held:
        tape.opened()


def _open_deferred() -> None:
    while _deferred:  # what is opened is noted no more
        for tape in _deferred.retain(lambda tape: tape.closed):
            tape.opened()


def pending() -> list[Holder]:
    """Everybody who holds a node that is not real yet."""
    _open_deferred()
    return _pending.retain(lambda holder: type(holder._lazy) is not Data)


def has_data(node: LazyBuffer) -> bool:
    """Whether values in memory are a part of what a node says."""
    return bool(needing([node], _is_data))


def _is_data(node: LazyBuffer) -> bool:
    return type(node) is Data


def is_pending(holder: Holder) -> bool:
    return type(holder.lazy) is not Data


def overwritten(order: Iterable[LazyBuffer]) -> set[int]:
    """The buffers (ids) that these nodes assign to."""
    assigns = [node for node in order if type(node) is lazy.Assign]
    targets = set(map(lazy.assigned, assigns)) if assigns else ()
    return {id(memory[t]) for t in targets if isinstance(t, Data)}


def readers_of(buffers: Collection[int]) -> list[tuple[Holder, LazyBuffer]]:
    """Holders of graphs that read these buffers (ids), and nodes that save their values.

    Views are left out: they read what their root holds then.
    """
    found: dict[int, tuple[Holder, LazyBuffer]] = {}
    for leaf, _ in in_memory(buffers):
        if own := _own_readers(leaf):
            saved = lazy.node(lazy.Contiguous, leaf.shape, leaf.dtype, leaf.device, (leaf,))
            found.update({id(h): (h, saved) for h in own})
    found.update({id(h): (h, h._lazy) for h in pending_readers(buffers)})
    return list(found.values())


class _Harmless:
    """Nodes that were held, pending, and read none of some buffers: nor ever will they.

    What is made of such a node is walked down to it, and who was asked is not asked again: a sum
    that goes on from step to step, and that nobody looks at, costs each step the same.
    """

    def __init__(self, buffers: frozenset[int]) -> None:
        self.nodes: list[weakref.ref[LazyBuffer]] = []  # the latest, which what follows is made of
        self.asked = 0, 0  # so far, but for those who read some, or may
        self.again: list[weakref.ref[Holder]] = []
        forget = partial(_forget, buffers)  # an id may be that of another one then
        self._buffers = [weakref.ref(buffer, forget) for _, buffer in in_memory(buffers)]


def _forget(buffers: frozenset[int], _: object) -> None:
    _harmless.pop(buffers, None)


_harmless: dict[frozenset[int], _Harmless] = {}
_MOST_NODES = 128
_MOST_HARMLESS = 16  # optimizers and captured steps that take turns


def pending_readers(buffers: Iterable[int]) -> list[Holder]:
    """Holders of pending graphs that read these buffers (ids); no views. In the caller's turn."""
    key = frozenset(buffers)
    known = _harmless.get(key)
    if known is None:
        while len(_harmless) >= _MOST_HARMLESS:
            del _harmless[next(iter(_harmless))]
        known = _harmless[key] = _Harmless(key)
    _open_deferred()
    known.asked, new = _pending.since(known.asked)
    new += [h for reference in known.again if (h := reference()) is not None]
    if not new:
        return []
    others = [node for reference in known.nodes if (node := reference()) is not None]
    harmless = set(others)
    held = {h: node for h in new if type(node := h._lazy) is not Data and node not in harmless}
    reading = {*needing(held.values(), lambda n: _is_data(n) and id(memory[n]) in key, harmless)}
    others += [_moved(node) for node in held.values() if node not in reading]
    known.nodes = list(map(weakref.ref, others[-_MOST_NODES:]))
    found = [h for h, node in held.items() if node in reading]
    known.again = list(map(weakref.ref, found))
    return [h for h in found if h._followed is None]


def _moved(node: LazyBuffer) -> LazyBuffer:
    """What a node shows: movements of it are made of that, not of the node."""
    while type(node) is lazy.Move:
        (node,) = node.sources
    return node


def parameters_in(order: Container[LazyBuffer]) -> list[tuple[Holder, LazyBuffer]]:
    """Parameters that these nodes are computed from, and that are not real yet: else each result
    would draw their first values again, or repeat all updates that nobody realized."""
    if not _parameters:
        return []
    waiting = _parameters.retain(lambda holder: type(holder._lazy) is not Data)
    found = [h for h in waiting if h._lazy in order and h._is_leaf]
    return [(h, h._lazy) for h in found if h._followed is None and has_data(h._lazy)]


def note_gradients(root: LazyBuffer, gradients: Iterable[Holder]) -> None:
    """Who holds gradients that backward() made of a node."""
    _gradients[root] = list(map(weakref.ref, gradients))


def gradients_in(order: Container[LazyBuffer]) -> list[tuple[Holder, LazyBuffer]]:
    """Gradients of these nodes that wait, and are no part of them: what both are made of, as all
    activations of a network, would be computed again for them."""
    if not _gradients:
        return []
    roots = [node for r in _gradients.keyrefs() if (node := r()) is not None and node in order]
    known = [h for root in roots for r in _gradients.get(root, ()) if (h := r()) is not None]
    waiting = [(h, h._lazy) for h in known if h._followed is None and type(h._lazy) is not Data]
    return [(h, node) for h, node in waiting if node not in order and has_data(node)]


def in_memory(buffers: Container[int] | None = None) -> list[tuple[Data, Buffer]]:
    """Every leaf and its memory, if that is one of these (ids).

    Threads may add to it meanwhile, and leaves may die: what is collected where Python makes an
    item of a dict changes the dict, so its keys are listed, which makes nothing.
    """
    held = memory.data  # type: ignore[attr-defined]  # a look-up by reference takes half the time
    known = [(reference, held.get(reference)) for reference in memory.keyrefs()]
    if buffers is not None:
        known = [item for item in known if id(item[1]) in buffers]
    return [(leaf, buf) for ref, buf in known if buf is not None and (leaf := ref()) is not None]


def _own_readers(leaf: Data) -> list[Holder]:
    """Who holds this leaf, without views that will be read anew, as their root was assigned to."""
    holders = [(h, h._followed) for h in leaf.readers.members() if h.lazy is leaf]
    own = [(h, leaf if root is None else root.lazy) for h, root in holders]
    return [h for h, node in own if node is leaf or lazy.assigned(node) is not leaf]
