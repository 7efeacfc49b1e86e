"""The report of a comparison: `report.html`, and beside it, in the folder `report`, tables as CSV and, if matplotlib is
installed, figures for papers. Nothing is computed here but for the shape of tables."""

import csv
import importlib.util
import io
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Column, Table
from rich.text import Text

from learner.files import replacing
from reports.comparison import Comparison, Estimate, value_at
from reports.pages import points, rounded, write_page
from training.console import quantity
from training.sweep import goal

FOLDER = "report"


def write_report(folder: Path, comparison: Comparison, missing: Mapping[str, str], command: str) -> Path:
    """Writes the report and returns the page's path.

    Args:
        folder: where `report.html` and the folder `report` go.
        comparison: the finished runs.
        missing: runs that are not in it, and why.
        command: creates the report again.
    """
    beside = folder / FOLDER
    beside.mkdir(parents=True, exist_ok=True)
    files = {f"{name}.csv": to_csv(rows).encode() for name, rows in tables(comparison).items()}
    if importlib.util.find_spec("matplotlib"):
        from reports.figures import draw

        files |= draw(comparison)
    for name, content in files.items():
        with replacing(beside / name) as temporary:
            temporary.write_bytes(content)
    return write_page(folder / "report.html", "comparison", page_data(folder, comparison, missing, command))


def tables(comparison: Comparison) -> dict[str, list[dict[str, Any]]]:
    """All numbers, as rows by file name: runs as they were measured, and statistics of them."""
    scale, kind = comparison.scale, comparison.kind
    speed, reached = f"{kind.speed}_per_second", f"{kind.unit}_to_threshold"
    runs, curves, means, variants = [], [], [], []
    for variant in comparison.variants:
        size = {"state_bytes": variant.state_bytes, "temporal_range": variant.temporal_range}
        for run, x in zip(variant.runs, variant.reached):
            which = {"variant": variant.name, kind.data: run.data, "seed": run.config.seed}
            measured: dict[str, Any] = {kind.unit: run.rows[-1][goal(run.config)[0]]}
            for name, path in kind.details.items():
                measured[name] = None
                with suppress(KeyError):
                    measured[name] = value_at(run.summary, path)
            measured |= {scale.name: run.score(scale)} | kind.choices(run.correct)
            runs.append(which | measured | {reached: x, speed: run.speed} | size | {"run": str(run.path)})
            curves += [which | {kind.unit: x, scale.name: score} for x, score in zip(*run.curve(scale))]
        for data in comparison.data:
            names = kind.unit, "mean", "low", "high"
            rows = [dict(zip(names, row)) for row in zip(*comparison.curve(variant.name, data))]
            means += [{"variant": variant.name, kind.data: data} | row for row in rows]
        low, high = variant.score[1:]
        row = {"variant": variant.name, "runs": len(variant.runs), "interquartile_mean": variant.score.value}
        row |= {"low": low, "high": high, "mean": variant.mean} | kind.choices(variant.correct)
        row |= {"reached_threshold": sum(x is not None for x in variant.reached), "threshold": comparison.threshold}
        variants.append(row | {speed: variant.speed} | size)
    improvements = [
        {"variant": ours, "other": theirs, "probability": p.value, "low": p.low, "high": p.high}
        for (ours, theirs), p in comparison.improvements.items()
    ]
    found = {"runs": runs, "curves": curves, "curve_intervals": means, "variants": variants}
    return found | {"improvements": improvements}


