"""What tinyml calls otherwise than torch and numpy do: the error says how it is written here."""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tinyml
from tinyml import Device, Tensor, defaults, dtypes, nn
from tinyml.errors import DeviceError, GradientError
from tinyml.functional import missing
from tinyml.functional.missing import OF_MODULES

TOLD = missing.told()
KNOWN = TOLD["Tensor"]
X = np.array([[0.3, -0.25, 0.5], [0.75, 0.5, -1.5]])
Y = np.array([[1.5, -0.5, 2.0], [0.5, 0.25, -0.75]])
Z = np.array([[2.0, 1.0], [-1.0, 3.0]])
OF_ONE = """absolute adjoint aminmax count_nonzero cov deg2rad diff erfc fix fliplr flipud frac
msort nan_to_num nanmean nansum negative rad2deg ravel sgn t"""
OF_TWO = """dist divide equal expand_as floor_divide fmod greater greater_equal heaviside
hypot kron less less_equal multiply not_equal remainder reshape_as subtract true_divide xlogy"""


@pytest.fixture(autouse=True)
def _reference() -> Iterator[None]:
    with defaults(device="NUMPY"):
        yield


def instead(name: str) -> Any:
    """What the sentence about `name` tells to write, written."""
    given = {"x": Tensor(X), "y": Tensor(Y), "z": Tensor(Z), "i": Tensor([[0, 1, 1], [1, 0, 1]])}
    if name in ("mm", "bmm", "addmm", "baddbmm"):
        given["y"] = given["y"].mT
    names = {"Tensor": Tensor, "tinyml": tinyml, "nn": nn, "numpy": np, "array": X}
    names["math"] = math
    return eval(KNOWN[name], names | given)


def said(thing: Any, name: str) -> str:
    with pytest.raises(AttributeError) as caught:
        getattr(thing, name)
    return str(caught.value)


@pytest.mark.filterwarnings("ignore:.* by itself does nothing")
@pytest.mark.parametrize("name", KNOWN)
def test_what_is_told_can_be_written(name: str) -> None:
    assert said(Tensor(X), name) == f"Tensor has no attribute {name!r}; write {KNOWN[name]}"
    assert instead(name) is not None


@pytest.mark.parametrize(
    "name", f"{OF_ONE} {OF_TWO} pinverse slogdet trace logdet outer mm".split()
)
def test_what_is_told_is_what_torch_computes(name: str) -> None:
    torch = pytest.importorskip("torch")
    x, y, z = map(torch.from_numpy, (X, Y, Z))
    method = getattr(
        z if name in ("trace", "logdet", "slogdet") else x[0] if name == "outer" else x, name
    )
    other = {"outer": (y[0],), "mm": (y.mT,)}.get(name, (y,) if name in OF_TWO.split() else ())
    both = [v if isinstance(v, tuple) else (v,) for v in (instead(name), method(*other))]
    for one, right in zip(*both, strict=True):
        np.testing.assert_allclose(one.numpy() if isinstance(one, Tensor) else one, right, 1e-12)


def test_rules_for_names() -> None:
    told = {
        "add_": "write x += y",
        "relu_": "write x.assign(x.relu(...))",
        "arctanh": "write x.atanh()",
        "shpae": "did you mean 'shape'?",
        "softmx": "did you mean 'softmax'?",
    }
    for name, end in told.items():
        assert said(Tensor(X), name) == f"Tensor has no attribute {name!r}; {end}"
    for name in ("airy_ai", "_lzay", "__array_struct__"):
        assert said(Tensor(X), name) == f"Tensor has no attribute {name!r}"
    assert said(Tensor, "concat").endswith("write Tensor.cat(x, y, dim=0)")
    assert not hasattr(Tensor(X), "mm")


@pytest.mark.parametrize("name", TOLD["words"])
def test_what_takes_more_than_an_expression_is_told_in_words(name: str) -> None:
    assert said(tinyml, name).endswith(f"{name!r}; {TOLD['words'][name]}")
    assert said(Tensor(X), name).endswith(f"{name!r}; {TOLD['words'][name]}")


