"""Vision torsos: images to features (IMPALA's deep residual network, and a small one for small images), and back.

A torso maps uint8 images [N, height, width, channels] to features [N, size], ReLU applied. Images are scaled to [-2, 2]
here and nowhere else (docs/decisions.md says why). A new torso is one function and one line in `TORSOS`.
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


def small_layers(channels: int) -> list[nn.Module]:
    """Three strided convolutions for images of about 24 x 32 pixels on a CPU."""
    layers: list[nn.Module] = []
    for width, kernel, stride in ((16, 4, 2), (32, 3, 2), (32, 3, 1)):
        layers += [nn.Conv2d(channels, width, kernel, stride, padding=1), nn.ReLU()]
        channels = width
    return layers


TORSOS: dict[str, Callable[[int], list[nn.Module]]] = {"deep": deep_layers, "small": small_layers}


class Vision(nn.Module):
    """Convolutions by name, then one linear layer with a ReLU."""

    def __init__(self, name: str, image_shape: Sequence[int], size: int) -> None:
        super().__init__()
        if name not in TORSOS:
            raise ValueError(f"torso: expected one of {', '.join(TORSOS)}, got {name!r}")
        if len(image_shape) != 3:
            raise ValueError(f"image_shape: expected [height, width, channels], got {list(image_shape)}")
        height, width, channels = image_shape
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
