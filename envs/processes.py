"""Copies of one `gymnasium.Env` as a batch, in this process or in processes of its own.

Gymnasium's `AsyncVectorEnv` starts a process for every environment; an actor steps dozens. Here each process steps its
share as a `SerialVectorEnv`, so a step costs one message per process. Actors are processes already: this is for
environments so slow that one actor's need more than one core (`fitting_processes` measures it), and for engines that
may end their process.

Of the infos only the counters that `metadata["episode_metrics"]` names are read, since no others are used:
environments may return there what they like.
"""

import math
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array
from numpy.typing import NDArray

from envs.guard import ForeignError, Interrupted, OutputError, ProcessDied, about_options, describe_error, not_counted
from envs.observations import Instructed
from envs.outputs import number

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
START_SECONDS = 300.0
"""Longest time for a process to start: it imports packages, which takes long on a busy machine or a slow disk."""
JOIN_SECONDS = 5.0
"""Time for a process to close its environments before it is killed."""
SLOW_STEP = 0.0005
"""Seconds: messages cost more than a second core gains where a step of one environment is faster. With 16 to 32
environments on two cores both take as long at 0.1 to 0.5 ms with vectors, and with images of 84 x 84 x 4 at 0.5."""
MEASURED_SECONDS = 0.1
MEASURED_STEPS = 100
"""A measurement ends after this time or this many steps."""


def batch(make: MakeEnv, num_envs: int, processes: int = 0, quiet: bool = False) -> VectorEnv:
    """`num_envs` environments, which reset on the next step.

    Args:
        make: makes one environment; picklable if there are processes.
        processes: how many processes of their own share them, at most `num_envs`; 0 for this process.
        quiet: show what the processes write to standard error only if one dies: its last line.
    """
    if type(processes) is not int or processes < 0:
        raise ValueError(f"processes: expected a whole number, got {processes!r}")
    if processes:
        return ProcessVectorEnv(make, num_envs, min(processes, num_envs), quiet)
    return SerialVectorEnv(make, num_envs)


def fitting_batch(make: MakeEnv, num_envs: int, actors: int = 1) -> VectorEnv:
    """`num_envs` environments in as many processes as `fitting_processes` says; episodes do not depend on the number.

    They are made in this process if other processes cannot make them, since these do not know what the program's main
    module has registered.

    Args:
        make: makes one environment.
        actors: how many actors share the cores of this machine.
    """
    processes = fitting_processes(make, num_envs, actors)
    if processes:
        with suppress(Exception):
            return ProcessVectorEnv(make, num_envs, processes, import_main=False)
    return SerialVectorEnv(make, num_envs)


