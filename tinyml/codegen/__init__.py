"""Kernel in, source text and launch size out. Knows no memory, no machine, no tensor.

lower      Kernel       -> LoopNest      movement becomes index arithmetic
optimize   LoopNest     -> LoopNest      axes are split and bound, as a list of Opts says
linearize  LoopNest     -> LinearKernel  folds become accumulators
render     LinearKernel -> Program       instructions become text
"""
