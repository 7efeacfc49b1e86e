"""Torsos, the instruction encoder and the reconstruction loss against the figures and formulas of their papers."""

import itertools
import re
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent import Agent, AgentConfig, encoders
from agent.core import LSTMConfig
from agent.precision import autocast
from tests.agent.agents import IMAGE, VOCABULARY, WORDS, agent_inputs, random_words


def test_every_torso_can_be_named() -> None:
    hints = get_type_hints(AgentConfig)
    assert get_args(hints["torso"]) == (*encoders.TORSOS, encoders.FITTING)


@pytest.mark.parametrize("name", encoders.TORSOS)
@pytest.mark.parametrize("shape", [(12, 16, 3), (2, 2, 1), (21, 17, 1)])
def test_torsos_map_images_to_features(name: str, shape: tuple[int, int, int]) -> None:
    vision = encoders.make_torso(name, shape, 20)
    features = vision(torch.randint(0, 256, (3, *shape), dtype=torch.uint8))
    assert features.shape == (3, 20)
    assert features.min() >= 0


@pytest.mark.parametrize(("zero", "expected"), [(127.5, [-2, 2]), (0, [0, 4]), (255, [-4, 0])])
def test_what_convolutions_see_of_black_and_white(zero: float, expected: list[float]) -> None:
    agent = Agent(AgentConfig(torso="small", torso_size=4, core=LSTMConfig(4), pixel_zero=zero), (1, 2, 1), 3)
    seen: list[list[float]] = []
    agent.vision.convolutions.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].ravel().tolist()))
    agent.vision(torch.tensor([[[[0], [255]]]], dtype=torch.uint8))
    assert seen == [expected]


@pytest.mark.parametrize("name", encoders.TORSOS)
def test_torsos_map_vectors_to_features(name: str) -> None:
    torso = encoders.make_torso(name, (5,), 4)
    assert torso(torch.randn(3, 5)).shape == (3, 4)


@pytest.mark.parametrize("name", encoders.TORSOS)
@pytest.mark.parametrize("height", range(1, 9))
def test_gradients_in_bfloat16_are_those_of_float32_for_small_images(name: str, height: int) -> None:
    """Of each convolution, from what it received in both directions; those below their kernel's size are in float32."""
    for width in range(1, 9):
        torch.manual_seed(0)
        vision = encoders.make_torso(name, (height, width, 3), 8)
        convolutions = [module for module in vision.modules() if isinstance(module, nn.Conv2d)]
        received: dict[nn.Module, tuple[Tensor, Tensor]] = {}

        def keep(module: nn.Module, inputs: Any, output: Tensor, received: dict[Any, Any] = received) -> None:
            def keep_gradient(gradient: Tensor) -> None:
                received[module] = (inputs[0].detach(), gradient)

            output.register_hook(keep_gradient)

        for convolution in convolutions:
            convolution.register_forward_hook(keep)
        images = torch.randint(0, 256, (2, height, width, 3), dtype=torch.uint8)
        with autocast(torch.device("cpu"), "bfloat16"):
            features = vision(images)
        (features * torch.randn(features.shape)).sum().backward()
        for convolution in convolutions:
            check_gradients(convolution, *received[convolution])


def check_gradients(convolution: nn.Conv2d, inputs: Tensor, gradient: Tensor) -> None:
    """Gradients of a convolution that received inputs [N, C, H, W] and the gradient of its output."""
    kernel_height, kernel_width = convolution.kernel_size
    height, width = inputs.shape[2:]
    narrow = height < kernel_height or width < kernel_width
    assert gradient.dtype == (torch.float32 if narrow else torch.bfloat16)

    # Inputs that are smaller than the kernel are padded below and at the right.
    lacking_height = max(0, kernel_height - height - 2 * convolution.padding[0])
    lacking_width = max(0, kernel_width - width - 2 * convolution.padding[1])
    padded = F.pad(inputs.float(), (0, lacking_width, 0, lacking_height))
    expected = nn.grad.conv2d_weight(
        padded, convolution.weight.shape, gradient.float(), convolution.stride, convolution.padding
    )
    error = (convolution.weight.grad - expected).norm()
    assert error <= 0.01 * expected.norm(), f"{convolution} of {list(inputs.shape)}"
    torch.testing.assert_close(convolution.bias.grad, gradient.float().sum((0, 2, 3)), rtol=0.02, atol=1e-3)


