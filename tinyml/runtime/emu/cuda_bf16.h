// Stands for CUDA's header of this name. What it declares is in emu_types.h.
