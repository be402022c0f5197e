"""Missing: what torch and numpy call otherwise, or have besides, and how it is written here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

# names, and an expression of float matrices x, y and square z, integers i, and an array
INSTEAD = """
astype type type_as  x.cast("float16")
byte  x.cast("uint8")
char  x.cast("int8")
copy  x.clone()
fill fill_  x.assign(x.full_like(2))
zero_  x.assign(x.zeros_like())
copy_  x.assign(y)
detach_  x.detach()
unsqueeze_ expand_dims  x.unsqueeze(0)
squeeze_  x.squeeze()
transpose_ t_  x.T
exponential_  x.assign(-Tensor.rand(*x.shape).log().cast(x.dtype))
uniform_  x.assign(Tensor.uniform(*x.shape, low=-1, high=1).cast(x.dtype))
normal_  x.assign(Tensor.normal(*x.shape, mean=0, std=1).cast(x.dtype))
replace  x.assign(y)
itemsize  x.element_size()
nelement  x.numel()
ndimension  x.ndim
is_cuda  x.device == "CUDA"
get_device  x.device
grad_fn  x.sum().gradient(x)
tobytes  x.numpy().tobytes()
new_tensor tensor  Tensor([1, 2], dtype=x.dtype, device=x.device)
from_numpy as_tensor asarray  Tensor(array)
new_zeros  Tensor.zeros(2, 3, dtype=x.dtype, device=x.device)
new_ones  Tensor.ones(2, 3, dtype=x.dtype, device=x.device)
new_full  Tensor.full((2, 3), 1, dtype=x.dtype, device=x.device)
new_empty  Tensor.empty(2, 3, dtype=x.dtype, device=x.device)
t  x.T
swapaxes swapdims  x.transpose(0, 1)
movedim moveaxis  x.permute(1, 0)
adjoint  x.mT
ravel  x.flatten()
view_as reshape_as  x.reshape(y.shape)
expand_as broadcast_to  x.expand(y.shape)
tile  x.repeat(2, 1)
concat concatenate hstack vstack  Tensor.cat(x, y, dim=0)
narrow  x[0:2]
select  x[:, 1]
argwhere  x.nonzero()
take_along_dim  x.gather(0, i)
scatter_add index_add  x.scatter_reduce(0, i, y, "sum")
multiply  x * y
divide true_divide  x / y
floor_divide  x // y
remainder  x % y
fmod  x - y * x.div(y, "trunc")
subtract  x - y
negative  -x
absolute  x.abs()
fix  x.trunc()
frac  x - x.trunc()
sgn  x.sign()
greater  x > y
greater_equal  x >= y
less  x < y
less_equal  x <= y
not_equal  x != y
equal  (x == y).all()
hypot  (x * x + y * y).sqrt()
erfc  1 - x.erf()
logit  (x / (1 - x)).log()
nan_to_num  x.isnan().where(0, x)
clamp_min  x.clip(min_=0)
clamp_max  x.clip(max_=1)
mse_loss  (x - y).square().mean()
l1_loss  (x - y).abs().mean()
smooth_l1_loss huber_loss  ((x - y).square() - ((x - y).abs() - 1).relu().square()).mean() / 2
triplet_margin_loss  ((x - y).norm(axis=1) - (x + y).norm(axis=1) + 1).relu().mean()
group_norm  nn.GroupNorm(1, 3)(x)
instance_norm  nn.InstanceNorm(2)(x[None])
pixel_shuffle  x[None, :, :, None].rearrange("b (c i j) h w -> b c (h i) (w j)", i=2, j=1)
inv  z.inverse()
pinv pinverse  x.T @ (x @ x.T).inverse()
eig eigh eigvals eigvalsh  numpy.linalg.eigh(z.numpy())
cov  (x - x.mean(1, keepdim=True)) @ (x - x.mean(1, keepdim=True)).T / (x.shape[1] - 1)
corrcoef  (u := (v := x - x.mean(1, keepdim=True)) / v.norm(axis=1, keepdim=True)) @ u.T
gammaln  x.lgamma()
psi  x.digamma()
lstsq  (z.T @ z).solve(z.T @ y)
searchsorted bucketize  (x[0] < y.unsqueeze(-1)).sum(-1)
rot90  x.T.flip(0)
no_grad  tinyml.no_grad()
summation  x.sum(1)
lazydata cached_data realize_cached_data  x.realize()
mm bmm inner  x @ y.mT
mv  z @ z[0]
addmm baddbmm  z + x @ y.mT
addcmul  x + 2 * (x * y)
addcdiv  x + 2 * (x / y)
outer  x[0].unsqueeze(-1) * y[0]
vdot  x[0].dot(y[0])
tensordot  Tensor.einsum("ij,kj->ik", x, y)
kron  Tensor.einsum("ij,kl->ikjl", x, y).reshape(4, 9)
diff  x[:, 1:] - x[:, :-1]
dist  (x - y).norm()
pairwise_distance  (x - y).norm(axis=1)
cdist  (x.unsqueeze(1) - y).norm(axis=-1)
normalize  x / x.norm(axis=1, keepdim=True)
cosine_similarity  (x * y).sum(1) / (x.norm(axis=1) * y.norm(axis=1))
gumbel_softmax  (x - (-Tensor.rand(*x.shape).log()).log()).softmax()
glu  z[:, :1] * z[:, 1:].sigmoid()
prelu  (x > 0).where(x, 0.25 * x)
embedding  x[i]
adaptive_avg_pool2d  x.mean((-2, -1), keepdim=True)
upsample  x[None].interpolate(scale_factor=2)
kl_div  (y.exp() * (y - x)).sum()
fliplr  x.flip(1)
flipud  x.flip(0)
xlogy  (x == 0).where(0, x * y.log())
softmin  (-x).softmax()
softshrink  x - x.clip(-0.5, 0.5)
threshold  (x > 0.1).where(x, 20)
cross  x.roll(-1, 1) * y.roll(1, 1) - x.roll(1, 1) * y.roll(-1, 1)
cbrt  x.sign() * x.abs() ** (1 / 3)
heaviside  (x == 0).where(y, (x > 0).cast(x.dtype))
deg2rad radians  x * (math.pi / 180)
rad2deg degrees  x * (180 / math.pi)
float_power  x.cast("float64") ** 2
masked_scatter  (x > 0).where(y.flatten()[(x > 0).flatten().cumsum(0).reshape(x.shape) - 1], x)
isin  (x.unsqueeze(-1) == y.flatten()).any(-1)
take  x.flatten()[i]
empty_like  x.zeros_like()
logspace geomspace  10 ** Tensor.linspace(0, 2, 3)
matrix_power  z @ z @ z
slogdet  (z.det().sign(), z.det().abs().log())
diag_embed  x.unsqueeze(-1) * Tensor.eye(3)
nanmean  x.isnan().where(0, x).sum() / (~x.isnan()).sum()
trace  z.diagonal().sum()
logdet  z.det().log()
nansum  x.isnan().where(0, x).sum()
count_nonzero  (x != 0).sum()
aminmax  (x.min(), x.max())
msort  x.sort(0)[0]
values indices  x.max(0), x.argmax(0)
median kthvalue quantile percentile  x.flatten().sort()
unique  numpy.unique(x.numpy())
bincount  i.flatten().one_hot(2).sum(0)
histc histogram  numpy.histogram(x.numpy())
"""
# what is longer than an expression
IN_WORDS = {
    "ctc_loss": "write its steps in time: a = x[t] + a.logaddexp(a.pad((1, -1), value=-1e30)), and "
    "from two places before where labels differ",
    "grid_sample": "write x[:, :, rows, columns] of whole numbers, weighted, for the four around",
    **dict.fromkeys(
        ("fft", "rfft", "ifft", "irfft", "stft"),
        "there are no complex numbers: angle = Tensor.arange(n).unsqueeze(1) * Tensor.arange(n) * "
        "(2 * math.pi / n), then x @ angle.cos() and -x @ angle.sin(); or numpy.fft",
    ),
    **dict.fromkeys(("zero_grad", "zero_grad_"), "write x.grad = None, or optimizer.zero_grad()"),
    **dict.fromkeys(
        ("index_put_", "index_copy_", "index_fill_", "masked_scatter_", "fill_diagonal_"),
        "write x[i] = y",
    ),
    **dict.fromkeys(("index_put", "index_copy", "index_fill"), "write z = x.clone(), and z[i] = y"),
    "vmap": "ops broadcast; otherwise write Tensor.stack(*map(f, x))",
    **dict.fromkeys(
        ("jacrev", "jacfwd", "jacobian", "hessian"),
        "write Tensor.stack(*[y[i].gradient(x)[0] for i in range(len(y))])",
    ),
}
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}


OF_NN = {
    "Module": "a model is any object; nn.state.get_parameters(model) finds its parameters",
    **dict.fromkeys(("Parameter", "parameter"), "write Tensor([1.0, 2.0], requires_grad=True)"),
    "Sequential": "write x.sequential([layer, Tensor.relu])",
    "functional": "functions are methods of Tensor: x.relu(), x.cross_entropy(y)",
    "Flatten": "write x.flatten(1)",
    "EmbeddingBag": "write embedding(indices).sum(1)",
    "Bilinear": "write Tensor.einsum('bi,kij,bj->bk', x, weight, y)",
    "Conv3d": "write nn.Conv2d(1, 2, (3, 3, 3)), which has as many axes as there are sizes",
    "ConvTranspose3d": "write nn.ConvTranspose2d(1, 2, (3, 3, 3)), of as many axes as sizes",
    "Upsample": "write x.interpolate(scale_factor=2)",
    "ZeroPad2d": "write x.pad((1, 1, 1, 1))",
    "ConstantPad2d": "write x.pad((1, 1, 1, 1), value=2)",
    "ReflectionPad2d": 'write x.pad((1, 1, 1, 1), mode="reflect")',
    "ReplicationPad2d": 'write x.pad((1, 1, 1, 1), mode="replicate")',
    "Dropout2d": "write x * x.ones_like()[:, :, :1, :1].dropout(0.5)",
    "PixelShuffle": "write x.rearrange('b (c i j) h w -> b c (h i) (w j)', i=2, j=2)",
    **dict.fromkeys(
        ("Transformer", "TransformerEncoder", "TransformerEncoderLayer", "TransformerDecoderLayer"),
        "write q.scaled_dot_product_attention(k, v) among nn.LayerNorm and nn.Linear",
    ),
    **dict.fromkeys(("CrossEntropyLoss", "SoftmaxLoss"), "write x.cross_entropy(y)"),
    "BCELoss": "write x.binary_crossentropy(y)",
    "BCEWithLogitsLoss": "write x.binary_crossentropy_logits(y)",
    "CTCLoss": f"of logarithms {IN_WORDS['ctc_loss']}",
    "KLDivLoss": "write (y.exp() * (y - x)).sum() of logarithms",
    "MultiheadAttention": "write q.scaled_dot_product_attention(k, v) between two nn.Linear",
    "ModuleList": "a list of layers will do",
    "ModuleDict": "a dict of layers will do",
    **dict.fromkeys(("ParameterList", "ParameterDict"), "a list or dict of tensors will do"),
    "Identity": "write lambda x: x",
    "AdaptiveAvgPool2d": "write x.mean((-2, -1), keepdim=True) for one of size 1",
    "AdaptiveMaxPool2d": "write x.max((-2, -1), keepdim=True) for one of size 1",
    "Buffer": "write tensor.requires_grad_(False), else it is trained",
    "PReLU": "write (x > 0).where(x, weight * x)",
    "init": "write layer.weight.assign(Tensor.kaiming_normal(3, 4)) under no_grad()",
    "utils": "to clip: n = Tensor.stack(*[p.grad.square().sum() for p in ps]).sum().sqrt(), and "
    "for each p.grad = p.grad * (1 / n).clip(max_=1)",
    **dict.fromkeys(("RNN", "GRU", "LSTM", "GRUCell", "RNNCell"), "nn.LSTMCell is a step of one"),
}

OF_OPTIM = {
    "lr_scheduler": "write optimizer.lr = 0.1 before a step",
    **dict.fromkeys(("RMSprop", "Adagrad", "Adadelta", "NAdam"), "nn.optim.Adam is alike"),
    "LBFGS": "nn.optim.Adam is alike; or give numpy's values and gradients to scipy's minimize",
}

# what a torch module or optimizer has, and a layer or optimizer has not
OF_PART = {
    "parameters": "write nn.state.get_parameters(x)",
    "named_parameters": "write nn.state.get_state_dict(x).items()",
    "state_dict": "write nn.state.get_state_dict(x)",
    "load_state_dict": "write nn.state.load_state_dict(x, state_dict)",
    "param_groups": "write optimizer.lr = 0.1; nn.optim.OptimizerGroup is several optimizers",
    "add_param_group": "write nn.optim.OptimizerGroup(optimizer, other)",
    "learning_rate": "write optimizer.lr = 0.1",
    **dict.fromkeys(("train", "training"), "write Tensor.training = True, or with Tensor.train():"),
    "eval": "write Tensor.training = False, or with Tensor.train(False):",
    **dict.fromkeys(("to", "cuda", "cpu"), 'write Device.DEFAULT = "CPU" before layers are made'),
    "forward": "write layer(x)",
    **dict.fromkeys(("zero_grad", "reset_grad"), "write optimizer.zero_grad()"),
    **dict.fromkeys(
        ("requires_grad", "requires_grad_"),
        "write p.requires_grad_(False) for each p of nn.state.get_parameters(x)",
    ),
    **dict.fromkeys(
        ("modules", "children", "named_modules", "apply"),
        "write nn.state.get_state_dict(x)",
    ),
    "register_buffer": "write layer.name = tensor.requires_grad_(False), else it is trained",
    "register_parameter": "write layer.name = tensor",
    **dict.fromkeys(
        ("half", "bfloat16", "float", "double"),
        'write with defaults(default_float="float16"): around what makes it',
    ),
}

OF_PACKAGE = {
    "grad": "write loss.gradient(x, y), or loss.backward() and x.grad",
    "save": "write nn.state.safe_save(nn.state.get_state_dict(model), file)",
    "load": "write nn.state.load_state_dict(model, nn.state.safe_load(file))",
    "compile": "TinyJit(step) captures a step and replays it",
    "optim": "write nn.optim",
    "linalg": "write x.cholesky(), x.solve(y), x.inverse(), x.det(), x.qr(), x.svd(), x.norm()",
    "cuda": 'Device.DEFAULT is "CUDA" where there is one',
    "distributions": "write p.multinomial(1), p.bernoulli() or Tensor.normal(3, 4), and p.log()",
    "is_tensor": "write isinstance(x, Tensor)",
    "set_num_threads": "set THREADS=2 in the environment",
    "set_default_device": 'write Device.DEFAULT = "CPU"',
    **dict.fromkeys(
        ("set_default_dtype", "get_default_dtype"), "write dtypes.default_float = dtypes.float64"
    ),
    **dict.fromkeys(("seed", "Generator"), "write Tensor.manual_seed(0)"),
    "inference_mode": "write no_grad()",
    "set_grad_enabled": "write no_grad() or enable_grad()",
    "amp": 'write x.half() or x.cast("bfloat16") where it is wanted; a loss may be scaled by hand',
    "autocast": 'write x.half() or x.cast("bfloat16") where it is wanted',
    "init": "write Tensor.rand(2, 3), Tensor.kaiming_uniform(2, 3) or the like",
    **dict.fromkeys(
        ("DataLoader", "utils", "data"),
        "there is no DataLoader: write x[order[i : i + 32]], or Tensor(array) of a batch",
    ),
}


# arguments that torch and numpy have, where a function or class here has not
KEYWORDS = {
    "betas": "write b1=0.9, b2=0.999",
    "weight_decay": "nn.optim.AdamW has one; torch's Adam has p.grad = p.grad + 0.01 * p",
    "dampening": "from the second step on, write p.grad = p.grad * (1 - dampening) before it",
    "maximize": "write (-loss).backward()",
    **dict.fromkeys(("unbiased", "ddof"), "write correction=0, or 1"),
    **dict.fromkeys(
        ("device", "dtype"),
        'write with defaults(device="CPU", default_float="float16"): around what makes it',
    ),
    "inplace": "results are new tensors",
    "training": "write with Tensor.train():, or Tensor.train(False)",
    "generator": "write Tensor.manual_seed(0) before",
    "padding_mode": 'write x.pad((1, 1, 1, 1), mode="reflect") before it',
    "normalized_shape": "write dim=64",
    "out": "write x.assign(y)",
    "alpha": "write x + 2 * y",
    **dict.fromkeys(("size_average", "reduce"), 'write reduction="mean", "sum" or "none"'),
    **dict.fromkeys(("foreach", "capturable", "differentiable", "stable"), "leave it out"),
    **dict.fromkeys(("memory_format", "layout", "pin_memory", "non_blocking"), "leave it out"),
    "create_graph": "write loss.gradient(x), which can be differentiated again",
}

# what takes so many in a row, the tensor among them: where numpy has more, or torch another order
_BY_NAME = "the others are given by name, as torch has them in another order"
TOO_MANY = {
    "transpose": (3, "write x.permute(0, 2, 1)"),
    **dict.fromkeys(("conv2d", "conv_transpose2d", "max_pool2d", "avg_pool2d"), (3, _BY_NAME)),
    "max_unpool2d": (4, _BY_NAME),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), (2, _BY_NAME)),
}

OF_AUTOGRAD = {
    "Function": "write tinyml.Function",
    "grad": "write loss.gradient(x, y), or loss.backward() and x.grad",
}

# modules that are called, where torch has functions of these names
OF_MODULES = {
    "tinyml.jit": "write TinyJit(step)",
    "tinyml.tensor": "write Tensor([1.0, 2.0])",
    "tinyml.device": 'a device is a string: write Tensor([1.0], device="CPU"), or x.to("CPU")',
}


class Autograd(ModuleType):
    """The module `tinyml.autograd`, which says where that is which torch has there."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_name(f"module {self.__name__!r}", name, OF_AUTOGRAD.get(name, ""))


