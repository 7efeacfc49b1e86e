"""What of a memory decides actions, and where attention points instead: by kind of memory and by age of the steps.

    python -m benchmarks.causes pretrained/level [RUN ...] [--episodes 32] [--plot docs/causes.svg]

Counted are the steps at which the odds of the action would fall to a tenth or less without up to eight steps of the
memory (`actors.causes`). "causes" are the falls without each kind of memory, as shares of their sum; "attention" is
that of the first layer to earlier steps. Ages are those of the newest of the eight steps that decided, and of the eight
earlier steps that together have most attention.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from actors.causes import STRETCH
from actors.recorder import record_episodes
from actors.recording import Recording
from benchmarks.common import require_least, require_some, run
from envs import tasks
from reports.episode import DECISIVE, agreement
from storage.run import Run
from training.evaluation import TrainedAgent, load_trained_agent, make_evaluator, value_column

AGES = (1, 8, 16, 32, 64, 128)
"""Where intervals of ages begin."""


@dataclass
class Options:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    episodes: int = 32
    seed: int = 0
    plot: Path | None = None


def measure(options: Options) -> dict[str, Any]:
    require_some("runs", options.runs)
    require_least("episodes", options.episodes, 1)
    found: dict[str, Any] = {"episodes": options.episodes}
    for path in options.runs:
        found[str(path)] = _of_run(_recordings(load_trained_agent(Run(path)), options))
    if options.plot:
        _draw(found, [str(path) for path in options.runs], options.plot)
    return found


def _recordings(player: TrainedAgent, options: Options) -> Iterator[Recording]:
    """Episodes one after the other: all together would not fit in memory."""
    config = player.config
    column = value_column(config, tasks(player.env)[0])
    max_steps = config.actors.max_episode_steps
    actor = make_evaluator(config, player.agent, 1, options.seed, True, player.env, film=True)
    try:
        for _ in range(options.episodes):
            yield from record_episodes(actor, 1, max_steps, in_detail=False, with_effects=True, value_column=column)
    finally:
        actor.close()


def _of_run(recordings: Iterable[Recording]) -> dict[str, Any]:
    causes = []
    looks = []
    ages_of_causes = []
    ages_of_looks = []
    kinds: Sequence[str] = ()
    steps = 0
    agree = 0
    for recording in recordings:
        assert recording.effects
        kinds = recording.slot_kinds
        steps += len(recording.rewards)
        counted = agreement([recording])
        if counted:
            agree += counted["agree"]
        layer = recording.attention[0]
        weights = layer.weights.mean(axis=1)  # [T, S]
        kind_of_slot = np.repeat(np.arange(3), layer.sizes)
        by_step = layer.by_step()
        for step, effect in enumerate(recording.effects):
            if effect.stretch_effect < np.log(DECISIVE):
                continue
            # Which steps decided.
            causes.append(np.maximum(effect.kinds, 0.0))
            ages_of_causes.append(int(step - effect.stretch[1]))

            # Which steps have most attention: sums over the last steps up to each one, as many as decide.
            is_earlier = layer.steps[step, :, 1] < step
            earlier = np.where(is_earlier, weights[step], 0.0)
            looks.append(np.bincount(kind_of_slot, earlier, minlength=3))
            totals = np.convolve(by_step[step, :step], np.ones(STRETCH))[:step]
            ages_of_looks.append(int(step - totals.argmax()))
    return {
        "steps": steps,
        "decided": len(causes),
        "attention agrees": agree,
        "causes": _shares(causes, kinds),
        "attention": _shares(looks, kinds),
        "ages of causes": _by_age(ages_of_causes),
        "ages of most attention": _by_age(ages_of_looks),
    }


def _shares(parts: list[np.ndarray], kinds: Sequence[str]) -> dict[str, float]:
    """The mean share of each kind."""
    if not parts:
        return {}
    table = np.stack(parts)
    sums = table.sum(axis=1, keepdims=True)
    shares = (table / np.maximum(sums, 1e-9)).mean(axis=0)
    return {kind: round(float(share), 3) for kind, share in zip(kinds, shares)}


def _by_age(ages: Sequence[int]) -> dict[str, float]:
    """Shares of ages in the intervals that begin at `AGES`."""
    counts, _ = np.histogram(ages, [*AGES, np.inf])
    shares = counts / max(1, len(ages))
    return {str(age): round(float(share), 3) for age, share in zip(AGES, shares)}


def _draw(found: dict[str, Any], names: Sequence[str], path: Path) -> None:
    """A panel for each run: the age of what decided, and of what attention looks at most."""
    from matplotlib.figure import Figure

    figure = Figure((4.2 * len(names), 3.2), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    places = np.arange(len(AGES))
    intervals = [f"{begin}–{end - 1}" for begin, end in itertools.pairwise(AGES)]
    intervals.append(f"{AGES[-1]}–")
    for axes, name in zip(panels, names):
        for offset, kind in ((-0.2, "causes"), (0.2, "most attention")):
            shares = list(found[name][f"ages of {kind}"].values())
            axes.bar(places + offset, [100 * share for share in shares], 0.38, label=kind)
        axes.set(xticks=places, xticklabels=intervals, xlabel="steps ago", title=Path(name).name)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("% of the steps that memory decided")
    panels[0].legend(frameon=False)
    metadata = None
    if path.suffix == ".svg":
        metadata = {"Date": None}  # equal numbers give equal files
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata=metadata)


if __name__ == "__main__":
    run(measure, Options)
