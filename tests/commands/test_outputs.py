"""Files that commands write: only regular files are replaced, as a whole; JSON is strict; links are not followed."""

import json
import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from storage.files import write_json
from storage.metrics import MetricsWriter
from tests.commands.cli import Commands
from tests.storage.test_run import IRREGULAR


@pytest.mark.parametrize("kind", IRREGULAR)
def test_only_a_regular_file_is_replaced(kind: str, copied: Callable[..., Path], tmp_path: Path, cli: Commands) -> None:
    run, output = copied(), tmp_path / "output"
    output.mkdir()
    (output / "target").write_text("precious")
    for name, arguments in {
        "page.html": ["report", run, "--episodes=0", "--output", output / "page.html"],
        "video.mp4": ["evaluate", run, "--episodes=1", "--video", output / "video.mp4"],
        "episodes.mp4": ["visualize", run, "--episodes=1", "--output", output],
    }.items():
        IRREGULAR[kind](output / name)
        before = os.lstat(output / name)
        words = "a symbolic link" if (output / name).is_symlink() else f"a {kind}"
        option = "video: " if name == "video.mp4" else "output: "
        cli.refuse(*arguments, words=[option, name, f"expected a regular file, got {words}"])
        assert os.path.samestat(os.lstat(output / name), before)
    assert (output / "target").read_text() == "precious"
    assert {path.name for path in output.iterdir()} == {"page.html", "video.mp4", "episodes.mp4", "target"}
    cli.run("report", run, "--episodes=0", "--output", tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").stat().st_size > 1000


@pytest.mark.parametrize("name", ["config.json.tmp", "metrics.jsonl.tmp", "metrics.jsonl"])
def test_a_link_in_a_run_is_not_written_through(name: str, tmp_path: Path) -> None:
    """Another user may have placed one at a temporary name."""
    run, target = tmp_path / "run", tmp_path / "target"
    run.mkdir()
    target.write_text("precious")
    (run / name).symlink_to(target)
    write_json(run / "config.json", {})
    with pytest.raises(OSError, match="got a symbolic link") if name == "metrics.jsonl" else nullcontext():
        for step in (1, 0):
            with MetricsWriter(run, step) as writer:
                writer.write(1, {"a": 1.0})
    assert target.read_text() == "precious"


def test_a_link_in_place_of_a_runs_folder_is_not_followed(
    copied: Callable[..., Path], tmp_path: Path, cli: Commands
) -> None:
    """Its videos are neither written nor shown through one; but the run may be a link, and what the user names."""
    run = copied()
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("episodes.html", "old.mp4"):
        (precious / name).write_text("of the user")
    (run / "videos").rename(tmp_path / "videos")
    (run / "videos").symlink_to(precious)
    for command in (["visualize", run, "--episodes=1"], ["launch", "--local", "--resume", run, "--frames=9000"]):
        cli.refuse(*command, words=["videos", "expected a folder, got a symbolic link"])
    cli.run("report", run, "--episodes=0")
    assert "old.mp4" not in (run / "report.html").read_text()
    assert (precious / "episodes.html").read_text() == "of the user"

    (tmp_path / "link").symlink_to(run)
    (tmp_path / "output").symlink_to(tmp_path)
    cli.run("report", tmp_path / "link", "--episodes=0", "--output", tmp_path / "output" / "page.html")


def test_json_has_no_infinite_numbers(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    write_json(path, {"return": [math.nan, (-math.inf, 1.0)], "by": {"task": math.inf}})
    assert json.loads(path.read_text()) == {"return": [None, [None, 1.0]], "by": {"task": None}}
    os.umask(mask := os.umask(0))
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
