"""benchmarks/: the workloads mean what they say, and the arithmetic of the report is right.

Nothing is timed here, and no peer is needed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import (
    card,
    ceilings,
    compilers,
    cuda,
    generation,
    machine,
    report,
    resources,
    run,
    scheduled,
    size,
    steps,
    timing,
    workloads,
)
from benchmarks.ceilings import Ceilings
from benchmarks.dialect import NumpyOps, TinymlOps
from benchmarks.peers import NumpyPeer, TinymlPeer, Work
from benchmarks.steps import GPTSize, Step
from benchmarks.timing import Round
from benchmarks.workloads import Workload
from tinyml import Device, Tensor, config, defaults, kernel, trace
from tinyml.cache import DiskCache
from tinyml.dtype import float32
from tinyml.errors import CompileError, DeviceError
from tinyml.runtime import nvcc
from tinyml.runtime.nvcc import CudaBuilder

KERNELS = [*workloads.kernels(), *workloads.for_cards()]
FORWARD_AND_BACKWARD = [work for work in KERNELS if work.gradients is not None]
SMALL = GPTSize(1, 8, 2, 4, 2, 5)
STEPS = [
    steps.digits(4),
    steps.mlp((6, 5, 3), 4),
    steps.residual((4, 6), 8, 2),
    steps.gpt(SMALL),
    steps.decode(SMALL),
    steps.updates(SMALL),
    steps.bottlenecks((1, 1), 2, 8, 2),
    replace(steps.mlp((6, 5, 3), 4), name="half", half=True, rtol=1e-2),
]


def by_name(works: list[Any]) -> Any:
    return pytest.mark.parametrize("work", works, ids=lambda work: work.name)


@by_name([work.shrunk() for work in KERNELS])
def test_tinyml_agrees_with_float64(work: Workload) -> None:
    inputs = work.inputs()
    run.checked(TinymlPeer(), work, inputs, work.reference(inputs))


@by_name(STEPS)
def test_a_step_agrees_with_float64(work: Work) -> None:
    inputs = work.inputs()
    run.checked(TinymlPeer(), work, inputs, work.reference(inputs))


def gradients(step: Step, dtype: str) -> Any:
    """Of all parameters, by tinyml's interpreter."""
    tensors = [Tensor(array, device="NUMPY") for array in step.inputs()]
    tensors = [x.cast(dtype).detach() if x.is_floating_point() else x for x in tensors]
    parameters, data = step.split(tensors)
    for tensor in parameters.values():
        tensor.requires_grad_()
    loss = cast(Any, step.loss)(steps.spoken(TinymlOps(), step), parameters, *data)
    found = loss.gradient(*parameters.values())
    Tensor.realize(*found)
    return np.concatenate([slope.numpy().ravel() for slope in found])


def test_halves_leave_the_deep_convnet_most_of_its_gradients() -> None:
    step = steps.bottlenecks(width=8, size=64, batch=2)
    right = gradients(step, "float64")
    off = gradients(replace(step, half=True), "float32") - right
    assert np.linalg.norm(off) < 0.5 * np.linalg.norm(right)


@by_name([work.shrunk() for work in FORWARD_AND_BACKWARD])
def test_reference_gradients_are_differences(work: Workload) -> None:
    given = work.inputs()
    *inputs, upstream = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in given]
    assert work.gradients is not None
    random = np.random.default_rng(1)
    for n, gradient in enumerate(work.gradients(upstream, *inputs)):  # floats come first
        direction = random.standard_normal(inputs[n].shape)

        def along(t: float, n: int = n, direction: Any = direction) -> float:
            moved = [x + t * direction if i == n else x for i, x in enumerate(inputs)]
            return float((work.run(NumpyOps(), *moved) * upstream).sum())

        slope = (along(1e-5) - along(-1e-5)) / 2e-5
        np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-5, atol=1e-6)


def test_a_wrong_result_is_not_timed() -> None:
    work = KERNELS[0].shrunk()
    inputs = work.inputs()
    with pytest.raises(AssertionError, match=r"result 0 is off by"):
        run.checked(NumpyPeer(), work, inputs, [1.01 * work.reference(inputs)[0]])


