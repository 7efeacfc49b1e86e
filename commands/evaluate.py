"""`compressive evaluate`: scores of trained agents, of an oracle or of random actions."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from actors import ActorsConfig, Episode
from commands.options import EvaluateOptions
from commands.shared_options import PlayOptions
from envs import limit_calls, prepare
from reports.tables import evaluation_rows, print_evaluations
from storage.errors import UserError, user_errors
from storage.files import format_csv, format_json, is_url, replacing, require_output
from storage.remote import opened
from storage.run import Run
from storage.stores import is_left
from training.config import core_name
from training.console import Busy, counting, playing, say, say_all, say_skipped
from training.evaluation import TrainedAgent, count_played, load_trained_agent, play, play_script, record, summarize


class Evaluation(NamedTuple):
    """Episodes of one player: its name, the summary, and all episodes."""

    player: str
    summary: dict[str, Any]
    episodes: list[Episode]


def evaluate(options: EvaluateOptions) -> None:
    """Runs the command."""
    # With JSON the standard output has nothing else; "[...]" in a path and ":x:" in an environment are no markup.
    console = Console(stderr=options.json, markup=False, emoji=False)
    for name, path in (("video", options.video), ("csv", options.csv)):
        if path:
            with user_errors(name):
                path.parent.mkdir(parents=True, exist_ok=True)
                require_output(path)
    if options.csv and options.csv == options.video:
        raise UserError(f"csv: expected another file than that of --video, got {options.csv}")

    if options.policy != "agent":
        evaluations = [_play_script(options, console)]
    else:
        names = complete(options.runs, console)
        with opened_runs(names, console) as runs:
            players = [load(run, options, console, options.env) for run in runs]  # all, before any plays
            evaluations = [_play(player, name, options, console) for player, name in zip(players, names)]

    # The scores first: what follows may fail.
    summaries = [evaluation.summary for evaluation in evaluations]
    _print(summaries, options, console)
    if options.csv:
        _write_csv(options.csv, evaluations)
    if options.policy == "agent" and options.video:
        _film(players[0], options, options.video, console)


def _write_csv(path: Path, evaluations: Sequence[Evaluation]) -> None:
    """Writes a row for each episode."""
    rows: list[dict[str, Any]] = []
    for evaluation in evaluations:
        for episode in evaluation.episodes:
            counters = {f"counter/{name}": value for name, value in episode.metrics.items()}
            about = {"player": evaluation.player, "environment": episode.task}
            rows.append({**about, "return": episode.score, "steps": episode.steps, **counters})
    with user_errors("csv"), replacing(path) as temporary:
        temporary.write_text(format_csv(rows))


def _play(player: TrainedAgent, name: str, options: EvaluateOptions, console: Console) -> Evaluation:
    """Episodes that an agent plays. `name`: of its run, as the user typed it."""
    env = player.env
    shown = player.run.name
    checkpoint = str(player.checkpoint.path)
    # The run of a URL is a copy in a temporary folder, which says nothing to the user.
    if is_url(name):
        shown = name
        checkpoint = checkpoint.replace(str(player.run), name)

    count = count_played(options.episodes, player.config.actors.envs_per_actor, env)
    sample = not options.greedy
    with counting(console, f"playing {shown}", count, "episodes") as progress:
        episodes = play(player.config, player.agent, options.episodes, options.seed, sample, env, progress)
    about = {"run": name, "checkpoint": checkpoint, "core": core_name(player.config)}
    how = {"greedy": options.greedy, "seed": options.seed}
    return Evaluation(name, about | summarize(episodes, env) | how, episodes)


def _film(player: TrainedAgent, options: EvaluateOptions, video: Path, console: Console) -> None:
    """Films two episodes."""
    # Only here, because machines that evaluate may have no PyAV.
    from reports.episode import show_film

    with user_errors("video"):
        with playing(console, "filming", 2) as progress:
            sample = not options.greedy
            recordings = record(player.config, player.agent, 2, options.seed, sample, player.env, progress=progress)
        show_film(recordings, video, console)


def complete(names: Sequence[str], console: Console) -> list[str]:
    """The names of runs and checkpoints without those that a killed process left, which RUN/checkpoints/* names, too.

    Raises a UserError if no other is there.
    """
    kept = []
    for name in names:
        if is_left(Path(name).name):
            say(console, f"skipped {name}: it is no complete checkpoint", "yellow")
        else:
            kept.append(name)
    if names and not kept:
        raise UserError(f"DIR: expected a run or a complete checkpoint, got {' '.join(names)}")
    return kept


@contextmanager
def opened_runs(names: Sequence[str], console: Console) -> Iterator[list[Run]]:
    """Runs by folder or URL; those of URLs are copied, and the copies are removed at the end."""
    with ExitStack() as stack:
        are_remote = any(map(is_url, names))
        downloading = Busy(console, "downloading") if are_remote else nullcontext()
        with user_errors(), downloading:
            runs = [stack.enter_context(opened(name)) for name in names]
        yield runs


def load(run: Run, options: PlayOptions, console: Console, env: str | None = None) -> TrainedAgent:
    """See `training.evaluation.load_trained_agent`; errors are UserErrors, and skipped checkpoints are named."""
    torch.set_num_threads(1)
    with user_errors():
        player = load_trained_agent(run, options.allow, env, options.limits)
    say_skipped(console, player.checkpoint.skipped)
    if env and player.env != env:
        say_all(console, {"environment": f"{player.env}, with the view of the training"})
    return player


def _play_script(options: EvaluateOptions, console: Console) -> Evaluation:
    """Episodes that a scripted policy plays."""
    env = options.env or ""
    limits = options.limits(ActorsConfig())
    limit_calls(limits.step_seconds)
    with user_errors():
        prepare(env)
        count = count_played(options.episodes, options.episodes, env)
        with counting(console, f"playing {options.policy}", count, "episodes") as progress:
            steps = limits.max_episode_steps
            episodes = play_script(options.policy, env, options.episodes, options.seed, steps, progress)
    summary = {"policy": options.policy, **summarize(episodes, env), "seed": options.seed}
    return Evaluation(options.policy, summary, episodes)


def _print(evaluated: list[dict[str, Any]], options: EvaluateOptions, console: Console) -> None:
    """Prints summaries as JSON, one as a table of its own, or several as rows of one table."""
    if options.json:
        print(format_json(evaluated, indent=2))
        return
    if len(evaluated) > 1:
        print_evaluations(console, evaluated)
        return
    (summary,) = evaluated
    rows: dict[str, str] = {name: summary[name] for name in ("policy", "checkpoint", "environment") if name in summary}
    if summary.get("greedy"):
        rows["actions"] = "the most probable ones"
    rows |= evaluation_rows(summary)
    for name, path in (("video", options.video), ("csv", options.csv)):
        if path:
            rows[name] = str(path)
    if "tasks" in summary:
        print_evaluations(console, summary["tasks"])
    say_all(console, rows)
