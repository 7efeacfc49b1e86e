"""Future prediction: an auxiliary loss that makes memory hold what will be seen next.

From the core's features and the actions in between, a recurrent network predicts what the torso will see some steps
ahead: features, not pixels. Such losses are those of PBL and SPR (Guo et al. 2020, arXiv:2004.14646; Schwarzer et al.
2021, arXiv:2007.05929), and Lee et al. 2022 (Brain Agent) gained most with one on the level of this project.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.core import Mean


class FuturePrediction(nn.Module):
    """Predicts the torso's features 1 to `steps` steps ahead.

    The target is the torso's own output, scaled to mean 0 and variance 1 over its elements and without gradient: the
    torso learns from what the core needs to know, not to make itself easy to predict.

    Args:
        model_size: D of the core's features.
        action_size: A of an encoded action.
        seen_size: F of the torso's features.
        steps: how far ahead to predict.
    """

    def __init__(self, model_size: int, action_size: int, seen_size: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.begin = nn.Linear(model_size, model_size)
        self.cell = nn.GRUCell(action_size, model_size)
        self.decoder = nn.Linear(model_size, seen_size)

    def forward(self, features: Tensor, actions: Tensor, seen: Tensor, reset: Tensor) -> Mean:
        """The mean squared error over elements, steps ahead and steps, within episodes.

        Args:
            features: [B, T, D] of the core.
            actions: [B, T, A], encoded, those that led to each step.
            seen: [B, T, F] of the torso.
            reset: [B, T] bool, true at episode starts.
        """
        length = features.shape[1]
        target = F.layer_norm(seen.detach().to(features.dtype), seen.shape[-1:])
        known = actions.to(features.dtype)
        total = features.new_zeros(())
        count = features.new_zeros(())

        # One prediction runs on from each step. `same_episode`: whether no episode has started since.
        hidden = torch.tanh(self.begin(features))
        same_episode = torch.ones_like(reset)
        for ahead in range(1, min(self.steps, length - 1) + 1):
            # From every step but those that have no step so far ahead.
            hidden = hidden[:, : length - ahead]
            same_episode = same_episode[:, : length - ahead]

            # The action that led there moves it on.
            next_hidden = self.cell(known[:, ahead:].flatten(0, 1), hidden.flatten(0, 1))
            hidden = next_hidden.view_as(hidden)
            same_episode = same_episode & ~reset[:, ahead:]

            difference = self.decoder(hidden) - target[:, ahead:]
            error = difference.square().mean(dim=-1)
            total = total + (error * same_episode).sum()
            count = count + same_episode.sum()
        return Mean(total[None], count[None])
