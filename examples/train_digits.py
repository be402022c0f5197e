"""Train a small convolutional network on real handwritten digits, in seconds.

    python examples/train_digits.py
    DEVICE=NUMPY python examples/train_digits.py --epochs 3

The 1,797 images of 8 x 8 pixels ship inside scikit-learn: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from tinyml import Device, Tensor, TinyJit, nn

try:
    from sklearn.datasets import load_digits
    from tqdm import tqdm
except ImportError as error:
    sys.exit(
        f"this example needs {error.name}: pip install tqdm scikit-learn (tinyml's extra "
        "'examples'; or: make demo)"
    )


class Digits:
    """Two convolutions and two linear layers; (batch, 1, 8, 8) to (batch, 10)."""

    def __init__(self) -> None:
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.3)
        self.hidden = nn.Linear(32 * 4 * 4, 64)
        self.out = nn.Linear(64, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.conv1(x).relu()  # (batch, 16, 8, 8)
        x = self.conv2(x).relu().max_pool2d()  # (batch, 32, 4, 4)
        return self.out(self.hidden(self.dropout(x.flatten(1))).relu())


def digits(test_share: float = 0.2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels to train on, images and labels to test on."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = np.split(order, [round(test_share * len(order))])
    labels = labels.astype(np.int32)
    x, y = images[train], labels[train]
    return Tensor(x), Tensor(y), Tensor(images[test]), Tensor(labels[test])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=12, help="times each image is seen")
    parser.add_argument("--batch", type=int, default=64, help="images in one step")
    parser.add_argument("--lr", type=float, default=1e-2, help="highest learning rate")
    args = parser.parse_args()
    if min(args.epochs, args.batch) < 1:
        parser.error("--epochs and --batch must be 1 or more")

    Tensor.manual_seed(1337)
    images, labels, test_images, test_labels = digits()
    model = Digits()
    optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=args.lr)

    @TinyJit
    def step(picked: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(images[picked]).sparse_categorical_crossentropy(labels[picked])
        loss.backward()
        optimizer.step()
        return loss

    start = time.perf_counter()
    count = images.shape[0]
    batch = min(args.batch, count)
    steps = count // batch  # in an epoch; the images that are left over are others each time
    total = args.epochs * steps
    shuffle = np.random.default_rng(1).permutation
    with Tensor.train(), tqdm(total=total, unit="step") as bar:
        for epoch in range(args.epochs):
            order = shuffle(count)[: steps * batch].astype(np.int32)
            for picked in order.reshape(steps, batch):
                # up over the first steps, then down to zero in a line
                optimizer.lr = args.lr * min((bar.n + 1) / 20, 1 - bar.n / total)
                loss = step(Tensor(picked))
                bar.update()
            bar.set_postfix(epoch=epoch + 1, loss=f"{loss.item():.4f}")

    right = model(test_images).argmax(axis=1) == test_labels
    print(f"test accuracy {100 * right.float().mean().item():.2f} % on {right.shape[0]} digits")
    print(f"{time.perf_counter() - start:.1f} s on {Device.DEFAULT}")


if __name__ == "__main__":
    main()
