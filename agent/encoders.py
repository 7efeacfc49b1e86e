"""Encoders of observations: images (IMPALA's deep and shallow networks, and a small one), vectors and instructions.

Observations are scaled here and nowhere else (docs/decisions.md gives the reasons). A new torso for images is one
function and one line in `TORSOS`, and its name in the type of `AgentConfig.torso`.
"""

import math
import typing
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core import Mean
from agent.core.state import leaves

Shape = tuple[int, ...]
"""Of an image, [height, width, channels], or of a vector, [features]."""
EMBEDDING_SIZE = 20
"""Features of a word of an instruction."""
INSTRUCTION_SIZE = 64
"""Features of an instruction."""
MIDDLE = 127.5
"""The value of a pixel that becomes 0."""
UNIT = 63.75
"""The difference of pixels that becomes 1."""
CACHED = 1 << 18
"""Values that are scaled at a time on a CPU, so that they stay in its cache."""


def scale(images: Tensor, dtype: torch.dtype, zero: float = MIDDLE) -> Tensor:
    """uint8 images [N, height, width, channels] to [N, channels, height, width], 0 at `zero`: by default in [-2, 2].

    The dtype is bfloat16 under autocast. The arithmetic is in float32: in bfloat16 it is slower on a CPU.
    """
    device = images.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    wide = torch.promote_types(dtype, torch.float32)

    if dtype == wide or device != "cpu" or torch.compiler.is_compiling():
        scaled = _scale_wide(images, wide, zero).to(dtype)
    else:
        # A few images at a time, so that their float32 copy stays in the processor's cache.
        scaled = images.new_empty(images.shape, dtype=dtype)
        rows = max(1, CACHED // max(1, images[:1].numel()))
        for part, place in zip(images.split(rows), scaled.split(rows)):
            place.copy_(_scale_wide(part, wide, zero))
    return scaled.permute(0, 3, 1, 2)  # NHWC memory is channels_last: the permuted view needs no copy


def _scale_wide(images: Tensor, dtype: torch.dtype, zero: float) -> Tensor:
    """Scaled images in a dtype of 32 bits or more."""
    return images.to(dtype).sub_(zero).mul_(1 / UNIT)


class Convolution(nn.Conv2d):
    """A convolution that computes in float32 where, on a CPU, bfloat16 would be wrong.

    In torch 2.13 on CPUs with AVX-512, the weight gradient in bfloat16 of a padded convolution is uninitialised memory
    if the input is one pixel wide: with a stride always, without one if there are many images. All inputs that are
    smaller than the kernel are taken to be at risk: they are too small for the precision to matter to the speed.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, channels, height, width] to the same of other channels and sizes."""
        # Images of a pixel or two may be smaller than the kernel, even with the padding.
        height, width = images.shape[2:]
        lacking_height = self.kernel_size[0] - (height + 2 * int(self.padding[0]))
        lacking_width = self.kernel_size[1] - (width + 2 * int(self.padding[1]))
        if lacking_height > 0 or lacking_width > 0:
            images = F.pad(images, (0, max(0, lacking_width), 0, max(0, lacking_height)))

        # See the class: such images are computed in float32.
        smaller = height < self.kernel_size[0] or width < self.kernel_size[1]
        if images.device.type == "cpu" and smaller:
            with torch.autocast("cpu", enabled=False):
                return super().forward(images.to(self.weight.dtype))
        return super().forward(images)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions on a ReLU'd copy of the stream."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.ReLU(),
            Convolution(channels, channels, 3, padding=1),
            nn.ReLU(inplace=True),
            Convolution(channels, channels, 3, padding=1),
        )

    def forward(self, stream: Tensor) -> Tensor:
        return stream + self.branch(stream)


def deep_layers(channels: int) -> list[nn.Module]:
    """IMPALA's deep network (Espeholt et al. 2018, figure 3): sections of 16, 32, 32 channels, two blocks each."""
    layers: list[nn.Module] = []
    for width in (16, 32, 32):
        layers.append(Convolution(channels, width, 3, padding=1))
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        layers.append(ResidualBlock(width))
        layers.append(ResidualBlock(width))
        channels = width
    layers.append(nn.ReLU(inplace=True))
    return layers


