"""Units: the nodes that may be stored in memory of their own, each with the reason.

A unit is computed as a whole; everything else is inlined: computed again inside each unit that
reads it. Whether a unit is really stored is decided later: not if all of its readers end up in its
kernel.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from tinyml import lazy
from tinyml.graph import reached, toposort
from tinyml.lazy import LazyBuffer
from tinyml.ops import COMPARE, WORK, Movement, Op
from tinyml.schedule.contracts import contracts, is_repeated, narrowest, widens
from tinyml.schedule.inlined import askers, either
from tinyml.schedule.labels import merges
from tinyml.schedule.writes import scattered

MOST_LOADS = 24  # buffers that one expression reads
MANY = 4  # arrays that two readers read in longer than it takes to store what is made of them
FEWER = 16  # times fewer elements, which are read beside a value as if for nothing
FEW = 64  # nodes that a product is looked for in
PARTS = 8  # of what is joined, among which each lane would choose by itself
MOST_DEPTH = 400  # ops from one level at which an expression may be cut to the next
DIVIDED = 50  # ops that a reshape counts as whose index is divided: 8 of them are deep enough
LOOKED_UP = 100  # likewise a look-up
CHEAP = 4  # work per element below which recomputing beats storing, when read repeatedly
LITTLE = 8  # work per element that takes no longer than what it is made of takes to be read
OFTEN = 256  # times that products read what a card's tensor cores want rounded
TWICE = 1.75  # times or more that one unit would compute a value, at as many places of an array
ASKED = "asked for"
JOINED = "looked up, and joined of many parts"
PLACES = "costly, and read at several places"
COSTLY = "costly, and wanted in several places"
CARDS = frozenset({"CUDA", "EMU"})  # whose blocks share a fold, and whose warps keep products
NO = 1 << 62  # results of a reduction: there is none
SHARED = 24  # the same, for a value that several readers read once each
PACKED = 4  # times as many bytes as what it is made of has a factor that is worth no memory,
FEW_ROWS = 8  # if so many rows at most are multiplied by it: of 32 AVX2 takes twice as long
# what is asked of positions is worked out on indices, once for many elements
ON_POSITIONS = COMPARE | {Op.ADD, Op.MUL, Op.NEG, Op.CAST, Op.NOT, Op.AND, Op.OR, Op.REQUIRE}
ON_POSITIONS |= {Op.MAX, Op.MIN, Op.WHERE}


def find_units(
    order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer], recomputed: frozenset[LazyBuffer]
) -> dict[LazyBuffer, str]:
    """Every unit among `order` (sources first), with the reason why it is one.

    A product that is `recomputed` by each kernel that reads it is no unit, and neither is what is
    computed from it element by element.
    """
    units: dict[LazyBuffer, str] = {
        root: ASKED for root in roots if not isinstance(root, lazy.Data)
    }
    for node in order:
        if isinstance(node, lazy.Copy) and not isinstance(node.sources[0], lazy.Data):
            units.setdefault(node.sources[0], f"copied to {node.device}")
        reason = _REASONS.get(type(node))
        if reason is not None and node not in recomputed:
            units.setdefault(node, reason)
        if (made := scattered(node)) is not None:
            for asked in toposort(made.sources[1:], units, lazy.read_sources):
                if isinstance(asked, lazy.Require):
                    units.setdefault(asked, "asked before anything is overwritten")
    read = {node: lazy.read_sources(node) for node in order}
    readers = readers_of(read)
    units.update(dict.fromkeys(_looked_up_joined(read, units) - units.keys(), JOINED))
    _add_shared(read, readers, units, recomputed)
    _leave_alone(read, units)
    _narrow(readers, units)
    _add_large(read, units)
    return units


_REASONS: dict[type[LazyBuffer], str] = {
    lazy.Reduce: "a reduction",
    lazy.Scatter: "accumulates by index",
    lazy.Copy: "copied from another device",
    lazy.Contiguous: "asked to be contiguous",
    lazy.Assign: "assigned",
}


_Read = dict[LazyBuffer, tuple[LazyBuffer, ...]]  # nodes, sources first, and what each reads


def _add_shared(
    read: _Read, readers: Readers, units: dict[LazyBuffer, str], recomputed: frozenset[LazyBuffer]
) -> None:
    """Add units: values that cost much and would be computed more than once if inlined."""
    (shared, times), work = _wanted(read, units), dict[LazyBuffer, int]()
    reduced: dict[LazyBuffer, _Nodes] = {}  # reductions read, not through a unit
    fewest: dict[LazyBuffer, int] = {}  # of one, through units no larger than it, too; or NO
    arrays: dict[LazyBuffer, _Nodes] = {}  # what is read in memory
    free, (met, beside) = _free(read), _around(recomputed, readers)
    for node, sources in read.items():
        does = WORK[node.op] if isinstance(node, lazy.Map) and node not in free else 0
        folds, few, reads = _NONE, NO, _NONE
        for s in sources:
            does, folds, reads = does + work[s], either(folds, reduced[s]), either(reads, arrays[s])
            few = fewest[s] if fewest[s] < few else few
        if isinstance(node, lazy.Require):  # asked once
            does -= work[sources[1]]
        work[node], reduced[node] = min(does, 1 << 20), folds
        fewest[node], arrays[node] = few, reads
        if isinstance(node, lazy.Reduce) or is_repeated(node):
            base = narrowest(sources[0])
            own = _is_costly(base, work[base]) and units.get(base, COSTLY) == COSTLY
            if own and reduced[base].isdisjoint(recomputed):
                again = _is_made_again(node, base, met, readers, arrays[base])
                costs = (SHARED if base in units else work[base]) - again * (SHARED - CHEAP)
                reason = _worth_storing(node, base, costs, reduced[base], fewest[base] < base.size)
                if reason:
                    units[base], work[base] = reason, 0
        elif isinstance(node, lazy.Map) and node not in units:
            own = folds.isdisjoint(recomputed) and not widens(node)
            small = node in beside and all(a.size < node.size for a in reads)  # made again, too
            reason = PLACES * ((times[node] - 1) * work[node] >= SHARED)
            reason = (node in shared and _worth_sharing(node, does, folds, reads, units)) or reason
            if own and reason and not small and not _goes_on(node, readers[node], (free, units)):
                units[node] = reason
        if node in units or isinstance(node, lazy.Data):
            work[node], reduced[node], arrays[node] = 0, _NONE, frozenset((node,))
            fewest[node] = few if node.size <= few else NO
        if isinstance(node, lazy.Reduce):
            reduced[node], fewest[node] = frozenset((node,)), node.size or NO


def _wanted(
    read: _Read, units: Container[LazyBuffer]
) -> tuple[frozenset[LazyBuffer], dict[LazyBuffer, float]]:
    """What several units compute, and how many times over units compute each node."""
    asked = [*askers(read, units)]
    several = {node for node, sinks, _ in asked if sinks > 1}
    return _looked_up_often(read) | several, {node: times for node, _, times in asked}


Readers = Mapping[LazyBuffer, list[LazyBuffer]]
_Nodes = frozenset[LazyBuffer]
_NONE: _Nodes = frozenset()


def _leave_alone(read: _Read, units: dict[LazyBuffer, str]) -> None:
    """Remove costly values again that only one unit is left to compute.

    It does so itself, if that reads no more than the value is: what a backward pass alone needs is
    not stored in the forward pass, but computed from what is stored there anyway.
    """
    if COSTLY not in units.values():
        return
    stored: dict[LazyBuffer, _Nodes] = {}  # units that are read, not counting costly ones
    for node, sources in read.items():
        own = units.get(node, COSTLY) != COSTLY
        stored[node] = frozenset((node,)) if own else _NONE
        for s in () if own else sources:
            stored[node] = either(stored[node], stored[s])
    for node, sinks, times in askers(read, units):
        if units.get(node) == COSTLY and sinks == 1 and times < TWICE:
            large = [s.size for s in stored[node] if s.size * FEWER > node.size]
            if len(large) < 2 and all(size <= node.size for size in large):
                del units[node]


def _narrow(readers: Readers, units: dict[LazyBuffer, str]) -> None:
    """Store, in place of a costly value, the smallest of what is computed from it alone.

    Of dropout's random bits that is the mask, one byte for each: a forward and a backward pass read
    a quarter.
    """
    costly = [node for node, reason in units.items() if reason == COSTLY]
    place = {node: n for n, node in enumerate(readers if costly else ())}
    for unit in costly:
        best = unit
        for node in _made_alone(unit, readers, place, units):
            if isinstance(node, lazy.Map) and node.dtype.itemsize < best.dtype.itemsize:
                best = node
        if best is not unit:
            del units[unit]
            units[best] = COSTLY


def _made_alone(
    unit: LazyBuffer,
    readers: Readers,
    place: Mapping[LazyBuffer, int],
    units: Container[LazyBuffer],
) -> Iterator[LazyBuffer]:
    """What all that reads a unit goes through: its one reader, or where several of them meet."""
    made, last = {unit}, {unit}  # of which some readers are not made yet
    while len(made) < FEW and (after := {r for node in last for r in readers[node]} - made):
        node = min(after, key=place.__getitem__)
        if not _goes_on_alone(node, unit, units):
            return
        made.add(node)
        last = {n for n in (*last, node) if not made.issuperset(readers[n])}
        if last <= {node}:
            yield node


def _goes_on_alone(node: LazyBuffer, unit: LazyBuffer, units: Container[LazyBuffer]) -> bool:
    """Whether `node` is made of `unit`, element by element, and of few numbers besides."""
    if node in units or node.size != unit.size or not isinstance(node, (lazy.Map, lazy.Move)):
        return False
    below: list[LazyBuffer] = toposort([node], units, lazy.read_sources)
    leaves = [n for n in below if n in units or isinstance(n, lazy.Data)]
    folded = any(isinstance(n, lazy.Reduce) and n not in units for n in below)  # what is recomputed
    return not folded and all(n is unit or n.size < unit.size for n in leaves)


def _free(read: _Read) -> set[LazyBuffer]:
    """What costs nothing for an element: made of constants alone, or asked of positions.

    A whole number that is there once counts as a position, as where a slice begins.
    """
    fixed: set[LazyBuffer] = set()
    placed: set[LazyBuffer] = set()
    for node, sources in read.items():
        if isinstance(node, lazy.Const) or (sources and fixed.issuperset(sources)):
            fixed.add(node)
        if isinstance(node, lazy.Data) and node.size == 1 and node.dtype.is_int:
            placed.add(node)
        if _is_position(node) and all(s in placed or s in fixed for s in sources):
            placed.add(node)
    return fixed | placed


def _around(
    recomputed: Iterable[LazyBuffer], readers: Readers
) -> tuple[set[LazyBuffer], set[LazyBuffer]]:
    """What products that are computed again read (see _met), and what is beside them (_beside)."""
    made: set[LazyBuffer] = set()
    for node in recomputed:
        made |= ends_of(node, readers, ())[1]
    return _met(made), _beside(made, readers)


def _met(made: set[LazyBuffer]) -> set[LazyBuffer]:
    """What is broadcast into products that are computed again: it costs less than they do."""
    starts = (s for node in made for s in node.sources if s not in made)
    found = reached(starts, lambda e: e.sources if isinstance(e, lazy.Move) else ())
    return {node for node in found if isinstance(node, lazy.Move)}


def _beside(made: set[LazyBuffer], readers: Readers) -> set[LazyBuffer]:
    """What has an element for each of what is computed again, and no other readers.

    For example the random bits of dropout on attention's weights.
    """
    own = {*made}
    for node in reversed([*readers]) if made else ():
        if not is_repeated(node) and own.issuperset(readers[node]):
            own.add(node)
    return own - made


def by_element(node: LazyBuffer, ends: Container[LazyBuffer] = ()) -> Iterator[LazyBuffer]:
    """A node and the next few that it is made of, element by element, to what has other sizes."""

    def sources(e: LazyBuffer) -> tuple[LazyBuffer, ...]:
        goes_on = isinstance(e, (lazy.Map, lazy.Move)) and e.size == node.size and e not in ends
        return e.sources if goes_on else ()

    return islice(reached([node], sources), FEW)


def until_folds(nodes: Iterable[LazyBuffer]) -> list[LazyBuffer]:
    """Nodes and what they are made of, down to folds."""
    return toposort(nodes, (), lambda e: () if isinstance(e, lazy.Reduce) else e.sources)


def readers_of(order: Iterable[LazyBuffer]) -> dict[LazyBuffer, list[LazyBuffer]]:
    """By node, who reads its values."""
    readers: dict[LazyBuffer, list[LazyBuffer]] = {node: [] for node in order}
    for node in order:
        for source in lazy.read_sources(node):
            readers[source].append(node)
    return readers


def ends_of(
    node: LazyBuffer, readers: Readers, roots: Container[LazyBuffer], besides: bool = False
) -> tuple[dict[lazy.Reduce, None], set[LazyBuffer], list[LazyBuffer]]:
    """The reductions at which all that is computed from `node`, element by element, ends.

    With them come the nodes on the way, and those of these that others need as a whole: because
    they are roots, or because what reads them cannot be inlined. Unless `besides` allows for such
    nodes, one of them is enough for an answer without reductions.
    """
    stack, seen = [node], {node}
    ends: dict[lazy.Reduce, None] = {}
    wanted: list[LazyBuffer] = []
    while stack:
        each = stack.pop()
        if each in roots:
            wanted.append(each)
        for reader in readers[each]:
            if isinstance(reader, lazy.Reduce):
                ends[reader] = None
            elif not isinstance(reader, (lazy.Map, lazy.Move)):
                wanted.append(each)
            elif reader not in seen:
                seen.add(reader)
                stack.append(reader)
        if wanted and not besides:
            return {}, seen, wanted
    return ends, seen, wanted


def _goes_on(
    node: LazyBuffer, readers: list[LazyBuffer], known: Sequence[Container[LazyBuffer]]
) -> bool:
    """Whether only one op reads `node`, with what costs nothing or is stored.

    Then its result is stored: who reads that reads one array.
    """
    return (
        len(readers) == 1
        and isinstance(readers[0], lazy.Map)
        and not widens(readers[0])
        and all(s is node or any(s in those for those in known) for s in readers[0].sources)
    )


def _is_position(node: LazyBuffer) -> bool:
    """Whether a node made of positions is one, or something asked of them."""
    asks = isinstance(node, lazy.Map) and node.op in ON_POSITIONS and not node.dtype.is_float
    return asks or isinstance(node, (lazy.Iota, lazy.Move))


def _is_made_again(
    node: LazyBuffer, base: LazyBuffer, met: Container[LazyBuffer], readers: Readers, arrays: _Nodes
) -> bool:
    """Whether a value is made of smaller arrays and read where it costs little to make it again.

    A product of few rows makes a factor once: one that is made of much smaller arrays, as packed
    weights are, is less to read, too. On a card nobody measured that.
    """
    if node in met and all(a.size < base.size for a in arrays):
        return True
    held = sum(a.size * a.dtype.itemsize for a in arrays)
    packed = 0 < held * PACKED <= base.size * base.dtype.itemsize
    if not packed or node.size > FEW_ROWS * base.size or base.device in CARDS:
        return False
    products = [r for r in readers[node] if lazy.is_map(r, Op.MUL)] if is_repeated(node) else []
    totals = [total for product in products for total in readers[product]]
    return len(products) == len(readers[node]) > 0 and all(map(contracts, totals))


def _is_costly(base: LazyBuffer, work: int) -> bool:
    """Whether a node may cost something: what is looked up may be made where it is looked up."""
    return isinstance(base, lazy.Map) or (isinstance(base, lazy.Gather) and work >= SHARED)


def _worth_storing(
    node: LazyBuffer, base: LazyBuffer, work: int, reduced: _Nodes, of_rows: bool
) -> str:
    """Why `base`, which `node` reads through moves, deserves memory; empty if it does not.

    What is made of rows and of statistics of them (`of_rows`) is stored by whoever makes these.
    """
    times = node.size // max(1, base.size)
    rounded = base.dtype.is_half and base.device in CARDS and times >= OFTEN
    if is_repeated(node) and (reduced or of_rows or rounded or work >= CHEAP):
        return f"read {max(1, times)} times over"
    smaller = len(reduced) > 1 and base.size <= sum(r.size for r in reduced)
    if isinstance(node, lazy.Reduce) and smaller:
        return f"smaller than the {len(reduced)} reductions it is made of"
    return ""


def _worth_sharing(
    node: LazyBuffer, work: int, reduced: _Nodes, arrays: _Nodes, units: Mapping[LazyBuffer, str]
) -> str:
    """Why a value that is wanted in several places deserves memory; empty if it does not."""
    if reduced:
        again = _is_of_statistics(node, either(reduced, arrays))
        return "" if again else "of a reduction, and wanted in several places"
    if work >= SHARED:
        return COSTLY
    many = sum(array.size >= node.size for array in arrays) >= MANY
    if many and COSTLY in map(units.get, arrays):  # some of which may be made again
        return COSTLY
    return f"made of {len(arrays)} arrays, and wanted in several places" if many else ""


def _is_of_statistics(node: LazyBuffer, arrays: _Nodes) -> bool:
    """Whether a value is little work on one array and statistics of it, as normalised rows are.

    Whoever reads it may as well read that array, which is in memory: another pass made statistics.
    """
    large = [array for array in arrays if array.size * FEWER > node.size]
    if len(large) != 1 or len(arrays) == 1:
        return False
    same = (e for e in by_element(node, arrays) if e.size == node.size and e not in arrays)
    work = sum(WORK[e.op] for e in same if isinstance(e, lazy.Map))
    below = reached((s for s in arrays if s is not large[0]), lambda n: n.sources)
    return work < LITTLE and large[0] in islice(below, FEW)


def _looked_up_often(read: _Read) -> frozenset[LazyBuffer]:
    """What is computed and looked up twice over: if it costs much, it is not made again each time.

    On a card nobody has measured that: what it is made of lies in caches there.
    """
    elements: dict[LazyBuffer, int] = {}
    for node in read:
        if isinstance(node, lazy.Gather):
            base = narrowest(node.sources[0])
            elements[base] = elements.get(base, 0) + node.size
    often = (base for base, count in elements.items() if count >= 2 * base.size)
    return frozenset(b for b in often if isinstance(b, lazy.Map) and b.device not in CARDS)


def _looked_up_joined(read: _Read, units: Container[LazyBuffer]) -> set[LazyBuffer]:
    """What is joined of many parts, as by a pad that reflects, and looked up about as often as it
    has elements: each lane would ask by itself in which part its place is. A card's threads do."""
    parts: dict[LazyBuffer, int] = {}  # among which an element of a node is chosen
    found: set[LazyBuffer] = set()
    for node, sources in read.items():
        parts[node] = 1
        if isinstance(node, lazy.Map) and node not in units:
            each = [parts[s] for s in sources]
            parts[node] = min(sum(each[1:]), PARTS) if node.op is Op.WHERE else max(each)
        elif isinstance(node, lazy.Move) and node not in units:
            parts[node] = parts[sources[0]]
        if isinstance(node, lazy.Gather) and node.device not in CARDS:
            table = narrowest(node.sources[0])
            if parts[table] >= PARTS and node.size * 2 >= table.size:
                found.add(table)
    return found


