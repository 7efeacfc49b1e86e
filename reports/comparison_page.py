"""The report of a comparison: `report.html`, and beside it, in the folder `report`, tables as CSV and, if matplotlib is
installed, figures for papers. Nothing is computed here but for the shape of tables."""

import csv
import importlib.util
import io
import itertools
import math
import re
import shlex
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from actors.intervals import Sample
from reports.comparison import CORRECT, Comparison, Estimate, FinishedRun, Scale, Variant, estimate
from reports.pages import points, rounded, write_page
from reports.report import levels, lines_of, pages_about, pages_of, rules
from reports.statistics import interquartile_mean, runs_to_confirm
from reports.tables import enumerated, print_table, significant, with_interval
from storage.files import replacing
from storage.run import Run
from training.console import plural, quantity
from training.grid import IGNORED
from training.plain import by_full_name, to_plain

FOLDER = "report"
INTERVAL, RANGE = "its 95 % bootstrap interval", "the range of the runs, which are too few for an interval"
FEW = 4
"""Most runs of one task whose range, as the interval of an interquartile mean, holds the truth in less than 90 %."""
FEWEST = 5
"""Runs of each variant below which a difference is weak evidence."""
MOST_RUNS = 1000
"""Numbers of runs above this are not proposed."""
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
    page = folder / "report.html"
    beside = folder / FOLDER
    if len(comparisons) == 1:
        (comparison,) = comparisons
        return _write_report(page, beside, page_data(folder, comparison, missing, command), comparison)

    links = []
    for number, comparison in enumerate(comparisons, 1):
        (data,) = comparison.data
        words = re.sub(r"[^A-Za-z0-9.]+", "-", data).strip("-")
        name = f"{number}-{words}"  # the words of two environments may be the same
        found = page_data(folder, comparison, missing, command)
        own_page = _write_report(folder / f"report-{name}.html", beside / name, found, comparison)
        link = {"name": data, "link": urllib.parse.quote(own_page.name)}
        links.append(link | {"answer": found["answer"], "evidence": found["evidence"]})
    title = ", ".join(link["name"] for link in links)
    why_apart = comparisons[0].cautions[0]
    return write_page(page, "comparisons", {"title": title, "why": why_apart, "pages": links})


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
    runs: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    curve_intervals: list[dict[str, Any]] = []
    kind = comparison.kind
    score = comparison.scale.name
    for variant in comparison.variants:
        for run, reached in zip(variant.runs, variant.reached):
            which = {"variant": variant.name, kind.data: run.data, "seed": run.config.seed}
            runs.append(which | _run_row(comparison, variant, run, reached))
            for x, y in zip(*run.curve(comparison.scale)):
                curves.append(which | {kind.unit: x, score: y})
        for data in comparison.data:
            which = {"variant": variant.name, kind.data: data}
            for x, mean, low, high in zip(*comparison.curve(variant.name, data)):
                curve_intervals.append(which | {kind.unit: x, "mean": mean, "low": low, "high": high})

    improvements = []
    for (ours, theirs), better in comparison.improvements.items():
        probability = {"probability": better.value, "low": better.low, "high": better.high}
        improvements.append({"variant": ours, "other": theirs} | probability)
    return {
        "runs": runs,
        "curves": curves,
        "curve_intervals": curve_intervals,
        "variants": [_variant_row(comparison, variant) for variant in comparison.variants],
        "improvements": improvements,
    }


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


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same fields as CSV; None and NaN are empty, and floats are written exactly."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _csv_value(cell) for name, cell in row.items()})
    return text.getvalue()


def _csv_value(cell: Any) -> Any:
    """A cell as `csv` is to write it."""
    if not isinstance(cell, float):
        return cell
    if math.isnan(cell):
        return ""
    return float(cell)  # not numpy's


