"""Optimizers: rules that turn gradients into new values of the parameters.

`step` assigns the new values of every parameter and of the optimizer's own state, and realizes
them all in one call, so that one launch can update many parameters. Everything that changes
from step to step is a Tensor, the learning rate too: a step works inside TinyJit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from tinyml import dtype as dt
from tinyml import lazy
from tinyml import realize as realizing
from tinyml.autograd import no_grad
from tinyml.device import Device
from tinyml.errors import ArgumentError, DeviceError, GradientError
from tinyml.functional import missing
from tinyml.functional.axes import check_flags, made_either_way, number, wrong_type
from tinyml.functional.gradients import is_leaf
from tinyml.functional.steps import composition
from tinyml.ledger import memory
from tinyml.ops import Movement
from tinyml.telling import Telling
from tinyml.tensor import Tensor


class Optimizer(Telling):
    """Base class: a subclass says in `_update` how far a parameter moves.

    A parameter whose `requires_grad` is None is trained, too: it is set to True here.
    Tensors with `requires_grad=False` among `params` (running averages of a batch norm) and those
    of integers are not optimized, but are realized in `step` with everything else. A parameter
    rests while its `requires_grad` is False.

    `fused` is there for programs written for tinygrad: a step is always one realize.
    """

    _whole = False  # of the classes here: nothing is set any more but what there is

    if not TYPE_CHECKING:  # else every name would be known
        __getattr__ = missing.no_part

        def __setattr__(self, name: str, value: Any) -> None:
            if self._whole:
                getattr(self, name)  # which says what to write if there is no such thing
            super().__setattr__(name, value)

    def __init_subclass__(cls) -> None:
        made_either_way(cls)

    def __init__(self, params: Sequence[Tensor], lr: float, fused: bool = False) -> None:
        params = _listed(type(self).__name__, params)
        _check_parameters(params)
        self._check_numbers(lr=lr)
        check_flags(type(self).__name__, fused=fused)
        self.params = [p for p in params if p.requires_grad is not False and p.dtype.is_float]
        self.buffers = [p for p in params if p.requires_grad is False or not p.dtype.is_float]
        if not self.params:
            raise ValueError(
                "an optimizer needs at least one parameter of floats that requires a gradient"
            )
        for p in self.params:
            p.requires_grad_()
        self.device = self.params[0].device
        self.fused = fused
        self._wide = dt.promote(*map(_wide, self.params))
        self._lr = _state((1,), self._wide, self.device, lr)
        self._make_state()
        for p in params:
            _give_memory(p)
        Tensor.realize(*params, self._lr, *self._kept())
        self._whole = type(self).__module__ == __name__

    @property
    def lr(self) -> Tensor:
        """The learning rate, shape (1,). Setting it reaches captured steps, too."""
        return self._lr

    @lr.setter
    def lr(self, value: float | Tensor) -> None:
        if not isinstance(value, Tensor):
            self._check_numbers(lr=value)
            # An array is uploaded. A number would be part of a kernel: a new one for each rate.
            value = Tensor(np.array([value], self._wide.compute), device=self.device)
        self._lr.assign(value.detach().cast(self._lr.dtype).reshape(1)).realize()

    def _check_numbers(self, **numbers: Any) -> None:
        for name, value in numbers.items():
            if not number(value, type(self).__name__, name) >= 0:  # nor is NaN
                raise ValueError(f"{type(self).__name__}: {name} cannot be negative, got {value}")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or let the tensors that they are be zeros."""
        for p in self.params:
            if set_to_none or p.grad is None:
                p.grad = None
            else:  # in place, for who holds it, as a TinyJit that adds to it
                p.grad.assign(p.grad.zeros_like())

    def step(self) -> None:
        """Give every parameter its next value."""
        Tensor.realize(*self.schedule_step())

    def schedule_step(self) -> list[Tensor]:
        """Assign the next values and return every tensor that is to be realized for them."""
        if not Tensor.training:
            raise RuntimeError(
                "an optimizer steps in training only (dropout and batch norm would be off): "
                "set Tensor.training = True, or use `with Tensor.train():`"
            )
        trained = [i for i, p in enumerate(self.params) if p.requires_grad is not False]
        gradients = [self._gradient(i) for i in trained]
        with no_grad():
            rate = self._lr.reshape(())
            self._before_updates(trained)
            for i, gradient in zip(trained, gradients, strict=True):
                p = self.params[i]
                p.assign((p - self._update(i, p, gradient, rate)).cast(p.dtype))
        return [*self._kept(), *self.params, *self.buffers]

    def _gradient(self, i: int) -> Tensor:
        p = self.params[i]
        if p.grad is None:
            raise GradientError(
                f"parameter {i} of {len(self.params)}, with shape {p.shape}, has no gradient: "
                "call backward() on a loss that depends on it before step(); or, if it is a mask "
                "or table that is not to be trained, write p.requires_grad_(False)"
            )
        return p.grad.detach().cast(_wide(p))

    def _make_state(self) -> None:
        """Set attributes to tensors that live from step to step, as a state dict names them."""

    def _kept(self) -> list[Tensor]:
        """All tensors that `_make_state` set, and those that joined them since."""
        return []

    def _per_parameter(self) -> list[Tensor]:
        return [_state(p.shape, _wide(p), p.device) for p in self.params]

    def _before_updates(self, trained: Sequence[int]) -> None:
        """What is done once in a step, in which these parameters are updated."""

    def _update(self, i: int, p: Tensor, gradient: Tensor, rate: Tensor) -> Tensor:
        """What is subtracted from parameter number i, whose value is p."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a method _update(i, p, gradient, rate)"
        )


def _listed(optimizer: str, params: Any) -> list[Tensor]:
    """The parameters as a list, in which one that is given twice is once."""
    if isinstance(params, (Tensor, Mapping)) or not isinstance(params, Iterable):
        raise ArgumentError(
            f"{optimizer}: the parameters must be a list of tensors, as "
            f"nn.state.get_parameters(model) gives it, not one {type(params).__name__}"
        )
    return list({id(p): p for p in params}.values())


def _check_parameters(params: Sequence[Any]) -> None:
    if not params:
        raise ValueError("an optimizer needs at least one parameter; the list is empty")
    seen: dict[int, int] = {}
    for i, p in enumerate(params):
        if not isinstance(p, Tensor):
            groups = "; for groups, write OptimizerGroup(SGD(some, 0.1), SGD(others, 0.01))"
            told = groups if isinstance(p, Mapping) else ""
            raise TypeError(f"parameter {i} must be a Tensor, got {type(p).__name__}{told}")
        if id(p) in seen:
            raise ValueError(
                f"parameters {seen[id(p)]} and {i}, with shape {p.shape}, are the same tensor: "
                "in a group, only one optimizer can update it"
            )
        seen[id(p)] = i
        if p.device != params[0].device:
            raise DeviceError(
                f"parameter {i} is on {p.device}, parameter 0 on {params[0].device}: "
                "use one optimizer for each device"
            )
        if p.requires_grad and not is_leaf(p) and not p._retains_grad:
            raise ValueError(
                f"parameter {i}, with shape {p.shape}, is computed from a tensor that requires a "
                "gradient, as .to() of a parameter is; take its .detach().requires_grad_()"
            )


def _wide(p: Tensor) -> dt.DType:
    """The dtype of a parameter's state: at least float32, so that small steps are not lost."""
    return dt.promote(p.dtype, dt.float32)


