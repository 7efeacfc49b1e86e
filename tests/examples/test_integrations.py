"""Examples compute the features of our own actor in other libraries, acting and learning alike."""

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from actors import Actor
from agent import Agent, AgentConfig
from agent.core import FlatCore, matched_cores
from envs import ActionVector, ChoiceColumn, NumberColumns, make_vector
from envs.gym import adapt
from envs.processes import SerialVectorEnv
from examples import cleanrl_ppo
from examples.single import Single
from tests.learner.test_action_spaces import SPACES as SPACES_OF_ACTIONS
from tests.learner.test_action_spaces import Imitation

SIZE = 16
"""Number of features."""
SIZES = {"model_size": SIZE, "num_layers": 2, "num_heads": 2, "mlp_size": 16, "segment_size": 4, "norm": "pre"}
ROWS = 3
WINDOW = 8
WINDOWS = 6
"""Environments, steps of a window (an unroll), and windows of what is recorded."""
OBSERVATIONS = gymnasium.spaces.Box(0, 1, (3,), np.float32)
ACTIONS = gymnasium.spaces.Discrete(3)
BEST_RETURN = 5
"""The best return of an episode of `Imitation`."""


class Recorded:
    """What our actor saw in a T-maze, and the features of its core: all [B, T, ...]; and its encoder and core."""

    def __init__(self, core: str) -> None:
        torch.manual_seed(0)
        config = AgentConfig(torso="small", torso_size=SIZE, core=matched_cores(SIZES, 4, 2, rate=2)[core])
        agent = Agent(config, (3,), 3)
        with torch.no_grad():
            agent.joint.weight[:, SIZE:] = 0  # the last action and reward, which other libraries do not show

        # The actor plays, and a hook keeps the features of each of its steps.
        features: list[Tensor] = []
        actor = Actor(make_vector("diagnostic:tmaze,length=3", ROWS), agent, 0, seed=0)
        handle = agent.core.register_forward_hook(lambda _, __, output: features.append(output.features))
        unrolls = [actor.unroll(WINDOW).trajectory for _ in range(WINDOWS)]
        handle.remove()
        self.observation = torch.cat([unroll.observation[:, :WINDOW] for unroll in unrolls], dim=1)
        self.reset = torch.cat([unroll.reset[:, :WINDOW] for unroll in unrolls], dim=1)
        self.features = torch.cat(features, dim=1)
        assert self.features.shape[:2] == self.reset.shape
        assert 2 * ROWS < self.reset.sum() < 0.5 * self.reset.numel()
        later_resets = self.reset[:, 1:]
        of_some_rows = later_resets.any(dim=0) & ~later_resets.all(dim=0)
        assert of_some_rows.any(), "rows reset at different steps"

        joint = nn.Linear(SIZE, SIZE)
        joint.weight = nn.Parameter(agent.joint.weight[:, :SIZE].detach())
        joint.bias = agent.joint.bias
        self.encoder = Encoder(agent.vision, joint)
        self.core = agent.core
        self.config = config.core

    def windows(self) -> list[slice]:
        """The steps of each window."""
        return [slice(begin, begin + WINDOW) for begin in range(0, self.reset.shape[1], WINDOW)]


class Encoder(nn.Module):
    """The layers of our agent before its core: observations [..., 3] become its inputs [..., SIZE]."""

    def __init__(self, torso: nn.Module, joint: nn.Module) -> None:
        super().__init__()
        self.torso = torso
        self.joint = joint

    def forward(self, vectors: Tensor) -> Tensor:
        inputs = self.joint(self.torso(vectors.reshape(-1, 3)))
        return inputs.reshape(*vectors.shape[:-1], SIZE)


# Each of the following plays what was recorded in one of the libraries, and returns two features [B, T, SIZE]: those of
# acting, step by step, and those of learning, window by window.


