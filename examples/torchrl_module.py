"""A core of `agent.core` in TorchRL: a module beside LSTMModule and GRUModule, learned with the library's own PPO loss.

    pip install -e '.[torchrl]'
    python -m examples.torchrl_module                   delayed recall over 10 steps, some minutes on one CPU core
    python -m examples.torchrl_module --core library    the library's own LSTM
    python -m examples.torchrl_module --env gym:Pendulum-v1                 numbers as actions

The contract: the state is an entry of the TensorDict. A primer adds its initial value (zeros) to each reset, the module
writes the next one under "next", and `is_init` marks the first step of an episode. In recurrent mode the module reads
whole windows [B, T] and the state of their first step alone, so that `keep_first` may drop all others.

Actions are entries of the TensorDict, too: one for each space of `examples.single.spaces_of`.

Axes: N environments, T steps of a window, B windows of a minibatch, D features.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tyro
from tensordict import TensorDictBase
from tensordict.nn import (
    CompositeDistribution,
    NormalParamExtractor,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    set_composite_lp_aggregate,
)
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent
from torchrl.collectors import Collector
from torchrl.data import Bounded, Composite, MultiCategorical, TensorSpec, Unbounded
from torchrl.data import Categorical as CategoricalSpec
from torchrl.envs import (
    Compose,
    EnvBase,
    GymWrapper,
    InitTracker,
    RewardSum,
    SerialEnv,
    TensorDictPrimer,
    TransformedEnv,
)
from torchrl.modules import (
    IndependentNormal,
    LSTMModule,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
    recurrent_mode,
    set_recurrent_mode,
)
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value.functional import generalized_advantage_estimate

from agent.core import Core, FlatCore, make_core, matched_cores
from examples.single import Single


class MemoryModule(TensorDictModuleBase):
    """Any core, with the keys and the two modes of TorchRL's recurrent modules."""

    def __init__(self, core: Core, in_key: str, out_key: str, state_key: str = "memory") -> None:
        super().__init__()
        self.core = FlatCore(core)
        self.state_key = state_key
        self.in_keys: Any = [in_key, state_key, "is_init"]
        self.out_keys: Any = [out_key, ("next", state_key)]

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """The transform that adds the initial state to what an environment returns from `reset`."""
        return TensorDictPrimer({self.state_key: Unbounded(shape=(self.core.state_size,))}, expand_specs=True)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """One step of entries of any batch shape; in recurrent mode, windows [B, T]."""
        in_key, state_key, reset_key = self.in_keys
        out_key, next_state_key = self.out_keys
        inputs = tensordict[in_key]
        state = tensordict[state_key]
        reset = tensordict[reset_key]

        if recurrent_mode():
            features, _ = self.core(inputs, reset[..., 0], state[:, 0])
            return tensordict.set(out_key, features)

        # All batch dimensions become one, and the window is one step long.
        inputs_of_step = inputs.reshape(-1, 1, inputs.shape[-1])
        reset_of_step = reset.reshape(-1, 1)
        features, after = self.core(inputs_of_step, reset_of_step, state.reshape(-1, state.shape[-1]))
        tensordict.set(out_key, features.reshape(*tensordict.shape, -1))
        return tensordict.set(next_state_key, after.reshape(state.shape))


def keep_first(data: TensorDictBase, key: str) -> TensorDictBase:
    """Windows [N, T] with the states of their first steps alone: a view in which time has stride 0."""
    first = data[key][:, :1].clone()
    return data.exclude(("next", key)).set(key, first.expand(data[key].shape))


def rows_of(data: TensorDictBase, rows: Tensor, key: str) -> TensorDictBase:
    """Some windows of `keep_first`'s, whose states are a view again."""
    batch = data.exclude(key)[rows]
    return batch.set(key, data[key][rows, :1].expand(*batch.shape, -1))


