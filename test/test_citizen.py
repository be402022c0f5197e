"""A tensor is a good citizen of Python: numbers, containers, copies, contexts, threads."""

from __future__ import annotations

import copy
import math
import operator
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

import tinyml
from tinyml import Device, Tensor, defaults, dtypes, nn
from tinyml.config import from_environment, mistyped
from tinyml.errors import SettingError


def test_repr_shows_what_is_known_and_computes_nothing(device: str) -> None:
    lazy = Tensor([1.0, 2.0]) + 1
    assert repr(lazy) == f"<Tensor (2,) float32 on {device}, not computed yet>"
    assert repr(lazy.realize()) == f"Tensor([2., 3.], dtype=float32, device={device})"
    assert repr(Tensor(2.5)) == f"Tensor(2.5, dtype=float32, device={device})"
    assert repr(Tensor([True], dtype="bool")) == f"Tensor([ True], dtype=bool, device={device})"
    assert "shape=(0, 3)" in repr(Tensor.zeros(0, 3).contiguous().realize())
    assert "requires_grad=True" in repr(Tensor([1.0], requires_grad=True))
    assert "1.5" in repr(Tensor([1.5], dtype="bfloat16"))
    assert len(repr(Tensor(range(5000)))) < 200


def test_the_device_of_a_tensor_is_equal_to_all_that_names_it(device: str) -> None:
    name = Tensor([1.0]).device
    default: Any = Device.DEFAULT
    for known in (name, default, copy.deepcopy(name), pickle.loads(pickle.dumps(name))):
        assert all(known == equal for equal in (device, device.lower(), f"{device.lower()}:0"))
        assert not any(known != equal for equal in (device, device.lower(), name))
        assert not any(known == other for other in ("gpu", f"{device}:1", "", None, 1))
    assert {device: 1}[name] == 1
    with pytest.raises(AttributeError, match=rf"'type': .* x\.device == '{device}'"):
        _ = name.type  # type: ignore[attr-defined]
    with defaults(default_float="float64"):
        state = nn.optim.SGD([Tensor([1.0], device=default)], momentum=0.5).b
    assert {type(t.lazy.device) for t in state} == {str}  # nodes are compared often
    assert Device.available(device.lower())
    assert not Device.available("gpu")
    assert Tensor([1.0], device=name).device == name


def test_numbers(device: str) -> None:
    half = Tensor(2.5)
    assert f"{half:.2f} {half}" == "2.50 2.5"
    assert f"{Tensor([1.0]).realize()}" == repr(Tensor([1.0]))
    assert (int(half), float(half), bool(half), complex(half)) == (2, 2.5, True, 2.5)
    assert (math.floor(half), math.sqrt(Tensor(4.0))) == (2, 2.0)
    assert [10, 20, 30][Tensor(1)] == 20
    assert list(range(Tensor(3))) == [0, 1, 2]
    assert hex(Tensor([255])) == "0xff"
    with pytest.raises(TypeError, match="float32"):
        operator.index(half)
    with pytest.raises(TypeError, match="shape"):
        format(Tensor([1.0, 2.0]), ".2f")


def test_operators_that_python_has_besides(device: str, compare: Any) -> None:
    x, y = Tensor([7.25, -7.25]), Tensor([2.0, 2.0])
    quotient, rest = divmod(x, y)
    back, remains = divmod(9, y)
    pairs = {
        "quotient": (quotient, [3, -4]),
        "rest": (rest, [1.25, 0.75]),
        "reflected quotient": (back, [4, 4]),
        "reflected rest": (remains, [1, 1]),
        "round": (round(x), [7, -7]),
        "to tenths": (round(x, 1), [7.2, -7.2]),
        "plus": (+x, [7.25, -7.25]),
    }
    compare({name: (t, list(map(float, v))) for name, (t, v) in pairs.items()})
    assert round(Tensor([15]), 1).tolist() == [15]


def test_containers(device: str) -> None:
    x = Tensor([[1, 2], [3, 4]])
    assert (len(x), [row.tolist() for row in x]) == (2, [[1, 2], [3, 4]])
    _, second = x
    assert second.tolist() == [3, 4]
    assert 3 in x
    assert 5 not in x
    assert "a" not in x
    assert x.mT.tolist() == [[1, 3], [2, 4]]
    assert (x.size(), x.size(-1), x.nbytes(), x.element_size()) == ((2, 2), 2, 16, 4)


def test_equality_is_by_element_and_hashing_by_identity() -> None:
    x, y = Tensor([1, 2]), Tensor([1, 2])
    assert (x == y).tolist() == [True, True]
    assert len({x, y, x}) == 2
    assert {x: "x"}[x] == "x"
    assert x in [x]
    for other in (None, "a", object(), {1}):
        assert (x == other) is False
        assert (x != other) is True
    with pytest.raises(ValueError, match=r"\.any\(\) or \.all\(\)"):
        assert x in [y]


