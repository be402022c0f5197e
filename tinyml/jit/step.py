"""A captured step: launches in order, and the memory that they run on.

argument   the buffer that the caller gives, bound anew in each replay
state      a buffer of a tensor that lives outside: read, or assigned to in place
output     new memory in each replay, because the caller may keep it
interim    memory of the step; what never lives together shares it
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from tinyml import lazy, ledger
from tinyml import realize as realizing
from tinyml.autograd import Moment, mode
from tinyml.device import open_device
from tinyml.dtype import DType
from tinyml.errors import JitError
from tinyml.frozen import dataclass
from tinyml.functional.random_ import WORD, generator
from tinyml.functional.views import Move, read, root_of
from tinyml.jit.kept_gradients import Kept, KeptGradients, check_required
from tinyml.jit.outside import Somebodys, State
from tinyml.jit.record import RESET, Launch
from tinyml.jit.watch import Watch
from tinyml.launch import NativePlan, execute, make, native, watched
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ledger import memory
from tinyml.plan import NewBuffer
from tinyml.roster import Bell
from tinyml.runtime.machine import Buffer
from tinyml.tensor import Tensor
from tinyml.turn import turn

MANY = 8  # arguments that are worth asking which of them are others than last time
_node: Callable[[Tensor], LazyBuffer] = attrgetter("_lazy")
_view: Callable[[Tensor], object] = attrgetter("_view")

# ---- what a step is made of ----


@dataclass(frozen=True)
class Alias:
    """A result with the memory of an argument, or of a state."""

    of: int | State  # the argument's number


@dataclass(frozen=True)
class Fresh:
    """A result that is computed. `followers` are tensors outside that hold it, too.

    It may be the gradient `of` some.
    """

    number: int
    shape: Shape
    dtype: DType
    device: str
    followers: tuple[Somebodys, ...]
    of: tuple[Somebodys, ...]


@dataclass(frozen=True)
class Constant:
    """A result that the function made of values of the host."""

    values: npt.NDArray[Any]  # in storage dtype
    dtype: DType
    device: str


@dataclass(frozen=True)
class Shown:
    """A result that is an argument or a tensor from outside, or a view of it if there are moves."""

    of: int | Tensor  # the argument's number
    moves: tuple[Move, ...]

    def read(self, inputs: Sequence[Tensor], _: Sequence[Tensor]) -> Tensor:
        return read(inputs[self.of] if isinstance(self.of, int) else self.of, self.moves)


@dataclass(frozen=True)
class Within:
    """A result that is a view of another result, or the same tensor if there are no moves."""

    of: int  # the other one's number
    moves: tuple[Move, ...]

    def read(self, _: Sequence[Tensor], results: Sequence[Tensor]) -> Tensor:
        return read(results[self.of], self.moves)


Result = Alias | Fresh | Constant | Shown | Within


@dataclass
class Parts:
    """All that a capture found."""

    launches: list[Launch]
    buffers: list[NewBuffer]  # by number
    arguments: list[int | None]  # per tensor argument: its buffer, None if it is not used
    own_arguments: list[tuple[int, Somebodys]]  # whose gradients the step writes
    counters: list[int | None]  # per draw: its buffer, if it is used
    states: list[State]
    results: list[Result]
    hidden: int  # so many of the results, the first, are there for others to be views of
    flagged: list[Somebodys]  # whose requires_grad the function sets itself
    gradients: list[Kept]
    required: tuple[bool, ...]  # who of the arguments did, if the function finds gradients
    recorded: bool | None  # whether ops were, if it does
    assumed: Watch = field(default_factory=Watch)

    def reads(self) -> list[Tensor]:
        """Who holds what the step reads from outside."""
        return [t for state in self.states if state.read for t in state.alive()]


# ---- memory of the step ----


class Span(Buffer):
    """A part of another buffer's memory, `offset` bytes from its beginning."""

    __slots__ = ("_offset", "_owner")

    def __init__(self, owner: Buffer, size: int, dtype: DType, offset: int = 0) -> None:
        super().__init__(owner.machine, size, dtype)
        self._owner, self._offset = owner, offset

    @property
    def memory(self) -> int:
        return self._owner.memory + self._offset


