"""Capture: run a function once, watch what it does, and make a Step of it.

What each buffer is follows from who holds it after the call. A tensor from before the call that
holds another node then was assigned to, or is treated so: a step can only write memory.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from tinyml import lazy, ledger
from tinyml.autograd import mode
from tinyml.errors import JitError
from tinyml.functional import views
from tinyml.functional.views import root_of
from tinyml.graph import toposort
from tinyml.jit import outside
from tinyml.jit.kept_gradients import cleared, kept
from tinyml.jit.outside import Before, Somebodys, State, prepare
from tinyml.jit.record import Launch, Outline, Recording, capturing, needed, record
from tinyml.jit.step import Alias, Constant, Fresh, Parts, Result, Shown, Step, Within, share_memory
from tinyml.jit.structure import flatten
from tinyml.lazy import Data
from tinyml.ledger import memory
from tinyml.tensor import Tensor


class Captured(NamedTuple):
    """What a call gave, and what is known since."""

    results: list[Tensor]
    structure: Any  # of the results
    step: Step | None  # gives them again
    outline: Outline
    used: list[weakref.ref[Tensor]]
    left: list[weakref.ref[Tensor]]  # behind, by the function
    obstacle: str  # why there is no step


def capture(
    function: partial[Any],
    inputs: list[Tensor],
    used: list[weakref.ref[Tensor]],
    left: list[weakref.ref[Tensor]],
    names: Mapping[int, str],
) -> Captured:
    """Call `function`, which used these tensors in its last call, and left these behind.

    There is no step if the call depends on what another thread assigned meanwhile, or on tensors
    without memory of their own that the call before did not use: then a later call captures.
    """
    prepare(inputs, [t for reference in used if (t := reference()) is not None])
    growing = outside.Growing(left)
    before, grads, clock = Before(inputs), [t._grad for t in inputs], mode.assignments
    capturing.active = True
    try:
        with record(True, before.buffers) as recording, views.steady(inputs):
            results, hidden, structure = _call(function, inputs, before, recording)
            _check_arguments_unchanged(inputs, clock)
            gc.collect()  # so that what is still there is what the function left behind
            _realize_changes(results, before, recording)
            growing.check(function.func, names, recording.left())
    finally:
        capturing.active = False
    if not recording.launches:
        raise JitError(_NOTHING)
    own = _given_gradients(inputs, grads)
    outline, analysis = recording.outline(), _Analysis(recording, before, inputs, results)
    given = [r.of for r in results if isinstance(r, Shown) and isinstance(r.of, Tensor)]
    obstacle = ""
    if recording.disturbed or recording.foreign & analysis.wanted:
        obstacle = "it uses what another thread assigns to meanwhile"
    elif any(before.leaf(t) is None for t in given) or not before.was_ready(recording):
        obstacle = outside.unready(recording)
    step = None if obstacle else analysis.step(own, hidden)
    used = [*outside.used(recording), *map(weakref.ref, given)]
    left = list(map(weakref.ref, recording.left()))
    tensors = _tensors(results, inputs)[hidden:]
    return Captured(tensors, structure, step, outline, used, left, obstacle)


_NOTHING = (
    "the function launched nothing while it was captured: its results do not depend on anything "
    "that is computed in it with tensors (numpy computes with arrays: pass Tensors)"
)


def _given_gradients(
    inputs: list[Tensor], before: list[Tensor | None]
) -> list[tuple[int, Somebodys]]:
    pairs = enumerate(zip(inputs, before, strict=True))
    return [
        (i, Somebodys(t)) for i, (t, old) in pairs if t._grad is not None and t._grad is not old
    ]


def _tensors(results: list[_Raw], inputs: list[Tensor]) -> list[Tensor]:
    found: list[Tensor] = []
    for result in results:
        found.append(result if isinstance(result, Tensor) else result.read(inputs, found))
    return found


# a result before it is known where its memory comes from
_Raw = Shown | Within | Tensor


def _call(
    function: Callable[[], Any], inputs: list[Tensor], before: Before, recording: Recording
) -> tuple[list[_Raw], int, Any]:
    """Call the function: its results, how many of them are hidden, and their structure.

    A computed result becomes a tensor of ours, cut off from its graph.
    """
    found: list[Tensor] = []
    recording.required, walks = tuple([bool(t._requires_grad) for t in inputs]), mode.walks
    structure = flatten(function(), found, in_order=True)
    recording.recorded = mode.recording if mode.walks > walks else None
    numbers = {id(t): i for i, t in reversed(list(enumerate(inputs)))}
    raw: list[_Raw] = []
    for tensor in found:
        if id(tensor) in numbers:
            raw.append(Shown(numbers[id(tensor)], ()))
        elif before.had(tensor):
            raw.append(Shown(tensor, ()))
        else:
            raw.append(_as_view(tensor, numbers, inputs, before) or tensor)
    roots = _common_roots([r for r in raw if isinstance(r, Tensor)], before)
    order = {id(root): number for number, root in enumerate(roots)}
    results: list[_Raw] = [Tensor._of(root.lazy) for root in roots]
    for result in raw:
        if isinstance(result, Tensor):
            root, moves = views.shown_by(result)
            of = order.get(id(root))
            result = Tensor._of(result.lazy) if of is None else Within(of, moves)
        results.append(result)
    return results, len(roots), structure


def _common_roots(computed: list[Tensor], before: Before) -> list[Tensor]:
    """What several results are views of, or are: they have memory in common."""
    roots = [views.shown_by(tensor)[0] for tensor in computed]
    times = Counter(map(id, roots))
    common = {id(r): r for r in roots if times[id(r)] > 1 and before.leaf(r) is None}
    return list(common.values())


def _as_view(
    tensor: Tensor, numbers: dict[int, int], inputs: list[Tensor], before: Before
) -> Shown | None:
    """A result that shows what an argument holds, or a tensor that was there before."""
    root, moves = views.shown_by(tensor)
    ours = not before.has(tensor)
    if root is tensor or (ours and any(root_of(t) is root for t in inputs)):
        return None  # which of an argument's elements it shows can differ from call to call
    if id(root) in numbers:
        return Shown(numbers[id(root)], moves)
    return Shown(root, moves) if before.had(root) else None


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


def _realize_changes(results: list[_Raw], before: Before, recording: Recording) -> None:
    ours = [r for r in results if isinstance(r, Tensor)]
    changed = outside.constant_gradients(recording)
    for tensor in filter(recording.changed, _all_tensors(before)):
        leaf = before.leaf(tensor)
        if leaf is None:
            if not isinstance(tensor.lazy, Data) and _is_new(tensor, before):
                changed.append(tensor)
        elif tensor.lazy is not leaf:
            _as_assignment(tensor, leaf)
            changed.append(tensor)
    Tensor.realize(*ours, *changed) if ours or changed else None


def _all_tensors(before: Before) -> list[Tensor]:
    pending = [t for t in ledger.pending() if isinstance(t, Tensor)]
    references = [reference for reference, _ in list(before.leaves.values())]
    held = [t for reference in references if (t := reference()) is not None]
    return list({id(t): t for t in [*held, *pending] if root_of(t) is None}.values())


def _is_new(tensor: Tensor, before: Before) -> bool:
    """Whether a tensor that is not real yet must be made so."""
    waiting = before.waiting(tensor)
    if waiting is not None and waiting is not tensor.lazy:
        raise JitError(
            f"the function assigns to a tensor {tensor.shape} that was a constant without memory "
            "when it was called; call .realize() on it before"
        )
    return ledger.has_data(tensor.lazy)


def _as_assignment(tensor: Tensor, leaf: Data) -> None:
    """Turn a tensor's new node into an assignment to the memory that it had."""
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
        self, recording: Recording, before: Before, inputs: list[Tensor], results: list[_Raw]
    ) -> None:
        self.recording, self.before, self.inputs, self.results = recording, before, inputs, results
        shown = self._shown_memory()
        self.buffers = {number: buffer for buffer, number in recording.numbers.items()}
        self.arguments = [self._number(t) for t in inputs]
        self.holders = self._find_holders()
        self.launches, self.wanted = needed(recording.launches, self._roots())
        read_first, written = _access(self.launches)
        # no kernel writes what has no elements, and nobody may hold it any more
        read_first -= {n for n, b in enumerate(recording.buffers) if not b.size}
        self.written = written & self.wanted
        self.read_first = read_first & self.wanted | shown - self.written

    def step(self, own_arguments: list[tuple[int, Somebodys]], hidden: int) -> Step:
        """The step, with memory of its own for what nobody else holds."""
        used = self.read_first | self.written
        arguments = [n if n in used else None for n in self.arguments]
        counters = [self._counter(event.leaf) for event in self.recording.draws]
        states, buffers = self._states(used), self.recording.buffers
        gradients = outside.gradients()
        results = [self._result(r, states, gradients) for r in self.results]
        numbered = self.launches, buffers, arguments, own_arguments, counters
        said = [Somebodys(t) for r in self.recording.flagged.values() if (t := r()) is not None]
        whose = [of for r in results if isinstance(r, Fresh) for of in r.of]
        known = kept(states.values(), gradients, whose, self.before.trained)
        known += cleared(self.recording.graded.values(), self.before.trained)
        grads = known, self.recording.required, self.recording.recorded
        parts = Parts(*numbered, list(states.values()), results, hidden, said, *grads)
        fresh = {r.number for r in results if isinstance(r, Fresh)}
        idle = {n for launch in self.launches for n in launch.buffers} - used
        interim = used - set(states) - fresh - self.read_first - set(self.arguments) | idle
        own = {n: self.buffers[n] for n in used - interim}
        own |= share_memory(self.launches, {n: buffers[n] for n in interim})
        return Step(parts, [own.get(n) for n in range(len(buffers))])

    def _shown_memory(self) -> set[int]:
        """Buffers that were there before and are results, though perhaps no launch uses them.

        Of the arguments those that are given twice: a replay is to ask whether they still are.
        """
        shown = {r.of for r in self.results if isinstance(r, Shown) and isinstance(r.of, int)}
        twice = Counter(map(id, self.inputs))
        given = [t for i, t in enumerate(self.inputs) if i in shown and twice[id(t)] > 1]
        leaves = [r.lazy for r in [*self.results, *given] if isinstance(r, Tensor)]
        buffers = [memory[leaf] for leaf in leaves if isinstance(leaf, Data)]
        return {self.recording.number(b) for b in buffers if b in self.before.buffers}

    def _number(self, tensor: Tensor) -> int | None:
        leaf = tensor.lazy
        assert isinstance(leaf, Data)
        return self.recording.numbers.get(memory[leaf])

    def _counter(self, leaf: Data) -> int | None:
        """The buffer of a random counter, if the step reads it."""
        number = self.recording.numbers.get(memory[leaf])
        return number if number in self.read_first else None

    def _find_holders(self) -> dict[int, list[Tensor]]:
        """Tensors of others by the number of the buffer that they hold."""
        excepted = {id(t) for t in [*self.results, *self.inputs]}
        holders: dict[int, list[Tensor]] = {}
        for leaf, buffer in ledger.in_memory():
            number = self.recording.numbers.get(buffer)
            if number is not None:
                found = [t for t in outside.holders(leaf) if id(t) not in excepted]
                found = [t for t in found if self._is_ours(t, leaf)]
                holders.setdefault(number, []).extend(found)
        return {number: tensors for number, tensors in holders.items() if tensors}

    def _is_ours(self, tensor: Tensor, leaf: Data) -> bool:
        """Whether a tensor holds this since the function, or did before: not for another's sake."""
        return self.before.leaf(tensor) is leaf or self.recording.changed(tensor)

    def _roots(self) -> set[int]:
        """Buffers that somebody sees after the step."""
        numbers = self.recording.numbers
        outside = {n for b in self.before.buffers if (n := numbers.get(b)) is not None}
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
            if not holders and number in self.read_first and buffer in self.before.held:
                self._replaced(number)
            if holders and buffer is not None and number not in constants - self.written:
                references = [Somebodys(t) for t in holders]
                read = number in self.read_first
                states[number] = State(number, buffer, references, read, number in self.written)
        return states

    def _computed_numbers(self) -> set[int]:
        """Buffers that are new, and results."""
        numbers = {self._number(r) for r in self.results if isinstance(r, Tensor)}
        old = {self.recording.numbers.get(b) for b in self.before.buffers}
        return {n for n in numbers - old - self.read_first if n is not None and n in self.written}

    def _replaced(self, number: int) -> None:
        new = self.recording.buffers[number]
        raise JitError(
            f"the function reads a tensor ({new.dtype}, {new.size} elements, on {new.device}) and "
            "puts another object in its place: a replay would read the old one again. assign() "
            "to a tensor instead of replacing it"
        )

    def _result(
        self, result: _Raw, states: dict[int, State], gradients: dict[int, Tensor]
    ) -> Result:
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
        followers = self.holders.get(number, [])
        of = tuple(Somebodys(gradients[id(t)]) for t in followers if id(t) in gradients)
        others = tuple(map(Somebodys, followers))
        return Fresh(number, node.shape, node.dtype, node.device, others, of)


def _access(launches: list[Launch]) -> tuple[set[int], set[int]]:
    """Buffers that are read before they are written, and those that are written."""
    read_first: set[int] = set()
    written: set[int] = set()
    for launch in launches:
        read_first |= launch.reads - written
        written |= launch.writes
    return read_first, written