def test_copies_are_independent(device: str) -> None:
    base = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    base.sum().backward()
    view = base.detach()[1].cast("bfloat16")
    for made in (copy.deepcopy(view), copy.copy(view), pickle.loads(pickle.dumps(view))):
        base.assign(base.detach() * 10).realize()
        assert made.tolist() == [3, 4]
        assert made.dtype is dtypes.bfloat16
        base.assign(base.detach() / 10).realize()
    deep = copy.deepcopy(base)
    assert deep.requires_grad
    assert deep.grad is not None
    assert deep.grad is not base.grad
    shared = [base, base]
    copied = copy.deepcopy(shared)
    assert copied[0] is copied[1]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_views_are_copied_with_what_they_show(device: str, duplicate: Any) -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0])
    part, turned, whole, again = duplicate([x[1:3], x.reshape(2, 2).T, x, x.detach()])
    whole[1] = 5
    assert part.tolist() == [5, 3]
    part[1], again[0] = 6, 7
    assert whole.tolist() == [7, 5, 6, 4]
    assert turned.tolist() == [[7, 6], [5, 4]]
    assert x.tolist() == [1, 2, 3, 4]


def test_a_copied_view_is_a_leaf(device: str) -> None:
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    w.grad = w.detach()  # a view of w, which is copied with it
    twin, part = copy.deepcopy((w, w[1:]))
    (part * 2).sum().backward()
    assert part.grad.tolist() == [2, 2]
    assert twin.grad.tolist() == [1, 2, 3]
    twin.assign(twin.detach() + 1)
    assert twin.grad.tolist() == [2, 3, 4]


def test_a_shallow_copy_shares_the_memory(device: str) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    other = copy.copy(x)
    assert other.requires_grad
    other.assign(other.detach() * 2)
    assert x.tolist() == [2, 4]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_models_and_optimizers_are_copied_together(device: str, duplicate: Any) -> None:
    layer = nn.Linear(2, 1)
    optimizer = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.5, momentum=0.9)
    twin, its_optimizer = duplicate((layer, optimizer))
    assert its_optimizer.params[0] is twin.weight
    before = layer.weight.tolist()
    with Tensor.train():
        twin(Tensor.ones(1, 2)).sum().backward()
        its_optimizer.step()
    assert layer.weight.tolist() == before
    assert twin.weight.numpy() == pytest.approx(layer.weight.numpy() - 0.5)


def test_defaults_for_a_while() -> None:
    before = Device.DEFAULT
    with defaults(device="numpy", default_float="float64", default_int=dtypes.int64):
        t = Tensor([1.0])
        assert (t.device, t.dtype, Tensor([1]).dtype) == ("NUMPY", dtypes.float64, dtypes.int64)
        with defaults(default_float="float16"):
            assert (Tensor(1.0).dtype, Tensor(1.0).device) == (dtypes.float16, "NUMPY")
        assert Tensor(1.0).dtype is dtypes.float64
    assert (Device.DEFAULT, dtypes.default_float) == (before, dtypes.float32)

    @defaults(device="NUMPY")
    def inside() -> str:
        return Tensor([1.0]).device

    assert inside() == "NUMPY"
    with pytest.raises(KeyError), defaults(device="NUMPY"):
        raise KeyError
    assert before == Device.DEFAULT
    for name, wrong in (("default_float", "int32"), ("default_int", "float32")):
        with pytest.raises(TypeError, match=f"{name} is one of .*, not {wrong}"):
            defaults(**{name: wrong})


def test_the_package_says_what_it_has() -> None:
    names: dict[str, Any] = {}
    exec("from tinyml import *", names)
    assert set(tinyml.__all__) <= set(names)
    assert set(tinyml.__all__) <= set(dir(tinyml))
    assert names["TinyJit"].__module__ == "tinyml.jit"
    with pytest.raises(AttributeError, match="no attribute 'Tensors'"):
        tinyml.Tensors  # noqa: B018


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("THREADS", "-3", "a whole number from 0 on"),
        ("SEED", "1.5", "a whole number from 0 on"),
        ("NOOPT", "2", "1, true, yes or on, or 0, false, no or off"),
        ("DEVICE", "TPU", "NUMPY, CPU, CUDA or EMU"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(name: str, text: str, wanted: str) -> None:
    with pytest.raises(SettingError, match=f"{name}='{text}'.*must be {wanted}$"):
        from_environment({name: text})
    assert from_environment({name: ""}) == from_environment({})


def test_a_device_is_named_in_the_environment_as_elsewhere() -> None:
    assert [from_environment({"DEVICE": name}).device for name in ("cpu", " EMU", "cuda:0")] == [
        "CPU",
        "EMU",
        "CUDA",
    ]


def test_importing_with_a_setting_that_cannot_be_meant_ends_in_a_sentence() -> None:
    command = [sys.executable, "-c", "import tinyml"]
    wrong = {**os.environ, "DEVICE": "foo"}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=wrong)
    *where, sentence = found.stderr.splitlines()
    assert sentence.endswith(
        "SettingError: DEVICE='foo' in the environment must be NUMPY, CPU, CUDA or EMU"
    )
    assert sum(line.startswith("  File") for line in where) == 3  # the program, tinyml, config


