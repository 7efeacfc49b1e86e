"""The report of a comparison: `report.html`, one file that needs nothing else, and figures and tables beside it.

Everything shown is in the tables; nothing is computed here.
"""

import html
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from learner.files import replacing
from reports.comparison import Comparison, Estimate, Variant, tables, to_csv
from training.console import quantity

FOLDER = "report"
"""Beside `report.html`: figures and tables."""
COLOURS = ("#2f7fc1", "#e08a1e", "#2a9d76", "#c2557f", "#8a6fc9", "#7d8590", "#b09a2f", "#5aa9b8")
INK, LINE = "#24292f", "#c9d1d9"
"""Of texts and of axes in the figures; in the page they follow its colours."""

STYLE = """
:root { color-scheme: light dark; --back: #fff; --card: #f6f8fa; --ink: #24292f; --soft: #59636e; --line: #d1d9e0;
  --accent: #2f7fc1; --warn: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --card: #161b22; --ink: #e6edf3; --soft: #9198a1;
  --line: #30363d; --accent: #58a6ff; --warn: #d29922; } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 76rem; padding: 2rem 1.25rem 4rem; background: var(--back); color: var(--ink);
  font: 15px/1.55 system-ui, sans-serif }
h1 { font-size: 1.6rem; margin: 0 0 .25rem } h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem }
p { margin: .4rem 0; max-width: 50rem } .soft { color: var(--soft); font-size: .9rem }
.verdict { font-size: 1.05rem; border-left: 3px solid var(--accent); padding-left: .8rem; margin: 1rem 0 }
.missing { border-left: 3px solid var(--warn); padding-left: .8rem; margin: 1rem 0 }
figure { margin: .5rem 0; padding: .75rem; overflow-x: auto; background: var(--card);
  border: 1px solid var(--line); border-radius: 8px }
figure svg { width: 100%; min-width: 28rem; height: auto; display: block }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; white-space: nowrap }
th, td { padding: .45rem .7rem; text-align: right; border-bottom: 1px solid var(--line) }
tr:last-child td, tr:last-child th { border-bottom: 0 } thead th { background: var(--card); font-weight: 600 }
th:first-child, td:first-child { text-align: left } tbody th { font-weight: 500 }
td small { color: var(--soft) } .best { font-weight: 700 }
.key { display: inline-block; width: .7rem; height: .7rem; border-radius: 50%; margin-right: .5rem }
code { font: .85rem/1.5 ui-monospace, monospace; overflow-wrap: anywhere }
pre { padding: .75rem; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  white-space: pre-wrap }
a { color: var(--accent) }
"""


def write_report(folder: Path, comparison: Comparison, missing: Mapping[str, str], command: str) -> Path:
    """Writes the report and returns the page's path.

    Args:
        folder: where `report.html` goes, and the folder `report` with figures (PNG, SVG) and tables (CSV).
        comparison: the finished runs.
        missing: runs that are not in it, and why.
        command: what makes the report anew.
    """
    beside = folder / FOLDER
    beside.mkdir(parents=True, exist_ok=True)
    for name, rows in tables(comparison).items():
        _write(beside / f"{name}.csv", to_csv(rows).encode())
    drawn = {"curves": draw_curves(comparison), "scores": draw_scores(comparison)}
    inline = {}
    for name, figure in drawn.items():
        _write(beside / f"{name}.png", _render(figure, "png", name))
        svg = _render(figure, "svg", name)
        _write(beside / f"{name}.svg", svg)
        inline[name] = _inline(svg.decode(), name)
        plt.close(figure)
    page = folder / "report.html"
    _write(page, make_page(folder, comparison, inline, missing, command).encode())
    return page


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def _render(figure: Figure, kind: str, name: str) -> bytes:
    """The figure as a file; the same numbers give the same file."""
    content = io.BytesIO()
    with plt.rc_context({"svg.hashsalt": name}):
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(content, format=kind, dpi=160, metadata=metadata, facecolor="none" if kind == "svg" else "white")
    return content.getvalue()


