"""A user's program, with all that most of them use: what mypy makes of it is in test_typing.py.

It also runs. `assert_type` is not content with Any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tinyml
from tinyml import Device, Tensor, TinyJit, checkpoint, dtypes, nn, no_grad
from tinyml.dtype import DType
from tinyml.nn import optim, state

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:

    def assert_type(value: object, _: object) -> object:
        return value


def operators(x: Tensor) -> None:
    """Arithmetic with tensors and numbers, on both sides."""
    assert_type(x + 1, Tensor)
    assert_type(1 - x, Tensor)
    assert_type(2.0 / x, Tensor)
    assert_type(x @ x.T, Tensor)
    assert_type(-(abs(x) ** 2), Tensor)
    assert_type(x == 1, Tensor)
    assert_type((x > 0) & ~(x < 1), Tensor)
    x += 1
    x *= 2
    assert_type(x, Tensor)
    assert_type(divmod(x, 2), tuple[Tensor, Tensor])


def methods(x: Tensor) -> None:
    """Ops of each family."""
    assert_type(x.exp().sigmoid().relu(), Tensor)
    assert_type(x.softmax(axis=-1), Tensor)
    assert_type(x.sum(axis=0, keepdim=True).max(), Tensor)
    assert_type(x.std_mean(), tuple[Tensor, Tensor])
    assert_type(x.reshape(-1).cat(x.flatten(), dim=0), Tensor)
    assert_type(x.split(1), tuple[Tensor, ...])
    values, indices = x.sort()
    assert_type((values, indices), tuple[Tensor, Tensor])
    assert_type(x.topk(1).indices, Tensor)
    assert_type(x.where(1.0, x), Tensor)
    assert_type(Tensor.stack(x, x), Tensor)
    assert_type(Tensor.einsum("ij,ij->i", x, x), Tensor)
    assert_type(Tensor.rand(2, 3).cast("float16").half(), Tensor)
    assert_type(x.allclose(x), bool)


def indexing(x: Tensor) -> None:
    """What stands in brackets."""
    assert_type(x[0], Tensor)
    assert_type(x[..., 1:, None], Tensor)
    assert_type(x[Tensor([0, 1]), [1, 0]], Tensor)
    x[0] = 1
    x[:, 1] += 2
    for row in x:
        assert_type(row, Tensor)


def facts(x: Tensor) -> None:
    """What a tensor is."""
    assert_type(x.shape, tuple[int, ...])
    assert_type(x.size(), tuple[int, ...])
    assert_type(x.size(0), int)
    assert_type(x.dtype, DType)
    assert_type(x.device, str)
    assert_type(x.grad, Tensor | None)
    assert_type(x.sum().item(), bool | int | float)
    assert_type(float(x.sum()), float)
    assert_type(len(x) + x.ndim + x.numel(), int)
    assert_type(Device.DEFAULT, str)
    assert_type(dtypes.finfo(dtypes.float32), tuple[int, int])


def pooling(images: Tensor) -> None:
    """What comes back depends on an argument."""
    assert_type(images.max_pool2d(), Tensor)
    assert_type(images.max_pool2d(2, return_indices=False), Tensor)
    best, places = images.max_pool2d(2, return_indices=True)
    assert_type(best, Tensor)
    assert_type(places, Tensor)


class Model:
    """Two layers."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)
        self.norm = nn.LayerNorm(4)

    def __call__(self, x: Tensor) -> Tensor:
        """(n, 3) to (n, 1)."""
        hidden = checkpoint(self.hidden, x)
        return assert_type(self.second(assert_type(hidden, Tensor)), Tensor)

    def hidden(self, x: Tensor) -> Tensor:
        """(n, 3) to (n, 4)."""
        return x.sequential([self.first, Tensor.relu, self.norm])

    @TinyJit
    def predict(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """A jitted method."""
        return (self(x) * scale).realize()


def training() -> float:
    """A loop with an optimizer and a jitted step."""
    model = Model()
    optimizer = optim.Adam(state.get_parameters(model), lr=0.01)

    @TinyJit
    def step(x: Tensor, *, times: int = 1) -> tuple[Tensor, Tensor]:
        loss = model(x).square().mean() * times
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.realize(), x.realize()

    with Tensor.train():
        for _ in range(3):
            loss, same = step(Tensor.ones(2, 3), times=2)
    assert_type(step(Tensor.ones(2, 3)) if TYPE_CHECKING else (loss, same), tuple[Tensor, Tensor])
    assert_type(model.predict(Tensor.ones(2, 3), scale=2.0), Tensor)
    model.predict.reset()
    state.load_state_dict(model, state.get_state_dict(model))
    return loss.item()


@no_grad()
def decorated(x: Tensor, name: str) -> tuple[Tensor, str]:
    """A function under no_grad."""
    return x + 1, name


def contexts(x: Tensor) -> None:
    """no_grad, the seed, and defaults."""
    assert_type(decorated(x, "a"), tuple[Tensor, str])
    with no_grad():
        assert_type(x * 2, Tensor)
    tinyml.manual_seed(1)
    with tinyml.defaults(default_float="float64", default_int=dtypes.int64):
        assert_type(x.gradient(x) if TYPE_CHECKING else [x], list[Tensor])


def main() -> None:
    """All of it."""
    x = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    for part in (operators, methods, indexing, facts, contexts):
        part(x.clone())
    pooling(Tensor.ones(1, 1, 4, 4))
    training()