def cleanrl(recorded: Recorded) -> tuple[Tensor, Tensor]:
    agent = cleanrl_ppo.Agent(recorded.encoder, recorded.core, SIZE, ACTIONS)
    state = agent.core.initial_state(ROWS)
    acting = []
    learning = []
    for window in recorded.windows():
        begin = state
        state = agent.core.with_cache(state)
        with torch.no_grad():
            for step in range(window.start, window.stop):
                features, state, _ = agent(recorded.observation[:, [step]], recorded.reset[:, [step]], state)
                acting.append(features)
        state = agent.core.without_cache(state)
        features, _, _ = agent(recorded.observation[:, window], recorded.reset[:, window], begin)
        learning.append(features)
    return torch.cat(acting, dim=1), torch.cat(learning, dim=1)


def torchrl(recorded: Recorded) -> tuple[Tensor, Tensor]:
    """Learning has the state of each window's first step alone."""
    pytest.importorskip("torchrl")
    from tensordict import TensorDict
    from torchrl.data import Categorical, Composite
    from torchrl.modules import set_recurrent_mode

    from examples import torchrl_module

    memory = torchrl_module.MemoryModule(recorded.core, "embedding", "features")
    agent = torchrl_module.Agent(recorded.encoder, memory, SIZE, Composite(action=Categorical(3)))
    state = memory.core.initial_state(ROWS)
    steps = []
    for step in range(recorded.reset.shape[1]):
        reset = recorded.reset[:, step, None]
        state = state.masked_fill(reset, 0)  # as the primer does
        found = {"observation": recorded.observation[:, step], "is_init": reset, "memory": state}
        with torch.no_grad():
            steps.append(agent.acting(TensorDict(found, [ROWS])))
        state = steps[-1]["next", "memory"]
    data = torch.stack(steps, dim=1)

    learning = []
    float_bytes = 4
    for window in recorded.windows():
        kept = torchrl_module.keep_first(data[:, window].exclude("features"), "memory")
        assert kept["memory"].untyped_storage().nbytes() == ROWS * memory.core.state_size * float_bytes
        with set_recurrent_mode(True):
            learned = agent.trunk(torchrl_module.rows_of(kept, torch.arange(ROWS), "memory"))
        learning.append(learned["features"])
    return data["features"], torch.cat(learning, dim=1)


def sb3(recorded: Recorded, once: bool = True) -> tuple[Tensor, Tensor]:
    """With our buffer, which keeps the state of a window once, or the library's own, which keeps that of each step."""
    pytest.importorskip("sb3_contrib")
    from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
    from sb3_contrib.common.recurrent.type_aliases import RNNStates

    from examples import sb3_policy

    policy = sb3_policy.MemoryPolicy(OBSERVATIONS, ACTIONS, lambda _: 1e-3, core=recorded.config)
    memory = policy.lstm_actor
    memory.inputs = recorded.encoder
    memory.core = FlatCore(recorded.core)
    found: list[Tensor] = []
    memory.register_forward_hook(lambda _, __, output: found.append(output[0]))
    zeros = torch.zeros(1, ROWS, memory.hidden_size)
    states = RNNStates((zeros, zeros), (zeros, zeros))
    state_shape = (WINDOW, 1, ROWS, memory.hidden_size)
    kind = sb3_policy.SequenceBuffer if once else RecurrentRolloutBuffer
    acting = []
    learning = []
    for window in recorded.windows():
        # Acting fills the buffer.
        buffer = kind(WINDOW, OBSERVATIONS, ACTIONS, state_shape, "cpu", n_envs=ROWS)
        found.clear()
        for step in range(window.start, window.stop):
            observation = recorded.observation[:, step]
            starts = recorded.reset[:, step].float()
            with torch.no_grad():
                action, _, log_prob, after = policy(observation, states, starts)
            # As its value each step keeps its place, by which the library's order is told.
            place = torch.arange(ROWS) * WINDOW + step - window.start
            value = place[:, None].float()
            seen = observation.numpy()
            taken = action.numpy()[:, None]
            rewards = np.zeros(ROWS)
            buffer.add(seen, taken, rewards, starts.numpy(), value, log_prob, lstm_states=states)
            states = after
        acting.append(torch.cat(found, dim=1))

        # Learning reads it in the library's minibatches.
        found.clear()
        learned = torch.empty(ROWS * WINDOW, SIZE)
        if window.start == 0 and not once:
            # A sequence that begins with zeros takes the offset of those beside it (`FlatCore`), which in the library's
            # minibatches may be another one than acting had: in the first rollout alone, as later states are not zeros.
            np.random.seed(0)  # noqa: NPY002 (the library draws from it where its sequences begin; here none beside)
        for batch in buffer.get(WINDOW):
            actions = batch.actions.long().flatten()
            policy.evaluate_actions(batch.observations, actions, batch.lstm_states, batch.episode_starts)
            mask = batch.mask > 0
            learned[batch.old_values.long()[mask]] = found.pop().flatten(0, 1)[mask].detach()
        learning.append(learned.unflatten(0, (ROWS, WINDOW)))
    return torch.cat(acting, dim=1), torch.cat(learning, dim=1)


