"""Many small programs of all kinds beside torch eager, on one thread: where is tinyml slow?

    python benchmarks/sweep.py [--seconds 1] [--part 0/1] [words of names]

The programs are lines of sweep.txt: a name, inputs, an expression of x, y, z and w in tinyml's
words, and one in torch's, where it is another. An input is a letter of its dtype and sizes: f
float32, h float16, b bfloat16, d float64, c int8, u uint8, i int32, l int64, ? bool; p is float32
above 0, and l9:4x8 has integers below 9. "grad" before the inputs asks for the gradients of all
floats, too.

A replay's results are checked against torch's before anything is timed, except random ones. What
is compared is processor time, as other programs may use the machine, in interleaved rounds: the
least of a round's calls, and the median of the rounds' ratios. Below 1, tinyml takes longer; the
table that is printed last begins with the least.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks import machine  # noqa: E402
from benchmarks.run import KEEP_MEMORY  # noqa: E402
from tinyml import Tensor, TinyJit  # noqa: E402

ENVIRONMENT = {**KEEP_MEMORY, "THREADS": "1", "DEVICE": "CPU"}
HEAD = "| program | inputs | tinyml ms | torch ms | ratio |\n| --- | --- | ---: | ---: | ---: |"
DTYPES = {"f": "float32", "p": "float32", "h": "float16", "b": "bfloat16", "d": "float64",
          "c": "int8", "u": "uint8", "i": "int32", "l": "int64", "?": "bool"}  # fmt: skip
TOLERANCE = {"float16": 4e-3, "bfloat16": 4e-2, "float64": 1e-10}  # of the largest value
ROUND = 0.02  # seconds of calls

Call = Callable[[], Any]


def lstm(x: Any, h: Any, w: Any, u: Any) -> Any:
    """The last state of a cell that has seen x, step by step."""
    c = h
    for t in range(x.shape[0]):
        take, keep, new, show = (x[t] @ w + h @ u).chunk(4, -1)
        c = keep.sigmoid() * c + take.sigmoid() * new.tanh()
        h = show.sigmoid() * c.tanh()
    return h


def gru(x: Any, h: Any, w: Any, u: Any) -> Any:
    """The same of a gated recurrent unit."""
    for t in range(x.shape[0]):
        r, z, n = (x[t] @ w).chunk(3, -1)
        hr, hz, hn = (h @ u).chunk(3, -1)
        z = (z + hz).sigmoid()
        h = (1 - z) * (n + (r + hr).sigmoid() * hn).tanh() + z * h
    return h


def rnn(x: Any, u: Any) -> Any:
    """The same of a cell without gates."""
    h = x[0]
    for t in range(1, x.shape[0]):
        h = (x[t] + h @ u).tanh()
    return h


def adam(x: Any, g: Any, m: Any, v: Any) -> Any:
    """One step for many small tensors, which are rows."""
    made: list[Any] = []
    for i in range(x.shape[0]):
        a, b = m[i] * 0.9 + g[i] * 0.1, v[i] * 0.99 + g[i] * g[i] * 0.01
        made += [x[i] - 0.01 * a / (b.sqrt() + 1e-8), a, b]
    return made


def array(text: str, random: np.random.Generator) -> tuple[Any, str]:
    """The values of an input, and its dtype: "f32x8", or "l10:32", which is below 10."""
    found = re.fullmatch(r"(.)(?:(\d+):)?([\dx]+)", text)
    assert found is not None, text
    letter, below, sizes = found.groups()
    shape = tuple(map(int, sizes.split("x")))
    if letter in "cuil":
        return random.integers(0, int(below or 100), shape), DTYPES[letter]
    values = random.standard_normal(shape)
    if letter == "?":
        return values > 0, "bool"
    return np.abs(values) + 0.1 if letter == "p" else values, DTYPES[letter]


def inputs(spec: str) -> tuple[list[Any], list[torch.Tensor], bool]:
    """tinyml's and torch's, and whether there are to be gradients."""
    random = np.random.default_rng(0)
    words = spec.split()
    with_gradients = words[0] == "grad"
    ours, theirs = [], []
    for word in words[with_gradients:]:
        values, dtype = array(word, random)
        theirs.append(torch.from_numpy(np.ascontiguousarray(values)).to(getattr(torch, dtype)))
        wide = theirs[-1].float() if dtype == "bfloat16" else theirs[-1]
        ours.append(Tensor(wide.numpy()).cast(dtype).contiguous().realize())
    return ours, theirs, with_gradients


def spoken(text: str, library: Any) -> Callable[..., Any]:
    """An expression as a function of its inputs."""
    names = {
        "T": library,
        "F": torch.nn.functional,
        "lstm": lstm,
        "gru": gru,
        "rnn": rnn,
        "adam": adam,
    }
    function: Callable[..., Any] = eval(f"lambda x, y=None, z=None, w=None: {text}", names)
    return function


def listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, (list, tuple)) else [made]


def ours(text: str, tensors: list[Any], upstream: Any) -> Call:
    expression = spoken(text, Tensor)

    def program(*given: Any) -> list[Any]:
        if upstream is None:
            made = listed(expression(*given))
        else:
            *given, seed = given
            leaves = [t.detach().requires_grad_(True) if t.dtype.is_float else t for t in given]
            out = expression(*leaves)
            made = [out, *out.gradient(*(t for t in leaves if t.requires_grad), gradient=seed)]
        Tensor.realize(*made)
        return made

    given = [*tensors] if upstream is None else [*tensors, upstream]
    jitted = TinyJit(program)
    return lambda: jitted(*given)


def theirs(text: str, tensors: list[torch.Tensor], upstream: Any) -> Call:
    expression = spoken(text, torch)
    if upstream is None:
        return lambda: [t.contiguous() for t in listed(expression(*tensors))]
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
    wanted = [t for t in leaves if t.requires_grad]

    def call() -> list[torch.Tensor]:
        out = expression(*leaves)
        return [out, *torch.autograd.grad(out, wanted, upstream)]

    return call


def calls(spec: str, text: str, other: str = "") -> tuple[Call, Call]:
    """tinyml's and torch's, whose results are alike."""
    own, foreign, with_gradients = inputs(spec)
    random = text.startswith("random ")
    text, other = text.removeprefix("random "), other or text
    upstream = None, None
    if with_gradients:
        shape = spoken(other, torch)(*foreign)
        seed = torch.randn(shape.shape).to(shape.dtype)
        kind = str(seed.dtype).removeprefix("torch.")
        upstream = Tensor(seed.float().numpy()).cast(kind).contiguous().realize(), seed
    pair = ours(text, own, upstream[0]), theirs(other, foreign, upstream[1])
    for _ in range(4):
        made = pair[0]()
    expected = pair[1]()
    assert len(made) == len(expected)
    for a, b in zip(made, expected, strict=True) if not random else ():
        check(a, b)
    return pair


def check(a: Any, b: torch.Tensor) -> None:
    kind = str(b.dtype).removeprefix("torch.")
    x, y = a.cast("float64").numpy(), b.detach().double().numpy()
    assert x.shape == y.shape, f"shape {x.shape}, torch {y.shape}"
    off = np.abs(np.where(x == y, 0.0, x - y)).max() / max(np.abs(y[np.isfinite(y)]).max(), 1e-30)
    assert off <= TOLERANCE.get(kind, 1e-4), f"off by {off:.2g}"


def timed(call: Call, count: int) -> float:
    least = float("inf")
    call()
    for _ in range(count):
        start = time.process_time()
        made = call()
        least = min(least, time.process_time() - start)
        del made
    return least


def compared(pair: tuple[Call, Call], seconds: float) -> tuple[float, float, float]:
    """Least seconds of both, and the median of torch's over tinyml's."""
    counts = [max(1, min(1000, int(ROUND / max(timed(call, 1), 1e-6)))) for call in pair]
    rounds: list[list[float]] = []
    start = time.process_time()
    while len(rounds) < 5 or time.process_time() - start < seconds:
        rounds.append([timed(*each) for each in zip(pair, counts, strict=True)])
    own, other = (min(r) for r in zip(*rounds, strict=True))
    return own, other, statistics.median(b / a for a, b in rounds)


def line(program: list[str], seconds: float) -> tuple[float, str]:
    """What is found of one program, and its ratio."""
    name, spec, *texts = program
    try:
        own, other, ratio = compared(calls(spec, *texts), seconds)
    except Exception as error:  # the next ones are timed all the same
        return 0.0, f"| {name} | {spec} | {type(error).__name__}: {error} | | |"
    return ratio, f"| {name} | {spec} | {own * 1e3:.3g} | {other * 1e3:.3g} | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="parts of names")
    parser.add_argument("--seconds", type=float, default=1.0, help="of rounds, for each")
    parser.add_argument("--part", default="0/1", help="0/2 and 1/2: every second one, for two runs")
    args = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
    torch.set_num_threads(1)
    Tensor.training = True  # dropout drops
    listed = Path(__file__).with_suffix(".txt").read_text().splitlines()[1:]
    programs = [text.split(" ; ") for text in listed]
    chosen = [p for p in programs if not args.words or any(w in p[0] for w in args.words)]
    first, step = map(int, args.part.split("/"))
    rows = []
    for program in chosen[first::step]:
        rows.append(line(program, args.seconds))
        print(rows[-1][1], flush=True)
    facts = [f"- {name}: {value}" for name, value in machine.facts().items()]
    print("\n".join(["", *facts, "", HEAD, *(text for _, text in sorted(rows))]))


if __name__ == "__main__":
    main()
