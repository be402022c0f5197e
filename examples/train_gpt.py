"""Train a small GPT on the bytes of real text, and let it write.

python examples/train_gpt.py                      # on Python's own standard library
python examples/train_gpt.py --data shakespeare.txt --layers 6 --dim 256
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from tinyml import Device, Tensor, TinyJit, nn, no_grad

Tokens = npt.NDArray[np.int32]


class Memory(NamedTuple):
    """The keys and values of tokens that a block has seen: (1, heads, context, dim of a head)."""

    keys: Tensor
    values: Tensor


class Attention:
    """Causal self-attention with several heads."""

    def __init__(self, dim: int, heads: int) -> None:
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def __call__(self, x: Tensor, memory: Memory | None, places: Tensor | None) -> Tensor:
        batch, context, dim = x.shape
        qkv = self.qkv(x).reshape(batch, context, 3, self.heads, dim // self.heads)
        q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))  # (batch, heads, context, -1)
        if memory is None:
            y = q.scaled_dot_product_attention(k, v, is_causal=True)
        else:  # of one token, whose row is written in place, to all up to it
            memory.keys[:, :, places], memory.values[:, :, places] = k, v
            seen = Tensor.arange(memory.keys.shape[2]) <= places
            y = q.scaled_dot_product_attention(*memory, attn_mask=seen)
        return self.out(y.transpose(1, 2).reshape(batch, context, dim))


class Block:
    """Attention, then a two-layer network at each position; both added to what came in."""

    def __init__(self, dim: int, heads: int) -> None:
        self.norm1, self.attention = nn.LayerNorm(dim), Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def __call__(self, x: Tensor, memory: Memory | None, places: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm1(x), memory, places)
        return x + self.down(self.up(self.norm2(x)).gelu())


class GPT:
    """Tokens (batch, context) to logits of each next token (batch, context, vocabulary).

    Or one token (1, 1) and its place in the text (1,), where `memories` hold what was before.
    """

    def __init__(self, vocabulary: int, context: int, dim: int, heads: int, layers: int) -> None:
        self.token = nn.Embedding(vocabulary, dim)
        self.position = nn.Embedding(context, dim)
        self.blocks = [Block(dim, heads) for _ in range(layers)]
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        for embedding in (self.token, self.position):  # small, as in GPT-2
            embedding.weight.assign(embedding.weight.detach() * 0.02)

    def __call__(
        self, tokens: Tensor, memories: Sequence[Memory] = (), places: Tensor | None = None
    ) -> Tensor:
        positions = self.position.weight[: tokens.shape[1]]
        x = self.token(tokens) + (positions if places is None else self.position(places))
        for block, memory in itertools.zip_longest(self.blocks, memories):
            x = block(x, memory, places)
        return self.head(self.norm(x))

    def memories(self) -> list[Memory]:
        """One for each block, of a text that has not begun."""
        context, dim = self.position.weight.shape
        heads = self.blocks[0].attention.heads
        shape = 1, heads, context, dim // heads
        return [Memory(Tensor.zeros(shape), Tensor.zeros(shape)) for _ in self.blocks]


def read_text(data: Path | None, most: int = 4_000_000) -> bytes:
    """The file, or as many of the standard library's modules as fit into `most` bytes."""
    if data is not None:
        if not data.is_file():
            sys.exit(f"--data {data}: there is no such file")
        return data.read_bytes()
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"\n\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    if not text:
        sys.exit(f"no sources of the standard library in {folder}: pass a text with --data FILE")
    return text[:most]


def batches(tokens: Tokens, batch: int, context: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random windows, and the same windows one token later, without end."""
    draw = np.random.default_rng(seed).integers
    while True:
        starts = draw(0, len(tokens) - context, batch)
        windows = np.stack([tokens[s : s + context + 1] for s in starts])
        yield Tensor(windows[:, :-1].copy()), Tensor(windows[:, 1:].copy())


def loss_of(model: GPT, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, in nats."""
    return model(x).flatten(0, 1).sparse_categorical_crossentropy(y.flatten())


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """A short linear rise, then half a cosine down to a tenth."""
    rise = max(1, args.steps // 20)
    if step < rise:
        return float(args.lr * (step + 1) / rise)
    done = (step - rise) / max(1, args.steps - rise)
    return float(args.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))))


