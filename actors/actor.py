"""One actor: environments stepped together, one memory state per environment, batched inference.

The same object unrolls trajectories for learning and plays episodes for evaluation and recording. Pools place actors in
this process or on Ray.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from actors.interface import read_interface
from actors.stagger import Stagger
from agent import Agent, AgentOutput, EnvOutput, Observation, Trajectory
from agent.core import fill_state, leaves, map_state, state_to
from agent.core.fields import Precision
from agent.precision import autocast, resolve_precision
from agent.trajectory import Sensed
from envs import guard

Value = TypeVar("Value")
Observed = Any
"""A vector environment's observation, of all rows: an array, a tuple of several, or a dict as in `actors.interface`."""


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


STATISTICS = ("over", "scores", "lengths")
"""Arrays of a `Player` that are part of an actor's state."""
MOST_REWARD = 1e18
"""Greatest magnitude of a reward. Of larger ones float32, in which they are learned from, can no longer sum squares."""


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
        found = self.trajectory
        if self.fetch is not None:
            found = self.fetch(self.trajectory)
        return map_state(_as_tensor, found)


def _as_tensor(leaf: Tensor | np.ndarray) -> Tensor:
    """A tensor as it is, or a copy of an array, which may be read-only."""
    if isinstance(leaf, Tensor):
        return leaf
    return torch.from_numpy(leaf.copy())


class Player:
    """Environments and statistics of their episodes; subclasses choose the actions.

    All methods that call the environments raise an `envs.EnvironmentFailed` if these fail, and an `envs.WrongOutput` if
    they return what they should not (see `envs.guard`).

    Args:
        envs: a vector environment that resets on the next step, with actions as in `actors.interface`.
        actor_id, task: as in `Episode`.
    """

    def __init__(self, envs: VectorEnv, actor_id: int, task: str) -> None:
        self.envs = envs
        self.actor_id = actor_id
        self.task = task
        self.version = 0
        self.name = task or str(envs)
        self.episode_metrics: tuple[str, ...] = tuple(envs.metadata.get("episode_metrics", ()))
        # What the environments returned in the last step.
        rows = envs.num_envs
        self.last_action = np.full(rows, -1)
        self.over = np.zeros(rows, dtype=bool)
        self.infos: dict[str, Any] = {}
        # Sums over the episodes in progress.
        self.scores = np.zeros(rows)
        self.lengths = np.zeros(rows, dtype=np.int64)
        self.stagger: Stagger | None = None

    def acting(self) -> AbstractContextManager[None]:
        """The context of calls of `play`."""
        return nullcontext()

    def play(self) -> list[Episode]:
        """Chooses actions and steps once; returns the episodes that ended."""
        raise NotImplementedError

    def reset_envs(self, seed: int) -> Observed:
        """Begins an episode everywhere and returns the observation."""
        with guard.calling(self.name, "in reset"):
            observation, _ = self.envs.reset(seed=seed)
            return observation

    def close(self) -> None:
        """Closes the environments; see `envs.guard.close`."""
        guard.close(self.envs, self.name)

    def step_envs(self, action: np.ndarray) -> tuple[Observed, np.ndarray, np.ndarray, list[Episode]]:
        """Steps all environments with actions [B, ...]; returns observation, reward, terminated and ended episodes."""
        # The step after an episode's end only resets the environment: it does not count as a step of an episode.
        was_over = self.over
        self.last_action = action
        with guard.calling(self.name, "in step", action):
            observation, reward, terminated, truncated, infos = self.envs.step(action)
            self.infos = infos
            require_rewards(reward)
            self.over = np.logical_or(terminated, truncated)
            self.scores += reward
            self.lengths += ~was_over

            # Within the guard, because the infos are the environment's own.
            episodes = []
            # The step that begins a life may lose it (see `envs.atari`): there is no episode then.
            ended = np.flatnonzero(self.over & (self.lengths > 0))
            for index in ended.tolist():
                episodes.append(self._ended_episode(index))
            if self.stagger is not None:
                self._end_early(self.stagger)
        self.scores[self.over] = 0
        self.lengths[self.over] = 0
        return observation, reward, terminated, episodes

    def _end_early(self, stagger: Stagger) -> None:
        """Ends episodes as a time limit would. They are no `Episode`, since their scores say nothing."""
        early = stagger.early_ends(self.over, self.lengths)
        if early.any():
            self.envs.end_episodes(early)  # type: ignore[attr-defined]
            self.over = self.over | early

    def _ended_episode(self, index: int) -> Episode:
        """The episode that has ended in an environment."""
        metrics = {}
        for name in self.episode_metrics:
            # An episode that a time limit has cut may have none.
            given = self.infos.get(f"_{name}")
            if given is None or given[index]:
                counter = self.infos[name][index]
                metrics[name] = float(counter)
        return Episode(
            score=float(self.scores[index]),
            steps=int(self.lengths[index]),
            environment=index,
            actor_id=self.actor_id,
            version=self.version,
            metrics=metrics,
            task=self.task,
        )


