"""Copies of one `gymnasium.Env` as a batch, in this process or divided over several.

Gymnasium's `AsyncVectorEnv` starts a process for every environment; an actor steps dozens. Here each process steps its
share as a `SyncVectorEnv`, so a step costs one message per process. Actors are processes already: this is for
environments so slow that one actor's need more than one core.
"""

import itertools
import multiprocessing
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envs.guard import Interrupted

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
JOIN_SECONDS = 5.0
"""Time for a process to close its environments before it is killed."""


def batch(make: MakeEnv, num_envs: int, processes: int = 1) -> VectorEnv:
    """`num_envs` environments, which reset on the next step.

    Args:
        make: makes one environment; picklable if there are several processes.
        num_envs: how many.
        processes: how many processes share them, at most `num_envs`; 1 is this process.
    """
    if not isinstance(processes, int) or processes < 1:
        raise ValueError(f"processes: expected an integer of at least 1, got {processes!r}")
    processes = min(processes, num_envs)
    if processes > 1:
        return ProcessVectorEnv(make, num_envs, processes)
    envs = SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    envs.metadata = {"episode_metrics": (), "action_repeat": 1, **envs.metadata}
    return envs


class ProcessVectorEnv(VectorEnv):
    """A batch divided over processes; it does what the batch in one process does.

    The infos hold only the counters that `metadata["episode_metrics"]` names. An error in a process is raised here, as
    itself, with a note of where it was raised. The processes end with the one that made them, also if that is killed;
    signals to the terminal's group, such as Ctrl-C, do not reach them. They are killed where a call takes too long
    (see `envs.guard`).

    Raises:
        RuntimeError: from any call, when a process has died or an environment exited.
    """

    def __init__(self, make: MakeEnv, num_envs: int, processes: int) -> None:
        # Not forked: a fork of a process with threads may hang, and would keep the other processes' pipes open.
        context = multiprocessing.get_context("spawn")
        self.num_envs = num_envs
        self._shares = [len(share) for share in np.array_split(np.arange(num_envs), processes)]
        self._splits = np.cumsum(self._shares)[:-1]
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        for share in self._shares:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, make, share), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)
        described = [self._answer(index) for index in range(processes)]
        self.single_observation_space, self.single_action_space, self.metadata = described[0]
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray, dict[str, Any]]:
        """Begins an episode everywhere. Environment i has seed + i, or the ith seed of a sequence."""
        if options:
            raise ValueError(f"options: expected none, got {options}")
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds: Sequence[int | None] = [None if seed is None else int(seed) + i for i in range(self.num_envs)]
        else:
            seeds = seed
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed: expected {self.num_envs} seeds, got {len(seeds)}")
        rest = iter(seeds)
        observations, infos = self._call("reset", [list(itertools.islice(rest, share)) for share in self._shares])
        return np.concatenate(observations), self._infos(infos)

    def step(
        self, actions: NDArray[np.integer]
    ) -> tuple[NDArray, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step everywhere, in all processes at once."""
        if len(actions) != self.num_envs:
            raise ValueError(f"actions: expected {self.num_envs}, got {len(actions)}")
        *parts, infos = self._call("step", np.split(np.asarray(actions), self._splits))
        observation, reward, terminated, truncated = (np.concatenate(part) for part in parts)
        return observation, reward, terminated, truncated, self._infos(infos)

    def _call(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Makes a call in all processes; for each value that it returns, the parts of all processes."""
        if self.closed:
            raise RuntimeError(f"{name}() after close()")
        for pipe, argument in zip(self._pipes, arguments):
            with suppress(ConnectionError):  # the process has died; `_answer` raises
                pipe.send((name, argument))
        return list(zip(*(self._answer(index) for index in range(len(self._pipes)))))

    def _answer(self, index: int) -> Any:
        try:
            good, answer = self._pipes[index].recv()
        except (EOFError, ConnectionError):
            self.close()
            code = self.processes[index].exitcode
            raise RuntimeError(f"environment process {index} of {len(self.processes)} died, status {code}") from None
        except Interrupted as error:
            left = list(enumerate(self.processes))[index:]  # the others have answered
            silent = [f"{i} (pid {process.pid})" for i, process in left if not self._pipes[i].poll()]
            error.add_note(f"in environment process {', '.join(silent)} of {len(self.processes)}, which do not answer")
            for process in self.processes:
                process.kill()
            raise
        if not good:
            self.close()
            raise answer
        return answer

    def _infos(self, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        names = [prefix + name for name in self.metadata["episode_metrics"] for prefix in ("", "_")]
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    def close_extras(self, **_: Any) -> None:
        """Closes the environments and ends the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(JOIN_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(pipe: Connection, make: MakeEnv, num_envs: int) -> None:
    """Runs in a process: steps its share of the environments on request until the pipe is closed."""
    os.setsid()
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    envs = None
    try:
        envs = batch(make, num_envs)
        metrics = [prefix + name for name in envs.metadata["episode_metrics"] for prefix in ("", "_")]
        pipe.send((True, (envs.single_observation_space, envs.single_action_space, envs.metadata)))
        while True:
            try:
                name, argument = pipe.recv()
            except (EOFError, ConnectionError):
                return
            *values, infos = envs.reset(seed=argument) if name == "reset" else envs.step(argument)
            pipe.send((True, (*values, {metric: infos[metric] for metric in metrics})))
    except BaseException as error:  # also an exit
        error.add_note(f"in environment process {os.getpid()}:\n{traceback.format_exc()}")
        with suppress(ConnectionError):
            pipe.send((False, _portable(error)))
    finally:
        if envs is not None:
            envs.close()


def _end_with(parent: Any) -> None:
    """Ends this process after its parent, even if its environments hang."""
    parent.join()
    time.sleep(JOIN_SECONDS)
    os._exit(1)


def _portable(error: BaseException) -> Exception:
    """The error, or a RuntimeError with its text where it cannot be pickled or is no Exception, such as an exit."""
    with suppress(Exception):
        if isinstance(pickle.loads(pickle.dumps(error)), Exception):
            return error  # type: ignore[return-value]
    substitute = RuntimeError(f"{type(error).__name__}: {error}")
    substitute.__notes__ = error.__notes__
    return substitute
