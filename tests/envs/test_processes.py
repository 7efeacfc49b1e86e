"""A batch divided over processes does what it does in one, reports errors in them, and leaves no process behind."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import envs
from envs import EnvironmentFailed, guard
from envs.guard import ForeignError, ProcessDied
from envs.processes import ProcessVectorEnv, SerialVectorEnv, batch, fitting_batch, fitting_processes, step_seconds
from tests.waiting import wait_until


class Tally(gymnasium.Env):
    """Observations are random numbers, `steps` counts; action 2 calls `fault`."""

    metadata = {"episode_metrics": ("steps",)}  # noqa: RUF012
    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, fault: Callable[..., Any] = lambda: None) -> None:
        self.fault = fault

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.random(2, np.float32), {"steps": 0}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if action == 2:
            self.fault()
        self.steps += 1
        over = bool(self.np_random.random() < 0.2)
        infos = {"steps": self.steps, "only": self.steps}
        return self.np_random.random(2, np.float32), float(action), over, False, infos


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie: it has ended, and its parent has not yet waited for it."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return True
    _, _, after_the_name = status.rpartition(")")
    state, *_ = after_the_name.split()
    return state == "Z"


def gone(pids: list[int]) -> None:
    """Waits until processes have ended."""
    wait_until(lambda: all(has_ended(pid) for pid in pids), patience=60)


def pids_of(env: Any) -> list[int]:
    return [process.pid for process in env.processes]


def test_it_is_the_batch_in_one_process() -> None:
    serial = batch(Tally, 5)
    env = batch(Tally, 5, processes=2)
    assert isinstance(env, ProcessVectorEnv)
    for name in ("num_envs", "metadata", "observation_space", "single_observation_space", "action_space"):
        assert getattr(env, name) == getattr(serial, name)
    actions = np.random.default_rng(0).integers(3, size=(30, 5))
    for seed in (3, [4, 3, 2, 1, 0]):
        assert np.array_equal(env.reset(seed=seed)[0], serial.reset(seed=seed)[0])
        for action in actions:
            *found, infos = env.step(action)
            *expected, serial_infos = serial.step(action)
            for left, right in zip(found, expected, strict=True):
                assert left.dtype == right.dtype
                assert np.array_equal(left, right)
            assert set(infos) == {"steps", "_steps"}
            assert np.array_equal(infos["steps"], serial_infos["steps"])
            assert infos["_steps"].all()
    env.close()


def test_more_processes_than_environments_are_as_many_as_these() -> None:
    env = batch(Tally, 3, processes=8)
    assert isinstance(env, ProcessVectorEnv)
    assert len(env.processes) == 3
    assert env.reset(seed=0)[0].shape[0] == 3
    env.close()


class Simulated(Tally):
    """Runs a program in another process at every reset, as simulators do."""

    def reset(self, **options: Any) -> Any:
        program = multiprocessing.get_context("fork").Process(target=int)
        program.start()
        program.join()
        assert program.exitcode == 0
        return super().reset(**options)


def test_environments_may_start_processes_of_their_own() -> None:
    env = batch(Simulated, 2, processes=2)
    observation, _ = env.reset(seed=0)
    env.close()
    assert observation.shape == (2, 2)


def test_a_value_for_each_environment_is_expected() -> None:
    env = batch(Tally, 5, processes=2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="each of 5 environments, got 4"):
        env.step(np.zeros(4, np.int64))
    with pytest.raises(ValueError, match="each of 5 environments, got 4"):
        env.reset(seed=[1, 2, 3, 4])
    env.close()


def test_processes_are_a_group_of_their_own_and_end_with_close() -> None:
    env = batch(Tally, 5, processes=2)
    env.reset(seed=0)
    pids = pids_of(env)
    assert os.getpgid(pids[0]) != os.getpgid(0), "Ctrl-C in the terminal is for the program alone"
    env.close()
    gone(pids)
    with pytest.raises(RuntimeError, match="after close"):
        env.step(np.zeros(5, np.int64))


@pytest.mark.parametrize(
    ("fault", "said"),
    [(partial({}.__getitem__, "a door"), "KeyError: 'a door'"), (partial(sys.exit, 0), "SystemExit: 0")],
)
def test_an_error_in_a_process_is_raised_with_its_place_and_ends_all(fault: Callable[..., Any], said: str) -> None:
    env = batch(partial(Tally, fault), 4, processes=2)
    env.reset(seed=0)
    env.step(np.array([0, 1, 0, 1]))
    with pytest.raises(ForeignError, match=f"^{said}\n  .*in step\n") as caught:
        env.step(np.array([0, 0, 0, 2]))
    assert "in environment process" in str(caught.value)
    gone(pids_of(env))


@pytest.mark.parametrize(("field", "raised"), [("gravity=3", ValueError), ("fault=exit,when=init", EnvironmentFailed)])
def test_an_error_in_making_them_is_as_in_one_process(field: str, raised: Any) -> None:
    spec = f"gym:tests.envs.faulty:Faulty-v0,{field}"
    for processes in range(3):
        with pytest.raises(raised, match=f"^environment {spec},.*(argument 'gravity'|SystemExit: 0)"):
            envs.make_vector(f"{spec},processes={processes}", 2)


def test_a_process_that_hangs_is_named_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    env = batch(partial(Tally, partial(time.sleep, 10_000)), 4, processes=2)
    env.reset(seed=0)
    monkeypatch.setattr(guard, "_limit", 0.4)
    with pytest.raises(envs.EnvironmentLost) as caught, guard.calling("gym:Tally", "in step", [0, 0, 0, 2]):
        env.step(np.array([0, 0, 0, 2]))
    assert str(caught.value).startswith("environment gym:Tally hangs in step with actions [0 0 0 2]: expected")
    assert f"in environment process 1 of 2 (pid {pids_of(env)[1]})" in str(caught.value)
    gone(pids_of(env))


class SlowToArrive:
    """Makes environments in a process that takes half a second to start: it imports what it is sent."""

    def __init__(self, seconds_to_make: float = 0) -> None:
        self.seconds_to_make = seconds_to_make

    def __setstate__(self, state: dict[str, Any]) -> None:
        time.sleep(0.5)
        self.__dict__ = state

    def __call__(self) -> Tally:
        time.sleep(self.seconds_to_make)
        return Tally()


def test_the_start_of_a_process_is_not_a_call_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_limit", 0.4)
    with guard.calling("gym:Tally", "while it was made"):
        env = batch(SlowToArrive(), 1, processes=1)
    env.close()

    # The time to make them counts.
    hangs = "^environment gym:Tally hangs while it was made: .*in environment process 0 of 1"
    with pytest.raises(envs.EnvironmentLost, match=hangs), guard.calling("gym:Tally", "while it was made"):
        batch(SlowToArrive(10_000), 1, processes=1)


def test_a_process_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.processes.START_SECONDS", 0.01)
    with pytest.raises(ProcessDied, match=r"^environment process 0 of 1 has not started within 0.01 s$"):
        batch(SlowToArrive(), 1, processes=1)


def test_a_process_that_dies_is_noticed() -> None:
    env = batch(Tally, 2, processes=2)
    env.reset(seed=0)
    os.kill(env.processes[1].pid, signal.SIGKILL)
    with pytest.raises(ProcessDied, match="environment process 1 of 2 died, status -9"):
        env.step(np.zeros(2, np.int64))
    gone(pids_of(env))


@pytest.mark.parametrize("fault", ["int", pytest.param("partial(time.sleep, 1000)", marks=pytest.mark.slow)])
def test_they_do_not_outlive_a_program_that_is_killed(fault: str) -> None:
    program = f"""
