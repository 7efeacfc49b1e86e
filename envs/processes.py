"""Copies of one `gymnasium.Env` as a batch, in this process or shared out over several.

Gymnasium's `AsyncVectorEnv` starts a process for every environment; an actor steps dozens. Here each process steps its
share as a `SyncVectorEnv`, so a step costs one message a process. Actors are processes already: this is for
environments so slow that one actor's need more than one core.
"""

from __future__ import annotations

import multiprocessing
import os
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
"""Time that a process has to close its environments before it is killed."""


def batch(make: MakeEnv, num_envs: int, processes: int = 1) -> VectorEnv:
    """`num_envs` environments of `make`, which reset on the next step.

    Args:
        make: makes one environment; for several processes something that can be pickled.
        num_envs: how many.
        processes: how many processes share them; 1 is this one. Never more than there are environments.
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
    """A batch whose environments are shared out over processes; it does what the batch in one process does.

    The infos hold the counters that `metadata["episode_metrics"]` names, and nothing else. An error in a process is
    raised here, as itself, with a note of where it was raised. The processes end with the one that made them, however
    that ends; signals to the terminal's group, such as Ctrl-C, do not reach them. Where waiting for them takes too
    long (see `envs.guard`), they are killed.

    Raises:
        RuntimeError: from any call, when a process has died or an environment exited.
    """

    def __init__(self, make: MakeEnv, num_envs: int, processes: int) -> None:
        # Not forked: a fork of a process with threads may hang, and would keep our ends of the others' pipes open.
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
        """Begin an episode everywhere. Environment i has seed + i, or its own seed of a list."""
        if options:
            raise ValueError(f"options: expected none, got {options}")
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds: Sequence[int | None] = [None if seed is None else int(seed) + i for i in range(self.num_envs)]
        else:
            seeds = seed
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed: expected {self.num_envs} seeds, got {len(seeds)}")
        begins = [0, *self._splits.tolist()]
        observations, infos = self._call(
            "reset", [seeds[begin : begin + share] for begin, share in zip(begins, self._shares)]
        )
        return np.concatenate(observations), self._infos(infos)

    def step(
        self, actions: NDArray[np.integer]
    ) -> tuple[NDArray, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step everywhere, in all processes at a time."""
        if len(actions) != self.num_envs:
            raise ValueError(f"actions: expected {self.num_envs}, got {len(actions)}")
        *parts, infos = self._call("step", np.split(np.asarray(actions), self._splits))
        observation, reward, terminated, truncated = (np.concatenate(part) for part in parts)
        return observation, reward, terminated, truncated, self._infos(infos)

    def _call(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """What each process says to a call, transposed: for every value that is returned, the parts of all."""
        if self.closed:
            raise RuntimeError(f"{name}() after close()")
        for pipe, argument in zip(self._pipes, arguments):
            with suppress(ConnectionError):  # of one that has died; its answer says so
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
            left = range(index, len(self.processes))  # the others have answered
            silent = [f"{i} (pid {self.processes[i].pid})" for i in left if not self._pipes[i].poll()]
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
        """Let the processes end, and end those that do not."""
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(JOIN_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(pipe: Connection, make: MakeEnv, num_envs: int) -> None:
    """What a process does: steps its share as it is told, until nobody can tell it any more."""
    os.setsid()
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    envs = None
    try:
        envs = batch(make, num_envs)
        metrics = [prefix + name for name in envs.metadata["episode_metrics"] for prefix in ("", "_")]
        pipe.send((True, (envs.single_observation_space, envs.single_action_space, envs.metadata)))
        while (call := _receive(pipe)) is not None:
            name, argument = call
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
    """Ends this process after another, even if its environments hang."""
    parent.join()
    time.sleep(JOIN_SECONDS)
    os._exit(1)


def _receive(pipe: Connection) -> tuple[str, Any] | None:
    try:
        return pipe.recv()
    except (EOFError, ConnectionError):
        return None


def _portable(error: BaseException) -> Exception:
    """The error, or one that says the same where it cannot be sent, or is none, such as an exit."""
    from multiprocessing.reduction import ForkingPickler

    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
        if isinstance(error, Exception):
            return error
        raise TypeError("no Exception")
    except Exception:
        substitute = RuntimeError(f"{type(error).__name__}: {error}")
        substitute.__notes__ = error.__notes__
        return substitute