def test_words_about_images_are_what_torch_computes() -> None:
    torch = pytest.importorskip("torch")
    image = Tensor.arange(2 * 8 * 3 * 5).reshape(2, 8, 3, 5).float()
    for name, x in (("pixel_shuffle", image), ("pixel_unshuffle", image.repeat(1, 1, 2, 2))):
        found = eval(TOLD["words"][name].removeprefix("write "), {"x": x})
        right = getattr(torch.nn.functional, name)(torch.from_numpy(x.numpy()), 2)
        np.testing.assert_array_equal(found.numpy(), right)
    rows, columns = Tensor.linspace(-1, 1, 3).meshgrid(Tensor.linspace(-1, 1, 5))
    theta = Tensor.arange(12).reshape(2, 2, 3).float()
    names = {"Tensor": Tensor, "theta": theta, "rows": rows, "columns": columns}
    found = eval(TOLD["words"]["affine_grid"].removeprefix("write ").split(" of ")[0], names)
    right = torch.nn.functional.affine_grid(
        torch.from_numpy(theta.numpy()), [2, 1, 3, 5], align_corners=True
    )
    np.testing.assert_allclose(found.numpy(), right, 1e-6)


def test_words_about_fourier_series_and_jacobians_are_right() -> None:
    x, n = Tensor(X), 3
    angle = Tensor.arange(n).unsqueeze(1) * Tensor.arange(n) * (2 * math.pi / n)
    right = np.fft.fft(X)
    np.testing.assert_allclose((x @ angle.cos()).numpy(), right.real, atol=1e-6)
    np.testing.assert_allclose((-x @ angle.sin()).numpy(), right.imag, atol=1e-6)
    y = (x[0] * x[0]).cumsum(0)
    rows = Tensor.stack(*[y[i].gradient(x)[0] for i in range(len(y))])
    np.testing.assert_allclose(rows[:, 0].numpy(), np.tril(np.ones((3, 3))) * 2 * X[0])


def test_steps_in_time_that_are_told_make_the_ctc_loss() -> None:
    torch = pytest.importorskip("torch")
    logits = np.random.default_rng(0).normal(size=(5, 1, 4))
    logs = torch.from_numpy(logits).log_softmax(-1)
    right = torch.nn.functional.ctc_loss(logs, torch.tensor([[1, 2, 2]]), (5,), (3,), 0, "sum")
    labels = Tensor([0, 1, 0, 2, 0, 2, 0])
    x = Tensor(logs.numpy())[:, 0][:, labels]
    skips = Tensor([False, False, False, True, False, False, False])
    a = (Tensor.arange(7) < 2).where(x[0], -1e30)
    for t in range(1, 5):
        ahead = skips.where(a.pad((2, -2), value=-1e30), -1e30)
        a = x[t] + a.logaddexp(a.pad((1, -1), value=-1e30)).logaddexp(ahead)
    assert (-a[-1].logaddexp(a[-2])).item() == pytest.approx(right.item(), 1e-6)


def test_functions_of_the_package_are_those_of_tensor() -> None:
    assert (
        said(tinyml, "zeros") == "module 'tinyml' has no attribute 'zeros'; write Tensor.zeros(...)"
    )
    assert said(tinyml, "relu").endswith("write Tensor.relu(...)")
    assert said(tinyml, "from_numpy").endswith("write Tensor(array)")
    assert said(tinyml, "int8").endswith("write dtypes.int8")
    assert said(dtypes, "float23").endswith("float64; did you mean 'float32'?")
    assert said(tinyml, "__file").endswith("'__file'")
    for name, told in TOLD["package"].items():
        assert said(tinyml, name).endswith(told)
        for method in re.findall(r"\bx\.(\w+)\(", told):
            assert hasattr(Tensor, method)


def test_losses_of_torch_are_what_is_told() -> None:
    torch = pytest.importorskip("torch")
    x, y = map(torch.from_numpy, (X, Y))
    right = torch.nn.functional.smooth_l1_loss(x, y)
    assert instead("huber_loss").item() == pytest.approx(right.item(), 1e-12)
    right = torch.nn.functional.triplet_margin_loss(x, y, -y, eps=0)
    assert instead("triplet_margin_loss").item() == pytest.approx(right.item(), 1e-12)
    bounds, places = torch.sort(x[0]).values, instead("searchsorted").numpy()
    np.testing.assert_array_equal(places, torch.searchsorted(bounds, y))


