"""Figures of a comparison for papers, by matplotlib, which is optional."""

import io

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from reports.comparison import Comparison


def draw(comparison: Comparison) -> dict[str, bytes]:
    """Contents of curves.png, curves.svg, scores.png and scores.svg. The same numbers give the same files."""
    found = {}
    for name, figure in (("curves", _curves(comparison)), ("scores", _scores(comparison))):
        for kind in ("png", "svg"):
            content = io.BytesIO()
            with plt.rc_context({"svg.hashsalt": name}):
                figure.savefig(content, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
            found[f"{name}.{kind}"] = content.getvalue()
        plt.close(figure)
    return found


def _curves(comparison: Comparison) -> Figure:
    """Score against frames or steps, a panel an environment: mean with its interval, and the runs, thinner."""
    count, kind = len(comparison.data), comparison.kind
    figure, panels = plt.subplots(
        1, count, figsize=(max(9.0, 4.6 * count), 4.0), layout="constrained", squeeze=False, sharey=True
    )
    for axes, data in zip(panels[0], comparison.data):
        for index, name in enumerate(comparison.names):
            style = {"color": f"C{index % 10}", "linestyle": "-" if name.startswith("compressive") else "--"}
            for run in comparison.of(name, data):
                axes.plot(*run.curve(comparison.scale), linewidth=0.6, alpha=0.35, **style)
            x, mean, low, high = comparison.curve(name, data)
            axes.plot(x, mean, linewidth=1.9, label=name, **style)
            axes.fill_between(x, low, high, color=style["color"], alpha=0.16, linewidth=0)
        for value in filter(None, [comparison.threshold, *comparison.references.values()]):
            axes.axhline(value, color="0.4", linewidth=0.7, linestyle=":")
        axes.set(xlabel=f"environment {kind.unit}" if kind.unit == "frames" else kind.unit)
        axes.set(title=data if count > 1 else None)
        axes.ticklabel_format(axis="x", scilimits=(0, 4))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel(comparison.scale.text)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=5, frameon=False)
    return figure


def _scores(comparison: Comparison) -> Figure:
    """Final scores: interquartile mean with its interval, and the runs as circles."""
    names = comparison.names
    figure, axes = plt.subplots(figsize=(9.0, 0.9 + 0.42 * len(names)), layout="constrained")
    for place, variant in enumerate(comparison.variants):
        color, score = f"C{place % 10}", variant.score
        axes.plot([score.low, score.high], [place, place], color=color, linewidth=5, alpha=0.3, solid_capstyle="round")
        runs = [run.score(comparison.scale) for run in variant.runs]
        axes.plot(runs, [place] * len(runs), "o", markersize=4, color=color, markerfacecolor="none")
        axes.plot(score.value, place, "D", markersize=6, color=color)
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    axes.set_xlabel(f"{comparison.scale.text}, evaluation at the end")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
