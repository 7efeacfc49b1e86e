"""Launches of a run: what each of them notes, damaged notes, and the time of training without pauses."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from storage.provenance import note_launch, read_launches, training_time, was_local
from storage.run import Run


def test_a_launch_notes_the_command_and_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    assert read_launches(run) == []
    monkeypatch.setattr(sys, "argv", ["/a/b/compressive", "launch", "--checkpoint-url", "s3://me:secret@host/run"])
    note_launch(run, 7)
    with run.launches_file.open("a") as file:
        file.write(f'{{"time": 1{"0" * 400}}}\n')
        file.write('{"time": "x"}\n{"time": 1e999}\n[1]\n{"time": 3')
    note_launch(run, 9)

    # Damaged notes are left out, and the last of them, a torn line, does not damage the next note.
    first, second = read_launches(run)
    assert (first["step"], second["step"]) == (7, 9)
    assert first["command"].startswith("compressive launch --checkpoint-url")
    assert "secret" not in first["command"]
    assert first["packages"]["torch"] == torch.__version__
    assert "cores" in first["machine"]
    assert first["time"] <= second["time"]


def test_the_last_launch_is_that_of_the_last_line(tmp_path: Path) -> None:
    """Also if the clock was set back in between."""
    run = Run(tmp_path)
    launches = [{"time": 2000.0, "command": "launch"}, {"time": 1000.0, "command": "launch --resume run --local"}]
    run.launches_file.write_text("".join(f"{json.dumps(launch)}\n" for launch in launches))
    assert read_launches(run) == launches
    assert was_local(run)


def test_only_a_regular_file_has_launches(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.launches_file.symlink_to("/dev/null")
    assert read_launches(run) == []
    with pytest.raises(OSError, match="expected a regular file"):
        note_launch(run, 0)


def test_pauses_between_launches_do_not_count() -> None:
    """Nothing was measured in the second launch."""
    times = np.array([12.0, 15.0, np.nan, 104.0, 108.0, 203.0])
    launches = [{"time": 10.0}, {"time": 50.0}, {"time": 100.0}, {"time": 200.0}]
    np.testing.assert_equal(training_time(times, launches), [2, 5, np.nan, 9, 13, 16])
    assert training_time(np.empty(0), launches).shape == (0,)

    # If launches were not noted at first, or never, time is from the first row of metrics on.
    noted_since_third = launches[2:]
    np.testing.assert_equal(training_time(times, noted_since_third), [0, 3, np.nan, 7, 11, 14])
    np.testing.assert_equal(training_time(times[:2], []), [0, 3])


def test_a_clock_that_is_set_back_takes_no_time_of_training_away() -> None:
    times = np.array([1010.0, 1050.0, 1100.0, 510.0, 550.0, 600.0])
    launches = [{"time": 1000.0}, {"time": 500.0}]
    np.testing.assert_equal(training_time(times, launches), [10, 50, 100, 110, 150, 200])

    # In the middle of a launch: seconds stand still until the clock has caught up.
    np.testing.assert_equal(training_time(np.array([12.0, 15.0, 13.0, 16.0]), [{"time": 10.0}]), [2, 5, 5, 6])
