"""The beam: rounds of candidates, and the memory of how earlier searches ended."""

from __future__ import annotations

import contextlib
import time

from tinyml import config, kernel, trace
from tinyml.cache import key
from tinyml.codegen.optimize.opts import OptError, parse
from tinyml.device import OpenDevice
from tinyml.errors import TinymlError
from tinyml.frozen import dataclass
from tinyml.kernel import Kernel
from tinyml.runtime.cpu import host_cache
from tinyml.search.apart import Apart
from tinyml.search.candidates import Opts, neighbours, seeds
from tinyml.search.trial import OpenRunner, Trial

_VERSION = "1"  # of what this module keeps in the disk cache
_HEAD = "opts"
_TRIED_PER_PLACE = 6  # candidates that are tried in a round, for each place in the beam
_GAIN = 0.98  # of the default's time: what is no faster than that may be chance
_FINALISTS = 3  # that are timed again, in turn with the default


@dataclass(frozen=True)
class Found:
    """How a search ended."""

    opts: Opts
    seconds: float
    default: float  # seconds that the rules' choice takes
    tried: int


def found(
    k: Kernel, opened: OpenDevice, width: int, budget: float, runner: OpenRunner = Apart
) -> Opts | None:
    """The Opts that an earlier search on this machine found, or that one finds now.

    None where nothing can be tried, for want of programs or memory, or because the kernel finds
    fault with numbers that are only drawn: then the rules choose.
    """
    if opened.target is None:
        return None
    with contextlib.suppress(TinymlError):
        trial = Trial(k, opened, runner)
        with contextlib.closing(trial):
            return _of_trial(trial, width, budget)
    return None


def _of_trial(trial: Trial, width: int, budget: float) -> Opts:
    start, opened = time.perf_counter(), trial.opened
    cache = host_cache(config.current.cache_folder)
    parts = (opened.machine.identity, trial.text, repr(trial.target), str(width))
    place = key("search", _VERSION, *parts)
    kept = _read(cache.get(place, ".opts"), trial)
    if kept is not None:
        return kept
    ended = search(trial, width, budget)
    cache.put(place, ".opts", "\n".join([_HEAD, *map(str, ended.opts)]).encode())
    if trace.wanted(trace.Searched):
        took = time.perf_counter() - start
        event = (ended.opts, ended.seconds, ended.default, ended.tried, took)
        trace.emit(trace.Searched(opened.name, kernel.name(trial.kernel), *event))
    return ended.opts


def _read(text: bytes | None, trial: Trial) -> Opts | None:
    """A kept list, if there is one, and it still fits."""
    if text is None or not text.startswith(_HEAD.encode()):
        return None
    try:
        opts: Opts = tuple(parse(line) for line in text.decode().splitlines()[1:])
    except OptError:
        return None
    return opts if trial.admits(opts) else None


def search(trial: Trial, width: int, budget: float) -> Found:
    """The fastest Opts found in `budget` seconds with `width` places; at worst the default."""
    end = time.perf_counter() + budget
    known: dict[Opts, float] = {trial.default: trial.time_default()}
    pending = list(seeds(trial.plain, trial.target))
    met, varied = {trial.default}, set[Opts]()
    while time.perf_counter() < end:
        new = [opts for opts in dict.fromkeys(pending) if opts not in met]
        met.update(new)
        chosen = trial.promising(new, _TRIED_PER_PLACE * width)
        known.update(trial.run(chosen, min(known.values()), end))
        beam = [opts for opts in _fastest(known)[:width] if opts not in varied]
        if not beam:
            break
        varied.update(beam)
        pending = [other for opts in beam for other in neighbours(trial.plain, opts)]
    return _confirmed(trial, known)


def _fastest(known: dict[Opts, float]) -> list[Opts]:
    """The fastest first; of equals, the one that was tried first."""
    return sorted(known, key=known.__getitem__)


def _confirmed(trial: Trial, known: dict[Opts, float]) -> Found:
    """The fastest when the best are timed in turn with the default: luck does not last."""
    best = [*_fastest(known)[:_FINALISTS], trial.default]
    seconds = trial.time_in_turn(list(dict.fromkeys(best)))
    default = seconds[trial.default]
    winner = min(seconds, key=seconds.__getitem__)
    if seconds[winner] > _GAIN * default:
        winner = trial.default
    return Found(winner, seconds[winner], default, len(known))