def share_memory(launches: Sequence[Launch], interim: dict[int, NewBuffer]) -> dict[int, Buffer]:
    """Memory for buffers that only the step uses; those that never live together share it.

    The largest are placed first, each into the first memory that is free for as long as it lives.
    """
    lives: dict[int, tuple[int, int]] = {}
    for time, launch in enumerate(launches):
        for number in launch.buffers:
            lives[number] = lives.get(number, (time, time))[0], time
    placed: dict[str, list[tuple[Buffer, list[tuple[int, int]]]]] = {}
    found: dict[int, Buffer] = {}
    for number in sorted(interim, key=lambda n: -interim[n].size * interim[n].dtype.itemsize):
        new, (first, last) = interim[number], lives[number]
        blocks = placed.setdefault(new.device, [])
        free = [b for b in blocks if all(last < start or end < first for start, end in b[1])]
        if not free:
            free = [(make(new), [])]
            blocks += free
        free[0][1].append((first, last))
        found[number] = Span(free[0][0], new.size, new.dtype)
    return found


class Counters:
    """The counters of a step's draws, side by side: Python costs nothing per draw."""

    _WORDS = 16  # of each: it begins as aligned as memory of its own

    def __init__(self, parts: Parts, table: list[Buffer | None]) -> None:
        """Memory for the counters, which is what `table` has for them from now on."""
        count = len(parts.counters)
        self._values = np.zeros((count, self._WORDS), np.uint32)
        self._steps, self._numbers = np.arange(count, dtype=np.uint32), self._values[:, 2]
        self._seed: int | None = None  # whose words are there
        self._blocks: dict[str, Buffer] = {}  # of each device all, that each is written at once
        for draw, number in enumerate(parts.counters):
            if number is not None:
                new = parts.buffers[number]
                machine = open_device(new.device).machine
                block = Buffer(machine, self._values.size, new.dtype)
                block = self._blocks.setdefault(new.device, block)
                offset = draw * self._values.strides[0]
                table[number] = Span(block, new.size, new.dtype, offset)

    def advance(self) -> None:
        """The next draws, in order."""
        if self._seed != generator.seed:
            self._seed = generator.seed
            self._values[:, :2] = generator.seed_words
        first = generator.advance(len(self._steps))
        np.add(self._steps, np.uint32(first & WORD), out=self._numbers)
        for block in self._blocks.values():
            block.write(self._values)


# ---- running the launches ----


class _Runner:
    """Launches on a table of buffers: in one go where the machine can, otherwise one by one."""

    def __init__(self, launches: list[Launch], table: list[Buffer | None]) -> None:
        self._launches = launches
        self._table = table
        memories = [[b.memory for n in x.buffers if (b := table[n]) is not None] for x in launches]
        self._plan = native([launch.call for launch in launches], memories)
        self._addresses = [b.memory if self._plan and b else None for b in table]
        self._places: list[list[tuple[int, int]]] = [[] for _ in table]
        for call, launch in enumerate(launches):
            for slot, number in enumerate(launch.buffers):
                self._places[number].append((call, slot))

    def bind(self, number: int, buffer: Buffer) -> None:
        """Run on this buffer from now on."""
        self._table[number] = buffer
        if self._plan is not None:
            self._point(self._plan, number, buffer.memory)

    def _point(self, plan: NativePlan, number: int, address: Any) -> None:
        self._addresses[number] = address
        for call, slot in self._places[number]:
            plan.rebind(call, slot, address)

    @property
    def is_native(self) -> bool:
        """Whether a run is one call, on addresses that stay bound."""
        return self._plan is not None and not watched()

    def run(self, given: Sequence[tuple[int, Buffer]]) -> None:
        """Issue all launches, on these buffers in place of those of the table."""
        plan, addresses = self._plan if self.is_native else None, self._addresses
        if plan is not None:
            for number, buffer in given:
                address = buffer.memory
                if addresses[number] != address:
                    self._point(plan, number, address)
            plan.run()
            return
        turn.hold()
        table = [*self._table]
        for number, buffer in given:
            table[number] = buffer
        for launch in self._launches:
            execute(launch.call, [b for n in launch.buffers if (b := table[n]) is not None])


