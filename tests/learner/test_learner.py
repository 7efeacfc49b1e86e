"""One update against the literal formula, masked steps, resumption, errors, and two problems to learn."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from agent.trajectory import Trajectory
from learner.config import LearnerConfig
from learner.errors import NotFinite
from learner.impala import ImpalaLearner
from learner.learner import Learner, resolve_device
from learner.optimization import list_names, snapshot
from tests.learner.conftest import ACTIONS, TinyAgent, TinyOutput
from tests.learner.test_vtrace import LiteralReturns, literal

CPU = LearnerConfig(device="cpu")


def make(agent: Any, total_steps: int = 1000, **changes: Any) -> Learner:
    return Learner(agent, dataclasses.replace(CPU, **changes), total_steps)


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def log_probs(logits: Tensor, actions: Tensor) -> Tensor:
    """Log-probabilities [B, T] of actions [B, T]."""
    return logits.log_softmax(-1).gather(2, actions[..., None])[..., 0]


def literal_returns(output: TinyOutput, batch: Trajectory, discount: float, rewards: Tensor) -> LiteralReturns:
    """V-trace by loops, from the policy and the values of the agent; `rewards` [B, T] are clipped and scaled."""
    logits = output.policy_parameters.detach()
    values = output.value.detach()
    return literal(
        log_rhos=log_probs(logits[:, :-1], batch.action) - log_probs(batch.policy_parameters, batch.action),
        discounts=discount * batch.discount[:, 1:],
        rewards=rewards,
        values=values[:, :-1],
        bootstrap_value=values[:, -1],
        mask=~batch.reset[:, 1:],
        rho_bar=1.0,
        c_bar=1.0,
        pg_bar=1.0,
        lambda_=1.0,
    )


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("exploration", ["entropy", "evenness"])
def test_an_update_is_that_of_the_paper(
    tiny_agent: Callable[..., TinyAgent],
    trajectory: Callable[..., Trajectory],
    reduction: str,
    clip: float | None,
    exploration: str,
) -> None:
    agent = tiny_agent()
    reference = tiny_agent()
    batch = trajectory(4, 6)
    batch.version[1:3] = torch.tensor([-1, -5])
    costs = {"entropy_cost": 0.01, "baseline_cost": 0.7, "exploration": exploration}
    clipping = {"reward_clipping": "abs_one", "reward_scale": 0.5, "max_gradient_norm": clip}
    learner = make(agent, reduction=reduction, discount=0.9, learning_rate=0.01, **costs, **clipping)

    # The update calls the agent once. No gradient reaches the state in which the unroll began.
    hidden = batch.core_state.hidden.clone().requires_grad_()
    begin = batch.core_state._replace(hidden=hidden * 1.0)
    metrics = learner.update(batch._replace(core_state=begin))
    assert agent.calls == 1
    assert hidden.grad is None

    # The sums of the losses by loops over the steps.
    output = reference(batch.observation, batch.last_action, batch.reward, batch.reset, batch.core_state)
    returns = literal_returns(output, batch, 0.9, rewards=0.5 * batch.reward[:, 1:].clamp(-1, 1))
    log_pi = output.policy_parameters.log_softmax(-1)
    policy, baseline, entropy, evenness, value = torch.zeros(5).unbind()
    acting = (~batch.reset[:, 1:]).nonzero().tolist()
    for b, t in acting:
        policy = policy - log_pi[b, t, batch.action[b, t]] * returns.pg_advantages[b, t]
        baseline = baseline + 0.5 * (returns.vs[b, t] - output.value[b, t]) ** 2
        entropy = entropy - (log_pi[b, t].exp() * log_pi[b, t]).sum()
        evenness = evenness + (log_pi[b, t] + math.log(ACTIONS)).mean()
        value = value + output.value[b, t].detach()
    count = len(acting)
    assert 0 < count < 24, "some steps are masked"

    # Their reduction and costs.
    scale = 1 / count if reduction == "mean" else 1.0
    bonus = entropy if exploration == "entropy" else evenness
    losses = {
        "loss/policy": scale * policy,
        "loss/baseline": 0.7 * scale * baseline,
        "loss/entropy": -0.01 * scale * bonus,
        "loss/compression/layer_0": output.losses["compression/layer_0"].value,
    }
    total = sum(losses.values())
    total.backward()

    # The gradients of the compression are clipped apart from those of all else.
    compression = reference.compression_parameters()
    main = [parameter for name, parameter in reference.named_parameters() if not name.startswith("compression")]
    norms = {}
    for name, group in {"gradient/norm": main, "gradient/compression_norm": compression}.items():
        norms[name] = math.sqrt(sum(parameter.grad.square().sum().item() for parameter in group))
        if clip is not None:
            assert norms[name] > clip
            for parameter in group:
                parameter.grad *= clip / norms[name]
    torch.optim.Adam(reference.parameters(), lr=0.01, betas=(0.9, 0.999), eps=1e-6).step()

    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(learner.weights()[name], parameter.detach(), rtol=1e-4, atol=1e-5)
    expected = {
        **{name: loss.item() for name, loss in losses.items()},
        **norms,
        "loss/total": total.item(),
        "policy/entropy": entropy.item() / count,
        "value/mean": value.item() / count,
        "importance/mean_rho": returns.mean_rho,
        "policy_lag/mean": 1.5,
        "policy_lag/max": 5.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert learner.steps == count
    assert learner.version == 1


@pytest.mark.parametrize(("normalize", "trust"), [(True, None), (False, 0.2), (True, 0.05)])
def test_normalized_and_trusted_advantages(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory], normalize: bool, trust: float | None
) -> None:
    """The policy's loss by literal loops."""
    agent = tiny_agent()
    batch = trajectory(4, 6)
    output = agent(batch.observation, batch.last_action, batch.reward, batch.reset, batch.core_state)
    advantages = literal_returns(output, batch, 0.99, rewards=batch.reward[:, 1:]).pg_advantages
    log_pi = log_probs(output.policy_parameters.detach()[:, :-1], batch.action)
    log_mu = log_probs(batch.policy_parameters, batch.action)
    acting = (~batch.reset[:, 1:]).nonzero().tolist()

    # Normalized advantages are divided by their root mean square.
    unit = 1.0
    if normalize:
        unit = math.sqrt(sum(advantages[b, t].item() ** 2 for b, t in acting) / len(acting))

    expected = 0.0
    left_out = 0
    for b, t in acting:
        advantage = advantages[b, t].item() / unit
        ratio = math.exp(log_pi[b, t] - log_mu[b, t])
        # With `trust`, steps have no loss where the policy has already moved far in the direction of the advantage.
        if trust is not None:
            moved_far = ratio > 1 + trust if advantage > 0 else ratio < 1 / (1 + trust)
            if moved_far:
                left_out += 1
                continue
        expected -= log_pi[b, t].item() * advantage / len(acting)
    assert (left_out > 0) == (trust is not None)

    metrics = make(agent, discount=0.99, normalize_advantages=normalize, trust=trust).update(batch)
    assert metrics["loss/policy"] == pytest.approx(expected, rel=1e-4)


