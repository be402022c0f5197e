"""Schedule: cut the lazy graph into kernels, in an order that respects reads and writes.

First passes that rewrite the graph (rewrite.py), in this order:

simplify     ops that change nothing are left out, where equal nodes become one (tinyml/merge.py)
split        a sum of sums is one sum; in the end, large reductions to few results are two steps
repeats      folds of what is the same all along an axis are made once
parts        folds of what was joined are made of each part by itself
terms        products of sums are sums of products of their terms
layouts      images that a card multiplies are stored with their channels innermost
associate    sums of products of products are made of those that are there
sweep        folds over what products make are done along one axis of these first
transpose    products are stored in the order in which they are read
regroup      what follows a sum element by element is made along the axes of the sum
rounded      what is compared with one of its own elements is rounded alike wherever it is made
levels       weights that kernels make again are made of one number of their row
layouts      floats that warpgroups multiply are copied so that they lie along the fold

Then what is left is cut:

recompute    large products that kernels make again, rather than store and read them
units        which nodes may get memory of their own, and why
inlined      who computes what is not stored, and how many times over
labels       which axis of a reader walks which axis of what it reads
group        units that become one kernel, and where their axes lie among its rows
fuse         units that share rows become groups
pieces       sums down columns join what walks their rows anyway
masks        what is 0, or -inf, is known without being read
writes       what an assignment changes of its target
layouts      rows that begin at whole vectors, as nobody sees what lies behind them
build        a group becomes a Kernel
"""

from __future__ import annotations

from tinyml.schedule.schedule import CopyItem, Item, KernelItem, Schedule, schedule

__all__ = ["CopyItem", "Item", "KernelItem", "Schedule", "schedule"]
