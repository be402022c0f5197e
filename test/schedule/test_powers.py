"""Powers of what is less than the largest are numbers that float16 has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tinyml import Tensor
from tinyml.schedule.powers import exact

X = Tensor.rand(4, 6)


@pytest.mark.parametrize(
    ("top", "known"),
    [
        (lambda x: x.max(1, keepdim=True), True),
        (lambda x: x.max(), True),
        (lambda x: x[:, :3].max(1, keepdim=True), False),  # which others exceed
        (lambda x: x.max(1, keepdim=True).flip(0), False),  # that of another row
    ],
    ids=["row", "all", "part", "another row"],
)
def test_a_power_is_at_most_one_where_all_of_its_row_are_led(
    top: Callable[[Tensor], Tensor], known: bool
) -> None:
    power = (X - top(X)).exp()
    assert exact(power.half()._lazy) == known
    assert exact((power / power.sum(1, keepdim=True)).half()._lazy) == known
    assert exact(power._lazy)  # float32 has all of them


def test_numbers_of_a_pad_are_as_large_as_they_are() -> None:
    power = (X - X.max(1, keepdim=True)).exp()
    assert not exact(power.pad((0, 2), value=1e5).half()._lazy)
