"""One update against the literal formula, masked steps, resumption, errors, and two problems to learn."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from agent.trajectory import EnvOutput, Trajectory
from learner.config import LearnerConfig
from learner.errors import NotFinite
from learner.impala import ImpalaLearner
from learner.learner import Learner, resolve_device
from learner.optimization import list_names, snapshot
from tests.learner.conftest import TinyAgent
from tests.learner.test_vtrace import literal

CPU = LearnerConfig(device="cpu")


def make(agent: Any, total_steps: int = 1000, **changes: Any) -> Learner:
    return Learner(agent, dataclasses.replace(CPU, **changes), total_steps)


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


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
    agent, reference, batch = tiny_agent(), tiny_agent(), trajectory(4, 6)
    batch.version[1:3] = torch.tensor([-1, -5])
    costs = {"entropy_cost": 0.01, "baseline_cost": 0.7, "reward_clipping": "abs_one", "reward_scale": 0.5}
    costs["exploration"] = exploration
    learner = make(agent, reduction=reduction, max_gradient_norm=clip, discount=0.9, learning_rate=0.01, **costs)
    hidden = batch.core_state.hidden.clone().requires_grad_()
    metrics = learner.update(batch._replace(core_state=batch.core_state._replace(hidden=hidden * 1.0)))
    assert (agent.calls, hidden.grad) == (1, None)

    output = reference(batch.observation, batch.last_action, batch.reward, batch.reset, batch.core_state)
    values, logits = output.value.detach(), output.policy_parameters.detach()
    ratio = logits[:, :-1].softmax(-1) / batch.policy_parameters.softmax(-1)
    log_rhos = ratio.gather(2, batch.action[..., None])[..., 0].log()
    rewards, mask = 0.5 * batch.reward.clamp(-1, 1)[:, 1:], ~batch.reset[:, 1:]
    targets = log_rhos, 0.9 * batch.discount[:, 1:], rewards, values[:, :-1], values[:, -1], mask
    vs, advantages, mean_rho, _ = literal(*targets, rho_bar=1.0, c_bar=1.0, pg_bar=1.0, lambda_=1.0)
    acting = mask.nonzero().tolist()
    count = len(acting)
    assert 0 < count < 24
    log_pi = output.policy_parameters.log_softmax(-1)
    scale = 1 / count if reduction == "mean" else 1.0
    policy = scale * sum(-log_pi[b, t, batch.action[b, t]] * advantages[b, t] for b, t in acting)
    baseline = scale * 0.7 * sum(0.5 * (vs[b, t] - output.value[b, t]) ** 2 for b, t in acting)
    entropy = -sum((log_pi[b, t].exp() * log_pi[b, t]).sum() for b, t in acting)
    bonus = entropy
    if exploration == "evenness":
        bonus = sum((log_pi[b, t] + math.log(log_pi.shape[-1])).mean() for b, t in acting)
    total = policy + baseline - scale * 0.01 * bonus + output.losses["compression/layer_0"].value
    total.backward()
    compression = reference.compression_parameters()
    main = [parameter for name, parameter in reference.named_parameters() if not name.startswith("compression")]
    norms = [math.sqrt(sum(p.grad.square().sum().item() for p in group)) for group in (main, compression)]
    if clip is not None:
        assert min(norms) > clip
        for group, norm in zip((main, compression), norms):
            for parameter in group:
                parameter.grad *= clip / norm
    torch.optim.Adam(reference.parameters(), lr=0.01, betas=(0.9, 0.999), eps=1e-6).step()

    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(learner.weights()[name], parameter.detach(), rtol=1e-4, atol=1e-5)
    expected = {
        "loss/total": total.item(),
        "loss/policy": policy.item(),
        "loss/baseline": baseline.item(),
        "loss/entropy": -0.01 * scale * bonus.item(),
        "loss/compression/layer_0": output.losses["compression/layer_0"].value.item(),
        "policy/entropy": entropy.item() / count,
        "gradient/norm": norms[0],
        "gradient/compression_norm": norms[1],
        "value/mean": sum(values[b, t].item() for b, t in acting) / count,
        "importance/mean_rho": mean_rho,
        "policy_lag/mean": 1.5,
        "policy_lag/max": 5.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert (learner.steps, learner.version) == (count, 1)


@pytest.mark.parametrize(("normalize", "trust"), [(True, None), (False, 0.2), (True, 0.05)])
def test_normalized_and_trusted_advantages(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory], normalize: bool, trust: float | None
) -> None:
    """The policy's loss by literal loops."""
    agent, batch = tiny_agent(), trajectory(4, 6)
    output = agent(batch.observation, batch.last_action, batch.reward, batch.reset, batch.core_state)
    log_pi = output.policy_parameters.detach()[:, :-1].log_softmax(-1).gather(2, batch.action[..., None])[..., 0]
    log_mu = batch.policy_parameters.log_softmax(-1).gather(2, batch.action[..., None])[..., 0]
    values, mask = output.value.detach(), ~batch.reset[:, 1:]
    steps = 0.99 * batch.discount[:, 1:], batch.reward[:, 1:], values[:, :-1], values[:, -1], mask
    _, advantages, _, _ = literal(log_pi - log_mu, *steps, rho_bar=1.0, c_bar=1.0, pg_bar=1.0, lambda_=1.0)

    acting = mask.nonzero().tolist()
    unit = math.sqrt(sum(advantages[b, t].item() ** 2 for b, t in acting) / len(acting)) if normalize else 1.0
    expected, left_out = 0.0, 0
    for b, t in acting:
        advantage, ratio = advantages[b, t].item() / unit, math.exp(log_pi[b, t] - log_mu[b, t])
        if trust is not None and (ratio > 1 + trust if advantage > 0 else ratio < 1 / (1 + trust)):
            left_out += 1
            continue
        expected -= log_pi[b, t].item() * advantage / len(acting)
    assert (left_out > 0) == (trust is not None)
    metrics = make(agent, discount=0.99, normalize_advantages=normalize, trust=trust).update(batch)
    assert metrics["loss/policy"] == pytest.approx(expected, rel=1e-4)


