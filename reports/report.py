"""The data of a run's report page, from what the run wrote and from recorded episodes of its last checkpoint.

A run of any kind is read in any condition: running, stopped, without checkpoint, video or evaluation.
"""

import base64
import contextlib
import json
import math
import os
import re
import stat
import time
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actors.recording import Attention, Recording
from envs import chance_of_choice, reference_scores, tasks
from envs.registry import rooms_config
from envs.rooms.config import RoomsConfig
from envs.rooms.level import rule
from envs.specs import parse_spec
from reports.comparison import KIND
from reports.headline import headline, latest_episodes, score_line
from reports.overview import amount, progress_text, read_summary
from reports.pages import mean, points, rounded
from reports.tables import evaluation_rows, number, progress_rows, with_brackets
from sequences.kinds import CONFIGS, PRESETS
from storage.files import is_finite, read_regular
from storage.metrics import sample_metrics
from storage.provenance import read_launches, training_time
from storage.run import Run, is_of_checkpoint
from training.config import RunConfig, core_name
from training.console import duration, quantity
from training.evaluation import SCALES
from training.plain import differences, read_config, to_plain

BUCKETS = 6
"""Buckets of each kind of memory, as in Figure 2 of the paper."""
EMBEDDED_BYTES = 4_000_000
"""A video larger than this is linked instead of embedded."""
TASKS = 64
"""Most charts of single tasks."""
DAMAGE = OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError
"""What reading files that others wrote, or that are damaged, raises."""


class Chart(NamedTuple):
    """What a chart shows.

    Attributes:
        group: of the page, in which it is: see `GROUPS`.
        unit: behind the title.
        metrics: legends are the last parts of their names.
        include: what the y axis includes at least: of shares all of 0 to 1, so that noise does not fill the plot.
            None: a tenth of the values.
    """

    group: str
    unit: str
    metrics: Sequence[str]
    include: tuple[float, float] | None = (0.0, 0.0)


GROUPS = ("learning", "network", "system")
"""Groups of charts: scores, what is inside the agent or model, and the speed of the training."""
COUNTERS = 12
"""Most counters of an environment that have a chart."""
CHARTS = {
    "return": Chart("learning", "mean over the {latest}", ["episode/return", "evaluation/return"]),
    "correct choices": Chart(
        "learning",
        "share of all in the {latest}",
        ["episode/correct_choices", "evaluation/correct_choices"],
        (0.0, 1.0),
    ),
    "normalized score": Chart(
        "learning",
        "in training; 0 is random, 100 is a human or the oracle",
        [f"{part}/{scale}" for part in ("episode", "evaluation") for scale in SCALES],
        (-12.0, 100.0),
    ),
    "loss": Chart("learning", "nats per token", ["loss/nll", "valid/nll"], None),
    "bits": Chart(
        "learning", "validation during training", ["valid/bits_per_byte", "valid/bits", "valid/bits_per_dim"], None
    ),
    "word perplexity": Chart("learning", "validation during training", ["valid/word_perplexity"], None),
    "losses": Chart(
        "network",
        "{reduction} over steps, each times its cost",
        [f"loss/{part}" for part in ["total", "policy", "baseline", "entropy", "reconstruction"]],
    ),
    "attention": Chart(
        "network",
        "share of each kind of memory, in training",
        [f"attention/{kind}" for kind in ("routed", "compressed", "memory", "segment")],
        (0.0, 1.0),
    ),
    "entropy": Chart("network", "of the policy, nats", ["policy/entropy"]),
    "value": Chart(
        "network", "predicted, and its target: discounted learned rewards", ["value/mean", "value/target_mean"]
    ),
    "gradient": Chart("network", "norm", ["gradient/norm"]),
    "learning rate": Chart("system", "", ["learning_rate"]),
    "throughput": Chart("system", "per second", ["speed/frames_per_second", "speed/tokens_per_second"]),
    "policy lag": Chart("system", "versions of the weights", ["policy_lag/mean", "policy_lag/max", "replay/age"]),
    "learner idle": Chart("system", "share of the time", ["learner/idle_fraction"], (0.0, 1.0)),
}
MAIN = {"launch": "return", "text": "loss", "speech": "loss", "images": "loss"}
"""The chart that is first and large, by kind of run."""
SYSTEM = ("frames/s", "actors", "policy lag", "learner idle")
"""Facts of a run that belong to the group "system"."""
RESOLVED = ("learner.precision", "actors.precision", "agent.pixel_zero")
"""Settings that `launch` resolves: it writes what "auto" stands for on its machine or in its environment."""


