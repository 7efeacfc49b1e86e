"""The report of a comparison: `report.html`, and beside it, in the folder `report`, tables as CSV and, if matplotlib is
installed, figures for papers. Nothing is computed here but for the shape of tables."""

import csv
import importlib.util
import io
import math
import re
import shlex
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from reports.comparison import CORRECT, Comparison, Estimate, estimate
from reports.pages import points, rounded, write_page
from reports.report import levels, lines_of, pages_about, pages_of, rules
from reports.statistics import interquartile_mean
from reports.tables import print_table
from storage.files import replacing
from storage.run import Run
from training.config import by_full_name, to_plain
from training.console import quantity
from training.sweep import IGNORED

FOLDER = "report"
INTERVAL, RANGE = "its 95 % bootstrap interval", "the range of the runs, which are too few for an interval"
FEW = 4
"""Most runs of one task whose range, as the interval of an interquartile mean, holds the truth in less than 90 %."""
CLOSE = 5
"""Points by which a share of correct choices may miss what reach predicts and still agree with it."""


def write_reports(folder: Path, comparisons: Sequence[Comparison], missing: Mapping[str, str], command: str) -> Path:
    """Writes the report of a comparison, or of several on other data and a page with links to them.

    Args:
        folder: where `report.html`, and the folder `report` with tables and figures, go.
        comparisons: of the finished runs; see `reports.comparison.compare`.
        missing: runs that are in none of them, and why.
        command: creates the report again.

    Returns:
        the path of `report.html`.
    """
    page, beside = folder / "report.html", folder / FOLDER
    if len(comparisons) == 1:
        return _write_report(page, beside, page_data(folder, comparisons[0], missing, command), comparisons[0])
    links = []
    for number, comparison in enumerate(comparisons, 1):
        (data,) = comparison.data
        name = f"{number}-{re.sub(r'[^A-Za-z0-9.]+', '-', data).strip('-')}"
        found = page_data(folder, comparison, missing, command)
        own = _write_report(folder / f"report-{name}.html", beside / name, found, comparison)
        links.append({"name": data, "link": urllib.parse.quote(own.name), "verdict": found["verdict"]})
    title = ", ".join(each["name"] for each in links)
    return write_page(page, "comparisons", {"title": title, "why": comparisons[0].cautions[0], "pages": links})


def _write_report(page: Path, beside: Path, data: Mapping[str, Any], comparison: Comparison) -> Path:
    """Writes a page, and its tables and, if matplotlib is installed, figures into a folder; returns the page's path."""
    beside.mkdir(parents=True, exist_ok=True)
    files = {f"{name}.csv": to_csv(rows).encode() for name, rows in tables(comparison).items()}
    if importlib.util.find_spec("matplotlib"):
        from reports.figures import draw

        files |= draw(dict(data))
    for name, content in files.items():
        with replacing(beside / name) as temporary:
            temporary.write_bytes(content)
    return write_page(page, "comparison", {**data, "tables": str(beside.relative_to(page.parent))})


def tables(comparison: Comparison) -> dict[str, list[dict[str, Any]]]:
    """All numbers, as rows by file name: runs as they were measured, and statistics of them."""
    scale, kind = comparison.scale, comparison.kind
    speed, reached = f"{kind.speed}_per_second", f"{kind.unit}_to_threshold"
    found: dict[str, list[dict[str, Any]]] = {"runs": [], "curves": [], "curve_intervals": [], "variants": []}
    for variant in comparison.variants:
        size = {"state_bytes": variant.state_bytes, "reach": variant.reach}
        for run, x in zip(variant.runs, variant.reached):
            which = {"variant": variant.name, kind.data: run.data, "seed": run.config.seed}
            row = which | {kind.unit: run.rows[-1][run.config.goal[0]], scale.name: run.summary[scale.final]}
            row |= {name: run.summary.get(path) for name, path in kind.details.items()}
            found["runs"].append(row | {reached: x, speed: run.speed} | size | {"run": str(run.path)})
            found["curves"] += [which | {kind.unit: x, scale.name: score} for x, score in zip(*run.curve(scale))]
        for data in comparison.data:
            which, names = {"variant": variant.name, kind.data: data}, (kind.unit, "mean", "low", "high")
            points = zip(*comparison.curve(variant.name, data))
            found["curve_intervals"] += [which | dict(zip(names, point)) for point in points]
        row = {"variant": variant.name, "runs": len(variant.runs), "interquartile_mean": variant.score.value}
        row |= {"low": variant.score.low, "high": variant.score.high, "mean": variant.mean}
        row |= {CORRECT: variant.correct} if CORRECT in kind.details else {}
        row |= {"reached_threshold": sum(x is not None for x in variant.reached), "threshold": comparison.threshold}
        found["variants"].append(row | {speed: variant.speed} | size)
    found["improvements"] = [
        {"variant": ours, "other": theirs, "probability": p.value, "low": p.low, "high": p.high}
        for (ours, theirs), p in comparison.improvements.items()
    ]
    return found


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same fields as CSV; None and NaN are empty, and floats are written exactly."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        plain = {name: float(cell) if isinstance(cell, float) else cell for name, cell in row.items()}  # not numpy's
        writer.writerow({name: "" if cell != cell else cell for name, cell in plain.items()})
    return text.getvalue()