def test_advantages_of_nothing_stay_finite(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]
) -> None:
    """Of a batch in which no action had an effect."""
    batch = trajectory(2, 4)
    batch.reset[:] = True
    assert make(tiny_agent(), normalize_advantages=True).update(batch)["loss/policy"] == 0


def test_the_learner_of_runs_is_impalas(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]
) -> None:
    """What it adds changes no number."""
    plain, learner = ImpalaLearner(tiny_agent(), CPU, 1000, torch.device("cpu")), make(tiny_agent())
    for seed in range(3):
        batch = trajectory(3, 5, seed=seed)
        assert plain.update(batch) == learner.update(batch)
    assert plain.counters == learner.counters
    assert same(plain.weights(), learner.weights())


def test_schedules_are_linear_in_steps_and_end(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]
) -> None:
    schedules = {"learning_rate_schedule": "linear", "entropy_cost": 0.3, "entropy_cost_end": 0.1}
    learner = make(tiny_agent(), total_steps=100, learning_rate=0.5, **schedules)
    for steps, *expected in ((0, 0.5, 0.3), (50, 0.25, 0.2), (1000, 0.0, 0.1)):
        learner.steps, before = steps, learner.weights()
        assert [learner.learning_rate, learner.entropy_cost] == pytest.approx(expected)
        metrics = learner.update(trajectory(1, 2))
        assert [metrics["learning_rate"], metrics["entropy_cost"]] == pytest.approx(expected)
        assert same(before, learner.weights()) == (steps == 1000)


