"""Search: the fastest list of Opts that could be found for a kernel, by trying them.

search      Kernel, OpenDevice, width -> Opt*     a beam, from what the rules of thumb choose
candidates  Opt* -> (Opt*)*                       lists that differ a little, or by other beliefs
trial       Opt* -> seconds                       if programs are right, and run to their end
runner      Program, scratch memory -> seconds    compiled, checked against the default, timed
apart       the same, in a process that may fail

BEAM=n asks for it. In each round the n fastest lists so far are varied; of the new ones those that
the cost model takes for the fastest are tried, until a round brings nothing or time is up. The
winner is kept in the disk cache by kernel, machine, compiler and n.
"""

from tinyml.search.beam import Found, found, search
from tinyml.search.candidates import Opts
from tinyml.search.trial import Trial

__all__ = ["Found", "Opts", "Trial", "found", "search"]
