"""`compressive report`: one page about one run, from what it wrote and from a few episodes of its last checkpoint.

It reads runs in any condition: running, stopped, without checkpoint, video or evaluation. What is missing is said.
"""

import base64
import contextlib
import json
import math
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from rich.console import Console

from actors.recording import Recording
from agent.core import ATTENTION_KINDS
from agent.fields import Count
from commands.options import PlayOptions, parse, user_errors
from commands.status import progress, say_how_to_go_on, state
from envs import EnvironmentFailed
from learner.files import read_json, require_output
from learner.metrics import sample_metrics
from reports.pages import rounded, write_page
from training import UserError
from training.config import RunConfig, differences, read_config, to_plain
from training.console import evaluation_rows, say, table
from training.presets import make_preset

POINTS = 400
"""A curve has at most so many points; each is the mean of as many of the rows that were read as that takes."""
BUCKETS = 6
"""Buckets of each kind of memory, as in Figure 2 of the paper."""
EMBEDDED_BYTES = 4_000_000
"""A video larger than this is linked, not put into the page."""

CHARTS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("return", "mean over the last episodes", {"return": "episode/return"}),
    ("correct choices", "share of all choices", {"correct": "episode/correct_choices"}),
    (
        "normalised score",
        "100 is a human, or the oracle",
        {
            "human": "episode/human_normalised",
            "human, capped": "episode/human_normalised_capped",
            "oracle": "episode/oracle_normalised",
        },
    ),
    (
        "losses",
        "as they add up to the total",
        {
            "total": "loss/total",
            "policy": "loss/policy",
            "value": "loss/baseline",
            "entropy": "loss/entropy",
            "reconstruction": "loss/reconstruction",
        },
    ),
    (
        "attention",
        "share of each kind of memory, while training",
        {kind: f"attention/{kind}" for kind in ATTENTION_KINDS},
    ),
    ("entropy", "of the policy, nats", {"entropy": "policy/entropy"}),
    ("value", "predicted and aimed at", {"value": "value/mean", "target": "value/target_mean"}),
    ("gradient", "norm", {"gradient": "gradient/norm"}),
    ("throughput", "frames a second", {"frames/s": "speed/frames_per_second"}),
    ("policy lag", "versions of the weights", {"mean": "policy_lag/mean", "most": "policy_lag/max"}),
    ("learner idle", "share of the time", {"idle": "learner/idle_fraction"}),
)
"""Title, what the numbers are, and names of metrics by the names in the legend."""


@dataclass(frozen=True)
class Options(PlayOptions):
    """Writes one page about a run: configuration, curves, throughput, compression loss by layer, attention by bucket of
    memory, evaluation and video."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder of the run, as `compressive launch` made it; it may be training still."""
    episodes: Count = 8
    """Episodes to play for the attention by bucket of memory; 0 for none."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The page; if not given, report.html in the run."""


def report(arguments: Sequence[str]) -> None:
    """Runs the command."""
    options = parse(Options, "compressive report", args=list(arguments), config=(tyro.conf.FlagCreatePairsOff,))
    run, console = options.run, Console()
    torch.set_num_threads(1)
    try:
        config = read_config(run)
        rows = []
        with contextlib.suppress(FileNotFoundError):
            rows = sample_metrics(run)
        data = page_data(run, config, rows)
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from error
    page = options.output or run / "report.html"
    with user_errors("output"):
        require_output(page)
    with console.status("playing"):
        data["buckets"] = buckets(run, config, options, console)
    data["media"] = media(run, page)
    with user_errors("output"):
        write_page(page, "report", f"{data['title']}: report", data)
    console.print(table("report", {"page": f"{page}  (open it in a browser)"} | data["facts"]))
    say_how_to_go_on(console, run, "launch", data["facts"]["state"])


