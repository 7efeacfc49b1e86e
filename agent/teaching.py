"""An agent that learns from a teacher, which sees more clearly.

An environment may show each state twice: as the agent is to see it, and as the teacher knows it (in the rooms level:
with random surfaces and light, and with the level's own look). The agent acts; the teacher only says what it would have
done. To imitate it is a loss beside those of IMPALA, as in Kickstarting (Schmitt et al. 2018, arXiv:1803.03835), with a
teacher whose view is privileged (Chen et al. 2019, arXiv:1912.12294).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from agent.actor_critic import TEACHER, Agent, AgentOutput, Weights, own_weights
from agent.config import AgentConfig
from agent.core import Mean, State
from agent.encoders import Shape, part_shapes
from agent.policies import ActionSpace, Categorical
from agent.trajectory import Observation, Sensed

TEACHER_LOSSES = ("teacher", "teacher_features")
"""Names of the losses of a `TaughtAgent`, which the learner weights."""


class TaughtState(NamedTuple):
    """The recurrent state of an agent, and that of its teacher."""

    own: State
    teacher: State


class TaughtAgent(Agent):
    """An agent, and its teacher: a network of the same configuration, whose weights do not change.

    It is called as any agent is. Its observations are pairs of images, of which it sees the first and its teacher the
    second. Its state is a `TaughtState`. Among its losses are "teacher", the divergence of its policy from the
    teacher's, and "teacher_features", the squared difference between what enters the two cores: what the teacher makes
    of its clear view is what the agent should make of its own.

    Raises:
        ValueError: if the observation is no pair of images of one shape, there are instructions, or the actions are
            not those of a Discrete space.
    """

    def __init__(
        self,
        config: AgentConfig,
        observation_shape: Shape | tuple[Shape, ...],
        actions: ActionSpace,
        vocabulary: int = 0,
        popart_tasks: int = 0,
        mask_at: int | None = None,
    ) -> None:
        views = part_shapes(observation_shape)
        if len(views) != 2 or views[0] != views[1] or len(views[0]) != 3:
            expected = "an environment that shows each state twice, such as rooms:transfer,own_view=True"
            raise ValueError(f"teacher_cost: expected {expected}, got observations {observation_shape}")
        if vocabulary:
            raise ValueError("teacher_cost: expected an environment without instructions, got one with them")
        if mask_at is not None:
            raise ValueError("teacher_cost: expected an environment without a mask of actions, got one with it")
        view, _ = views
        super().__init__(config, view, actions, vocabulary, popart_tasks)
        if not isinstance(self.distribution, Categorical):
            raise ValueError(f"teacher_cost: expected one choice of several actions, got {actions}")
        self.teacher = Agent(config, view, actions, vocabulary, popart_tasks).requires_grad_(False)

    def begin_with(self, weights: Weights) -> None:
        """The teacher gets the same weights."""
        own = own_weights(weights)
        self.load_state_dict(own | {TEACHER + name: weight for name, weight in own.items()})

    def alone(self) -> Agent:
        with torch.random.fork_rng([]):  # the new weights are drawn in vain
            own = Agent(self.config, *self.made_for)
        own.begin_with(self.state_dict())
        return own

    def train(self, mode: bool = True) -> "TaughtAgent":
        """Training mode (dropout) of all but the teacher."""
        super().train(mode)
        self.teacher.eval()
        return self

    def initial_state(self, batch_size: int) -> State:
        return TaughtState(super().initial_state(batch_size), self.teacher.initial_state(batch_size))

    def with_cache(self, state: State) -> State:
        return TaughtState(super().with_cache(state.own), self.teacher.with_cache(state.teacher))

    def without_cache(self, state: State) -> State:
        return TaughtState(super().without_cache(state.own), self.teacher.without_cache(state.teacher))

    def forward(
        self,
        observation: Sensed | Observation,
        last_action: Tensor,
        last_reward: Tensor,
        reset: Tensor,
        state: State,
        return_attention: bool = False,
    ) -> AgentOutput:
        """See `Agent.forward`; observations are pairs."""
        own_view, teacher_view = observation
        known = (last_action, last_reward, reset)
        output = super().forward(own_view, *known, state.own, return_attention)
        with torch.no_grad():
            advice = self.teacher(teacher_view, *known, state.teacher)
        losses = output.losses
        if torch.is_grad_enabled():
            losses = {**losses, **self._losses(output, advice)}
        return output._replace(state=TaughtState(output.state, advice.state), losses=losses)

    def _losses(self, output: AgentOutput, advice: AgentOutput) -> dict[str, Mean]:
        """Means over all steps."""
        policy = output.policy_parameters.log_softmax(dim=-1)
        taught = advice.policy_parameters.log_softmax(dim=-1)
        divergence = (taught.exp() * (taught - policy)).sum(dim=-1)  # KL(teacher || policy)
        difference = (output.inputs - advice.inputs).square().mean(dim=-1)
        losses = {}
        for name, error in zip(TEACHER_LOSSES, (divergence, difference), strict=True):
            count = error.new_full((1,), error.numel())
            losses[name] = Mean(error.sum()[None], count)
        return losses