def test_normalized_advantages_of_a_batch_without_steps_are_finite(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]
) -> None:
    """Their root mean square is 0."""
    batch = trajectory(2, 4)
    batch.reset[:] = True
    assert make(tiny_agent(), normalize_advantages=True).update(batch)["loss/policy"] == 0


def test_the_learner_of_runs_makes_the_updates_of_impala(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]
) -> None:
    """What `Learner` adds to `ImpalaLearner` changes no number."""
    plain = ImpalaLearner(tiny_agent(), CPU, 1000, torch.device("cpu"))
    learner = make(tiny_agent())
    for seed in range(3):
        batch = trajectory(3, 5, seed=seed)
        assert plain.update(batch) == learner.update(batch)
    assert plain.counters == learner.counters
    assert same(plain.weights(), learner.weights())


SCHEDULES = {
    "learning_rate": 0.5,
    "learning_rate_schedule": "linear",
    "entropy_cost": 0.3,
    "entropy_cost_end": 0.1,
}


def test_schedules_are_linear_in_steps_and_end(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]
) -> None:
    learner = make(tiny_agent(), total_steps=100, **SCHEDULES)
    for steps, learning_rate, entropy_cost in ((0, 0.5, 0.3), (50, 0.25, 0.2), (1000, 0.0, 0.1)):
        learner.steps = steps
        before = learner.weights()
        assert learner.learning_rate == pytest.approx(learning_rate)
        assert learner.entropy_cost == pytest.approx(entropy_cost)
        metrics = learner.update(trajectory(1, 2))
        assert metrics["learning_rate"] == pytest.approx(learning_rate)
        assert metrics["entropy_cost"] == pytest.approx(entropy_cost)
        assert same(before, learner.weights()) == (learning_rate == 0)


