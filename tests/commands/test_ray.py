"""`compressive launch` on a real Ray cluster of this machine, whose processes are killed."""

import os
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from commands import main
from storage.metrics import last_metrics, read_metrics
from tests.commands.cli import ENVIRONMENT, PATIENCE, TINY, marked, saved_steps, start, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_a_run_survives_its_actors_its_learners_and_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An actor is killed, one of two learners, then the program; resumed, it is stopped; and is resumed without Ray."""
    folder, home, mark = tmp_path / "run", tmp_path / "home", uuid.uuid4().hex
    home.mkdir()  # Ray keeps its token there
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "RAY_AUTH_MODE"}
    screen = tmp_path / "screen"

    def begin(*arguments: object) -> subprocess.Popen[str]:
        marked_environment = {**environment, "HOME": str(home), "MARK": mark}
        with screen.open("w") as output:
            return start("launch", *arguments, output=output, start_new_session=True, env=marked_environment)

    allowed = ["--allow", "dm:tests.envs.dm_tasks:Unhurried"]
    task = ["--env", "dm:tests.envs.dm_tasks:Unhurried,cells=99,limit=999", *TINY]
    process = begin("--run", folder, "--learners", 2, "--actors.num-actors", 2, "--frames", 10**9, *task)
    wait_until(lambda: last_metrics(folder).get("actors/alive") == 2, process)
    actors = marked(mark, "ray::RemoteActor")
    assert len(actors) == 2
    os.kill(actors.pop(), signal.SIGKILL)
    wait_until(lambda: last_metrics(folder)["actors/restarts"] == 1, process)
    wait_until(lambda: last_metrics(folder)["actors/alive"] == 2, process)

    learners = marked(mark, "ray::RemoteLearner")
    assert len(learners) == 2
    os.kill(next(iter(learners)), signal.SIGKILL)
    # At most one update is done, or in progress, before its absence is noticed.
    wait_until(lambda: len(marked(mark, "ray::RemoteLearner") - learners) == 2, process)
    reached = last_metrics(folder)["step"]
    wait_until(lambda: saved_steps(folder)[-1] > reached + 300, process)
    process.kill()
    process.wait()
    printed, killed = [screen.read_text()], saved_steps(folder)[-1]
    assert "2 learners on Ray" in printed[0]
    assert "died and is replaced" in printed[0]
    assert printed[0].count("all learners are restarted at version") == 1
    wait_until(lambda: not marked(mark))

    process = begin("--resume", folder, "--learners", 1, *allowed)
    wait_until(lambda: last_metrics(folder)["step"] > killed + 300, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 128 + signal.SIGINT
    printed.append(screen.read_text())
    assert f"resumed from {folder}/checkpoints/{killed:012d}" in printed[1]
    assert f"resume with: compressive launch --resume {folder} {' '.join(allowed)}\n" in printed[1]
    for chatter in ("INFO", "uthentication", "raylet", "Traceback"):
        assert chatter not in "".join(printed)
    rows = read_metrics(folder)
    assert [row["step"] for row in rows] == sorted({row["step"] for row in rows}), "nothing is learned twice"
    assert rows[-1]["attention/compressed"] > 0
    wait_until(lambda: not marked(mark))

    stopped = saved_steps(folder)[-1]
    main(["launch", "--local", "--resume", str(folder), f"--frames={stopped + 100}", *allowed])
    assert f"resumed from {folder}/checkpoints/{stopped:012d}" in capfd.readouterr().out
    assert saved_steps(folder)[-1] >= stopped + 100