def to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows with the same fields as CSV; None and NaN are empty, and floats are written exactly."""
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        plain = {name: float(cell) if isinstance(cell, float) else cell for name, cell in row.items()}  # not numpy's
        writer.writerow({name: "" if cell != cell else cell for name, cell in plain.items()})
    return text.getvalue()


def page_data(folder: Path, comparison: Comparison, missing: Mapping[str, str], command: str) -> dict[str, Any]:
    """What `pages/comparison.html` reads."""
    kind, scale = comparison.kind, comparison.scale
    seeds = sorted({run.config.seed for run in comparison.runs})
    totals = sorted({goal(run.config)[1] for run in comparison.runs})
    lines = dict(comparison.references)
    if comparison.threshold is not None:
        lines[f"threshold {comparison.threshold:g}"] = comparison.threshold
    panels: list[dict[str, Any]] = []
    for data in comparison.data:
        series: list[dict[str, Any]] = []
        for index, name in enumerate(comparison.names):
            style = {"name": name, "index": index, "dash": not name.startswith("compressive")}
            curves = [run.curve(scale) for run in comparison.of(name, data)]
            series += [{**style, "thin": True, **points(*curve)} for curve in curves if len(curve[0])]
            x, mean, low, high = comparison.curve(name, data)
            if len(x):
                line = {"x": rounded(x, 6), "y": rounded(mean), "low": rounded(low), "high": rounded(high)}
                series.append({**style, **line})
        panels += [{"title": data, "series": series}] if series else []
    return {
        "title": ", ".join(comparison.data),
        "about": f"{len(comparison.runs)} runs: {len(comparison.names)} variants, seeds {', '.join(map(str, seeds))}, "
        f"{' or '.join(map(quantity, totals))} {kind.unit} each",
        "verdict": verdict(comparison),
        "missing": dict(missing),
        "cautions": comparison.cautions,
        "unit": kind.unit,
        "scale": scale.text,
        "over": kind.over,
        "lower": scale.lower,
        "lines": [{"name": name, "value": value} for name, value in lines.items()],
        "panels": panels,
        "scores": [
            {"name": variant.name, "index": index, "points": [run.score(scale) for run in variant.runs]}
            | dict(zip(variant.score._fields, rounded(np.array(variant.score), 6)))
            for index, variant in enumerate(comparison.variants)
        ],
        "variants": _variants(comparison),
        "improvements": _improvements(comparison),
        "runs": _runs(comparison, folder),
        "command": command,
    }


def score_table(comparison: Comparison) -> Table:
    """The variants' final scores, and frames or steps to the threshold."""
    kind, limit = comparison.kind, comparison.threshold is not None
    chose = any(variant.correct is not None for variant in comparison.variants)
    names = [comparison.scale.text, *["correct %"] * chose, *[f"{kind.unit} to threshold"] * limit, f"{kind.speed}/s"]
    built = Table(Column("variant", overflow="fold"), "runs", *names)
    for variant in comparison.variants:
        cells = [str(len(variant.runs)), f"{significant(variant.score.value)}  {interval(variant.score)}".rstrip()]
        cells += ["-" if variant.correct is None else f"{variant.correct:.1f}"] * chose
        cells += ["{} ({})".format(*reached_words(variant))] * limit
        built.add_row(Text(variant.name), *cells, quantity(variant.speed))
    for name, value in comparison.references.items():
        built.add_row(name, "", significant(value))
    return built


def verdict(comparison: Comparison) -> str:
    """The best variant, and those others that are probably worse."""
    best, fewest = comparison.best, comparison.fewest
    where = " in an environment" if len(comparison.data) > 1 else ""
    extreme = "lowest" if comparison.scale.lower else "highest"
    lead = f"{best.name} has the {extreme} interquartile mean, {significant(best.score.value)}"
    others = [name for name in comparison.names if name != best.name]
    if not others:
        return f"{lead}."
    unknown = [name for name in others if math.isnan(comparison.improvements[best.name, name].low)]
    if unknown == others:
        return f"{lead}. A single run of a variant{where} has no interval, so no difference can be confirmed."
    apart = [name for name in others if comparison.improvements[best.name, name].low > 0.5]
    level = [name for name in others if name not in apart + unknown]
    sentences = [f"{lead} {interval(best.score)}"]
    sentences += [f"its runs are better than those of {_list(apart)}"] if apart else []
    sentences += [f"no difference from {_list(level)} can be confirmed"] if level else []
    sentences += [f"{_list(unknown)} has a single run{where}, which has no interval"] if unknown else []
    weak = f" With as few as {fewest} runs of a variant{where}, that is weak evidence."
    return f"{'; '.join(sentences)}." + weak * (1 < fewest < 5)


