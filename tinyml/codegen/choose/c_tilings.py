"""Which tilings of a contraction in C are worth an estimate: c_contraction.py takes one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from math import inf

from tinyml.codegen.choose.estimate import PIECES, PORTS, RUNS, WAIT, Factor, Product, Tiling
from tinyml.codegen.expr import Fold
from tinyml.codegen.long_fold import is_grouped
from tinyml.frozen import replace

LEAST = 128  # elements of the fold in a step, and half the rows that pass over packed panels
NEARLY = 1.05  # times the least that is estimated: estimates are no better than that
HARDLY = 0.02  # of a kernel's time, by which it surely takes longer if sums are waited for
SPARE = 32  # times as many columns as are missing of the last panel, which is masked then
MOST = 1.25  # times the time of a nest that half of its text is worth


def fastest(
    product: Product, fold: Fold, width: int, height: int, most: float
) -> tuple[float, Tiling] | None:
    """Cycles of the best with register tiles of `width` vectors and `height` rows, and what it is.

    Of nearly equals it is the simplest; None if all take longer than `most`.
    """
    inner, found = product.depth // fold.axes[0].size, list[tuple[float, Tiling]]()

    def worth(packs: bool) -> bool:
        return product.least(Tiling(width, height, product.panels, packs=packs)) <= most

    proposed = (  # the simplest first
        _plain(product, width, height, worth),
        _blocked(product, fold, width, height),
        _runs(product, fold, width, height),
    )
    for t in chain(*proposed):
        cycles = product.cycles(t, inner * t.step or product.depth, most)
        if cycles < inf:
            found.append((cycles, t))
            most = min(most, NEARLY * cycles)
    least = NEARLY * min([cycles for cycles, _ in found], default=inf)
    return next((one for one in found if one[0] <= least), None)


def without_rest(product: Product, t: Tiling, share: float) -> Tiling:
    """The tiling, or one with lower register tiles instead.

    It leaves no rows over, which are a nest of their own: as much text again, for two compilers.
    Half the text is worth a little of a kernel's time, and so more of that of a nest that does
    only a `share` of the work: as much as estimates may be wrong, unless sums would be waited for.
    It is worth more that panels are read more often, if it takes hardly longer to multiply: caches
    deliver them meanwhile, better than they are estimated to.
    """
    if t.repacks or t.step:
        return t  # such rows are masked
    count, taken = product.rows // (t.piece or product.rows), product.cycles(t, product.depth)
    for height in range(t.height, 1, -1):
        tiles, rest = divmod(product.rows, height)
        pieces = next((n for n in range(count, 2 * count) if tiles % n == 0), 0)
        if not rest and pieces:
            piece = product.rows // pieces if pieces > 1 else 0
            whole = replace(t, height=height, piece=piece)
            before, after = (product.multiplying(one, product.depth)[1] for one in (t, whole))
            wrong = NEARLY - 1 if t.vectors * height >= PORTS * WAIT else HARDLY
            worth = MOST if after <= (1 + HARDLY) * before else min(1 + wrong / share, MOST)
            fits = whole == t or product.cycles(whole, product.depth) <= worth * taken
            return whole if fits else t
    return t


def _plain(
    product: Product, width: int, height: int, worth: Callable[[bool], bool]
) -> Iterator[Tiling]:
    """The whole fold at once, packed or not; a short rest of rows is walked by itself."""
    most = min(product.rows // (2 * height), PIECES * product.target.cores)
    every = [*_parts(product.panels)]
    for count in _growing(most):
        piece = product.rows // count // height * height if count > 1 else 0
        kinds = [packs for packs in (False, True) if worth(packs)]
        for parts in every:
            for packs in kinds:
                if not packs or product.others * count * parts > 1:
                    yield Tiling(width, height, -(-product.panels // parts), piece, 0, packs)


def _blocked(product: Product, fold: Fold, width: int, height: int) -> Iterator[Tiling]:
    """The fold in steps, between which sums wait in tiles; surplus rows are masked.

    Steps are short where a factor jumps: few lines that are a power of two apart fit a cache.
    """
    shortest, every = -(-product.depth // LEAST), [*_parts(product.panels)]
    for count in (shortest,) if product.other.jump else _growing(shortest):
        step = _step(fold, count) if count > 1 else 0
        for parts in _growing(-(-product.rows // (2 * LEAST))):
            piece = _round(-(-product.rows // parts), height)
            # masks are asked once if what they mask is packed
            repacks = product.rows % piece > 0 or product.other != Factor()
            close = step and parts == 1 and product.other.together and not product.other.work
            for some in every if step or repacks else ():
                if product.others * parts * some > 1:
                    panels = -(-product.panels // some)
                    for again in (False, repacks) if close else (repacks,):
                        yield Tiling(width, height, panels, piece, step, True, again)


def _runs(product: Product, fold: Fold, width: int, height: int) -> Iterator[Tiling]:
    """Few rows pass over a few elements of all columns in turn: memory is read in long runs."""
    size, few = fold.axes[0].size, product.rows < 2 * product.target.tile_height
    if not few or product.scattered or not product.columns.jump or len(fold.axes) > 1:
        return
    dividing = (n for n in range(RUNS // 2, RUNS + 1) if size % n == 0)
    step = next((n for n in dividing if is_grouped(size // n, [fold])), 0)
    for some in _parts(product.panels) if step else ():
        if product.others * some > 1:
            yield Tiling(width, height, -(-product.panels // some), 0, step, packs=False)


def _parts(whole: int) -> Iterator[int]:
    """Growing numbers of parts, equal ones where there are such: a rest is one more nest."""
    for least in _growing(whole):
        yield next((n for n in range(least, 2 * least) if whole % n == 0), least)


def _growing(most: int) -> Iterator[int]:
    """1 2 4 8 and so on."""
    return (1 << bit for bit in range(max(most, 1).bit_length()))


def _step(fold: Fold, count: int) -> int:
    """The size of so many equal steps of a fold, or a few more where groups of them are equal."""
    size = fold.axes[0].size
    step = -(-size // count)
    while step > 1 and not is_grouped(-(-size // step), [fold]):
        count += 1
        step = -(-size // count)
    return step


def is_padded(columns: int, panel: int, plain: bool) -> bool:
    """Whether the last panel is masked where columns end; else what remains is a nest of its own.

    That packs again, and multiplies with no fewer vectors, if less than half a panel is missing;
    and is text, which is worth less than a few columns, if vectors have no other masks.
    """
    missing = -columns % panel
    few = plain and missing * SPARE < columns
    return columns < panel or (missing > 0 and (few or columns < 2 * panel > 4 * missing))


def low(rows: int, most: int) -> int:
    """Rows of a register tile two vectors wide: `most`, or less if none is left over then.

    That is up to a third less, and as many as keep a processor busy while each sum is added to.
    """
    least = max(2 * most // 3, PORTS * WAIT // 2)
    return next((n for n in range(most, least - 1, -1) if rows % n == 0), min(most, rows))


def even(whole: int, most: int) -> int:
    """The size of equal parts of `whole`, none above `most`."""
    return -(-whole // -(-whole // most))


def _round(size: int, by: int) -> int:
    return -(-size // by) * by