def test_schedules_begin_after_their_share_of_the_steps(tiny_agent: Callable[..., TinyAgent]) -> None:
    learner = make(tiny_agent(), total_steps=100, schedule_start=0.6, **SCHEDULES)
    expected = ((0, 0.5, 0.3), (60, 0.5, 0.3), (70, 0.375, 0.25), (90, 0.125, 0.15), (100, 0.0, 0.1))
    for steps, learning_rate, entropy_cost in expected:
        learner.steps = steps
        assert learner.learning_rate == pytest.approx(learning_rate, abs=1e-9)
        assert learner.entropy_cost == pytest.approx(entropy_cost, abs=1e-9)


def second_step_of_adam(config: LearnerConfig, statistics: dict[str, Tensor], gradient: Tensor) -> Tensor:
    """The direction of the second update, from the statistics of the first (Kingma & Ba 2015, algorithm 1)."""
    mean = config.adam_beta1 * statistics["exp_avg"] + (1 - config.adam_beta1) * gradient
    square = config.adam_beta2 * statistics["exp_avg_sq"] + (1 - config.adam_beta2) * gradient**2
    corrected_mean = mean / (1 - config.adam_beta1**2)
    corrected_square = square / (1 - config.adam_beta2**2)
    return corrected_mean / (corrected_square.sqrt() + config.adam_epsilon)


def second_step_of_rmsprop(config: LearnerConfig, statistics: dict[str, Tensor], gradient: Tensor) -> Tensor:
    """The direction of the second update, from the statistics of the first; without momentum these have none."""
    square = config.rmsprop_decay * statistics["square_avg"] + (1 - config.rmsprop_decay) * gradient**2
    momentum = statistics.get("momentum_buffer", torch.zeros(()))
    return config.rmsprop_momentum * momentum + gradient / (square.sqrt() + config.rmsprop_epsilon)


@pytest.mark.parametrize(
    ("optimizer", "before", "after"),
    [
        ("adam", {}, {"adam_beta1": 0.5, "adam_beta2": 0.9, "adam_epsilon": 0.1}),
        (
            "rmsprop",
            {"rmsprop_momentum": 0.0},
            {"rmsprop_decay": 0.5, "rmsprop_epsilon": 0.01, "rmsprop_momentum": 0.5},
        ),
        ("rmsprop", {"rmsprop_momentum": 0.9}, {"rmsprop_epsilon": 0.01, "rmsprop_momentum": 0.5}),
    ],
)
def test_a_restored_learner_has_its_own_hyper_parameters(
    tiny_agent: Callable[..., TinyAgent],
    trajectory: Callable[..., Trajectory],
    optimizer: str,
    before: dict[str, Any],
    after: dict[str, Any],
) -> None:
    """The statistics are restored; the update is that of the formula with the new configuration."""
    old = make(tiny_agent(), optimizer=optimizer, **before)
    old.update(trajectory(4, 6))
    saved = old.state_dict()

    agent = tiny_agent()
    resumed = make(agent, learning_rate=0.01, optimizer=optimizer, **after)
    resumed.load_state_dict(saved)
    resumed.update(trajectory(4, 6, seed=1))

    second_step = {"adam": second_step_of_adam, "rmsprop": second_step_of_rmsprop}[optimizer]
    names = sorted(saved["weights"], key=lambda name: name.startswith("compression"))  # the optimizer's order
    for name, statistics in zip(names, saved["optimizer"]["state"].values(), strict=True):
        step = second_step(resumed.config, statistics, agent.get_parameter(name).grad)
        torch.testing.assert_close(resumed.weights()[name], saved["weights"][name] - 0.01 * step)


