"""Reused: what is computed for the second time is kept.

A loop that goes on from a tensor that nobody made real, and that looks at something made of it,

    h = cell(x, h)
    print(h.sum().item())

would compute h from its beginning in each turn, by a graph and kernels that grow. What a plan has
computed is marked. Where another graph needs some of it again, the last nodes that were computed
before are made real with it, and everybody's graphs go on from there: a turn costs two steps.

A step of training may read a tensor that was made before it, as features that a frozen network
makes of all data, or data less their mean. What of that is worth it is made real, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter

from tinyml.graph import toposort
from tinyml.lazy import Assign, Data, Gather, LazyBuffer, Move, Reduce, Sources, age, is_move
from tinyml.ledger import changing, has_data, pending
from tinyml.ops import Movement

_MOST = 8  # nodes: of more, as all activations of a network, a plan knows better which to store
_SMALL, _TIMES = 1 << 20, 4  # bytes, and so many times the largest data that something is made of
_TURNS, _FAR = 3, 32  # of a loop until it is known for one, which so many ops tell
_COUNTER = 12  # bytes: draws are made of no more
_PLAN, _EACH = 1 << 20, 64  # elements computed for a node that is worth it, in all and for each
_computed: Callable[[LazyBuffer], int] = attrgetter("computed")


def mark(order: Iterable[LazyBuffer]) -> None:
    """Note that these nodes were computed, but for what only says where their elements are."""
    for node in order:
        if type(node) is not Move:
            node.computed += 1


def reused(wanted: Iterable[LazyBuffer], order: Collection[LazyBuffer]) -> list[LazyBuffer]:
    """What these nodes need of those that were computed before.

    `order` is all that they need. None of it assigns.
    """
    known = [node for node in order if node.computed and node.sources]
    if not any(has_data(node) or _grows(node) for node in known):  # as constants of a composition
        return []
    found, stack = dict[LazyBuffer, bool](), [(node, False) for node in wanted]
    seen = {*stack}
    while stack:
        node, partly = stack.pop()
        for source in () if node.computed else node.sources:
            part = _reads_part(node, source) or (partly and type(node) is not Reduce)
            if source.computed:  # what is below is not needed
                if source.sources:
                    found[source] = found.get(source, False) or not part
            elif (source, part) not in seen:
                seen.add((source, part))
                stack.append((source, part))
    data = _data_of([node for node, whole in found.items() if whole])
    needed = [
        node
        for node, whole in found.items()
        if (_fits(node, data[node]) if whole else _nbytes(node) <= _SMALL and _grows(node))
    ]
    return needed if len(needed) <= _MOST else []


def reused_by_step(wanted: Iterable[LazyBuffer], order: Collection[LazyBuffer]) -> list[LazyBuffer]:
    """The same where some of `order` assigns: what is worth it of what somebody holds.

    A step's own activations, which are held or were looked at, read what it overwrites: they become
    real with it anyway.
    """
    computed = [node for node in order if node.computed]
    if _work(computed) < _PLAN or not any(map(_is_worth, computed)):
        return []  # without a look at who holds what, of which there may be much
    held = {holder._lazy for holder in pending()}
    stack, found = [(node, False) for node in wanted], dict[LazyBuffer, None]()
    seen = {*stack}
    while stack:
        node, known = stack.pop()
        known = known or node in held
        if node.computed and known and _is_worth(node):
            found[node] = None
            continue
        known = known and (node.computed > 0 or type(node) is Move)
        below = [(source, known) for source in node.sources if source.sources]
        stack += [pair for pair in below if pair not in seen]
        seen.update(below)
    return list(found) if len(found) <= _MOST else []


def _is_worth(node: LazyBuffer) -> bool:
    """Whether a plan without it saves more than it costs: far more is computed than is kept."""
    return _work(toposort([node])) >= max(_PLAN, _EACH * node.size)


def _work(nodes: Iterable[LazyBuffer]) -> int:
    """How many elements are computed for these, and folded."""
    made = [node for node in nodes if node.sources and type(node) is not Move]
    return sum([node.sources[0].size if type(node) is Reduce else node.size for node in made])


def _reads_part(node: LazyBuffer, source: LazyBuffer) -> bool:
    """Whether a node may read some elements only, so that only these were computed before."""
    if type(node) is Gather:
        return source is node.sources[0]
    return is_move(node, Movement.SHRINK)


def _data_of(nodes: Iterable[LazyBuffer]) -> dict[LazyBuffer, int]:
    """Bytes of the largest values in memory that each is made of, of these and what is below."""
    found = dict[LazyBuffer, int]()
    for node in toposort(nodes):
        own = _nbytes(node) if type(node) is Data else 0
        found[node] = max([own, *(found[source] for source in node.sources)])
    return found


def _nbytes(node: LazyBuffer) -> int:
    return node.size * node.dtype.itemsize


def _fits(node: LazyBuffer, nbytes: int) -> bool:
    """Whether a node is made of data, and would not take far more memory than these.

    A loop may begin with numbers or draws.
    """
    fits = nbytes > 0 and _nbytes(node) <= max(_SMALL, _TIMES * nbytes)
    return fits or (nbytes <= _COUNTER and _grows(node))


def _grows(node: LazyBuffer) -> bool:
    """Whether it took turns of a loop: what it is made of was computed several times more."""
    often = node.computed + _TURNS
    for _ in range(_FAR):
        below = [source for source in node.sources if source.sources]
        if not below or node.computed >= often:
            break
        node = max(below, key=_computed)
    return node.computed >= often


def go_on(made: Mapping[LazyBuffer, Data]) -> None:
    """Let everybody's graphs go on from what these nodes are in memory; gradients go as before.

    Records keep what a loop's turns long past were made of: of these nodes nothing older is made.
    """
    first = min([node.born for node in made])
    age.now += 1  # what is made now, and in the turn to come, is younger than what there is
    holders = [h for h in pending() if h._followed is None and h._lazy.born >= first]
    now: dict[LazyBuffer, LazyBuffer] = {**made}

    def younger(node: LazyBuffer) -> Sources:
        return node.sources if node.born >= first else ()

    for node in toposort([h._lazy for h in holders], made, younger):
        if node not in made and node.born >= first and type(node) is not Assign:
            again = node.made_of(now)
            if again is not node:
                again.computed, now[node] = node.computed, again
    for holder in holders:
        with changing:  # or what another thread assigns meanwhile would be lost
            if holder._lazy in now:
                record, holder.lazy = holder._record, now[holder._lazy]
                if record is not None:
                    holder._record = record