def _inline(svg: str, name: str) -> str:
    """An SVG file as part of a page: texts and axes in the page's colours, names that no other figure has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", svg)
    svg = re.sub(r' width="[^"]*pt"| height="[^"]*pt"', "", svg, count=2)
    return svg.replace(INK, "currentColor").replace(LINE, "var(--line)")


def _colour(comparison: Comparison, name: str) -> str:
    return COLOURS[comparison.names.index(name) % len(COLOURS)]


def _axes(axes: Any) -> None:
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LINE)
    axes.tick_params(colors=INK, color=LINE)
    axes.grid(axis="y", color=LINE, linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(INK)


def draw_curves(comparison: Comparison) -> Figure:
    """Score against frames, a panel an environment: each variant's mean with its interval, and its runs, thinner."""
    count = len(comparison.envs)
    figure, panels = plt.subplots(
        1, count, figsize=(max(9.0, 4.6 * count), 4.0), layout="constrained", squeeze=False, sharey=True
    )
    most = max(run.rows[-1]["learner/frames"] for run in comparison.runs)
    unit, size = ("millions", 1e6) if most >= 1e6 else ("thousands", 1e3)
    for axes, env in zip(panels[0], comparison.envs):
        for name in comparison.names:
            style = {"color": _colour(comparison, name), "linestyle": "-" if name.startswith("compressive") else "--"}
            for run in comparison.of(name, env):
                frames, scores = run.curve(comparison.scale)
                axes.plot(frames / size, scores, linewidth=0.6, alpha=0.35, **style)
            frames, mean, low, high = comparison.curve(name, env)
            axes.plot(frames / size, mean, linewidth=1.9, label=name, **style)
            axes.fill_between(frames / size, low, high, color=style["color"], alpha=0.16, linewidth=0)
        if comparison.threshold is not None:
            axes.axhline(comparison.threshold, color=INK, linewidth=0.7, linestyle=":", alpha=0.6)
        axes.set(xlabel=f"environment frames ({unit})", title=env if count > 1 else None)
        axes.margins(x=0.01)
        _axes(axes)
    panels[0][0].set_ylabel(comparison.scale_text)
    figure.legend(
        *panels[0][0].get_legend_handles_labels(),
        loc="outside upper left",
        ncols=min(5, len(comparison.names)),
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )
    return figure


def draw_scores(comparison: Comparison) -> Figure:
    """Final scores: each variant's interquartile mean with its interval, and its runs as small circles."""
    names = comparison.names
    figure, axes = plt.subplots(figsize=(9.0, 0.9 + 0.42 * len(names)), layout="constrained")
    for place, variant in enumerate(comparison.variants):
        colour, score = _colour(comparison, variant.name), variant.score
        axes.plot([score.low, score.high], [place, place], color=colour, linewidth=5, alpha=0.3, solid_capstyle="round")
        runs = [run.score(comparison.scale) for run in variant.runs]
        axes.plot(runs, [place] * len(runs), "o", markersize=4, color=colour, markerfacecolor="none", markeredgewidth=1)
        axes.plot(score.value, place, "D", markersize=6, color=colour)
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    axes.set_xlabel(f"{comparison.scale_text}, evaluation at the end")
    _axes(axes)
    axes.grid(axis="x", color=LINE, linewidth=0.6, alpha=0.7)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return figure