# ---- the step ----


class Step:
    """Launches that can be run again, with other arguments."""

    def __init__(
        self, parts: Parts, table: list[Buffer | None], held: Iterable[Tensor] = ()
    ) -> None:
        """`table` has a buffer of the right size for each number that is used, but no counters."""
        self.parts, self.table, self._held = parts, table, tuple(held)
        self._counters = Counters(parts, table) if parts.counters else None
        self._runner = _Runner(parts.launches, table)
        numbered = [(n, i) for i, n in enumerate(parts.arguments) if n is not None]
        self._first = dict(reversed(numbered))  # of each buffer, the first argument that has it
        self._repeated = [(self._first[n], i) for n, i in numbered if self._first[n] != i]
        written = {n for launch in parts.launches for n in launch.writes}
        self._written_arguments = [i for n, i in self._first.items() if n in written]
        self._written_states = [s for s in parts.states if s.written]
        followed = any(isinstance(r, Fresh) and r.followers for r in parts.results)
        self._writes = bool(self._written_arguments or self._written_states)
        self._assigns = self._writes or followed
        self._checks = any((parts.own_arguments, self._repeated, self._writes))
        self._number_of = {i: n for n, i in self._first.items()}
        self._seen: list[weakref.ref[LazyBuffer] | None] = []  # arguments that are bound
        fresh = {r.number: r for r in parts.results if isinstance(r, Fresh)}
        self._fresh = [
            (r, parts.buffers[n].size, open_device(r.device).machine) for n, r in fresh.items()
        ]
        for number in (*self._first, *fresh):
            table[number] = None  # not ours to hold: each run is given another one
        self._bell, self._moment = Bell(), Moment()
        self._gradients = KeptGradients(parts.gradients)
        self._states_known()

    def changed(self, inputs: list[Tensor]) -> Sequence[int]:
        """Which arguments are not those that the last replay bound, as a model's tensors are.

        To ask takes a third of the time that it takes to bind many. What views show may change.
        """
        seen = self._seen
        if not seen or not self._runner.is_native or any(map(_view, inputs)):
            return range(len(inputs))
        now = map(weakref.ref, map(_node, inputs))  # a node that lives has one such reference
        return [i for i, reference in enumerate(now) if reference is not seen[i]]

    def replay(self, inputs: list[Tensor], changed: Sequence[int] | None = None) -> list[Tensor]:
        """Run all launches on these (realized) arguments, of which so many have `changed`."""
        if changed is None or not self._runner.is_native:
            changed = range(len(inputs))
        seen, self._seen = self._seen, []
        buffers = {i: memory[inputs[i]._lazy] for i in changed}  # type: ignore[index]
        if self._checks or self.parts.recorded is not None:
            self._check_arguments(inputs, buffers)
        self.parts.assumed.check()
        set_gradients = self._gradients.check()
        if self._bell.rung or self._deaf:
            self._check_trained()
            holders = [ref() for ref in self._references]
            if [None if t is None else t.lazy for t in holders] != self._nodes:
                self._find_states()
        if self._writes:
            self._keep_values(inputs, buffers)
        self._bell.rung = False
        if self._counters is not None:
            self._counters.advance()
        numbers = self._number_of
        given = [(numbers[i], buffer) for i, buffer in buffers.items() if i in numbers]
        for fresh, size, machine in self._fresh:
            given.append((fresh.number, Buffer(machine, size, fresh.dtype)))
        try:
            self._runner.run(given)
        finally:  # of what was written before a fault, too
            if self._assigns:
                self._moment.now()
                for i in self._written_arguments:
                    inputs[i]._assigned = self._moment.clock
        if set_gradients and self._gradients.set():
            self._states_known()
        if len(inputs) >= MANY and not self._checks and self._runner.is_native:
            seen = seen or [None] * len(inputs)
            for i in changed:
                seen[i] = weakref.ref(inputs[i]._lazy)
            self._seen = seen
        return self._results(inputs, dict(given))

    # -- arguments --

    def _check_arguments(self, inputs: list[Tensor], buffers: dict[int, Buffer]) -> None:
        for i, reference in self.parts.own_arguments:
            if inputs[i] is not reference():
                raise JitError(
                    f"tensor argument {i} received a gradient when the function was captured, "
                    "and is another tensor now, whose .grad a replay would not set. Return "
                    f"loss.gradient(x) instead of calling backward(). {RESET}"
                )
        if (recorded := self.parts.recorded) is not None:
            check_required(inputs, self.parts.required, recorded, buffers, self._state_ids)
        for first, i in self._repeated:
            if buffers[first] is not buffers[i]:
                raise JitError(
                    f"tensor arguments {first} and {i} were one tensor when the function was "
                    f"captured, and are two now. {RESET}"
                )
        if self._writes:
            self._check_written(inputs, {i: id(buffers[i]) for i in self._first.values()})

    def _check_written(self, inputs: list[Tensor], ids: dict[int, int]) -> None:
        """JitError if what is written is, or has become, what another one reads."""
        for i in self._written_arguments:
            if root_of(inputs[i]) is not None:
                raise JitError(
                    f"the function assigns to tensor argument {i}, and it is a view of another "
                    f"tensor now: a replay would not write to that. Pass the tensor itself. {RESET}"
                )
            for j, other in ids.items():
                if other == ids[i] and i != j:
                    self._shared(f"tensor arguments {i} and {j}")
        for i, own in ids.items():
            if own in self._written_ids:
                self._shared(f"tensor argument {i} and a tensor that the function assigns to")
            if i in self._written_arguments and own in self._state_ids:
                self._shared(f"tensor argument {i} and a tensor that the function reads")
        written = self._written_ids.union([ids[i] for i in self._written_arguments])
        for i, root in enumerate(map(root_of, inputs)):
            node = None if root is None else root.lazy
            if isinstance(node, lazy.Data) and id(memory[node]) in written:
                self._shared(f"tensor argument {i}, a view, and a tensor that is assigned to")

    @staticmethod
    def _shared(who: str) -> None:
        raise JitError(
            f"{who} share memory now, and did not when the function was captured; one of them is "
            f"assigned to. Pass a .clone(), or {RESET[0].lower()}{RESET[1:]}"
        )

    # -- states --

    def _check_trained(self) -> None:
        """An optimizer that is called anew lets those rest that are frozen now, and no others."""
        for reference, then in self._trained:
            tensor = reference()
            if tensor is not None and bool(tensor._requires_grad) is not then:
                raise JitError(
                    f"requires_grad of a tensor {tensor.shape} that the function uses was {then} "
                    f"when captured, and is {tensor._requires_grad} now. {RESET}"
                )

    def _find_states(self) -> None:
        """Some tensor outside was assigned to, replaced or forgotten: find its memory."""
        for state in self.parts.states:
            holders = state.alive()
            if not holders:
                if state.read:
                    new = self.parts.buffers[state.number]
                    raise JitError(
                        f"a tensor that the function reads ({new.dtype}, {new.size} elements, on "
                        f"{new.device}) was replaced by another object after the capture. assign() "
                        "to a tensor instead of replacing it (of gradients, zero_grad(set_to_none="
                        f"False) does). {RESET}"
                    )
                continue
            Tensor.realize(*holders)
            found = {id(b): b for b in (memory[t.lazy] for t in holders)}  # type: ignore[index]
            if id(state.buffer) in found:
                continue
            buffer = found.popitem()[1]
            spec = NewBuffer(buffer.size, buffer.dtype, buffer.machine.name)
            if found or spec != self.parts.buffers[state.number]:
                raise JitError(
                    f"a tensor that the function uses had {self.parts.buffers[state.number]} "
                    f"when captured, and has {spec} now. {RESET}"
                )
            state.buffer = buffer
            self._runner.bind(state.number, buffer)
        self._states_known()

    def _states_known(self) -> None:
        """Remember who holds what, so that a replay sees quickly that it is still so."""
        held = [t for state in self.parts.states for t in state.alive()]
        self._references = [weakref.ref(t, self._bell.ring) for t in held]
        self._nodes: list[LazyBuffer | None] = [t.lazy for t in held]
        assigned = [t for state in self._written_states for t in state.alive()]
        self._writers = set(map(id, assigned))
        flagged = {id(reference()) for reference in self.parts.flagged}
        updated = {*assigned, *self._gradients.tensors()}
        trained = [t for t in updated if t._requires_grad and id(t) not in flagged]
        frozen = [t for t in held if t._requires_grad is False and id(t) not in flagged]
        frozen = frozen if trained else []
        self._trained = [(weakref.ref(t), bool(t._requires_grad)) for t in (*trained, *frozen)]
        self._state_ids = frozenset(id(state.buffer) for state in self.parts.states)
        self._written_ids = frozenset(id(state.buffer) for state in self._written_states)
        for tensor in assigned:
            if self._moment not in tensor._moments:
                tensor._moments += (self._moment,)
        shown = [root for t in held if (root := root_of(t)) is not None]
        leaves = [leaf for t in {*held, *shown} if isinstance(leaf := t.lazy, lazy.Data)]
        self._deaf = len(leaves) < len({*held, *shown})  # what else changes rings no bell
        for leaf in leaves:
            leaf.readers.hang(self._bell)
        self._bell.ring()  # whatever was pending until now may read what is written

    def _keep_values(self, inputs: list[Tensor], buffers: dict[int, Buffer]) -> None:
        """Whoever outside still wants the values that this replay overwrites gets them now."""
        if self._written_arguments:
            writers = self._writers | {id(inputs[i]) for i in self._written_arguments}
            written = self._written_ids | {id(buffers[i]) for i in self._written_arguments}
            realizing.keep_values(written, writers)
        elif self._bell.rung or ledger.pending_readers(self._written_ids):
            realizing.keep_values(self._written_ids, self._writers)

    # -- results --

    def _results(self, inputs: list[Tensor], given: dict[int, Buffer]) -> list[Tensor]:
        leaves: dict[int, lazy.Data] = {}
        for fresh, _, _ in self._fresh:
            leaves[fresh.number] = _leaf(fresh, given[fresh.number])
        results: list[Tensor] = []
        for result in self.parts.results:
            match result:
                case Fresh(number=number):
                    results.append(Tensor._of(leaves[number]))
                case Alias(of=of):
                    holder = inputs[of] if isinstance(of, int) else of.alive()[0]
                    results.append(Tensor._of(holder.lazy))
                case Shown() | Within():
                    results.append(result.read(inputs, results))
                case Constant(values=values, dtype=dtype, device=device):
                    results.append(Tensor._of(realizing.upload(values, dtype, device)))
        return results[self.parts.hidden :]


def _leaf(fresh: Fresh, buffer: Buffer) -> lazy.Data:
    """A leaf that shows what was computed, which those who held it before hold now."""
    leaf = lazy.data(fresh.shape, fresh.dtype, fresh.device)
    memory[leaf] = buffer
    for reference in fresh.followers:
        if (follower := reference()) is not None:
            follower.lazy = leaf
            follower._assigned = mode.assignments
    for reference in fresh.of:
        tensor = reference()
        if tensor is not None and (tensor._grad is None or tensor._grad._lazy is not leaf):
            tensor._grad = Tensor._of(leaf)
            mode.gradients_set += 1
    return leaf