def page_data(folder: Path, comparison: Comparison, missing: Mapping[str, str], command: str) -> dict[str, Any]:
    """What `pages/comparison.html` reads."""
    kind, scale = comparison.kind, comparison.scale
    rates = {getattr(run.config.core_config, "compression_rate", 0) for run in comparison.runs}
    lines = _lines(comparison)
    return {
        "title": ", ".join(comparison.data),
        "about": _about(comparison),
        "answer": answer(comparison),
        "evidence": evidence(comparison),
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
        "fewest": comparison.fewest,
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
    runs, variants = len(comparison.runs), len(comparison.names)
    counts = f"{plural(runs, 'run')}: {plural(variants, 'variant')}"
    noun = "seed" if len(seeds) == 1 else "seeds"
    which = f"{noun} {', '.join(map(str, seeds))}"
    length = " or ".join(map(quantity, totals))
    return f"{counts}, {which}, {length} {comparison.kind.unit} each"


def _is_normalised(scale: Scale) -> bool:
    return scale.name.endswith("_normalised")


def _meaning(scale: Scale) -> str:
    """What 0 and 100 are on a normalised scale; empty for others."""
    if not _is_normalised(scale):
        return ""
    best = "people" if scale.name.startswith("human") else "the oracle"
    return f"0 is random actions, 100 {best}"


def _lines(comparison: Comparison) -> list[dict[str, Any]]:
    """Scores that are drawn across the charts: those of predictors, the threshold, and the ends of a scale."""
    scale = comparison.scale
    lines = [{"name": name, "value": value} for name, value in comparison.references.items()]
    if comparison.threshold is not None:
        lines.append({"name": "threshold", "value": comparison.threshold})
    if _is_normalised(scale):
        lines.append({"name": "random", "value": 0.0})
        lines.append({"name": scale.name.partition("_")[0], "value": 100.0})
    return lines


def _panels(comparison: Comparison, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A chart of learning for each environment or corpus: thin curves of runs, thick ones of variants."""
    scale = comparison.scale
    include: tuple[float, float] | None = (0.0, 0.0)
    if _is_normalised(scale):
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
        known = []
        if comparison.kind.unit == "frames" and not _is_normalised(scale):
            known = lines_of([data])
        panels.append({"title": data, "series": series, "lines": lines + known, "include": include})
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
            curve[axis] = rounded(ascending, 5)
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
    fields = [[by_full_name(to_plain(run.config)) for run in variant.runs] for variant in comparison.variants]
    core = comparison.runs[0].config.core_field
    cores = [runs[0][f"{core}.name"] for runs in fields]
    names = dict.fromkeys(name for runs in fields for run in runs for name in run if name not in IGNORED)

    found: dict[str, list[str]] = {}
    for name in names:
        values = []
        for runs in fields:
            of_variant = {str(run.get(name, "-")) for run in runs}
            if len(of_variant) == 1:
                values.append(of_variant.pop())
        is_of_variants = len(values) == len(fields)
        if not is_of_variants:
            continue

        # Variants are compared with those of the same core, or with all.
        rivals = [""] * len(cores)
        if name.startswith(f"{core}.") and name != f"{core}.name":
            rivals = cores
        # Among equal rivals there is more than one value.
        differs = len(set(zip(rivals, values))) > len(set(rivals))
        if differs:
            found[name] = values
    return found


def extremes(comparison: Comparison, folder: Path) -> list[dict[str, Any]]:
    """The best and the worst run with the pages of their episodes."""
    final, lower = comparison.scale.final, comparison.scale.lower
    ordered = sorted(comparison.runs, key=lambda run: run.summary[final], reverse=not lower)
    chosen = {"best": ordered[0], "worst": ordered[-1]} if len(ordered) > 1 else {}
    return [
        {
            "rank": rank,
            "text": f"{run.variant}, seed {run.config.seed}, {_score_of(comparison, run)}",
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


def answer(comparison: Comparison) -> str:
    """Which variant is better, in one sentence; only differences that are confirmed."""
    names, best = comparison.names, comparison.best.name
    if len(names) == 1:
        return f"There is only one variant, {best}: nothing is compared."

    better = {}
    for ours in names:
        worse = [theirs for theirs in names if theirs != ours and comparison.confirmed(ours, theirs)]
        if worse:
            better[ours] = worse
    if not better:
        return "No difference is confirmed."

    if best not in better:
        found = [f"{ours} is better than {enumerated(worse)}" for ours, worse in better.items()]
        return f"Which variant is best is not confirmed; it is confirmed that {enumerated(found)}."

    sentence = f"{best} is better than {enumerated(better[best])}"
    level = _not_confirmed(comparison)
    if level:
        sentence += f"; no difference from {enumerated(level)} is confirmed"
    return f"{sentence}."


def evidence(comparison: Comparison) -> str:
    """The best score, and how much it proves or what would be needed to confirm a difference."""
    best = comparison.best
    value, ends = score_texts(comparison, best)
    score = value
    if ends and spread(comparison) == RANGE:
        low, high = with_interval(*best.score)[1:]
        score = f"{value} (its runs: {low} to {high})"
    elif ends:
        score = f"{value} {ends}"
    if len(comparison.names) == 1:
        return _sentences(f"Its interquartile mean is {score}.", _caution(comparison))

    extreme = "lowest" if comparison.scale.lower else "highest"
    lead = f"{best.name} has the {extreme} interquartile mean, {score}."
    return _sentences(lead, _caution(comparison), needed(comparison))


def needed(comparison: Comparison) -> str:
    """What would confirm that the best variant is better than the next one that it is not confirmed to be better than;
    empty if there is none, or that is not known."""
    level = _not_confirmed(comparison)
    if not level or comparison.fewest < 2 or len(comparison.data) > 1:
        return ""
    best = comparison.best.name
    sign = -1 if comparison.scale.lower else 1
    rivals = [variant for variant in comparison.variants if variant.name in level]
    rival = max(rivals, key=lambda variant: sign * variant.score.value).name

    chance = comparison.chance(best, rival)
    improvement = comparison.improvements[best, rival].value
    if chance is not None and improvement == 1:
        return (
            f"All runs of {best} are better than all of {rival}, but between variants that are alike, so few runs "
            f"differ like that with a probability of {chance:.2g}: train at least {FEWEST} seeds of each."
        )
    runs = runs_to_confirm(improvement)
    if improvement <= 0.5 or runs > MOST_RUNS:
        return f"The runs of {best} and {rival} differ too little to say how many more would confirm a difference."
    count = max(math.ceil(runs), comparison.fewest + 1, FEWEST)
    return (
        f"If a run of {best} is better than one of {rival} in {100 * improvement:.0f} % of cases, as here, about "
        f"{count} runs of each are needed to confirm it."
    )


def _caution(comparison: Comparison) -> str:
    """What so few runs cannot tell; empty if there are enough."""
    where = " in an environment" if len(comparison.data) > 1 else ""
    if comparison.fewest == 1:
        alone = f"A single run of a variant{where} has no interval"
        if len(comparison.names) == 1:
            return f"{alone}."
        return f"{alone}: train at least {FEWEST} seeds of each to confirm a difference."
    if comparison.fewest < FEWEST and worse_than_best(comparison):
        return f"With as few as {comparison.fewest} runs of a variant{where}, that is weak evidence."
    return ""


def _sentences(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _not_confirmed(comparison: Comparison) -> list[str]:
    """The variants that the best one is not confirmed to be better than."""
    better = worse_than_best(comparison)
    return [name for name in comparison.names if name not in (comparison.best.name, *better)]


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
    improvement = comparison.improvements[best.name, other.name]
    chance = comparison.chance(best.name, other.name)

    # An interval without width would look like certainty.
    text = f"{100 * improvement.value:.0f} %"
    if chance is None:
        text += f" {percent_interval(improvement)}"

    def difference(ours: Sample, theirs: Sample) -> Any:
        return sign * (interquartile_mean(ours) - interquartile_mean(theirs))

    apart = estimate(difference, comparison.scores(best.name), comparison.scores(other.name))
    return {
        "name": other.name,
        "p": text,
        "confirmed": comparison.confirmed(best.name, other.name),
        "runs": [len(best.runs), len(other.runs)],
        "chance": "" if chance is None else f"{chance:.2g}",
        "apart": " ".join(texts(apart)).rstrip(),
    }


def worse_than_best(comparison: Comparison) -> list[str]:
    """The variants that the best one is confirmed to be better than."""
    best = comparison.best.name
    return [name for name in comparison.names if name != best and comparison.confirmed(best, name)]


def texts(number: Estimate) -> tuple[str, str]:
    """A number and the ends of its interval in brackets, which are empty if there is none."""
    value, low, high = with_interval(*number)
    return value, f"[{low}, {high}]" if low else ""


def score_texts(comparison: Comparison, variant: Variant) -> tuple[str, str]:
    """The score of a variant and its interval over runs.

    A single run has none. The interval over the episodes of its evaluation then says which digits are known.
    """
    value, ends = texts(variant.score)
    if len(variant.runs) == 1:
        value, _, _ = with_interval(variant.score.value, *variant.runs[0].interval(comparison.scale))
    return value, ends


def _score_of(comparison: Comparison, run: FinishedRun) -> str:
    """The final score of a run, with the digits that its episodes allow."""
    value, _, _ = with_interval(run.summary[comparison.scale.final], *run.interval(comparison.scale))
    return value


def percent_interval(share: Estimate) -> str:
    """The interval of a share, in percent; empty if there is none."""
    if math.isnan(share.low):
        return ""
    return f"[{100 * share.low:.0f}, {100 * share.high:.0f}]"


def reach_table(comparison: Comparison) -> dict[str, Any]:
    """The reach of memories, and what would be correct after "delays" if they knew everything within it.

    Without "rows" if no difference between memories of bounded reach is confirmed, and without "delays" if the task has
    none or is not one level.
    """
    bounded = [variant for variant in comparison.variants if variant.reach]
    pairs = itertools.permutations([variant.name for variant in bounded], 2)
    if not any(comparison.confirmed(ours, theirs) for ours, theirs in pairs):
        return {"head": [], "rows": [], "delays": [], "says": ""}

    is_one_task = comparison.kind.unit == "frames" and len(comparison.data) == 1
    tasks = levels(comparison.data if is_one_task else ())
    delays = list[int]()
    if len(tasks) == 1 and tasks[0].delay_frames:
        frames, repeat = tasks[0].delay_frames, tasks[0].action_repeat
        delays = sorted((frames >> times) // repeat for times in range(tasks[0].delay_halvings + 1))

    rows, misses = list[list[Any]](), dict[str, float]()
    for variant in bounded:
        row: list[Any] = [_key(comparison, variant.name), f"{variant.reach} steps"]
        if delays:
            within = sum(delay < (variant.reach or 0) for delay in delays)
            predicted = 50 + 50 * within / len(delays)
            measured = "-" if variant.correct is None else f"{variant.correct:.1f} %"
            row += [f"{within} of {len(delays)}", f"{predicted:.1f} %", measured]
            if variant.correct is not None:
                misses[variant.name] = predicted - variant.correct
        rows.append(row)
    head = ["variant", "reach"]
    if delays:
        head += ["delays within", "predicted", "measured"]
    return {"head": head, "rows": rows, "delays": delays, "says": agreement(misses)}


def agreement(misses: Mapping[str, float]) -> str:
    """How well reach explains the scores, given by variant how far the measured percentage is below the predicted."""
    if not misses:
        return ""
    below = [f"{name} is {miss:.0f} points below its prediction" for name, miss in misses.items() if miss > CLOSE]
    above = [f"{name} is {-miss:.0f} points above" for name, miss in misses.items() if miss < -CLOSE]
    if not below and not above:
        return f"All are within {CLOSE} points of their predictions: reach explains the difference."
    return f"{enumerated(below + above)}: reach explains a part of the difference, and not all of it."


def _key(comparison: Comparison, name: str) -> dict[str, Any]:
    index = comparison.names.index(name)
    return {"text": name, "colour": f"var(--s{index % 8})", "variant": index}


def variant_table(comparison: Comparison) -> dict[str, Any]:
    """Statistics of the variants, as `data_table` of `macros.html` reads them; "small" is beside a cell's text."""
    kind, rows = comparison.kind, list[list[Any]]()
    chose = any(variant.correct is not None for variant in comparison.variants)
    limit = comparison.threshold is not None
    head = ["variant", "runs", "interquartile mean"]
    if chose:
        head.append("correct")
    if limit:
        head.append(f"{kind.unit} to threshold")
    head += [f"{kind.speed}/s", "mean", "state", "reach"]
    best = comparison.best if worse_than_best(comparison) else None
    for variant in comparison.variants:
        value, ends = score_texts(comparison, variant)
        row = [_key(comparison, variant.name), len(variant.runs)]
        row.append({"text": value, "small": ends, "best": variant is best})
        if chose:
            row.append("-" if variant.correct is None else f"{variant.correct:.1f} %")
        if limit:
            row.append(_threshold_cell(variant))
        row += [quantity(variant.speed), _mean_text(comparison, variant), f"{variant.state_bytes / 1024:.1f} KiB"]
        row.append("unbounded" if variant.reach is None else f"{variant.reach} steps")
        rows.append(row)
    for name, reference in comparison.references.items():
        rows.append([name, "", significant(reference), *[""] * (len(head) - 3)])
    return {"head": head, "rows": rows}


def _threshold_cell(variant: Variant) -> dict[str, Any]:
    """When the median run reached the threshold; a run that never did counts as later than all others."""
    reached = [math.inf if x is None else x for x in variant.reached]
    middle = float(np.median(reached))
    text = quantity(middle) if math.isfinite(middle) else "-"
    count = sum(map(math.isfinite, reached))
    return {"text": text, "small": f"reached by {count} of {len(variant.runs)}"}


def _mean_text(comparison: Comparison, variant: Variant) -> str:
    """The mean of a variant with the digits of its mean's interval."""
    if len(variant.runs) == 1:
        return score_texts(comparison, variant)[0]
    return texts(comparison.aggregates[variant.name]["mean"])[0]


def _aggregates(comparison: Comparison) -> dict[str, Any]:
    rows = []
    for name, found in comparison.aggregates.items():
        row = [_key(comparison, name)]
        for number in found.values():
            value, ends = texts(number)
            row.append({"text": value, "small": ends})
        rows.append(row)
    return {"head": ["variant", *next(iter(comparison.aggregates.values()))], "rows": rows}


def _improvements(comparison: Comparison) -> dict[str, Any]:
    """The probability that each variant is better than each other one. Confirmed differences alone have a colour."""
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
    kind, page = comparison.kind, folder / "report.html"
    names = []
    for name in kind.details:
        if name != comparison.scale.name and not name.endswith(("_low", "_high")):
            names.append(name)

    rows = []
    for variant in comparison.variants:
        for run in variant.runs:
            row: list[Any] = [_key(comparison, run.variant), run.data, run.config.seed, _score_of(comparison, run)]
            row += [significant(run.summary.get(kind.details[name])) for name in names]
            episodes = pages_of(Run(run.path), page)
            row.append({"text": "episodes", "link": episodes[-1]["link"]} if episodes else "")
            path = run.path.relative_to(folder) if run.path.is_relative_to(folder) else run.path
            reports = [each["link"] for each in pages_about(run.path, page) if "report" in each["name"]]
            row.append({"text": str(path), "link": "".join(reports)})
            rows.append(row)
    details = [name.replace("_", " ") for name in names]
    return {"head": ["variant", kind.data, "seed", comparison.scale.text, *details, "look", "folder"], "rows": rows}
