"""Figures for papers and cards, of the same data as the pages, by matplotlib, which is optional."""

import io
import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from storage.files import printable

LONGEST = 80
"""Characters of a name: drawing takes longer with the square of its length."""
COLORS = (
    "#2456c7", "#c8571b", "#1d8a75", "#8a3fb5", "#8d6b00", "#b3266b",
    "#53606f", "#00779e", "#4f7d12", "#23262d", "#7b4f2e", "#c23434",
)  # fmt: skip
"""Those of variants on light pages (`pages/style.css`), in their order."""
PANELS_IN_ROW = 6
PLAIN: Any = {"text.parse_math": False, "text.usetex": False}
"""Names may be those of foreign runs: a "$" in them is one, and begins no formula."""


def draw(data: dict[str, Any]) -> dict[str, bytes]:
    """Contents of curves.png, curves.svg, scores.png and scores.svg, of what `pages/comparison.html` reads.

    The same numbers give the same files.
    """
    found = {}
    for name, make in {"curves": _curves, "scores": _scores}.items():
        # Without a salt an SVG would have random names of its parts.
        with matplotlib.rc_context({"svg.hashsalt": name, **PLAIN}):
            figure = make(data)
            for axes in figure.axes:
                axes.spines[["top", "right"]].set_visible(False)
            for kind in ("png", "svg"):
                metadata = {"Date": None} if kind == "svg" else None  # else an SVG would have the time
                content = io.BytesIO()
                figure.savefig(content, format=kind, dpi=160, metadata=metadata)
                found[f"{name}.{kind}"] = content.getvalue()
    return found


def _shortened(name: str) -> str:
    """A name with its middle left out, if it is long, and without the control characters that fonts lack."""
    name = printable(name)
    if len(name) <= LONGEST:
        return name
    return f"{name[:50]} ... {name[-25:]}"


def draw_chart(chart: dict[str, Any], unit: str) -> bytes:
    """A PNG of one chart of what `pages/report.html` reads, over the axis "x" in a unit."""
    with matplotlib.rc_context(PLAIN):
        return _draw_chart(chart, unit)


def _draw_chart(chart: dict[str, Any], unit: str) -> bytes:
    figure = Figure((7.0, 3.2), layout="constrained")
    axes = figure.subplots()
    for index, line in enumerate(chart["series"]):
        axes.plot(
            line["x"], np.array(line["y"], np.float64), linewidth=1.6, color=f"C{index}", label=_shortened(line["name"])
        )
    for line in chart["lines"]:
        axes.axhline(line["value"], color="0.4", linewidth=0.8, linestyle=":")
        place = (1.0, line["value"])
        name = _shortened(line["name"])
        axes.annotate(name, place, xycoords=("axes fraction", "data"), va="center", color="0.3")
    axes.set(xlabel=unit, ylabel=chart["title"])
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.spines[["top", "right"]].set_visible(False)
    if len(chart["series"]) > 1:
        axes.legend(frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return content.getvalue()


def _curves(data: dict[str, Any]) -> Figure:
    """Score against frames or steps, a panel an environment: mean with its interval, and the runs, thinner."""
    count = max(1, len(data["panels"]))
    columns = min(count, PANELS_IN_ROW)
    rows = math.ceil(count / columns)
    width = max(9.0, 4.6 * columns)
    figure = Figure((width, 4.0 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    panels = list(grid.flat)
    for unused in panels[count:]:
        unused.set_axis_off()
    unit = "environment frames" if data["unit"] == "frames" else data["unit"]
    for axes, panel in zip(panels, data["panels"]):
        for line in panel["series"]:
            color = _color(line["index"])
            dashes = "--" if line["dash"] else "-"
            style = {"color": color, "linestyle": dashes}
            if line.get("thin"):
                axes.plot(line["x"], line["y"], linewidth=0.6, alpha=0.35, **style)
                continue
            axes.plot(line["x"], line["y"], linewidth=1.9, label=_shortened(line["name"]), **style)
            low, high = np.array([line["low"], line["high"]], np.float64)
            axes.fill_between(line["x"], low, high, color=color, alpha=0.16, linewidth=0)
        for line in panel["lines"]:
            axes.axhline(line["value"], color="0.4", linewidth=0.7, linestyle=":")
        axes.set(xlabel=unit)
        if count > 1:
            axes.set(title=_shortened(panel["title"]))
        axes.ticklabel_format(axis="x", scilimits=(0, 4))
    for first in grid[:, 0]:
        first.set_ylabel(data["scale"])
    _add_legend(figure, panels, width)
    return figure


def _add_legend(figure: Figure, panels: Sequence[Axes], width: float) -> None:
    """Above the panels of a figure, so many inches wide, what any of them shows: not every one has every variant."""
    shown: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    if not shown:
        return
    letters = max(map(len, shown))
    in_row = width / (0.7 + 0.09 * letters)  # inches of a line, and of a letter
    columns = min(5, max(1, int(in_row)))
    figure.legend(shown.values(), shown.keys(), loc="outside upper left", ncols=columns, frameon=False)


def _color(index: int) -> str:
    """The color of a variant, by its number."""
    return COLORS[index % len(COLORS)]


def _scores(data: dict[str, Any]) -> Figure:
    """Final scores: interquartile mean with its interval, and the runs as circles."""
    rows = data["scores"]
    figure = Figure((9.0, 0.9 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        color = _color(row["index"])
        interval = np.array([row["low"], row["high"]], np.float64)
        points = row["points"]
        axes.plot(interval, [place, place], color=color, linewidth=5, alpha=0.3, solid_capstyle="round")
        axes.plot(points, [place] * len(points), "o", markersize=4, color=color, markerfacecolor="none")
        axes.plot(row["value"], place, "D", markersize=6, color=color)
    names = [_shortened(row["name"]) for row in rows]
    axes.set(yticks=range(len(rows)), yticklabels=names, ylim=(len(rows) - 0.5, -0.5))
    axes.set_xlabel(f"{data['scale']}, evaluation at the end")
    return figure
