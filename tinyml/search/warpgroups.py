"""Whether a card's products are made by warpgroups: a trial decides, once, and is remembered.

What only Hopper has may be slower there, or hang where a barrier was misread. So a few products are
made both ways by another process, before the first that warpgroups would make.
"""

from __future__ import annotations

import contextlib
from math import inf

from tinyml import config, lazy, trace
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.program_cache import Verdict, keep, kept
from tinyml.codegen.target import Target
from tinyml.device import OpenDevice, open_device, retarget
from tinyml.dtype import DType, bfloat16, float16, float32
from tinyml.frozen import replace
from tinyml.kernel import Kernel
from tinyml.ops import Op
from tinyml.runtime.cpu import host_cache
from tinyml.schedule import KernelItem, schedule
from tinyml.search.apart import Apart
from tinyml.search.trial import Trial

_HALVES = (  # rows, fold, columns; of both factors, whether rows lie along the fold
    ((4096, 4096, 4096), bfloat16, (True, False)),  # blocks walk tiles, which are copied in boxes
    ((1000, 1032, 1048), float16, (True, True)),  # zeros lie beyond each edge
    ((200, 8200, 264), float16, (False, False)),  # blocks share the fold; threads copy 16 bytes
)
_FLOATS = ((4096, 4096, 4096), float32, (True, True))
_GAIN = 0.98  # of the time by warps: what is no faster than that may be chance


def decide(name: str) -> Verdict:
    """Have a device's products made as an earlier trial said, or one says now, which is kept.

    Where nothing could be tried they are made by warps, in this process.
    """
    opened, disk = open_device(name), host_cache(config.current.cache_folder)
    assert opened.target is not None
    target, machine = replace(opened.target, warpgroups=None), opened.machine.identity
    verdict = kept(target, machine, disk)
    if verdict is None:
        try:
            verdict = _verdict(opened, target)
        except Exception as error:  # no process, no memory, no compiler: whatever it was
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            verdict = Verdict(False, f"no trial ({why}); WARPGROUPS=0 or 1 asks for none")
        else:
            keep(verdict, target, machine, disk)
    retarget(name, replace(target, warpgroups=verdict.warpgroups))
    trace.emit(trace.Decided(name, verdict.warpgroups, verdict.why))
    return verdict


def _verdict(opened: OpenDevice, target: Target) -> Verdict:
    """What comes of a trial; an error says that there was none."""
    by_warps = by_groups = 0.0
    for given in (*_HALVES, _FLOATS) if target.tf32 else _HALVES:
        k = product(*given, opened.name)
        trial = Trial(k, opened, replace(target, warpgroups=False), Apart)
        opts = tuple(choose(trial.plain, replace(target, warpgroups=True))[0])
        with contextlib.closing(trial), trace.listen(trace.Tried) as tried:
            best = trial.time_default()
            trial.promising([opts], 1)
            if not list(trial.run([opts], inf, inf)):
                return Verdict(False, f"{tried[-1].name}: {tried[-1].why}")
            seconds = trial.time_in_turn([trial.default, opts])
        by_warps += min(best, seconds[trial.default])
        by_groups += seconds[opts]
    why = f"a trial took {1e3 * by_groups:.3g} ms by warpgroups, {1e3 * by_warps:.3g} ms by warps"
    return Verdict(by_groups < _GAIN * by_warps, why)


def product(
    shape: tuple[int, int, int], dtype: DType, along: tuple[bool, bool], device: str
) -> Kernel:
    """x @ w + z - k as halves: around 0, so that they show which numbers were summed up."""
    m, k, n = shape

    def drawn(*shape: int) -> lazy.LazyBuffer:
        return lazy.cast(lazy.data(shape, dtype, device), float32)

    x = drawn(m, k, 1) if along[0] else lazy.permute(drawn(k, m, 1), (1, 0, 2))
    w = lazy.permute(drawn(1, n, k), (0, 2, 1)) if along[1] else drawn(1, k, n)
    terms = lazy.map_(Op.MUL, lazy.expand(x, shape), lazy.expand(w, shape))
    summed = lazy.reshape(lazy.reduce_(Op.ADD, terms, (1,)), (m, n))
    biased = lazy.map_(Op.ADD, summed, lazy.expand(drawn(1, n), (m, n)))
    centred = lazy.map_(Op.ADD, biased, lazy.const(-k, float32, device, (m, n)))
    (item,) = schedule([lazy.cast(centred, bfloat16 if dtype is float32 else dtype)]).items
    assert isinstance(item, KernelItem)
    return item.kernel