def fitting_processes(make: MakeEnv, num_envs: int, actors: int = 1) -> int:
    """How many processes make a batch faster: an actor's share of the cores if steps are slow, else 0.

    A single environment is never measured, and is always in this process.
    """
    processes = min(cores() // actors, num_envs)
    if processes < 2 or step_seconds(make) < SLOW_STEP:
        return 0
    return processes


most_cores: float = math.inf
"""See `limit_cores`."""


def limit_cores(number: int) -> None:
    """Lets the environments of this program use at most so many cores; others belong to programs beside it."""
    global most_cores
    most_cores = number


def cores() -> int:
    """How many cores the environments of this process may use."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(min(there, most_cores))


def step_seconds(make: MakeEnv) -> float:
    """Mean duration of a step of an environment, with the resets after ends of episodes; 0 if it raises or hangs.

    It is measured on an environment that is thrown away, with random actions, and leaves Python's and numpy's global
    random generators as they were.
    """
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002 (environments may draw from it)
    env = None
    try:
        env = make()
        env.action_space.seed(0)
        env.reset(seed=0)
        _step_or_reset(env)  # the first step may compile something
        begin = time.perf_counter()
        seconds = 0.0
        steps = 0
        while seconds < MEASURED_SECONDS and steps < MEASURED_STEPS:
            _step_or_reset(env)
            steps += 1
            seconds = time.perf_counter() - begin
        return seconds / steps
    except (Exception, SystemExit, Interrupted):  # the environments that are used will do it again
        return 0.0
    finally:
        if env is not None:
            with suppress(Exception, SystemExit, Interrupted):
                env.close()
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def _step_or_reset(env: gymnasium.Env[Any, Any]) -> None:
    """A random step and, if it ends the episode, a reset."""
    _, _, terminated, truncated, _ = env.step(env.action_space.sample())
    if terminated or truncated:
        env.reset()


class SerialVectorEnv(VectorEnv):
    """A batch stepped one after the other in this process. It resets on the next step (gymnasium's NEXT_STEP).

    Unlike gymnasium's `SyncVectorEnv` it ignores unused infos, and copies an observation before it steps
    the next environment, which may share memory with it.

    Raises:
        ValueError: if the spaces of the environments differ.
        OutputError: if a counter is not a number, or is missing where an episode ends that no time limit has cut.
    """

    def __init__(self, make: MakeEnv, num_envs: int) -> None:
        self.num_envs = num_envs
        self.envs = [make() for _ in range(num_envs)]
        first = self.envs[0]
        self.metadata = {
            "episode_metrics": (),
            "action_repeat": 1,
            **first.metadata,
            "autoreset_mode": AutoresetMode.NEXT_STEP,
        }
        self.render_mode = first.render_mode
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        for env in self.envs[1:]:
            require_equal_spaces(self, env.observation_space, env.action_space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._over = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode everywhere. Environment i has seed + i, or the ith seed of a sequence."""
        seeds = seeds_of_rows(seed, self.num_envs)
        observations = self._empty()
        infos = []
        for row, env in enumerate(self.envs):
            observation, info = env.reset(seed=seeds[row], options=options)
            _write(observations, row, observation)
            infos.append(info)
        self._over = np.zeros(self.num_envs, bool)
        return observations, self._counters(infos, needed=self._over)

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step everywhere."""
        observations = self._empty()
        infos = []
        rewards = np.zeros(self.num_envs)
        terminated = np.zeros(self.num_envs, bool)
        truncated = np.zeros(self.num_envs, bool)
        for row, env in enumerate(self.envs):
            if self._over[row]:
                observation, info = env.reset()
            else:
                observation, rewards[row], terminated[row], truncated[row], info = env.step(actions[row])
            _write(observations, row, observation)
            infos.append(info)
        self._over = terminated | truncated
        # An environment does not know of a time limit around it: counters may be missing where that cuts an episode.
        return observations, rewards, terminated, truncated, self._counters(infos, needed=terminated)

    def end_episodes(self, rows: NDArray[np.bool_]) -> None:
        """Ends the episodes of `rows` [N] as a time limit would: the next step begins new ones."""
        self._over |= rows

    def _empty(self) -> Any:
        return create_empty_array(self.single_observation_space, self.num_envs, fn=np.empty)

    def _counters(self, infos: list[Any], needed: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """The counters that the environments name, [N] each, and as "_name" where they were given.

        Raises an OutputError if one is missing where it is `needed` [N].
        """
        found: dict[str, NDArray[Any]] = {}
        for name in self.metadata["episode_metrics"]:
            values = np.zeros(self.num_envs)
            given = np.zeros(self.num_envs, bool)
            for row, info in enumerate(infos):
                # In the middle of an episode None says that it is not known yet.
                given[row] = isinstance(info, Mapping) and info.get(name) is not None
                if given[row]:
                    values[row] = number(info[name], f"info[{name!r}]")
            if (needed & ~given).any():
                raise OutputError(f"info: expected {name!r} (episode_metrics) at the end of an episode, got none")
            found |= {name: values, f"_{name}": given}
        return found

    def render(self) -> tuple[Any, ...]:
        """What each environment draws of itself."""
        return tuple(env.render() for env in self.envs)

    def instructions(self) -> tuple[str | None, ...]:
        """The text of each environment's latest observation; None where it has no text."""
        return tuple(_instruction(env) for env in self.envs)

    def close_extras(self, **_: Any) -> None:
        """Closes the environments."""
        for env in self.envs:
            env.close()


def _instruction(env: gymnasium.Env[Any, Any]) -> str | None:
    if isinstance(env, Instructed):
        return env.instruction
    return None


def require_equal_spaces(envs: VectorEnv, observation_space: Any, action_space: Any) -> None:
    """Raises an OutputError if spaces are not those of one environment of a batch."""
    for name, own, other in (
        ("observation space", envs.single_observation_space, observation_space),
        ("action space", envs.single_action_space, action_space),
    ):
        if own != other:
            raise OutputError(f"{name}: expected the same whenever it is made, got {own}, then {other}")


def _write(batch: Any, row: int, observation: Any) -> None:
    """Copies an observation into a row of a batch."""
    if isinstance(batch, dict):
        for name, part in batch.items():
            _write(part, row, observation[name])
    elif isinstance(batch, tuple):
        for part, value in zip(batch, observation, strict=True):
            _write(part, row, value)
    else:
        batch[row] = observation


def seeds_of_rows(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """The seeds of N environments: seed + i, or those of a sequence; None for none."""
    if isinstance(seed, int | np.integer):
        return [int(seed) + row for row in range(num_envs)]
    seeds: list[int | None] = [None] * num_envs if seed is None else list(seed)
    if len(seeds) != num_envs:
        raise ValueError(f"reset: expected a value for each of {num_envs} environments, got {len(seeds)}")
    return seeds


class ProcessVectorEnv(VectorEnv):
    """A batch divided over processes; it does what the batch in one process does.

    The processes end with the one that made them, also if that is killed; signals to the terminal's group, such as
    Ctrl-C, do not reach them. They are killed where a call takes too long (see `envs.guard`).

    Args:
        make, num_envs, processes, quiet: as of `batch`.
        import_main: whether they import the program's main module, as `multiprocessing` does by default. A script
            without `if __name__ == "__main__":` would then begin again in each of them.

    Raises:
        OutputError: as `SerialVectorEnv`.
        ForeignError: from any call, with the text and the place of an error or exit in a process.
        ProcessDied: from any call.
        ValueError, ImportError: if the environments cannot be made with the user's options.
    """

    def __init__(
        self, make: MakeEnv, num_envs: int, processes: int, quiet: bool = False, import_main: bool = True
    ) -> None:
        self.num_envs = num_envs
        self._errors = tempfile.NamedTemporaryFile() if quiet else None  # noqa: SIM115
        # How many environments each process has, and where its rows of a batch begin, the first one's left out.
        shares = [len(share) for share in np.array_split(np.arange(num_envs), processes)]
        self._splits = np.cumsum(shares)[:-1]
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        with not_counted():
            with nullcontext() if import_main else _without_main():
                for share in shares:
                    self._start(make, share)
            for index in range(processes):
                self._wait_for_start(index)
        shown = [self._answer(index) for index in range(processes)]
        self.single_observation_space, self.single_action_space, self.metadata = shown[0]
        try:
            for observation_space, action_space, _ in shown[1:]:
                require_equal_spaces(self, observation_space, action_space)
        except OutputError:
            self.close()
            raise
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode everywhere. Environment i has seed + i, or the ith seed of a sequence."""
        seeds = np.array(seeds_of_rows(seed, self.num_envs), object)
        observation, infos = self._call("reset", seeds, options)
        return observation, infos

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step everywhere, in all processes at once."""
        observation, reward, terminated, truncated, infos = self._call("step", np.asarray(actions))
        return observation, reward, terminated, truncated, infos

    def end_episodes(self, rows: NDArray[np.bool_]) -> None:
        """See `SerialVectorEnv.end_episodes`."""
        self._call("end_episodes", rows)

    def _call(self, name: str, rows: NDArray[Any], options: dict[str, Any] | None = None) -> list[Any]:
        """Makes a call in all processes with an argument [N]; returns its values for all environments.

        options: of `reset`.
        """
        if self.closed:
            raise RuntimeError(f"{name}() after close()")
        if len(rows) != self.num_envs:
            raise ValueError(f"{name}: expected a value for each of {self.num_envs} environments, got {len(rows)}")
        for pipe, share in zip(self._pipes, np.split(rows, self._splits)):
            with suppress(ConnectionError):  # the process has died; `_answer` raises
                pipe.send((name, share, options))
        answers = [self._answer(index) for index in range(len(self._pipes))]
        # Each answer has the same values: observations, rewards and so on. Each value is joined over the processes.
        return [_joined(parts) for parts in zip(*answers, strict=True)]

    def _start(self, make: MakeEnv, num_envs: int) -> None:
        """Begins a process that makes so many environments."""
        # Not forked: a fork of a process with threads may hang, and would keep the other processes' pipes open.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        errors = self._errors.name if self._errors else None
        process = context.Process(target=_serve, args=(theirs, make, num_envs, errors), daemon=True)
        process.start()
        theirs.close()
        self._pipes.append(ours)
        self.processes.append(process)

    def _wait_for_start(self, index: int) -> None:
        """Returns when a process has started. What it does from then on is a call into its environments."""
        if not self._pipes[index].poll(START_SECONDS):
            self.close()
            raise ProcessDied(f"{self._name(index)} has not started within {START_SECONDS:g} s")
        self._answer(index)

    def _name(self, index: int) -> str:
        return f"environment process {index} of {len(self.processes)}"

    def _answer(self, index: int) -> Any:
        """What a process returned; raises what it raised, and an error if it died or hangs."""
        process = self.processes[index]
        name = self._name(index)
        try:
            answer = self._pipes[index].recv()
        except (EOFError, ConnectionError):
            self.close()
            raise ProcessDied(f"{name} died, status {process.exitcode}{self._last_words()}") from None
        except Interrupted:
            for each in self.processes:
                each.kill()
            raise Interrupted(f", in {name} (pid {process.pid})") from None
        if isinstance(answer, Exception):
            self.close()
            raise answer
        return answer

    def _last_words(self) -> str:
        """The last line that the processes wrote to standard error, behind a colon; empty if it is shown anyway."""
        if self._errors is None:
            return ""
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").split("\n")]
        said = [line for line in lines if line]
        return f": {said[-1]}" if said else ""

    def close_extras(self, **_: Any) -> None:
        """Closes the environments and ends the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(JOIN_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes that start in this block do not import the program's main module."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _joined(parts: Sequence[Any]) -> Any:
    """The processes' arrays, or their dicts and tuples of arrays, one after the other."""
    if isinstance(parts[0], dict):
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple([_joined(column) for column in zip(*parts, strict=True)])
    return np.concatenate(parts)


def _serve(pipe: Connection, make: MakeEnv, num_envs: int, errors: str | None) -> None:
    """Runs in a process: steps its share of the environments on request until the pipe is closed."""
    os.setsid()
    multiprocessing.current_process().daemon = False  # environments may start processes of their own
    if errors:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    envs = None
    try:
        pipe.send("started")
        envs = batch(make, num_envs)
        pipe.send((envs.single_observation_space, envs.single_action_space, envs.metadata))
        while True:
            try:
                name, rows, options = pipe.recv()
            except (EOFError, ConnectionError):
                return
            pipe.send(_answer_to(envs, name, rows, options))
    except OutputError as error:
        with suppress(ConnectionError):
            pipe.send(error)
    except BaseException as error:  # also an exit
        mistake = about_options(error, making=envs is None)
        with suppress(ConnectionError):
            pipe.send(mistake or ForeignError(f"{describe_error(error)}\n  in environment process {os.getpid()}"))
    finally:
        if envs is not None:
            envs.close()


def _answer_to(envs: Any, name: str, rows: NDArray[Any], options: dict[str, Any] | None) -> tuple[Any, ...]:
    """What a method of the environments of a process returns, given its argument [N] and the options of `reset`."""
    if name == "reset":
        return envs.reset(seed=rows, options=options)
    if name == "step":
        return envs.step(rows)
    envs.end_episodes(rows)
    return ()


def _end_with(parent: Any) -> None:
    """Ends this process after its parent, even if its environments hang."""
    parent.join()
    time.sleep(JOIN_SECONDS)
    os._exit(1)
