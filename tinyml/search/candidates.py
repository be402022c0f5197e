"""Candidates: lists of Opts to try. Some will not fit; whoever tries them finds out.

Two sources. The rules of thumb are asked again with other beliefs about the machine: that gives
lists whose parts fit each other. And a list is varied in one place: an amount grows or shrinks,
an Opt goes or comes, lanes lie along another axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.nest import LoopNest
from tinyml.codegen.optimize.opts import Opt, OptKind
from tinyml.codegen.target import Target

Opts: TypeAlias = tuple[Opt, ...]

_UNROLLS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # 1 is none
_WHOLE = {OptKind.PEEL, OptKind.PAD}  # make an axis a multiple of what later Opts divide it by
_PARTS = {OptKind.SPLIT, OptKind.LANES, OptKind.THREAD, OptKind.BLOCK}
_DOUBLED = {OptKind.AHEAD, *_PARTS, *_WHOLE}
_NEEDED = {OptKind.COLLAPSE, OptKind.GRID, OptKind.PHASE, *_WHOLE}  # not worth being left out
_STAGED = {OptKind.BLOCK, OptKind.STAGE, OptKind.PIPELINE}  # come last


def seeds(plain: LoopNest, target: Target) -> Iterator[Opts]:
    """What the rules of thumb would choose for machines a little different from this one."""
    believed = [replace(target, cache=int(target.cache * by)) for by in (0.25, 0.5, 2, 4)]
    believed += [replace(target, vector_registers=target.vector_registers * 2)]
    believed += [replace(target, vector_bytes=target.vector_bytes * 2)]
    believed += [replace(target, vector_bytes=target.vector_bytes // 2)]
    believed += [replace(target, cores=cores) for cores in (1, 4 * target.cores)]
    for other in believed:
        yield tuple(choose(plain, other)[0])


def neighbours(plain: LoopNest, opts: Opts) -> Iterator[Opts]:
    """Lists that differ from `opts` in one decision."""
    for n, opt in enumerate(opts):
        for amount in _amounts(opt):
            yield _resized(opts, n, amount)
        if opt.kind is OptKind.UNROLL or opt.kind not in _NEEDED:
            yield (*opts[:n], *opts[n + 1 :])
    yield from _unrolled(opts)
    yield from _turned(plain, opts)
    yield from _staged(plain, opts)
    yield from _persistent(opts)


def _amounts(opt: Opt) -> list[int]:
    """The next larger and the next smaller amount."""
    if opt.kind is OptKind.UNROLL and opt.amount in _UNROLLS:
        at = _UNROLLS.index(opt.amount)
        return [a for a in (*_UNROLLS[at + 1 : at + 2], *_UNROLLS[max(at - 1, 0) : at]) if a > 1]
    if opt.kind is OptKind.PIPELINE:
        return [a for a in (opt.amount + 1, opt.amount - 1) if a > 1]
    if opt.kind in _DOUBLED and opt.amount > 1:
        return [a for a in (2 * opt.amount, opt.amount // 2) if a > 1]
    return []


def _resized(opts: Opts, n: int, amount: int) -> Opts:
    """With another amount; what made the axis a multiple of the old one before, is scaled, too."""
    changed, old = list(opts), opts[n]
    changed[n] = replace(old, amount=amount)
    for before, opt in enumerate(opts[:n]):
        if opt.kind in _WHOLE and opt.axis == old.axis and opt.amount % old.amount == 0:
            changed[before] = replace(opt, amount=opt.amount // old.amount * amount)
    return tuple(changed)


def _unrolled(opts: Opts) -> Iterator[Opts]:
    """Several vectors, several rows or several elements of a thread at a time."""
    unrolled = {opt.axis for opt in opts if opt.kind is OptKind.UNROLL}
    for n, opt in enumerate(opts):
        if opt.axis in unrolled:
            continue
        for amount in (2, 4):
            more = Opt(OptKind.UNROLL, opt.axis, amount)
            if opt.kind in (OptKind.LANES, OptKind.THREAD):
                yield (*opts[: n + 1], more, *opts[n + 1 :])
            elif opt.kind is OptKind.GRID:
                yield (*opts[:n], more, *opts[n:])


def _turned(plain: LoopNest, opts: Opts) -> Iterator[Opts]:
    """Lanes, or threads, along another axis."""
    names = list(dict.fromkeys(a.name for one in plain.nests for a in one.axes))
    for n, opt in enumerate(opts):
        if opt.kind in (OptKind.LANES, OptKind.THREAD):
            for name in names:
                if name != opt.axis:
                    yield (*opts[:n], replace(opt, axis=name), *opts[n + 1 :])


def _staged(plain: LoopNest, opts: Opts) -> Iterator[Opts]:
    """What is read in a block copied close by first."""
    grid = [opt.axis for opt in opts if opt.kind is OptKind.GRID]
    done = {opt.slot for opt in opts if opt.kind is OptKind.STAGE}
    slots = dict.fromkeys(load.slot for one in plain.nests for load in one.loads)
    late = next((n for n, opt in enumerate(opts) if opt.kind in _STAGED), len(opts))
    for slot in slots:
        if grid and slot not in done:
            yield (*opts[:late], *opts[late:], Opt(OptKind.STAGE, grid[-1], 0, slot))


def _persistent(opts: Opts) -> Iterator[Opts]:
    """Blocks of a card that walk several tiles each."""
    kinds = {opt.kind: opt.axis for opt in opts}
    if {OptKind.THREAD, OptKind.GRID} <= kinds.keys() and OptKind.PERSIST not in kinds:
        for turns in (2, 8):
            yield (*opts, Opt(OptKind.PERSIST, kinds[OptKind.GRID], turns))
