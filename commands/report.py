"""`compressive report`: one page about a run, which may still be training."""

from typing import Any

from rich.console import Console

from actors.recording import Recording
from commands.evaluate import load
from commands.options import ReportOptions
from envs import EnvironmentFailed
from reports.compression import what_is_kept
from reports.pages import write_page
from reports.report import attention_by_bucket, media, page_data, read_rows
from reports.tables import say_how_to_resume
from sequences.kinds import CONFIGS
from storage.errors import UserError, user_errors
from storage.files import require_output
from storage.run import Run
from training.config import core_name
from training.console import playing, say, say_all
from training.evaluation import TrainedAgent, record
from training.plain import read_config


def report(options: ReportOptions) -> None:
    """Runs the command."""
    run = Run(options.run)
    console = Console()
    page = options.output or run.report
    with user_errors():
        data = page_data(run, read_rows(run))
        config = read_config(run, CONFIGS[data["kind"]])
    with user_errors("output"):
        require_output(page)
    data |= _memory(run, options, console) if data["kind"] == "launch" else {"buckets": {"why": ""}}
    data["media"] = media(run, page)
    with user_errors("output"):
        write_page(page, "report", data)
    say_all(console, data["facts"])
    say(console, f"page  {page}  (open it in a browser)")
    say_how_to_resume(console, run, config, data["facts"]["state"])


def _play(player: TrainedAgent, episodes: int, seed: int, options: ReportOptions, console: Console) -> list[Recording]:
    """Recorded episodes."""
    with playing(console, "playing", episodes) as progress:
        sample = not options.greedy
        return record(player.config, player.agent, episodes, seed, sample, in_detail=False, progress=progress)


def _memory(run: Run, options: ReportOptions, console: Console) -> dict[str, Any]:
    """Of some episodes, attention by bucket of memory, or why there is none; and what compression keeps."""
    if options.episodes == 0:
        return {"buckets": {"why": "No episodes were played for this report."}}
    try:
        player = load(Run(run.path.absolute()), options, console)  # "." would be in every sentence
        if not hasattr(player.agent.core, "attention_by_kind"):
            return {"buckets": {"why": f"This run's core ({core_name(player.config)}) has no attention."}}
        count = 8 if options.episodes is None else options.episodes
        played = _play(player, count, options.seed, options, console)
        if options.episodes is None and played[0].situations and played[0].compressed:
            played += _play(player, 64, options.seed + 1, options, console)
        return {"buckets": attention_by_bucket(played), "kept": what_is_kept(played)}
    except (UserError, EnvironmentFailed) as error:
        why = f"Nothing could be played: {error}".replace(str(run.path.absolute()), run.name)
        say(console, why, "yellow")
        return {"buckets": {"why": why}}
