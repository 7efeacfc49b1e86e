"""The configuration of the agent's network. Nothing here imports torch."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from agent.core.config import AgentCoreConfig, CompressiveTransformerConfig
from agent.core.fields import AtLeast0, Checked, Range, Size


@dataclass(frozen=True)
class AgentConfig(Checked):
    """The network; the environment determines shapes of observations, actions and vocabulary."""

    torso: Literal["deep", "shallow", "small", "auto"] = "deep"
    """Network for images: deep or shallow (IMPALA's two), small, or auto, which is small up to 63 pixels and shallow
    above. Vectors always use two linear layers."""
    torso_size: Size = 256
    """Features of the torso."""
    core: AgentCoreConfig = field(default_factory=CompressiveTransformerConfig)
    """The recurrent core."""
    skip: bool = False
    """Add the core's inputs to its features, so that the heads see the observation whatever the core does with it."""
    reconstruction_cost: AtLeast0 = 0.0
    """Weight of an auxiliary loss: to predict the observation from the core's inputs; 0 for none. The error is a mean
    over the pixels of a small image, and a sum over the elements of a vector; a mean over steps for both reductions of
    the learner."""
    reconstruction_height: Size = 6
    """Pixels from top to bottom of the small image, whose width follows from the observation's shape."""
    instruction: bool | None = None
    """Encode the environment's instructions with IMPALA's LSTM. None: encode them if the environment has any."""
    action_bounds: Literal["squash", "clip"] = "squash"
    """How a sampled number comes within the bounds of a continuous action: through tanh, or cut off."""
    action_scale: Literal["independent", "state"] = "independent"
    """Whether the standard deviation of continuous actions is the same in all states, or depends on the state."""
    pixel_zero: Annotated[float, Range(0, 255.0)] | Literal["auto"] = 127.5
    """The value of a pixel that torsos see as 0. With auto it is the median of an observation, in most games the
    background: filters then respond to what is drawn on it alone, and small objects are learned sooner."""
    standardize: bool = False
    """Standardize vectors by the running mean and deviation of each element, before their torso."""
    value_torso: bool = False
    """A second torso for vectors, which only the value function sees: what helps to predict returns is then not in the
    way of the policy."""
    prediction_cost: AtLeast0 = 0.0
    """Weight of an auxiliary loss: to predict what the torso will see from the core's features and the actions in
    between; 0 for none. The error is a mean over the torso's features and over steps for both reductions of the
    learner."""
    prediction_steps: Size = 4
    """How many steps ahead it is predicted, all up to this number."""
