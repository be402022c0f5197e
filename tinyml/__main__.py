"""python -m tinyml: explain one expression, or say what is here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tinyml import config
from tinyml.device import Device
from tinyml.errors import TinymlError
from tinyml.explain import SHAPES, drawn, environment, explain, parse_shape
from tinyml.notation import shape_text

_NAMES = ", ".join(f"{name} {shape_text(shape)}" for name, shape in SHAPES.items())
_EPILOG = f"""names in EXPRESSION: {_NAMES}
(float32; i is int32, 0 to 3), Tensor, dtypes, and those that --shape makes

examples:
  python -m tinyml "(a + b).sum()"
  python -m tinyml "(x @ w + y).relu()" --device EMU
  python -m tinyml "a.softmax()" --shape a=32x1000 --noopt
  python -m tinyml "(a + b).sum()" --opts "lanes r1 8; unroll r0 4"
  python -m tinyml "x.softmax() @ w" --dot | dot -Tsvg > kernels.svg
  python -m tinyml env
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tinyml",
        description="Show every value on the way of one expression: lazy graph, schedule, Kernel, "
        "LoopNest, Opts, LinearKernel, source, result.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("expression", help="a Python expression, or env: what tinyml finds here")
    parser.add_argument("--device", help="NUMPY, CPU, CUDA or EMU")
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=4x256",
        help="a tensor of this shape; may be repeated",
    )
    parser.add_argument("--noopt", action="store_true", help="no Opts: the plainest loops")
    parser.add_argument(
        "--opts", metavar="OPTS", help="Opts of your own for its one kernel, between semicolons"
    )
    parser.add_argument(
        "--dot", action="store_true", help="only draw its kernels, in the language of Graphviz"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is 2 for what it cannot do."""
    given = _parser().parse_args(arguments)
    try:
        with config.override(noopt=given.noopt or config.current.noopt):
            if given.device:
                Device.DEFAULT = given.device
            if given.expression == "env":
                print(environment())
                return 0
            shapes = dict(map(parse_shape, given.shape))
            if given.dot:
                print(drawn(given.expression, shapes))
            else:
                explain(given.expression, shapes, print, given.opts)
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()
    except (TinymlError, TypeError, ValueError, IndexError, AttributeError) as error:
        kind = "" if isinstance(error, TinymlError) else f"{type(error).__name__}: "
        sys.stderr.write(f"python -m tinyml: {kind}{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