def page_data(folder: Path, comparison: Comparison, missing: Mapping[str, str], command: str) -> dict[str, Any]:
    """What `pages/comparison.html` reads."""
    kind, scale, fewest = comparison.kind, comparison.scale, comparison.fewest
    seeds = sorted({run.config.seed for run in comparison.runs})
    totals = sorted({run.config.goal[1] for run in comparison.runs})
    lines = [{"name": name, "value": value} for name, value in comparison.references.items()]
    if comparison.threshold is not None:
        lines.append({"name": "threshold", "value": comparison.threshold})
    normalised = scale.name.endswith("_normalised")
    if normalised:
        lines += [{"name": "random", "value": 0.0}, {"name": scale.name.partition("_")[0], "value": 100.0}]
    rates = {getattr(run.config.core_config, "compression_rate", 0) for run in comparison.runs}
    panels: list[dict[str, Any]] = []
    for data in comparison.data:
        series: list[dict[str, Any]] = []
        for index, name in enumerate(comparison.names):
            style = {"name": name, "index": index, "dash": not name.startswith("compressive")}
            curves = [run.curve(scale) for run in comparison.of(name, data)]
            series += [{**style, "thin": True, **points(curve[1], x=curve[0])} for curve in curves if len(curve[0])]
            x, mean, low, high = comparison.curve(name, data)
            if len(x):
                line = {"x": rounded(x, 6), "y": rounded(mean), "low": rounded(low), "high": rounded(high)}
                series.append({**style, **line})
        known = [] if normalised or kind.unit != "frames" else lines_of([data])
        include: tuple[float, float] | None = (0.0, 0.0)
        if normalised:
            include = (0.0, 100.0)
        elif scale.lower:
            include = None
        panels.append({"title": data, "series": series, "lines": lines + known, "include": include})
    profiles = []
    for index, name in enumerate(comparison.names if len(comparison.runs) > len(comparison.names) else ()):
        places, *shares = comparison.profile(name)
        order = slice(None, None, -1 if scale.lower else 1)
        drawn = zip(("x", "y", "low", "high"), (places, *shares))
        profiles.append({"name": name, "index": index} | {axis: rounded(values[order], 5) for axis, values in drawn})
    return {
        "title": ", ".join(comparison.data),
        "about": f"{len(comparison.runs)} runs: {len(comparison.names)} variants, seeds {', '.join(map(str, seeds))}, "
        f"{' or '.join(map(quantity, totals))} {kind.unit} each",
        "verdict": verdict(comparison),
        "reach": reach_table(comparison),
        "second": next_best(comparison),
        "best": comparison.best.name,
        "rules": rules(comparison.data if kind.unit == "frames" else ()),
        "rates": [str(rate) for rate in sorted(rates - {0})],
        "missing": dict(missing),
        "cautions": comparison.cautions,
        "unit": kind.unit,
        "scale": scale.text,
        "over": kind.over,
        "lower": scale.lower,
        "fewest": fewest,
        "interval": spread(comparison),
        "staged": any(getattr(run.config, "stages", ()) for run in comparison.runs),
        "meaning": f"0 is random actions, 100 {'people' if scale.name.startswith('human') else 'the oracle'}"
        * normalised,
        "lines": lines,
        "filters": filters(comparison),
        "profiles": profiles,
        "aggregates": _aggregates(comparison),
        "extremes": extremes(comparison, folder),
        "panels": panels,
        "scores": [
            {"name": variant.name, "index": index, "points": [run.summary[scale.final] for run in variant.runs]}
            | dict(zip(variant.score._fields, rounded(np.array(variant.score), 6)))
            for index, variant in enumerate(comparison.variants)
        ],
        "variants": variant_table(comparison),
        "improvements": _improvements(comparison),
        "runs": _runs(comparison, folder),
        "command": command,
    }


