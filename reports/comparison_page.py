"""The report of a comparison: `report.html`, and beside it, in the folder `report`, tables as CSV and, if matplotlib is
installed, figures for papers. Nothing is computed here but for the shape of tables; the sentences of the page are those
of `reports.conclusions`."""

import importlib.util
import itertools
import math
import re
import shlex
import urllib.parse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from reports.comparison import CORRECT, Comparison, FinishedRun, Scale, Variant
from reports.conclusions import (
    agreement,
    answer,
    evidence,
    next_best,
    percent_interval,
    run_score_text,
    score_texts,
    spread,
    texts,
    worse_than_best,
)
from reports.pages import points, rounded, write_page
from reports.report import levels, lines_of, pages_about, pages_of, rules
from reports.tables import print_table, significant
from storage.files import format_csv, replacing, require_no_link
from storage.run import Run
from training.console import plural, quantity
from training.grid import IGNORED
from training.plain import by_full_name, to_plain
from training.trust import permissions

FOLDER = "report"
COLORS = 12
"""Of lines in `style.css`, as in `charts.js`."""


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
    page = folder / "report.html"
    beside = folder / FOLDER
    require_no_link(beside)
    if len(comparisons) == 1:
        (comparison,) = comparisons
        data = page_data(folder, comparison, missing, command)
        _write_report(page, beside, data, comparison)
        _write_figures(beside, data)
        return page

    links = []
    figures: dict[Path, dict[str, Any]] = {}
    for number, comparison in enumerate(comparisons, 1):
        (learned_from,) = comparison.data
        words = re.sub(r"[^A-Za-z0-9.]+", "-", learned_from).strip("-")
        name = f"{number}-{words[:100]}"  # the words of two environments may be the same
        require_no_link(beside / name)
        data = page_data(folder, comparison, missing, command)
        own_page = _write_report(folder / f"report-{name}.html", beside / name, data, comparison)
        figures[beside / name] = data
        link = {"name": learned_from, "link": urllib.parse.quote(own_page.name)}
        links.append(link | {"answer": data["answer"], "evidence": data["evidence"]})
    title = ", ".join(link["name"] for link in links)
    why_apart = comparisons[0].cautions[0]
    write_page(page, "comparisons", {"title": title, "why": why_apart, "pages": links})
    # All pages are there before the first figure, because another program draws it, which may fail.
    for place, data in figures.items():
        _write_figures(place, data)
    return page


def _write_report(page: Path, beside: Path, data: Mapping[str, Any], comparison: Comparison) -> Path:
    """Writes a page, and its tables into a folder; returns the page's path."""
    files = {}
    for name, rows in tables(comparison).items():
        files[f"{name}.csv"] = format_csv(rows).encode(errors="backslashreplace")  # paths need not be UTF-8
    _write_files(beside, files)
    return write_page(page, "comparison", {**data, "tables": str(beside.relative_to(page.parent))})


def _write_figures(beside: Path, data: Mapping[str, Any]) -> None:
    """Writes the figures of a page into a folder, if matplotlib is installed."""
    if importlib.util.find_spec("matplotlib"):
        from reports.figures import draw

        _write_files(beside, draw(dict(data)))


def _write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content)


def tables(comparison: Comparison) -> dict[str, list[dict[str, Any]]]:
    """All numbers, as rows by file name: runs as they were measured, and statistics of them."""
    runs: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    curve_intervals: list[dict[str, Any]] = []
    kind = comparison.kind
    score = comparison.scale.name
    for variant in comparison.variants:
        for run, reached in zip(variant.runs, variant.reached):
            which = {"variant": variant.name, kind.data: run.data, "seed": run.config.seed}
            runs.append(which | _run_row(comparison, variant, run, reached))
            places, scores = run.curve(comparison.scale)
            of_curve = which | {kind.data: run.learned_from}
            for place, measured in zip(places, scores):
                curves.append(of_curve | {kind.unit: place, score: measured})
        for data in comparison.data:
            which = {"variant": variant.name, kind.data: _learned_from(comparison.of(variant.name, data))}
            places, means, lows, highs = comparison.curve(variant.name, data)
            for place, mean, low, high in zip(places, means, lows, highs):
                curve_intervals.append(which | {kind.unit: place, "mean": mean, "low": low, "high": high})

    improvements = []
    for (ours, theirs), better in comparison.improvements.items():
        chance = comparison.chances[ours, theirs]
        numbers = {"probability": better.value, "low": better.low, "high": better.high, "chance": chance}
        improvements.append({"variant": ours, "other": theirs} | numbers)
    return {
        "runs": runs,
        "curves": curves,
        "curve_intervals": curve_intervals,
        "variants": [_variant_row(comparison, variant) for variant in comparison.variants],
        "improvements": improvements,
    }