def test_dropout_drops_its_share_and_scales_the_rest() -> None:
    work = replace(KERNELS[0], dropped=0.1)
    right = [np.ones(1000)]
    kept = np.arange(1000) % 10 > 0
    assert run.off(work, [np.where(kept, 1.0, 0.0)], right) == 0
    with pytest.raises(AssertionError, match=r"20.00% of it are 0, and not 10%"):
        run.off(work, [np.where(np.arange(1000) % 5 > 0, 1.0, 0.0)], right)
    with pytest.raises(AssertionError, match=r"result 0 is off by"):
        run.off(work, [np.where(kept, 1.1, 0.0)], right)


def test_names_are_unique_and_select() -> None:
    names = [work.name for work in run.everything(quick=False)]
    assert len(set(names)) == len(names)
    assert [w.name for w in run.everything(quick=False) if run.matches(w, ["matmul 102"])] == [
        "matmul 1021",
        "matmul 1024",
    ]
    assert all(run.matches(work, ["row"]) for work in KERNELS if work.group == "row")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_dies_is_an_error() -> None:
    assert run._apart(lambda: {"fine": 1}) == {"fine": 1}
    assert "exit code 7" in run._apart(lambda: run.os._exit(7))["error"]
    assert run._apart(lambda: 1 // 0)["error"].startswith("ZeroDivisionError")


def rounds(*foreign: float) -> list[Round]:
    """Rounds in which tinyml takes 1, 2, 3... s and torch twice that."""
    times = [{"tinyml": n + 1.0, "torch": 2 * (n + 1.0)} for n in range(len(foreign))]
    return [Round(t, t, f) for t, f in zip(times, foreign, strict=True)]


def test_disturbed_rounds_do_not_count() -> None:
    timings = timing.keep(rounds(0.5, 0.0, 0.01, 0.3, 0.02))
    assert (timings.taken, timings.calm, timings.disturbed) == (5, 3, False)
    assert timings.seconds("tinyml") == 3.0
    assert timings.speedup("tinyml", over="torch") == 2.0


def test_without_calm_rounds_the_fastest_call_has_to_do() -> None:
    timings = timing.keep(rounds(0.5, 0.0, 0.5, 0.3))
    assert (timings.taken, timings.calm, timings.disturbed) == (4, 1, True)
    assert timings.seconds("tinyml") == 1.0


def test_interleaving_calls_everybody_in_turn() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in ("a", "b")}
    timings = timing.interleave(calls, rounds=1, budget=0.0)
    assert timings.taken >= 1
    assert {"a", "b"} == set(order)
    assert all(r.least["a"] <= r.seconds["a"] for r in timings.kept)


def test_a_step_writes_its_parameters_and_moments_and_reads_its_data_too() -> None:
    step = steps.mlp((6, 5, 3), 4)
    inputs = step.inputs()
    parameters, data = step.split(inputs)
    written = 3 * sum(a.nbytes for a in parameters.values())
    assert step.traffic(inputs, []) == (written + sum(a.nbytes for a in data), written)


def test_the_roof_is_what_takes_longer() -> None:
    moving, reading = {1 << 20: 100.0, 1 << 26: 10.0}, {1 << 20: 200.0, 1 << 26: 20.0}
    limits = Ceilings(moving, reading, flops=50.0, threads=2)
    assert limits.moving(1 << 29, 1 << 29) == (1 << 30) / 10
    assert limits.moving(0, 1 << 20) == (1 << 20) / 100
    assert limits.moving(3 << 18, 1 << 18) == (1 << 19) / 100 + (1 << 19) / 200
    assert limits.seconds(1 << 20, 0, flops=1) == (1 << 20) / 200
    assert limits.seconds(1, 1, flops=1000) == 20.0