def _add_large(read: _Read, units: dict[LazyBuffer, str]) -> None:
    """Add units: cuts through expressions that read too many buffers or nest too deep."""
    loads: dict[LazyBuffer, _Nodes] = {}
    depth: dict[LazyBuffer, int] = {}  # ops from what is stored
    level: dict[LazyBuffer, int] = {}  # likewise, but for cuts: what is cut is cut at one level
    for node, sources in read.items():
        bends = _bends(node)
        high = max([level[s] for s in sources], default=0) + max(1, bends)
        for s in () if bends else sources:
            if level[s] // MOST_DEPTH < high // MOST_DEPTH and 2 * depth[s] >= MOST_DEPTH:
                base = _storable(s)
                if isinstance(base, lazy.Map):
                    units.setdefault(base, f"{depth[s]} ops deep")
                    loads[s] = loads[base] = frozenset((base,))
                    depth[s] = depth[base] = 0
        reads, deep = _NONE, max([depth[s] for s in sources], default=0)
        for s in sources:
            reads = either(reads, loads[s])
        many = isinstance(node, lazy.Map) and len(reads) > MOST_LOADS
        if many or (bends and deep >= MOST_DEPTH):
            units.setdefault(node, f"reads {len(reads)} buffers, {deep + 1} ops deep")
        stored = node in units or isinstance(node, lazy.Data)
        loads[node] = frozenset((node,)) if stored else reads
        depth[node], level[node] = (0, 0) if stored else (deep + max(1, bends), high)


def _storable(node: LazyBuffer) -> LazyBuffer:
    """What a node is without its last moves, if their index is not divided."""
    while isinstance(node, lazy.Move) and not _bends(node):
        node = node.sources[0]
    return node


def _bends(node: LazyBuffer) -> int:
    """As how deep an index counts that is divided, or looked up; 0 for other nodes.

    One in the other, such indices grow manifold.
    """
    if isinstance(node, lazy.Move) and node.movement is Movement.RESHAPE:
        return DIVIDED * merges(node.shape, node.sources[0].shape)
    return LOOKED_UP * isinstance(node, lazy.Gather)
