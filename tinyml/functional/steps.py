"""Steps: what a composition records, so that only its first call has to work it out.

    steps ::= constants, (node on earlier ones)*, (record on earlier tensors)*, results

What a composition records depends on the shapes, dtypes and devices of its tensors and on its
other arguments, never on values. So the first call for a kind of arguments is made with stand-ins
for the tensors; every call then makes the same nodes and records, without promotion, shapes and
checks. Where there is one result, its record is a `_Tape`: the steps between are recorded when
somebody differentiates. What looks at the nodes of operands (lazy.py, moves.py, bounded.py) sees
the same in a stand-in: see `_look`.

A call is made as it is written where it takes anything but tensors and plain values, and where it
gives a view of an operand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tinyml import lazy, ledger, mlops
from tinyml.autograd import Deferred, enable_grad, in_blocks, mode, record_of
from tinyml.dtype import DType
from tinyml.dtypes import default_float, default_int
from tinyml.functional.views import renew, root_of
from tinyml.graph import toposort
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement, Op
from tinyml.turn import short_lock

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

_F = TypeVar("_F", bound=Callable[..., Any])
_Pick = Callable[[Sequence[Any]], Any]
_Kind = tuple[Any, ...]
# which class, shape, dtype, device and arg; on which nodes
_Node = tuple[type[LazyBuffer], lazy.Shape, DType, str, Any, "int | _Pick"]
# of which node; what makes a record, if there is one, of which tensors; if they require a gradient
_Record = tuple[int, Callable[[], mlops.Function] | None, "int | _Pick", bool | None]
_MOST = 1024  # kinds of arguments of one composition that are remembered
_PLAIN = frozenset({int, bool, str, DType, type(None)})
_STORED: dict[type, object] = dict.fromkeys((lazy.Data, lazy.Contiguous, lazy.Assign), "stored")
_new = object.__new__
_SETS: object = object.__setattr__  # what frozen classes have another one of
_opening = short_lock()
_Move, _RESHAPE, _EXPAND = lazy.Move, Movement.RESHAPE, Movement.EXPAND


class Unclear(Exception):
    """What a call records is not known from the kind of its arguments."""


# ---- the arguments of a call ----


def _add(
    values: Iterable[Any], kind: list[Any], tensors: list[Tensor], nodes: list[LazyBuffer]
) -> bool:
    """Add what is of a kind in the values of a call, the tensors among them, and their nodes.

    Each node with what it is a reshape of. False unless all are plain values and tensors of one
    class.
    """
    for value in values:
        own = type(value)
        if own in _PLAIN:
            kind += (own, value)
        elif hasattr(value, "_lazy"):
            if value._view is not None:
                renew(value, value._view)
            node = value._lazy
            if tensors and type(tensors[0]) is not own:
                return False
            tensors.append(value)
            nodes.append(node)
            while type(node) is _Move and (node.arg[0] is _RESHAPE or node.arg[0] is _EXPAND):
                kind += (node.arg, node.shape)
                node = node.sources[0]
                nodes.append(node)
            look = _STORED.get(type(node)) or _look(node)
            kind += (own, value._requires_grad, node.shape, node.dtype, node.device, look)
        elif own is float:
            kind += (own, value or str(value))  # 0.0 is not -0.0
        elif own is tuple or own is list:
            kind += (own, len(value))
            if not _add(value, kind, tensors, nodes):
                return False
        elif hasattr(own, "__dataclass_fields__") and own.__setattr__ is not _SETS:
            kind += (own, value)
        else:
            return False
    return True


def _look(node: LazyBuffer) -> object:
    """What else decides what is made of a node that is no reshape and does not repeat another.

    Of a constant and its moves, what they are; of others, whether skews look into it.
    """
    own, below, moves = type(node), node, []
    while type(below) is _Move:
        moves.append(below.arg)
        below = below.sources[0]
    if type(below) is lazy.Const:
        return below.arg, *moves
    return "map" if own is lazy.Map and node.arg is not Op.MUL else "open"


def _stand_in(node: LazyBuffer, number: int, nodes: list[LazyBuffer]) -> LazyBuffer:
    """What looks like a node; it is added to `nodes`, and what it is a reshape of after it."""
    place = len(nodes)
    nodes.append(node)
    if type(node) is _Move and (node.arg[0] is _RESHAPE or node.arg[0] is _EXPAND):
        found = node.with_sources((_stand_in(node.sources[0], number, nodes),))
    elif type(node) not in _STORED and type(_look(node)) is tuple:
        found = node
    else:
        found = lazy.node(lazy.Slot, node.shape, node.dtype, node.device, (), number)
        found = lazy.contiguous(found) if type(node) in _STORED else found
    nodes[place] = found
    return found


# ---- what a call records ----


class Steps:
    """The nodes and records that a composition makes for one kind of arguments."""

    __slots__ = ("_constants", "_joined", "_nodes", "_records", "_results", "_several", "_tensors")

    def __init__(
        self, kind: _Kind, given_tensors: list[Tensor], function: Callable[[list[Tensor]], Any]
    ) -> None:
        given: list[LazyBuffer] = []
        nodes = [_stand_in(t.lazy, i, given) for i, t in enumerate(given_tensors)]
        pairs = zip(nodes, given_tensors, strict=True)
        operands = [t._of(node)._requiring(t._requires_grad) for node, t in pairs]
        with enable_grad(), lazy.known:
            made = function(operands)
        self._several = isinstance(made, tuple)
        self._joined = getattr(type(made), "_make", tuple) if self._several else itemgetter(0)
        results = made if self._several else (made,)
        if not all(isinstance(t, type(operands[0])) for t in results):
            raise Unclear
        leaves = set(operands)
        if not leaves.isdisjoint(map(root_of, results)):
            raise Unclear
        tensors = [t for t in toposort(results, leaves, _inputs) if t not in leaves]
        numbers = self._note_nodes(given, [t._lazy for t in tensors])
        moved = any(of is _Move and arg[0] is Movement.SKEW for of, *_, arg, _ in self._nodes)
        if moved and "open" in kind:
            raise Unclear
        self._note_records(operands, tensors, results, numbers)

    def _note_nodes(self, given: list[LazyBuffer], made: list[LazyBuffer]) -> dict[LazyBuffer, int]:
        """How to make nodes of those that are given; the number that each has then."""
        moving, order = set(given), toposort(made, set(given))
        for node in order:
            if not moving.isdisjoint(node.sources):
                moving.add(node)
        self._constants = [node for node in order if node not in moving]
        numbers = {node: i for i, node in enumerate([*self._constants, *given])}
        first = len(self._constants) + len(given)
        self._nodes: list[_Node] = []
        for node in order:
            if node not in numbers:
                pick = _picking([numbers[source] for source in node.sources])
                numbers[node] = first + len(self._nodes)
                self._nodes.append(
                    (type(node), node.shape, node.dtype, node.device, node.arg, pick)
                )
        return numbers

    def _note_records(
        self,
        operands: list[Tensor],
        tensors: list[Tensor],
        results: Sequence[Tensor],
        numbers: dict[LazyBuffer, int],
    ) -> None:
        fixed = [t for t in tensors if numbers[t._lazy] < len(self._constants)]
        self._tensors = [t for t in fixed if t._record is None and t not in set(results)]
        places = {t: i for i, t in enumerate([*self._tensors, *operands])}
        self._records: list[_Record] = []
        for tensor in [t for t in tensors if t not in places]:
            record, make, pick = record_of(tensor), None, _picking([0])
            if record is not None:
                make, pick = _maker(record), _picking([places[t] for t in record.inputs])
            places[tensor] = len(places)
            self._records.append((numbers[tensor._lazy], make, pick, tensor._requires_grad))
        self._results = [places[result] for result in results]

    def __call__(self, tensors: list[Tensor], nodes: list[LazyBuffer]) -> Any:
        """The results for the tensors of a call, and their nodes."""
        values, interned, now = [*self._constants, *nodes], lazy.known.listeners, lazy.age.now
        for kind, shape, dtype, device, arg, pick in self._nodes:  # as lazy.node, without the call
            made = kind()
            made.shape, made.dtype, made.device, made.arg = shape, dtype, device, arg
            made.sources = (values[pick],) if isinstance(pick, int) else pick(values)
            made.computed, made.born = 0, now
            values.append(lazy.known.one(made) if interned else made)
        recording = not in_blocks() or mode.recording
        if self._several or not self._records:
            return self._picked(tensors, values, recording)
        number, recorded, pick, requires_grad = self._records[-1]
        result = tensors[0]._of(values[number])
        if recording and recorded is not None:
            if len(self._records) == 1:
                given = [*self._tensors, *tensors]
                result._record = _applied(recorded, pick, given, mode.assignments)
            else:
                result._record = _Tape(self, tensors, values)
            if requires_grad:
                result._requires_grad = True
        return result

    def _picked(self, tensors: list[Tensor], values: list[LazyBuffer], recording: bool) -> Any:
        """Several results, or one that is an operand."""
        first, count = tensors[0], len(self._tensors) + len(tensors)
        if recording:
            found = self.record(tensors, values, mode.assignments)
            results = [found[i] for i in self._results]
        else:
            found, records = [*self._tensors, *tensors], self._records
            results = [
                found[i] if i < count else first._of(values[records[i - count][0]])
                for i in self._results
            ]
        return self._joined(results)

    def record(
        self, tensors: Sequence[Tensor], values: list[LazyBuffer], clock: int
    ) -> list[Tensor]:
        """Constants, the tensors of a call, and all that it computes, with records."""
        of, found = type(tensors[0]), [*self._tensors, *tensors]
        count = len(found)
        for number, recorded, pick, requires_grad in self._records:
            tensor = _new(of)
            tensor._lazy = values[number]
            if recorded is not None:
                tensor._record = _applied(recorded, pick, found, clock)
                if requires_grad:
                    tensor._requires_grad = True
            found.append(tensor)
        of._watch(found[count:])
        return found


def _applied(
    recorded: Callable[[], mlops.Function], pick: int | _Pick, given: list[Tensor], clock: int
) -> mlops.Function:
    record = recorded()
    record.inputs = (given[pick],) if isinstance(pick, int) else pick(given)
    record.clock = clock
    return record


class _Tape(Deferred):
    """The record of a call with one result: the steps between are recorded when it is opened."""

    __slots__ = ("_record", "_steps", "_values")

    def __init__(self, steps: Steps, tensors: list[Tensor], values: list[LazyBuffer]) -> None:
        self._steps, self._values = steps, values
        self._record: mlops.Function | None = None
        self.inputs, self.clock = tuple(tensors), mode.assignments
        ledger.defer(self)

    @property
    def closed(self) -> bool:
        """Whether the steps are still to be recorded."""
        return self._record is None

    def opened(self) -> mlops.Function:
        with _opening:  # one thread records for all
            if self._record is None:
                *_, result = self._steps.record(self.inputs, self._values, self.clock)
                self._record, self._values = result._record, []
            assert self._record is not None
            return self._record


def _picking(numbers: Sequence[int]) -> int | _Pick:
    """What takes the elements with these numbers out of a sequence: the number itself, of one."""
    return numbers[0] if len(numbers) == 1 else itemgetter(*numbers)


def _inputs(tensor: Tensor) -> tuple[Tensor, ...]:
    record = record_of(tensor)
    return () if record is None else record.inputs


def _maker(record: mlops.Function) -> Callable[[], mlops.Function]:
    """What makes such a record again."""
    kind = type(record)
    code = getattr(kind.__init__, "__code__", None)  # there is none where it takes nothing
    names = code.co_varnames[1 : code.co_argcount] if code else ()
    return functools.partial(kind, *[getattr(record, name) for name in names]) if names else kind


def composition(function: _F) -> _F:
    """A function of tensors, made of others, that records its steps again when it is called."""
    known: dict[_Kind, Steps | None] = {}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        said: list[Any] = [default_float.now, default_int.now]
        tensors: list[Tensor] = []
        nodes: list[LazyBuffer] = []
        plain = _add(args, said, tensors, nodes) and (
            not kwargs or _add([x for pair in kwargs.items() for x in pair], said, tensors, nodes)
        )
        if not plain or not tensors:
            return function(*args, **kwargs)
        kind = tuple(said)
        steps = known.get(kind)
        if steps is None and kind not in known:
            if len(known) >= _MOST:
                known.clear()
            again = functools.partial(_with, function, args, kwargs)
            with suppress(Unclear):
                steps = Steps(kind, tensors, again)
            known[kind] = steps
        return function(*args, **kwargs) if steps is None else steps(tensors, nodes)

    return cast(_F, called)


def _with(
    function: Callable[..., Any], args: Any, kwargs: dict[str, Any], tensors: list[Tensor]
) -> Any:
    """What the function gives for other tensors in the place of those among the arguments."""
    rest = iter(tensors)

    def given(value: Any) -> Any:
        if type(value) is tuple or type(value) is list:
            return type(value)(map(given, value))
        return next(rest) if hasattr(value, "_lazy") else value

    positional = [given(value) for value in args]
    return function(*positional, **{name: given(value) for name, value in kwargs.items()})