class Choices(Independent):
    """Several independent choices [.., K]; logits [.., K, most] are minus infinity where there is no choice."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__(Categorical(logits=logits), 1)


class ChoicesHead(nn.Module):
    """The logits of `Choices` with some sizes, of features."""

    def __init__(self, size: int, sizes: Tensor) -> None:
        super().__init__()
        self.register_buffer("absent", torch.arange(int(sizes.max())) >= sizes[:, None])
        self.linear = nn.Linear(size, self.absent.numel())

    def forward(self, features: Tensor) -> Tensor:
        logits = self.linear(features).unflatten(-1, self.absent.shape)
        return logits.masked_fill(self.absent, -torch.inf)


def head_of(spec: TensorSpec, size: int) -> tuple[nn.Module, list[str], type[Distribution]]:
    """What makes the parameters of an action's distribution of features, their names, and the distribution."""
    if isinstance(spec, MultiCategorical):
        return ChoicesHead(size, spec.nvec), ["logits"], Choices
    if isinstance(spec, CategoricalSpec) and spec.shape:  # choices of equal sizes
        return ChoicesHead(size, torch.full(spec.shape, spec.space.n)), ["logits"], Choices
    if isinstance(spec, CategoricalSpec):
        return nn.Linear(size, spec.space.n), ["logits"], Categorical
    head = nn.Sequential(nn.Linear(size, 2 * spec.shape[-1]), NormalParamExtractor())
    if isinstance(spec, Bounded) and spec.space.low.isfinite().all():  # by -1..1, as TanhNormal is
        return head, ["loc", "scale"], TanhNormal
    return head, ["loc", "scale"], IndependentNormal


@dataclass
class Args:
    """Sizes and constants."""

    env: str = "diagnostic:recall,delay=10"
    core: str = "compressive"
    """A name of `agent.core.CORES`, or library for its own LSTM."""
    steps: int = 200_000
    num_envs: int = 32
    window: int = 32
    """Steps of a window, a multiple of the core's segment."""
    minibatches: int = 4
    epochs: int = 2
    learning_rate: float = 1e-3
    gamma: float = 0.95
    gae_lambda: float = 0.95
    seed: int = 0


class Agent:
    """The modules: encoder, memory, and the heads of policy and value on its features [.., D].

    `action_spec` has the specs of all actions of one environment by name.
    """

    def __init__(self, encoder: nn.Module, memory: TensorDictModuleBase, size: int, action_spec: Composite) -> None:
        self.memory = memory
        self.trunk = TensorDictSequential(TensorDictModule(encoder, ["observation"], ["embedding"]), memory)
        self.actions = list(action_spec.keys())
        heads = []
        distributions = {}
        for name, spec in action_spec.items():
            head, parameters, distributions[name] = head_of(spec, size)
            heads.append(TensorDictModule(head, ["features"], [("params", name, each) for each in parameters]))
        set_composite_lp_aggregate(False).set()  # the library's losses want the log-probability of each action
        self.policy = ProbabilisticActor(
            TensorDictSequential(*heads),
            in_keys=["params"],
            out_keys=self.actions,
            spec=action_spec,
            distribution_class=CompositeDistribution,
            distribution_kwargs={"distribution_map": distributions},
            return_log_prob=True,
        )
        self.value = ValueOperator(nn.Linear(size, 1), in_keys=["features"])
        self.acting = TensorDictSequential(self.trunk, self.policy, self.value)

    @torch.no_grad()
    def next_values(self, data: TensorDictBase) -> Tensor:
        """Values [N, T, 1] of what follows each step; where a window or an episode ends, of the last observation."""
        values = data["state_value"]
        found = torch.cat([values[:, 1:], values[:, -1:]], dim=1)
        ends = data["next", "done"][..., 0].clone()
        ends[:, -1] = True
        after = data["next"][ends].set("is_init", torch.zeros(int(ends.sum()), 1, dtype=torch.bool))
        found[ends] = self.value(self.trunk(after))["state_value"]
        return found