class Uncalled(ModuleType):
    """A module that says what to write instead of calling it."""

    def __call__(self, *_: object, **named: object) -> NoReturn:
        raise TypeError(f"{self.__name__} is a module; {OF_MODULES[self.__name__]}")


class Data:
    """What `x.data` is, which is called; who takes it for torch's is told what to write."""

    def __init__(self, values: Callable[[], memoryview]) -> None:
        self._values = values

    def __call__(self) -> memoryview:
        """The values as a buffer, flat if there are none. Nothing can be put there."""
        return self._values()

    def __repr__(self) -> str:
        return "x.data (x.data() is a buffer; x.detach() is what torch calls x.data)"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_name("data", name, "write x.detach(), or x.assign(y) to replace values")

        def __getitem__(self, key: object) -> NoReturn:
            raise TypeError("data: write x.detach()[i], x[i] = y to replace values, or data()")

        def __setitem__(self, key: object, value: object) -> NoReturn:
            self[key]

        def __iadd__(self, other: object) -> NoReturn:
            raise TypeError("data: write x += y, x -= y or the like within no_grad()")

        __isub__ = __imul__ = __itruediv__ = __iadd__


def no_argument(function: str, name: str, known: Iterable[str]) -> TypeError:
    """The error for a keyword that a function has not."""
    advice = KEYWORDS.get(name) or _near(name, known)
    return TypeError(f"{function} has no argument {name!r}" + (f"; {advice}" if advice else ""))