def significant(value: float) -> str:
    """A score with the digits that matter: 86.00, 5.033."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.{2 if abs(value) >= 10 else 3}f}" if abs(value) < 1e6 else f"{value:.4g}"


def interval(estimate: Estimate, factor: float = 1.0) -> str:
    """The ends in brackets; empty if there is no interval."""
    ends = [significant(factor * end) if factor == 1 else f"{factor * end:.0f}" for end in estimate[1:]]
    return "" if math.isnan(estimate.low) else f"[{ends[0]}, {ends[1]}]"


def _list(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _key(comparison: Comparison, name: str) -> dict[str, Any]:
    return {"text": name, "colour": f"var(--s{comparison.names.index(name) % 8})"}


def _variants(comparison: Comparison) -> dict[str, Any]:
    kind, rows = comparison.kind, []
    chose = any(variant.correct is not None for variant in comparison.variants)
    limit = comparison.threshold is not None
    head = ["variant", "runs", "interquartile mean", "mean", *["correct"] * chose]
    head += [*[f"{kind.unit} to threshold"] * limit, f"{kind.speed}/s", "state", "temporal range"]
    for variant in comparison.variants:
        reach = "unbounded" if variant.temporal_range is None else f"{variant.temporal_range} steps"
        score = {"text": significant(variant.score.value), "small": interval(variant.score)}
        row = [_key(comparison, variant.name), len(variant.runs), {**score, "best": variant is comparison.best}]
        row += [significant(variant.mean)]
        row += ["-" if variant.correct is None else f"{variant.correct:.1f} %"] * chose
        row += [dict(zip(("text", "small"), reached_words(variant)))] * limit
        rows.append([*row, quantity(variant.speed), f"{variant.state_bytes / 1024:.1f} KiB", reach])
    for name, value in comparison.references.items():
        rows.append([name, "", significant(value), *[""] * (len(head) - 3)])
    return {"head": head, "rows": rows}


def reached_words(variant: Any) -> tuple[str, str]:
    """Frames or steps to the threshold, and in how many runs."""
    mean, count = variant.mean_reached, sum(x is not None for x in variant.reached)
    return ("-" if mean is None else quantity(mean)), f"{count} of {len(variant.runs)}"


def _improvements(comparison: Comparison) -> dict[str, Any]:
    rows = []
    for ours in comparison.names:
        row: list[Any] = [_key(comparison, ours)]
        for theirs in comparison.names:
            if ours == theirs:
                row.append("")
                continue
            p = comparison.improvements[ours, theirs]
            colour = f"var(--{'good' if p.value > 0.5 else 'bad'}) {90 * abs(p.value - 0.5):.0f}%"
            shade = f"color-mix(in srgb, {colour}, transparent)"
            row.append({"text": f"{100 * p.value:.0f} %", "small": interval(p, 100), "shade": shade})
        rows.append(row)
    return {"head": ["better than", *comparison.names], "rows": rows}


def _runs(comparison: Comparison, folder: Path) -> dict[str, Any]:
    kind, scale, rows = comparison.kind, comparison.scale, []
    names = [name for name in kind.details if name != scale.name and not name.endswith(("_low", "_high"))]
    for run in (run for variant in comparison.variants for run in variant.runs):
        cells: list[Any] = [_key(comparison, run.variant), run.data, run.config.seed, significant(run.score(scale))]
        for name in names:
            with suppress(KeyError):
                cells.append(significant(value_at(run.summary, kind.details[name])))
        path = run.path.relative_to(folder) if run.path.is_relative_to(folder) else run.path
        rows.append([*cells, *[""] * (4 + len(names) - len(cells)), str(path)])
    head = ["variant", kind.data, "seed", scale.text, *(name.replace("_", " ") for name in names), "folder"]
    return {"head": head, "rows": rows}