def make_agent(env: EnvBase, args: Args) -> Agent:
    """The modules for an environment with vectors as observations."""
    size = 64
    sizes = {"model_size": size, "num_layers": 1, "num_heads": 4, "mlp_size": 128, "segment_size": 8, "norm": "pre"}
    if args.core == "library":
        memory = LSTMModule(size, size, in_key="embedding", out_key="features")
    else:
        core = make_core(matched_cores(sizes, 8, 4)[args.core])
        memory = MemoryModule(core, "embedding", "features")
    inputs = env.observation_spec["observation"].shape[-1]
    encoder = nn.Sequential(nn.Linear(inputs, size), nn.ReLU(), nn.Linear(size, size))
    return Agent(encoder, memory, size, env.full_action_spec_unbatched)


def make_loss(agent: Agent) -> ClipPPOLoss:
    """The library's loss of all actions together."""
    loss = ClipPPOLoss(
        agent.policy, agent.value, clip_epsilon=0.2, entropy_coeff=0.01, critic_coeff=0.5, normalize_advantage=True
    )
    loss.set_keys(action=agent.actions, sample_log_prob=[f"{name}_log_prob" for name in agent.actions])
    return loss


def make_envs(args: Args) -> TransformedEnv:
    """N environments, stepped one after the other, which report returns and the first steps of episodes."""
    batch = SerialEnv(args.num_envs, lambda: GymWrapper(Single(args.env), categorical_action_encoding=True))
    return TransformedEnv(batch, Compose(InitTracker(), RewardSum()))


def learn(agent: Agent, loss: ClipPPOLoss, optimizer: torch.optim.Optimizer, data: TensorDictBase, args: Args) -> None:
    """PPO's epochs over the windows [N, T] of one batch of the collector."""
    after = data["next"]
    advantage, target = generalized_advantage_estimate(
        args.gamma,
        args.gae_lambda,
        data["state_value"],
        agent.next_values(data),
        after["reward"],
        after["done"],
        after["terminated"],
    )
    data["advantage"] = advantage
    data["value_target"] = target
    (group,) = optimizer.param_groups
    parameters = group["params"]

    # Our module needs the state of a window's first step alone; the library's own reads all of them.
    has_first_states = isinstance(agent.memory, MemoryModule)
    if has_first_states:
        data = keep_first(data, "memory")
    for _ in range(args.epochs):
        for rows in torch.randperm(len(data)).chunk(args.minibatches):
            batch = rows_of(data, rows, "memory") if has_first_states else data[rows]
            with set_recurrent_mode(True):
                batch = agent.trunk(batch)
            parts = loss(batch)
            total = parts["loss_objective"] + parts["loss_critic"] + parts["loss_entropy"]
            optimizer.zero_grad()
            total.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()


def main(args: Args) -> list[tuple[int, float]]:
    """Trains; returns the steps and the mean return of the episodes that ended in each batch."""
    # One thread: several wait for each other wherever another program uses a core, and then take many times as long.
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)

    envs = make_envs(args)
    envs.set_seed(args.seed)
    agent = make_agent(envs, args)
    envs.append_transform(agent.memory.make_tensordict_primer())
    loss = make_loss(agent)
    optimizer = torch.optim.Adam([*loss.parameters(), *agent.trunk.parameters()], lr=args.learning_rate)
    collector = Collector(envs, agent.acting, frames_per_batch=args.num_envs * args.window, total_frames=args.steps)

    returns: list[tuple[int, float]] = []
    steps = 0
    start = time.perf_counter()
    for data in collector:
        steps += data.numel()
        scores = data["next", "episode_reward"][data["next", "done"]]
        returns.append((steps, scores.mean().item()))
        learn(agent, loss, optimizer, data, args)
        if len(returns) % 10 == 0:
            mean = np.nanmean([score for _, score in returns[-10:]])
            speed = steps / (time.perf_counter() - start)
            print(f"{steps} steps  return {mean:.2f}  {speed:.0f} steps/s", flush=True)
    collector.shutdown()
    return returns


if __name__ == "__main__":
    main(tyro.cli(Args))
