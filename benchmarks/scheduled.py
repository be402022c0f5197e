"""The kernels of a workload, as the scheduler makes them. Nothing is run, inputs take no memory."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from math import prod
from unittest import mock

import numpy as np

from benchmarks.dialect import TinymlOps
from benchmarks.peers import Work, spelled
from benchmarks.steps import Step, differentiated, spoken
from tinyml import Device, Tensor, lazy, nn, realize
from tinyml.device import along_folds, open_device
from tinyml.dtype import by_name
from tinyml.kernel import Kernel
from tinyml.lazy import LazyBuffer
from tinyml.ledger import memory
from tinyml.runtime.machine import Buffer
from tinyml.schedule import KernelItem, schedule


def kernels_of(work: Work) -> list[Kernel]:
    """The kernels of one call on the default device, in order."""
    wanted = _computed(_step(work) if isinstance(work, Step) else _results(work))
    items = schedule(wanted, along_folds()).items
    return [item.kernel for item in items if isinstance(item, KernelItem)]


class _EnoughError(Exception):
    """What is to be computed is known."""


def _computed(tensors: Sequence[Tensor]) -> list[LazyBuffer]:
    """What realizing these computes: also what others hold that reads what is overwritten."""
    found: list[LazyBuffer] = []

    def note(unreal: list[LazyBuffer], *rest: object) -> None:
        found.extend(unreal)
        raise _EnoughError

    with mock.patch.object(realize, "_run", note), contextlib.suppress(_EnoughError):
        Tensor.realize(*tensors)
    return found


def _results(work: Work) -> Sequence[Tensor]:
    inputs = [in_memory(a.shape, a.dtype.name, work.dtype) for a in work.inputs()]
    for tensor in inputs:
        tensor.requires_grad = work.gradients is not None and tensor.is_floating_point()
    return spelled(TinymlOps(), work)(*inputs)


def _step(step: Step) -> Sequence[Tensor]:
    parameters = {n: in_memory(s, "float32", step.dtype) for n, s in step.parameters.items()}
    arrays = step.data(np.random.default_rng(0))
    data = [in_memory(a.shape, a.dtype.name, step.dtype) for a in arrays]
    for tensor in parameters.values():
        tensor.requires_grad = True
    optimizer = nn.optim.AdamW(list(parameters.values()), lr=step.rate)
    loss_of = step.loss and partial(step.loss, spoken(TinymlOps(), step), parameters)
    with Tensor.train():
        results = differentiated(loss_of, parameters, data)
        return [*optimizer.schedule_step(), *results]  # a loss is made before what it reads is new


def in_memory(shape: Sequence[int], dtype: str, floats: str) -> Tensor:
    """A tensor on a card, or on what stands for one, whose memory nobody has asked for yet."""
    kind = by_name(floats if dtype == "float32" else dtype)
    leaf = lazy.data(tuple(shape), kind, Device.DEFAULT)
    memory[leaf] = Buffer(open_device(Device.DEFAULT).machine, prod(shape), kind)
    tensor = Tensor(0.0)
    tensor.lazy = leaf
    return tensor