class Actor(Player):
    """Environments, their memory states, and a copy of the agent's weights.

    Args:
        envs: see `actors.interface`.
        agent: the network; only `set_weights` changes it.
        seed: of the environments and of sampled actions, together with `actor_id`.
        sample: sample actions from the policy; if False, take its most probable action.
        device: of the network and the memory; all else, and every trajectory, is on the CPU.
        precision: of the network; see `agent.precision`.
        stagger: see `ActorsConfig`.
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
        stagger: bool = False,
    ) -> None:
        read_interface(envs)  # raises an error if it is not supported
        super().__init__(envs, actor_id, task)
        if stagger and hasattr(envs, "end_episodes"):
            self.stagger = Stagger(envs.num_envs, actor_id)
        self.policy = copy.deepcopy(agent.distribution).to("cpu")
        self.agent = agent.eval().to(device)
        self.device = torch.device(device)
        self.precision = resolve_precision(precision, self.device)
        self.sample = sample

        # Environments and actions have random streams of their own.
        env_seed, action_seed = stream_seeds([seed, actor_id])
        self.generator = torch.Generator().manual_seed(action_seed >> 1)
        observation = self.reset_envs(env_seed % 2**31)

        # An episode begins everywhere, with empty memory.
        rows = envs.num_envs
        self.env_output = EnvOutput(
            observation=to_tensors(observation),
            last_action=self.policy.none(rows),
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
            self.core_state = self.agent.without_cache(self.core_state)

    def act(self, return_attention: bool = False) -> tuple[Tensor, AgentOutput]:
        """Chooses actions [B, ...] for the present output of the environments; also returns the agent's output (T = 1).

        Only within `acting`.
        """
        # One step of all environments, [B, 1, ...].
        now = map_state(lambda leaf: leaf[:, None].to(self.device), self.env_output)
        output = self.agent(now.observation, now.last_action, now.reward, now.reset, self.core_state, return_attention)
        self.core_state = output.state

        # The actions are chosen on the CPU, where the random generator is.
        parameters = output.policy_parameters[:, 0].cpu()
        if not self.sample:
            action = self.policy.mode(parameters)
            return action, output
        rows = len(parameters)
        uniform = torch.rand(rows, self.policy.num_uniform, generator=self.generator)
        action = self.policy.sample(parameters, uniform)
        return action, output

    def step(self, action: Tensor) -> list[Episode]:
        """Steps every environment with what `act` chose, and returns the episodes that ended."""
        # Where an episode is over, the step resets the environment and ignores the action.
        resets = torch.from_numpy(self.over)
        received = self.policy.effect(action)
        observation, reward, terminated, episodes = self.step_envs(received.numpy())
        # A truncated episode keeps its discount: see `agent.trajectory`.
        reward = np.asarray(reward, np.float32)
        discount = 1 - np.asarray(terminated, np.float32)
        self.env_output = EnvOutput(
            observation=to_tensors(observation),
            last_action=self.policy.last_action(received, resets),
            reward=torch.from_numpy(reward),
            discount=torch.from_numpy(discount),
            reset=resets,
        )
        return episodes

    def unroll(self, length: int) -> Unroll:
        """Acts for `length` steps from the end of the last unroll.

        `length` is a multiple of the core's segment size: every trajectory starts at a segment's start.
        """
        # The core's state is in the trajectory once: as it was before the first step.
        begin = self.core_state
        outputs = [self.env_output]
        actions: list[Tensor] = []
        parameters: list[Tensor] = []
        episodes: list[Episode] = []
        with self.acting():
            for _ in range(length):
                action, output = self.act()
                ended = self.step(action)
                actions.append(action)
                parameters.append(output.policy_parameters[:, 0])
                episodes += ended
                outputs.append(self.env_output)

        # The T + 1 outputs of the environments, of which the last is the bootstrap, and the T actions between them.
        rows = self.envs.num_envs
        observed = map_state(lambda *steps: torch.stack(steps, dim=1), *outputs)
        trajectory = Trajectory(
            **observed._asdict(),
            action=torch.stack(actions, dim=1),
            policy_parameters=torch.stack(parameters, dim=1).cpu(),
            core_state=map_state(lambda leaf: leaf.cpu(), begin),
            actor_id=torch.full((rows,), self.actor_id),
            version=torch.full((rows,), self.version),
        )
        return Unroll(trajectory, episodes, self.version, rows)

    def play(self) -> list[Episode]:
        """One step without a trajectory, for evaluation; returns the episodes that ended. Only within `acting`."""
        action, _ = self.act()
        return self.step(action)

    def state_dict(self) -> dict[str, Tensor]:
        """All that `load_state_dict` needs to resume exactly, except weights.

        Environments without `get_state` begin new episodes, with empty memory, when they are resumed.
        """
        arrays: dict[str, Tensor] = {}
        for name, value in self._named_outputs():
            arrays[f"env_output/{name}"] = value
        for index, leaf in enumerate(leaves(self.core_state)):
            arrays[f"core/{index}"] = leaf
        for name in STATISTICS:
            statistic = getattr(self, name)
            arrays[name] = torch.from_numpy(statistic.copy())
        if self.stagger is not None:
            arrays["stagger"] = torch.from_numpy(self.stagger.limits.copy())
        if hasattr(self.envs, "get_state"):
            for name, array in self.envs.get_state().items():
                arrays[f"envs/{name}"] = torch.from_numpy(array)
        arrays["generator"] = self.generator.get_state()
        return arrays

    def load_state_dict(self, arrays: dict[str, Tensor]) -> None:
        """Resumes from the `state_dict` of an actor."""
        self.generator.set_state(arrays["generator"])
        if not hasattr(self.envs, "get_state"):
            return  # new episodes have begun

        # The environments.
        envs_state = {}
        for name, leaf in select(arrays, "envs/").items():
            envs_state[name] = leaf.numpy()
        self.envs.set_state(envs_state)  # type: ignore[attr-defined]

        # What they returned last.
        outputs = [arrays[f"env_output/{name}"] for name, _ in self._named_outputs()]
        self.env_output = fill_state(self.env_output, outputs)

        # The memory.
        num_leaves = len(list(leaves(self.core_state)))
        saved = [arrays[f"core/{index}"] for index in range(num_leaves)]
        core_state = fill_state(self.core_state, saved)
        self.core_state = state_to(core_state, self.device)

        # The episodes in progress. Copies, because they are changed in place.
        for name in STATISTICS:
            statistic = arrays[name].numpy()
            setattr(self, name, statistic.copy())
        if self.stagger is not None and "stagger" in arrays:
            self.stagger.limits[:] = arrays["stagger"].numpy()

    def _named_outputs(self) -> list[tuple[str, Tensor]]:
        """The tensors of `env_output` with their names, in the order of its leaves."""
        observation, *others = EnvOutput._fields
        given = self.env_output.observation
        if isinstance(given, Observation):
            seen, words = Observation._fields
            names = _part_names(seen, given.image)
            names.append(words)
        else:
            names = _part_names(observation, given)
        names += others
        return list(zip(names, leaves(self.env_output), strict=True))


def _part_names(name: str, sensed: Sensed) -> list[str]:
    """Names for what is seen: one, or several with numbers."""
    if isinstance(sensed, tuple):
        return [f"{name}/{index}" for index in range(len(sensed))]
    return [name]


def select(arrays: dict[str, Value], prefix: str) -> dict[str, Value]:
    """Those of an actor's or a pool's arrays whose names begin with a prefix, named without it."""
    selected = {}
    for name, array in arrays.items():
        if name.startswith(prefix):
            selected[name.removeprefix(prefix)] = array
    return selected


def require_rewards(rewards: np.ndarray) -> None:
    """Raises an OutputError, which names the first wrong one, unless rewards [B] are at most `MOST_REWARD` in size."""
    is_usable = np.abs(rewards) <= MOST_REWARD  # false for NaN, too
    if not is_usable.all():
        first = rewards[~is_usable][0]
        expected = f"numbers from -{MOST_REWARD:g} to {MOST_REWARD:g}, whose squares float32 can sum"
        raise guard.OutputError(f"step: reward: expected {expected}, got {first}")


def stream_seeds(seed: int | list[int]) -> tuple[int, int]:
    """Two seeds of 64 bits, so that environments and actions have random streams of their own."""
    sequence = np.random.SeedSequence(seed)
    env_seed, action_seed = sequence.generate_state(2, np.uint64)
    return int(env_seed), int(action_seed)


def to_tensors(observation: Observed) -> Sensed | Observation:
    """A vector environment's observation as tensors that share no memory with it."""
    if isinstance(observation, dict):
        image = to_tensors(observation["image"])
        instruction = to_tensors(observation["instruction"])
        return Observation(image, instruction)  # type: ignore[arg-type]
    if isinstance(observation, tuple):
        return tuple(torch.from_numpy(np.array(part)) for part in observation)
    return torch.from_numpy(np.array(observation))
