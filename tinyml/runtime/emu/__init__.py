"""EMU: the generated CUDA C, compiled by the host's C++ compiler and run thread by thread."""

from tinyml.runtime.emu.machine import EmuMachine, ThreadOrder

__all__ = ["EmuMachine", "ThreadOrder"]