def sb3_every_step(recorded: Recorded) -> tuple[Tensor, Tensor]:
    return sb3(recorded, once=False)


@dataclasses.dataclass
class Piece:
    """A sequence as RLlib's learner gets it: steps of one row that an episode's start or the full length begins."""

    row: int
    state: Tensor
    """The state before its first step."""
    steps: list[int] = dataclasses.field(default_factory=list)
    counts: list[Tensor] = dataclasses.field(default_factory=list)


def rllib(recorded: Recorded) -> tuple[Tensor, Tensor]:
    pytest.importorskip("ray.rllib.algorithms.ppo", exc_type=ImportError)
    from ray.rllib.core.columns import Columns

    from examples import rllib_module

    config = {"core": recorded.config, "max_seq_len": WINDOW}
    module = rllib_module.MemoryModule(observation_space=OBSERVATIONS, action_space=ACTIONS, model_config=config)
    module.encoder = recorded.encoder
    module.core = FlatCore(recorded.core)
    found: list[Tensor] = []
    module.core.register_forward_hook(lambda _, __, output: found.append(output[0]))

    # Acting, after which the steps of each row are cut into pieces.
    state = torch.zeros(ROWS, module.core.state_size)
    pieces: list[Piece] = []
    latest: dict[int, Piece] = {}  # of each row
    for step in range(recorded.reset.shape[1]):
        reset = recorded.reset[:, step]
        state = state.masked_fill(reset[:, None], 0)  # RLlib gives the initial state
        batch = {Columns.OBS: recorded.observation[:, [step]], Columns.STATE_IN: {"memory": state}}
        with torch.no_grad():
            output = module.forward_exploration(batch)
        for row in range(ROWS):
            if reset[row] or len(latest[row].steps) == WINDOW:
                latest[row] = Piece(row, state[row])
                pieces.append(latest[row])
            latest[row].steps.append(step)
            latest[row].counts.append(output[rllib_module.COUNT][row, 0])
        state = output[Columns.STATE_OUT]["memory"]
    acting = torch.cat(found, dim=1)

    # Learning, from the pieces as one batch, padded to the full length.
    observations = torch.zeros(len(pieces), WINDOW, 3)
    counts = torch.zeros(len(pieces), WINDOW)
    for index, piece in enumerate(pieces):
        length = len(piece.steps)
        observations[index, :length] = recorded.observation[piece.row, piece.steps]
        counts[index, :length] = torch.stack(piece.counts)
    states = torch.stack([piece.state for piece in pieces])
    batch = {Columns.OBS: observations, Columns.STATE_IN: {"memory": states}, rllib_module.COUNT: counts}
    features = module.forward_train(batch)[Columns.EMBEDDINGS]
    learning = torch.empty_like(acting)
    for index, piece in enumerate(pieces):
        learning[piece.row, piece.steps] = features[index, : len(piece.steps)].detach()
    return acting, learning


