"""`compressive launch` on a real Ray cluster of this machine, whose processes are killed."""

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from commands import main
from storage.metrics import last_metrics, read_metrics
from tests.commands.cli import ENVIRONMENT, TINY, marked, saved_steps, start
from tests.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]


class Launches:
    """`compressive launch` in processes of its own, on a cluster that each of them starts.

    mark: of the environment of all processes, see `tests.commands.cli.marked`.
    screen: what the latest one prints.
    """

    def __init__(self, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.screen = folder / "screen"
        self.home = folder / "home"
        self.home.mkdir()  # Ray keeps its token there

    def begin(self, *arguments: object) -> subprocess.Popen[str]:
        environment = {**ENVIRONMENT, "HOME": str(self.home), "MARK": self.mark}
        del environment["RAY_AUTH_MODE"]
        with self.screen.open("w") as output:
            return start("launch", *arguments, output=output, start_new_session=True, env=environment)

    def processes(self, title: str) -> set[int]:
        """Processes that Ray has given this title."""
        return marked(self.mark, f"ray::{title}")

    def wait_for_all_to_end(self) -> None:
        wait_until(lambda: not marked(self.mark))

    def kill(self) -> None:
        """Ends what a test that failed has left."""
        for pid in marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def launches(tmp_path: Path) -> Iterator[Launches]:
    launches = Launches(tmp_path)
    yield launches
    launches.kill()


def kill_an_actor(launches: Launches, folder: Path, process: subprocess.Popen[str]) -> None:
    """Another one takes its place."""
    wait_until(lambda: last_metrics(folder).get("actors/alive") == 2, process)
    actors = launches.processes("RemoteActor")
    assert len(actors) == 2
    os.kill(actors.pop(), signal.SIGKILL)
    wait_until(lambda: last_metrics(folder)["actors/restarts"] == 1, process)
    wait_until(lambda: last_metrics(folder)["actors/alive"] == 2, process)


def kill_a_learner(launches: Launches, folder: Path, process: subprocess.Popen[str]) -> None:
    """Two others take the places of both, and go on."""
    learners = launches.processes("RemoteLearner")
    assert len(learners) == 2
    os.kill(min(learners), signal.SIGKILL)
    # At most one update is done, or in progress, before its absence is noticed.
    wait_until(lambda: len(launches.processes("RemoteLearner") - learners) == 2, process)
    reached = last_metrics(folder)["step"]
    wait_until(lambda: saved_steps(folder)[-1] > reached + 300, process)


def test_a_run_survives_its_actors_its_learners_and_itself(
    launches: Launches, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An actor is killed, one of two learners, then the program; resumed, it is stopped; and is resumed without Ray."""
    folder = tmp_path / "run"
    allowed = ["--allow", "dm:tests.envs.dm_tasks:Unhurried"]
    task = ["--env", "dm:tests.envs.dm_tasks:Unhurried,cells=99,limit=999", *TINY]

    # Processes are killed, the program last.
    process = launches.begin("--run", folder, "--learners", 2, "--actors.num-actors", 2, "--frames", 10**9, *task)
    kill_an_actor(launches, folder, process)
    kill_a_learner(launches, folder, process)
    process.kill()
    process.wait()
    first = launches.screen.read_text()
    killed = saved_steps(folder)[-1]
    assert "2 learners on Ray" in first
    assert "died and is replaced" in first
    assert first.count("all learners are restarted at version") == 1
    launches.wait_for_all_to_end()

    # It goes on from its last checkpoint, and is stopped.
    process = launches.begin("--resume", folder, "--learners", 1, *allowed)
    wait_until(lambda: last_metrics(folder)["step"] > killed + 300, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 128 + signal.SIGINT
    second = launches.screen.read_text()
    assert f"resumed from {folder}/checkpoints/{killed:012d}" in second
    assert f"resume with: compressive launch --resume {folder} {' '.join(allowed)}\n" in second
    launches.wait_for_all_to_end()

    # What was printed and learned.
    for chatter in ("INFO", "uthentication", "raylet", "Traceback"):
        assert chatter not in first + second
    rows = read_metrics(folder)
    steps = [row["step"] for row in rows]
    assert steps == sorted(set(steps)), "nothing is learned twice"
    assert rows[-1]["attention/compressed"] > 0

    # Without Ray.
    stopped = saved_steps(folder)[-1]
    main(["launch", "--local", "--resume", str(folder), f"--frames={stopped + 100}", *allowed])
    assert f"resumed from {folder}/checkpoints/{stopped:012d}" in capfd.readouterr().out
    assert saved_steps(folder)[-1] >= stopped + 100


@pytest.mark.parametrize("learners", [1, 2])
def test_a_signal_to_the_whole_group_ends_with_a_checkpoint(learners: int, launches: Launches, tmp_path: Path) -> None:
    """`timeout` sends SIGTERM to all processes of its group. Ray must live until the checkpoint is written."""
    folder = tmp_path / "run"
    words = ["--env=diagnostic:recall,delay=3", "--learners", learners, "--frames", 10**9, *TINY]
    process = launches.begin("--run", folder, "--stages", *words, "--checkpoint-seconds=1000")
    wait_until(lambda: last_metrics(folder).get("step", 0) > 300, process)
    reached = last_metrics(folder)["step"]

    # None of Ray's processes is in the program's group, where it would be a race which of them ends first.
    of_ray = marked(launches.mark) - {process.pid}
    assert len(of_ray) > 3
    assert process.pid not in {os.getpgid(pid) for pid in of_ray}
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM, launches.screen.read_text()
    assert saved_steps(folder)[-1] >= reached
    launches.wait_for_all_to_end()