def test_schedules_begin_after_their_share_of_the_steps(tiny_agent: Callable[..., TinyAgent]) -> None:
    schedules = {"learning_rate_schedule": "linear", "entropy_cost": 0.3, "entropy_cost_end": 0.1}
    learner = make(tiny_agent(), total_steps=100, learning_rate=0.5, schedule_start=0.6, **schedules)
    for steps, *expected in ((0, 0.5, 0.3), (60, 0.5, 0.3), (70, 0.375, 0.25), (90, 0.125, 0.15), (100, 0.0, 0.1)):
        learner.steps = steps
        assert [learner.learning_rate, learner.entropy_cost] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"adam_beta1": 0.5, "adam_beta2": 0.9, "adam_epsilon": 0.1}),
        ({"rmsprop_momentum": 0.0}, {"rmsprop_decay": 0.5, "rmsprop_epsilon": 0.01, "rmsprop_momentum": 0.5}),
        ({"rmsprop_momentum": 0.9}, {"rmsprop_epsilon": 0.01, "rmsprop_momentum": 0.5}),
    ],
)
def test_a_restored_learner_has_its_own_hyper_parameters(
    tiny_agent: Callable[..., TinyAgent],
    trajectory: Callable[..., Trajectory],
    before: dict[str, Any],
    after: dict[str, Any],
) -> None:
    """The statistics are restored; the update is that of the formula with the new configuration."""
    optimizer = "rmsprop" if before else "adam"
    old, agent = make(tiny_agent(), optimizer=optimizer, **before), tiny_agent()
    old.update(trajectory(4, 6))
    saved = old.state_dict()
    resumed = make(agent, learning_rate=0.01, optimizer=optimizer, **after)
    resumed.load_state_dict(saved)
    resumed.update(trajectory(4, 6, seed=1))

    config = resumed.config
    names = sorted(saved["weights"], key=lambda name: name.startswith("compression"))  # the optimizer's order
    for name, statistics in zip(names, saved["optimizer"]["state"].values(), strict=True):
        gradient, weight = agent.get_parameter(name).grad, saved["weights"][name]
        if optimizer == "adam":
            mean = config.adam_beta1 * statistics["exp_avg"] + (1 - config.adam_beta1) * gradient
            square = config.adam_beta2 * statistics["exp_avg_sq"] + (1 - config.adam_beta2) * gradient**2
            mean, square = mean / (1 - config.adam_beta1**2), square / (1 - config.adam_beta2**2)  # the second step
            change = mean / (square.sqrt() + config.adam_epsilon)
        else:
            square = config.rmsprop_decay * statistics["square_avg"] + (1 - config.rmsprop_decay) * gradient**2
            momentum = statistics.get("momentum_buffer", torch.zeros(()))
            change = config.rmsprop_momentum * momentum + gradient / (square.sqrt() + config.rmsprop_epsilon)
        torch.testing.assert_close(resumed.weights()[name], weight - 0.01 * change)


def test_weights_are_copies_in_storages_of_their_own(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]
) -> None:
    """For any shapes and dtypes, so that nothing else is pickled with them."""
    module = torch.nn.Module()
    module.matrix = torch.nn.Parameter(torch.randn(5, 3).T)
    others = torch.tensor([True, False]), torch.tensor(math.pi).double(), torch.randn(3).bfloat16(), torch.zeros(0, 4)
    for index, values in enumerate(others):
        module.register_buffer(f"buffer_{index}", values)
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
    batch = batch._replace(reset=torch.ones_like(batch.reset))
    learner = Learner(tiny_agent(), LearnerConfig(reduction="mean"), total_steps=1000)
    metrics = learner.update(batch)
    assert (learner.version, learner.steps) == (1, 0)
    assert metrics["loss/policy"] == metrics["loss/baseline"] == metrics["value/mean"] == 0
    assert all(map(math.isfinite, metrics.values()))


@pytest.mark.parametrize(
    ("count", "text"), [(0, "none"), (2, "0, 1"), (5, "0, 1, 2, 3, 4"), (7, "0, 1, 2, 3, 4 and 2 more")]
)
def test_five_names_are_listed(count: int, text: str) -> None:
    assert list_names(map(str, range(count))) == text


@pytest.mark.parametrize(
    ("what", "value", "message"),
    [
        ("reward", math.nan, r"update 2 is not finite: loss/.*trajectory that are not finite: reward\."),
        ("core_state", math.nan, r"trajectory that are not finite: core_state\."),
        ("gradient", math.nan, "gradient/norm = nan; parameters with such gradients: policy.weight;.*finite: none"),
        ("compression", math.inf, "loss/compression/layer_0 = inf"),
    ],
)
def test_an_update_that_is_not_finite_changes_nothing(
    tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory], what: str, value: Any, message: str
) -> None:
    agent, batch, bad = tiny_agent(), trajectory(2, 4), trajectory(2, 4)
    learner, twin = make(agent), make(tiny_agent())
    learner.update(batch)
    twin.load_state_dict(learner.state_dict())
    fields: tuple[str, ...] = ()
    if what in ("reward", "core_state"):
        {"reward": bad.reward, "core_state": bad.core_state.hidden}[what][1, 2] = value
        fields = (what,)
    factor = value if what == "gradient" else 1.0
    agent.compression_scale = value if what == "compression" else 1.0
    handle = agent.policy.weight.register_hook(lambda gradient: gradient * factor)
    with pytest.raises(NotFinite, match=message) as error:
        learner.update(bad)
    handle.remove()
    assert (error.value.number, error.value.fields) == (2, fields)
    assert error.value.from_environments == (what == "reward")
    agent.compression_scale = 1.0
    assert (learner.version, learner.steps) == (twin.version, twin.steps)
    assert learner.update(batch) == twin.update(batch)
    assert same(learner.weights(), twin.weights())