def shallow_layers(channels: int) -> list[nn.Module]:
    """IMPALA's shallow network (Espeholt et al. 2018, figure 3), padded so that it accepts images of any size."""
    return [
        Convolution(channels, 16, 8, stride=4, padding=4),
        nn.ReLU(inplace=True),
        Convolution(16, 32, 4, stride=2, padding=2),
        nn.ReLU(inplace=True),
    ]


def small_layers(channels: int) -> list[nn.Module]:
    """Three convolutions for images of about 24 x 32 pixels on a CPU."""
    return [
        Convolution(channels, 16, 4, stride=2, padding=1),
        nn.ReLU(inplace=True),
        Convolution(16, 32, 3, stride=2, padding=1),
        nn.ReLU(inplace=True),
        Convolution(32, 32, 3, stride=1, padding=1),
        nn.ReLU(inplace=True),
    ]


TORSOS: dict[str, Callable[[int], list[nn.Module]]] = {
    "deep": deep_layers,
    "shallow": shallow_layers,
    "small": small_layers,
}
FITTING = "auto"
"""Stands for the torso that fits an image's size on a CPU."""
LARGE_IMAGE = 64
"""Shorter side, in pixels, from which `auto` takes `shallow`. On 84 x 84 x 4 it needs 0.4 of the multiplications of
`small`."""


class Vision(nn.Module):
    """The convolutions of a torso in `TORSOS`, then one linear layer with a ReLU.

    `zero` is the value of a pixel that the convolutions see as 0: that of padding, and of most of a picture if filters
    are to respond to what is drawn on it alone.
    """

    def __init__(self, name: str, image_shape: Sequence[int], size: int, zero: float = MIDDLE) -> None:
        super().__init__()
        if len(image_shape) != 3 or min(image_shape) < 1:
            raise ValueError(f"image_shape: expected [height, width, channels], got {list(image_shape)}")
        self.image_shape = tuple(image_shape)
        self.num_features = size
        self.zero = zero
        height, width, channels = image_shape
        # Channels last is the faster layout.
        self.convolutions = nn.Sequential(*TORSOS[name](channels))
        self.convolutions.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # The number of features follows from the convolutions' strides and padding.
        with torch.no_grad():
            flat = self.convolutions(torch.zeros(1, channels, height, width)).numel()
        self.linear = nn.Linear(flat, size)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 images [N, height, width, channels] to features [N, size]."""
        _check_observation(images, torch.uint8, self.image_shape)
        weight = self.linear.weight
        features = self.convolutions(scale(images, weight.dtype, self.zero))

        # The features are stored channels last, the weights expect channels first: one of them is permuted, which
        # copies it. With more images than outputs the features are larger, and without a copy their gradient has the
        # order that convolutions need. An exported graph must not ask for the number of images.
        permutes_weights = not torch.compiler.is_exporting() and images.shape[0] > weight.shape[0]
        if permutes_weights:
            weight = weight.unflatten(1, features.shape[1:])
            weight = weight.permute(0, 2, 3, 1).flatten(1)
            features = features.permute(0, 2, 3, 1)
        flat = features.flatten(1)
        return torch.relu(F.linear(flat, weight, self.linear.bias))


class VectorTorso(nn.Module):
    """Two linear layers with ReLUs, on sign(x) log(1 + |x|) of the vector.

    That is nearly x for small values and bounds the effect of large ones (DreamerV3, Hafner et al. 2023).
    """

    def __init__(self, vector_size: int, size: int) -> None:
        super().__init__()
        self.vector_size = vector_size
        self.num_features = size
        self.layers = nn.Sequential(
            nn.Linear(vector_size, size),
            nn.ReLU(),
            nn.Linear(size, size),
            nn.ReLU(),
        )

    def forward(self, vectors: Tensor) -> Tensor:
        """float32 vectors [N, vector_size] to features [N, size]."""
        _check_observation(vectors, torch.float32, (self.vector_size,))
        dtype = next(self.layers.parameters()).dtype
        squashed = squash(vectors).to(dtype)
        return self.layers(squashed)


def squash(vectors: Tensor) -> Tensor:
    """sign(x) log(1 + |x|), elementwise."""
    sizes = vectors.abs()
    return vectors.sign() * sizes.log1p()


def _check_observation(observation: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raises a ValueError if the observation has another dtype than `dtype`, or another shape than [N, *shape]."""
    if observation.shape[1:] == shape and observation.dtype == dtype:
        return
    name = str(dtype).removeprefix("torch.")
    sizes = ", ".join(map(str, shape))
    expected = f"{name} [N, {sizes}]"
    got = f"{observation.dtype} {list(observation.shape)}"
    raise ValueError(f"observation: expected {expected}, got {got}")