def no_attribute(x: object, name: str) -> NoReturn:
    """Raise what is said where Tensor, or a tensor, has not an attribute."""
    owner = x if isinstance(x, type) else type(x)
    raise no_name("Tensor", name, _advice(owner, name) or _near(name, dir(owner)))


def no_name(owner: str, name: str, advice: str = "") -> AttributeError:
    """The error where a class or module has not a name, and what to do about it."""
    end = f"; {advice}" if advice else ""
    return AttributeError(f"{owner} has no attribute {name!r}{end}", name=name)


def no_function(
    tensor: type[Any], dtypes: Iterable[str], names: Iterable[str], name: str
) -> AttributeError:
    """The error for what the package has not, but its class Tensor perhaps has, or `dtypes`."""
    if name in OF_PACKAGE:
        return no_name("module 'tinyml'", name, OF_PACKAGE[name])
    known = not name.startswith("_") and callable(getattr(tensor, name, None))
    advice = f"write Tensor.{name}(...)" if known else _advice(tensor, name) or _near(name, names)
    return no_name("module 'tinyml'", name, f"write dtypes.{name}" if name in dtypes else advice)


def no_setting(name: str) -> AttributeError:
    """The error for what is set for all tensors, and has no effect."""
    advice = "; write Tensor.training = True" if _near(name, ["training", "train"]) else ""
    return AttributeError(f"Tensor.{name} is no setting of all tensors{advice}", name=name)