def _state(shape: tuple[int, ...], dtype: dt.DType, device: str, value: float = 0.0) -> Tensor:
    leaf = realizing.filled(shape, dtype, Device.canonical(device), value)
    return Tensor._of(leaf).requires_grad_(False)


def _give_memory(p: Tensor) -> None:
    """Parameters that begin with one number, or realized as such, have memory of their own. Equal
    ones would share it until the first step, which would thus be compiled by itself."""
    node = leaf = p.lazy
    while lazy.is_move(node, Movement.EXPAND, Movement.RESHAPE):
        node = node.sources[0]
    if p._followed is not None:
        return
    if isinstance(node, lazy.Const):
        p.lazy = realizing.filled(p.shape, p.dtype, p.device, node.value)
    elif isinstance(leaf, lazy.Data) and (buffer := memory[leaf]).several:
        p.lazy = realizing.upload(buffer.read().reshape(p.shape), p.dtype, p.device)


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum and weight decay if asked for.

    `classic` scales by the learning rate before the momentum (as in Polyak's and Sutskever's
    papers), otherwise after it (as in PyTorch). They differ when the learning rate changes.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        lr: float = 0.001,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        classic: bool = False,
        fused: bool = False,
    ) -> None:
        self._check_numbers(momentum=momentum, weight_decay=weight_decay)
        check_flags(type(self).__name__, nesterov=nesterov, classic=classic)
        if nesterov and not momentum:
            raise ValueError("SGD: nesterov looks ahead along the momentum, and momentum is 0")
        self.momentum, self.weight_decay = momentum, weight_decay
        self.nesterov, self.classic = nesterov, classic
        super().__init__(params, lr, fused)

    def _make_state(self) -> None:
        self.b = self._per_parameter() if self.momentum else []

    def _kept(self) -> list[Tensor]:
        return self.b

    def _update(self, i: int, p: Tensor, gradient: Tensor, rate: Tensor) -> Tensor:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * p
        if self.classic:
            return self._with_momentum(i, rate * gradient)
        return rate * self._with_momentum(i, gradient)

    def _with_momentum(self, i: int, move: Tensor) -> Tensor:
        if not self.momentum:
            return move
        velocity = self.momentum * self.b[i] + move
        self.b[i].assign(velocity)
        return move + self.momentum * velocity if self.nesterov else velocity


