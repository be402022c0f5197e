"""Kernel in, source text and launch size out. Knows no memory, no machine, no tensor.

lower.py   Kernel       -> LoopNest      movement becomes index arithmetic
choose     LoopNest     -> Opts          rules of thumb for a target
optimize   LoopNest     -> LoopNest      axes are split and bound, as a list of Opts says
linearize  LoopNest     -> LinearKernel  folds become accumulators
text       LinearKernel -> Program       instructions become C or CUDA C

What is passed on is in this folder (expr.py, nest.py, linear.py), and so is what all rooms know of
it; compile.py goes the whole way, model.py says how long a LinearKernel takes. What one computes is
said in numpy by test/simulate.py, with which all programs are compared.
"""
