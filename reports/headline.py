"""The numbers that the report of a run shows first: those of its evaluation, else the latest of training.

Charts and tables of the report are built in `reports.report`.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from envs import chance_of_choice, tasks
from reports.comparison import KIND
from reports.tables import significant, with_interval
from storage.files import is_finite
from storage.run import Run
from training.config import RunConfig
from training.console import quantity
from training.curriculum import EPISODES
from training.evaluation import SCALES
from training.trust import permissions

MOST = 3
"""Most large numbers."""
SCALE_NAMES = {
    "human_normalized": "human-normalized score",
    "human_normalized_capped": "human-normalized score, capped",
    "oracle_normalized": "oracle-normalized score",
}
SCALE_MEANINGS = {
    "human_normalized": "0 is random, 100 is a human",
    "human_normalized_capped": "0 is random, no task counts more than 100",
    "oracle_normalized": "0 is random, 100 is an oracle",
}
MEASURES = {
    "text": {
        "bits_per_byte": "bits per byte",
        "nats_per_token": "nats per token",
        "word_perplexity": "perplexity per word",
    },
    "speech": {"nats": "nats per sample", "bits": "bits per sample"},
    "images": {"bits_per_dim": "bits per dimension", "nats": "nats per dimension"},
}
"""What the evaluation of a sequence model measures, by kind of run: names in `evaluation.json`, the main one first."""
LOSS = {"text": "nats_per_token", "speech": "nats", "images": "nats"}
"""The measure in the unit of the learning curve, nats per token."""
VALIDATED = {
    "text": {"valid/bits_per_byte": "bits per byte", "valid/word_perplexity": "perplexity per word"},
    "speech": {"valid/nll": "nats per sample", "valid/bits": "bits per sample"},
    "images": {"valid/bits_per_dim": "bits per dimension", "valid/nll": "nats per dimension"},
}
"""The same on the validation split during training: metrics."""


def headline(run: Run, config: Any, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first numbers of a report.

    Args:
        summary: of the evaluation, see `training.evaluation.summarize`; empty if there is none.
        rows: of metrics, as `reports.report.read_rows` reads them.

    Returns:
        "numbers": at most `MOST`, each with "name", "value" and "note", all in words. "source": "evaluation",
        "training" or "" without any number. "about": what the evaluation was, in sentences. "command": prints an
        evaluation; empty if there is one.

    Raises one of `reports.report.DAMAGE` if the summary is damaged.
    """
    if config.kind == RunConfig.kind:
        evaluated = []
        about = ""
        if summary:
            evaluated = _evaluated(config, summary)
            about = _about(config, summary)
        trained = _trained(config, rows)
        command = "evaluate"
    else:
        evaluated = _measured(config.kind, summary)
        about = _about_sequences(summary)
        trained = _validated(config.kind, rows)
        command = f"{config.kind} evaluate"

    if evaluated:
        others = [_in_one_line(number) for number in evaluated[MOST:]]
        if others:
            about += f" Also: {'; '.join(others)}."
        return {"numbers": evaluated[:MOST], "source": "evaluation", "about": about, "command": ""}
    return {
        "numbers": trained[:MOST],
        "source": "training" if trained else "",
        "about": "",
        "command": f"compressive {command} {shlex.quote(str(run))}{permissions(config)}",
    }


