"""IMPALA's learner: a batch of trajectories in, gradients, new weights out. No processes, files or environments.

The algorithm is that of Espeholt et al. 2018, arXiv:1802.01561, section 4; its formulas are in `vtrace` and `losses`.
`learner.Learner` adds what runs need beside it: batches of several updates, and updates that wait for no device.

B rows, T steps, P parameters of the policy, K tasks.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agent.core import Mean
from agent.core.state import detach_state, leaves, state_to
from agent.moments import Standardization
from agent.policies import Policy
from agent.popart import PopArt
from agent.precision import autocast, resolve_precision
from agent.teaching import TEACHER_LOSSES
from agent.trajectory import Trajectory, loss_mask, map_sensed, sensed_of, validate
from learner import losses
from learner.communicator import Communicator
from learner.config import LearnerConfig
from learner.optimization import Optimization, ParameterGroup, snapshot
from learner.replica import StateDict
from learner.update_graph import UpdateSettings
from learner.vtrace import VTraceReturns, vtrace

LEAST_ADVANTAGE = 1e-6
"""Least root mean square by which advantages are divided."""


class ForwardPass(NamedTuple):
    """What the network computes for a trajectory, with gradients.

    policy: [B, T, P] parameters of the target policy.
    entropy: [B, T] of the target policy, in nats.
    log_probs: [B, T] of the actions that were taken.
    log_rhos: [B, T] the log of the importance weights: how much likelier the action is now than it was for the actor.
    values: [B, T + 1], in units of the reward; the last is the bootstrap.
    losses: the network's own losses, such as those of the compression.
    task: [B] int64, the task of each row; None without PopArt.
    scale: [B, 1], the standard deviation of the value targets of the row's task; 1 without PopArt.
    reward_size: [B, 1], the size of the rewards of the row's task, see `PopArt.reward_sizes`; 0 without PopArt.
    value_offset: [K], what was added to the values of each task, see `PopArt.first_values`.
    sums_of_rewards: [3, K], those of the whole batch, see `PopArt.sums`; None without PopArt.
    """

    policy: Tensor
    entropy: Tensor
    log_probs: Tensor
    log_rhos: Tensor
    values: Tensor
    losses: dict[str, Mean]
    task: Tensor | None = None
    scale: Tensor | float = 1.0
    reward_size: Tensor | float = 0.0
    value_offset: Tensor | float = 0.0
    sums_of_rewards: Tensor | None = None


class Targets(NamedTuple):
    """What policy and value of a trajectory's steps learn from, without gradients.

    mask: [B, T] bool, false for steps whose action had no effect.
    rewards: [B, T], as they are learned from.
    returns: of V-trace, with the present policy and values.
    advantages: [B, T], the weights of the policy gradient.
    share: this learner's share of the steps of the batch.
    """

    mask: Tensor
    rewards: Tensor
    returns: VTraceReturns
    advantages: Tensor
    share: Tensor


class BackwardPass(NamedTuple):
    """What is left of a batch when its gradients are computed. All tensors are on the device.

    sums: losses, other scalar metrics, and the number of new steps as "steps", by name. Each is this learner's share of
        the sum over the learners.
    maxima: scalar metrics by name, which are the same on all learners.
    tasks: [2, 3, K], `PopArt.sums` of value targets and of rewards, over all learners; None without PopArt.
    value_offset: [K], as in `ForwardPass`.
    observed: [3, N], `Standardization.sums` of the observations, over all learners; None without a standardization.
    """

    sums: dict[str, Tensor]
    maxima: dict[str, Tensor]
    tasks: Tensor | None
    value_offset: Tensor | float
    observed: Tensor | None


class ImpalaLearner:
    """Trains an agent on trajectories with V-trace.

    The loss is policy gradient + baseline_cost * baseline - entropy_cost * entropy (or evenness, see
    `LearnerConfig.exploration`) + the agent's own losses; those of a teacher are multiplied by teacher_cost.
    The compression parameters receive gradients from their own loss only, which gives no gradient to other parameters;
    therefore their gradients are clipped separately.

    Args:
        agent: called as `agent(observation, last_action, last_reward, reset, state)`; has a `distribution` of
            actions (see `agent.policies`) and `compression_parameters()`. It is moved to the device.
        total_steps: agent steps at which the schedules end.
        comm: the learners that share each batch. They must have equal weights and get shards of equally many rows;
            their updates then equal those of one learner on all rows.
        unread: whether updates may stay unread, which needs Adam; None for Adam on a GPU only.

    Attributes:
        version: number of updates, which is the version of the weights.
        steps: agent steps learned from, by the loss mask and without replayed rows.

    Raises:
        ValueError: if `total_steps` is not positive, a compression parameter is not a parameter of the agent, or
            updates may stay unread and the optimizer is not Adam.
    """

    def __init__(
        self,
        agent: nn.Module,
        config: LearnerConfig,
        total_steps: int,
        device: torch.device,
        comm: Communicator | None = None,
        unread: bool | None = None,
    ) -> None:
        if total_steps < 1:
            raise ValueError(f"total_steps: expected at least 1, got {total_steps}")
        self.config = config
        self.total_steps = total_steps
        self.device = device
        self.agent = agent.to(device)
        self.precision = resolve_precision(config.precision, device)
        if config.compile:
            agent.vision.compile(dynamic=False)  # type: ignore[union-attr]
        self.version = 0
        self.steps = 0
        # Without other learners, the collectives do nothing.
        self._comm = comm or Communicator()

        is_adam = config.optimizer == "adam"
        if unread is None:
            unread = is_adam and device.type == "cuda"
        if unread and not is_adam:
            raise ValueError(f"unread: expected false for {config.optimizer}, which cannot skip updates, got true")
        make = functools.partial(make_optimizer, config)
        self._optimization = Optimization(self.agent, make, config.max_gradient_norm, self._comm, unread)
        self._distribution: Policy = agent.distribution  # type: ignore[assignment]
        head = getattr(agent, "value", None)
        self._popart = head if isinstance(head, PopArt) else None
        standardization = getattr(agent, "standardization", None)
        self._standardization = standardization if isinstance(standardization, Standardization) else None

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return self.config.learning_rate_at(self._progress)

    @property
    def entropy_cost(self) -> float:
        """The weight of the entropy bonus in the next update."""
        return self.config.entropy_cost_at(self._progress)

    @property
    def teacher_cost(self) -> float:
        """The weight of the teacher's losses in the next update."""
        return self.config.teacher_cost_at(self._progress)

    @property
    def _progress(self) -> float:
        return min(1.0, self.steps / self.total_steps)

    def update(self, trajectory: Trajectory) -> dict[str, float]:
        """Learns from one batch.

        Args:
            trajectory: T steps of B rows on any device, this learner's shard of the batch; see `agent.trajectory`.

        Returns:
            metrics of the whole batch by name: losses as they enter the total (weighted and reduced), entropy in nats a
            step, gradient norms before clipping, importance weights, mean values, policy lag in versions, learning
            rate, entropy cost.

        Raises:
            ValueError: if the shapes of the trajectory or of the agent's output are wrong.
            NotFinite: if a loss or a gradient is not finite; names which. Weights, optimizer and counters are
                unchanged. All learners that share the batch raise it.
            PeerLost: if another learner was lost; nothing was changed.
        """
        validate(trajectory)
        trajectory = state_to(trajectory, self.device)
        settings = self._settings()
        # One forward and one backward pass.
        computed = self._compute_gradients(trajectory, settings)
        # Sums the gradients over the learners, clips them, and steps the optimizer.
        metrics = self._optimization.step(
            computed.sums,
            settings.learning_rate,
            "update",
            self.version + 1,
            find_fields=lambda: self._not_finite_fields(trajectory),
            others=computed.maxima,
        )
        self._update_statistics(computed)
        self.version += 1
        self.steps += round(metrics.pop("steps"))
        return metrics | self._schedules(settings)

    @property
    def counters(self) -> dict[str, int]:
        """What the learner counts, by attribute."""
        return {"version": self.version, "steps": self.steps}

    def weights(self) -> dict[str, Tensor]:
        """Copies of the agent's parameters and buffers on the CPU, by name."""
        return snapshot(self.agent)()

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Restores what `weights` returned."""
        self.agent.load_state_dict(weights)

    def snapshot(self) -> Callable[[], dict[str, Tensor]]:
        """Takes the weights now; the function returns them as `weights` does, while other updates are made."""
        return snapshot(self.agent)

    def state_dict(self) -> StateDict:
        """Everything needed to resume exactly: copies, on the CPU, of weights and optimizer state, and the counters."""
        return {"weights": self.weights(), "optimizer": self._optimization.state_dict(), **self.counters}

    def load_state_dict(self, state: StateDict) -> None:
        """Restores the state that `state_dict` returned. Configuration (hyper-parameters of the optimizer included) and
        `total_steps` stay those of this learner. Raises a RuntimeError or ValueError for the state of another agent."""
        self.agent.load_state_dict(state["weights"])
        self._optimization.load_state_dict(state["optimizer"])
        self.version = int(state["version"])
        self.steps = int(state["steps"])

    def _settings(self) -> UpdateSettings:
        """Version and schedules of the next update."""
        return UpdateSettings(self.version, self.learning_rate, self.entropy_cost, self.teacher_cost)

    def _schedules(self, settings: UpdateSettings) -> dict[str, float]:
        """The metrics that say where the schedules of an update were."""
        metrics = {"learning_rate": settings.learning_rate, "entropy_cost": settings.entropy_cost}
        if self.config.teacher_cost:
            metrics["teacher_cost"] = settings.teacher_cost
        return metrics

    def _compute_gradients(self, trajectory: Trajectory, settings: UpdateSettings) -> BackwardPass:
        """Forward and backward pass over a trajectory on the device."""
        self.agent.train()
        self._optimization.zero_grad()
        forward = self._forward(trajectory)
        targets = self._targets(trajectory, forward)
        losses_by_name = self._losses(forward, targets, settings)
        losses_by_name["loss/total"].backward()

        sums = losses_by_name | self._measurements(trajectory, forward, targets, settings)
        # The greatest age of a fresh row's weights.
        lag = (settings.version - trajectory.version) * _fresh(trajectory)
        maxima = {"policy_lag/max": self._comm.max(lag.max())}
        tasks = self._sums_by_task(forward, targets)
        return BackwardPass(sums, maxima, tasks, forward.value_offset, self._observed(trajectory))

    def _observed(self, trajectory: Trajectory) -> Tensor | None:
        """See `BackwardPass.observed`."""
        if self._standardization is None:
            return None
        # The last observation is the next trajectory's first.
        sensed = map_sensed(lambda part: part[:, :-1], sensed_of(trajectory.observation))
        return self._comm.sum(self._standardization.sums(sensed))

    def _update_statistics(self, computed: BackwardPass) -> None:
        """Moves running statistics after the optimizer's step, on all learners alike."""
        skipped = self._optimization.skipped
        if self._standardization is not None and computed.observed is not None:
            self._standardization.update_statistics(computed.observed, skipped)
        if self._popart is not None and computed.tasks is not None:
            targets, rewards = computed.tasks
            rate = self.config.popart_rate
            self._popart.update_statistics(targets, rate, skipped, computed.value_offset, rewards)

    def _targets(self, trajectory: Trajectory, forward: ForwardPass) -> Targets:
        """What the steps of a trajectory are learned from."""
        mask = loss_mask(trajectory)
        rewards, discounts = self._rewards(trajectory)
        returns = self._returns(forward, rewards, discounts, mask)
        advantages = self._advantages(forward, returns, mask)

        # `losses.reduce` divides by this learner's steps, or by 1 if it has none. Times this share, it is a division by
        # the steps of all learners.
        steps = mask.sum()
        steps_of_batch = self._comm.sum(steps)
        share = steps.clamp(min=1).to(forward.values.dtype) / steps_of_batch.clamp(min=1)
        return Targets(mask, rewards, returns, advantages, share)

    def _losses(self, forward: ForwardPass, targets: Targets, settings: UpdateSettings) -> dict[str, Tensor]:
        """The losses as they enter the total, by name, and the total."""
        config = self.config
        mask = targets.mask

        # The three losses of section 4.2. PopArt's are in units of the standard deviation of the task's value targets.
        policy = losses.policy_gradient_loss(forward.log_probs, targets.advantages, mask, config.reduction)
        values = forward.values[:, :-1] / forward.scale
        baseline = losses.baseline_loss(values, targets.returns.vs / forward.scale, mask, config.reduction)
        bonus = forward.entropy
        if config.exploration == "evenness":
            bonus = self._distribution.evenness(forward.policy)
        exploration = losses.entropy_loss(bonus, mask, config.reduction)

        # A mean over the steps of this learner becomes its share of the mean over those of the batch.
        weight = targets.share if config.reduction == "mean" else 1.0
        found = {
            "loss/policy": weight * policy,
            "loss/baseline": weight * (config.baseline_cost * baseline),
            "loss/entropy": weight * (settings.entropy_cost * exploration),
        }
        for name, loss in losses.reduce_losses(forward.losses, self._comm.sum).items():
            cost = settings.teacher_cost if name in TEACHER_LOSSES else 1.0
            found[f"loss/{name}"] = cost * loss
        parts = [loss.float() for loss in found.values()]
        return found | {"loss/total": torch.stack(parts).sum()}

    @torch.no_grad()
    def _measurements(
        self, trajectory: Trajectory, forward: ForwardPass, targets: Targets, settings: UpdateSettings
    ) -> dict[str, Tensor]:
        """What is only measured, and the number of new steps; see `BackwardPass.sums`."""
        mask = targets.mask
        returns = targets.returns
        share = targets.share
        fresh = _fresh(trajectory)
        return {
            "steps": (mask & fresh[:, None]).sum(),
            "policy/entropy": share * losses.reduce(forward.entropy, mask, "mean"),
            "value/mean": share * losses.reduce(forward.values[:, :-1], mask, "mean"),
            "value/target_mean": share * losses.reduce(returns.vs, mask, "mean"),
            "importance/mean_rho": share * returns.mean_rho,
            "importance/clipped_fraction": share * returns.clipped_fraction,
            **self._lags(trajectory, fresh, settings),
        }

    def _sums_by_task(self, forward: ForwardPass, targets: Targets) -> Tensor | None:
        """How large the value targets and the rewards of each task are; see `BackwardPass.tasks`."""
        if self._popart is None or forward.task is None or forward.sums_of_rewards is None:
            return None
        sums_of_targets = self._popart.sums(targets.returns.vs, targets.mask, forward.task)
        return torch.stack([self._comm.sum(sums_of_targets), forward.sums_of_rewards])

    def _forward(self, trajectory: Trajectory) -> ForwardPass:
        """Runs the network over the trajectory."""
        with autocast(self.device, self.precision):
            output = self.agent(
                trajectory.observation,
                trajectory.last_action,
                trajectory.reward,
                trajectory.reset,
                detach_state(trajectory.core_state),
            )
        # The last output is for the bootstrap: no action was chosen there.
        policy = output.policy_parameters[:, :-1]
        if policy.shape != trajectory.policy_parameters.shape:
            expected = list(trajectory.policy_parameters.shape)
            got = list(policy.shape)
            raise ValueError(f"policy_parameters of the agent: expected {expected} as the trajectory's, got {got}")
        entropy = self._distribution.entropy(policy)
        log_probs = self._distribution.log_prob(policy, trajectory.action)
        with torch.no_grad():
            log_rhos = log_probs - self._distribution.log_prob(trajectory.policy_parameters, trajectory.action)
        forward = ForwardPass(policy, entropy, log_probs, log_rhos, output.value, output.losses)
        if self._popart is not None:
            forward = self._with_own_tasks(self._popart, forward, trajectory)
        if forward.values.shape != trajectory.reward.shape:
            expected = list(trajectory.reward.shape)
            got = list(forward.values.shape)
            raise ValueError(f"value of the agent: expected {expected}, got {got}")
        return forward

    def _with_own_tasks(self, head: PopArt, forward: ForwardPass, trajectory: Trajectory) -> ForwardPass:
        """The forward pass with each row's values of its own task, out of those [B, T + 1, K] of all tasks.

        Also with what PopArt knows of these tasks; the same for all learners that share the batch."""
        task = trajectory.actor_id % head.out_features  # actor i plays task i modulo their number
        values = head.of_task(forward.values, task)
        dtype = values.dtype

        def of_rows(by_task: Tensor) -> Tensor:
            """What is known of each task, [K] float64, by row, [B, 1]."""
            return by_task[task][:, None].to(dtype)

        rewards, discounts = self._rewards(trajectory)
        mask = loss_mask(trajectory)
        sums = torch.stack([head.sums(rewards, mask, task), head.sums(1 - discounts, mask, task)])
        sums_of_rewards, sums_of_ends = self._comm.sum(sums)
        value_offset = head.first_values(sums_of_rewards, sums_of_ends)
        return forward._replace(
            values=values + of_rows(value_offset),
            task=task,
            scale=of_rows(head.scale),
            reward_size=of_rows(head.reward_sizes(sums_of_rewards)),
            value_offset=value_offset,
            sums_of_rewards=sums_of_rewards,
        )

    def _rewards(self, trajectory: Trajectory) -> tuple[Tensor, Tensor]:
        """Rewards as they are learned from, and discounts, of the T actions, [B, T] each."""
        config = self.config
        clip_rewards = losses.REWARD_CLIPPING[config.reward_clipping]
        rewards = config.reward_scale * clip_rewards(trajectory.reward[:, 1:])
        discounts = config.discount * trajectory.discount[:, 1:]
        return rewards, discounts

    def _returns(self, forward: ForwardPass, rewards: Tensor, discounts: Tensor, mask: Tensor) -> VTraceReturns:
        """V-trace with the present policy and values; rewards and discounts [B, T] as of `_rewards`."""
        config = self.config
        with torch.no_grad():
            return vtrace(
                log_rhos=forward.log_rhos,
                discounts=discounts,
                rewards=rewards,
                values=forward.values[:, :-1],
                bootstrap_value=forward.values[:, -1],
                mask=mask,
                clip_rho_threshold=config.clip_rho,
                clip_c_threshold=config.clip_c,
                clip_pg_rho_threshold=config.clip_pg_rho,
                lambda_=config.lambda_,
            )

    @torch.no_grad()
    def _advantages(self, forward: ForwardPass, returns: VTraceReturns, mask: Tensor) -> Tensor:
        """The advantages [B, T] that weight the policy gradient."""
        advantages = returns.pg_advantages / forward.scale
        if self.config.normalize_advantages:
            # With PopArt the divisor is at least the size of the task's rewards: smaller advantages are mostly errors
            # of the value function. Enlarged, they would keep the policy from states that look bad only because it has
            # not been there. Before a first reward that size is infinite, so that advantages are 0.
            size = self._root_mean_square(advantages, mask).clamp(min=LEAST_ADVANTAGE)
            size_of_rewards = forward.reward_size / forward.scale
            advantages = advantages / size.clamp(min=size_of_rewards)
        if self.config.trust is not None:
            # The gradient makes actions with a positive advantage likelier, and those with a negative one rarer. It is
            # left out where an action has already moved that way by more than the limit since it was taken.
            moved = forward.log_rhos * advantages.sign()
            too_far = moved > math.log1p(self.config.trust)
            advantages = torch.where(too_far, 0.0, advantages)
        return advantages

    def _root_mean_square(self, values: Tensor, mask: Tensor) -> Tensor:
        """A scalar, of values [B, T] over the steps where the mask is true, in the whole batch of all learners."""
        masked = torch.where(mask, values, 0.0)
        square = self._comm.sum(masked.square().sum())
        steps = self._comm.sum(mask.sum()).clamp(min=1)
        return (square / steps).sqrt()

    def _lags(self, trajectory: Trajectory, fresh: Tensor, settings: UpdateSettings) -> dict[str, Tensor]:
        """The mean age, in versions, of the weights that acted: in the rows `fresh` [B] bool, and in replayed ones."""
        age = settings.version - trajectory.version
        means = {"policy_lag/mean": _mean(age, fresh)}
        if trajectory.replayed is not None:
            means["replay/share"] = trajectory.replayed.float().mean()
            means["replay/age"] = _mean(age, trajectory.replayed)
        # The learners' shares of these means are summed up.
        return {name: mean / self._comm.size for name, mean in means.items()}

    def _not_finite_fields(self, trajectory: Trajectory) -> list[str]:
        """For errors: the fields of the trajectory that are not finite in the shard of any learner."""
        # One number a field, so that the learners exchange a single tensor.
        counts = []
        for field in trajectory:
            count = torch.zeros((), dtype=torch.int64, device=self.device)
            for leaf in leaves(field):
                count = count + (~leaf.isfinite()).sum()
            counts.append(count)
        totals = self._comm.sum(torch.stack(counts)).tolist()
        return [name for name, total in zip(trajectory._fields, totals) if total]


def _fresh(trajectory: Trajectory) -> Tensor:
    """[B] bool: true for rows that are learned from for the first time."""
    if trajectory.replayed is None:
        return torch.ones_like(trajectory.version, dtype=torch.bool)
    return ~trajectory.replayed


def _mean(values: Tensor, rows: Tensor) -> Tensor:
    """The mean of values [B] over the rows [B] bool; 0 for none."""
    return (values * rows).sum() / rows.sum().clamp(min=1)


def make_optimizer(config: LearnerConfig, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
    """Adam or RMSprop over groups of parameters."""
    if config.optimizer == "adam":
        return torch.optim.Adam(
            groups,
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_epsilon,
            fused=True,  # a kernel for all parameters at once
        )
    return torch.optim.RMSprop(
        groups,
        lr=config.learning_rate,
        alpha=config.rmsprop_decay,
        eps=config.rmsprop_epsilon,
        momentum=config.rmsprop_momentum,
    )
