"""Train a convolutional network on MNIST.

python examples/train_mnist.py               # downloads 11 MB once
python examples/train_mnist.py --data DIR    # the four IDX files, plain or .gz, are in DIR
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import math
import os
import sys
import tempfile
import time
import urllib.request
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from tinyml import Device, Tensor, TinyJit, nn

MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://raw.githubusercontent.com/fgnt/mnist/master/",
)
FILES = {  # name: MD5 of the .gz file
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
# The third byte of an IDX file names the type of its numbers, which are big-endian.
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def load_idx(path: Path) -> npt.NDArray[Any]:
    """The array in an IDX file, plain or compressed; ValueError says what is wrong with it."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is not a complete gzip file: {error}") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_TYPES:
        raise ValueError(f"{path} is not an IDX file: it begins with {content[:4].hex(' ')}")
    dtype, axes = np.dtype(IDX_TYPES[content[2]]), content[3]
    start = 4 + 4 * axes
    if len(content) < start:
        raise ValueError(f"{path} ends within its header of {axes} sizes")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", axes, offset=4))
    if len(content) - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(
            f"{path} says it has the shape {shape}, which is {math.prod(shape) * dtype.itemsize} "
            f"bytes, but {len(content) - start} follow"
        )
    values = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


def find(folder: Path, name: str) -> Path | None:
    """The file in the folder, plain or compressed, with "-" or "." before "idx"."""
    for stem in (name, name.replace("-idx", ".idx")):
        for path in (folder / stem, folder / f"{stem}.gz"):
            if path.is_file():
                return path
    return None


def download(name: str, digest: str, folder: Path) -> Path:
    """Fetch one file from the first mirror that has it unharmed; exit with advice if none has."""
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    for mirror in MIRRORS:
        url = f"{mirror}{name}.gz"
        try:
            with urllib.request.urlopen(url, timeout=20) as response:
                content = response.read()
        except OSError as error:  # includes URLError, timeouts and HTTP errors
            failures.append(f"  {url}: {error}")
            continue
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != digest:
            failures.append(f"  {url}: {len(content)} bytes with another checksum")
            continue
        target = folder / f"{name}.gz"
        handle, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, target)  # complete, or not there at all
        return target
    sys.exit(
        f"MNIST could not be downloaded:\n{chr(10).join(failures)}\n"
        f"Put the four files {', '.join(FILES)} (plain or .gz) into a folder by other means and "
        "run:\n  python examples/train_mnist.py --data FOLDER\n"
        "or train on the digits inside scikit-learn, without a network:\n"
        "  python examples/train_digits.py"
    )


def mnist(folder: Path | None) -> dict[str, npt.NDArray[Any]]:
    """The four arrays by file name; downloaded only if no folder is given."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinyml" / "mnist"
    arrays = {}
    for name, digest in FILES.items():
        path = find(folder or cache, name)
        if path is None and folder is not None:
            sys.exit(f"{folder} has no {name} and no {name}.gz")
        try:
            arrays[name] = load_idx(path or download(name, digest, cache))
        except ValueError as error:
            sys.exit(str(error))
    for part in ("train", "t10k"):
        images, labels = arrays[f"{part}-images-idx3-ubyte"], arrays[f"{part}-labels-idx1-ubyte"]
        if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
            sys.exit(f"{part}: images {images.shape} and labels {labels.shape} are not MNIST's")
    return arrays


class Net:
    """Three convolutions and a linear layer; (batch, 1, 28, 28) to (batch, 10)."""

    def __init__(self) -> None:
        self.conv1 = nn.Conv2d(1, 16, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.out = nn.Linear(32 * 4 * 4, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.conv1(x).relu()  # (batch, 16, 14, 14)
        x = self.conv2(x).relu()  # (batch, 32, 7, 7)
        x = self.conv3(x).relu()  # (batch, 32, 4, 4)
        return self.out(x.flatten(1))


def as_images(pixels: Tensor) -> Tensor:
    """Bytes (batch, 28, 28) to floats around 0, (batch, 1, 28, 28)."""
    return ((pixels.float() / 255 - 0.1307) / 0.3081).unsqueeze(1)


def accuracy(model: Net, images: Tensor, labels: Tensor, batch: int) -> float:
    """The share of images that the model names rightly."""

    @TinyJit
    def count_right(x: Tensor, y: Tensor) -> Tensor:
        return (model(as_images(x)).argmax(axis=1) == y).sum()

    right, whole = 0, images.shape[0] // batch * batch
    for i in range(0, whole, batch):
        picked = slice(i, i + batch)
        right += int(count_right(images[picked].contiguous(), labels[picked].contiguous()).item())
    if whole < images.shape[0]:  # the last, smaller batch has a shape of its own
        rest = model(as_images(images[whole:])).argmax(axis=1) == labels[whole:]
        right += int(rest.sum().item())
    return right / images.shape[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with the four IDX files")
    parser.add_argument("--steps", type=int, default=1000, help="training steps")
    parser.add_argument("--batch", type=int, default=128, help="images in one step")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate")
    args = parser.parse_args()
    if min(args.steps, args.batch) < 1:
        parser.error("--steps and --batch must be 1 or more")

    arrays = mnist(args.data)
    images, labels, test_images, test_labels = (Tensor(a) for a in arrays.values())
    Tensor.manual_seed(1337)
    model = Net()
    optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=args.lr)

    @TinyJit
    def step(picked: Tensor) -> Tensor:
        optimizer.zero_grad()
        logits = model(as_images(images[picked]))
        loss = logits.sparse_categorical_crossentropy(labels[picked])
        loss.backward()
        optimizer.step()
        return loss

    draw = np.random.default_rng(0).integers
    start = time.perf_counter()
    with Tensor.train():
        for i in range(args.steps):
            optimizer.lr = args.lr * (1 - i / args.steps)
            loss = step(Tensor(draw(0, images.shape[0], args.batch, dtype=np.int32)))
            if i % 100 == 0 or i == args.steps - 1:
                print(f"step {i:5}  loss {loss.item():.4f}  {time.perf_counter() - start:6.1f} s")

    share = accuracy(model, test_images, test_labels, min(500, test_images.shape[0]))
    print(f"test accuracy {100 * share:.2f} % on {test_images.shape[0]} digits")
    print(f"{time.perf_counter() - start:.1f} s on {Device.DEFAULT}")


if __name__ == "__main__":
    main()