@pytest.mark.parametrize("mega", [(3, 3), (9, 1), (0, 4), (8, 0), (23, 2)])
def test_the_machine_moves_as_many_bytes_as_a_workload(
    mega: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, written = (n << 20 for n in mega)
    passes, real = set(), ceilings._moving

    def moving(memories: list[Any], nbytes: int, kept: str, threads: int) -> Any:
        read_by_it = (len(memories) - 1) * nbytes
        passes.add((read_by_it, nbytes if kept != ceilings._KEEP else 0))
        return real(memories, nbytes, kept, threads)

    monkeypatch.setattr(ceilings, "_moving", moving)
    move = ceilings.mover(read, written, threads=2)
    assert move is not None
    move()
    assert tuple(map(sum, zip(*passes, strict=True))) == (read, written)
    assert ceilings.mover(1000, 1000, threads=2) is None


def test_the_machine_multiplies_as_many_numbers_as_a_workload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[float] = []
    real = ceilings._multiplying

    def multiplying(steps: int, threads: int) -> Any:
        counted.append(2 * ceilings._CHAINS * ceilings._lanes() * steps * threads)
        return real(steps, threads)

    monkeypatch.setattr(ceilings, "_multiplying", multiplying)
    multiply = ceilings.multiplier(1e8, threads=2)
    assert multiply is not None
    multiply()
    assert counted == [pytest.approx(1e8, rel=1e-4)]
    assert ceilings.multiplier(1000, threads=2) is None


RESULT: dict[str, Any] = {
    "name": "softmax",
    "errors": {"compile": "RuntimeError: no compiler", "numpy": "left out: it has no gradients"},
    "peers": {
        "tinyml": {"seconds": 0.002, "speedup": 1.0},
        "torch": {"seconds": 0.003, "speedup": 1.52},
        "tinygrad": {"seconds": 0.1234, "speedup": 61.7},
    },
    "fraction": 0.456,
    "bound": "B",
    "kept": 9,
    "calm": 9,
    "taken": 11,
}


def test_the_table() -> None:
    names = ["tinyml", "torch", "compile", "tinygrad", "numpy"]
    lines = report.table([RESULT], names).split("\n")
    assert lines[0] == (
        "| workload | ms | roof | torch | compile | tinygrad | numpy | best | rounds |"
    )
    assert lines[2] == (
        "| softmax | 2 | 46 % B | 3 (1.52x) | failed | 123 (61.70x) |  | 1.52x | 9/11 |"
    )


def test_the_table_when_tinyml_fails() -> None:
    peers = {"torch": {"seconds": 0.003}}
    failed = {"name": "add", "errors": {"tinyml": "CompileError: no"}, "peers": peers}
    assert report.table([failed], ["tinyml", "torch"]).split("\n")[2] == (
        "| add | failed |  | 3 |  |  |"
    )
    assert report.failures([failed]) == "- add: tinyml: CompileError: no"


def test_the_document_says_where_it_was_measured() -> None:
    full = {
        "title": "figures",
        "machine": {"cpu": "a fast one", "commit": "abc"},
        "settings": {"threads": 2},
        "ceilings": {
            "bandwidth": {1 << 20: 5e10},
            "reading": {1 << 20: 6e10},
            "flops": 2e11,
            "threads": 2,
        },
        "peers": ["tinyml", "torch"],
        "results": [RESULT],
    }
    text = report.document(full)
    for words in ("- cpu: a fast one", "1 MB: 50.0", "200 GFLOP/s", "- softmax: compile: Run"):
        assert words in text


def test_size_counts_rooms_and_functions(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "a.py").write_text("def f(x):\n    return x\n")
    (tmp_path / "top.py").write_text("X = 1\n")
    rooms, files, functions = size.count(tmp_path)
    assert rooms == {"room": 2, "(top)": 1}
    assert [f.where for f in files] == ["room/a.py", "top.py"]
    assert functions == [size.Span(2, "room/a.py: f")]


def test_file_names_are_plain() -> None:
    assert machine.slug("AMD EPYC (family 25, model 1)") == "amd-epyc-family-25-model-1"


def test_the_default_device_is_what_tinyml_is_timed_on() -> None:
    assert Device.DEFAULT in TinymlPeer().version


def test_compilers_are_held_against_the_best() -> None:
    assert compilers.head(["gcc", "cc"]).startswith("| workload | gcc ms | of the best | cc ms |")
    assert compilers.line("add", [0.002, 0.004]) == "| add | 2 | 1.00 | 4 | 0.50 |"


def test_compilers_run_the_same_launches() -> None:
    work = workloads.Workload("add", "stream", ((5, 3),) * 2, lambda ops, a, b: a + b)
    with defaults(device="CPU"):
        seconds = compilers.fastest(work, ["cc", "gcc"], rounds=1)
    assert len(seconds) == 2
    assert min(seconds) > 0


def asked(out: Path, *words: str, device: str = "CPU") -> argparse.Namespace:
    given = ["--small", "--device", device, "--out", str(out), "--peers", "", "--beam", "0"]
    return cuda.arguments([*given, *words])


@pytest.mark.skipif(not Device.available("CPU"), reason="needs a C compiler")
def test_generation_is_timed_kernel_by_kernel() -> None:
    one = generation.made("matmul 64x16384x64")
    assert [name.rpartition("_")[0] for name, _ in one.generated] == [
        *("sum_mul_16x64x64_r1024", "sum_64x64_r16")
    ]
    assert min(one.scheduled, *(ms for _, ms in one.generated)) > 0


def test_generation_is_told_by_the_shortest_of_all_rounds() -> None:
    first = generation.Made(0.5, [("sum_1a", 1.0), ("add_2b", 4.0)])
    second = generation.Made(0.7, [("sum_1a", 3.0), ("add_2b", 1.0)])
    best = generation.least([first, second])
    assert best == generation.Made(0.5, [("sum_1a", 1.0), ("add_2b", 1.0)])
    assert "| 2 | 1.2 | 1.0 | 1.0 |" in generation.line("matmul", best)
    assert "2 were generated in 5 ms or less" in generation.summary([best])


def test_every_item_for_a_card_has_a_name_of_its_own() -> None:
    for small in (False, True):
        names = [item.name for item in card.items(small)]
        assert len({*names}) == len(names)
    kinds = {item.settings for item in card.items()}
    tf32, warps = "TF32=1", "WARPGROUPS=0"
    assert kinds == {(), (tf32,), (warps,), (tf32, warps)}


def test_a_rehearsal_without_a_card(tmp_path: Path) -> None:
    """Each answer is in the file at once; what is there is not asked for again."""
    args = asked(tmp_path / "made.json", "rmsnorm 8192x1024")
    record: dict[str, Any] = {"results": {}, "facts": {}}
    workers = cuda.Workers(args)
    for line in cuda.measure(workers, record, args):
        found = json.loads(args.out.read_text())["results"]
        assert found[line.split(": ")[0]]["tinyml"]["kernels"]
    assert sorted(found) == ["rmsnorm 8192x1024", "rmsnorm 8192x1024, backward too"]
    assert not list(cuda.measure(workers, record, args))
    workers.close()
    lines = cuda.document(record).split("\n")
    assert lines[1] == "| workload | kernels | tinyml ms | roof | GB/s | TFLOP/s | host us |"
    assert lines[3].startswith("| rmsnorm 8192x1024 | 1 | ")


def test_a_word_that_nothing_has_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, why in (
        (["softmax", "sofmax"], "no workload's name has 'sofmax'"),
        (["--peers", "torch,tourch"], "--peers tourch: there are torch, compile, tinygrad"),
    ):
        with pytest.raises(SystemExit):
            cuda.arguments(given)
        assert why in capsys.readouterr().err


def test_a_file_goes_on_with_the_same_card_and_program(tmp_path: Path) -> None:
    out, facts = tmp_path / "made.json", {"card": "a fast one", "commit": "1a"}
    assert cuda.begun(out, facts) == {"results": {}}
    cuda.save({"results": {"add": {}}, "facts": facts}, out)
    assert cuda.begun(out, facts)["results"] == {"add": {}}
    error = cuda.begun(out, {"card": "a fast one", "commit": "2b"})["error"]
    assert error == f"{out} has figures of another commit: name another --out"


def test_floats_that_tensor_cores_round_are_right_for_what_they_are(tmp_path: Path) -> None:
    worker = cuda.Worker(asked(tmp_path / "made.json", device="EMU"))
    for item in (i for i in card.items(small=True) if "TF32=1" in i.settings):
        assert "error" not in worker.ask("tinyml", item)
    worker.close()


def test_a_first_call_is_that_of_two_new_processes(tmp_path: Path) -> None:
    args = asked(tmp_path / "made.json", "AdamW")
    (item,) = [i for i in card.items(small=True) if i.first and "GPT" in i.work.name]
    worker = cuda.Worker(args)
    answer = worker.ask("tinyml", item)
    assert answer["warm seconds"] > 0
    record = {"facts": {}, "ceilings": {}, "results": {item.name: {"tinyml": answer}}}
    assert f"- {item.name}: tinyml " in cuda.document(record)


def test_processes_take_turns_and_one_that_dies_gives_its_own_back(tmp_path: Path) -> None:
    turns = tmp_path / "turns"
    turns.touch()
    code = f"""
import os
from benchmarks import card
with card.Turn({str(turns)!r}):
    print("mine", flush=True)
    input()
    os._exit(1)
"""
    command = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as child:
        assert child.stdout.readline() == "mine\n"
        with open(turns) as mine:
            with pytest.raises(BlockingIOError):
                fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            child.communicate("\n")
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
    turn = card.Turn(str(turns))
    with turn, turn:  # who has it may ask again
        pass


def test_what_several_processes_measure_is_all_that_one_does(tmp_path: Path) -> None:
    args = asked(tmp_path / "made.json", "rmsnorm", "softmax 8192", "--processes", "2")
    workers = cuda.Workers(args)
    record: dict[str, Any] = {"results": {}, "facts": {}}
    lines = list(cuda.measure(workers, record, args))
    workers.close()
    named = {i.name for i in card.items(small=True) if run.matches(i.work, args.names)}
    assert {*record["results"]} == named
    assert len(lines) == len(named)
    assert all("seconds" in found["tinyml"] for found in record["results"].values())


def test_what_a_worker_does_not_survive_is_an_error(tmp_path: Path) -> None:
    args = asked(tmp_path / "made.json", device="NONE")
    worker = cuda.Worker(args)
    assert "no device 'NONE'" in worker.facts()["error"]
    worker.close()
    spawn = multiprocessing.get_context("spawn")
    pipe, its = spawn.Pipe()
    worker.pipe, worker.child = pipe, spawn.Process(target=run.os._exit, args=(7,))
    worker.child.start()
    its.close()
    assert worker._answer() == {"error": "the process died, exit code 7"}


def test_nobody_waits_for_a_kind_that_hangs(tmp_path: Path) -> None:
    args = asked(tmp_path / "made.json", "sum axis", "softmax")
    record: dict[str, Any] = {"results": {}, "facts": {}}
    questions = list[str]()

    class Silent:
        def __init__(self, *_: object) -> None: ...

        def close(self) -> None: ...

        def ask(self, who: str, item: card.Item, name: str = "") -> dict[str, Any]:
            questions.append(name or item.name)
            return {"error": "no answer within 120 s"}

    workers = cuda.Workers(args, cast("Any", Silent))
    said = list(cuda.measure(workers, record, args))
    workers.close()
    assert questions[0] == card.CEILINGS
    assert len(questions) == 1 + cuda.HANGS < len(said)
    assert json.loads(args.out.read_text())["results"].keys() == record["results"].keys()
    assert "ceiling" not in cuda.document(record)  # there is none, which is not the end
    assert said[-1].endswith(f"left out: {cuda.HANGS} before it gave no answer")


def test_figures_of_a_card_as_a_table() -> None:
    own = {"seconds": 2e-3, "bytes": 4e9, "flops": 8e12, "kernels": [("k", 2e-3)], "dtype": "tf32"}
    record: dict[str, Any] = {
        "facts": {"card": "a fast one"},
        "ceilings": {"copy": 4e12, "tf32": 8e15, "products": "cuBLAS 13.3.2"},
        "results": {
            "add": {"tinyml": own | {"host seconds": 1e-5}, "torch": {"seconds": 3e-3}},
            "mul": {"tinyml": {"error": "KernelError: no"}},
        },
    }
    text = cuda.document(record)
    assert "| add | 1 | 2 | 50 % | 2000.0 | 4000.0 | 10 | 3 (1.50x) |" in text
    assert "| mul |  | failed |" in text
    assert "- products of matrices made by: cuBLAS 13.3.2" in text
    assert text.endswith("- mul: tinyml: KernelError: no")


# ---- what kernels take of a card ----


class Ptxas:
    """A compiler that has said what it says, of whatever it is given."""

    command = fingerprint = "ptxas"

    def compile(self, source: str, architecture: str, in_order: bool = False) -> tuple[bytes, str]:
        if "float *__restrict__ slot0" not in source:
            raise CompileError("no float")
        names = re.findall(r"__launch_bounds__\(.*?\) (\w+)\(", source)
        said = (
            "Compiling entry function '{}' for 'sm_80'\n8 bytes stack frame, 4 bytes spill stores"
        )
        said += ", 4 bytes spill loads\nUsed 600 registers\n"
        return b"", "".join(said.format(name) for name in names)


def test_what_does_not_fit_a_card_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel once, for all settings of a card; inputs take no memory."""
    monkeypatch.setattr(Device, "DEFAULT", "EMU")
    works = [w for w in workloads.kernels() if w.name in ("matmul 1024", "layernorm 8192x1024")]
    builder = CudaBuilder(Ptxas(), "sm_80")
    before = Device.memory_stats("EMU").in_use
    target = resources.CARDS["sm_80"]
    found = list(resources.compiled(works * 2, resources.targets(target), builder, DiskCache(None)))
    assert Device.memory_stats("EMU").in_use == before
    assert [one.workload for one in found] == ["layernorm 8192x1024", *["matmul 1024"] * 2]
    troubled = {one.workload: one.troubles for one in found}
    assert troubled["matmul 1024"] == ["spills", "registers"]
    counts = resources.summary(found)["counts"]
    assert counts["kernels"] == counts["spills"] == 3


def test_a_kernel_that_does_not_compile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "DEFAULT", "EMU")
    works = [w for w in KERNELS if w.name in ("matmul 8192 bf16", "add 16M")]
    target, builder = resources.CARDS["sm_80"], CudaBuilder(Ptxas(), "sm_80")
    found = list(resources.compiled(works, [target], builder, DiskCache(None)))
    errors = [one.error for one in found if one.troubles == ["does not compile"]]
    assert len(found) == 2
    assert len(errors) == 1
    assert "no float" in errors[0]


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("sm_80", "conv 3x3 64->64 8x64x56x56"),  # ptxas aims at two blocks, with 127 registers
        ("sm_90a", "linear+gelu 1024x768->3072"),
        ("sm_90a", "matmul 4096 bf16"),
        ("sm_89", "attention B2 H8 T512 D64, causal bf16"),
        ("sm_75", "attention B2 H8 T512 D64"),  # all reads of a loop at once are 288
    ],
)
def test_registers_suffice(architecture: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kernels of every kind, as they are compiled where there is a card."""
    monkeypatch.setattr(Device, "DEFAULT", "EMU")
    try:
        builder = CudaBuilder(nvcc.find(), architecture)
    except DeviceError as error:
        pytest.skip(str(error))
    works = [i.work for i in card.items() if not i.settings and i.work.name == name]
    kinds = resources.targets(resources.CARDS[architecture])[-1:]
    found = list(resources.compiled(works, kinds, builder, DiskCache(None)))
    assert found
    assert not [str(one) for one in found if one.troubles]


def test_steps_are_compiled_as_they_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters are overwritten in place."""
    monkeypatch.setattr(Device, "DEFAULT", "EMU")
    made = scheduled.kernels_of(steps.mlp((6, 5, 3), 4))
    assert sum(slot == ((5, 6), float32) for k in made for slot in k.slots) >= 3


@pytest.mark.skipif(not Device.available("CPU"), reason="needs a C compiler")
def test_the_kernels_of_a_step_are_those_that_it_launches() -> None:
    """Gradients, too, are kept before the parameters that they were made of are overwritten."""
    step = steps.mlp((6, 5, 3), 4)
    with defaults(device="CPU"), config.override(jit=False):
        call = TinymlPeer().prepare(step, step.inputs())
        for _ in range(2):
            with trace.listen(trace.KernelRan) as launches:
                call()
        made = [kernel.name(k) for k in scheduled.kernels_of(step)]
    assert made == [launch.program.name.rpartition("_")[0] for launch in launches]