@pytest.mark.parametrize("core", ["compressive", "lstm"])
@pytest.mark.parametrize("example", [cleanrl, torchrl, sb3, sb3_every_step, rllib])
def test_features_equal_those_of_our_actor(example: Any, core: str) -> None:
    recorded = Recorded(core)
    for found in example(recorded):
        torch.testing.assert_close(found.detach(), recorded.features, rtol=0, atol=1e-5)


def test_cleanrl_ppo_learns() -> None:
    returns = cleanrl_ppo.main(cleanrl_ppo.Args(env_id="diagnostic:recall,delay=4", total_timesteps=30_000))
    assert np.mean(returns[:200]) < 0.5
    assert np.mean(returns[-200:]) > 0.8
    assert set(returns) == {0.0, 1.0}, "one answer an episode"


def test_cleanrl_ppo_refuses_observations_of_several_parts() -> None:
    with pytest.raises(ValueError, match="env-id: expected observations that are one image or one vector"):
        cleanrl_ppo.make_encoder(None, 8)


@pytest.mark.slow
def test_cleanrl_ppo_learns_choices_and_numbers() -> None:
    """Two numbers and two switches, which should repeat what is seen."""
    envs = SerialVectorEnv(lambda: adapt(Imitation(SPACES_OF_ACTIONS["Dict"], "vector")), 16)
    args = cleanrl_ppo.Args(core="memoryless", num_envs=16, num_steps=8, gamma=0.0, ent_coef=1e-3, learning_rate=1e-2)
    torch.manual_seed(0)
    agent = cleanrl_ppo.make_agent(envs, args)
    player = cleanrl_ppo.Player(envs, agent, args.seed)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate)
    for _ in range(120):
        rollout, next_value = player.rollout(args.num_steps)
        advantage = cleanrl_ppo.advantages(rollout, next_value, args)
        cleanrl_ppo.update(agent, optimizer, rollout, advantage, args)
    assert rollout.actions.shape == (16, 8, 4)
    assert np.mean(player.returns[:50]) < 0.7 * BEST_RETURN
    assert np.mean(player.returns[-100:]) > 0.82 * BEST_RETURN


def test_cleanrl_ppo_has_the_joint_distribution_of_all_parts() -> None:
    torch.manual_seed(0)
    two_numbers = NumberColumns("", (-1.0, -np.inf), (1.0, np.inf))
    space = ActionVector([ChoiceColumn("", 3), two_numbers, ChoiceColumn("", 2)])
    policy = cleanrl_ppo.Actor(space, SIZE)(torch.randn(5, SIZE))
    first, numbers, last = policy.parts
    actions = policy.sample()
    expected = first.log_prob(actions[:, :1]) + last.log_prob(actions[:, 3:])
    for column in (0, 1):
        own = torch.distributions.Normal(numbers.mean[:, column], numbers.stddev[:, column])
        expected = expected + own.log_prob(actions[:, 1 + column])
    torch.testing.assert_close(policy.log_prob(actions), expected)

    # At first both numbers have a standard deviation of 1.
    of_a_number = torch.distributions.Normal(0.0, 1.0).entropy().expand(5)
    torch.testing.assert_close(policy.entropy(), first.entropy() + last.entropy() + 2 * of_a_number)


@pytest.mark.usefixtures("two_threads")
def test_cleanrl_ppo_sees_images_and_names_wrong_sizes() -> None:
    args = cleanrl_ppo.Args(env_id="rooms:small,episode_frames=80", num_envs=2, num_minibatches=2, total_timesteps=128)
    assert len(cleanrl_ppo.main(args)) >= 2
    with pytest.raises(SystemExit, match="num_steps: expected a multiple of segment_size = 8, got 12"):
        cleanrl_ppo.main(cleanrl_ppo.Args(num_steps=12))