class Torsos(nn.ModuleList):
    """One torso for each part of an observation; their features are joined."""

    def __init__(self, parts: Sequence[Vision | VectorTorso]) -> None:
        super().__init__(parts)
        self.num_features = sum(part.num_features for part in parts)

    def forward(self, observation: tuple[Tensor, ...]) -> Tensor:
        """Parts [N, ...] to features [N, num_features]."""
        if len(observation) != len(self):
            raise ValueError(f"observation: expected {len(self)} parts, got {len(observation)}")
        features: list[Tensor] = []
        for torso, part in zip(self, observation):
            features.append(torso(part))
        return torch.cat(features, dim=-1)


def make_torso(
    name: str, observation_shape: Shape | tuple[Shape, ...], size: int, zero: float = MIDDLE
) -> Vision | VectorTorso | Torsos:
    """The torso for an observation shape: `VectorTorso` for vectors, the one of `TORSOS` for images; several for parts.

    The name "auto" stands for `shallow` or `small`, by the size of each image. `zero` is that of `Vision`.

    Raises:
        ValueError: if there is no such torso, or the shape is neither that of a vector nor that of an image.
    """
    names = [*TORSOS, FITTING]
    if name not in names:
        raise ValueError(f"torso: expected one of {', '.join(names)}, got {name!r}")
    torsos = [_torso_of_part(name, shape, size, zero) for shape in part_shapes(observation_shape)]
    if has_parts(observation_shape):
        return Torsos(torsos)
    return torsos[0]


def _torso_of_part(name: str, shape: Shape, size: int, zero: float) -> Vision | VectorTorso:
    if len(shape) == 1:
        return VectorTorso(shape[0], size)
    if name == FITTING:
        shorter_side = min(shape[:2])
        name = "shallow" if shorter_side >= LARGE_IMAGE else "small"
    return Vision(name, shape, size, zero)


def vector_sizes(observation_shape: Shape | tuple[Shape, ...]) -> list[int]:
    """The number of features of each vector among the parts of an observation, see `vectors_of`."""
    return [shape[0] for shape in part_shapes(observation_shape) if len(shape) == 1]


