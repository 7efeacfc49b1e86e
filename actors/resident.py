"""Acting that never leaves the device: environments, network and unrolls are tensors on one device.

On a GPU a whole unroll is one CUDA graph: the host only asks for its replay, and reads which episodes ended.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actors.actor import Episode, Unroll, sample_actions
from actors.pool import Pool, PoolStatus
from agent import Agent, Trajectory
from agent.core import leaves, map_state
from agent.core.fields import Precision
from agent.precision import autocast, resolve_precision
from envs.device import DeviceEnv

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records the operations of a function, without calling it otherwise; returns a function that repeats them."""


def cuda_graph(function: Callable[[], None]) -> Callable[[], None]:
    """Captures a function as a CUDA graph. It must have been called before, so that all its kernels are compiled."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


class ResidentActor(Pool):
    """A pool of one actor, in all environments of a device; it writes every unroll into the same buffers.

    It acts with the parameters of the learner's network, which must keep their addresses. Its random numbers are those
    of an `Actor` with the same seed, if the device is the CPU.

    Args:
        agent: the learner's network, on the same device.
        length: steps of an unroll, a multiple of the core's segment size.
        seed, task, precision: as for an `Actor` whose id is 0.
        capture: how an unroll is recorded; None to run every unroll operation by operation.

    Attributes:
        trajectory: views of the buffers, [N, ...]; the next unroll changes them.
        version: of the weights; see `Unroll`.
    """

    def __init__(
        self,
        envs: DeviceEnv,
        agent: Agent,
        length: int,
        seed: int,
        task: str = "",
        precision: Precision = "float32",
        capture: Capture | None = None,
    ) -> None:
        self.envs, self.length, self.task, self.version = envs, length, task, 0
        self.device, self.capture = envs.device, capture
        self.precision = resolve_precision(precision, self.device)
        # A module of its own, because learning and acting differ in mode (dropout) and compilation.
        self.agent = copy.deepcopy(agent).eval()
        self.agent.load_state_dict(agent.state_dict(keep_vars=True), assign=True)
        rows, device = envs.num_envs, self.device
        env_seed, action_seed = np.random.SeedSequence([seed, 0]).generate_state(2, np.uint64)
        self.generator = torch.Generator(device).manual_seed(int(action_seed >> 1))
        envs.reset(int(env_seed % 2**31))

        def buffer(steps: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(rows, steps, *shape, dtype=dtype, device=device)

        self.noise = torch.zeros(length, rows, envs.num_actions, device=device)
        self.core_state = map_state(torch.clone, agent.initial_state(rows))  # whose tensors may be one
        self.trajectory = Trajectory(
            observation=buffer(length + 1, *envs.observation.shape[1:], dtype=envs.observation.dtype),
            last_action=buffer(length + 1, dtype=torch.int64).fill_(-1),
            reward=buffer(length + 1),
            discount=buffer(length + 1).fill_(1),
            reset=buffer(length + 1, dtype=torch.bool).fill_(True),
            action=buffer(length, dtype=torch.int64),
            policy_logits=buffer(length, envs.num_actions),
            core_state=map_state(torch.clone, self.core_state),
            actor_id=torch.zeros(rows, dtype=torch.int64, device=device),
            version=torch.zeros(rows, dtype=torch.int64, device=device),
        )
        #: What the last step of an unroll and the first of the next have in common.
        self.moment: tuple[Any, ...] = self.trajectory[:5]
        self._write(length, envs.observation)
        self.score = torch.zeros(rows, dtype=torch.float64, device=device)
        self.steps = torch.zeros(rows, dtype=torch.int64, device=device)
        self.over = buffer(length, dtype=torch.bool)
        self.finished = buffer(length, 2 + len(envs.counters), dtype=torch.float64)  # score, steps, counters
        self.acted = False
        self.replay: Callable[[], None] | None = None

    def publish(self, weights: dict[str, Tensor], version: int) -> None:
        """Takes the version only: the weights are the learner's."""
        self.version = version

    def get(self, check: Callable[[], object] = lambda: None) -> Unroll:
        """The next unroll, whose trajectory is borrowed: it is valid until the next call."""
        self.unroll()
        return Unroll(self.trajectory, self.episodes(), self.version, self.envs.num_envs)

    def status(self) -> PoolStatus:
        return PoolStatus(alive=1, restarts=0, waiting=0)

    def unroll(self) -> None:
        """Acts for `length` steps from the end of the last unroll."""
        self.noise.uniform_(generator=self.generator)
        self.trajectory.version.fill_(self.version)
        if self.capture and self.acted and not self.replay:
            self.replay = self.capture(self._act)
        (self.replay or self._act)()
        self.acted = True

    @torch.no_grad()
    def _act(self) -> None:
        """An unroll as a fixed series of operations."""
        envs, agent, to = self.envs, self.agent, self.trajectory
        for part in self.moment:
            part[:, 0] = part[:, self.length]
        _copy(self.core_state, to.core_state)
        with autocast(self.device, self.precision):
            state = agent.with_cache(self.core_state)
            for t in range(self.length):
                now = slice(t, t + 1)
                observation, last_action, reward, _, reset = (part[:, now] for part in self.moment)
                output = agent(observation, last_action, reward, reset, state)
                state, logits = output.state, output.policy_logits[:, 0]
                action = sample_actions(logits, self.noise[t])
                to.action[:, t], to.policy_logits[:, t] = action, logits
                envs.step(action)
                self._note(t, action)
            _copy(agent.core.without_cache(state), self.core_state)

    def _note(self, t: int, action: Tensor) -> None:
        """Writes the output of the environments after step t, and the episodes that ended in it."""
        envs = self.envs
        last_action = action.masked_fill(envs.begin, -1)
        self._write(t + 1, envs.observation, last_action, envs.reward, ~envs.terminated, envs.begin)
        over = self.over[:, t]
        torch.logical_or(envs.terminated, envs.truncated, out=over)
        self.score += envs.reward
        self.steps += ~envs.begin
        for column, value in enumerate((self.score, self.steps, *envs.counters.values())):
            self.finished[:, t, column] = value
        self.score.masked_fill_(over, 0.0)
        self.steps.masked_fill_(over, 0)

    def _write(self, t: int, *values: Tensor) -> None:
        for part, value in zip(self.moment, values):
            part[:, t] = value

    def episodes(self) -> list[Episode]:
        """Those that ended in the last unroll; waits for it."""
        ended = self.over.t().nonzero()
        rows = self.finished[ended[:, 1], ended[:, 0]].tolist()
        return [
            Episode(score, int(steps), row, 0, self.version, dict(zip(self.envs.counters, counters)), self.task)
            for row, (score, steps, *counters) in zip(ended[:, 1].tolist(), rows)
        ]

    def state_dict(self) -> dict[str, Tensor]:
        """Copies, on the CPU, of all that `load_state_dict` needs to resume exactly, except weights."""
        arrays = {f"moment/{name}": part[:, self.length] for name, part in zip(Trajectory._fields, self.moment)}
        arrays |= {f"core/{index}": leaf for index, leaf in enumerate(leaves(self.core_state))}
        arrays |= {"score": self.score, "steps": self.steps, "generator": self.generator.get_state()}
        arrays |= {f"envs/{name}": tensor for name, tensor in self.envs.get_state().items()}
        return {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in arrays.items()}

    def load_state_dict(self, arrays: dict[str, Tensor]) -> None:
        """Resumes from a `state_dict`."""
        for name, part in zip(Trajectory._fields, self.moment):
            part[:, self.length] = arrays[f"moment/{name}"].to(self.device)
        for index, leaf in enumerate(leaves(self.core_state)):
            leaf.copy_(arrays[f"core/{index}"])
        self.score.copy_(arrays["score"])
        self.steps.copy_(arrays["steps"])
        self.generator.set_state(arrays["generator"])
        own = {name.removeprefix("envs/"): leaf for name, leaf in arrays.items() if name.startswith("envs/")}
        self.envs.set_state(own)


def _copy(source: object, target: object) -> None:
    for old, new in zip(leaves(source), leaves(target), strict=True):
        new.copy_(old)
