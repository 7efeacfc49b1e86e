"""`compressive launch` on a real Ray cluster of this machine, whose processes are killed."""

import os
import signal
import time
import uuid
from pathlib import Path

import pytest

from commands import main
from learner.metrics import last_metrics, read_metrics
from tests.commands.cli import ENVIRONMENT, PATIENCE, TINY, frames, saved_steps, start, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def marked(mark: str, title: str = "") -> list[int]:
    """Processes that were started, however indirectly, with a mark in their environment, and are called so."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={mark}" in (entry / "environ").read_text() and title in (entry / "cmdline").read_text():
                found.append(int(entry.name))
        except OSError:
            continue  # not ours, or gone meanwhile
    return found


def test_a_run_survives_its_actors_and_itself(tmp_path: Path) -> None:
    """An actor is killed, then the program; it is resumed and finishes."""
    folder, home = tmp_path / "run", tmp_path / "home"
    home.mkdir()  # Ray keeps its token there
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "RAY_AUTH_MODE"}
    options = [*TINY, "--checkpoint-seconds=1", "--log-every=5"]
    marks = [uuid.uuid4().hex for _ in range(2)]

    def begin(number: int, *arguments: object) -> tuple:
        screen = (tmp_path / f"screen{number}").open("w+")
        process = start(
            "launch",
            *arguments,
            output=screen,
            start_new_session=True,
            env={**environment, "HOME": str(home), "MARK": marks[number]},
        )
        return process, screen

    def said(screen) -> str:
        screen.seek(0)
        return screen.read()

    process, screen = begin(0, "--run", folder, "--frames", 10**9, *options)
    wait_until(lambda: last_metrics(folder).get("actors/alive") == 2, process)
    victims = marked(marks[0], "ray::RemoteActor")
    assert len(victims) == 2
    os.kill(victims[0], signal.SIGKILL)
    wait_until(lambda: last_metrics(folder)["actors/restarts"] == 1, process)
    wait_until(lambda: last_metrics(folder)["actors/alive"] == 2, process)
    reached = last_metrics(folder)["step"]
    wait_until(lambda: saved_steps(folder)[-1] > reached + 300, process)
    assert "died and is replaced" in said(screen)
    process.kill()
    process.wait()
    killed = saved_steps(folder)[-1]

    process, screen = begin(1, "--resume", folder, "--frames", 4 * (killed + 500))
    assert process.wait(PATIENCE) == 0, said(screen)
    assert f"resumed from {folder}/checkpoints/{killed:012d}" in said(screen)
    assert "finished" in said(screen)
    for chatter in ("INFO", "uthentication", "raylet", "Traceback"):
        assert chatter not in said(screen)
    assert saved_steps(folder)[-1] >= killed + 500
    steps = [row["step"] for row in read_metrics(folder)]
    assert steps == sorted(set(steps))
    assert any(step > killed for step in steps)

    # Ray's own watchmen notice within half a minute that a program was killed.
    deadline = time.monotonic() + PATIENCE
    while left := [pid for mark in marks for pid in marked(mark)]:
        assert time.monotonic() < deadline, f"processes that nobody ended: {left}"
        time.sleep(0.5)


def test_two_learners_go_on_when_one_dies_and_one_goes_on_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of two one is killed; Ctrl-C stops them; one learner resumes without Ray."""
    folder, mark = tmp_path / "run", uuid.uuid4().hex
    with (tmp_path / "screen").open("w+") as screen:
        process = start(
            *("launch", "--run", folder, "--learners", 2, "--frames", 10**9, *TINY),
            output=screen,
            env={**ENVIRONMENT, "MARK": mark},
        )
        wait_until(lambda: last_metrics(folder).get("step", 0) > 300, process)
        victims = marked(mark, "ray::RemoteLearner")
        assert len(victims) == 2
        os.kill(victims[1], signal.SIGKILL)
        # At most one update is done, or in progress, before its absence is noticed.
        wait_until(lambda: len(set(marked(mark, "ray::RemoteLearner")) - set(victims)) == 2, process)
        reached = last_metrics(folder)["step"]
        wait_until(lambda: saved_steps(folder)[-1] > reached + 300, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 128 + signal.SIGINT
        screen.seek(0)
        said = screen.read()
    assert "2 learners on Ray" in said
    assert said.count("all learners are started again at version") == 1
    assert f"go on with: compressive launch --resume {folder}\n" in said
    for chatter in ("INFO", "uthentication", "raylet", "Traceback"):
        assert chatter not in said
    rows = read_metrics(folder)
    assert [row["step"] for row in rows] == sorted({row["step"] for row in rows}), "nothing is learned twice"
    assert rows[-1]["attention/compressed"] > 0

    stopped = saved_steps(folder)[-1]
    main(["launch", "--local", "--learners=1", "--resume", str(folder), f"--frames={4 * stopped + frames(5)}"])
    assert f"resumed from {folder}/checkpoints/{stopped:012d}" in capfd.readouterr().out
    assert saved_steps(folder)[-1] >= stopped + frames(5) // 4
