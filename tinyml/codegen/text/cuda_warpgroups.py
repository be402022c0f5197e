"""Warpgroups in CUDA C (sm_90a): their products, and the boxes that a warp has copied."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Name
from tinyml.codegen.matrices import WARP, Matrix, Product
from tinyml.codegen.optimize.panels import ROW, ROWS
from tinyml.codegen.text.cuda_text import FRAGMENTS, HOPPER, SHAPES
from tinyml.codegen.text.render import Renderer
from tinyml.codegen.text.strength import wrap
from tinyml.index import Axis, Linear
from tinyml.ops import Op
from tinyml.program import Box

GROUP = 4 * WARP  # threads of a warpgroup
HANDED = 40, 232  # registers of a thread that has boxes copied, and of one that multiplies


class WarpgroupRenderer(Renderer):
    """What only Hopper has. Threads of a block are numbered along y.

    Registers are shared out evenly, and a ninth warp leaves 168 to each thread: where two
    warpgroups multiply, a third one has boxes copied, and hands them most of its own.
    """

    def launched(self) -> tuple[int, int]:
        more = (GROUP if self._handed() else WARP) * bool(self.k.produced)
        return self.k.block[0], self.k.block[1] + more

    def _handed(self) -> bool:
        return bool(self.k.produced) and self.k.block[1] > GROUP

    def boxes(self) -> tuple[Box, ...]:
        made = (copy.box for produced in self.k.produced for copy in produced.copies)
        return tuple(dict.fromkeys(made))

    def barrier(self) -> str:
        """Those who have boxes copied wait for nobody."""
        if not self.k.produced:
            return "__syncthreads();"
        self.prelude[FRAGMENTS] = None
        return f"tinyml_named_barrier(1, {prod(self.k.block)});"

    def instr(self, instr: ir.Instr) -> Iterator[str]:
        match instr:
            case ir.Update(name, Op.ADD, Product(a=Matrix() as a, b=Matrix() as b, lanes=lanes)):
                shape = SHAPES[a.dtype.name].replace("m16n8", f"m64n{2 * lanes}")
                flags = f"{int(a.crosswise)}, {int(b.crosswise)}"
                operands = f"{name.name}.at, {self._matrix(a)}, {self._matrix(b)}"
                yield f"tinyml_wgmma_{shape}<{flags}>({operands});"
            case ir.Update(name, Op.ADD, Product(a=a, b=Matrix() as b, lanes=lanes)):  # registers
                shape = SHAPES[a.dtype.name].replace("m16n8", f"m64n{2 * lanes}")
                operands = f"{name.name}.at, {self.value(a)}.at, {self._matrix(b)}"
                yield f"tinyml_wgmma_{shape}<{int(b.crosswise)}>({operands});"
            case ir.BeginProducts(names):
                self.prelude[HOPPER] = None
                yield " ".join([*_each("hold", names), "tinyml_wgmma_begin();"])
            case ir.EndProducts():
                yield "tinyml_wgmma_commit();"
            case ir.AwaitProducts(names, left, under_way):
                named = _each("hold" if under_way else "made", names)
                yield " ".join([f"tinyml_wgmma_wait<{left}>();", *named])
            case ir.Fence():
                self.prelude[HOPPER] = None
                yield "tinyml_fence_async();"
            case ir.Produce():
                self.prelude[HOPPER] = None
                yield from self._produce(instr)
            case ir.AwaitBoxes(axis, step, stages):
                full, parity = self._phase(ir.FULL, axis, step % stages), step // stages % 2
                yield f"tinyml_mbarrier_wait({full}, {self.index(parity)[0]});"
            case ir.Release(axis, step, stages):
                empty = self._phase(ir.EMPTY, axis, (step + stages) % stages)
                there = f"{wrap(self.index(step), 9)} >= 0 && " if step.low < 0 else ""
                yield f"if ({there}ty % {WARP} == 0) tinyml_mbarrier_arrive({empty});"
            case _:
                yield from super().instr(instr)

    def _matrix(self, e: Matrix) -> str:
        further = e.index.constant * e.dtype.itemsize  # so that one place will do for several
        begin = e.index - e.index.constant
        place = f"{e.name} + {wrap(self.index(begin), 12)}" if begin.terms else e.name
        return f"tinyml_matrix({place}, {further}, {e.leading}, {ROWS * ROW})"

    def _phase(self, name: str, axis: Axis, stage: Linear) -> str:
        return f"{name}_{axis.name} + {wrap(self.index(stage), 12)}"

    def _produce(self, made: ir.Produce) -> Iterator[str]:
        """By threads behind the others; a phase of `full` is an arrival and the bytes of a step."""
        axis, stages, first = made.begin.axis, made.stages, self.k.block[1]
        full, empty = (self._phase(n, axis, made.step % stages) for n in (ir.FULL, ir.EMPTY))
        yield f"if (ty < {stages}) {{"
        yield f"  tinyml_mbarrier_init({ir.FULL}_{axis.name} + ty, 1);"
        yield f"  tinyml_mbarrier_init({ir.EMPTY}_{axis.name} + ty, {first // WARP});"
        yield from ("}", "__syncthreads();", f"if (ty >= {first}) {{")
        if self._handed():
            yield f"  tinyml_hand_over_registers<{HANDED[0]}>();"
        yield f"  if (ty == {first}) {{"
        yield from (f"    tinyml_fence_map(box{n});" for n in range(len(self.boxes())))
        loops = [*made.around, made.begin]
        yield from (f"    {line}" for loop in loops for line in self.instr(loop))
        parity, step = self.index((made.step // stages + 1) % 2)[0], wrap(self.index(made.step), 9)
        yield f"      if ({step} >= {stages}) tinyml_mbarrier_wait({empty}, {parity});"
        yield f"      tinyml_mbarrier_expect({full}, {sum(c.nbytes for c in made.copies)});"
        for copy in made.copies:
            yield from (f"      {line}" for line in self._copy_boxes(copy, full))
        yield "    " + "}" * sum(isinstance(loop, ir.Begin) for loop in loops)
        yield from ("  }", "  return;", "}")
        if self._handed():
            yield f"tinyml_take_registers<{HANDED[1]}>();"

    def _copy_boxes(self, copy: ir.BoxCopy, full: str) -> Iterator[str]:
        number = self.boxes().index(copy.box)
        for panel, begin in enumerate(copy.at):
            place = wrap(self.index(copy.index + panel * prod(copy.box.box)), 12)
            at = ", ".join(self.index(i)[0] for i in begin)
            yield f"tinyml_copy_box({copy.tile} + {place}, box{number}, {at}, {full});"


def _each(what: str, names: tuple[Name, ...]) -> list[str]:
    return [f"tinyml_wgmma_{what}({name.name}.at);" for name in names]
