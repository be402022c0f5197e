"""Schedule: cut the lazy graph into kernels, in an order that respects reads and writes.

simplify ops that change nothing are left out, where equal nodes become one (tinyml/merge.py)
parts    folds of what was joined are made of each part by itself
slices   what is made of products and cut is made of slices of factors
terms    products of sums are sums of products of their terms
associate sums of products of products are made of those that are there
channels images that a card multiplies are stored with their channels innermost
sweep    folds over what products make are done along one axis of these first
split    large reductions to few results are done in two steps
remake   large products that kernels make again, rather than store and read them
units    which nodes may get memory of their own, and why
labels   which axis of a reader walks which axis of what it reads
group    units that become one kernel, and where their axes lie among its rows
fuse     units that share rows become groups
masks    what is 0, or -inf, is known without being read
build    a group becomes a Kernel
"""

from __future__ import annotations

from tinyml.schedule.schedule import CopyItem, Item, KernelItem, Schedule, schedule

__all__ = ["CopyItem", "Item", "KernelItem", "Schedule", "schedule"]