def no_part(x: object, name: str) -> NoReturn:
    """Raise what is said where a layer or optimizer has not an attribute."""
    raise no_name(type(x).__name__, name, OF_PART.get(name) or _near(name, dir(x)))


def no_optimizer(optimizers: Iterable[str], name: str) -> AttributeError:
    """The error for what `nn.optim` has not."""
    advice = OF_OPTIM.get(name) or _near(name, optimizers)
    return no_name("module 'tinyml.nn.optim'", name, advice)


def no_layer(tensor: type[Any], layers: Iterable[str], name: str) -> AttributeError:
    """The error for what `nn` has not: it may be a method of Tensor, as are all without weights."""
    methods = {n.replace("_", ""): n for n in dir(tensor) if n[0] != "_"}
    method = methods.get(re.sub("[13]d$", "2d", name.lower()))
    told = {n.replace("_", ""): how for n, how in _table().items()}.get(name.lower())
    advice = (
        f"write x.{method}(...)" if method else f"write {told}" if told else _near(name, layers)
    )
    return no_name("module 'tinyml.nn'", name, OF_NN.get(name) or advice)


def _advice(owner: type[Any], name: str) -> str:
    """What to write for `name`, which is no name of `owner`; empty if that is not known."""
    base = name.removesuffix("_")
    if instead := _table().get(name):
        return f"write {instead}"
    if name in IN_WORDS:
        return IN_WORDS[name]
    if name != base and base in OPERATORS:
        return f"write x {OPERATORS[base]}= y"
    if name != base and callable(getattr(owner, base, None)):
        return f"write x.assign(x.{base}(...))"
    if base.startswith("arc") and hasattr(owner, f"a{base[3:]}"):
        return f"write x.a{base[3:]}()"
    return ""


def _near(name: str, names: Iterable[str]) -> str:
    public = () if name.startswith("_") else [n for n in names if not n.startswith("_")]
    near = difflib.get_close_matches(name, public, 1, 0.7)
    return f"did you mean {near[0]!r}?" if near else ""


@cache
def _table() -> dict[str, str]:
    lines = [line.split("  ", 1) for line in INSTEAD.strip().splitlines()]
    return {name: instead for names, instead in lines for name in names.split()}
