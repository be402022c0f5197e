"""A sequence of launches that is replayed as one CUDA graph.

PyCUDA knows no graphs, so these few functions of the driver are called through ctypes, on
PyCUDA's stream. A plan launches its kernels one by one until it is clear that it is worth a
graph: on its second run the launches are captured, and from then on one call starts them all.
Where a driver does not know the functions, or refuses, the plan goes on one by one.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinyml.runtime.cuda import CudaExecutable, CudaMachine

_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may use the card meanwhile
_FEWEST = 3  # launches that are worth a graph

_Handle = ctypes.c_void_p


class _NodeParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    _fields_ = (
        ("function", _Handle),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),  # an array of pointers to the arguments
        ("extra", ctypes.c_void_p),  # or a packed buffer of them; one of the two is null
        ("kernel", _Handle),
        ("context", _Handle),
    )


class GraphError(Exception):
    """The driver refused something about graphs."""


class GraphDriver:
    """The driver's graph functions; AttributeError or OSError where it has none."""

    def __init__(self) -> None:
        library = ctypes.CDLL("libcuda.so.1")
        self.begin = self._checked(library.cuStreamBeginCapture_v2)
        self.end = self._checked(library.cuStreamEndCapture)
        self.info = self._capture_info(library)
        self.instantiate = self._checked(library.cuGraphInstantiateWithFlags)
        self.launch = self._checked(library.cuGraphLaunch)
        self.get_parameters = self._checked(library.cuGraphKernelNodeGetParams_v2)
        self.set_parameters = self._checked(library.cuGraphExecKernelNodeSetParams_v2)
        self.destroy_graph = self._checked(library.cuGraphDestroy)
        self.destroy_instance = self._checked(library.cuGraphExecDestroy)

    def _capture_info(self, library: ctypes.CDLL) -> Callable[..., None]:
        """cuStreamGetCaptureInfo without the data of edges, which only its newer form has."""
        newer = getattr(library, "cuStreamGetCaptureInfo_v3", None)
        if newer is None:
            return self._checked(library.cuStreamGetCaptureInfo_v2)
        call = self._checked(newer)
        return lambda *arguments: call(*arguments[:-1], None, arguments[-1])

    @staticmethod
    def _checked(function: Any) -> Callable[..., None]:
        name = function.__name__

        def call(*arguments: Any) -> None:
            answer = function(*arguments)
            if answer:
                raise GraphError(f"{name} answered {answer}")

        return call


class Graph:
    """Captured launches, whose arguments can be changed."""

    def __init__(
        self, driver: GraphDriver, stream: Any, calls: Sequence[tuple[CudaExecutable, list[int]]]
    ) -> None:
        self._driver, self._stream = driver, _Handle(stream.handle)
        self._calls = calls
        self._graph, self._instance = _Handle(), _Handle()
        self._nodes: list[_Handle] = []
        self._capture()
        flags = ctypes.c_ulonglong(0)
        driver.instantiate(ctypes.byref(self._instance), self._graph, flags)

    def launch(self) -> None:
        """Start all launches."""
        self._driver.launch(self._instance, self._stream)

    def update(self, call: int) -> None:
        """Give launch number `call` the memories that stand in the plan now."""
        executable, memories = self._calls[call]
        given = executable.arguments(memories)
        values = (ctypes.c_void_p * len(given))(*given)
        first, width = ctypes.addressof(values), ctypes.sizeof(ctypes.c_void_p)
        pointers = (ctypes.c_void_p * len(given))(*range(first, first + width * len(given), width))
        parameters = _NodeParameters()
        self._driver.get_parameters(self._nodes[call], ctypes.byref(parameters))
        parameters.parameters, parameters.extra = ctypes.addressof(pointers), None
        self._driver.set_parameters(self._instance, self._nodes[call], ctypes.byref(parameters))

    def close(self) -> None:
        """Release the driver's objects."""
        self._driver.destroy_instance(self._instance)
        self._driver.destroy_graph(self._graph)

    def _capture(self) -> None:
        for executable, memories in self._calls:
            executable.arguments(memories)  # tensor maps are copied before, not captured
        self._driver.begin(self._stream, _THREAD_LOCAL)
        try:
            for executable, memories in self._calls:
                executable.enqueue(memories)
                self._nodes.append(self._newest_node())
        finally:
            self._driver.end(self._stream, ctypes.byref(self._graph))

    def _newest_node(self) -> _Handle:
        """The node of the last launch: what the next one would depend on."""
        status, number = ctypes.c_int(), ctypes.c_uint64()
        graph, count = _Handle(), ctypes.c_size_t()
        nodes = ctypes.POINTER(_Handle)()
        references = (ctypes.byref(x) for x in (status, number, graph, nodes, count))
        self._driver.info(self._stream, *references)
        if count.value != 1:
            raise GraphError(f"a launch has {count.value} nodes")
        return _Handle(nodes[0])


class CudaPlan:
    """A fixed sequence of launches, to run again and again: a launch.NativePlan."""

    def __init__(
        self,
        calls: Sequence[tuple[CudaExecutable, Sequence[int]]],
        machine: CudaMachine,
        driver: GraphDriver | None,
    ) -> None:
        self._graph: Graph | None = None
        self._driver = driver if len(calls) >= _FEWEST else None  # None: one by one
        self._calls = [(executable, list(memories)) for executable, memories in calls]
        self._names = ", ".join(dict.fromkeys(executable.program.name for executable, _ in calls))
        self._machine = machine
        self._runs = 0
        self._changed: set[int] = set()  # calls that the graph has with other memories

    def run(self) -> None:
        """Start all launches in order. May return before they are done."""
        self._machine.guarded(self._run, self._names)

    def rebind(self, call: int, slot: int, address: int) -> None:
        self._calls[call][1][slot] = address
        self._changed.add(call)

    def close(self) -> None:
        """Release the graph, and go on one by one."""
        graph, self._graph, self._driver = self._graph, None, None
        if graph is not None and not self._machine.forked:  # else it is the parent's
            with contextlib.suppress(GraphError):
                graph.close()

    def __del__(self) -> None:
        self.close()

    def _run(self) -> None:
        self._runs += 1
        if self._runs > 1 and self._driver is not None:
            try:
                self._replay(self._driver)
                return
            except GraphError:
                self.close()
        for executable, memories in self._calls:
            executable.enqueue(memories)

    def _replay(self, driver: GraphDriver) -> None:
        if self._graph is None:
            with self._machine.capturing:
                self._graph = Graph(driver, self._machine.stream, self._calls)
        else:
            for call in self._changed:
                self._graph.update(call)
        self._changed.clear()
        self._machine.recent.append(self._names)
        if self._machine.ranges is None:
            self._graph.launch()
        else:
            name = f"replay of {len(self._calls)} launches"
            self._machine.ranges.around(name, Graph.launch)(self._graph)
