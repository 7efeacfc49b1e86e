"""The data of a run's report page, from what the run wrote and from recorded episodes of its last checkpoint.

A run of any kind is read in any condition: running, stopped, without checkpoint, video or evaluation.
"""

import base64
import contextlib
import json
import math
import os
import re
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from actors.recording import Recording
from learner.files import read_json
from reports.pages import mean, points, rounded
from reports.tables import evaluation_rows, number, progress_rows
from training.config import RunConfig, core_name, differences, read_config, to_plain
from training.console import quantity
from training.evaluation import SCALES
from training.kinds import CONFIGS, PRESETS
from training.run import Run
from training.sweep import goal

BUCKETS = 6
"""Buckets of each kind of memory, as in Figure 2 of the paper."""
EMBEDDED_BYTES = 4_000_000
"""A video larger than this is linked instead of embedded."""

CHARTS = {
    "return": ("mean over the last episodes", ["episode/return"]),
    "correct choices": ("share of all choices", ["episode/correct_choices"]),
    "normalised score": ("100 is a human, or the oracle", [f"episode/{scale}" for scale in SCALES]),
    "losses": (
        "as they add up",
        [f"loss/{part}" for part in ["total", "policy", "baseline", "entropy", "reconstruction"]],
    ),
    "loss": ("nats per token", ["loss/nll", "valid/nll"]),
    "bits": ("validation", ["valid/bits_per_byte", "valid/bits"]),
    "word perplexity": ("validation", ["valid/word_perplexity"]),
    "attention": (
        "share of each kind of memory, in training",
        [f"attention/{kind}" for kind in ("routed", "compressed", "memory", "segment")],
    ),
    "entropy": ("of the policy, nats", ["policy/entropy"]),
    "value": ("predicted, and its target", ["value/mean", "value/target_mean"]),
    "gradient": ("norm", ["gradient/norm"]),
    "learning rate": ("", ["learning_rate"]),
    "throughput": ("per second", ["speed/frames_per_second", "speed/tokens_per_second"]),
    "policy lag": ("versions of the weights", ["policy_lag/mean", "policy_lag/max", "replay/age"]),
    "learner idle": ("share of the time", ["learner/idle_fraction"]),
}
"""Unit and metrics of each chart by its title; a metric's legend is the last part of its name."""