def test_products_of_vectors_and_questions_of_sets_are_what_is_told() -> None:
    np.testing.assert_allclose(instead("cross").numpy(), np.cross(X, Y))
    np.testing.assert_array_equal(instead("isin").numpy(), np.isin(X, Y))


def test_names_of_the_autograd_of_torch_are_said_to_be_elsewhere() -> None:
    for name, told in TOLD["autograd"].items():
        assert said(tinyml.autograd, name).endswith(told)
    assert said(tinyml.autograd, "functional").endswith("'functional'")


def test_data_is_called_and_whoever_takes_it_for_a_tensor_is_told() -> None:
    x = Tensor(X)
    assert x.data().shape == X.shape
    assert said(x.data, "sub_").endswith("write x.detach(), or x.assign(y) to replace values")
    with pytest.raises(TypeError, match=r"x\.detach\(\) is what torch calls x\.data"):
        x - x.data
    with pytest.raises(TypeError, match=r"x\[i\] = y"):
        x.data[0] = 1
    with pytest.raises(AttributeError, match=r"replaced by \.assign"):
        x.data = x
    with pytest.raises(TypeError, match=r"write x \+= y, x -= y or the like within no_grad"):
        x.data -= 0.1 * x


def test_layers_without_weights_are_methods() -> None:
    for name, method in {
        "ReLU": "relu",
        "LeakyReLU": "leaky_relu",
        "MaxPool1d": "max_pool2d",
    }.items():
        assert said(nn, name).endswith(f"; write x.{method}(...)")
    assert said(nn, "PairwiseDistance").endswith("; write (x - y).norm(axis=1)")
    assert said(nn, "Linaer").endswith("did you mean 'Linear'?")
    assert said(nn, "Nothing") == "module 'tinyml.nn' has no attribute 'Nothing'"
    for name, told in TOLD["nn"].items():
        assert said(nn, name).endswith(told)
        for method in re.findall(r"x\.(\w+)\(", told):
            assert hasattr(Tensor, method)


def test_a_setting_that_would_have_no_effect_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"'no_grad'; write tinyml\.no_grad\(\)"):
        Tensor.no_grad = True
    for name, told in (
        ("traning", "; write Tensor.training = True"),
        ("train", "; write Tensor.training = True"),
        ("requires_grad", "is no setting of all tensors"),
    ):
        had = getattr(Tensor, name, None)
        with pytest.raises(AttributeError, match=f"^Tensor.{name} .*{told}$"):
            setattr(Tensor, name, True)
        assert getattr(Tensor, name, None) == had
    for thing, name in ((Device, "DEFUALT"), (dtypes, "default_flaot")):
        with pytest.raises(AttributeError, match=name):
            setattr(thing, name, "CPU")
    for value in ("False", 0):
        with pytest.raises(TypeError, match="training must be True or False"):
            Tensor.training = value  # type: ignore[assignment]
        with pytest.raises(TypeError, match="training must be True or False"):
            Tensor.train(value)  # type: ignore[arg-type]
    assert not Tensor.training


def test_a_function_becomes_a_method_and_classes_of_users_have_settings_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tensor, "twice", lambda x: x * 2, raising=False)
    assert Tensor([1, 2]).twice().tolist() == [2, 4]

    class Mine(Tensor):
        pass

    Mine.traning = True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "written"),
    [
        (lambda: Tensor.train(), r"Tensor.train\(\)"),
        (lambda: Tensor.train(False), r"Tensor.train\(False\)"),
        (tinyml.no_grad, r"no_grad\(\)"),
        (tinyml.enable_grad, r"enable_grad\(\)"),
        (lambda: tinyml.defaults(device="NUMPY"), r"defaults\(...\)"),
    ],
)
def test_what_is_for_a_block_and_has_none_warns(make: Callable[[], Any], written: str) -> None:
    with pytest.warns(RuntimeWarning, match=f"^{written} by itself does nothing.*`with {written}:"):
        make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with make():
            pass
        make()(lambda: None)  # a decorator, of what nobody calls