def test_cleanrl_ppo_bootstraps_after_a_truncation_alone() -> None:
    args = cleanrl_ppo.Args(gamma=0.5, gae_lambda=1.0)
    zeros = torch.zeros(1, 4)
    no = torch.zeros(1, 4, dtype=torch.bool)
    valid = torch.tensor([[True, True, False, True]])  # the episode ended after step 1
    rewards = torch.tensor([[1.0, 2.0, 0.0, 4.0]])
    values = torch.tensor([[1.0, 1.0, 8.0, 1.0]])
    rollout = cleanrl_ppo.Rollout((), zeros, no, zeros, zeros, values, rewards, no, valid)
    # Step 1: 2 + 0.5 x 8 - 1 = 5; step 0: (1 + 0.5 x 1 - 1) + 0.5 x 5 = 3; step 3: 4 + 0.5 x 2 - 1 = 4.
    assert cleanrl_ppo.advantages(rollout, torch.tensor([2.0]), args).tolist() == [[3.0, 5.0, 0.0, 4.0]]
    ended = rollout._replace(next_terminated=torch.tensor([[False, True, False, False]]))
    assert cleanrl_ppo.advantages(ended, torch.tensor([2.0]), args).tolist() == [[1.0, 1.0, 0.0, 4.0]]


def test_single_environments_say_how_episodes_end_and_repeat_with_a_seed() -> None:
    env = Single("gym:CartPole-v1,max_episode_steps=5")
    first, _ = env.reset(seed=3)
    for step in range(5):
        _, reward, terminated, truncated, _ = env.step(step % 2)
        assert reward == 1.0
        assert not terminated
        assert truncated == (step == 4)
    other, _ = env.reset(seed=4)
    assert not np.array_equal(other, first)
    again, _ = env.reset(seed=3)
    np.testing.assert_array_equal(again, first)

    # Pushed to one side, the pole falls.
    falling = Single("gym:CartPole-v1")
    falling.reset(seed=0)
    ends = set()
    for _ in range(12):
        _, _, terminated, truncated, _ = falling.step(0)
        ends.add((terminated, truncated))
    assert (True, False) in ends


def test_single_environments_take_vectors() -> None:
    """Pendulum: an action of 1 is a torque of 2, which in a step of 0.05 s adds 3 x 2 x 0.05 to its angular speed."""

    def speed_after(action: float) -> float:
        env = Single("gym:Pendulum-v1")
        env.reset(seed=0)
        (_, _, speed), *_ = env.step(np.array([action], np.float32))
        return speed

    of_one_torque = 3 * 2 * 0.05
    assert speed_after(1.0) - speed_after(-1.0) == pytest.approx(2 * of_one_torque, abs=1e-5)


