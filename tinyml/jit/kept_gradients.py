"""Gradients that a captured step leaves behind, or adds to: they are those of the same tensors.

A replay writes memory, and sets no `.grad`. Where somebody else set one since, as `zero_grad` does,
it is set again to what the replay has written; what a replay would add to, or read, must be there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple
from weakref import ref as Reference

from tinyml import lazy
from tinyml.autograd import mode
from tinyml.errors import JitError
from tinyml.jit.outside import Somebodys, State
from tinyml.jit.record import RESET
from tinyml.ledger import memory
from tinyml.runtime.machine import Buffer
from tinyml.tensor import Tensor


class Kept(NamedTuple):
    """A gradient in the memory of a state, or without one a result, which sets it by itself."""

    state: State | None
    of: Somebodys
    added: bool  # there was none when the function was called: if there is one, it is added to
    is_cleared: bool = False  # by the function, which left none: whatever was there would be read


def kept(
    states: Iterable[State],
    gradients: dict[int, Tensor],
    results: Iterable[Somebodys],
    before: Collection[int],
) -> list[Kept]:
    """Which states are `gradients`, by `id`, and whose are results; `before` are who had some."""
    found = [
        Kept(state, Somebodys(of), id(of) not in before)
        for state in states
        for tensor in state.alive()
        if (of := gradients.get(id(tensor))) is not None
    ]
    return found + [Kept(None, of, id(of()) not in before) for of in results]


def check_required(
    inputs: Sequence[Tensor],
    required: tuple[bool, ...],
    recorded: bool,
    buffers: dict[int, Buffer],
    states: Collection[int],
) -> None:
    """JitError if a gradient would go to other arguments than it went to in the capture.

    Or to one that has the memory of a state, by `id`, which the function knows by another name, or
    to none or to some, as ops are recorded or not.
    """
    if mode.recording is not recorded:
        raise JitError(
            "the function finds gradients, and ops were "
            f"{'' if recorded else 'not '}recorded when it was captured, which they are "
            f"{'not ' if recorded else ''}now (no_grad). {RESET}"
        )
    if tuple(map(bool, map(_flag, inputs))) != required:
        i = next(n for n, then in enumerate(required) if bool(_flag(inputs[n])) is not then)
        raise JitError(
            f"requires_grad of tensor argument {i} was {required[i]} when the function was "
            f"captured, which finds gradients, and is {not required[i]} now: pass a .detach(), or "
            f"use one TinyJit for each case. {RESET}"
        )
    for i, buffer in buffers.items():
        if required[i] and id(buffer) in states:
            raise JitError(
                f"tensor argument {i} is a tensor that the function finds gradients of by "
                f"another name, too, and was another one when the function was captured. {RESET}"
            )


_flag: Callable[[Tensor], bool | None] = attrgetter("_requires_grad")


def cleared(graded: Iterable[Reference[Tensor]], before: Collection[int]) -> list[Kept]:
    """Who had no gradient before and has none after, but had one in between."""
    alive = [t for reference in graded if (t := reference()) is not None and t._grad is None]
    return [Kept(None, Somebodys(t), True, True) for t in alive if id(t) not in before]


class KeptGradients:
    """Those of a step. They are looked at if any gradient was set since the last replay."""

    def __init__(self, every: list[Kept]) -> None:
        self._every = [one for one in every if not one.is_cleared]
        self._cleared = [one.of for one in every if one.is_cleared]
        self._adds = any(one.added for one in self._every)
        self._set = self._seen = -1

    def tensors(self) -> list[Tensor]:
        """Whose gradients they are."""
        return [t for one in self._every if (t := one.of()) is not None]

    def check(self) -> bool:
        """Whether some are to be set after this replay; JitError if they are not what they were."""
        if self._cleared and self._seen != mode.gradients_set:
            for of in self._cleared:
                if (tensor := of()) is not None and tensor._grad is not None:
                    raise _there_now(tensor)
            self._seen = mode.gradients_set
        if not self._every or (self._set == mode.gradients_set and not self._adds):
            return False
        for state, reference, added, _ in self._every:
            if (tensor := reference()) is None:
                continue
            now, reads = tensor._grad, state is not None and state.read
            if state is not None and reads and not any(now is t for t in state.alive()):
                raise JitError(
                    f"the gradient of a tensor {tensor.shape}, which the function reads, was "
                    "replaced by another after the capture: assign() to it (zero_grad(set_to_none="
                    f"False) does). {RESET}"
                )
            if added and not reads and now is not None:
                raise _there_now(tensor)
        return True

    def set(self) -> bool:
        """Let each be the gradient again; whether somebody holds a state anew."""
        anew = False
        for state, reference, *_ in self._every:
            tensor = reference()
            if tensor is None or state is None or state.read:
                continue
            alive = [t for t in state.alive() if t._view is None]
            if any(tensor._grad is t for t in alive):
                continue
            if not alive:
                leaf = lazy.data(tensor.shape, state.buffer.dtype, tensor.device)
                memory[leaf] = state.buffer
                alive, anew = [Tensor._of(leaf)], True
                state.holders.append(Somebodys(alive[0]))
            tensor._grad = alive[0]
            mode.gradients_set += 1  # for another step, whose gradient there was
        self._set = mode.gradients_set
        return anew


def _there_now(tensor: Tensor) -> JitError:
    return JitError(
        f"a tensor {tensor.shape} had no gradient when the function was captured, and has one now, "
        "which a replay would not add to: call zero_grad() before each call, or first of all "
        f"within the function. {RESET}"
    )