class Muon(SGD):
    """SGD whose moves are made (nearly) orthogonal by Newton-Schulz steps; for matrices.

    Weight decay is decoupled from the momentum. Parameters of more than two axes are seen as
    (first axis, all others). What moves a matrix of n rows and m columns is sqrt(n / m) long where
    n is more than m, else 1, in all directions. https://kellerjordan.github.io/posts/muon
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        lr: float = 0.001,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        ns_steps: int = 5,
        ns_coefficients: tuple[float, ...] = (3.4445, -4.775, 2.0315),
        nesterov: bool = True,
        fused: bool = False,
    ) -> None:
        self.ns_steps, self.ns_coefficients = ns_steps, ns_coefficients
        ahead = nesterov and momentum != 0
        super().__init__(params, lr, momentum, weight_decay, ahead, fused=fused)

    def _update(self, i: int, p: Tensor, gradient: Tensor, rate: Tensor) -> Tensor:
        if p.ndim == 0:
            raise ValueError(f"Muon is for matrices, and parameter {i} has no axes")
        matrix = self._with_momentum(i, gradient).reshape(p.shape[0], -1)
        move = matrix.newton_schulz(self.ns_steps, self.ns_coefficients).reshape(p.shape)
        rows, columns = matrix.shape
        length = math.sqrt(max(1, rows / max(columns, 1)))
        return rate * (length * move + self.weight_decay * p)


class LAMB(Optimizer):
    """Adam with a trust ratio per parameter: the move is as long as the parameter is.

    Moments start at zero, so early on they are too small by the weight that they have seen of
    a constant 1 (Adam's 1 - b**t). That weight is averaged along with them, in `m_weight` and
    `v_weight`: unlike a power of b it loses no digits while it is small.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        lr: float = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam: bool = False,
        fused: bool = False,
    ) -> None:
        self._check_numbers(b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)
        if b1 >= 1 or b2 >= 1:
            raise ValueError(f"{type(self).__name__}: {b1=} and {b2=} must be below 1")
        self.b1, self.b2, self.eps = b1, b2, eps
        self.weight_decay, self.adam = weight_decay, adam
        super().__init__(params, lr, fused)

    def _make_state(self) -> None:
        self.m, self.v = self._per_parameter(), self._per_parameter()
        self.m_weight = _state((), self._wide, self.device)
        self.v_weight = _state((), self._wide, self.device)
        self.rested: dict[int, tuple[Tensor, Tensor]] = {}  # weights of those that did not see all

    def _kept(self) -> list[Tensor]:
        own = chain.from_iterable(self.rested.values())
        return [self.m_weight, self.v_weight, *self.m, *self.v, *own]

    def _before_updates(self, trained: Sequence[int]) -> None:
        for i in {*range(len(self.params))}.difference(trained, self.rested):
            self.rested[i] = self.m_weight.clone(), self.v_weight.clone()
        seen = [self.rested[i] for i in trained if i in self.rested]
        for m_weight, v_weight in ((self.m_weight, self.v_weight), *seen):
            m_weight.assign(self.b1 * m_weight + (1 - self.b1))
            v_weight.assign(self.b2 * v_weight + (1 - self.b2))

    def _update(self, i: int, p: Tensor, gradient: Tensor, rate: Tensor) -> Tensor:
        means = self.m[i], self.v[i]
        weights = self.rested.get(i, (self.m_weight, self.v_weight))
        numbers = self.b1, self.b2, self.eps, self.weight_decay
        m, v, move = _lamb(p, gradient, means, weights, *numbers, self.adam)
        self.m[i].assign(m)
        self.v[i].assign(v)
        return rate * move