def test_weights_are_copies_in_storages_of_their_own() -> None:
    """For any shapes and dtypes, so that nothing else is pickled with them."""
    module = torch.nn.Module()
    module.matrix = torch.nn.Parameter(torch.randn(5, 3).T)
    module.register_buffer("flags", torch.tensor([True, False]))
    module.register_buffer("pi", torch.tensor(math.pi).double())
    module.register_buffer("rounded", torch.randn(3).bfloat16())
    module.register_buffer("empty", torch.zeros(0, 4))

    copies = snapshot(module)()
    assert list(copies) == list(module.state_dict())
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(copies[name], tensor, rtol=0, atol=0)
        assert copies[name].untyped_storage().nbytes() == tensor.nbytes
        assert tensor.numel() == 0 or copies[name].data_ptr() != tensor.data_ptr()
    assert not copies["matrix"].requires_grad


def test_a_batch_without_steps_is_finite(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]
) -> None:
    """Every step begins an episode, so no action had an effect."""
    batch = trajectory(2, 4)
    batch.reset[:] = True
    learner = Learner(tiny_agent(), LearnerConfig(reduction="mean"), total_steps=1000)
    metrics = learner.update(batch)
    assert learner.version == 1
    assert learner.steps == 0
    assert metrics["loss/policy"] == metrics["loss/baseline"] == metrics["value/mean"] == 0
    assert all(map(math.isfinite, metrics.values()))


@pytest.mark.parametrize(
    ("count", "text"), [(0, "none"), (2, "0, 1"), (5, "0, 1, 2, 3, 4"), (7, "0, 1, 2, 3, 4 and 2 more")]
)
def test_at_most_five_names_are_listed(count: int, text: str) -> None:
    assert list_names(map(str, range(count))) == text


@pytest.mark.parametrize(
    ("broken", "value", "message"),
    [
        ("reward", math.nan, r"update 2 is not finite: loss/.*trajectory that are not finite: reward\."),
        ("core_state", math.nan, r"trajectory that are not finite: core_state\."),
        ("gradient", math.nan, "gradient/norm = nan; parameters with such gradients: policy.weight;.*finite: none"),
        ("compression", math.inf, "loss/compression/layer_0 = inf"),
    ],
)
def test_an_update_that_is_not_finite_changes_nothing(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory], broken: str, value: Any, message: str
) -> None:
    agent = tiny_agent()
    learner = make(agent)
    twin = make(tiny_agent())
    batch = trajectory(2, 4)
    learner.update(batch)
    twin.load_state_dict(learner.state_dict())

    # Break one field of the trajectory, the gradients or the compression loss.
    bad = trajectory(2, 4)
    factor = 1.0
    fields: tuple[str, ...] = ()
    if broken == "reward":
        bad.reward[1, 2] = value
        fields = ("reward",)
    elif broken == "core_state":
        bad.core_state.hidden[1, 2] = value
        fields = ("core_state",)
    elif broken == "gradient":
        factor = value
    else:
        agent.compression_scale = value
    hook = agent.policy.weight.register_hook(lambda gradient: gradient * factor)
    with pytest.raises(NotFinite, match=message) as error:
        learner.update(bad)
    assert error.value.number == 2
    assert error.value.fields == fields
    assert error.value.from_environments == (broken == "reward")

    # The learner is as before, and learns from the next batch.
    hook.remove()
    agent.compression_scale = 1.0
    assert learner.version == twin.version
    assert learner.steps == twin.steps
    assert learner.update(batch) == twin.update(batch)
    assert same(learner.weights(), twin.weights())