def score_line(kind: str, summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """The evaluation as a line in the learning curve, "name" and "value"; None if it is not known."""
    value = summary["return"]["mean"] if kind == RunConfig.kind else summary.get(LOSS[kind])
    if not is_finite(value):
        return None
    return {"name": "evaluation", "value": value}


def _evaluated(config: RunConfig, summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """The numbers of an agent's evaluation: the score, choices, and the score relative to references."""
    score = summary["return"]
    value, note = _with_interval(score["mean"], score.get("low"), score.get("high"))
    numbers = [_number("return", value, note)]

    if "correct_choices" in summary:
        share = {end: 100 * value for end, value in summary["correct_choices"].items()}
        value, note = _with_interval(share["mean"], share.get("low"), share.get("high"), " %")
        chance = _chance(summary.get("environment", config.env))
        if chance is not None:
            note = _joined(note, f"chance {100 * chance:.0f} %")
        numbers.append(_number("correct choices", value, note))

    has_tasks = bool(summary.get("tasks"))
    for name in SCALES:
        # Of one task, the capped score is no other number.
        is_repetition = name == "human_normalized_capped" and not has_tasks
        if name not in summary or is_repetition:
            continue
        low, high = summary.get(f"{name}_interval") or (None, None)
        value, note = _with_interval(summary[name], low, high, " %")
        numbers.append(_number(SCALE_NAMES[name], value, _joined(note, SCALE_MEANINGS[name])))

    for name, counter in summary.get("counters", {}).items():
        value, note = _with_interval(counter["mean"], counter.get("low"), counter.get("high"))
        numbers.append(_number(name, value, note))
    return numbers


def _about(config: RunConfig, summary: Mapping[str, Any]) -> str:
    """What an agent's evaluation was."""
    played = summary.get("tasks", [])
    over = f" of {len(played)} tasks" if played else ""
    about = f"{summary['episodes']} episodes{over}, apart from those of training"
    env = summary.get("environment", config.env)
    if env != config.env:
        about += f", in {env}"
    if "choices_per_episode" in summary:
        about += f"; {summary['choices_per_episode']:.1f} choices an episode"
    score = summary["return"]
    if "low" in score and score["low"] != score["high"]:
        about += ". Intervals are 95 % bootstrap over episodes of this one run: other seeds may differ by more"
    return f"{about}."


def _trained(config: RunConfig, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The latest scores of an agent's training."""
    last = rows[-1] if rows else {}
    latest = latest_episodes(config)
    numbers = []
    if is_finite(last.get("episode/return")):
        numbers.append(_number("training return", significant(last["episode/return"]), f"mean over the {latest}"))
    if is_finite(last.get("episode/correct_choices")):
        share = 100 * last["episode/correct_choices"]
        numbers.append(_number("training, correct choices", f"{share:.1f} %", f"in the {latest}"))
    for name in SCALES:
        if name != "human_normalized_capped" and is_finite(last.get(f"episode/{name}")):
            score = f"{last[f'episode/{name}']:.1f} %"
            numbers.append(_number(f"training, {SCALE_NAMES[name]}", score, SCALE_MEANINGS[name]))
    return numbers


def latest_episodes(config: RunConfig) -> str:
    """Over which episodes scores of training are means."""
    each = " of each task" if len(tasks(config.env)) > 1 else ""
    return f"latest training episodes, at most {EPISODES}{each}"


def _measured(kind: str, summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """The numbers of a sequence model's evaluation; beside the main one, predictors without a network."""
    numbers = []
    for field, name in MEASURES[kind].items():
        if not is_finite(summary.get(field)):
            continue
        note = ""
        if field == KIND[kind].scales[0].final:
            references = ["lower is better"]
            for predictor, by in KIND[kind].references.items():
                if is_finite(summary.get(by)):
                    references.append(f"{predictor} {significant(summary[by])}")
            note = "; ".join(references)
        numbers.append(_number(name, significant(summary[field]), note))
    return numbers


def _about_sequences(summary: Mapping[str, Any]) -> str:
    """What a sequence model's evaluation was."""
    parts = []
    if "split" in summary:
        parts.append(f"the {summary['split']} split of the data")
    if "step" in summary:
        parts.append(f"after {quantity(summary['step'])} steps of training")
    if not parts:
        return ""
    about = ", ".join(parts)
    return f"{about[0].upper()}{about[1:]}."


def _validated(kind: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The latest numbers of a sequence model's training: of the validation split, else the loss."""
    numbers = []
    for metric, name in VALIDATED[kind].items():
        measured = [row for row in rows if is_finite(row.get(metric))]
        if measured:
            note = f"in training, validation split at step {quantity(measured[-1]['step'])}"
            numbers.append(_number(name, significant(measured[-1][metric]), note))
    if numbers:
        return numbers
    losses = [row["loss/nll"] for row in rows if is_finite(row.get("loss/nll"))]
    if not losses:
        return []
    return [_number("training loss", significant(losses[-1]), "nats per token, latest batches")]


def _number(name: str, value: str, note: str) -> dict[str, str]:
    return {"name": name, "value": value, "note": note}


def _with_interval(value: float, low: float | None, high: float | None, unit: str = "") -> tuple[str, str]:
    """A score, and its interval in words; of equal episodes it would look like certainty."""
    if not is_finite(low) or not is_finite(high):
        return f"{significant(value)}{unit}", ""
    if low == high:
        return f"{significant(value)}{unit}", "all episodes equal"
    score, least, most = with_interval(value, low, high)
    return f"{score}{unit}", f"95 % interval {least} to {most}{unit}"


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _in_one_line(number: Mapping[str, str]) -> str:
    note = f" ({number['note']})" if number["note"] else ""
    return f"{number['name']} {number['value']}{note}"


def _chance(env: str) -> float | None:
    """The share of choices that are right by chance, if it is the same in all tasks."""
    chances = {chance_of_choice(task) for task in tasks(env)}
    if len(chances) > 1:
        return None
    return chances.pop()
