"""Figures as a markdown table. Works on the plain dictionaries that the JSON files hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]

LEFT_OUT = "left out"  # how the error begins of those who cannot take part
LEGEND = """\
`ms`: tinyml, median of the rounds that count. A peer's column: its ms and, in brackets, how many
times faster tinyml is (above 1: tinyml wins), the median of the ratios of the single rounds.
`best`: the same against the fastest peer. `roof`: share of the machine's ceiling that tinyml
reached, whichever bounds: of the speed at which as many bytes are moved (B), or numbers multiplied
and added (F), in the same rounds by what does nothing else. `rounds`: those that count, of those
run; `~`: others used the machine in nearly all of them; then all figures of the line are those of
the fastest single call, and say less."""


def table(results: Sequence[Record], peers: Sequence[str]) -> str:
    """One line for each workload."""
    others = [name for name in peers if name != "tinyml"]
    head = ["workload", "ms", "roof", *others, "best", "rounds"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    lines += [_line(_cells(result, others)) for result in results]
    return "\n".join(lines)


def failures(results: Sequence[Record]) -> str:
    """A line for each competitor that did not do its work."""
    return "\n".join(
        f"- {result['name']}: {name}: {error}"
        for result in results
        for name, error in result["errors"].items()
    )


def document(report: Record) -> str:
    """The whole report: facts, ceilings, table, legend, failures."""
    machine, ceilings = report["machine"], report["ceilings"]
    parts = [
        f"# {report['title']}",
        "\n".join(f"- {name}: {value}" for name, value in machine.items()),
        "\n".join(f"- {name}: {value}" for name, value in report["settings"].items()),
        _ceilings(ceilings),
        table(report["results"], report["peers"]),
        LEGEND,
    ]
    if failed := failures(report["results"]):
        parts.append("Failed, or left out:\n\n" + failed)
    return "\n\n".join(parts) + "\n"


def _ceilings(ceilings: Record) -> str:
    moving, reading = (
        ", ".join(f"{int(size) >> 20} MB: {rate / 1e9:.1f}" for size, rate in rates.items())
        for rates in (ceilings["bandwidth"], ceilings["reading"])
    )
    return (
        f"- bandwidth by bytes moved, GB/s: {moving}; of reading alone: {reading}\n"
        f"- multiply-adds: {ceilings['flops'] / 1e9:.0f} GFLOP/s on {ceilings['threads']} threads"
    )


def _cells(result: Record, others: Sequence[str]) -> list[str]:
    timed: Record = result["peers"]
    own = timed.get("tinyml")
    cells = [result["name"], milliseconds(own["seconds"]) if own else "failed", _roof(result)]
    for name in others:
        peer = timed.get(name)
        if peer is None:
            error = result["errors"].get(name, LEFT_OUT)
            cells.append("" if error.startswith(LEFT_OUT) else "failed")
        elif own is None:
            cells.append(milliseconds(peer["seconds"]))
        else:
            cells.append(f"{milliseconds(peer['seconds'])} ({peer['speedup']:.2f}x)")
    return [*cells, _best(result, others), _rounds(result)]


def _best(result: Record, others: Sequence[str]) -> str:
    found = {n: result["peers"][n] for n in others if n in result["peers"]}
    if "tinyml" not in result["peers"] or not found:
        return ""
    fastest = min(found, key=lambda name: found[name]["seconds"])
    return f"{found[fastest]['speedup']:.2f}x"


def _roof(result: Record) -> str:
    if "fraction" not in result:
        return ""
    return f"{100 * result['fraction']:.0f} % {result['bound']}"


def _rounds(result: Record) -> str:
    if "kept" not in result:
        return ""
    mark = "~" if result["calm"] < result["kept"] else ""
    return f"{mark}{result['calm']}/{result['taken']}"


def milliseconds(seconds: float) -> str:
    """Three digits that count."""
    value = 1000 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
