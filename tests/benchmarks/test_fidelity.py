"""The comparison with traces of DeepMind Lab, on traces that the re-creation itself wrote."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fidelity import COLUMNS, Options, main, replay

ACTIONS = ["look left, forward"] * 12 + ["look right, forward"] * 12 + ["forward"] * 40 + ["strafe right"] * 20


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Options]:
    def write(change: Callable[..., Any] = lambda rows: rows, columns: Any = COLUMNS) -> Options:
        rows = [row | {"script": "one", "frame": frame} for frame, row in enumerate(replay(ACTIONS))]
        rows = change([row | {"action": action} for row, action in zip(rows, ["", *ACTIONS])])
        with (tmp_path / "traces.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        return Options(tmp_path / "traces.csv")

    return write


def test_its_own_trace_has_no_errors(write: Callable[..., Any]) -> None:
    found = main(write())["motion"]["one"]
    assert (found["frames"], found["position"], found["velocity"], found["yaw"]) == (len(ACTIONS), 0, 0, 0)
    assert found["rewards"]["lab"] == found["rewards"]["here"]
    assert list(found["rewards"]["here"].values()) == [1.0]


def test_the_largest_differences_are_found(write: Callable[..., Any]) -> None:
    def change(rows: Any) -> Any:
        rows[20] |= {"x": rows[20]["x"] + 3, "z": rows[20]["z"] - 4, "v_left": rows[20]["v_left"] + 2}
        rows[30] |= {"yaw": rows[30]["yaw"] + 359.5, "reward": 1.0}
        return rows

    found = main(write(change))["motion"]["one"]
    assert (found["position"], found["velocity"], found["yaw"]) == pytest.approx((5, 2, 0.5), abs=1e-3)
    rewards = found["rewards"]
    assert rewards["lab"].items() - rewards["here"].items() == {(30, 1.0)}


def test_unknown_poses_and_signs_of_rewards_do_not_count(write: Callable[..., Any]) -> None:
    def change(rows: Any) -> Any:
        unknown = dict.fromkeys(COLUMNS[3:-1], "nan")
        rows[20] |= unknown
        rewarded = next(row for row in rows if float(row["reward"]) != 0)
        rewarded["reward"] = -float(rewarded["reward"])
        return rows

    found = main(write(change))["motion"]["one"]
    assert (found["position"], found["velocity"], found["yaw"]) == (0, 0, 0)
    assert found["rewards"]["lab"] == found["rewards"]["here"]


@pytest.mark.parametrize(
    ("change", "columns", "message"),
    [
        (lambda rows: rows, COLUMNS[:-1], "expected rows with the columns script, frame, "),
        (lambda rows: [], COLUMNS, "expected rows with the columns"),
        (lambda rows: [*rows[:2], rows[2] | {"x": "far"}], COLUMNS, "line 4: expected numbers"),
        (lambda rows: [*rows[:2], rows[2] | {"action": "hop"}], COLUMNS, "line 4: expected an action .*got 'hop'"),
        (lambda rows: rows[:2] + rows[3:], COLUMNS, "line 4: expected frame 2, got 3$"),
    ],
)
def test_another_format_is_refused(write: Callable[..., Any], change: Any, columns: Any, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        main(write(change, columns))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no\.csv: cannot be read"):
        main(Options(tmp_path / "no.csv"))


def test_a_folder_for_pictures_needs_the_pictures(write: Callable[..., Any], tmp_path: Path) -> None:
    options = write()
    options.out = tmp_path / "out"
    with pytest.raises(SystemExit, match=r"^--out .*out: expected --frames as well"):
        main(options)