def test_a_gradient_that_cannot_be_one_is_refused_where_it_is_set() -> None:
    w = Tensor(X, requires_grad=True)
    for wrong, told in (
        (X, r"grad must be a Tensor, got .*; Tensor\(...\) makes one"),
        (1.0, "grad must be a Tensor, got 1.0"),
        (Tensor(Y).sum(), r"\(\) cannot be the gradient of a tensor of \(2, 3\)"),
        (Tensor(Y, device="EMU"), "on EMU"),
    ):
        with pytest.raises((TypeError, GradientError, DeviceError), match=told):
            w.grad = wrong  # type: ignore[assignment]
        assert w.grad is None
    w.grad = Tensor(Y)
    (w * 2).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), Y + 2)


def test_who_asks_a_result_for_its_gradient_is_warned() -> None:
    w = Tensor(X, requires_grad=True)
    y, kept = w * 2, w * 3
    kept.retain_grad()
    (y + kept).sum().backward()
    with pytest.warns(UserWarning, match=r"grad: .*\(2, 3\).*retain_grad\(\)"):
        assert y.grad is None
    for told in (kept, w):
        assert told.grad is not None
    assert (w.detach() * 2).grad is None


def test_optimizers_have_no_other_settings_and_layers_none_of_torch() -> None:
    layer, optimizer = nn.Linear(2, 3), nn.optim.SGD([Tensor(X)], lr=0.5, momentum=0.9)
    for thing, name, told in (
        (optimizer, "learning_rate", r"write optimizer\.lr = 0\.1"),
        (optimizer, "momentun", "did you mean 'momentum'"),
        (nn.optim.OptimizerGroup(optimizer), "weight_decay", "OptimizerGroup has no attribute"),
        (layer, "training", r"write Tensor\.training"),
        (layer, "requires_grad", r"write p\.requires_grad_\(False\) for each p"),
    ):
        with pytest.raises(AttributeError, match=told):
            setattr(thing, name, 0.25)
    optimizer.momentum = 0.5
    layer.note = "the last"  # type: ignore[attr-defined]

    class Mine(nn.optim.SGD):
        def __init__(self) -> None:
            super().__init__([Tensor(X)])
            self.learning_rate = 0.25

    class Own(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 3)
            self.training = True

    assert Mine().learning_rate == 0.25
    assert Own().training


def test_what_modules_and_optimizers_of_torch_have() -> None:
    layer = nn.Linear(2, 3)
    optimizer = nn.optim.SGD([layer.weight])
    for name, told in TOLD["part"].items():
        assert said(layer, name) == f"Linear has no attribute {name!r}; {told}"
        if not hasattr(optimizer, name):
            assert said(optimizer, name) == f"SGD has no attribute {name!r}; {told}"
        for written in re.findall(r"nn\.(?:state|optim)\.(\w+)", told):
            assert hasattr(nn.state, written) or hasattr(nn.optim, written)
    assert said(layer, "wieght").endswith("; did you mean 'weight'?")
    assert not hasattr(layer, "__deepcopy__")
    for name, told in TOLD["optim"].items():
        assert said(nn.optim, name) == f"module 'tinyml.nn.optim' has no attribute {name!r}; {told}"
    assert said(nn.optim, "Adamw").endswith("; did you mean 'Adam'?")


def test_types_of_python_and_numpy_are_dtypes() -> None:
    kinds = {float: "float64", int: "int64", bool: "bool", np.float16: "float16", np.int8: "int8"}
    for kind, name in {**kinds, np.dtype("u4"): "uint32"}.items():
        assert {str(t.dtype) for t in (Tensor([1], dtype=kind), Tensor(X).cast(kind))} == {name}
        assert str(Tensor(X).to("NUMPY", kind).dtype) == name
    assert Tensor(X).to(dtype=bool).device == "NUMPY"
    assert str(Tensor(X).to(Tensor([1], dtype="int8")).dtype) == "int8"
    for wrong in (complex, str, dict):
        with pytest.raises(AttributeError, match=f"{wrong.__name__}.*there are: bool, uint8"):
            Tensor([1], dtype=wrong)


