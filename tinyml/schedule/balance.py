"""Balance: whether a card stores a product of matrices for what is made of it, or makes it again.

A card's tensor cores do a hundred and more operations in the time in which its memory delivers a
byte, so that scores of attention are made again sooner than they are read; unless the fold that
makes them is long, and unless many blocks make them, each for some columns of what they meet. And
whatever it takes, a product that is much larger than its factors is not stored, so that memory
grows with the length of a row and not with its square. Likewise a factor is worth a copy that lies
as products copy it to their tiles, if it is multiplied for longer than it is copied.
"""

from __future__ import annotations

from tinyml import lazy
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op
from tinyml.schedule.units import narrowest

FLOPS = 150  # in the time of a byte: of a card's tensor cores at 0.6 of what they can do
COLUMNS = 256  # whose sums a warp keeps; of more, several blocks make the product
WIDEST = 1024  # that a fold may be: rows of it have room in shared memory, with what they meet
LONG = 8  # times as large as its larger factor: no such product is stored
SLOWER = 1.5  # than with scores in memory, at most, for the memory that they would take
# products that there are anyhow, and bytes that an element of scores moves if it is stored: it is
# written, read, made a weight; or what a step of GPT-2 moves for each, with all gradients
FORWARD, TRAINING = (2, 12), (6, 42)

SAVED = 0.15  # of a product's time, at least, if a factor is copied to tiles past the registers
LAUNCH = 6 << 20  # bytes in the time of a launch


def worth_a_copy(factor: LazyBuffer, times: int) -> bool:
    """Whether a factor, each of whose elements is multiplied so often, is worth a copy."""
    nbytes = 2 * factor.size * factor.dtype.itemsize + LAUNCH
    return SAVED * 2 * times * factor.size > FLOPS * nbytes


def made_by_blocks(product: lazy.Reduce, columns: int) -> bool:
    """Whether scores are made by each block that has some columns of what they are factors of."""
    times = _longer(_depth(product), _blocks(columns) - 1, *FORWARD)
    return times <= SLOWER or is_long(product)


def made_by_all(product: lazy.Reduce) -> bool:
    """Whether scores and their gradient are made wherever training reads them, and not stored."""
    return longer(_depth(product)) <= SLOWER or is_long(product)


def longer(depth: int) -> float:
    """How many times as long training takes without scores in memory, which fold so many.

    They are made for the result and for the gradient of the queries, of as many columns as the
    scores are sums of; and for those of keys and values together. Stored, both are made once.
    """
    return _longer(depth, 3 * _blocks(depth) + 2 * _blocks(2 * depth) - 2, *TRAINING)


def _longer(depth: int, again: int, products: int, nbytes: int) -> float:
    each = 2 * depth
    return each * (products + again) / (each * products + FLOPS * nbytes)


def _blocks(columns: int) -> int:
    return -(-columns // COLUMNS)


def _depth(product: lazy.Reduce) -> int:
    return product.sources[0].size // max(1, product.size)


def is_long(product: lazy.Reduce) -> bool:
    """Whether a product is so much larger than its factors that it is not stored."""
    node: LazyBuffer = product.sources[0]
    while isinstance(node, lazy.Map) and node.op is Op.CAST:
        node = node.sources[0]
    return product.size >= LONG * max(narrowest(factor).size for factor in node.sources)
