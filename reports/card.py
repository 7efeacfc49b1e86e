"""The card of a shared agent: README.md as the Hugging Face Hub shows it, of what the run's files say."""

from collections.abc import Mapping
from typing import Any

from storage.files import Json, is_finite

LIBRARY = "compressive-impala"
CURVE = "curve.png"
FILM = "replay.mp4"
"""Files beside the card; the Hub itself plays a film of that name."""
TRAINING = ("environment", "core", "progress", "training time")
"""Facts of the run that matter to others."""
FILES = (
    "All options are in `config.json`, the curves in `metrics.jsonl`. The weights are safetensors in half precision; "
    "nothing in this repository is code."
)


def card(
    name: str, data: Mapping[str, Any], summary: Json, license: str | None, files: set[str], permissions: str = ""
) -> str:
    """The card as Markdown, below its metadata in YAML.

    Args:
        name: of the repository, USER/NAME.
        data: of the run, as `reports.report.page_data` gives it.
        summary: of the run's evaluation; empty if it was not evaluated.
        license: of the agent, as the Hub abbreviates them, such as apache-2.0.
        files: names of the files beside the card.
        permissions: words behind commands that play the agent; see `training.trust.permissions`.

    Raises:
        ImportError: if huggingface_hub is missing.
    """
    metadata = _metadata(name, data, summary, license)
    parts = [f"---\n{metadata}\n---", f"# {name.rpartition('/')[2]}", _introduction(data)]
    if data["evaluation"]:
        parts.append(_table(("evaluation", ""), data["evaluation"]))
    else:
        parts.append("It was not evaluated.")
    if CURVE in files:
        parts.append(f"![The return while it was trained]({CURVE})")
    parts += ["## Use", _use(name, permissions), "## Training"]
    facts = {name: data["facts"][name] for name in TRAINING if name in data["facts"]}
    parts.append(_table(("training", ""), {"preset": data["preset"], **facts}))
    for launch in data["launches"]:
        parts.append(_table(("launch", ""), launch))
    parts.append(FILES)
    return "\n\n".join(parts) + "\n"


def _metadata(name: str, data: Mapping[str, Any], summary: Json, license: str | None) -> str:
    """What the Hub indexes: license, library, tags and the score."""
    from huggingface_hub import EvalResult, ModelCardData

    env = data["facts"]["environment"]
    results = []
    for metric, value, in_words in _scores(summary):
        result = EvalResult(
            task_type="reinforcement-learning",
            task_name="reinforcement learning",
            dataset_type=env,
            dataset_name=env,
            metric_type=metric,
            metric_name=in_words,
            metric_value=value,
        )
        results.append(result)
    described = ModelCardData(
        model_name=name.rpartition("/")[2],
        license=license,
        library_name=LIBRARY,
        pipeline_tag="reinforcement-learning",
        tags=["reinforcement-learning", "memory", "impala", data["facts"]["core"], env],
        eval_results=results or None,
    )
    return described.to_yaml().strip()


def _scores(summary: Json) -> list[tuple[str, float, str]]:
    """Metric, value, and name with its interval."""
    found = []
    for metric, field in (("mean_reward", "return"), ("accuracy", "correct_choices")):
        score = summary.get(field)
        if not isinstance(score, dict) or not is_finite(score.get("mean")):
            continue
        in_words = field.replace("_", " ")
        if is_finite(score.get("low")) and is_finite(score.get("high")):
            if is_finite(summary.get("episodes")):
                in_words += f" over {summary['episodes']} episodes"
            in_words += f", 95 % [{score['low']:.4g}, {score['high']:.4g}]"
        found.append((metric, round(score["mean"], 4), in_words))
    return found


def _introduction(data: Mapping[str, Any]) -> str:
    facts = data["facts"]
    lines = [f"An agent with the core `{facts['core']}`, trained with {LIBRARY} on `{facts['environment']}`."]
    return "\n".join([*lines, *data["rules"]])


def _use(name: str, permissions: str) -> str:
    show = f"compressive visualize hf://{name} --output episodes{permissions}"
    commands = (
        f"compressive evaluate hf://{name}{permissions}",
        f"{show}    # a film, and a page of what it attends to",
        f"compressive pull {name}    # a copy in runs/",
    )
    block = "\n".join(f"    {command}" for command in commands)
    return f"With {LIBRARY} and its extra `hub` installed:\n\n{block}"


def _table(head: tuple[str, str], rows: Mapping[str, str]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    for name, text in rows.items():
        escaped = str(text).replace("|", r"\|").replace("\n", " ")
        lines.append(f"| {name} | {escaped} |")
    return "\n".join(lines)


def main_chart(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """The chart of the run's returns, None if nothing was measured."""
    for chart in data["charts"]:
        if chart["title"] == "return":
            return chart
    return None
