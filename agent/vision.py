"""Torsos: images to features (IMPALA's deep and shallow networks, and one for small images), and back; vectors too.

A torso maps observations, uint8 images [N, height, width, channels] or float32 vectors [N, D], to features [N, size],
ReLU applied. Observations are scaled here and nowhere else (docs/decisions.md says why). A new torso for images is one
function and one line in `TORSOS`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def scale(images: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 images [N, height, width, channels] to [N, channels, height, width] in [-2, 2]."""
    # NHWC memory is what channels_last means: the permuted view needs no copy.
    return images.to(dtype).sub_(127.5).mul_(1 / 63.75).permute(0, 3, 1, 2)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions on a ReLU'd copy of the stream."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, stream: Tensor) -> Tensor:
        return stream + self.branch(stream)


def deep_layers(channels: int) -> list[nn.Module]:
    """IMPALA's deep network (Espeholt et al. 2018, figure 3): sections of 16, 32, 32 channels, two blocks each."""
    layers: list[nn.Module] = []
    for width in (16, 32, 32):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [ResidualBlock(width), ResidualBlock(width)]
        channels = width
    return [*layers, nn.ReLU()]


def shallow_layers(channels: int) -> list[nn.Module]:
    """IMPALA's shallow network (Espeholt et al. 2018, figure 3), padded so that images of any size will do."""
    return [nn.Conv2d(channels, 16, 8, 4, padding=4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, padding=2), nn.ReLU()]


def small_layers(channels: int) -> list[nn.Module]:
    """Three strided convolutions for images of about 24 x 32 pixels on a CPU."""
    layers: list[nn.Module] = []
    for width, kernel, stride in ((16, 4, 2), (32, 3, 2), (32, 3, 1)):
        layers += [nn.Conv2d(channels, width, kernel, stride, padding=1), nn.ReLU()]
        channels = width
    return layers


TORSOS: dict[str, Callable[[int], list[nn.Module]]] = {
    "deep": deep_layers,
    "shallow": shallow_layers,
    "small": small_layers,
}


class Vision(nn.Module):
    """The convolutions that `TORSOS` names, then one linear layer with a ReLU."""

    def __init__(self, name: str, image_shape: Sequence[int], size: int) -> None:
        super().__init__()
        if len(image_shape) != 3:
            raise ValueError(f"image_shape: expected [height, width, channels], got {list(image_shape)}")
        height, width, channels = image_shape
        if min(height, width) < 2:
            raise ValueError(f"image_shape: expected 2 x 2 pixels or more, got {list(image_shape)}")
        self.image_shape = tuple(image_shape)
        self.convolutions = nn.Sequential(*TORSOS[name](channels))
        with torch.no_grad():
            flat = self.convolutions(torch.zeros(1, channels, height, width)).numel()
        self.linear = nn.Linear(flat, size)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 images [N, height, width, channels] to features [N, size]."""
        if images.shape[1:] != self.image_shape or images.dtype != torch.uint8:
            raise ValueError(
                f"observation: expected uint8 [N, {', '.join(map(str, self.image_shape))}], "
                f"got {images.dtype} {list(images.shape)}"
            )
        return torch.relu(self.linear(self.convolutions(scale(images, self.linear.weight.dtype)).flatten(1)))


class VectorTorso(nn.Module):
    """Two linear layers with ReLUs, on sign(x) log(1 + |x|) of the vector.

    That is nearly x for small values and tames large ones, whatever their units (DreamerV3, Hafner et al. 2023).
    """

    def __init__(self, vector_size: int, size: int) -> None:
        super().__init__()
        self.vector_size = vector_size
        self.layers = nn.Sequential(nn.Linear(vector_size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU())

    def forward(self, vectors: Tensor) -> Tensor:
        """float32 vectors [N, vector_size] to features [N, size]."""
        if vectors.shape[1:] != (self.vector_size,) or vectors.dtype != torch.float32:
            raise ValueError(
                f"observation: expected float32 [N, {self.vector_size}], got {vectors.dtype} {list(vectors.shape)}"
            )
        squashed = vectors.sign() * vectors.abs().log1p()
        return self.layers(squashed.to(next(self.layers.parameters()).dtype))


def make_torso(name: str, observation_shape: Sequence[int], size: int) -> nn.Module:
    """The torso for observations of a shape: a vector has only one, an image that of `TORSOS` which is named.

    Raises:
        ValueError: if there is no such torso, or the shape is neither that of a vector nor that of an image.
    """
    if name not in TORSOS:
        raise ValueError(f"torso: expected one of {', '.join(TORSOS)}, got {name!r}")
    if len(observation_shape) == 1:
        return VectorTorso(observation_shape[0], size)
    return Vision(name, observation_shape, size)


class Reconstruction(nn.Module):
    """Draws the image from what the core made of it, as a small picture: an auxiliary loss for vision and core.

    Reward alone says little about what is worth seeing. MERLIN (Wayne et al. 2018) and RMA (Hung et al. 2019) train
    their memory agents with the reconstruction of observations too; here the decoder is one linear layer.
    """

    def __init__(self, model_size: int, channels: int, height: int = 6, width: int = 8) -> None:
        super().__init__()
        self.size = (height, width)
        self.decoder = nn.Linear(model_size, channels * height * width)

    def forward(self, features: Tensor, images: Tensor) -> Tensor:
        """The mean squared error of the pictures, a scalar; features [N, D], images uint8 [N, H, W, channels]."""
        pictures = F.adaptive_avg_pool2d(scale(images, features.dtype), self.size).flatten(1)
        return F.mse_loss(self.decoder(features), pictures)
