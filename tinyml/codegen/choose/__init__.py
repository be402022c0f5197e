"""Which Opts a kernel gets on a target: rules of thumb for C and for CUDA."""