def test_single_environments_have_the_spaces_that_libraries_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of choices, of numbers, and of both: an action of a space arrives as that of the environment."""
    own = gymnasium.spaces.Tuple(
        [
            gymnasium.spaces.MultiDiscrete([2, 4]),
            gymnasium.spaces.Box(0.0, 4.0, (2,)),
            gymnasium.spaces.Box(-np.inf, np.inf, (1,)),
            gymnasium.spaces.Discrete(3, start=5),
        ]
    )
    taken: list[Any] = []

    def scores(imitation: Imitation, space: Any, action: Any) -> list[float]:
        """Keeps the action, which is not scored."""
        taken.append(action)
        return [0.0]

    monkeypatch.setattr(Imitation, "_scores", scores)
    env = Single(imitate(monkeypatch, own))
    expected = gymnasium.spaces.Dict(
        {
            "0": gymnasium.spaces.MultiDiscrete([2, 4]),
            "1": gymnasium.spaces.Box(np.array([-1, -1, -np.inf]), np.array([1, 1, np.inf]), dtype=np.float32),
            "2": gymnasium.spaces.MultiDiscrete([3]),
        }
    )
    assert env.action_space == expected

    # Choices from 0 on; of numbers with bounds, -1 and 1 are the bounds.
    env.reset(seed=0)
    env.step({"0": np.array([1, 3]), "1": np.array([-1.0, 0.5, 7.0], np.float32), "2": np.array([2])})
    choices, bounded, unbounded, last = taken[0]
    assert choices.tolist() == [1, 3]
    assert bounded.tolist() == [0.0, 3.0]
    assert unbounded.tolist() == [7.0]
    assert last == 7


def test_single_environments_of_one_kind_of_action_have_a_plain_space(monkeypatch: pytest.MonkeyPatch) -> None:
    task = imitate(monkeypatch, SPACES_OF_ACTIONS["MultiBinary"])
    assert Single(task).action_space == gymnasium.spaces.MultiDiscrete([2, 2])
    task = imitate(monkeypatch, SPACES_OF_ACTIONS["Box"])
    assert Single(task).action_space == gymnasium.spaces.Box(-1, 1, (2,))


def imitate(monkeypatch: pytest.MonkeyPatch, space: gymnasium.Space) -> str:
    """The spec of a tiny task in a space of actions, for `Single`."""
    monkeypatch.setattr(
        "examples.single.make_vector",
        lambda spec, rows: SerialVectorEnv(lambda: adapt(Imitation(space, "vector")), rows),
    )
    return "imitation"


def cleanrl_rollout() -> tuple[cleanrl_ppo.Args, cleanrl_ppo.Agent, cleanrl_ppo.Rollout, Tensor]:
    """32 steps of 8 environments, with memories that are compressed, by a policy that has changed; and advantages."""
    torch.manual_seed(0)
    args = cleanrl_ppo.Args(env_id="diagnostic:recall,delay=20", num_envs=8, num_minibatches=1, update_epochs=1)
    envs = make_vector(args.env_id, args.num_envs)
    agent = cleanrl_ppo.make_agent(envs, args)
    rollout, next_value = cleanrl_ppo.Player(envs, agent, args.seed).rollout(args.num_steps)
    nn.init.orthogonal_(agent.actor.heads[0].weight, gain=2)
    return args, agent, rollout, cleanrl_ppo.advantages(rollout, next_value, args)


def test_cleanrl_ppo_has_the_loss_of_the_paper() -> None:
    """Against a loop over the steps whose actions took effect, equations (7) and (9) with an entropy bonus."""
    args, agent, rollout, advantage = cleanrl_rollout()
    target = advantage + rollout.values
    features, _, core_loss = agent(rollout.obs, rollout.reset, rollout.state)
    logits = agent.actor.heads[0](features).double()
    values = agent.critic(features)[..., 0].double()
    steps = [(row, step) for row in range(8) for step in range(32) if rollout.valid[row, step]]
    assert len(steps) < 8 * 32
    used = torch.tensor([advantage[at] for at in steps]).double()

    total = torch.zeros((), dtype=torch.float64)
    clipped = 0
    for at in steps:
        # The clipped objective of the policy.
        log_policy = logits[at].log_softmax(dim=-1)
        ratio = (log_policy[int(rollout.actions[at])] - rollout.logprobs[at]).exp()
        scaled = (advantage[at] - used.mean()) / (used.std() + 1e-8)
        near = min(max(ratio.item(), 1 - args.clip_coef), 1 + args.clip_coef)
        clipped += near != ratio.item()
        policy = -min(ratio * scaled, near * scaled)

        value = 0.5 * (values[at] - target[at]) ** 2
        entropy = -(log_policy.exp() * log_policy).sum()
        total = total + (policy + args.vf_coef * value - args.ent_coef * entropy) / len(steps)
    assert clipped > 20
    assert core_loss > 0
    found = cleanrl_ppo.loss_of(agent, rollout, advantage, target, args)
    torch.testing.assert_close(found.double(), total + core_loss.double(), rtol=1e-4, atol=1e-5)


def test_cleanrl_ppo_clips_the_network_and_the_compression_apart() -> None:
    """A step of SGD with a learning rate of 1 moves each group of weights by the greatest norm of its gradient."""
    args, agent, rollout, advantage = cleanrl_rollout()
    args.max_grad_norm = 1e-3

    def flat_groups() -> list[Tensor]:
        """A copy of all weights of each group, as one vector."""
        return [nn.utils.parameters_to_vector(group).detach().clone() for group in cleanrl_ppo.parameter_groups(agent)]

    before = flat_groups()
    cleanrl_ppo.update(agent, torch.optim.SGD(agent.parameters(), lr=1.0), rollout, advantage, args)
    for new, old in zip(flat_groups(), before, strict=True):
        assert (new - old).norm().item() == pytest.approx(args.max_grad_norm, rel=0.01)


def test_torchrl_values_after_each_step_are_those_of_its_last_observation() -> None:
    pytest.importorskip("torchrl")
    from torchrl.collectors import Collector

    from examples import torchrl_module

    args = torchrl_module.Args(env="diagnostic:recall,delay=4", num_envs=2, window=16)
    torch.manual_seed(0)
    envs = torchrl_module.make_envs(args)
    agent = torchrl_module.make_agent(envs, args)
    envs.append_transform(agent.memory.make_tensordict_primer())
    collector = Collector(envs, agent.acting, frames_per_batch=32, total_frames=32)
    data = next(iter(collector))
    collector.shutdown()
    assert data["next", "done"].any()
    assert not data["next", "done"][:, -1].any()
    found = agent.next_values(data)
    after = data["next"].set("is_init", torch.zeros_like(data["is_init"]))
    with torch.no_grad():
        expected = agent.value(agent.trunk(after))["state_value"]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_sb3_buffers_are_made_alike() -> None:
    pytest.importorskip("sb3_contrib")
    from examples import sb3_policy

    ours = sb3_policy.make_model(sb3_policy.Args(num_envs=2, every_step=False)).rollout_buffer
    theirs = sb3_policy.make_model(sb3_policy.Args(num_envs=2, every_step=True)).rollout_buffer
    for name in ("gae_lambda", "gamma", "n_envs", "buffer_size", "device"):
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("space", ["MultiDiscrete", "Box", "Box without bounds", "Dict"])
def test_torchrl_learns_all_kinds_of_actions(space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchrl")
    from examples import torchrl_module

    ratios: list[float] = []
    make_loss = torchrl_module.make_loss

    def noted(agent: Any) -> Any:
        loss = make_loss(agent)
        loss.register_forward_hook(lambda _, __, output: ratios.append(float(output["max_ratio"])))
        return loss

    monkeypatch.setattr(torchrl_module, "make_loss", noted)
    task = imitate(monkeypatch, SPACES_OF_ACTIONS[space])
    args = torchrl_module.Args(
        env=task, core="memoryless", num_envs=16, window=8, steps=50 * 16 * 8, minibatches=1, epochs=1,
        learning_rate=3e-3, gamma=0.0,
    )  # fmt: skip
    returns = [score for _, score in torchrl_module.main(args)]
    assert returns[0] < 0.75 * BEST_RETURN
    assert np.mean(returns[-10:]) > 0.88 * BEST_RETURN
    # One update a batch: the policy that learns is the one that acted. Later, numbers near their bounds are rounded.
    np.testing.assert_allclose(ratios[:10], 1, atol=1e-3)


def test_torchrl_has_the_joint_distribution_of_all_actions() -> None:
    pytest.importorskip("torchrl")
    from tensordict import TensorDict
    from torchrl.data import Bounded, Categorical, Composite, MultiCategorical, Unbounded
    from torchrl.modules import TanhNormal

    from examples import torchrl_module

    torch.manual_seed(0)
    core = FlatCore(Recorded("compressive").core).core
    memory = torchrl_module.MemoryModule(core, "embedding", "features")
    specs = Composite(
        one=Categorical(3), more=MultiCategorical([2, 4]), within=Bounded(-1, 1, (2,)), numbers=Unbounded((2,))
    )
    agent = torchrl_module.Agent(nn.Identity(), memory, SIZE, specs)
    found = agent.policy(TensorDict({"features": torch.randn(5, SIZE)}, [5]))
    params = found["params"]

    # Two choices, out of two and of four: the sum of the logarithms of their probabilities.
    assert (found["more"] < torch.tensor([2, 4])).all()
    logits = params["more", "logits"]
    expected = torch.zeros(5)
    for index, size in enumerate((2, 4)):
        log_policy = logits[:, index, :size].log_softmax(-1)
        expected = expected + log_policy.gather(1, found["more"][:, [index]])[:, 0]
    torch.testing.assert_close(found["more_log_prob"], expected)

    # One choice, numbers without bounds, and numbers within -1..1.
    one = params["one", "logits"].log_softmax(-1).gather(1, found["one"][:, None])[:, 0]
    torch.testing.assert_close(found["one_log_prob"], one)
    normal = torch.distributions.Normal(params["numbers", "loc"], params["numbers", "scale"])
    torch.testing.assert_close(found["numbers_log_prob"], normal.log_prob(found["numbers"]).sum(dim=-1))
    assert isinstance(agent.policy.get_dist(found).dists["within"], TanhNormal)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("space", ["MultiDiscrete", "Box"])
def test_sb3_learns_choices_and_numbers(space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sb3_contrib")
    from examples import sb3_policy

    task = imitate(monkeypatch, SPACES_OF_ACTIONS[space])
    args = sb3_policy.Args(env=task, core="memoryless", num_envs=16, steps=30 * 16 * 32)
    returns = [score for _, score in sb3_policy.main(args)]
    assert np.mean(returns[:50]) < 0.7 * BEST_RETURN
    assert np.mean(returns[-100:]) > 0.8 * BEST_RETURN


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("core", ["compressive", "library"])
@pytest.mark.parametrize(("library", "example"), [("torchrl", "torchrl_module"), ("sb3_contrib", "sb3_policy")])
def test_the_other_examples_run(library: str, example: str, core: str) -> None:
    pytest.importorskip(library)
    module = pytest.importorskip(f"examples.{example}")
    returns = module.main(module.Args(env="diagnostic:recall,delay=3", core=core, steps=2_048))
    steps, score = returns[-1]
    assert steps == 2_048
    assert 0 <= score <= 1


@pytest.mark.usefixtures("two_threads")
@pytest.mark.ray
@pytest.mark.parametrize("core", ["compressive", "library"])
def test_the_example_of_rllib_runs(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In RLlib's own pipeline the learner's first logits are those that acted."""
    pytest.importorskip("ray.rllib.algorithms.ppo", exc_type=ImportError)
    from ray.rllib.core.columns import Columns

    from examples import rllib_module

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    first: list[Tensor] = []
    forward_train = rllib_module.MemoryModule._forward_train

    def compare(module: Any, batch: dict[str, Any], **options: Any) -> dict[str, Any]:
        found = forward_train(module, batch, **options)
        difference = (found[Columns.ACTION_DIST_INPUTS] - batch[Columns.ACTION_DIST_INPUTS]).abs().amax(dim=-1)
        first.append(difference[batch[Columns.LOSS_MASK]].detach())
        return found

    monkeypatch.setattr(rllib_module.MemoryModule, "_forward_train", compare)
    returns = rllib_module.main(rllib_module.Args(env="diagnostic:recall,delay=3", core=core, steps=3_000))
    steps, _ = returns[-1]
    assert steps >= 3_000
    if core != "library":
        assert first[0].numel() > 200
        assert first[0].max() < 1e-5
        assert first[8].max() > 1e-5, "and after some updates they are others"


@pytest.mark.usefixtures("two_threads")
@pytest.mark.ray
@pytest.mark.parametrize("space", ["MultiDiscrete", "Box without bounds", "Dict"])
def test_rllib_learns_all_kinds_of_actions(space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.rllib.algorithms.ppo", exc_type=ImportError)
    from examples import rllib_module

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    task = imitate(monkeypatch, SPACES_OF_ACTIONS[space])
    args = rllib_module.Args(env=task, core="memoryless", num_envs=16, steps=25 * 16 * 32)
    returns = [score for _, score in rllib_module.main(args)]
    assert returns[0] < 0.7 * BEST_RETURN
    assert np.mean(returns[-3:]) > 0.85 * BEST_RETURN
