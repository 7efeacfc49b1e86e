"""The model of images: a `SequenceModel` whose embedding knows row, column and channel of what comes next.

Axes: B batch, T time, D features (model_size).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core import Core, State
from sequences.images.corpus import START
from sequences.model import IGNORE, SequenceModel, SequenceOutput, smooth_vectors


class ImageState(NamedTuple):
    """The core's state, and [B] int64 the place of the last token in its image: 0 for `START`, 1 for the first byte.

    The place is beyond that of the image's last byte where no `START` has been seen in the episode.
    """

    core: State
    place: Tensor


class PixelEmbedding(nn.Module):
    """A vector for each byte, by channel, plus learned vectors of the row, column and channel that come next."""

    def __init__(self, shape: tuple[int, int, int], model_size: int) -> None:
        super().__init__()
        self.shape = shape
        # The bytes of red, of green and of blue, then `START`.
        start = torch.randn(1, model_size)
        of_channels = smooth_vectors(256, model_size).repeat(3, 1)
        self.values = nn.Parameter(torch.cat([of_channels, start]))
        self.positions = nn.ParameterList(0.3 * torch.randn(size, model_size) for size in shape)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Embeds tokens [B, T] at their places in the image [B, T] (see `ImageState`): [B, T, D]."""
        _, columns, channels = self.shape
        channel = (places - 1) % channels
        values = tokens + 256 * channel
        embedded = F.embedding(values.masked_fill(tokens == START, 3 * 256), self.values)

        # The place of a token is the index of the next byte.
        known = places < self.size
        next_byte = places.masked_fill(~known, 0)
        next_row = next_byte // (columns * channels)
        next_column = next_byte // channels % columns
        next_channel = next_byte % channels
        vectors = []
        for index, table in zip((next_row, next_column, next_channel), self.positions):
            vectors.append(F.embedding(index, table))
        position = torch.stack(vectors).sum(dim=0)
        return embedded + position * known[..., None]

    @property
    def size(self) -> int:
        """Bytes of an image."""
        rows, columns, channels = self.shape
        return rows * columns * channels


class ImageModel(SequenceModel):
    """Predicts the next byte of images, whose size is known: `START` is given, never predicted.

    Targets `START` are ignored, and the vocabulary of the predictions is the 256 bytes.
    """

    def __init__(self, core: Core, shape: tuple[int, int, int]) -> None:
        super().__init__(core, 256, tied=False)
        config: Any = core.config
        self.embedding: Any = PixelEmbedding(shape, config.model_size)
        assert self.outputs is not None
        with torch.no_grad():
            table = self.outputs.vectors[0]
            table.copy_(smooth_vectors(256, config.model_size) * table.std())

    def initial_state(self, batch_size: int) -> ImageState:
        """The state before a stream, which may begin inside an image."""
        state = self.core.initial_state(batch_size)
        unknown = self.embedding.size + 1
        place = torch.full((batch_size,), unknown, device=self.softmax.bias.device)
        return ImageState(state, place)

    def with_cache(self, state: ImageState) -> ImageState:
        return state._replace(core=self.core.with_cache(state.core))

    def forward(
        self,
        tokens: Tensor,
        reset: Tensor,
        state: ImageState,
        targets: Tensor | None = None,
        return_attention: bool = False,
    ) -> SequenceOutput:
        """See `SequenceModel`; the state is an `ImageState`."""
        self.check(tokens, targets)
        places = self.places(tokens, reset, state.place)
        if targets is not None:
            targets = targets.masked_fill(targets == START, IGNORE)
        output = self.predict(self.embedding(tokens, places), reset, state.core, targets, return_attention)
        return output._replace(state=ImageState(output.state, places[:, -1]))

    def places(self, tokens: Tensor, reset: Tensor, before: Tensor) -> Tensor:
        """Places [B, T] of tokens in their images, given those [B] of the tokens before."""
        unknown = self.embedding.size + 1
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        starts = tokens == START

        # The latest step at which an image started, or the memory was reset inside of one; -1 if there is none yet.
        latest = torch.where(starts | reset, steps, -1).cummax(dim=1).values
        place_there = torch.where(starts, 0, unknown).gather(1, latest.clamp(min=0))
        # From there, or else from the token before the first step, each step counts one on.
        since_latest = place_there + steps - latest
        since_before = before[:, None] + 1 + steps
        places = torch.where(latest < 0, since_before, since_latest)
        return places.clamp(max=unknown)