def page_data(run: Run, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What `pages/report.html` reads, but for "buckets" and "media".

    Args:
        run: the run; only its files are read.
        rows: its metrics; see `sample_metrics`.

    Raises:
        ValueError, OSError: if the folder is not a run.
    """
    kind, _ = run.read_kind()
    config = read_config(run, CONFIGS[kind])
    counter, total = goal(config)
    evaluation: dict[str, str] = {}
    damage = OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError
    with contextlib.suppress(*damage):  # it does not exist, or is damaged
        summary = read_json(run.evaluation_file())
        plain = {name: f"{value:.5g}" for name, value in summary.items() if type(value) in (int, float)}
        evaluation = evaluation_rows(summary) if kind == "launch" else plain
    changed = differences(to_plain(PRESETS[kind](config.preset, core_name(config))), to_plain(config))
    last = rows[-1] if rows else {}
    names = {name for row in rows for name in row}
    layers = [name for name in names if re.fullmatch(r"loss/compression/layer_\d{1,4}", name)]
    layers.sort(key=lambda name: int(name.rpartition("_")[2]))
    facts = {"state": run.state(last, counter, total), "core": core_name(config)}
    if kind == "launch":
        measured = {name: text for name, text in progress_rows(config, last).items() if name != "measured"}
        facts = {"state": facts.pop("state"), "environment": config.env, **facts, **measured}
    elif last:
        facts["steps"] = f"{quantity(last['step'])} of {quantity(total)}"
        facts["loss"] = number(last, "loss/nll", ".4f", unit=" nats a token")
    return {
        "title": run.name,
        "kind": kind,
        "unit": "frames" if kind == "launch" else "steps",
        "facts": facts,
        "preset": config.preset,
        "changed": {name: [str(old), str(new)] for name, old, new in changed},
        "config": json.dumps(to_plain(config), indent=2, allow_nan=False),
        "stages": stages(config, rows, counter) if kind == "launch" else [],
        "charts": [
            {"title": title, "unit": unit, "series": series}
            for title, (unit, metrics) in CHARTS.items()
            if (series := curves(rows, metrics, counter))
        ],
        "compression": [{**line, "name": f"layer {i}"} for i, line in enumerate(curves(rows, layers, counter), 1)],
        "compressibility": [last_tenth(rows, name) for name in layers],
        "evaluation": evaluation,
    }


def curves(rows: list[dict[str, Any]], names: list[str], counter: str) -> list[dict[str, Any]]:
    """Metrics over frames or steps, as charts read them; without those that no row has."""
    found = []
    for name in names:
        known = [(row[counter], row[name]) for row in rows if name in row and counter in row]
        if known:
            title = name.replace("valid/", "validation ").rpartition("/")[2].replace("_", " ")
            found.append({"name": title, **points(*np.array(known, dtype=float).T)})
    return found


def stages(config: RunConfig, rows: list[dict[str, Any]], counter: str) -> list[dict[str, Any]]:
    """The stages that a run has begun: what they are, and from how many frames to how many; none if it has one."""
    found: list[dict[str, Any]] = []
    for stage, text in enumerate((*config.stages, config.env), 1):
        frames = [row[counter] for row in rows if row.get("stage") == stage and row.get(counter, math.nan) >= 0]
        if config.stages and frames:
            begin = found[-1]["to"] if found else 0.0
            found.append({"name": text, "from": begin, "to": max(frames), "span": quantity(max(frames) - begin)})
    return found


def last_tenth(rows: list[dict[str, Any]], name: str) -> float | None:
    """Mean of a metric over the last tenth of its rows."""
    values = np.array([row[name] for row in rows if name in row], dtype=float)
    return rounded(np.array([mean(values[-max(1, len(values) // 10) :])]))[0]


def attention_by_bucket(recordings: Sequence[Recording]) -> dict[str, Any]:
    """Mean attention on buckets of slots from the oldest to the newest, over layers, heads and steps (Figure 2).

    Only steps with a full memory count, as all do in the paper; all steps if there is none. The error is the standard
    error of the mean over episodes, None for one.

    Returns:
        "bars": objects with "kind", "name", "mean" and "error"; "steps": how many counted; "full": whether of those
        with a full memory.
    """
    kinds = recordings[0].kinds
    sizes = {layer.sizes for recording in recordings for layer in recording.attention}
    if len(sizes) > 1:  # buckets of layers that differ hold other spans of time; their kinds can be compared still
        parts = [(kind, 1) for kind in kinds]
    else:
        (only,) = sizes
        parts = [(kind, min(BUCKETS, size)) for kind, size in zip(kinds, only) if size]
    chosen = [_full(recording) for recording in recordings]
    full = any(steps.any() for steps in chosen)
    chosen = chosen if full else [np.ones_like(steps) for steps in chosen]
    means = []
    for recording, steps in zip(recordings, chosen):
        layers = []
        for layer in recording.attention if steps.any() else ():
            slots = layer.weights[steps].mean(axis=(0, 1))
            by_kind = dict(zip(kinds, np.split(slots, np.cumsum(layer.sizes)[:-1])))
            layers.append([part.sum() for kind, count in parts for part in np.array_split(by_kind[kind], count)])
        means += [np.mean(layers, axis=0)] if layers else []
    names = [(kind, f"{kind} {number + 1} of {count}") for kind, count in parts for number in range(count)]
    spread = np.std(means, axis=0, ddof=1) / math.sqrt(len(means)) if len(means) > 1 else np.full(len(names), np.nan)
    bars = [
        {"kind": kind, "name": name, "mean": value, "error": error}
        for (kind, name), value, error in zip(names, rounded(np.mean(means, axis=0)), rounded(spread))
    ]
    return {"bars": bars, "steps": int(sum(map(np.sum, chosen))), "episodes": len(means), "full": full}


def _full(recording: Recording) -> np.ndarray:
    """[T] whether all slots of older memory and memory hold something of the episode, in every layer."""
    held = [(layer.steps[:, : sum(layer.sizes[:2]), 0] >= 0).all(axis=1) for layer in recording.attention]
    return np.all(held, axis=0)


def media(run: Run, page: Path) -> dict[str, Any]:
    """The newest video of the run, embedded if it is small, and pages of episodes, as links from the report."""
    found: dict[str, Any] = {}
    if videos := sorted(run.videos.glob("*.mp4"), key=lambda path: path.stat().st_mtime):
        found["video"] = {"name": videos[-1].name, "link": _link(videos[-1], page)}
        if videos[-1].stat().st_size <= EMBEDDED_BYTES:
            found["video"]["source"] = f"data:video/mp4;base64,{base64.b64encode(videos[-1].read_bytes()).decode()}"
    found["pages"] = [{"name": path.name, "link": _link(path, page)} for path in sorted(run.videos.glob("*.html"))]
    return found


def _link(path: Path, page: Path) -> str:
    """From a page to a file, relative, so that the run's folder can be moved."""
    return urllib.parse.quote(os.path.relpath(path.resolve(), page.resolve().parent))