def test_a_switch_is_turned_by_the_usual_words() -> None:
    on = [from_environment({"NOOPT": word}) for word in ("1", "true", "True", "yes", "on ")]
    off = [from_environment({"JIT": word}) for word in ("0", "false", "no", "OFF", "")]
    assert all(settings.noopt for settings in on)
    assert not any(settings.jit for settings in off)


def test_a_switch_may_be_left_to_the_card() -> None:
    found = [from_environment({"WARPGROUPS": word}).warpgroups for word in ("on", "0", "")]
    assert found == [True, False, None]
    with pytest.raises(SettingError, match="must be 1, true"):
        from_environment({"WARPGROUPS": "2"})


@pytest.mark.parametrize("name", ["DEBG", "DEBUUG", "DEUBG", "DE_BUG", "TINYML_DEBUG", "DEBU"])
def test_a_mistyped_setting_is_told(name: str) -> None:
    assert mistyped({name: "2"}) == [
        f"{name}='2' in the environment is no setting of tinyml; DEBUG is"
    ]


def test_variables_of_other_programs_are_nobodys_mistake() -> None:
    others = {"SED": "1", "BEM": "1", "CXX": "g++", "DEBUG": "1", "debug": "1", "NTHREADS": "4"}
    assert not mistyped({**others, "DEBUGINFOD_URLS": "1", "DEBG": "/var/log", "VERIFYY": "peer"})


def test_importing_warns_of_mistyped_settings_alone() -> None:
    code = "import tinyml, tinyml.nn, tinyml.jit; print(tinyml.Tensor([1.0]).tolist())"
    command = [sys.executable, "-W", "error", "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("[1.0]\n", "")
    wrong = {**os.environ, "DEBG": "2"}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=wrong)
    assert found.stderr.endswith(
        "UserWarning: DEBG='2' in the environment is no setting of tinyml; DEBUG is\n"
    )


class Celsius:
    """Somebody else's numbers, which know what to do with a tensor."""

    def __radd__(self, other: Tensor) -> str:
        return f"{other.tolist()} degrees"

    def __gt__(self, other: Any) -> bool:
        return True

    def __rmatmul__(self, other: Tensor) -> Any:
        return NotImplemented


def test_an_operand_that_is_not_known_is_asked() -> None:
    x = Tensor([1.0, 2.0])
    answers: list[Any] = [x + Celsius(), x < Celsius()]
    assert answers == ["[1.0, 2.0] degrees", True]
    with pytest.raises(TypeError, match=r"sub: a Tensor goes together with.*Celsius"):
        x - Celsius()
    with pytest.raises(TypeError, match=r"matmul.*Celsius"):
        x @ Celsius()
    with pytest.raises(TypeError, match=r"lt: a Tensor goes together with.*'a'"):
        x < "a"  # noqa: B015
    with pytest.raises(TypeError, match=r"mod: a Tensor goes together with.*'a'"):
        x % "a"


@pytest.mark.parametrize(
    ("op", "values", "other"),
    [
        *((op, [-7.5, 7.5, 6.0], 2.0) for op in ("iadd", "isub", "imul", "itruediv")),
        *((op, [-7.5, 7.5, 6.0], 2.0) for op in ("ifloordiv", "imod", "ipow")),
        *((op, [-7, 7, 6], 2) for op in ("ifloordiv", "imod", "ipow", "iand", "ior", "ixor")),
        *((op, [-7, 7, 6], 2) for op in ("ilshift", "irshift")),
    ],
)
def test_operators_in_place_write_what_the_plain_ones_give(
    op: str, values: Any, other: Any
) -> None:
    x, plain = Tensor(values).realize(), getattr(operator, op[1:], None)
    plain = plain or getattr(operator, f"{op[1:]}_")
    same, seen = x, x[1:]
    wanted = plain(Tensor(values), other).tolist()
    x = getattr(operator, op)(x, other)
    assert x is same
    assert (x.tolist(), seen.tolist()) == (wanted, wanted[1:])


def test_a_matrix_product_in_place_is_another_tensor() -> None:
    x = same = Tensor.ones(2, 3).realize()
    x @= Tensor.ones(3, 4)
    assert (x.shape, same.shape) == ((2, 4), (2, 3))


def test_to_takes_a_dtype_too(device: str) -> None:
    assert Tensor([1.5]).to(dtypes.int32).tolist() == [1]
    assert Tensor([1.5]).to("NUMPY").device == "NUMPY"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([[1], [1, 2]], r"but \[0\] has 1 element and \[1\] has 2 elements"),
        ([1, [2]], r"but \[0\] is no list and \[1\] has 1 element"),
        ([[[1], [2]], [[3], []]], r"but \[0\]\[0\] has 1 element and \[1\]\[1\] has 0"),
    ],
)
def test_a_list_that_is_not_rectangular(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"Tensor: a nested list must be rectangular, {words}"):
        Tensor(value)