class TestErrors:
    def test_trajectories_that_do_not_fit(
        self, tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]
    ) -> None:
        learner = make(tiny_agent())
        batch = trajectory(2, 4)
        with pytest.raises(ValueError, match="reward: expected"):
            learner.update(batch._replace(reward=batch.reward[:, :-1]))
        state_of_one_row = batch.core_state._replace(hidden=batch.core_state.hidden[:1])
        with pytest.raises(ValueError, match=r"core_state: expected .*\[2, 8\], got .*\[1, 8\]"):
            learner.update(batch._replace(core_state=state_of_one_row))
        with pytest.raises(ValueError, match=r"policy_parameters of the agent: expected \[2, 4, 3\].* \[2, 4, 2\]"):
            learner.update(batch._replace(policy_parameters=torch.zeros(2, 4, 3)))
        assert learner.version == 0

    def test_arguments_of_the_learner(self, tiny_agent: Callable[..., TinyAgent]) -> None:
        with pytest.raises(ValueError, match="total_steps: expected at least 1, got 0"):
            make(tiny_agent(), total_steps=0)
        agent = tiny_agent()
        agent.compression_parameters = tiny_agent().compression_parameters  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="compression_parameters: expected parameters of the agent, got 2 others"):
            make(agent)

    def test_a_state_of_another_optimizer(self, tiny_agent: Callable[..., TinyAgent]) -> None:
        learner = make(tiny_agent())
        state = learner.state_dict()
        state["optimizer"]["param_groups"].pop()
        with pytest.raises(ValueError, match="optimizer: expected 2 groups of parameters, got 1"):
            learner.load_state_dict(state)

    def test_the_traces_are_clipped_at_most_as_high_as_the_targets(self) -> None:
        with pytest.raises(ValueError, match=r"clip_c: .* clip_rho = 0.5 .*, got 1.0; a lower clip_rho needs"):
            dataclasses.replace(CPU, clip_rho=0.5)
        assert dataclasses.replace(CPU, clip_rho=None, clip_c=3.0).clip_c == 3.0

    def test_device(self) -> None:
        assert resolve_device("cpu") == torch.device("cpu")
        assert resolve_device("auto").type in ("cpu", "cuda")
        assert resolve_device("cpu:3") == torch.device("cpu")
        for device in ("abacus", "meta", "cuda:99", "privateuseone"):
            with pytest.raises(ValueError, match=f"device: expected auto, cpu or a GPU that .*, got {device!r}"):
                resolve_device(device)


def test_learns_to_remember(tiny_agent: Callable[..., TinyAgent]) -> None:
    """The first of four steps shows a cue; at the third, the action that it names earns 1, the other -1."""
    agent = tiny_agent()
    learner = make(agent, max_gradient_norm=1.0, discount=0.9, entropy_cost=0.01, learning_rate=0.01)

    # Unrolls of two episodes and the first step of the next; all rows are at the same place of an episode.
    rows, steps, episode = 32, 8, 4
    place = (torch.arange(steps + 1) % episode).expand(rows, -1)
    reset = place == 0
    asked = place == 2
    last = place == 3

    mean_rewards = []
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for _ in range(150):
            cue_of_episode = torch.randint(2, (rows, 3)) * 2.0 - 1.0
            cue = cue_of_episode.repeat_interleave(episode, dim=1)[:, : steps + 1]
            observation = torch.stack([reset * cue, reset * 1.0, asked * 1.0], dim=-1)

            # Act. The reward of an action comes with the next observation.
            last_action = torch.full(reset.shape, -1)
            reward = torch.zeros(reset.shape)
            actions, logits = [], []
            state = agent.initial_state(rows)
            for t in range(steps):
                now = slice(t, t + 1)
                with torch.no_grad():
                    output = agent(observation[:, now], last_action[:, now], reward[:, now], reset[:, now], state)
                state = output.state
                parameters = output.policy_parameters[:, 0]
                action = torch.distributions.Categorical(logits=parameters).sample()
                logits.append(parameters)
                actions.append(action)
                last_action[:, t + 1] = action.masked_fill(reset[:, t + 1], -1)
                reward[:, t + 1] = (action * 2.0 - 1.0) * cue[:, t] * last[:, t + 1]

            # Learn.
            trajectory = Trajectory(
                observation=observation,
                last_action=last_action,
                reward=reward,
                discount=1 - last.float(),
                reset=reset,
                action=torch.stack(actions, dim=1),
                policy_parameters=torch.stack(logits, dim=1),
                core_state=agent.initial_state(rows),
                actor_id=torch.zeros(rows, dtype=torch.int64),
                version=torch.zeros(rows, dtype=torch.int64),
            )
            learner.update(trajectory)
            mean_rewards.append(reward[last].mean().item())
    assert max(map(abs, mean_rewards[:3])) < 0.5
    assert sum(mean_rewards[-5:]) / 5 > 0.9