def _learned_from(runs: Sequence[FinishedRun]) -> str:
    """What the curves of runs are of; see `FinishedRun.learned_from`."""
    return ", ".join(dict.fromkeys(run.learned_from for run in runs))


def _run_row(comparison: Comparison, variant: Variant, run: FinishedRun, reached: float | None) -> dict[str, Any]:
    """The numbers of a run, by column."""
    kind = comparison.kind
    counter, _ = run.config.goal
    row = {kind.unit: run.rows[-1][counter], comparison.scale.name: run.summary[comparison.scale.final]}
    for name, path in kind.details.items():
        row[name] = run.summary.get(path)
    row[f"{kind.unit}_to_threshold"] = reached
    row[f"{kind.speed}_per_second"] = run.speed
    return row | _size(variant) | {"run": str(run.path)}


def _variant_row(comparison: Comparison, variant: Variant) -> dict[str, Any]:
    """The statistics of a variant, by column."""
    kind = comparison.kind
    row: dict[str, Any] = {
        "variant": variant.name,
        "runs": len(variant.runs),
        "interquartile_mean": variant.score.value,
        "low": variant.score.low,
        "high": variant.score.high,
        "mean": variant.mean,
    }
    if CORRECT in kind.details:
        row[CORRECT] = variant.correct
    row["reached_threshold"] = sum(x is not None for x in variant.reached)
    row["threshold"] = comparison.threshold
    row[f"{kind.speed}_per_second"] = variant.speed
    return row | _size(variant)


def _size(variant: Variant) -> dict[str, Any]:
    return {"state_bytes": variant.state_bytes, "reach": variant.reach}


def page_data(folder: Path, comparison: Comparison, missing: Mapping[str, str], command: str) -> dict[str, Any]:
    """What `pages/comparison.html` reads."""
    kind = comparison.kind
    scale = comparison.scale
    rates = {getattr(run.config.core_config, "compression_rate", 0) for run in comparison.runs}
    lines = _lines(comparison)
    levels_of_agents = comparison.data if kind.unit == "frames" else ()
    return {
        "title": ", ".join(comparison.data),
        "about": _about(comparison),
        "answer": answer(comparison),
        "evidence": evidence(comparison),
        "reach": reach_table(comparison),
        "second": next_best(comparison),
        "best": comparison.best.name,
        "rules": rules(levels_of_agents),
        "rates": [str(rate) for rate in sorted(rates - {0})],
        "missing": dict(missing),
        "cautions": comparison.cautions,
        "unit": kind.unit,
        "scale": scale.text,
        "over": kind.over,
        "lower": scale.lower,
        "fewest": comparison.fewest,
        "finished": not comparison.unfinished,
        "interval": spread(comparison),
        "staged": any(getattr(run.config, "stages", ()) for run in comparison.runs),
        "meaning": _meaning(scale),
        "lines": lines,
        "filters": filters(comparison),
        "profiles": _profiles(comparison),
        "aggregates": _aggregates(comparison),
        "extremes": extremes(comparison, folder),
        "panels": _panels(comparison, lines),
        "scores": _final_scores(comparison),
        "variants": variant_table(comparison),
        "improvements": _improvements(comparison),
        "runs": _runs(comparison, folder),
        "command": command,
    }


def _about(comparison: Comparison) -> str:
    """How many runs there are, and of what."""
    seeds = sorted({run.config.seed for run in comparison.runs})
    totals = sorted({run.config.goal[1] for run in comparison.runs})
    counts = f"{plural(len(comparison.runs), 'run')}: {plural(len(comparison.names), 'variant')}"
    noun = "seed" if len(seeds) == 1 else "seeds"
    which = f"{noun} {', '.join(map(str, seeds))}"
    length = " or ".join(map(quantity, totals))
    most = "up to " if comparison.unfinished else ""
    return f"{counts}, {which}, {most}{length} {comparison.kind.unit} each"


def _is_normalized(scale: Scale) -> bool:
    return scale.name.endswith("_normalized")


def _meaning(scale: Scale) -> str:
    """What 0 and 100 are on a normalized scale; empty for others."""
    if not _is_normalized(scale):
        return ""
    best = "people" if scale.name.startswith("human") else "the oracle"
    return f"0 is random actions, 100 {best}"


