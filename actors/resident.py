"""Acting that never leaves the device: environments, network and unrolls are tensors on one device.

On a GPU a whole unroll is one CUDA graph: the host only asks for its replay, and reads which episodes ended.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from actors.actor import Episode, Unroll, select, stream_seeds
from actors.pool import Pool, PoolStatus
from agent import Agent, EnvOutput, Trajectory
from agent.core import leaves, map_state
from agent.core.fields import Precision
from agent.cuda_graphs import Capture, record
from agent.precision import autocast, resolve_precision
from agent.trajectory import map_sensed
from envs.device import DeviceEnv


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
        self.envs = envs
        self.length = length
        self.task = task
        self.capture = capture
        self.version = 0
        self.device = envs.device
        self.precision = resolve_precision(precision, self.device)

        # A module of its own, because learning and acting differ in mode (dropout) and compilation. Its parameters
        # are those of the learner's network.
        self.agent = copy.deepcopy(agent).eval()
        parameters = agent.state_dict(keep_vars=True)
        self.agent.load_state_dict(parameters, assign=True)

        # The streams of an `Actor` with this seed.
        env_seed, action_seed = stream_seeds([seed, 0])
        self.generator = torch.Generator(self.device).manual_seed(action_seed >> 1)
        envs.reset(env_seed % 2**31)
        self._make_buffers()

        # The first unroll begins where the environments do.
        self._write_observations(length)
        self.acted = False
        self.replay: Callable[[], None] | None = None

    def _make_buffers(self) -> None:
        """Allocates everything that an unroll writes."""
        envs = self.envs
        rows = envs.num_envs
        steps = self.length

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=self.device)

        # The random numbers of all steps are drawn before them.
        self.noise = torch.zeros(steps, rows, envs.num_actions, device=self.device)
        # Clones, because the tensors of an initial state may share memory.
        initial_state = self.agent.initial_state(rows)
        self.core_state = map_state(torch.clone, initial_state)

        # Before the first unroll all outputs are those of an episode start.
        outputs = steps + 1

        def observations(seen: Tensor) -> Tensor:
            return zeros(outputs, *seen.shape[1:], dtype=seen.dtype)

        self.trajectory = Trajectory(
            observation=map_sensed(observations, envs.observation),
            last_action=zeros(outputs, dtype=torch.int64).fill_(-1),
            reward=zeros(outputs),
            discount=zeros(outputs).fill_(1),
            reset=zeros(outputs, dtype=torch.bool).fill_(True),
            action=zeros(steps, dtype=torch.int64),
            policy_parameters=zeros(steps, envs.num_actions),
            core_state=map_state(torch.clone, self.core_state),
            actor_id=zeros(dtype=torch.int64),
            version=zeros(dtype=torch.int64),
        )
        self.env_output = self.trajectory.env_output

        # Sums over the episodes in progress.
        self.score = zeros(dtype=torch.float64)
        self.steps = zeros(dtype=torch.int64)
        # Whether an episode ended at a step; score, steps and counters after each step.
        num_statistics = 2 + len(envs.counters)
        self.over = zeros(steps, dtype=torch.bool)
        self.finished = zeros(steps, num_statistics, dtype=torch.float64)

    def publish(self, weights: dict[str, Tensor], version: int) -> None:
        """Takes the version only: the weights are the learner's."""
        self.version = version

    def get(self, check: Callable[[], object] = lambda: None) -> Unroll:
        """The next unroll, whose trajectory is borrowed: it is valid until the next call."""
        self.unroll()
        ended = self.episodes()
        return Unroll(self.trajectory, ended, self.version, self.envs.num_envs)

    def status(self) -> PoolStatus:
        return PoolStatus(alive=1, restarts=0, waiting=0)

    def unroll(self) -> None:
        """Acts for `length` steps from the end of the last unroll."""
        self.noise.uniform_(generator=self.generator)
        self.trajectory.version.fill_(self.version)
        # The first unroll is not captured: it compiles the kernels.
        compiled = self.acted
        if self.capture is not None and compiled and self.replay is None:
            self.replay = record(self.capture, self._act, "acting")
            if self.replay is None:
                self.capture = None  # no other attempt
        if self.replay is not None:
            self.replay()
        else:
            self._act()
        self.acted = True

    @torch.no_grad()
    def _act(self) -> None:
        """An unroll as a fixed series of operations."""
        # It begins where the last one ended.
        for part in leaves(self.env_output):
            part[:, 0] = part[:, self.length]
        _copy(self.core_state, self.trajectory.core_state)

        with autocast(self.device, self.precision):
            state = self.agent.with_cache(self.core_state)
            for t in range(self.length):
                # The agent acts.
                now = self._output_before(t)
                output = self.agent(now.observation, now.last_action, now.reward, now.reset, state)
                state = output.state
                parameters = output.policy_parameters[:, 0]
                noise = self.noise[t]
                action = self.agent.distribution.sample(parameters, noise)
                self.trajectory.action[:, t] = action
                self.trajectory.policy_parameters[:, t] = parameters

                # The environments answer.
                self.envs.step(action)
                self._write_output(t, action)
                self._count_episodes(t)

            # The next unroll begins with this state.
            last_state = self.agent.without_cache(state)
            _copy(last_state, self.core_state)

    def _output_before(self, t: int) -> EnvOutput:
        """What the environments returned before step t, [N, 1, ...]."""
        return map_state(lambda part: part[:, t : t + 1], self.env_output)

    def _write_output(self, t: int, action: Tensor) -> None:
        """Writes what the environments returned for the action of step t."""
        envs = self.envs
        output = self.env_output
        after = t + 1
        self._write_observations(after)
        output.last_action[:, after] = action.masked_fill(envs.begin, -1)
        output.reward[:, after] = envs.reward
        output.discount[:, after] = ~envs.terminated
        output.reset[:, after] = envs.begin

    def _write_observations(self, step: int) -> None:
        """Writes what the environments show as the observation of a step."""
        for kept, seen in zip(leaves(self.env_output.observation), leaves(self.envs.observation), strict=True):
            kept[:, step] = seen

    def _count_episodes(self, t: int) -> None:
        """Notes which episodes ended in step t, and adds the step to those in progress."""
        envs = self.envs
        over = self.over[:, t]
        torch.logical_or(envs.terminated, envs.truncated, out=over)
        self.score += envs.reward
        self.steps += ~envs.begin  # the step that begins an episode does not count

        # All rows at every step, since a graph cannot depend on which episodes ended.
        self.finished[:, t, 0] = self.score
        self.finished[:, t, 1] = self.steps
        for column, counter in enumerate(envs.counters.values(), start=2):
            self.finished[:, t, column] = counter
        self.score.masked_fill_(over, 0.0)
        self.steps.masked_fill_(over, 0)

    def episodes(self) -> list[Episode]:
        """Those that ended in the last unroll, in the order in which they did; waits for the device."""
        over_by_step = self.over.t()
        ended = over_by_step.nonzero()  # steps and rows
        steps, rows = ended.unbind(1)
        finished = self.finished[rows, steps]
        episodes = []
        for row, statistics in zip(rows.tolist(), finished.tolist()):
            score, length, *counters = statistics
            episode = Episode(
                score=score,
                steps=int(length),
                environment=row,
                actor_id=0,
                version=self.version,
                metrics=dict(zip(self.envs.counters, counters)),
                task=self.task,
            )
            episodes.append(episode)
        return episodes

    def _moment(self) -> dict[str, Tensor]:
        """The tensors of `env_output` by name; those of several views are numbered."""
        tensors = {}
        for name, part in self.env_output._asdict().items():
            if isinstance(part, Tensor):
                tensors[name] = part
                continue
            for index, view in enumerate(part):
                tensors[f"{name}/{index}"] = view
        return tensors

    def state_dict(self) -> dict[str, Tensor]:
        """Copies, on the CPU, of all that `load_state_dict` needs to resume exactly, except weights."""
        arrays: dict[str, Tensor] = {}
        # What the next unroll begins with. Checkpoints call the environments' last output the moment.
        last = self.length
        for name, part in self._moment().items():
            arrays[f"moment/{name}"] = part[:, last]
        for index, leaf in enumerate(leaves(self.core_state)):
            arrays[f"core/{index}"] = leaf
        # The episodes in progress, and what is drawn next.
        arrays["score"] = self.score
        arrays["steps"] = self.steps
        arrays["generator"] = self.generator.get_state()
        for name, tensor in self.envs.get_state().items():
            arrays[f"envs/{name}"] = tensor

        # Copies, because the next unroll writes into the tensors.
        copies = {}
        for name, tensor in arrays.items():
            copied = tensor.to("cpu", copy=True)
            copies[name] = copied.contiguous()
        return copies

    def load_state_dict(self, arrays: dict[str, Tensor]) -> None:
        """Resumes from a `state_dict`."""
        for name, part in self._moment().items():
            saved = arrays[f"moment/{name}"]
            part[:, self.length] = saved.to(self.device)
        for index, leaf in enumerate(leaves(self.core_state)):
            leaf.copy_(arrays[f"core/{index}"])
        self.score.copy_(arrays["score"])
        self.steps.copy_(arrays["steps"])
        self.generator.set_state(arrays["generator"])
        envs_state = select(arrays, "envs/")
        self.envs.set_state(envs_state)


def _copy(source: object, target: object) -> None:
    """Writes the tensors of one state into those of another."""
    for old, new in zip(leaves(source), leaves(target), strict=True):
        new.copy_(old)