def page_data(run: Path, config: RunConfig, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What `pages/report.html` reads, from the run's files alone; `rows` are its metrics, see `sample_metrics`."""
    evaluation: dict[str, str] = {}
    damage = OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError
    with contextlib.suppress(*damage):  # none, or half of one
        evaluation = evaluation_rows(read_json(run / "evaluation.json"))
    preset = to_plain(make_preset(config.preset, config.core_name))
    changed = differences(preset, to_plain(config))
    last = rows[-1] if rows else {}
    names = {name for row in rows for name in row}
    layers = sorted((name for name in names if re.fullmatch(r"loss/compression/layer_\d{1,4}", name)), key=_layer)
    return {
        "title": run.resolve().name,
        "facts": {
            "state": state(run, last, "learner/frames", config.frames),
            "environment": config.env,
            "core": config.core_name,
            **{name: text for name, text in progress(config, last).items() if name != "measured"},
        },
        "preset": config.preset,
        "changed": {name: [str(old), str(new)] for name, old, new in changed},
        "config": json.dumps(to_plain(config), indent=2, allow_nan=False),
        "charts": [
            {"title": title, "unit": unit, "series": series}
            for title, unit, names in CHARTS
            if (series := curves(rows, names))
        ],
        "compression": curves(rows, {f"layer {_layer(name) + 1}": name for name in layers}),
        "compressibility": [last_tenth(rows, name) for name in layers],
        "evaluation": evaluation,
    }


def _layer(name: str) -> int:
    return int(name.rpartition("_")[2])


def curves(rows: list[dict[str, Any]], names: dict[str, str]) -> list[dict[str, Any]]:
    """Metrics over frames, thinned to `POINTS`; those that no row has are left out."""
    found = []
    for title, name in names.items():
        known = [row for row in rows if name in row and "learner/frames" in row]
        if not known:
            continue
        x, y = (np.array([row[key] for row in known], dtype=float) for key in ("learner/frames", name))
        parts = min(POINTS, len(x))
        thin = [[_mean(part) for part in np.array_split(values, parts)] for values in (x, y)]
        found.append({"name": title, "x": rounded(np.array(thin[0]), 6), "y": rounded(np.array(thin[1]))})
    return found


def last_tenth(rows: list[dict[str, Any]], name: str) -> float | None:
    """Mean of a metric over the last tenth of its rows."""
    values = np.array([row[name] for row in rows if name in row], dtype=float)
    return rounded(np.array([_mean(values[-max(1, len(values) // 10) :])]))[0]


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan


def buckets(run: Path, config: RunConfig, options: Options, console: Console) -> dict[str, Any]:
    """Attention by bucket of memory over some episodes, or why there is none."""
    if not options.episodes:
        return {"why": "No episodes were played for this report."}
    from commands.evaluate import load_player, record  # environments and video: a quarter of what this program is

    where = run.absolute()  # "." would be in every sentence
    try:
        player = load_player(where, console, options)
        if not hasattr(player.agent.core, "attention_by_kind"):
            return {"why": f"This run's core ({config.core_name}) has no attention."}
        return attention_by_bucket(record(player.config, player.agent, options.episodes))
    except (UserError, EnvironmentFailed) as error:
        why = f"Nothing could be played: {error}".replace(str(where), run.resolve().name)
        say(console, why, "yellow")
        return {"why": why}


def attention_by_bucket(recordings: Sequence[Recording]) -> dict[str, Any]:
    """Mean attention on buckets of slots from the oldest to the newest, over layers, heads and steps (Figure 2).

    Only steps with a full memory count, as all do in the paper; all steps if there is none. The error is the standard
    error of the mean over episodes, None for one.

    Returns:
        "bars": objects with "kind", "name", "mean" and "error"; "steps": how many counted; "full": whether of those
        with a full memory.
    """
    sizes = {layer.sizes for recording in recordings for layer in recording.attention}
    if len(sizes) > 1:  # buckets of layers that differ hold other spans of time; their kinds can be compared still
        parts = [(kind, 1) for kind in ATTENTION_KINDS]
    else:
        (only,) = sizes
        parts = [(kind, min(BUCKETS, size)) for kind, size in zip(ATTENTION_KINDS, only) if size]
    means, total = [], 0
    chosen = [_full(recording) for recording in recordings]
    full = any(steps.any() for steps in chosen)
    for recording, steps in zip(recordings, chosen):
        steps = steps if full else np.ones_like(steps)
        if not steps.any():
            continue
        layers = []
        for layer in recording.attention:
            slots = layer.weights[steps].mean(axis=(0, 1))
            kinds = dict(zip(ATTENTION_KINDS, np.split(slots, np.cumsum(layer.sizes)[:-1])))
            layers.append([part.sum() for kind, count in parts for part in np.array_split(kinds[kind], count)])
        means.append(np.mean(layers, axis=0))
        total += int(steps.sum())
    mean = np.mean(means, axis=0)
    error = np.std(means, axis=0, ddof=1) / math.sqrt(len(means)) if len(means) > 1 else np.full(len(mean), np.nan)
    names = [(kind, f"{kind} {number + 1} of {count}") for kind, count in parts for number in range(count)]
    bars = [
        {"kind": kind, "name": name, "mean": value, "error": spread}
        for (kind, name), value, spread in zip(names, rounded(mean), rounded(error))
    ]
    return {"bars": bars, "steps": total, "episodes": len(means), "full": full}


def _full(recording: Recording) -> np.ndarray:
    """[T] whether all slots of compressed memory and memory hold something of the episode, in every layer."""
    return np.all(
        [(layer.steps[:, : sum(layer.sizes[:2]), 0] >= 0).all(axis=1) for layer in recording.attention], axis=0
    )


def media(run: Path, page: Path) -> dict[str, Any]:
    """The newest video of the run, embedded if it is small, and pages of episodes, as links from the report."""
    found: dict[str, Any] = {}
    videos = sorted(run.glob("videos/*.mp4"), key=lambda path: path.stat().st_mtime)
    if videos:
        found["video"] = {"name": videos[-1].name, "link": _link(videos[-1], page)}
        if videos[-1].stat().st_size <= EMBEDDED_BYTES:
            found["video"]["source"] = f"data:video/mp4;base64,{base64.b64encode(videos[-1].read_bytes()).decode()}"
    found["pages"] = [{"name": path.name, "link": _link(path, page)} for path in sorted(run.glob("videos/*.html"))]
    return found


def _link(path: Path, page: Path) -> str:
    """From a page to a file: relative where it lies below the page, so that the run's folder can be moved."""
    path, folder = path.resolve(), page.resolve().parent
    if not path.is_relative_to(folder):
        return path.as_uri()
    return urllib.parse.quote(path.relative_to(folder).as_posix())