@composition
def _lamb(
    p: Tensor,
    gradient: Tensor,
    means: tuple[Tensor, Tensor],
    weights: tuple[Tensor, Tensor],
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    adam: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The next means of the gradient and of its square, and the move that they make."""
    m = b1 * means[0] + (1 - b1) * gradient
    v = b2 * means[1] + (1 - b2) * (gradient * gradient)
    move = (m / weights[0]) / ((v / weights[1]).sqrt() + eps)
    if weight_decay:
        move = move + weight_decay * p
    return m, v, move if adam else _trust(p, move) * move


def _trust(p: Tensor, move: Tensor) -> Tensor:
    """Length of p by length of the move; 1 where either is zero."""
    have, want = (p * p).sum().sqrt(), (move * move).sum().sqrt()
    both = (have > 0) & (want > 0)
    return both.where(have / both.where(want, 1.0), 1.0)


class AdamW(LAMB):
    """Adam with decoupled weight decay. https://arxiv.org/abs/1711.05101"""

    def __init__(
        self,
        params: Sequence[Tensor],
        lr: float = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        fused: bool = False,
    ) -> None:
        super().__init__(params, lr, b1, b2, eps, weight_decay, adam=True, fused=fused)


class Adam(LAMB):
    """Steps of the gradient's mean by the root of its mean square. arXiv 1412.6980"""

    def __init__(
        self,
        params: Sequence[Tensor],
        lr: float = 0.001,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        fused: bool = False,
    ) -> None:
        super().__init__(params, lr, b1, b2, eps, 0.0, adam=True, fused=fused)


class OptimizerGroup(Optimizer):
    """Several optimizers as one: all of their parameters are updated in one realize."""

    def __init__(self, *optimizers: Optimizer) -> None:
        if not optimizers:
            raise ValueError("OptimizerGroup: a group needs at least one optimizer")
        for i, optimizer in enumerate(optimizers):
            if not isinstance(optimizer, Optimizer):
                raise wrong_type("OptimizerGroup", f"argument {i}", "an optimizer", optimizer)
        self.optimizers = optimizers
        self.params = [p for o in optimizers for p in o.params]
        self.buffers = [p for o in optimizers for p in o.buffers]
        _check_parameters(self.params)
        self._whole = True

    def __getitem__(self, i: int) -> Optimizer:
        """Optimizer number i."""
        return self.optimizers[i]

    def schedule_step(self) -> list[Tensor]:
        """Assign the next values of all; what is to be realized for them."""
        return [tensor for o in self.optimizers for tensor in o.schedule_step()]


if not TYPE_CHECKING:  # else every name would be known

    def __getattr__(name: str) -> object:
        optimizers = ("SGD", "Adam", "AdamW", "LAMB", "Muon", "Optimizer", "OptimizerGroup")
        raise missing.no_optimizer(optimizers, name)
