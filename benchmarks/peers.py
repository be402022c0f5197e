"""The libraries that are timed, each used as its own documentation says to be fast.

A peer turns a workload into a `call`: a function without arguments that computes the workload
once, waits until it is done and returns the results. Inputs are already in the library's memory;
each call makes its results anew, after those of the call before were dropped.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.dialect import JaxOps, NumpyOps, Ops, TinygradOps, TinymlOps, TorchOps
from benchmarks.steps import Step, differentiated, spoken, tinyml_step
from benchmarks.workloads import Arrays, Workload
from tinyml.device import open_device

Work = Workload | Step
Call = Callable[[], tuple[Any, ...]]
DECAY = 0.01  # of AdamW's weights: the default of all but optax


class Peer(Protocol):
    """A library under the clock."""

    name: str
    ops: Ops

    @property
    def version(self) -> str: ...

    def prepare(self, work: Work, arrays: Arrays) -> Call:
        """A call that computes `work` on these inputs."""
        ...

    def numpy(self, result: Any) -> npt.NDArray[Any]:
        """A result, as an array of the host."""
        ...


class TinymlPeer:
    """tinyml under TinyJit."""

    name = "tinyml"

    def __init__(self) -> None:
        tinyml: Any = importlib.import_module("tinyml")
        self.ops: Ops = TinymlOps()
        self._tinyml = tinyml
        self._machine = open_device(tinyml.Device.DEFAULT).machine

    @property
    def version(self) -> str:
        return f"{self._tinyml.__version__} {self._tinyml.Device.DEFAULT}, TinyJit"

    def prepare(self, work: Work, arrays: Arrays) -> Call:
        launched = self.launched(work, arrays)

        def call() -> tuple[Any, ...]:
            results = launched()
            self._machine.synchronize()
            return results

        return call

    def launched(self, work: Work, arrays: Arrays) -> Call:
        """A call that does not wait for the results."""
        inputs = [self._tinyml.Tensor(array) for array in arrays]
        inputs = [narrowed(tensor, work) for tensor in inputs]
        if isinstance(work, Step):
            function = tinyml_step(work, inputs)
            inputs = work.split(inputs)[1]
        else:
            function = spelled(self.ops, work)

        def realized(*tensors: Any) -> tuple[Any, ...]:
            results = function(*tensors)
            self._tinyml.Tensor.realize(*results)
            return results

        jitted = self._tinyml.TinyJit(realized)
        return lambda: jitted(*inputs)

    def numpy(self, result: Any) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = result.float().numpy()
        return array


class TinygradPeer:
    """tinygrad under TinyJit; its replays write into the same memory each time."""

    name = "tinygrad"

    def __init__(self) -> None:
        tinygrad: Any = importlib.import_module("tinygrad")
        self.ops: Ops = TinygradOps()
        self._tinygrad = tinygrad
        self._device = tinygrad.Device[tinygrad.Device.DEFAULT]

    @property
    def version(self) -> str:
        metadata: Any = importlib.import_module("importlib.metadata")  # slow: benchmarks/startup.py
        return f"{metadata.version('tinygrad')} {self._tinygrad.Device.DEFAULT}, TinyJit"

    def prepare(self, work: Work, arrays: Arrays) -> Call:
        inputs = [narrowed(self._tinygrad.Tensor(array), work).realize() for array in arrays]
        if isinstance(work, Step):
            step, inputs = self._step(work, inputs), work.split(inputs)[1]
            jitted = self._tinygrad.TinyJit(step)
        else:
            expression = spelled(self.ops, work)

            def realized(*tensors: Any) -> tuple[Any, ...]:
                results = expression(*tensors)
                results[0].realize(*results[1:])
                return results

            jitted = self._tinygrad.TinyJit(realized)

        def call() -> tuple[Any, ...]:
            results: tuple[Any, ...] = jitted(*inputs)
            self._device.synchronize()
            return results

        return call

    def _step(self, step: Step, tensors: list[Any]) -> Callable[..., Any]:
        parameters, _ = step.split(tensors)
        optimizer = self._tinygrad.nn.optim.AdamW(list(parameters.values()), lr=step.rate)
        loss_of = step.loss and partial(step.loss, spoken(self.ops, step), parameters)

        def call(*data: Any) -> tuple[Any, ...]:
            with self._tinygrad.Context(TRAINING=1):
                optimizer.zero_grad()
                results = differentiated(loss_of, parameters, data)
                results[0].realize(*results[1:], *optimizer.schedule_step())
                return results

        return call

    def numpy(self, result: Any) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = result.float().numpy()
        return array


def narrowed(tensor: Any, work: Work) -> Any:
    """A tensor of tinyml or tinygrad, floats in the dtype of the workload."""
    wide = work.dtype != "float32" and tensor.is_floating_point()
    return tensor.cast(work.dtype) if wide else tensor


def spelled(ops: Ops, work: Workload) -> Callable[..., tuple[Any, ...]]:
    """A workload on tensors that have `gradient`."""
    if work.gradients is None:
        return lambda *inputs: (work.run(ops, *inputs),)

    def both(*inputs: Any) -> tuple[Any, ...]:
        output = work.run(ops, *inputs[:-1])
        asked = [x for x in inputs[:-1] if x.is_floating_point()]
        return output, *output.gradient(*asked, gradient=inputs[-1])

    return both


class TorchPeer:
    """torch, op by op."""

    name = "torch"

    def __init__(self, threads: int, device: str = "cpu") -> None:
        torch: Any = importlib.import_module("torch")
        self.ops: Ops = TorchOps()
        self._torch, self._device = torch, device
        torch.set_num_threads(threads)

    @property
    def version(self) -> str:
        return f"{self._torch.__version__}, eager, {self._torch.get_num_threads()} threads"

    def _ready(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def prepare(self, work: Work, arrays: Arrays) -> Call:
        # copies: numpy's memory is not aligned to a vector
        given = (self._torch.from_numpy(np.asarray(array)) for array in arrays)
        tensors = [array.clone().to(self._device) for array in given]
        dtype = getattr(self._torch, work.dtype)
        tensors = [x.to(dtype) if x.is_floating_point() else x for x in tensors]
        if isinstance(work, Step):
            return self._step(work, tensors)
        function = self._ready(lambda *inputs: work.run(self.ops, *inputs))
        if work.gradients is None:

            def forward() -> tuple[Any, ...]:
                with self._torch.no_grad():
                    return (function(*tensors),)

            return forward
        *inputs, upstream = tensors
        asked = [x.requires_grad_() for x in inputs if x.is_floating_point()]

        def both() -> tuple[Any, ...]:
            output = function(*inputs)
            return output, *self._torch.autograd.grad(output, asked, upstream)

        return both

    def _step(self, step: Step, tensors: list[Any]) -> Call:
        parameters, data = step.split(tensors)
        for tensor in parameters.values():
            tensor.requires_grad_()
        optimizer = self._torch.optim.AdamW(parameters.values(), lr=step.rate, fused=True)
        made: Any = step.loss and self._ready(partial(step.loss, self.ops, parameters))
        update = optimizer.step if step.loss else self._ready(optimizer.step)
        half = partial(self._torch.autocast, self._device, self._torch.bfloat16, step.half)

        def loss_of(*data: Any) -> Any:
            with half():
                return made(*data)

        def call() -> tuple[Any, ...]:
            optimizer.zero_grad()
            results = differentiated(made and loss_of, parameters, data)
            update()
            return tuple(x.detach() for x in results)

        return call

    def numpy(self, result: Any) -> npt.NDArray[Any]:
        array: npt.NDArray[Any] = result.detach().cpu().float().numpy()
        return array


class CompilePeer(TorchPeer):
    """torch.compile, with what it calls its default mode."""

    name = "compile"

    @property
    def version(self) -> str:
        return f"{self._torch.__version__}, torch.compile, {self._torch.get_num_threads()} threads"

    def _ready(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self._torch._dynamo.reset()
        compiled: Callable[..., Any] = self._torch.compile(function, dynamic=False)
        return compiled


class JaxPeer:
    """jax.jit of the whole; a training step by optax.adamw, its state donated."""

    name = "jax"

    def __init__(self, threads: int) -> None:
        # XLA has no setting for its threads: it makes one for each processor that it may use
        if threads != len(os.sched_getaffinity(0)):
            raise ImportError("jax cannot be told how many threads to use; `taskset` can")
        self._jax: Any = importlib.import_module("jax")
        self.ops: Ops = JaxOps()

    @property
    def version(self) -> str:
        return f"{self._jax.__version__} {self._jax.default_backend()}, jit"

    def prepare(self, work: Work, arrays: Arrays) -> Call:
        inputs = [self._jax.numpy.array(array) for array in arrays]
        inputs = [x.astype(work.dtype) if x.dtype == np.float32 else x for x in inputs]
        if isinstance(work, Step):
            return self._step(work, inputs)
        compiled = self._jax.jit(self._expression(work))

        def call() -> tuple[Any, ...]:
            results: tuple[Any, ...] = compiled(*inputs)
            return tuple(self._jax.block_until_ready(results))

        return call

    def _expression(self, work: Workload) -> Callable[..., tuple[Any, ...]]:
        if work.gradients is None:
            return lambda *inputs: (work.run(self.ops, *inputs),)

        def both(*inputs: Any) -> tuple[Any, ...]:
            output, pull = self._jax.vjp(partial(work.run, self.ops), *inputs[:-1])
            floats = [self._jax.numpy.issubdtype(x.dtype, np.floating) for x in inputs[:-1]]
            return output, *itertools.compress(pull(inputs[-1]), floats)

        return both

    def _step(self, step: Step, tensors: list[Any]) -> Call:
        if step.half or step.loss is None:
            raise NotImplementedError("jax has no autocast, and its update is part of a step")
        optax: Any = importlib.import_module("optax")
        parameters, data = step.split(tensors)
        optimizer = optax.adamw(step.rate, weight_decay=DECAY)

        def update(parameters: Any, state: Any, *data: Any) -> tuple[Any, Any, Any]:
            loss_of = partial(step.loss, self.ops)
            loss, slopes = self._jax.value_and_grad(loss_of)(parameters, *data)
            changes, state = optimizer.update(slopes, state, parameters)
            return optax.apply_updates(parameters, changes), state, loss

        compiled = self._jax.jit(update, donate_argnums=(0, 1))
        kept = [parameters, optimizer.init(parameters)]

        def call() -> tuple[Any, ...]:
            *kept[:], loss = compiled(*kept, *data)
            self._jax.block_until_ready(kept)
            return (loss,)

        return call

    def numpy(self, result: Any) -> npt.NDArray[Any]:
        return np.asarray(result.astype(np.float32))


class NumpyPeer:
    """numpy in float32: what people have anyway. Forward only."""

    name = "numpy"

    def __init__(self) -> None:
        self.ops: Ops = NumpyOps()

    @property
    def version(self) -> str:
        return str(np.__version__)

    def prepare(self, work: Work, arrays: Arrays) -> Call:
        if isinstance(work, Step) or work.gradients is not None:
            raise NotImplementedError("numpy has no gradients")
        if work.dtype != "float32":
            raise NotImplementedError(f"numpy has no {work.dtype}")
        return lambda: (work.run(self.ops, *arrays),)

    def numpy(self, result: Any) -> npt.NDArray[Any]:
        return np.asarray(result)


PEERS = ("torch", "compile", "jax", "tinygrad", "numpy")


def open_peers(names: list[str], threads: int) -> tuple[list[Peer], list[str]]:
    """tinyml and the peers that are installed; and a line for each that is not."""
    openers: dict[str, Callable[[], Peer]] = {
        "torch": lambda: TorchPeer(threads),
        "compile": lambda: CompilePeer(threads),
        "jax": lambda: JaxPeer(threads),
        "tinygrad": TinygradPeer,
        "numpy": NumpyPeer,
    }
    found: list[Peer] = [TinymlPeer()]
    missing = []
    for name in names:
        try:
            found.append(openers[name]())
        except ImportError as error:
            missing.append(f"{name} is left out: {error}")
    return found, missing
