"""One actor: environments stepped together, one memory state per environment, batched inference.

The same object unrolls trajectories for learning and plays episodes for evaluation and recording. Pools place actors in
this process or on Ray.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from agent import Agent, AgentOutput, Observation, Trajectory
from agent.core import leaves, map_state, state_to
from agent.core.fields import Precision
from agent.precision import autocast, resolve_precision
from envs import guard


@dataclass(frozen=True)
class Episode:
    """A finished episode: the sum of the environment's own rewards, and agent steps that took effect.

    environment: its index in its actor.
    version: of the weights at the end.
    metrics: the counters that the environment names in `metadata["episode_metrics"]`.
    task: name of the environment, given to the actor.
    """

    score: float
    steps: int
    environment: int
    actor_id: int
    version: int
    metrics: dict[str, float] = field(default_factory=dict)
    task: str = ""


#: Arrays of a `Player` that are part of an actor's state.
STATISTICS = ("over", "scores", "lengths")


class Unroll(NamedTuple):
    """What an actor did in the steps of a trajectory.

    trajectory: a `Trajectory`; from Ray it is in read-only arrays, or a reference to those.
    episodes: those that ended in it.
    version: of the acting weights.
    rows: environments.
    fetch: returns the arrays of a reference.
    """

    trajectory: Any
    episodes: list[Episode]
    version: int
    rows: int
    fetch: Callable[[Any], Any] | None = None

    def load(self) -> Trajectory:
        """The trajectory in tensors. Raises a ClusterError if it was lost with the node that had it."""
        found = self.fetch(self.trajectory) if self.fetch else self.trajectory
        return map_state(lambda leaf: leaf if isinstance(leaf, Tensor) else torch.from_numpy(leaf.copy()), found)


class EnvOutput(NamedTuple):
    """Output of the environments at one step, [B, ...]; fields as in `Trajectory`, without the time axis."""

    observation: Tensor | Observation
    last_action: Tensor
    reward: Tensor
    discount: Tensor
    reset: Tensor


class Player:
    """Environments and statistics of their episodes; subclasses choose the actions.

    All methods that call the environments raise an `envs.EnvironmentFailed` if these fail, and an `envs.WrongOutput` if
    they return what they should not (see `envs.guard`).

    Args:
        envs: a vector environment that resets on the next step, with Discrete actions.
        actor_id, task: as in `Episode`.
    """

    def __init__(self, envs: VectorEnv, actor_id: int, task: str) -> None:
        self.envs, self.actor_id, self.task, self.version = envs, actor_id, task, 0
        self.name = task or str(envs)
        self.last_action = np.full(envs.num_envs, -1)
        self.episode_metrics: tuple[str, ...] = tuple(envs.metadata.get("episode_metrics", ()))
        self.over = np.zeros(envs.num_envs, dtype=bool)
        self.scores = np.zeros(envs.num_envs)
        self.lengths = np.zeros(envs.num_envs, dtype=np.int64)
        self.infos: dict[str, Any] = {}

    def acting(self) -> AbstractContextManager[None]:
        """The context of calls of `play`."""
        return nullcontext()

    def play(self) -> list[Episode]:
        """Chooses actions and steps once; returns the episodes that ended."""
        raise NotImplementedError

    def reset_envs(self, seed: int) -> Any:
        """Begins an episode everywhere and returns the observation."""
        with guard.calling(self.name, "in reset"):
            return self.envs.reset(seed=seed)[0]

    def close(self) -> None:
        """Closes the environments; see `envs.guard.close`."""
        guard.close(self.envs, self.name)

    def step_envs(self, action: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, list[Episode]]:
        """Steps every environment with `action` [B]; returns observation, reward, terminated and ended episodes."""
        was_over, self.last_action = self.over, action
        with guard.calling(self.name, "in step", action):
            observation, reward, terminated, truncated, infos = self.envs.step(action)
            self.infos = infos
            if not (np.abs(reward) <= np.finfo(np.float32).max).all():  # false for NaN, too
                raise guard.OutputError(f"step: reward: expected finite numbers (float32), got {reward}")
            self.over = np.logical_or(terminated, truncated)
            self.scores += reward
            self.lengths += ~was_over
            ended = np.flatnonzero(self.over).tolist()
            counters = [{name: float(infos[name][index]) for name in self.episode_metrics} for index in ended]
        episodes = [
            Episode(float(self.scores[i]), int(self.lengths[i]), i, self.actor_id, self.version, metrics, self.task)
            for i, metrics in zip(ended, counters)
        ]
        self.scores[self.over] = 0
        self.lengths[self.over] = 0
        return observation, reward, terminated, episodes


class Actor(Player):
    """Environments, their memory states, and a copy of the agent's weights.

    Args:
        envs: see `check_environment`.
        agent: the network; only `set_weights` changes it.
        seed: of the environments and of sampled actions, together with `actor_id`.
        sample: sample actions from the policy; if False, take its most probable action.
        device: of the network and the memory; all else, and every trajectory, is on the CPU.
        precision: of the network; see `agent.precision`.
    """

    def __init__(
        self,
        envs: VectorEnv,
        agent: Agent,
        actor_id: int,
        seed: int,
        sample: bool = True,
        task: str = "",
        device: str = "cpu",
        precision: Precision = "float32",
    ) -> None:
        check_environment(envs)
        super().__init__(envs, actor_id, task)
        self.agent = agent.eval().to(device)
        self.device = torch.device(device)
        self.precision = resolve_precision(precision, self.device)
        self.sample = sample
        env_seed, action_seed = np.random.SeedSequence([seed, actor_id]).generate_state(2, np.uint64)
        self.generator = torch.Generator().manual_seed(int(action_seed >> 1))
        observation = self.reset_envs(int(env_seed % 2**31))
        rows = envs.num_envs
        self.env_output = EnvOutput(
            observation=to_tensors(observation),
            last_action=torch.full((rows,), -1),
            reward=torch.zeros(rows),
            discount=torch.ones(rows),
            reset=torch.ones(rows, dtype=torch.bool),
        )
        self.core_state = state_to(agent.initial_state(rows), device)

    def set_weights(self, weights: dict[str, Tensor], version: int) -> None:
        """Loads the learner's weights. Not within `acting`: what is cached there depends on them."""
        self.agent.load_state_dict(weights)
        self.version = version

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Converts weights and projects memory once, instead of at every step within the block."""
        with torch.no_grad(), autocast(self.device, self.precision):
            self.core_state = self.agent.with_cache(self.core_state)
            yield
            self.core_state = self.agent.core.without_cache(self.core_state)

    def act(self, return_attention: bool = False) -> tuple[Tensor, AgentOutput]:
        """Chooses actions [B] for the present output of the environments; also returns the agent's output (T = 1).

        Only within `acting`.
        """
        now = map_state(lambda leaf: leaf[:, None].to(self.device), self.env_output)
        output = self.agent(now.observation, now.last_action, now.reward, now.reset, self.core_state, return_attention)
        self.core_state = output.state
        scores = output.policy_logits[:, 0].cpu()
        if self.sample:
            return sample_actions(scores, torch.rand(scores.shape, generator=self.generator)), output
        return scores.argmax(dim=-1), output

    def step(self, action: Tensor) -> list[Episode]:
        """Steps every environment with `action` [B] int64 and returns the episodes that ended."""
        resets = torch.from_numpy(self.over)
        observation, reward, terminated, episodes = self.step_envs(action.numpy())
        self.env_output = EnvOutput(
            observation=to_tensors(observation),
            last_action=action.masked_fill(resets, -1),
            reward=torch.from_numpy(np.asarray(reward, np.float32)),
            discount=torch.from_numpy(1 - np.asarray(terminated, np.float32)),
            reset=resets,
        )
        return episodes

    def unroll(self, length: int) -> Unroll:
        """Acts for `length` steps from the end of the last unroll.

        `length` is a multiple of the core's segment size: every trajectory starts at a segment's start.
        """
        outputs, actions, logits, episodes = [self.env_output], [], [], []
        begin = self.core_state
        with self.acting():
            for _ in range(length):
                action, output = self.act()
                actions.append(action)
                logits.append(output.policy_logits[:, 0])
                episodes += self.step(action)
                outputs.append(self.env_output)
        rows = self.envs.num_envs
        observed = map_state(lambda *steps: torch.stack(steps, dim=1), *outputs)
        trajectory = Trajectory(
            **observed._asdict(),
            action=torch.stack(actions, dim=1),
            policy_logits=torch.stack(logits, dim=1).cpu(),
            core_state=map_state(lambda leaf: leaf.cpu(), begin),
            actor_id=torch.full((rows,), self.actor_id),
            version=torch.full((rows,), self.version),
        )
        return Unroll(trajectory, episodes, self.version, rows)

    def play(self) -> list[Episode]:
        """One step without a trajectory, for evaluation; returns the episodes that ended. Only within `acting`."""
        return self.step(self.act()[0])

    def state_dict(self) -> dict[str, Tensor]:
        """All that `load_state_dict` needs to resume exactly, except weights.

        Environments without `get_state` begin new episodes, with empty memory, when they are resumed.
        """
        arrays = {f"env_output/{name}": value for name, value in self._named_outputs()}
        arrays |= {f"core/{index}": leaf for index, leaf in enumerate(leaves(self.core_state))}
        arrays |= {name: torch.from_numpy(getattr(self, name).copy()) for name in STATISTICS}
        if hasattr(self.envs, "get_state"):
            arrays |= {f"envs/{name}": torch.from_numpy(array) for name, array in self.envs.get_state().items()}
        return arrays | {"generator": self.generator.get_state()}

    def load_state_dict(self, arrays: dict[str, Tensor]) -> None:
        """Resumes from the `state_dict` of an actor."""
        self.generator.set_state(arrays["generator"])
        if not hasattr(self.envs, "get_state"):
            return
        own = {name.removeprefix("envs/"): leaf.numpy() for name, leaf in arrays.items() if name.startswith("envs/")}
        self.envs.set_state(own)  # type: ignore[attr-defined]
        outputs = iter([arrays[f"env_output/{name}"] for name, _ in self._named_outputs()])
        self.env_output = map_state(lambda _: next(outputs), self.env_output)
        saved = (arrays[f"core/{index}"] for index in itertools.count())
        self.core_state = state_to(map_state(lambda _: next(saved), self.core_state), self.device)
        for name in STATISTICS:
            setattr(self, name, arrays[name].numpy().copy())

    def _named_outputs(self) -> list[tuple[str, Tensor]]:
        """The tensors of `env_output` with their names, in the order of its leaves."""
        names = list(EnvOutput._fields)
        if isinstance(self.env_output.observation, Observation):
            names[:1] = Observation._fields
        return list(zip(names, leaves(self.env_output), strict=True))


def sample_actions(logits: Tensor, uniform: Tensor) -> Tensor:
    """Samples [B] int64 of the softmax of logits [B, A], given numbers [B, A] uniform in 0..1: the Gumbel-max trick."""
    return (logits - (-uniform.clamp_min(1e-20).log()).log()).argmax(dim=-1)


def check_environment(envs: VectorEnv) -> None:
    """Raises a ValueError if an environment is not supported.

    It resets on the next step and has Discrete actions from 0. Its observations are uint8 [height, width, channels] or
    float32 [features], or a Dict of such an "image" and of an "instruction", int64 [words].
    """
    mode = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    if mode != AutoresetMode.NEXT_STEP:
        raise ValueError(f"autoreset_mode: expected {AutoresetMode.NEXT_STEP}, got {mode}")
    actions, space = envs.single_action_space, envs.single_observation_space
    if not isinstance(actions, spaces.Discrete) or actions.start != 0:
        raise ValueError(f"action space: expected Discrete(n) from 0, got {actions}")
    words, image = ("int64", 1), space
    if isinstance(space, spaces.Dict) and space.spaces.keys() == set(Observation._fields):
        words, image = _kind(space["instruction"]), space["image"]
    if words != ("int64", 1) or _kind(image) not in (("uint8", 3), ("float32", 1)):
        expected = "a Box of uint8 [height, width, channels] or float32 [features], or a Dict of one as image and of an"
        raise ValueError(f"observation space: expected {expected} int64 [words] as instruction, got {space}")


def _kind(space: spaces.Space[Any]) -> tuple[str, int]:
    return str(space.dtype), len(space.shape or ())


def to_tensors(observation: np.ndarray | dict[str, np.ndarray]) -> Tensor | Observation:
    """A vector environment's observation as tensors that share no memory with it."""
    if isinstance(observation, dict):
        return Observation(*(torch.from_numpy(np.array(observation[name])) for name in Observation._fields))
    return torch.from_numpy(np.array(observation))