def _lines(comparison: Comparison) -> list[dict[str, Any]]:
    """Scores that are drawn across the charts: those of predictors, the threshold, and the ends of a scale."""
    scale = comparison.scale
    lines = [{"name": name, "value": value} for name, value in comparison.references.items()]
    if comparison.threshold is not None:
        lines.append({"name": "threshold", "value": comparison.threshold})
    if _is_normalized(scale):
        lines.append({"name": "random", "value": 0.0})
        lines.append({"name": scale.name.partition("_")[0], "value": 100.0})
    return lines


def _panels(comparison: Comparison, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A chart of learning for each environment or corpus: thin curves of runs, thick ones of variants."""
    scale = comparison.scale
    include: tuple[float, float] | None = (0.0, 0.0)
    if _is_normalized(scale):
        include = (0.0, 100.0)
    elif scale.lower:
        include = None

    panels = []
    for data in comparison.data:
        series: list[dict[str, Any]] = []
        for index, name in enumerate(comparison.names):
            style = {"name": name, "index": index, "dash": not name.startswith("compressive")}
            for run in comparison.of(name, data):
                places, scores = run.curve(scale)
                if len(places):
                    series.append({**style, "thin": True, **points(scores, x=places)})
            x, mean, low, high = comparison.curve(name, data)
            if len(x):
                line = {"x": rounded(x, 6), "y": rounded(mean), "low": rounded(low), "high": rounded(high)}
                series.append({**style, **line})
        # Scores of players are known in units of the return.
        learned_from = _learned_from([run for run in comparison.runs if run.data == data])
        known = []
        if comparison.kind.unit == "frames" and not _is_normalized(scale):
            known = lines_of([learned_from])
        panels.append({"title": learned_from, "series": series, "lines": lines + known, "include": include})
    return panels


def _profiles(comparison: Comparison) -> list[dict[str, Any]]:
    """The performance profile of each variant over ascending scores; none if all variants have a single run."""
    if len(comparison.runs) == len(comparison.names):
        return []
    profiles = []
    for index, name in enumerate(comparison.names):
        places, share, low, high = comparison.profile(name)
        curve: dict[str, Any] = {"name": name, "index": index}
        for axis, values in (("x", places), ("y", share), ("low", low), ("high", high)):
            # If lower is better, places are descending.
            ascending = values[::-1] if comparison.scale.lower else values
            # Scores may differ in late digits alone.
            digits = 12 if axis == "x" else 5
            curve[axis] = rounded(ascending, digits)
        profiles.append(curve)
    return profiles


def _final_scores(comparison: Comparison) -> list[dict[str, Any]]:
    """The score of each variant for the chart, in numbers and as text, and those of its runs."""
    rows = []
    for index, variant in enumerate(comparison.variants):
        value, low, high = rounded(np.array(variant.score), 6)
        text, ends = score_texts(comparison, variant)
        row = {"name": variant.name, "index": index, "value": value, "low": low, "high": high}
        row |= {"text": text, "small": ends}
        row["points"] = [run.summary[comparison.scale.final] for run in variant.runs]
        rows.append(row)
    return rows


def filters(comparison: Comparison) -> dict[str, list[str]]:
    """By field of the configuration its value in each variant ("-" without), if variants differ in it and not within.

    Fields of a core count if variants of the same core differ in them; see `training.grid.label`.
    """
    # By variant, the fields of each of its runs.
    fields: list[list[dict[str, Any]]] = []
    names: dict[str, None] = {}
    for variant in comparison.variants:
        fields_of_runs = [by_full_name(to_plain(run.config)) for run in variant.runs]
        fields.append(fields_of_runs)
        for fields_of_run in fields_of_runs:
            names |= dict.fromkeys(fields_of_run)
    core = comparison.runs[0].config.core_field
    cores = [fields_of_runs[0][f"{core}.name"] for fields_of_runs in fields]

    found: dict[str, list[str]] = {}
    for name in names:
        if name in IGNORED:
            continue
        values = []
        for fields_of_runs in fields:
            of_variant = {str(fields_of_run.get(name, "-")) for fields_of_run in fields_of_runs}
            if len(of_variant) == 1:
                values.append(of_variant.pop())
        is_same_within_variants = len(values) == len(fields)
        if not is_same_within_variants:
            continue

        # Variants are compared with those of the same core, or with all.
        is_of_core = name.startswith(f"{core}.") and name != f"{core}.name"
        compared: dict[str, set[str]] = defaultdict(set)
        for core_name, value in zip(cores, values):
            compared[core_name if is_of_core else ""].add(value)
        if any(len(different) > 1 for different in compared.values()):
            found[name] = values
    return found


def extremes(comparison: Comparison, folder: Path) -> list[dict[str, Any]]:
    """The best and the worst run with the pages of their episodes; none of a single run."""
    if len(comparison.runs) == 1:
        return []
    scale = comparison.scale
    best_first = sorted(comparison.runs, key=lambda run: run.summary[scale.final], reverse=not scale.lower)
    found = []
    for rank, run in {"best": best_first[0], "worst": best_first[-1]}.items():
        found.append(
            {
                "rank": rank,
                "text": f"{run.variant}, seed {run.config.seed}, {run_score_text(comparison, run)}",
                "pages": pages_of(Run(run.path), folder / "report.html"),
                "command": f"compressive visualize {shlex.quote(str(run.path))}{permissions(run.config)}",
            }
        )
    return found


def print_scores(console: Console, comparison: Comparison) -> None:
    """Prints the final scores: the columns of the page's table of variants up to the speed.

    The title names the data if there are other ones, which are compared by themselves.
    """
    found = variant_table(comparison)
    num_columns = found["head"].index(f"{comparison.kind.speed}/s") + 1
    head = found["head"][:num_columns]
    rows = []
    for row in found["rows"]:
        rows.append([cell_text(cell) for cell in row[:num_columns]])
    title = comparison.scale.text
    if comparison.apart:
        title += f", {', '.join(comparison.data)}"
    print_table(console, head, rows, 1, title)


def cell_text(cell: Any) -> str:
    """A cell of a table of a page, as one text."""
    if not isinstance(cell, dict):
        return str(cell)
    return f"{cell['text']}  {cell.get('small', '')}".rstrip()


def reach_table(comparison: Comparison) -> dict[str, Any]:
    """The reach of memories, and what would be correct after "delays" if they knew everything within it.

    Without "rows" if no difference between memories of bounded reach is confirmed, and without "delays" if the task has
    none or is not one level.
    """
    bounded = [(variant, variant.reach) for variant in comparison.variants if variant.reach]
    pairs = itertools.permutations([variant.name for variant, _ in bounded], 2)
    if not any(comparison.confirmed(ours, theirs) for ours, theirs in pairs):
        return {"head": [], "rows": [], "delays": [], "says": ""}

    delays = _delays(comparison)
    head = ["variant", "reach"]
    if delays:
        head += ["delays within", "predicted", "measured"]
    rows: list[list[Any]] = []
    misses: dict[str, float] = {}
    for variant, reach in bounded:
        row: list[Any] = [_key(comparison, variant.name), f"{reach} steps"]
        if delays:
            # What is within reach is always right, of two answers a guess every second time.
            within = sum(delay < reach for delay in delays)
            predicted = 50 + 50 * within / len(delays)
            row += [f"{within} of {len(delays)}", f"{predicted:.1f} %", _correct_text(variant)]
            if variant.correct is not None:
                misses[variant.name] = predicted - variant.correct
        rows.append(row)
    return {"head": head, "rows": rows, "delays": delays, "says": agreement(misses)}


def _delays(comparison: Comparison) -> list[int]:
    """The delays of the task in agent steps, ascending, if all runs are of one level of rooms that has delays."""
    is_one_environment = comparison.kind.unit == "frames" and len(comparison.data) == 1
    if not is_one_environment:
        return []
    tasks = levels(comparison.data)
    if len(tasks) != 1 or not tasks[0].delay_frames:
        return []
    # In each round the longest delay is halved some number of times.
    level = tasks[0]
    delays_in_frames = [level.delay_frames >> halvings for halvings in range(level.delay_halvings + 1)]
    return sorted(frames // level.action_repeat for frames in delays_in_frames)


def _correct_text(variant: Variant) -> str:
    """The correct choices of a variant in percent."""
    if variant.correct is None:
        return "-"
    return f"{variant.correct:.1f} %"


def _key(comparison: Comparison, name: str) -> dict[str, Any]:
    index = comparison.names.index(name)
    return {"text": name, "color": f"var(--s{index % COLORS})", "variant": index}


def variant_table(comparison: Comparison) -> dict[str, Any]:
    """Statistics of the variants, as `data_table` of `macros.html` reads them; "small" is beside a cell's text."""
    kind = comparison.kind
    chooses = any(variant.correct is not None for variant in comparison.variants)
    has_threshold = comparison.threshold is not None
    head = ["variant", "runs", "interquartile mean"]
    if chooses:
        head.append("correct")
    if has_threshold:
        head.append(f"{kind.unit} to threshold")
    head += [f"{kind.speed}/s", "mean", "state", "reach"]

    # Only a variant that is confirmed to be better than another one is marked.
    best_is_confirmed = bool(worse_than_best(comparison))
    rows: list[list[Any]] = []
    for variant in comparison.variants:
        value, ends = score_texts(comparison, variant)
        is_best = best_is_confirmed and variant is comparison.best
        row: list[Any] = [_key(comparison, variant.name), len(variant.runs)]
        row.append({"text": value, "small": ends, "best": is_best})
        if chooses:
            row.append(_correct_text(variant))
        if has_threshold:
            row.append(_threshold_cell(variant))
        row.append(quantity(variant.speed))
        row.append(_mean_text(comparison, variant))
        row.append(f"{variant.state_bytes / 1024:.1f} KiB")
        row.append("unbounded" if variant.reach is None else f"{variant.reach} steps")
        rows.append(row)

    for name, reference in comparison.references.items():
        cells = [name, "", significant(reference)]
        missing = len(head) - len(cells)
        rows.append(cells + [""] * missing)
    return {"head": head, "rows": rows}


def _threshold_cell(variant: Variant) -> dict[str, Any]:
    """When the median run reached the threshold; a run that never did counts as later than all others."""
    reached = [math.inf if x is None else x for x in variant.reached]
    middle = float(np.median(reached))
    text = quantity(middle) if math.isfinite(middle) else "-"
    count = sum(math.isfinite(place) for place in reached)
    return {"text": text, "small": f"reached by {count} of {len(variant.runs)}"}


def _mean_text(comparison: Comparison, variant: Variant) -> str:
    """The mean of a variant with the digits of its mean's interval."""
    if len(variant.runs) == 1:
        return score_texts(comparison, variant)[0]
    return texts(comparison.aggregates[variant.name]["mean"])[0]


def _aggregates(comparison: Comparison) -> dict[str, Any]:
    """A row for each variant, and a column for each statistic of its final scores."""
    statistics = list(comparison.aggregates[comparison.names[0]])
    rows = []
    for name in comparison.names:
        row = [_key(comparison, name)]
        for statistic in statistics:
            value, ends = texts(comparison.aggregates[name][statistic])
            row.append({"text": value, "small": ends})
        rows.append(row)
    return {"head": ["variant", *statistics], "rows": rows}


def _improvements(comparison: Comparison) -> dict[str, Any]:
    """The probability that each variant is better than each other one. Confirmed differences alone have a color."""
    rows = []
    for ours in comparison.names:
        row: list[Any] = [_key(comparison, ours)]
        for theirs in comparison.names:
            if ours == theirs:
                row.append("")
                continue
            p = comparison.improvements[ours, theirs]
            if math.isnan(p.value):
                row.append("unknown")
                continue
            cell = {"text": f"{100 * p.value:.0f} %", "small": percent_interval(p)}
            if comparison.confirmed(ours, theirs):
                cell["shade"] = "color-mix(in srgb, var(--good) 30%, transparent)"
            elif comparison.confirmed(theirs, ours):
                cell["shade"] = "color-mix(in srgb, var(--bad) 30%, transparent)"
            row.append(cell)
        rows.append(row)
    return {"head": ["improvement", *(f"over {name}" for name in comparison.names)], "rows": rows}


def _runs(comparison: Comparison, folder: Path) -> dict[str, Any]:
    """A row for each run, with links to its episodes and its report."""
    kind = comparison.kind
    page = folder / "report.html"
    # The numbers beside the score, without the ends of their intervals.
    names = []
    for name in kind.details:
        if name != comparison.scale.name and not name.endswith(("_low", "_high")):
            names.append(name)

    rows = []
    for variant in comparison.variants:
        for run in variant.runs:
            row: list[Any] = [_key(comparison, run.variant), run.data, run.config.seed, run_score_text(comparison, run)]
            row += [significant(run.summary.get(kind.details[name])) for name in names]
            row.append(_episodes_cell(run, page))
            row.append(_folder_cell(run, page))
            rows.append(row)
    details = [name.replace("_", " ") for name in names]
    return {"head": ["variant", kind.data, "seed", comparison.scale.text, *details, "look", "folder"], "rows": rows}


def _episodes_cell(run: FinishedRun, page: Path) -> Any:
    """A link to the last page of a run's episodes; empty if there is none."""
    episodes = pages_of(Run(run.path), page)
    if not episodes:
        return ""
    return {"text": "episodes", "link": episodes[-1]["link"]}


def _folder_cell(run: FinishedRun, page: Path) -> dict[str, str]:
    """The folder of a run, below that of the page if it is there, with a link to the run's report if there is one."""
    path = run.path
    if path.is_relative_to(page.parent):
        path = path.relative_to(page.parent)
    links = {about["name"]: about["link"] for about in pages_about(run.path, page)}
    return {"text": str(path), "link": links.get("the run's report", "")}