def make_page(
    folder: Path, comparison: Comparison, figures: Mapping[str, str], missing: Mapping[str, str], command: str
) -> str:
    """The page as HTML; see `write_report`."""
    seeds = sorted({run.config.seed for run in comparison.runs})
    frames = sorted({run.config.frames for run in comparison.runs})
    about = (
        f"{len(comparison.runs)} runs: {len(comparison.names)} variants, seeds {', '.join(map(str, seeds))}, "
        f"{' or '.join(map(quantity, frames))} frames each"
    )
    threshold = comparison.threshold
    reached = "" if threshold is None else f" The dotted line is the threshold, {threshold:g}."
    parts = [
        f"<h1>{_text(', '.join(comparison.envs))}</h1><p class=soft>{_text(about)}</p>",
        f"<p class=verdict>{_text(verdict(comparison))}</p>",
        _missing(missing),
        *(f"<div class=missing>{_text(caution)}</div>" for caution in comparison.cautions),
        f"<h2>Learning</h2><figure>{figures['curves']}</figure>",
        f"<p class=soft>{_text(comparison.scale_text.capitalize())} against frames, over the last 200 episodes. Thick: "
        f"mean over runs, shaded: its 95 % bootstrap interval, thin: runs.{reached}</p>",
        f"<h2>Final scores</h2><figure>{figures['scores']}</figure>",
        "<p class=soft>Diamond: interquartile mean, bar: its 95 % interval, circles: runs.</p>",
        _variants(comparison),
        "<h2>Probability of improvement</h2>",
        _improvements(comparison),
        "<p class=soft>How likely a run of the row's variant scores higher than one of the column's, with 95 % "
        "interval; 50 % is no difference.</p>",
        _notes(comparison),
        f"<h2>Runs</h2>{_runs(comparison, folder)}",
        f"<h2>Again</h2><pre><code>{_text(command)}</code></pre>",
        f"<p class=soft>Figures (PNG, SVG) and tables (CSV) are beside this page, in <code>{FOLDER}/</code>.</p>",
    ]
    title = _text(f"Comparison: {', '.join(comparison.envs)}")
    return (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{title}</title>"
        f"<meta name=viewport content='width=device-width'><style>{STYLE}</style></head>"
        f"<body>{''.join(parts).replace(' %', '&nbsp;%')}</body></html>\n"
    )


def verdict(comparison: Comparison) -> str:
    """The best variant, and from which others its runs can be told apart."""
    best = max(comparison.variants, key=lambda variant: variant.score.value)
    few, where = comparison.fewest, " in an environment" if len(comparison.envs) > 1 else ""
    lead = f"{best.name} has the highest interquartile mean, {best.score.value:.1f}"
    others = [name for name in comparison.names if name != best.name]
    if not others:
        return f"{lead}."
    unknown = [name for name in others if math.isnan(comparison.improvements[best.name, name].low)]
    if unknown == others:
        return f"{lead}. One run of a variant{where} says nothing about the next, so none can be told apart."
    lead += f" [{best.score.low:.1f}, {best.score.high:.1f}]"
    apart = [name for name in others if comparison.improvements[best.name, name].low > 0.5]
    level = [name for name in others if name not in apart + unknown]
    beats = f"; its runs are better than those of {_list(apart)}" if apart else ""
    equal = f"; it cannot be told apart from {_list(level)}" if level else ""
    single = f"; of {_list(unknown)} there is but one run{where}, which says nothing" if unknown else ""
    weak = f" With as few as {few} runs of a variant{where}, that is weak evidence."
    return f"{lead}{beats}{equal}{single}." + weak * (1 < few < 5)


