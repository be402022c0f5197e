"""Balance: whether a card stores a product of matrices for what is made of it, or makes it again.

A card's tensor cores do a hundred and more operations in the time in which its memory delivers a
byte, so that products are made again sooner than they are read; unless the fold that makes them is
long, and unless many blocks make them, each for some columns of what they meet. And whatever it
takes, scores of attention and what is much larger than its factors are not stored, so that memory
grows with the length of a row and not with its square. Likewise a factor is worth a copy that lies
as products copy it to their tiles, if it is multiplied for longer than it is copied.
"""

from __future__ import annotations

from tinyml import lazy
from tinyml.lazy import LazyBuffer
from tinyml.schedule.contracts import added_by, contracts, narrowest
from tinyml.schedule.units import CARDS

FLOPS = 150  # in the time of a byte: of a card's tensor cores at 0.6 of what they can do
COLUMNS = 256  # whose sums a warp keeps; of more, several blocks make the product
WIDEST = 1024  # that a fold may be: rows of it have room in shared memory, with what they meet
LONG = 8  # times as large as its larger factor: no such product is stored
DEEP = 512  # of a longer fold, blocks that make a product again take twice as long as to store it

SAVED = 0.15  # of a product's time, at least, if a factor is copied to tiles past the registers
LAUNCH = 6 << 20  # bytes in the time of a launch


def worth_a_copy(factor: LazyBuffer, times: int) -> bool:
    """Whether a factor, each of whose elements is multiplied so often, is worth a copy."""
    nbytes = 2 * factor.size * factor.dtype.itemsize + LAUNCH
    return SAVED * 2 * times * factor.size > FLOPS * nbytes


def made_apart(one: LazyBuffer, other: LazyBuffer, rows: int) -> bool:
    """Whether products that meet the same, of so many rows, are no kernel of a card together.

    Tensor cores make them of equally many columns; and where a warp does not keep all sums, more
    blocks would make again what both meet than those of one product and of the other.
    """
    if one.device not in CARDS or not all(contracts(each) for each in (one, other)):
        return False
    first, second = one.size // rows, other.size // rows
    return in_halves(one) and in_halves(other) and (first != second or 2 * first > COLUMNS)


def made_within(product: LazyBuffer, columns: int) -> bool:
    """Whether what is made of a product is not stored for one other, of so many columns.

    As attention's weights without a softmax, unless several blocks would make them; of hidden
    units, whose weights all of a batch share, only what is much larger than its factors.
    """
    one, other = (narrowest(factor).size for factor in factors_of(product))
    of_heads = one * other > product.sources[0].size * _depth(product)
    return columns <= (WIDEST if is_long(product) else COLUMNS if of_heads else 0)


def is_cheap(product: lazy.Reduce) -> bool:
    """Whether what is no attention's scores is made again, and not stored, for its size alone."""
    return _depth(product) <= DEEP or is_long(product)


def _depth(product: LazyBuffer) -> int:
    return product.sources[0].size // max(1, product.size)


def is_long(product: LazyBuffer) -> bool:
    """Whether a product is so much larger than its factors that it is not stored."""
    return product.size >= LONG * max(narrowest(factor).size for factor in factors_of(product))


def in_halves(product: LazyBuffer) -> bool:
    """Whether tensor cores make a product."""
    return all(narrowest(factor).dtype.is_half for factor in factors_of(product))


def factors_of(product: LazyBuffer) -> tuple[LazyBuffer, ...]:
    """What is multiplied for a product."""
    return added_by(product).sources