def vectors_of(sensed: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The vectors [..., features] float32 among the parts of an observation."""
    return tuple(part for part in leaves(sensed) if part.dtype == torch.float32)


def has_parts(observation_shape: Shape | tuple[Shape, ...]) -> bool:
    """Whether an observation is a tuple of parts, which may be one."""
    return any(isinstance(part, tuple) for part in observation_shape)


def part_shapes(observation_shape: Shape | tuple[Shape, ...]) -> tuple[Shape, ...]:
    """The shapes of an observation's parts; its own shape if it has no parts."""
    if has_parts(observation_shape):
        return typing.cast(tuple[Shape, ...], observation_shape)
    return (typing.cast(Shape, observation_shape),)


class InstructionEncoder(nn.Module):
    """An embedding and an LSTM over the words; sizes as in the code of IMPALA (Espeholt et al. 2018, figure 3).

    `vocabulary` is the number of word ids, including 0 for no word. With `shares`, equal instructions are encoded once;
    without, the shapes of all tensors depend on the arguments' shapes alone, as exported graphs need it.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.shares = True
        self.embedding = nn.Embedding(vocabulary, EMBEDDING_SIZE, padding_idx=0)
        self.lstm = nn.LSTM(EMBEDDING_SIZE, INSTRUCTION_SIZE, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        """Words [N, W] int64, padded with 0 at the end, to the LSTM's output [N, INSTRUCTION_SIZE] at the last word.

        Zeros where there is no word. An episode has few different instructions; counting them waits for the GPU.
        """
        if not self.shares:
            return self._encode(words)
        different, index = torch.unique(words, dim=0, return_inverse=True)
        return self._encode(different)[index]

    def _encode(self, words: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(words))

        # The output at the last word.
        length = (words != 0).sum(dim=1)  # [N]
        last_word = (length - 1).clamp(min=0)
        index = last_word[:, None, None].expand(-1, 1, outputs.shape[2])
        last = outputs.gather(1, index).squeeze(1)
        is_empty = length == 0
        return last.masked_fill(is_empty[:, None], 0.0)


class Reconstruction(nn.Module):
    """Predicts the observation from what the core receives: an auxiliary loss for the encoders.

    So the inputs, and with them the memory, contain what was seen; attention is trained by the task alone. MERLIN
    (Wayne et al. 2018) decodes the observation from what it writes to memory, too. Here the decoder is one linear
    layer. Of images it predicts a small version of `height` pixels, or of the image's own if it has fewer, and as wide
    as the image's shape asks for; of vectors what the torso sees.
    """

    def __init__(self, model_size: int, observation_shape: Sequence[int], height: int = 6) -> None:
        super().__init__()
        # Of a vector there are no sides, and channels are its elements.
        *sides, self.channels = observation_shape
        self.size: list[int] = []
        for side in sides:
            ratio = min(1, height / sides[0])
            self.size.append(max(1, round(side * ratio)))
        self.decoder = nn.Linear(model_size, self.channels * math.prod(self.size))

    def forward(self, inputs: Tensor, observations: Tensor) -> Mean:
        """The mean squared error over steps and pixels, or over steps of the sum over the elements of a vector.

        Most elements of a vector may be constant, as those of one-hot codes are, so that a mean would hide the others.
        Inputs of the core [N, D], observations uint8 [N, height, width, channels] or float32 [N, elements].
        """
        if observations.ndim == 4:
            height, width = self.size
            scaled = scale(observations, inputs.dtype)
            small = F.adaptive_avg_pool2d(scaled, (height, width))
            target = small.flatten(1)
            terms = target.numel()  # a mean over steps and pixels
        else:
            target = squash(observations).to(inputs.dtype)
            terms = len(target)  # a mean over steps alone
        predicted = self.decoder(inputs)
        total = F.mse_loss(predicted, target, reduction="sum")
        count = torch.full((1,), terms, device=total.device)
        return Mean(total[None], count)

    def picture(self, inputs: Tensor) -> Tensor:
        """The predicted images [N, height, width, channels] uint8, small as they are."""
        # The opposite of `scale`.
        flat = self.decoder(inputs)
        scaled = flat.unflatten(1, (self.channels, *self.size))
        channels_last = scaled.permute(0, 2, 3, 1).float()
        pixels = channels_last * UNIT + MIDDLE
        return pixels.round().clamp(0, 255).to(torch.uint8)


class Reconstructions(nn.ModuleList):
    """A `Reconstruction` of each part of an observation; the loss is the mean over the parts."""

    def __init__(self, parts: Iterable[Reconstruction]) -> None:
        super().__init__(parts)

    def forward(self, inputs: Tensor, observation: tuple[Tensor, ...]) -> Mean:
        """As `Reconstruction`, with a total and a count of each part."""
        errors = [part(inputs, seen) for part, seen in zip(self, observation, strict=True)]
        totals = torch.cat([error.total for error in errors])
        counts = torch.cat([error.count for error in errors])
        return Mean(totals, counts)

    def picture(self, inputs: Tensor) -> Tensor:
        """As `Reconstruction`, of the first part."""
        first = typing.cast(Reconstruction, self[0])
        return first.picture(inputs)


def make_reconstruction(
    model_size: int, observation_shape: Shape | tuple[Shape, ...], height: int
) -> Reconstruction | Reconstructions:
    """The auxiliary loss for an observation shape."""
    losses = [Reconstruction(model_size, shape, height) for shape in part_shapes(observation_shape)]
    if has_parts(observation_shape):
        return Reconstructions(losses)
    return losses[0]