def filters(comparison: Comparison) -> dict[str, list[str]]:
    """By field of the configuration its value in each variant ("-" without), if variants differ in it and not within.

    Fields of a core count if variants of the same core differ in them; see `training.sweep.label`.
    """
    flats = [[by_full_name(to_plain(run.config)) for run in variant.runs] for variant in comparison.variants]
    core, found = comparison.runs[0].config.core_field, dict[str, list[str]]()
    cores = [runs[0][f"{core}.name"] for runs in flats]
    for name in dict.fromkeys(name for runs in flats for flat in runs for name in flat if name not in IGNORED):
        values = [{str(flat.get(name, "-")) for flat in runs} for runs in flats]
        alone = [of if name.startswith(f"{core}.") and name != f"{core}.name" else "" for of in cores]
        if max(map(len, values)) == 1 and len({(of, *each) for of, each in zip(alone, values)}) > len(set(alone)):
            found[name] = [min(each) for each in values]
    return found


def extremes(comparison: Comparison, folder: Path) -> list[dict[str, Any]]:
    """The best and the worst run with the pages of their episodes."""
    final, lower = comparison.scale.final, comparison.scale.lower
    ordered = sorted(comparison.runs, key=lambda run: run.summary[final], reverse=not lower)
    chosen = {"best": ordered[0], "worst": ordered[-1]} if len(ordered) > 1 else {}
    return [
        {
            "rank": rank,
            "text": f"{run.variant}, seed {run.config.seed}, {significant(run.summary[final])}",
            "pages": pages_of(Run(run.path), folder / "report.html"),
            "command": f"compressive visualize {shlex.quote(str(run.path))}",
        }
        for rank, run in chosen.items()
    ]


def print_scores(console: Console, comparison: Comparison) -> None:
    """Prints the final scores: the variants' table of the page up to the speed; of what, if other data are apart."""
    found = variant_table(comparison)
    count = found["head"].index(f"{comparison.kind.speed}/s") + 1
    texts = [[cell_text(cell) for cell in row[:count]] for row in found["rows"]]
    where = f", {', '.join(comparison.data)}" if comparison.apart else ""
    print_table(console, found["head"][:count], texts, 1, comparison.scale.text + where)


def cell_text(cell: Any) -> str:
    """A cell of a table of a page, as one text."""
    if not isinstance(cell, dict):
        return str(cell)
    return f"{cell['text']}  {cell.get('small', '')}".rstrip()


def verdict(comparison: Comparison) -> str:
    """The best variant, and those others that are worse, as far as the intervals tell."""
    best, where = comparison.best, " in an environment" if len(comparison.data) > 1 else ""
    better = worse_than_best(comparison)
    level = [name for name in comparison.names if name not in (best.name, *better)]
    lead = f"{best.name} has the {'lowest' if comparison.scale.lower else 'highest'} interquartile mean"
    ends = interval(best.score)
    if ends and spread(comparison) == RANGE:
        ends = "(its runs: {} to {})".format(*map(significant, best.score[1:]))
    lead = f"{lead}, {significant(best.score.value)} {ends}".rstrip()
    parts = [lead if better or not level else f"No difference is confirmed: {lead}"]
    parts += [f"its runs are better than those of {_list(better)}"] if better else []
    parts += [f"whether it differs from {_list(level)} is open"] if better and level else []
    weak = f" With as few as {comparison.fewest} runs of a variant{where}, that is weak evidence."
    weak *= comparison.fewest < 5 and len(comparison.names) > 1
    alone = f" A single run of a variant{where} has no interval."
    return "; ".join(parts) + "." + (alone if comparison.fewest == 1 else weak)


