"""The examples run, with tiny settings, as a reader would run them; and MNIST's reader."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tinyml import Tensor, no_grad

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, *arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python examples/NAME`, from another folder."""
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        env={**os.environ, **environment},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=600,
    )


def output(name: str, *arguments: Any, **environment: str) -> str:
    done = run(name, *arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accuracy(text: str) -> float:
    found = re.search(r"test accuracy ([\d.]+) %", text)
    assert found, text
    return float(found[1])


def idx(array: Any, code: int) -> bytes:
    """An IDX file's content, put together from the format's description."""
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, code, array.ndim]) + sizes + array.tobytes()


def imported(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def train_mnist() -> ModuleType:
    return imported("train_mnist")


def test_digits(device):
    """Where kernels are fast, as many as the README says are right in the end."""
    pytest.importorskip("sklearn")
    pytest.importorskip("tqdm")
    epochs, batch, right = (12, 64, 97) if device in ("CPU", "CUDA") else (1, 128, 60)
    text = output("train_digits.py", "--epochs", epochs, "--batch", batch, DEVICE=device)
    assert accuracy(text) >= right


def test_gpt(device):
    sizes = "--layers 1 --heads 2 --dim 16 --context 16 --batch 2 --steps 3 --eval-batches 1"
    text = output("train_gpt.py", *sizes.split(), "--sample", 14, DEVICE=device)
    assert "tokens/s" in text
    assert float(re.findall(r"validation loss ([\d.]+)", text)[-1]) < 10


def test_gpt_remembers_what_it_has_seen(device):
    model = imported("train_gpt").GPT(vocabulary=11, context=5, dim=12, heads=2, layers=2)
    text, memories = np.array([[3, 1, 10, 4, 1]], np.int32), model.memories()
    with no_grad():
        whole = model(Tensor(text)).numpy()
        for at, token in enumerate(text[0]):
            logits = model(Tensor([[int(token)]]), memories, Tensor([at])).numpy()
            np.testing.assert_allclose(logits[0, 0], whole[0, at], rtol=1e-4, atol=1e-5)


def test_gpt_says_what_is_wrong(tmp_path: Path):
    done = run("train_gpt.py", "--data", tmp_path / "none.txt")
    assert done.returncode != 0
    assert "there is no such file" in done.stderr
    short = tmp_path / "short.txt"
    short.write_text("hello " * 20)
    done = run("train_gpt.py", "--data", short)
    assert done.returncode != 0
    assert "too few for --context 128" in done.stderr


def test_mnist_from_a_folder(tmp_path: Path):
    random = np.random.default_rng(0)
    for part, count in (("train", 40), ("t10k", 12)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = random.integers(0, 30, (count, 28, 28)).astype(np.uint8)
        images[np.arange(count), labels] = 255  # the line whose number is the label
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images, 0x08))
        (tmp_path / f"{part}-labels.idx1-ubyte.gz").write_bytes(
            gzip.compress(idx(labels, 0x08), mtime=0)
        )
    text = output("train_mnist.py", "--data", tmp_path, "--steps", 4, "--batch", 8)
    assert "on 12 digits" in text


def test_mnist_without_its_files(tmp_path: Path, train_mnist: ModuleType, monkeypatch: Any):
    with pytest.raises(SystemExit, match="has no train-images-idx3-ubyte"):
        train_mnist.mnist(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(train_mnist, "MIRRORS", [f"file://{tmp_path}/nowhere/"])
    with pytest.raises(SystemExit, match="could not be downloaded") as raised:
        train_mnist.mnist(None)
    assert "--data FOLDER" in str(raised.value)


def test_download_takes_no_damaged_file(tmp_path: Path, train_mnist: ModuleType, monkeypatch: Any):
    bad, good = tmp_path / "bad", tmp_path / "good"
    for folder, content in ((bad, b"damaged"), (good, b"whole")):
        folder.mkdir()
        (folder / "x.gz").write_bytes(content)
    monkeypatch.setattr(train_mnist, "MIRRORS", [f"file://{bad}/", f"file://{good}/"])
    digest = hashlib.md5(b"whole").hexdigest()
    path = train_mnist.download("x", digest, tmp_path / "target")
    assert path.read_bytes() == b"whole"
    assert [p.name for p in path.parent.iterdir()] == ["x.gz"]


@pytest.mark.parametrize(("dtype", "code"), [(">u1", 0x08), (">i2", 0x0B), (">f4", 0x0D)])
@pytest.mark.parametrize("packed", [False, True])
def test_load_idx(tmp_path: Path, train_mnist: ModuleType, dtype: str, code: int, packed: bool):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    content = idx(array, code)
    (tmp_path / "file").write_bytes(gzip.compress(content, mtime=0) if packed else content)
    loaded = train_mnist.load_idx(tmp_path / "file")
    np.testing.assert_array_equal(loaded, array)
    assert loaded.dtype.isnative


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an IDX file"),
        (b"PK\3\4 something", "is not an IDX file: it begins with 50 4b 03 04"),
        (b"\0\0\x08\3\0\0", "ends within its header of 3 sizes"),
        (idx(np.zeros((2, 3), np.uint8), 0x08)[:-1], r"shape \(2, 3\), which is 6 bytes, but 5"),
        (gzip.compress(b"\0" * 100, mtime=0)[:20], "not a complete gzip file"),
    ],
)
def test_load_idx_says_what_is_wrong(
    tmp_path: Path, train_mnist: ModuleType, content: bytes, message: str
):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        train_mnist.load_idx(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "option"),
    [("train_digits.py", "--batch"), ("train_mnist.py", "--steps"), ("train_gpt.py", "--heads")],
)
def test_an_argument_that_cannot_work_is_refused_in_one_sentence(name: str, option: str) -> None:
    done = run(name, option, 0)
    assert done.returncode == 2
    assert "must be 1 or more" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