def test_arguments_that_torch_has() -> None:
    w = [Tensor.ones(2, 2, requires_grad=True)]
    told: dict[str, Callable[[], Any]] = {
        "Adam has no argument 'betas'; write b1=0.9, b2=0.999": lambda: nn.optim.Adam(
            w, betas=(0.9, 0.999)
        ),
        "SGD has no argument 'momentun'; did you mean 'momentum'?": lambda: nn.optim.SGD(
            w, momentun=0.9
        ),
        "SGD has no argument 'dampening'; from the second step on, write p.grad = ": lambda: (
            nn.optim.SGD(w, momentum=0.9, dampening=0.1)
        ),
        "Linear has no argument 'dtype'; write with defaults(": lambda: nn.Linear(
            2, 3, dtype="float16"
        ),
        "std has no argument 'unbiased'; write correction=0": lambda: w[0].std(unbiased=False),
        "dropout has no argument 'training'; write with Tensor.train()": lambda: w[0].dropout(
            training=True
        ),
        "transpose takes dim0, dim1; write x.permute(0, 2, 1)": lambda: w[0].transpose(0, 2, 1),
        "conv2d takes weight, bias, groups, stride, dilation, padding; the others": lambda: w[
            0
        ].conv2d(w[0], None, 2),
        "max_pool2d takes kernel_size, stride, dilation, padding, ceil_mode": lambda: w[
            0
        ].max_pool2d(3, 2, 1),
        "var takes axis, keepdim, correction; the others are given by name": lambda: w[0].var(
            0, False
        ),
        "sum has no argument 'of'": lambda: w[0].sum(of=1),
        "relu has no argument 'inplace'; results are new": lambda: w[0].relu(inplace=True),
        "to has no argument 'non_blocking'; leave it": lambda: w[0].to("CPU", non_blocking=True),
        "backward has no argument 'create_graph'; write loss.gradient(x)": lambda: (
            w[0].sum().backward(create_graph=True)
        ),
        "cross_entropy: reduction is given by name and by position; in order, its arguments are "
        "Y, reduction, ": lambda: w[0].cross_entropy(Tensor([0, 1]), w[0], reduction="sum"),
    }
    for words, call in told.items():
        with pytest.raises(TypeError, match=re.escape(words)):
            call()
    with tinyml.defaults(default_float="float16"):
        assert nn.Linear(2, 3).weight.dtype is dtypes.float16


def test_arguments_of_torch_that_are_known() -> None:
    assert nn.Embedding(num_embeddings=3, embedding_dim=2).weight.shape == (3, 2)
    assert nn.BatchNorm2d(num_features=3).weight.shape == (3,)
    assert Tensor.zeros(size=(2, 3)).reshape(shape=(3, 2)).permute(dims=(1, 0)).shape == (2, 3)
    loss = Tensor([[0.0, 0.0]]).cross_entropy(target=Tensor([1]))
    assert loss.item() == pytest.approx(np.log(2))
    layer = nn.LayerNorm(2, bias=False)
    layer.weight.assign(Tensor([2.0, 3.0])).realize()
    assert layer.bias is None
    np.testing.assert_allclose(layer(Tensor([[1.0, -1.0]])).numpy(), [[2, -3]], 1e-4)


def test_modules_that_torch_and_jax_have_as_functions() -> None:
    assert tinyml.TinyJit is not None  # imports it
    for name, words in OF_MODULES.items():
        module: Any = sys.modules[name]
        with pytest.raises(TypeError, match=re.escape(f"{name} is a module; {words}")):
            module(1)


def test_a_dtype_is_no_device() -> None:
    with pytest.raises(DeviceError, match=r"""write x.cast\('float16'\)"""):
        Tensor(X).to("float16")


def test_a_scaled_sum_is_told() -> None:
    with pytest.raises(TypeError, match=r"alpha.*write x \+ 2 \* y"):
        Tensor(X).add(Tensor(Y), alpha=2)