class TestErrors:
    def test_arguments(self, tiny_agent: Callable[..., TinyAgent], trajectory: Callable[..., Trajectory]) -> None:
        learner, batch = make(tiny_agent()), trajectory(2, 4)
        with pytest.raises(ValueError, match="reward: expected"):
            learner.update(batch._replace(reward=batch.reward[:, :-1]))
        state = batch.core_state._replace(hidden=batch.core_state.hidden[:1])
        with pytest.raises(ValueError, match=r"core_state: expected .*\[2, 8\], got .*\[1, 8\]"):
            learner.update(batch._replace(core_state=state))
        with pytest.raises(ValueError, match=r"policy_parameters of the agent: expected \[2, 4, 3\].* \[2, 4, 2\]"):
            learner.update(batch._replace(policy_parameters=torch.zeros(2, 4, 3)))
        assert learner.version == 0
        with pytest.raises(ValueError, match="total_steps: expected at least 1, got 0"):
            make(tiny_agent(), total_steps=0)
        agent = tiny_agent()
        agent.compression_parameters = tiny_agent().compression_parameters  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="compression_parameters: expected parameters of the agent, got 2 others"):
            make(agent)
        state = learner.state_dict()
        state["optimizer"]["param_groups"].pop()
        with pytest.raises(ValueError, match="optimizer: expected 2 groups of parameters, got 1"):
            learner.load_state_dict(state)

    def test_the_traces_are_clipped_at_most_as_high_as_the_targets(self) -> None:
        with pytest.raises(ValueError, match=r"clip_c: expected at most clip_rho = 1.0 .*, got None"):
            dataclasses.replace(CPU, clip_c=None)
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
    agent, scores, rows = tiny_agent(), [], 32
    learner = make(agent, max_gradient_norm=1.0, discount=0.9, entropy_cost=0.01, learning_rate=0.01)
    position = (torch.arange(9) % 4).expand(rows, -1)
    reset, last = position == 0, position == 3
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for _ in range(150):
            cue = (torch.randint(2, (rows, 3)) * 2.0 - 1.0).repeat_interleave(4, dim=1)[:, :9]
            observation = torch.stack([reset * cue, reset * 1.0, (position == 2) * 1.0], dim=-1)
            last_action, reward = torch.full(reset.shape, -1), torch.zeros(reset.shape)
            actions, logits, state = [], [], agent.initial_state(rows)
            for t in range(8):
                now = slice(t, t + 1)
                with torch.no_grad():
                    output = agent(observation[:, now], last_action[:, now], reward[:, now], reset[:, now], state)
                state = output.state
                logits.append(output.policy_parameters[:, 0])
                actions.append(torch.distributions.Categorical(logits=logits[-1]).sample())
                last_action[:, t + 1] = actions[-1].masked_fill(reset[:, t + 1], -1)
                reward[:, t + 1] = (actions[-1] * 2.0 - 1.0) * cue[:, t] * last[:, t + 1]
            observed = EnvOutput(observation, last_action, reward, 1 - last.float(), reset)
            learner.update(
                Trajectory(
                    **observed._asdict(),
                    action=torch.stack(actions, dim=1),
                    policy_parameters=torch.stack(logits, dim=1),
                    core_state=agent.initial_state(rows),
                    actor_id=torch.zeros(rows, dtype=torch.int64),
                    version=torch.zeros(rows, dtype=torch.int64),
                )
            )
            scores.append(reward[last].mean().item())
    assert max(map(abs, scores[:3])) < 0.5
    assert sum(scores[-5:]) / 5 > 0.9
