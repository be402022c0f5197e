"""Capture: run a function once, watch what it does, and make a Step of it.

What outlives the function decides what each buffer is. A tensor that was there before and has
another node now was assigned to, or is made to have been: a step can only write memory.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tinyml import lazy, mlops
from tinyml import realize as realizing
from tinyml.autograd import mode
from tinyml.errors import JitError, TinymlError
from tinyml.functional import views
from tinyml.functional.views import root_of
from tinyml.graph import toposort
from tinyml.jit.record import Launch, Outline, Recording, capturing, needed, record
from tinyml.jit.step import (
    Alias,
    Constant,
    Fresh,
    Given,
    Held,
    Parts,
    Result,
    Shown,
    Somebodys,
    State,
    Step,
    share_memory,
)
from tinyml.jit.structure import flatten
from tinyml.lazy import Data, LazyBuffer
from tinyml.realize import memory
from tinyml.runtime.machine import Buffer
from tinyml.tensor import Tensor


class _Before:
    """The tensors that there were when a capture began."""

    def __init__(self) -> None:
        self.leaves: dict[int, tuple[weakref.ref[Tensor], Data]] = {}
        known = realizing.in_memory()
        for leaf, _ in known:
            for tensor in leaf.readers.members():
                if tensor.lazy is leaf:
                    self.leaves[id(tensor)] = weakref.ref(tensor), leaf
        self.constants: dict[int, tuple[weakref.ref[Any], LazyBuffer]] = {
            id(t): (weakref.ref(t), t.lazy) for t in realizing.pending()
        }
        self.buffers = {id(buffer): buffer for _, buffer in known}
        self.held = {id(memory[leaf]) for _, leaf in self.leaves.values()}

    def leaf(self, tensor: Any) -> Data | None:
        """The leaf that a tensor had; None if it was not there, or not real."""
        reference, leaf = self.leaves.get(id(tensor), (None, None))
        return leaf if reference is not None and reference() is tensor else None

    def constant(self, tensor: Any) -> LazyBuffer | None:
        """The node of a tensor that was a constant."""
        reference, node = self.constants.get(id(tensor), (None, None))
        return node if reference is not None and reference() is tensor else None


def capture(
    function: Callable[[], Any], inputs: list[Tensor]
) -> tuple[list[Tensor], Any, Step | None, Outline]:
    """Call `function`; its results and their structure, and the step that gives them again.

    There is none if it is made of what another thread assigned meanwhile.
    """
    _realize_pending()
    Tensor.realize(*inputs) if inputs else None
    _part_equals()
    _unrealize_views()
    before, grads, clock = _Before(), [t.grad for t in inputs], mode.assignments
    capturing.active = True
    try:
        with record(refuse_reads=True) as recording:
            results, structure = _call(function, inputs, before)
            _check_arguments_unchanged(inputs, clock)
            gc.collect()  # so that what is still there is what the function left behind
            _realize_changes(results, before, recording)
    finally:
        capturing.active = False
    if not recording.launches:
        raise JitError(
            "the function launched nothing while it was captured: its results do not depend on "
            "anything that is computed in it"
        )
    own = [
        (i, Somebodys(t))
        for i, t in enumerate(inputs)
        if t.grad is not None and t.grad is not grads[i]
    ]
    outline, analysis = recording.outline(), _Analysis(recording, before, inputs, results)
    disturbed = recording.disturbed or recording.foreign & analysis.wanted
    step = None if disturbed else analysis.step(own)
    tensors = [_tensor(r, inputs) for r in results]
    return tensors, structure, step, outline


def _tensor(result: _Raw, inputs: list[Tensor]) -> Tensor:
    match result:
        case Given(argument=i):
            return inputs[i]
        case Held(tensor=tensor):
            return tensor
        case Shown(of=root, moves=moves):
            return views.read(inputs[root] if isinstance(root, int) else root, moves)
    return result


def _realize_pending() -> None:
    """Compute what tensors outside say already: it is data for the step, not a part of it."""
    tensors = [t for t in _pending() if not t.follows and _has_data(t.lazy)]
    try:
        Tensor.realize(*tensors) if tensors else None
    except TinymlError:  # one cannot be computed: that is for whoever looks at it
        for tensor in tensors:
            with suppress(TinymlError):
                tensor.realize()


def _part_equals() -> None:
    """What has the same memory only because it was equal need not be so in the next call."""
    for leaf in list(memory):
        holders = [t for t in leaf.readers.members() if t.lazy is leaf and views.has_own(t)]
        for tensor in holders[1:]:
            (tensor.lazy,) = realizing.compute([mlops.Clone().forward(leaf)])


def _unrealize_views() -> None:
    """What a view has computed for itself is no state: a replay reads the root."""
    for leaf in list(memory):
        for tensor in leaf.readers.members():
            if tensor.lazy is leaf and tensor.follows:
                views.unrealize(tensor)


def _pending() -> list[Tensor]:
    return [t for t in realizing.pending() if isinstance(t, Tensor)]


def _has_data(node: LazyBuffer) -> bool:
    return any(isinstance(n, Data) for n in toposort([node]))


_Raw = Given | Held | Shown | Tensor  # a result before it is known where its memory comes from


def _call(
    function: Callable[[], Any], inputs: list[Tensor], before: _Before
) -> tuple[list[_Raw], Any]:
    """Call the function. A computed result becomes a tensor of ours, cut off from its graph."""
    found: list[Tensor] = []
    structure = flatten(function(), found, in_order=True)
    numbers = {id(t): i for i, t in reversed(list(enumerate(inputs)))}
    results: list[_Raw] = []
    for tensor in found:
        if id(tensor) in numbers:
            results.append(Given(numbers[id(tensor)]))
        elif before.leaf(tensor) is not None:
            results.append(Held(tensor))
        elif (shown := _as_view(tensor, numbers, inputs, before)) is not None:
            results.append(shown)
        else:
            results.append(Tensor._of(tensor.lazy))
    return results, structure


def _as_view(
    tensor: Tensor, numbers: dict[int, int], inputs: list[Tensor], before: _Before
) -> Shown | None:
    """A result that shows what an argument holds, or a tensor that was there before."""
    root = root_of(tensor)
    if root is None or tensor._view is None or any(root_of(t) is root for t in inputs):
        return None  # which of an argument's elements it shows can differ from call to call
    if id(root) in numbers:
        return Shown(numbers[id(root)], tensor._view.moves())
    return Shown(root, tensor._view.moves()) if before.leaf(root) is not None else None


def _check_arguments_unchanged(inputs: list[Tensor], clock: int) -> None:
    for i, tensor in enumerate(inputs):
        root = root_of(tensor)
        if root is not None and root._assigned > clock:
            raise JitError(
                f"tensor argument {i} is a view, and the function assigns to what it shows: a "
                "replay would write to the tensor of the capture. Pass the tensor itself, and "
                "index it in the function"
            )


# ---- making everything real that a replay must make again ----


def _realize_changes(results: list[_Raw], before: _Before, recording: Recording) -> None:
    ours = [r for r in results if isinstance(r, Tensor)]
    changed = []
    for tensor in filter(recording.changed, _all_tensors(before)):
        leaf = before.leaf(tensor)
        if leaf is None:
            if not isinstance(tensor.lazy, Data) and _is_new(tensor, before):
                changed.append(tensor)
        elif tensor.lazy is not leaf:
            _as_assignment(tensor, leaf)
            changed.append(tensor)
    Tensor.realize(*ours, *changed) if ours or changed else None


def _all_tensors(before: _Before) -> list[Tensor]:
    held = [t for reference, _ in before.leaves.values() if (t := reference()) is not None]
    return list({id(t): t for t in [*held, *_pending()] if not t.follows}.values())


def _is_new(tensor: Tensor, before: _Before) -> bool:
    """Whether a tensor that is not real yet must be made so."""
    constant = before.constant(tensor)
    if constant is not None and constant is not tensor.lazy:
        raise JitError(
            f"the function assigns to a tensor {tensor.shape} that was a constant without memory "
            "when it was called; call .realize() on it before"
        )
    return _has_data(tensor.lazy)


def _as_assignment(tensor: Tensor, leaf: Data) -> None:
    """Make a tensor with a new node one that was assigned to."""
    node, buffer = tensor.lazy, memory[leaf]
    target = lazy.assigned(node)
    if isinstance(target, Data) and memory[target] is buffer:
        return
    if (node.shape, node.dtype, node.device) != (leaf.shape, leaf.dtype, leaf.device):
        raise JitError(
            f"the function turns a {leaf.dtype} tensor {leaf.shape} on {leaf.device} from outside "
            f"into a {node.dtype} one {node.shape} on {node.device}; a replay cannot"
        )
    versions = [n for n in toposort([node]) if isinstance(n, Data) and memory[n] is buffer]
    tensor.lazy = lazy.assign(versions[-1] if versions else leaf, node)


# ---- what each buffer is ----


class _Analysis:
    """Tells arguments, states, results and interim memory apart."""

    def __init__(
        self,
        recording: Recording,
        before: _Before,
        inputs: list[Tensor],
        results: list[_Raw],
    ) -> None:
        self.recording, self.before, self.inputs, self.results = recording, before, inputs, results
        shown = self._shown_memory()
        self.buffers = {number: buffer for buffer, number in recording.numbers.items()}
        self.arguments = [self._number(t) for t in inputs]
        self.holders = self._find_holders()
        self.launches, self.wanted = needed(recording.launches, self._roots())
        read_first, written = _access(self.launches)
        self.written = written & self.wanted
        self.read_first = read_first & self.wanted | shown - self.written

    def step(self, own_arguments: list[tuple[int, Somebodys]]) -> Step:
        """The step, with memory of its own for what nobody else holds."""
        used = self.read_first | self.written
        arguments = [n if n in used else None for n in self.arguments]
        parts = Parts(self.launches, self.recording.buffers, arguments, own_arguments)
        parts.counters = [self._counter(event.leaf) for event in self.recording.draws]
        states = self._states(used)
        parts.states = list(states.values())
        parts.results = [self._result(r, states) for r in self.results]
        table: list[Buffer | None] = [None] * len(self.recording.buffers)
        fresh = {r.number for r in parts.results if isinstance(r, Fresh)}
        idle = {n for launch in self.launches for n in launch.buffers} - used
        interim = used - set(states) - fresh - self.read_first - set(self.arguments) | idle
        for number, buffer in share_memory(
            self.launches, {n: self.recording.buffers[n] for n in interim}
        ).items():
            table[number] = buffer
        for number in used - interim:
            table[number] = self.buffers[number]
        return Step(parts, table)

    def _shown_memory(self) -> set[int]:
        """Buffers that were there before and are results, though perhaps no launch uses them."""
        leaves = [r.lazy for r in self.results if isinstance(r, Tensor)]
        buffers = [memory[leaf] for leaf in leaves if isinstance(leaf, Data)]
        return {self.recording.number(b) for b in buffers if id(b) in self.before.buffers}

    def _number(self, tensor: Tensor) -> int | None:
        leaf = tensor.lazy
        assert isinstance(leaf, Data)
        return self.recording.numbers.get(memory[leaf])

    def _counter(self, leaf: Data) -> Buffer | None:
        """The memory of a random counter, if the step reads it."""
        number = self.recording.numbers.get(memory[leaf])
        return memory[leaf] if number in self.read_first else None

    def _find_holders(self) -> dict[int, list[Tensor]]:
        """Tensors of others by the number of the buffer that they hold."""
        excepted = {id(t) for t in [*self.results, *self.inputs]}
        holders: dict[int, list[Tensor]] = {}
        for leaf, buffer in realizing.in_memory():
            number = self.recording.numbers.get(buffer)
            if number is not None:
                found = [t for t in leaf.readers.members() if t.lazy is leaf]
                found = [t for t in found if id(t) not in excepted and self._is_ours(t, leaf)]
                holders.setdefault(number, []).extend(found)
        return {number: tensors for number, tensors in holders.items() if tensors}

    def _is_ours(self, tensor: Tensor, leaf: Data) -> bool:
        """Whether a tensor holds this since the function, or did before: not for another's sake."""
        return self.before.leaf(tensor) is leaf or self.recording.changed(tensor)

    def _roots(self) -> set[int]:
        """Buffers that somebody sees after the step."""
        numbers = self.recording.numbers
        outside = {n for b in self.before.buffers.values() if (n := numbers.get(b)) is not None}
        computed = {self._number(r) for r in self.results if isinstance(r, Tensor)}
        seen = outside | set(self.holders) | {n for n in computed if n is not None}
        return seen - self.recording.foreign

    def _states(self, used: set[int]) -> dict[int, State]:
        arguments, fresh = set(self.arguments), self._computed_numbers()
        constants = {self.recording.numbers.get(memory[x]) for x in self.recording.constants()}
        states = {}
        for number in sorted(used - arguments - fresh):
            holders = self.holders.get(number, [])
            buffer = self.buffers.get(number)
            if not holders and number in self.read_first and id(buffer) in self.before.held:
                self._replaced(number)
            if holders and buffer is not None and number not in constants - self.written:
                references = [Somebodys(t) for t in holders]
                read = number in self.read_first
                states[number] = State(number, buffer, references, read, number in self.written)
        return states

    def _computed_numbers(self) -> set[int]:
        """Buffers that are new, and results."""
        numbers = {self._number(r) for r in self.results if isinstance(r, Tensor)}
        old = {self.recording.numbers.get(b) for b in self.before.buffers.values()}
        return {n for n in numbers - old - self.read_first if n is not None and n in self.written}

    def _replaced(self, number: int) -> None:
        new = self.recording.buffers[number]
        raise JitError(
            f"the function reads a tensor ({new.dtype}, {new.size} elements, on {new.device}) and "
            "puts another object in its place: a replay would read the old one again. assign() "
            "to a tensor instead of replacing it"
        )

    def _result(self, result: _Raw, states: dict[int, State]) -> Result:
        if not isinstance(result, Tensor):
            return result
        number, node = self._number(result), result.lazy
        if number is not None and number in self.arguments:
            return Alias(self.arguments.index(number))
        if number in states:
            assert number is not None
            states[number].read = True
            return Alias(states[number])
        if number is None or number not in self._computed_numbers():
            assert isinstance(node, Data)
            return Constant(memory[node].read().reshape(node.shape), node.dtype, node.device)
        followers = tuple(Somebodys(t) for t in self.holders.get(number, []))
        return Fresh(number, node.shape, node.dtype, node.device, followers)


def _access(launches: list[Launch]) -> tuple[set[int], set[int]]:
    """Buffers that are read before they are written, and those that are written."""
    read_first: set[int] = set()
    written: set[int] = set()
    for launch in launches:
        read_first |= launch.reads - written
        written |= launch.writes
    return read_first, written
