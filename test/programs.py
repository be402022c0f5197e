"""Random programs of views, writes, derived values, draws and optimizer steps.

    program ::= Step*
    Step    ::= (op, number*)

Numbers are taken modulo what there is to choose from, so that every list of numbers is a program,
and a shorter one is simpler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinyml import Tensor, enable_grad, no_grad
from tinyml.errors import ShapeError
from tinyml.nn.optim import SGD, Adam, Optimizer

Step = tuple[str, tuple[int, ...]]
NUMBERS = 8
SLICES = (
    slice(1, None),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(None, 2),
    slice(2, 0, -2),
)


@dataclass
class State:
    """What lives outside of the function: tensors of several dtypes, and optimizers."""

    held: list[Tensor]
    optimizers: list[Optimizer]
    inner: Callable[[Tensor], Tensor] = lambda x: x  # a function of its own, with state of its own

    @staticmethod
    def of(device: str, other: str, trained: bool) -> State:
        """A float matrix (a parameter if `trained`), an int one, halves, one elsewhere, views."""
        values = np.arange(9).reshape(3, 3) % 5 - 2
        w = Tensor(values.astype(np.float32), device=device, requires_grad=trained or None)
        counts = Tensor(values.astype(np.int32), device=device)
        halves = Tensor(values.astype(np.float16), device=device)
        elsewhere = Tensor(values.astype(np.float32), device=other)
        Tensor.realize(w, counts, halves, elsewhere)
        optimizers = [SGD([w], lr=0.125, momentum=0.5), Adam([w], lr=0.1)] if trained else []
        with no_grad():
            return State([w, counts, halves, elsewhere, w[1], counts.T], optimizers)

    def counting(self) -> Callable[[Tensor], Tensor]:
        """Something that changes the counts, and says what they were."""
        counts = self.held[1]

        def count(x: Tensor) -> Tensor:
            before = counts.float().to(x.device) * x.sum()
            counts.assign((counts + 1) % 5)
            counts[0] = counts[1:].sum(0)
            return before.clip(-9, 9)

        return count


@dataclass
class Run:
    """One run of a program: tensors by number, those of the state first, then the arguments."""

    state: State
    tensors: list[Tensor]
    places: Tensor  # (3,) integers from -3 to 2
    mask: Tensor  # (3, 3) bools
    trained: bool
    told: list[str] = field(default_factory=list)

    def go(self, program: list[Step]) -> list[Tensor]:
        """All tensors that the program has made."""
        for op, numbers in program:
            chosen = iter(numbers)
            if op == "train":
                OPS[op](self, chosen)
            elif self.trained:
                with no_grad():
                    OPS[op](self, chosen)
            else:
                OPS[op](self, chosen)
        return self.tensors

    def pick(self, chosen: Iterator[int]) -> tuple[int, Tensor]:
        """Some tensor."""
        n = next(chosen) % len(self.tensors)
        return n, self.tensors[n]

    def like(self, x: Tensor, chosen: Iterator[int]) -> tuple[Any, str]:
        """Something of this shape and on this device: a number, or a tensor of any dtype."""
        number = next(chosen)
        fitting = [
            n for n, t in enumerate(self.tensors) if t.shape == x.shape and t.device == x.device
        ]
        if not fitting or number % 4 == 0:
            return number % 5 - 2, str(number % 5 - 2)
        n = fitting[number % len(fitting)]
        return self.tensors[n], f"t{n}"

    def add(self, tensor: Tensor, text: str) -> None:
        """One more tensor."""
        self.told.append(f"t{len(self.tensors)} = {text}")
        self.tensors.append(tensor)

    def index(self, x: Tensor, chosen: Iterator[int]) -> Any:
        """Integers and slices, also with steps, for some axes."""
        items: list[Any] = []
        for n in x.shape[: next(chosen) % (x.ndim + 1)]:
            number = next(chosen)
            whole = number % 3 == 0 and n
            items.append(number % (2 * n) - n if whole else SLICES[number % len(SLICES)])
        return tuple(items)

    def here(self, tensor: Tensor, x: Tensor) -> Tensor:
        """The tensor on the device of x."""
        return tensor.to(x.device)


def _small(x: Tensor) -> Tensor:
    return x.clip(-9, 9)


def _fitted(value: Any, x: Tensor) -> Any:
    """The value as x can hold it."""
    return value.cast(x.dtype) if isinstance(value, Tensor) else value


# ---- steps ----


def view(run: Run, chosen: Iterator[int]) -> None:
    """A view, perhaps of a view."""
    n, x = run.pick(chosen)
    kind = next(chosen) % 9
    if kind < 3:
        index = run.index(x, chosen)
        run.add(x[index], f"t{n}[{index}]")
    elif kind == 3:
        run.add(x.T, f"t{n}.T")
    elif kind == 4:
        run.add(x.reshape(-1), f"t{n}.reshape(-1)")
    elif kind == 5 and x.ndim == 2:
        run.add(x.diagonal(), f"t{n}.diagonal()")
    elif kind == 6 and x.ndim:
        run.add(x[:1].expand(3, *x.shape[1:]), f"t{n}[:1].expand(3, ..)")
    elif kind == 7:
        run.add(x.contiguous(), f"t{n}.contiguous()")
    else:
        run.add(x.detach(), f"t{n}.detach()")


def siblings(run: Run, chosen: Iterator[int]) -> None:
    """Views of a value that nobody holds."""
    n, x = run.pick(chosen)
    value = _small(x * 2 + 1)
    first, second = value[run.index(x, chosen)], value.T
    run.add(first, f"(t{n} * 2 + 1)[..]")
    run.add(second, "the same .T")


def forget(run: Run, chosen: Iterator[int]) -> None:
    """A tensor that was made here."""
    made = len(run.state.held) + 1
    if len(run.tensors) > made:
        n = made + next(chosen) % (len(run.tensors) - made)
        del run.tensors[n]
        run.told.append(f"forget t{n}: the later ones move up")


def nested(run: Run, chosen: Iterator[int]) -> None:
    """A function that may be captured on its own, too."""
    n, x = run.pick(chosen)
    w = run.state.held[0]
    if (x.shape, x.dtype, x.device) == (w.shape, w.dtype, w.device):
        run.add(run.state.inner(x), f"inner(t{n})")


def differentiate(run: Run, chosen: Iterator[int]) -> None:
    """A gradient in between."""
    n, x = run.pick(chosen)
    w = run.state.held[0]
    if x.shape == w.shape and x.device == w.device:
        with enable_grad():
            (grad,) = (w * w * x.detach()).sum(1).tanh().sum().gradient(w)
        run.add(_small(grad), f"a gradient with t{n}")


def derive(run: Run, chosen: Iterator[int]) -> None:
    """A value of its own."""
    n, x = run.pick(chosen)
    name = list(DERIVED)[next(chosen) % len(DERIVED)]
    run.add(_small(DERIVED[name](run, x)), f"{name}(t{n})")


DERIVED: dict[str, Callable[[Run, Tensor], Tensor]] = {
    "clone": lambda run, x: x.clone(),
    "contiguous": lambda run, x: x.contiguous(),
    "scaled": lambda run, x: x * 2 - 1,
    "float": lambda run, x: x.float() * 0.5,
    "int": lambda run, x: x.int(),
    "sum": lambda run, x: x.sum(0, keepdim=True) - x if x.ndim else x,
    "flip": lambda run, x: x.flip(0) if x.ndim else x,
    "rows": lambda run, x: x[run.here(run.places, x)] if x.ndim and x.shape[0] == 3 else x,
    "gather": lambda run, x: (
        x.gather(0, (run.here(run.places, x) % 3).reshape(3, 1).expand(3, x.shape[1]))
        if x.ndim == 2 and x.shape[0] == 3 and x.shape[1]
        else x
    ),
    "masked": lambda run, x: (
        x.masked_fill(run.here(run.mask, x), 3) if x.shape == (3, 3) else x
    ),
    "draw": lambda run, x: x + (Tensor.rand(*x.shape, device=x.device) * 8).floor(),
    "dropout": lambda run, x: x.float().dropout(0.5),
    "elsewhere": lambda run, x: run.here(x.to("NUMPY") + 1, x),
    "running": lambda run, x: x.cumsum(0) if x.ndim else x,
}  # fmt: skip


@contextmanager
def refusing_repeated(run: Run) -> Iterator[None]:
    """Elements that an expand repeats cannot be written to."""
    try:
        yield
    except ShapeError as error:
        if "several elements of the target are one" not in str(error):
            raise
        run.told.append("refused:")


def assign(run: Run, chosen: Iterator[int]) -> None:
    """All of it."""
    n, x = run.pick(chosen)
    value, text = run.like(x, chosen)
    if isinstance(value, Tensor) and x.ndim == 2 and x.shape[0] == x.shape[1] and next(chosen) % 2:
        value, text = value.T, f"{text}.T"
    with refusing_repeated(run):
        x.assign(_fitted(value, x))
    run.told.append(f"t{n}.assign({text})")


def in_place(run: Run, chosen: Iterator[int]) -> None:
    """Operators in place."""
    n, x = run.pick(chosen)
    value, text = run.like(x, chosen)
    with refusing_repeated(run):
        x += _fitted(value, x)
        x.assign(_small(x))
    run.told.append(f"t{n} += {text}, clipped")


def put(run: Run, chosen: Iterator[int]) -> None:
    """A part of it: by slices, integers, a tensor of integers, or a mask."""
    n, x = run.pick(chosen)
    kind = next(chosen) % 4
    index: Any = run.index(x, chosen)
    if kind == 1 and x.ndim and x.shape[0] == 3:
        index = run.here(run.places, x)
    elif kind == 2 and x.shape == (3, 3):
        with refusing_repeated(run):
            x[run.here(run.mask, x)] = 4
        run.told.append(f"t{n}[mask] = 4")
        return
    elif kind == 3 and x.ndim == 2 and x.shape[1] == 3:
        index = (slice(None, None, 2), run.here(run.places, x))
    value, text = run.like(x[index], chosen)
    more = next(chosen) % 2
    with refusing_repeated(run):
        if more:
            x[index] += _fitted(value, x)
        else:
            x[index] = value
    run.told.append(f"t{n}[{index}] {'+=' if more else '='} {text}")


def shift(run: Run, chosen: Iterator[int]) -> None:
    """A tensor copied onto itself."""
    n, x = run.pick(chosen)
    if x.ndim:
        with refusing_repeated(run):
            x[1:] = x[:-1]
        run.told.append(f"t{n}[1:] = t{n}[:-1]")


def train(run: Run, chosen: Iterator[int]) -> None:
    """A step of an optimizer."""
    if not run.trained:
        return
    optimizer = run.state.optimizers[next(chosen) % len(run.state.optimizers)]
    w, x = run.state.held[0], run.tensors[len(run.state.held)]
    optimizer.zero_grad()
    ((w * x.detach()).sum(1) - 1).square().mean().backward()
    optimizer.step()
    run.told.append(f"{type(optimizer).__name__} step")


def realize(run: Run, chosen: Iterator[int]) -> None:
    """In the middle."""
    (n, x), (m, y) = run.pick(chosen), run.pick(chosen)
    Tensor.realize(x, y)
    run.told.append(f"realize(t{n}, t{m})")


OPS: dict[str, Callable[[Run, Iterator[int]], None]] = {
    f.__name__: f
    for f in (view, siblings, derive, differentiate, assign, in_place, put, shift, train)
} | {"realize": realize, "nested": nested, "forget": forget}
