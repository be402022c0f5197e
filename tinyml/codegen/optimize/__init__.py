"""LoopNest to LoopNest: what each Opt makes of one, and what it is made with."""