def train(model: GPT, tokens: Tokens, held_out: Tokens, args: argparse.Namespace) -> None:
    """Train for `args.steps` steps; print losses and tokens per second on the way."""
    optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=args.lr, b2=0.99)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        return loss

    evaluate = TinyJit(lambda x, y: loss_of(model, x, y))

    def validation() -> float:
        with Tensor.train(False):
            source = batches(held_out, args.batch, args.context, seed=2)
            losses = [float(evaluate(*next(source)).item()) for _ in range(args.eval_batches)]
        return sum(losses) / len(losses)

    source = batches(tokens, args.batch, args.context, seed=1)
    clock, since = time.perf_counter(), 0
    for i in range(args.steps):
        optimizer.lr = learning_rate(i, args)
        with Tensor.train():
            loss = step(*next(source))
        if i == 0 or (i + 1) % args.report == 0 or i + 1 == args.steps:
            value = loss.item()  # waits for the device
            speed = (i + 1 - since) * args.batch * args.context / (time.perf_counter() - clock)
            print(f"step {i + 1:5}  loss {value:.4f}  validation loss {validation():.4f}  ", end="")
            print(f"{speed:,.0f} tokens/s", flush=True)
            clock, since = time.perf_counter(), i + 1


def write(model: GPT, prompt: Tokens, count: int, context: int, warmth: float) -> Tokens:
    """Continue the prompt by `count` tokens, each drawn from what the model expects."""
    memories, random = model.memories(), np.random.default_rng(3)

    @TinyJit
    @no_grad()
    def logits_of(token: Tensor, places: Tensor) -> Tensor:
        return model(token, memories, places)

    text, unseen, at = prompt, prompt[-context:], 0
    for _ in range(count):
        if at + len(unseen) > context:  # memories are full: begin again with half of the text
            unseen, at = text[-max(1, context // 2) :], 0
        for token in unseen:
            made = logits_of(Tensor([[int(token)]]), Tensor([at]))
            at += 1
        logits: npt.NDArray[Any] = made.numpy()[0, 0]
        chances = np.exp((logits - logits.max()).astype(np.float64) / warmth)
        drawn = random.choice(len(chances), p=chances / chances.sum())
        unseen = np.array([drawn], np.int32)
        text = np.append(text, unseen)
    return text


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="text to learn; None: Python's own sources")
    parser.add_argument("--layers", type=int, default=4, help="blocks of attention and MLP")
    parser.add_argument("--heads", type=int, default=4, help="heads of attention in a block")
    parser.add_argument("--dim", type=int, default=128, help="numbers for each token")
    parser.add_argument("--context", type=int, default=128, help="tokens the model sees")
    parser.add_argument("--batch", type=int, default=16, help="windows in one step")
    parser.add_argument("--steps", type=int, default=400, help="training steps")
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--report", type=int, default=50, help="steps between two reports")
    parser.add_argument("--eval-batches", type=int, default=8, help="batches of a validation")
    parser.add_argument("--sample", type=int, default=400, help="bytes to write at the end")
    parser.add_argument("--prompt", default="\ndef ", help="what the written text begins with")
    parser.add_argument("--warmth", type=float, default=0.8, help="temperature of the sampling")
    args = parser.parse_args()
    sizes = ("layers", "heads", "dim", "context", "batch", "steps", "report", "eval_batches")
    for name in sizes:
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be 1 or more")
    if args.sample < 0 or args.warmth <= 0:
        parser.error("--sample must be 0 or more, and --warmth above 0")
    if args.dim % args.heads:
        parser.error(f"--dim {args.dim} cannot be shared by --heads {args.heads}")
    return args


def main() -> None:
    args = arguments()
    text = np.frombuffer(read_text(args.data), np.uint8)
    known = np.unique(text)  # token -> byte
    tokens = np.searchsorted(known, text).astype(np.int32)
    split = len(tokens) * 9 // 10
    if len(tokens) - split <= args.context:
        sys.exit(f"{len(tokens)} bytes of text are too few for --context {args.context}")

    Tensor.manual_seed(1337)
    model = GPT(len(known), args.context, args.dim, args.heads, args.layers)
    count = sum(math.prod(p.shape) for p in nn.state.get_parameters(model))
    print(f"{count:,} parameters, {len(tokens):,} bytes of text, on {Device.DEFAULT}")
    train(model, tokens[:split], tokens[split:], args)
    if args.sample > 0:
        prompt = np.frombuffer(args.prompt.encode(), np.uint8)
        prompt = prompt[np.isin(prompt, known)]  # bytes that the text never has mean nothing
        begin = np.searchsorted(known, prompt).astype(np.int32) if prompt.size else tokens[:1]
        written = write(model, begin, args.sample, args.context, args.warmth)
        print("-" * 80)
        print(bytes(known[written]).decode("utf-8", "replace"))


if __name__ == "__main__":
    main()
