"""`compressive report`: one page about a run, which may still be training."""

from typing import Any

from rich.console import Console

from commands.evaluate import load
from commands.options import ReportOptions
from commands.parsing import user_errors
from envs import EnvironmentFailed
from learner.files import require_output
from reports.pages import write_page
from reports.report import attention_by_bucket, media, page_data, read_rows
from reports.tables import say_how_to_resume
from training import UserError
from training.config import core_name
from training.console import say, say_all
from training.evaluation import record
from training.run import Run


def report(options: ReportOptions) -> None:
    """Runs the command."""
    run, console = Run(options.run), Console()
    page = options.output or run.report
    with user_errors():
        data = page_data(run, read_rows(run))
    with user_errors("output"):
        require_output(page)
    data["buckets"] = _buckets(run, options, console) if data["kind"] == "launch" else {"why": ""}
    data["media"] = media(run, page)
    with user_errors("output"):
        write_page(page, "report", data)
    say_all(console, data["facts"])
    say(console, f"page  {page}  (open it in a browser)")
    say_how_to_resume(console, run, data["kind"], data["facts"]["state"])


def _buckets(run: Run, options: ReportOptions, console: Console) -> dict[str, Any]:
    """Attention by bucket of memory over some episodes, or why there is none."""
    if not options.episodes:
        return {"why": "No episodes were played for this report."}
    try:
        player = load(Run(run.path.absolute()), options, console)  # "." would be in every sentence
        if not hasattr(player.agent.core, "attention_by_kind"):
            return {"why": f"This run's core ({core_name(player.config)}) has no attention."}
        with console.status("playing"):
            sampled = options.episodes, options.seed, not options.greedy
            return attention_by_bucket(record(player.config, player.agent, *sampled))
    except (UserError, EnvironmentFailed) as error:
        why = f"Nothing could be played: {error}".replace(str(run.path.absolute()), run.name)
        say(console, why, "yellow")
        return {"why": why}