def _list(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def _text(words: object) -> str:
    return html.escape(str(words))


def _missing(missing: Mapping[str, str]) -> str:
    if not missing:
        return ""
    rows = "".join(f"<li><b>{_text(name)}</b>: {_text(reason)}</li>" for name, reason in missing.items())
    number = f"{len(missing)} run{'s are' if len(missing) > 1 else ' is'} missing"
    return f"<div class=missing>{number}, and in no number below:<ul>{rows}</ul></div>"


def _table(head: list[str], rows: list[list[str]]) -> str:
    """A table of cells that are HTML already; the first of each row is its heading."""
    first = "".join(f"<th scope=col>{_text(name)}</th>" for name in head)
    body = "".join(f"<tr><th scope=row>{row[0]}</th>{''.join(row[1:])}</tr>" for row in rows)
    return f"<div class=wide><table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(value: object, small: str = "", best: bool = False) -> str:
    detail = f" <small>{_text(small)}</small>" if small else ""
    return f"<td{' class=best' if best else ''}>{_text(value)}{detail}</td>"


def _key(comparison: Comparison, name: str) -> str:
    return f"<span class=key style='background:{_colour(comparison, name)}'></span>{_text(name)}"


def _variants(comparison: Comparison) -> str:
    best = max(variant.score.value for variant in comparison.variants)
    chose = any(variant.correct is not None for variant in comparison.variants)
    head = ["variant", "runs", "interquartile mean", "mean", *["correct"] * chose, "frames to threshold", "steps/s"]
    rows = [
        [
            _key(comparison, variant.name),
            _cell(len(variant.runs)),
            _cell(f"{variant.score.value:.2f}", _interval(variant.score), variant.score.value == best),
            _cell(f"{variant.mean:.2f}"),
            *[_cell("-" if variant.correct is None else f"{variant.correct:.1f} %")] * chose,
            _reached(variant),
            _cell(quantity(variant.steps_per_second)),
            _cell(f"{variant.state_bytes / 1024:.1f} KiB"),
            _cell("unbounded" if variant.temporal_range is None else f"{variant.temporal_range} steps"),
        ]
        for variant in comparison.variants
    ]
    return _table([*head, "state", "temporal range"], rows)


def _interval(estimate: Estimate, factor: float = 1.0, digits: int = 2) -> str:
    """In brackets; nothing where there is none."""
    if math.isnan(estimate.low):
        return ""
    return f"[{factor * estimate.low:.{digits}f}, {factor * estimate.high:.{digits}f}]"


def _reached(variant: Variant) -> str:
    reached = [frames for frames in variant.reached if frames is not None]
    mean = quantity(sum(reached) / len(reached)) if reached else "-"
    return _cell(mean, f"{len(reached)} of {len(variant.runs)}")


def _improvements(comparison: Comparison) -> str:
    rows = []
    for ours in comparison.names:
        cells = []
        for theirs in comparison.names:
            if ours == theirs:
                cells.append("<td></td>")
                continue
            p = comparison.improvements[ours, theirs]
            colour, strength = (COLOURS[2], p.value - 0.5) if p.value > 0.5 else (COLOURS[1], 0.5 - p.value)
            shade = f"background:color-mix(in srgb, {colour} {90 * strength:.0f}%, transparent)"
            cells.append(f"<td style='{shade}'>{100 * p.value:.0f} % <small>{_interval(p, 100, 0)}</small></td>")
        rows.append([_key(comparison, ours), *cells])
    return _table(["better than", *comparison.names], rows)


def _runs(comparison: Comparison, folder: Path) -> str:
    rows = []
    for variant in comparison.variants:
        for run in variant.runs:
            cells = [_cell(run.config.env), _cell(run.config.seed), _cell(f"{run.score(comparison.scale):.2f}")]
            cells += [_cell(f"{run.summary['return']['mean']:.2f}")]
            path = run.path.relative_to(folder) if run.path.is_relative_to(folder) else run.path
            rows.append([_key(comparison, variant.name), *cells, f"<td><code>{_text(path)}</code></td>"])
    return _table(["variant", "environment", "seed", comparison.scale_text, "return", "folder"], rows)


def _notes(comparison: Comparison) -> str:
    return (
        "<p class=soft>Interquartile mean and probability of improvement as in Agarwal et al. (2021), with a bootstrap "
        "stratified by environment. Intervals are over runs, not over episodes; those of three runs are their range, "
        "of one there are none. "
        "Frames to the threshold: where the curve of a run first reached it, mean over the runs that did. State: "
        "memory of one environment. Temporal range: steps back that all layers together can reach.</p>"
    )
