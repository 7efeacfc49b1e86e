"""The agent's networks and the trajectory's checks: shapes, figures of the IMPALA paper, and one path for acting."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agent import Agent, AgentConfig, Trajectory
from agent.core import (
    CompressiveTransformerConfig,
    LSTMConfig,
    MemorylessConfig,
    TransformerXLConfig,
    concatenate_states,
    index_state,
    leaves,
    state_to,
)
from agent.trajectory import loss_mask, validate
from agent.vision import TORSOS, VectorTorso, Vision, make_torso

IMAGE, ACTIONS = (12, 16, 3), 5
CORES = {
    "compressive": CompressiveTransformerConfig(16, 2, 2, 16, segment_size=4, memory_size=4, compressed_size=4),
    "transformer-xl": TransformerXLConfig(16, 2, 2, 16, segment_size=4, memory_size=4, norm="pre", gate="gru"),
    "lstm": LSTMConfig(16),
    "memoryless": MemorylessConfig(16, 1, 16),
}


def make_agent(core: Any = CORES["compressive"], torso: str = "small") -> Agent:
    torch.manual_seed(0)
    return Agent(AgentConfig(torso=torso, torso_size=16, core=core), IMAGE, ACTIONS).eval()


def moments(rows: int, steps: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    reset = torch.rand(rows, steps, generator=generator) < 0.1
    return {
        "observation": torch.randint(0, 256, (rows, steps, *IMAGE), generator=generator, dtype=torch.uint8),
        "last_action": torch.randint(0, ACTIONS, (rows, steps), generator=generator).masked_fill(reset, -1),
        "last_reward": torch.randn(rows, steps, generator=generator),
        "reset": reset,
    }


def make_trajectory(rows: int, steps: int, seed: int = 0, core: Any = CORES["compressive"]) -> Trajectory:
    seen = moments(rows, steps + 1, seed)
    generator = torch.Generator().manual_seed(seed)
    return Trajectory(
        observation=seen["observation"],
        last_action=seen["last_action"],
        reward=seen["last_reward"],
        discount=torch.ones(rows, steps + 1),
        reset=seen["reset"],
        action=torch.randint(0, ACTIONS, (rows, steps), generator=generator),
        policy_logits=torch.randn(rows, steps, ACTIONS, generator=generator),
        core_state=make_agent(core).initial_state(rows),
        actor_id=torch.arange(rows),
        version=torch.full((rows,), seed),
    )


# Vision.


@pytest.mark.parametrize("name", TORSOS)
@pytest.mark.parametrize("shape", [(12, 16, 3), (24, 32, 3), (21, 17, 1)])
def test_torsos_map_images_to_features(name, shape) -> None:
    vision = Vision(name, shape, 20)
    features = vision(torch.randint(0, 256, (3, *shape), dtype=torch.uint8))
    assert features.shape == (3, 20)
    assert features.min() >= 0


def test_the_deep_torso_is_that_of_impala() -> None:
    """Espeholt et al. 2018, figure 3: 15 convolutional layers, and 1.6 million parameters with the LSTM of 256."""
    vision = Vision("deep", (72, 96, 3), 256)
    convolutions = [module for module in vision.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 15
    assert [layer.out_channels for layer in convolutions] == [16] * 5 + [32] * 10

    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    # Each 3 x 3 convolution has 9 * in * out weights and a bias; three poolings leave 9 x 12 positions.
    sections = [9 * a * b + b + 4 * (9 * b * b + b) for a, b in ((3, 16), (16, 32), (32, 32))]
    assert count(vision.convolutions) == sum(sections) == 97_600
    assert count(vision) == 97_600 + 9 * 12 * 32 * 256 + 256
    agent = Agent(AgentConfig(core=LSTMConfig(256)), (72, 96, 3), 9)
    assert 1.5e6 < count(agent) < 1.7e6


def test_images_are_centred_scaled_and_read_as_height_width_channels() -> None:
    vision = Vision("deep", (3, 4, 3), 4)
    vision.convolutions, vision.linear = nn.Identity(), nn.Identity()
    vision.linear.weight = torch.zeros(())
    image = torch.randint(0, 256, (2, 3, 4, 3), dtype=torch.uint8)
    channels = torch.stack([image[..., channel].flatten(1) for channel in range(3)], dim=1).flatten(1)
    torch.testing.assert_close(vision(image), ((channels - 127.5) / 63.75).clamp(min=0))


def test_only_uint8_images_of_the_right_shape_are_taken() -> None:
    vision = Vision("small", IMAGE, 4)
    expected = "observation: expected uint8 [N, 12, 16, 3], got "
    with pytest.raises(ValueError, match=re.escape(expected + "torch.float32 [2, 12, 16, 3]")):
        vision(torch.zeros(2, *IMAGE))
    with pytest.raises(ValueError, match=re.escape(expected + "torch.uint8 [2, 3, 12, 16]")):
        vision(torch.zeros(2, 3, 12, 16, dtype=torch.uint8))


def test_bad_torsos_are_named() -> None:
    for shape in (IMAGE, (5,)):
        with pytest.raises(ValueError, match="torso: expected one of deep, shallow, small, got 'huge'"):
            make_torso("huge", shape, 4)
    with pytest.raises(ValueError, match=re.escape("image_shape: expected [height, width, channels], got [12, 16]")):
        make_torso("small", (12, 16), 4)
    with pytest.raises(ValueError, match=re.escape("image_shape: expected 2 x 2 pixels or more, got [1, 16, 3]")):
        make_torso("small", (1, 16, 3), 4)


@pytest.mark.parametrize("name", TORSOS)
def test_the_shape_of_observations_decides_between_images_and_vectors(name) -> None:
    assert isinstance(make_torso(name, (2, 2, 1), 4), Vision)
    assert isinstance(make_torso(name, (5,), 4), VectorTorso)


def test_vectors_are_squashed_symmetrically_and_nearly_unchanged_where_small() -> None:
    torso = VectorTorso(3, 4)
    torso.layers = nn.Sequential(nn.Linear(3, 3, bias=False))
    torso.layers[0].weight = nn.Parameter(torch.eye(3))
    small = torch.tensor([[1e-3, -1e-3, 0.0]])
    torch.testing.assert_close(torso(small), small, rtol=1e-3, atol=0)
    large = torch.tensor([[1e6, -1e6, 1.0]])
    torch.testing.assert_close(torso(large), torch.tensor([[13.8155, -13.8155, 0.6931]]), rtol=1e-4, atol=0)


def test_only_float32_vectors_of_the_right_size_are_taken() -> None:
    torso = VectorTorso(3, 4)
    assert torso(torch.randn(2, 3)).shape == (2, 4)
    for vectors, got in ((torch.zeros(2, 4), "torch.float32 [2, 4]"), (torch.zeros(2, 3).int(), "torch.int32 [2, 3]")):
        with pytest.raises(ValueError, match=re.escape(f"observation: expected float32 [N, 3], got {got}")):
            torso(vectors)


# The agent.


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_acting_step_by_step_equals_the_unroll(core) -> None:
    agent, seen = make_agent(core), moments(2, 18)
    with torch.no_grad():
        whole = agent(**seen, state=agent.initial_state(2))
        state, logits, values = agent.core.with_cache(agent.initial_state(2)), [], []
        for t in range(18):
            output = agent(**{name: value[:, t : t + 1] for name, value in seen.items()}, state=state)
            state = output.state
            logits.append(output.policy_logits)
            values.append(output.value)
    assert whole.policy_logits.shape == (2, 18, ACTIONS)
    assert whole.value.shape == (2, 18)
    torch.testing.assert_close(torch.cat(logits, dim=1), whole.policy_logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.cat(values, dim=1), whole.value, rtol=0, atol=1e-5)
    for actual, expected in zip(leaves(agent.core.without_cache(state)), leaves(whole.state), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def core_inputs(agent: Agent, **changes: Any) -> Tensor:
    """What the core receives for one row and three steps."""
    received = []
    handle = agent.core.register_forward_pre_hook(lambda _, arguments: received.append(arguments[0]))
    with torch.no_grad():
        agent(**{**moments(1, 3), **changes}, state=agent.initial_state(1))
    handle.remove()
    return received[0]


def test_no_last_action_is_a_vector_of_zeros() -> None:
    agent = make_agent()
    columns = agent.joint.weight.detach()[:, 16 : 16 + ACTIONS].T
    none = core_inputs(agent, last_action=torch.full((1, 3), -1))
    for action in range(ACTIONS):
        some = core_inputs(agent, last_action=torch.full((1, 3), action))
        torch.testing.assert_close(some - none, columns[action].expand(1, 3, -1), rtol=0, atol=1e-6)


def test_rewards_are_seen_clipped() -> None:
    agent = make_agent()
    clipped = core_inputs(agent, last_reward=torch.tensor([[1.0, -1.0, 0.5]]))
    assert torch.equal(core_inputs(agent, last_reward=torch.tensor([[10.0, -3.0, 0.5]])), clipped)
    assert not torch.equal(core_inputs(agent, last_reward=torch.tensor([[0.9, -1.0, 0.5]])), clipped)


def test_the_first_policy_is_nearly_uniform_and_the_first_value_nearly_zero() -> None:
    for core in CORES.values():
        agent = make_agent(core)
        output = agent(**moments(4, 8), state=agent.initial_state(4))
        assert output.policy_logits.abs().max() < 0.3
        assert output.value.abs().max() < 0.3


def test_losses_and_attention_of_the_core_are_passed_on() -> None:
    agent = make_agent()
    output = agent(**moments(2, 9), state=agent.initial_state(2), return_attention=True)
    assert output.losses.keys() == {"compression/layer_0", "compression/layer_1"}
    assert [weights.shape for weights in output.attention] == [(2, 2, 9, 12)] * 2
    assert len(agent.compression_parameters()) == 4
    assert make_agent(CORES["lstm"]).compression_parameters() == []


@pytest.mark.parametrize("name", ["observation", "last_action", "last_reward"])
def test_arguments_that_do_not_agree_are_named(name) -> None:
    agent, seen = make_agent(CORES["memoryless"]), moments(2, 3)
    seen[name] = seen[name].transpose(0, 1)
    with pytest.raises(ValueError, match=rf"{name}: expected .*\[2, 3\], got \[3, 2"):
        agent(**seen, state=agent.initial_state(2))
    with pytest.raises(ValueError, match=re.escape("reset: expected [B, T], got [2]")):
        agent(**{**seen, "reset": seen["reset"][:, 0]}, state=agent.initial_state(2))


# Trajectories.


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_a_good_trajectory_is_valid(core) -> None:
    assert validate(make_trajectory(3, 4, core=core)) == (3, 4)


def test_the_last_observation_of_an_episode_is_not_acted_on() -> None:
    trajectory = make_trajectory(1, 4)._replace(reset=torch.tensor([[True, False, True, False, False]]))
    assert loss_mask(trajectory).tolist() == [[True, False, True, True]]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("action", lambda x: x[0], "action: expected [B, T >= 1], got [4]"),
        ("action", lambda x: x[:, :0], "action: expected [B, T >= 1], got [3, 0]"),
        ("action", lambda x: x.int(), "action: expected torch.int64, got torch.int32"),
        ("observation", lambda x: x[:, :-1], "observation: expected leading axes [3, 5], got [3, 4, 12, 16, 3]"),
        ("observation", lambda x: x.double(), "observation: expected torch.uint8 or torch.float32, got torch.float64"),
        ("last_action", lambda x: x.float(), "last_action: expected torch.int64, got torch.float32"),
        ("reward", lambda x: x.T, "reward: expected leading axes [3, 5], got [5, 3]"),
        ("discount", lambda x: x.bool(), "discount: expected torch.float32, got torch.bool"),
        ("reset", lambda x: x.float(), "reset: expected torch.bool, got torch.float32"),
        ("policy_logits", lambda x: x[:2], "policy_logits: expected leading axes [3, 4], got [2, 4, 5]"),
        ("policy_logits", lambda x: x[..., 0], "policy_logits: expected [3, 4, A], got [3, 4]"),
        ("core_state", lambda x: index_state(x, [0]), "core_state: expected [3, 4, 16], got [1, 4, 16]"),
        ("actor_id", lambda x: x[:, None], "actor_id: expected int64 [3], got torch.int64 [3, 1]"),
        ("version", lambda x: x.int(), "version: expected int64 [3], got torch.int32 [3]"),
    ],
)
def test_bad_trajectories_are_named(name, change, message) -> None:
    good = make_trajectory(3, 4)
    with pytest.raises(ValueError, match=re.escape(message)):
        validate(good._replace(**{name: change(getattr(good, name))}))


def test_trajectories_join_and_split_along_the_batch() -> None:
    parts = [make_trajectory(rows, 4, seed) for rows, seed in ((2, 0), (1, 1))]
    joined = concatenate_states(parts)
    assert isinstance(joined, Trajectory)
    assert validate(joined) == (3, 4)
    assert joined.version.tolist() == [0, 0, 1]
    for actual, expected in zip(leaves(index_state(joined, slice(2, 3))), leaves(parts[1]), strict=True):
        assert torch.equal(actual, expected)
    assert all(leaf.device.type == "meta" for leaf in leaves(state_to(joined, "meta")))


def test_trajectories_whose_states_have_different_phases_do_not_join() -> None:
    one, two = make_trajectory(1, 4), make_trajectory(1, 4)
    with pytest.raises(ValueError, match=r"states are at different phases: \[0, 2\]"):
        concatenate_states([one, two._replace(core_state=two.core_state._replace(phase=2))])


def test_trajectories_of_different_lengths_do_not_join() -> None:
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        concatenate_states([make_trajectory(1, 4), make_trajectory(1, 8)])