def spread(comparison: Comparison) -> str:
    """What the brackets of a variant's scores are; empty if there are none."""
    if comparison.fewest < 2:
        return ""
    few = comparison.fewest <= FEW and len(comparison.data) == 1
    return RANGE if few else INTERVAL


def next_best(comparison: Comparison) -> dict[str, Any]:
    """The second variant by score, and how much and how surely the best one is better; empty if that is unknown."""
    best, sign = comparison.best, -1 if comparison.scale.lower else 1
    others = [variant for variant in comparison.variants if variant is not best]
    if not others or comparison.fewest < 2:
        return {}
    other = max(others, key=lambda each: sign * each.score.value)
    p, runs = comparison.improvements[best.name, other.name], [len(best.runs), len(other.runs)]
    alike = f"{2 / math.comb(sum(runs), runs[0]):.2g}" if p.value == 1 and len(comparison.data) == 1 else ""
    # "chance": of variants that are alike, by orders of runs. An interval without width would look like certainty.
    text = f"{100 * p.value:.0f} %" if alike else f"{100 * p.value:.0f} % {interval(p, 100)}"
    scores = comparison.scores(best.name), comparison.scores(other.name)
    apart = estimate(lambda ours, theirs: sign * (interquartile_mean(ours) - interquartile_mean(theirs)), *scores)
    found = {"name": other.name, "p": text, "confirmed": p.low > 0.5, "runs": runs, "chance": alike}
    return found | {"apart": f"{significant(apart.value)} {interval(apart)}"}


def worse_than_best(comparison: Comparison) -> list[str]:
    """The variants whose runs are worse than those of the best one, as far as the intervals tell."""
    best = comparison.best.name
    return [name for name in comparison.names if name != best and comparison.improvements[best, name].low > 0.5]


def significant(value: float | None) -> str:
    """A score with the digits that matter: 86.00, 5.033."""
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 1e6:
        return f"{value:.4g}"
    digits = 2 if abs(value) >= 10 else 3
    return f"{value:.{digits}f}"


def interval(estimate: Estimate, factor: float = 1.0) -> str:
    """The ends in brackets; empty if there is no interval."""
    ends = [significant(factor * end) if factor == 1 else f"{factor * end:.0f}" for end in estimate[1:]]
    return "" if math.isnan(estimate.low) else f"[{ends[0]}, {ends[1]}]"


