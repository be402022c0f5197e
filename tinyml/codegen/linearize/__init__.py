"""LoopNest to LinearKernel: instructions in program order."""