import time
from functools import partial

from envs.processes import batch
from tests.envs.test_processes import Tally, pids_of

env = batch(partial(Tally, {fault}), 2, processes=2)
env.reset(seed=0)
print(*pids_of(env), flush=True)
env.step([2, 2])
time.sleep(600)
"""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=variables) as process:
        pids = [int(word) for word in process.stdout.readline().split()]
        time.sleep(0.5)  # until they hang
        process.kill()
    assert len(pids) == 2
    gone(pids)


@pytest.mark.parametrize("processes", [-1, 1.5, "two", True])
def test_impossible_numbers_of_processes(processes: float | str) -> None:
    with pytest.raises(ValueError, match="processes: expected a whole number"):
        batch(Tally, 2, processes)


class Slow(Tally):
    """Every step takes two milliseconds."""

    def step(self, action: int) -> Any:
        time.sleep(0.002)
        return super().step(action)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may run on two cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 5}, raising=False)


@pytest.mark.parametrize(
    ("make", "num_envs", "actors", "processes"),
    [(Slow, 2, 1, 2), (Slow, 8, 1, 2), (Slow, 8, 2, 0), (Slow, 1, 1, 0), (Tally, 8, 1, 0)],
)
def test_slow_environments_share_an_actors_cores(
    make: Any, num_envs: int, actors: int, processes: int, two_cores: None
) -> None:
    assert fitting_processes(make, num_envs, actors) == processes


def test_one_environment_is_not_measured(two_cores: None) -> None:
    def make() -> Any:
        raise AssertionError("it was made")

    assert fitting_processes(make, 1) == 0


def test_the_episodes_of_slow_environments_are_those_of_one_process(two_cores: None) -> None:
    spec = "dm:tests.envs.dm_tasks:Unhurried"
    serial = envs.make_vector(f"{spec},processes=0", 4)
    env = envs.make_vector(spec, 4)
    assert isinstance(serial, SerialVectorEnv)
    assert isinstance(env, ProcessVectorEnv)
    assert len(env.processes) == 2
    assert isinstance(envs.make_vector(spec, 4, actors=2), SerialVectorEnv), "two actors have a core each"

    assert np.array_equal(env.reset(seed=3)[0], serial.reset(seed=3)[0])
    for action in np.random.default_rng(0).integers(3, size=(15, 4)):
        *found, _ = env.step(action)
        *expected, _ = serial.step(action)
        for left, right in zip(found, expected, strict=True):
            assert np.array_equal(left, right)
    env.close()


def test_a_step_is_measured_with_resets_and_without_a_trace() -> None:
    class Draws(Slow):
        def reset(self, **options: Any) -> Any:
            random.random()
            np.random.random()  # noqa: NPY002
            time.sleep(0.02)
            return super().reset(**options)

    def state_of_numpy() -> list[int]:
        return np.random.get_state()[1].tolist()  # noqa: NPY002

    python_before = random.getstate()
    numpy_before = state_of_numpy()
    assert 0.003 < step_seconds(Draws) < 0.2  # a step, and a fifth of a reset
    assert random.getstate() == python_before
    assert state_of_numpy() == numpy_before


@pytest.mark.parametrize("fault", [partial({}.__getitem__, "a door"), partial(sys.exit, 0)])
def test_what_fails_while_it_is_measured_fails_where_it_is_used(fault: Callable[..., Any], two_cores: None) -> None:
    make = partial(Tally, fault)
    assert step_seconds(make) == 0
    env = fitting_batch(make, 2)
    env.reset(seed=0)
    with pytest.raises((KeyError, SystemExit)):
        env.step(np.array([0, 2]))


SCRIPT = """
import gymnasium, numpy, os, time
import envs
from tests.envs.test_processes import Slow
print("began", flush=True)
os.sched_getaffinity = lambda pid: {0, 1}
gymnasium.register("Here-v0", Slow)
"""


@pytest.mark.parametrize(("name", "processes"), [("Here-v0", 0), ("tests.envs.test_processes:Slow-v0", 2)])
def test_a_script_does_not_begin_again_in_each_process(name: str, processes: int, tmp_path: Path) -> None:
    """It has no guard. What it alone registers is unknown elsewhere, and so remains in its process."""
    script = tmp_path / "script.py"
    script.write_text(
        f"{SCRIPT}\nbatch = envs.make_vector('gym:{name}', 4)\nprint(len(getattr(batch, 'processes', ())))"
    )
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, env=variables, check=True)
    assert found.stdout.split() == ["began", str(processes)]
    assert "Traceback" not in found.stderr


gymnasium.register("Slow-v0", Slow)


@pytest.mark.parametrize("processes", [0, 2])
def test_options_of_a_reset_reach_every_environment(processes: int) -> None:
    """In this process and in others."""
    env = batch(Obeys, 2, processes)
    observation, _ = env.reset(seed=0, options={"begin": 3.0})
    assert observation.tolist() == [[3.0], [3.0]]
    env.close()


class Obeys(gymnasium.Env[Any, Any]):
    """It begins where the options of `reset` say."""

    observation_space = spaces.Box(-9, 9, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.array([(options or {}).get("begin", 0)], np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(1, np.float32), 0.0, True, False, {}


@pytest.mark.parametrize("processes", [0, 2])
def test_a_reset_of_all_is_no_end_of_an_episode(processes: int) -> None:
    """The next step is a step, also where an episode was over."""
    env = batch(Tally, 5, processes)
    env.reset(seed=0)
    over = np.zeros(5, bool)
    while not over.any():
        _, _, over, _, _ = env.step(np.ones(5, np.int64))
    env.reset(seed=1)
    _, rewards, _, _, infos = env.step(np.ones(5, np.int64))
    assert rewards.tolist() == [1.0] * 5
    assert infos["steps"].tolist() == [1] * 5
    env.close()