def test_the_fitting_torso_depends_on_the_size_of_each_image() -> None:
    expected = [((63, 200, 3), "small"), ((64, 64, 4), "shallow"), ((5,), "small")]
    shapes = tuple(shape for shape, _ in expected)
    torsos = encoders.make_torso("auto", shapes, 8)
    for torso, (shape, name) in zip(torsos, expected, strict=True):
        same = encoders.make_torso(name, shape, 8)
        assert [value.shape for value in torso.parameters()] == [value.shape for value in same.parameters()]


def test_the_deep_torso_is_that_of_impala() -> None:
    """Espeholt et al. 2018, figure 3: 15 convolutional layers, and 1.6 million parameters with the LSTM of 256."""
    vision = encoders.Vision("deep", (72, 96, 3), 256)
    convolutions = [module for module in vision.modules() if isinstance(module, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [16] * 5 + [32] * 10

    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    # Each 3 x 3 convolution has 9 * in * out weights and a bias. A section has one that may change the number of
    # channels, and two residual blocks of two.
    expected = 0
    for channels_in, channels in ((3, 16), (16, 32), (32, 32)):
        expected += 9 * channels_in * channels + channels
        expected += 4 * (9 * channels * channels + channels)
    assert expected == 97_600
    assert count(vision.convolutions) == expected

    # Three poolings leave 9 x 12 positions.
    assert count(vision) == expected + 9 * 12 * 32 * 256 + 256
    agent = Agent(AgentConfig(core=LSTMConfig(256)), (72, 96, 3), 9)
    assert 1.5e6 < count(agent) < 1.7e6


def test_images_are_centered_and_scaled() -> None:
    """The linear layer sees the channels one after the other, whatever the order in memory."""
    vision = encoders.Vision("deep", (3, 4, 3), 4)
    vision.convolutions = nn.Identity()
    vision.linear = nn.Linear(36, 36)
    vision.linear.weight.data = torch.eye(36)
    vision.linear.bias.data = torch.zeros(36)
    for rows in (2, 40):  # features are permuted, or weights, whichever are fewer
        image = torch.randint(0, 256, (rows, 3, 4, 3), dtype=torch.uint8)
        by_channel = image.permute(0, 3, 1, 2).flatten(1)
        torch.testing.assert_close(vision(image), ((by_channel - 127.5) / 63.75).clamp(min=0))


def test_vectors_are_squashed() -> None:
    """By sign(x) log(1 + |x|)."""
    torso = encoders.VectorTorso(3, 3)
    torso.layers = nn.Linear(3, 3, bias=False)
    torso.layers.weight.data = torch.eye(3)
    squashed = torso(torch.tensor([[1e6, -1e6, 1.0]]))
    torch.testing.assert_close(squashed, torch.tensor([[13.8155, -13.8155, 0.6931]]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("rows", [0, 1, 7, 23])
def test_scaling_in_parts_changes_no_bit(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.encoders.CACHED", 3 * 5 * 4 * 3)  # three images
    images = torch.randint(0, 256, (rows, 5, 4, 3), dtype=torch.uint8)
    whole = images.float().sub(127.5).mul(1 / 63.75).to(torch.bfloat16).permute(0, 3, 1, 2)
    with torch.autocast("cpu", torch.bfloat16):
        scaled = encoders.scale(images, torch.float32)
    assert scaled.stride() == whole.stride()
    torch.testing.assert_close(scaled, whole, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "shape", "observation", "message"),
    [
        ("small", IMAGE, torch.zeros(2, *IMAGE), "observation: expected uint8 [N, 12, 16, 3], got torch.float32 [2,"),
        ("small", IMAGE, torch.zeros(2, 3, 4, 5).byte(), "observation: expected uint8 [N, 12, 16, 3], got torch.uint8"),
        ("small", (3,), torch.zeros(2, 4), "observation: expected float32 [N, 3], got torch.float32 [2, 4]"),
        ("small", (3,), torch.zeros(2, 3).int(), "observation: expected float32 [N, 3], got torch.int32 [2, 3]"),
        ("huge", IMAGE, None, "torso: expected one of deep, shallow, small, auto, got 'huge'"),
        ("small", (12, 16), None, "image_shape: expected [height, width, channels], got [12, 16]"),
        ("small", (0, 16, 3), None, "image_shape: expected [height, width, channels], got [0, 16, 3]"),
    ],
)
def test_bad_torsos_and_observations_are_named(name: str, shape: Any, observation: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        encoders.make_torso(name, shape, 4)(observation)


def test_the_instruction_encoder_is_an_lstm_over_the_words() -> None:
    encoder = encoders.InstructionEncoder(VOCABULARY).double()
    words = random_words(40)
    cell = nn.LSTMCell(encoders.EMBEDDING_SIZE, encoders.INSTRUCTION_SIZE).double()
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in encoder.lstm.state_dict().items()})
    for row, actual in zip(words, encoder(words)):
        hidden = memory = torch.zeros(1, encoders.INSTRUCTION_SIZE).double()
        for word in row[row > 0]:
            hidden, memory = cell(encoder.embedding.weight[word][None], (hidden, memory))
        torch.testing.assert_close(actual, hidden[0], rtol=0, atol=1e-12)
    assert not encoder(torch.zeros(3, WORDS, dtype=torch.int64)).any(), "no words, no features"


def test_instructions_train_the_embeddings_of_their_words() -> None:
    encoder = encoders.InstructionEncoder(VOCABULARY)
    encoder(torch.tensor([[3, 7, 0], [3, 9, 0], [3, 7, 0]])).sum().backward()
    trained = encoder.embedding.weight.grad.abs().sum(dim=1) > 0
    assert trained.nonzero().flatten().tolist() == [3, 7, 9]


@pytest.mark.parametrize(
    ("shape", "height", "size"),
    [
        ((24, 32, 3), 6, (6, 8)),
        ((56, 56, 3), 14, (14, 14)),
        ((210, 160, 3), 6, (6, 5)),
        ((4, 8, 1), 6, (4, 8)),
        ((90, 2, 3), 6, (6, 1)),
    ],
)
def test_the_reconstructed_image_has_the_shape_of_the_observation(
    shape: tuple[int, int, int], height: int, size: tuple[int, int]
) -> None:
    module = encoders.Reconstruction(8, shape, height)
    assert module.picture(torch.zeros(2, 8)).shape == (2, *size, shape[2])
    count = module(torch.zeros(2, 8), torch.zeros(2, *shape, dtype=torch.uint8)).count
    assert count.item() == 2 * size[0] * size[1] * shape[2]


def test_reconstruction_equals_the_literal_formula() -> None:
    """12 x 16 pixels are 6 x 8 blocks of 2 x 2, whose means are predicted."""
    torch.manual_seed(0)
    module = encoders.Reconstruction(8, (12, 16, 3)).double()
    images = agent_inputs(1, 5)["observation"][0]
    features = torch.randn(5, 8, dtype=torch.float64)
    predicted = (features @ module.decoder.weight.T + module.decoder.bias).detach().view(5, 3, 6, 8)
    pixels = (images.double() - 127.5) / 63.75
    errors = []
    for n, channel, y, x in itertools.product(range(5), range(3), range(6), range(8)):
        block = pixels[n, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2, channel]
        errors.append((predicted[n, channel, y, x] - block.mean()) ** 2)
    loss = module(features, images)
    assert loss.count.tolist() == [5 * 3 * 6 * 8]
    assert loss.value.item() == pytest.approx(sum(errors).item() / len(errors), rel=1e-10)