def page_data(run: Run, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What `pages/report.html` reads, but for "buckets", "kept" and "media", from files of a run and its `read_rows`.

    Raises:
        ValueError, OSError: if the folder is not a run.
    """
    kind, _ = run.read_kind()
    config = read_config(run, CONFIGS[kind])
    counter, _ = config.goal
    is_agent = kind == RunConfig.kind
    summary = read_summary(run)
    evaluation = _describe_evaluation(run, config, summary, rows)
    launches = read_launches(run)
    axes = _axes(rows, counter, launches)
    facts = _facts(run, config, rows, axes["time"], launches)
    names = {name for row in rows for name in row}
    layers = _compression_losses(names)
    return {
        "title": run.name,
        "kind": kind,
        "rules": rules([config.env]) if is_agent else [],
        "axes": _axis_names(kind),
        "headline": evaluation.headline,
        "facts": facts,
        "system": {name: facts[name] for name in SYSTEM if name in facts},
        "preset": config.preset,
        "changed": changed_settings(config, launches),
        "config": json.dumps(to_plain(config), indent=2, allow_nan=False),
        "launches": [launch_facts(launch) for launch in launches],
        "stages": stages(config, rows, counter) if is_agent else [],
        "main": MAIN[kind],
        "charts": charts(config, rows, axes, summary, evaluation.score),
        "tasks": task_charts(rows, names, axes),
        "compression": compression_curves(rows, layers, axes),
        "compressibility": [last_tenth(rows, name) for name in layers],
        "evaluation": evaluation.in_words,
        "evaluations": evaluations(kind, rows, counter),
    }


class _Evaluation(NamedTuple):
    """What a page says about the evaluation at the end of a run.

    Attributes:
        headline: the first numbers of the page; those of the training if there is no evaluation.
        score: a line in the main chart.
        in_words: the rows of a table.
    """

    headline: dict[str, Any]
    score: dict[str, Any] | None
    in_words: dict[str, str]


def _describe_evaluation(
    run: Run, config: Any, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> _Evaluation:
    """The evaluation of a summary; a summary that is damaged counts as none."""
    with contextlib.suppress(*DAMAGE):
        is_agent = config.kind == RunConfig.kind
        in_words = evaluation_rows(summary) if is_agent else _plain_numbers(summary)
        if in_words:
            first = headline(run, config, summary, rows)
            return _Evaluation(first, score_line(config.kind, summary), in_words)
    return _Evaluation(headline(run, config, {}, rows), None, {})


def _axes(rows: list[dict[str, Any]], counter: str, launches: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Where the rows are on each axis of the charts [N]: what was learned from, steps, and seconds of training."""
    return {
        "x": column(rows, counter),
        "steps": column(rows, "step"),
        "time": training_time(column(rows, "time"), launches),
    }


def _axis_names(kind: str) -> dict[str, str]:
    """The axes that a reader may choose, with their names. Sequence models count what they learn from in steps."""
    if kind == RunConfig.kind:
        return {"x": "frames", "steps": "steps", "time": "time"}
    return {"x": "steps", "time": "time"}


def _facts(
    run: Run, config: Any, rows: Sequence[Mapping[str, Any]], seconds: np.ndarray, launches: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """A run in words, by the name of the fact. `seconds` of training up to each row [N], NaN where unknown."""
    is_agent = config.kind == RunConfig.kind
    counter, total = config.goal
    last = rows[-1] if rows else {}

    facts = {"state": run.state(last, counter, total)}
    if is_agent:
        facts["environment"] = config.env
    facts["core"] = core_name(config)
    if last:
        facts["progress"] = progress_text(config.kind, amount(last, counter), total)
    if is_agent:
        facts |= _training_facts(config, last)
    elif last:
        facts["loss in training"] = number(last, "loss/nll", ".4f", unit=" nats a token")

    known = seconds[np.isfinite(seconds)]
    if known.size:
        facts["training time"] = duration(known.max())
        if len(launches) > 1:
            facts["training time"] += f" over {len(launches)} launches"
    return facts


def _compression_losses(names: Iterable[str]) -> list[str]:
    """Those of the names of metrics that are the compression loss of a layer, by the number of the layer."""
    layers = [name for name in names if re.fullmatch(r"loss/compression/layer_\d{1,4}", name)]
    return sorted(layers, key=lambda name: int(name.rpartition("_")[2]))


def _plain_numbers(summary: Mapping[str, Any]) -> dict[str, str]:
    """The numbers of a summary in words, without the tables in it."""
    found = {}
    for name, value in summary.items():
        if type(value) is int:
            found[name.replace("_", " ")] = f"{value:,}"
        elif type(value) is float:
            found[name.replace("_", " ")] = f"{value:.5g}"
    return found


def _training_facts(config: RunConfig, last: Mapping[str, Any]) -> dict[str, str]:
    """The last row of metrics of an agent's run in words, as far as it has them."""
    rows = progress_rows(config, dict(last))
    return {name: text for name, text in rows.items() if name != "measured" and text != "-"}


def changed_settings(config: Any, launches: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The preset's and the run's value of the settings that differ, by full name.

    A setting "auto" that the launch resolved is no difference. It is one if a command of the run sets it.
    """
    preset: dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # there is no preset of that name; then all fields are shown
        preset = to_plain(PRESETS[config.kind](config.preset, core_name(config)))
    commands = " ".join(str(launch.get("command", "")) for launch in launches).replace("-", "_")
    found = {}
    for name, old, new in differences(preset, to_plain(config)):
        if name in RESOLVED and old == "auto" and name not in commands:
            continue
        found[name] = [str(old), str(new)]
    return found


def charts(
    config: Any,
    rows: list[dict[str, Any]],
    axes: Mapping[str, np.ndarray],
    summary: Mapping[str, Any],
    score: Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    """All of `CHARTS` of which the run has metrics, as the page reads them; the main one has the evaluation's score."""
    latest = latest_episodes(config) if config.kind == RunConfig.kind else ""
    reduction = getattr(config.learner, "reduction", "")
    lines = references(config, summary)
    found = []
    for title, chart in (CHARTS | _counter_charts(rows)).items():
        series = curves(rows, chart.metrics, axes)
        if not series:
            continue
        drawn: dict[str, Any] = {
            "title": title,
            "group": chart.group,
            "unit": chart.unit.format(reduction=reduction, latest=latest),
            "include": chart.include,
            "lines": lines.get(title, []),
            "series": series,
        }
        if title == MAIN[config.kind]:
            drawn["score"] = score
        found.append(drawn)
    return found


def _counter_charts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Chart]:
    """A chart of each counter of the environment, at most `COUNTERS`, by its name among the metrics."""
    names = sorted({name for row in rows for name in row if name.startswith("counter/")})
    found = {}
    for name in names[:COUNTERS]:
        found[name] = Chart("learning", "mean over the {latest}", [name, f"evaluation/{name}"])
    return found


def task_charts(
    rows: list[dict[str, Any]], names: Iterable[str], axes: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    """A chart of the training return of each task, at most `TASKS`; none if the run has one task."""
    # A task's metrics begin with its name, which has a colon.
    returns = [name for name in names if re.search(r":.*/return$", name)]
    found = {name.removesuffix("/return") for name in returns}
    drawn = []
    for task in sorted(found)[:TASKS]:
        series = curves(rows, [f"{task}/return"], axes)
        if series:
            about = {"title": task, "unit": "training return", "include": (0.0, 0.0)}
            drawn.append({**about, "lines": lines_of([task]), "series": series})
    return drawn


def read_rows(run: Run) -> list[dict[str, Any]]:
    """The metrics of a run for its page: a sample, and all evaluations; empty if nothing was measured yet."""
    with contextlib.suppress(FileNotFoundError):
        return sample_metrics(run.path, KIND[run.read_kind()[0]].measured)
    return []


def compression_curves(
    rows: list[dict[str, Any]], layers: Sequence[str], axes: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    """The compression losses of `layers`, the names of these metrics, as `curves` with the number of each layer."""
    found = []
    for layer, line in enumerate(curves(rows, layers, axes), 1):
        found.append({**line, "name": f"layer {layer}"})
    return found


def column(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    """A metric in all rows [N], NaN where it is missing."""
    return np.array([row.get(name, math.nan) for row in rows], dtype=float)


def curves(rows: list[dict[str, Any]], names: Sequence[str], axes: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Metrics over frames or steps, as charts read them; without those that no row has.

    Evaluations have the ends of their intervals, and are not to be smoothed. `axes` are where the rows [N] are, by the
    name of an axis [N]; "x" is the first of them.
    """
    found = []
    for name in names:
        is_measured = np.array([name in row for row in rows], dtype=bool)
        is_drawn = is_measured & np.isfinite(axes["x"])
        if not is_drawn.any():
            continue
        line: dict[str, Any] = {"name": _legend(name)}
        beside = {axis: places[is_drawn] for axis, places in axes.items()}
        if name.startswith("evaluation/"):
            line["exact"] = True
            for end in ("low", "high"):
                beside[end] = column(rows, f"{name}_{end}")[is_drawn]
        values = column(rows, name)[is_drawn]
        found.append({**line, **points(values, **beside)})
    return found


def _legend(name: str) -> str:
    """How a chart calls a metric: the last part of its name, and where that was measured if a chart may have both."""
    if name == "loss/nll":
        return "training loss"
    if name == "valid/nll":
        return "validation loss"
    group, _, own_name = name.rpartition("/")
    words = own_name.replace("_", " ")
    if group == "valid":
        return f"validation {words}"
    if group == "episode":
        return f"training: {words}"
    if group == "evaluation":
        return f"evaluation: {words}"
    return words


def references(config: Any, summary: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Lines to compare with, by the title of the chart: chance, random actions, oracle, human, fitted predictors."""
    if config.kind == RunConfig.kind:
        return _references_of_agent(config)
    return _references_of_model(config.kind, summary)


def _references_of_model(kind: str, summary: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The scores of predictors without a network, which the evaluation of a sequence model has beside its own."""
    lines = []
    for name, field in KIND[kind].references.items():
        value = summary.get(field)
        if is_finite(value):
            lines.append({"name": name, "value": value})
    # They are in the unit of the preferred scale, and belong to the chart that shows its curve.
    curve = KIND[kind].scales[0].curve
    return {title: lines for title, chart in CHARTS.items() if curve in chart.metrics}


def _references_of_agent(config: RunConfig) -> dict[str, list[dict[str, Any]]]:
    """Scores of random actions, an oracle and people, and of guesses where there is a choice of two."""
    found: dict[str, list[dict[str, Any]]] = {"return": []}
    # In stages, scores are those of several environments.
    if not config.stages:
        found["return"] = lines_of(tasks(config.env))
    with contextlib.suppress(*DAMAGE):
        if {chance_of_choice(task) for task in tasks(config.env)} == {0.5}:
            found["correct choices"] = [{"name": "chance", "value": 0.5}]
    is_known_of_people = any(line["name"] == "human" for line in found["return"])
    best = "human" if is_known_of_people else "oracle"
    found["normalized score"] = [{"name": "random", "value": 0.0}, {"name": best, "value": 100.0}]
    return found


def lines_of(specs: Sequence[str]) -> list[dict[str, Any]]:
    """Means over tasks of the scores of random and memoryless players, an oracle and people, where all have them."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(*DAMAGE):
        scores = [reference_scores(spec) for spec in specs]
        for name in ("random", "memoryless", "oracle", "human"):
            values = [score[name] for score in scores]
            if None not in values:
                over_tasks = np.mean(np.array(values, float))
                found.append({"name": name, "value": float(over_tasks)})
    return found


def levels(specs: Sequence[str]) -> list[RoomsConfig]:
    """The tasks that are levels of rooms; none if one of them is unknown."""
    found = []
    with contextlib.suppress(*DAMAGE):
        for spec in specs:
            for task in tasks(spec):
                kind, name, fields = parse_spec(task)
                if kind == "rooms":
                    found.append(rooms_config(name, fields))
        return found
    return []


def rules(specs: Sequence[str]) -> list[str]:
    """The rules of `levels`, each once."""
    found = [rule(level) for level in levels(specs)]
    return list(dict.fromkeys(found))


def _evaluated_cell(value: float, low: float, high: float, is_share: bool) -> dict[str, str]:
    """A score and its interval as a cell; shares are percentages."""
    unit = ""
    if is_share:
        unit = " %"
        value = 100 * value
        low = 100 * low
        high = 100 * high
    if math.isnan(value):
        return {"text": "-", "small": ""}
    text, interval = with_brackets(value, low, high)
    return {"text": f"{text}{unit}", "small": interval}


def evaluations(kind: str, rows: list[dict[str, Any]], counter: str) -> dict[str, Any]:
    """A table of the evaluations during training, each with its intervals."""
    metric = KIND[kind].measured
    prefix = metric.partition("/")[0] + "/"
    measured = [row for row in rows if metric in row]
    columns: dict[str, None] = {}
    for row in measured:
        for name in row:
            if name.startswith(prefix) and not name.endswith(("_low", "_high")):
                columns[name] = None

    body = []
    for row in measured:
        cells: list[Any] = [quantity(row.get(counter, math.nan))]
        for name in columns:
            value = row.get(name, math.nan)
            low = row.get(f"{name}_low", math.nan)
            high = row.get(f"{name}_high", math.nan)
            cells.append(_evaluated_cell(value, low, high, is_share=name.endswith("correct_choices")))
        body.append(cells)
    unit = "frames" if kind == "launch" else "steps"
    head = [unit, *(name.removeprefix(prefix).replace("_", " ") for name in columns)]
    return {"head": head, "rows": body}


def launch_facts(launch: Mapping[str, Any]) -> dict[str, str]:
    """A launch in words; see `storage.provenance`."""
    versions = [f"Python {launch.get('python')}"]
    packages = launch.get("packages")
    if isinstance(packages, dict):
        versions += [f"{name} {version}" for name, version in packages.items()]
    begun = ""
    with contextlib.suppress(*DAMAGE):
        begun = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(launch["time"]))
        begun += f", at step {quantity(launch['step'])}"
    texts = {
        "begun": begun,
        "command": launch.get("command"),
        "commit": launch.get("commit"),
        "versions": ", ".join(versions),
        "machine": launch.get("machine"),
    }
    return {name: str(text) for name, text in texts.items() if text}


def stages(config: RunConfig, rows: list[dict[str, Any]], counter: str) -> list[dict[str, Any]]:
    """The stages that a run has begun: what they are, and from how many frames to how many; none if it has one."""
    if not config.stages:
        return []
    found: list[dict[str, Any]] = []
    begin = 0.0
    for stage, text in enumerate((*config.stages, config.env), 1):
        frames = [row[counter] for row in rows if row.get("stage") == stage and row.get(counter, math.nan) >= 0]
        if frames:
            end = max(frames)
            found.append({"name": text, "from": begin, "to": end, "span": quantity(end - begin)})
            begin = end
    return found


def last_tenth(rows: list[dict[str, Any]], name: str) -> float | None:
    """Mean of a metric over the last tenth of its rows."""
    values = np.array([row[name] for row in rows if name in row], dtype=float)
    count = max(1, len(values) // 10)
    latest = mean(values[-count:])
    (value,) = rounded(np.array([latest]))
    return value


def _bucket_sums(layer: Attention, steps: np.ndarray, kinds: Sequence[str], buckets: Mapping[str, int]) -> list[float]:
    """The attention of a layer on each bucket, a mean over the steps [T] bool and over heads."""
    slots = layer.weights[steps].mean(axis=(0, 1))
    bounds = np.cumsum(layer.sizes)[:-1]  # between the kinds
    sums = []
    for kind, of_kind in zip(kinds, np.split(slots, bounds)):
        if kind in buckets:
            sums += [part.sum() for part in np.array_split(of_kind, buckets[kind])]
    return sums


def attention_by_bucket(recordings: Sequence[Recording]) -> dict[str, Any]:
    """Mean attention on buckets of slots from the oldest to the newest, over layers, heads and steps (Figure 2).

    Only steps with a full memory count, as all do in the paper; all steps if there is none. The error is the standard
    error of the mean over episodes, None for one.

    Returns:
        "bars": objects with "kind", "name", "mean" and "error"; "steps": how many counted; "full": whether of those
        with a full memory.
    """
    kinds = recordings[0].slot_kinds
    sizes = {layer.sizes for recording in recordings for layer in recording.attention}
    # In layers of different sizes, buckets of one name would hold different spans of time.
    most = BUCKETS if len(sizes) == 1 else 1
    buckets: dict[str, int] = {}
    if sizes:
        for place, kind in enumerate(kinds):
            num_slots = max(sizes_of_layer[place] for sizes_of_layer in sizes)
            if num_slots:
                buckets[kind] = min(most, num_slots)

    # By episode the steps that count.
    chosen = [_full(recording) for recording in recordings]
    full = any(steps.any() for steps in chosen)
    if not full:
        chosen = [np.ones_like(steps) for steps in chosen]

    # A mean of each episode, whose steps are not independent of each other.
    means = []
    for recording, steps in zip(recordings, chosen):
        if steps.any() and recording.attention:
            layers = [_bucket_sums(layer, steps, kinds, buckets) for layer in recording.attention]
            means.append(np.mean(layers, axis=0))
    mean = rounded(np.mean(means, axis=0))
    error: Sequence[float | None] = [None] * len(mean)
    if len(means) > 1:
        error = rounded(np.std(means, axis=0, ddof=1) / math.sqrt(len(means)))

    bars: list[dict[str, Any]] = []
    for kind, count in buckets.items():
        for bucket in range(count):
            place = len(bars)
            name = f"{kind} {bucket + 1} of {count}"
            bars.append({"kind": kind, "name": name, "mean": mean[place], "error": error[place]})
    num_steps = sum(int(steps.sum()) for steps in chosen)
    return {"bars": bars, "steps": num_steps, "episodes": len(means), "full": full}


def _full(recording: Recording) -> np.ndarray:
    """[T] whether all slots of older memory and memory hold something of the episode, in every layer."""
    full_layers = []
    for layer in recording.attention:
        older, memory, _ = layer.sizes  # the last is the segment, which is never full but at its last step
        first_steps = layer.steps[:, : older + memory, 0]
        is_held = first_steps >= 0
        full_layers.append(is_held.all(axis=1))
    return np.all(full_layers, axis=0)


def media(run: Run, page: Path, embed: bool = True) -> dict[str, Any]:
    """The newest video of the run, embedded if it is small, and pages of episodes, as links from the report.

    Videos of earlier checkpoints count if there is no other.
    """
    found: dict[str, Any] = {"pages": pages_of(run, page)}
    if embed:
        related = pages_about(run.path, page)
        if related:
            found["related"] = related
    videos = _regular(run.videos, "*.mp4")
    of_the_last = [path for path in videos if not is_of_checkpoint(path.stem)]
    if videos:
        newest = max(of_the_last or videos, key=lambda path: path.lstat().st_mtime)
        found["video"] = _video(newest, page, embed)
    return found


def _video(path: Path, page: Path, embed: bool) -> dict[str, str]:
    """A video's name, a link to it and, unless it is too large to be embedded, its source."""
    link = _link(path, page)
    video = {"name": path.name, "link": link}
    if not embed:
        video["source"] = link
        return video
    with contextlib.suppress(OSError, ValueError):  # it is too large
        content = read_regular(path, EMBEDDED_BYTES)
        video["source"] = f"data:video/mp4;base64,{base64.b64encode(content).decode()}"
    return video


def _regular(folder: Path, pattern: str) -> list[Path]:
    """Files in a folder, by name; not links, which in the run of a stranger may lead anywhere."""
    if folder.is_symlink():
        return []
    return [path for path in sorted(folder.glob(pattern)) if stat.S_ISREG(path.lstat().st_mode)]


def pages_of(run: Run, page: Path) -> list[dict[str, str]]:
    """The pages of a run's episodes, as links from another page."""
    return [{"name": path.name, "link": _link(path, page)} for path in _regular(run.videos, "*.html")]


def pages_about(folder: Path, page: Path) -> list[dict[str, str]]:
    """The report of the run in a folder and the comparison around it, as links from another page, if they exist."""
    # Any folder may have a report.html. These are ours, because beside them is what they are about.
    run = Run(folder.resolve())
    around = run.path.parent
    reports = {}
    if run.config_file.exists():
        reports["the run's report"] = run.report
    if (around / "report").exists():  # the tables and figures of a comparison
        reports["comparison with other runs"] = around / "report.html"

    links = []
    for name, path in reports.items():
        is_page_itself = path == page.resolve()
        if path.is_file() and not is_page_itself:
            links.append({"name": name, "link": _link(path, page)})
    return links


def _link(path: Path, page: Path) -> str:
    """From a page to a file, relative, so that the run's folder can be moved."""
    relative = os.path.relpath(path.resolve(), page.resolve().parent)
    return urllib.parse.quote(relative, errors="surrogateescape")