def reach_table(comparison: Comparison) -> dict[str, Any]:
    """The reach of memories, and what would be correct after "delays" if they knew everything within it.

    Without "rows" if not two of them are bounded, and without "delays" if the task has none or is not one level.
    """
    tasks = levels(comparison.data if comparison.kind.unit == "frames" else ())
    delays, rows, misses = list[int](), list[list[Any]](), dict[str, float]()
    if len(tasks) == 1 and tasks[0].delay_frames:
        frames, repeat = tasks[0].delay_frames, tasks[0].action_repeat
        delays = sorted((frames >> times) // repeat for times in range(tasks[0].delay_halvings + 1))
    for variant in comparison.variants:
        if steps := variant.reach:
            rows.append([_key(comparison, variant.name), f"{steps} steps"])
            if delays:
                within = sum(delay < steps for delay in delays)
                rows[-1] += [f"{within} of {len(delays)}", f"{50 + 50 * within / len(delays):.1f} %"]
                rows[-1] += ["-" if variant.correct is None else f"{variant.correct:.1f} %"]
                if variant.correct is not None:
                    misses[variant.name] = 50 + 50 * within / len(delays) - variant.correct
    head = ["variant", "reach", *["delays within", "predicted", "measured"] * bool(delays)]
    return {"head": head, "rows": rows if len(rows) > 1 else [], "delays": delays, "says": agreement(misses)}


def agreement(misses: Mapping[str, float]) -> str:
    """How well reach explains the scores, given by variant how far the measured percentage is below the predicted."""
    below = [f"{name} is {miss:.0f} points below its prediction" for name, miss in misses.items() if miss > CLOSE]
    above = [f"{name} is {-miss:.0f} points above" for name, miss in misses.items() if miss < -CLOSE]
    if not (below or above):
        return f"All are within {CLOSE} points of their predictions: reach explains the difference." * bool(misses)
    return f"{_list(below + above)}: reach explains a part of the difference, and not all of it."


def _list(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _key(comparison: Comparison, name: str) -> dict[str, Any]:
    index = comparison.names.index(name)
    return {"text": name, "colour": f"var(--s{index % 8})", "variant": index}


def variant_table(comparison: Comparison) -> dict[str, Any]:
    """Statistics of the variants, as `data_table` of `macros.html` reads them; "small" is beside a cell's text."""
    kind, rows = comparison.kind, list[list[Any]]()
    chose = any(variant.correct is not None for variant in comparison.variants)
    limit = comparison.threshold is not None
    head = ["variant", "runs", "interquartile mean", *["correct"] * chose, *[f"{kind.unit} to threshold"] * limit]
    head += [f"{kind.speed}/s", "mean", "state", "reach"]
    best = comparison.best if worse_than_best(comparison) else None
    for variant in comparison.variants:
        reached = sorted(math.inf if x is None else x for x in variant.reached)
        count, middle = sum(map(math.isfinite, reached)), float(np.median(reached))
        score = {"text": significant(variant.score.value), "small": interval(variant.score)}
        row = [_key(comparison, variant.name), len(variant.runs), {**score, "best": variant is best}]
        row += ["-" if variant.correct is None else f"{variant.correct:.1f} %"] * chose
        text = quantity(middle) if math.isfinite(middle) else "-"
        row += [{"text": text, "small": f"reached by {count} of {len(variant.runs)}"}] * limit
        reach = "unbounded" if variant.reach is None else f"{variant.reach} steps"
        row += [quantity(variant.speed), significant(variant.mean), f"{variant.state_bytes / 1024:.1f} KiB", reach]
        rows.append(row)
    for name, value in comparison.references.items():
        rows.append([name, "", significant(value), *[""] * (len(head) - 3)])
    return {"head": head, "rows": rows}


def _aggregates(comparison: Comparison) -> dict[str, Any]:
    rows = [
        [_key(comparison, name), *({"text": significant(one.value), "small": interval(one)} for one in found.values())]
        for name, found in comparison.aggregates.items()
    ]
    return {"head": ["variant", *next(iter(comparison.aggregates.values()))], "rows": rows}


def _improvements(comparison: Comparison) -> dict[str, Any]:
    rows = []
    for ours in comparison.names:
        row: list[Any] = [_key(comparison, ours)]
        for theirs in comparison.names:
            if ours == theirs or math.isnan(comparison.improvements[ours, theirs].value):
                row.append("" if ours == theirs else "unknown")
                continue
            p = comparison.improvements[ours, theirs]
            colour, share = "good" if p.value > 0.5 else "bad", 90 * abs(p.value - 0.5)
            shade = f"color-mix(in srgb, var(--{colour}) {share:.0f}%, transparent)"
            row.append({"text": f"{100 * p.value:.0f} %", "small": interval(p, 100), "shade": shade})
        rows.append(row)
    return {"head": ["improvement", *(f"over {name}" for name in comparison.names)], "rows": rows}


def _runs(comparison: Comparison, folder: Path) -> dict[str, Any]:
    kind, scale, rows = comparison.kind, comparison.scale, []
    names = [name for name in kind.details if name != scale.name and not name.endswith(("_low", "_high"))]
    for run in (run for variant in comparison.variants for run in variant.runs):
        cells = [_key(comparison, run.variant), run.data, run.config.seed, significant(run.summary[scale.final])]
        cells += [significant(run.summary.get(kind.details[name])) for name in names]
        path = run.path.relative_to(folder) if run.path.is_relative_to(folder) else run.path
        links = pages_of(Run(run.path), folder / "report.html")
        look = {"text": "episodes", "link": links[-1]["link"]} if links else ""
        about = [page["link"] for page in pages_about(run.path, folder / "report.html") if "report" in page["name"]]
        rows.append([*cells, look, {"text": str(path), "link": "".join(about)}])
    head = ["variant", kind.data, "seed", scale.text, *(name.replace("_", " ") for name in names), "look", "folder"]
    return {"head": head, "rows": rows}
