"""The configuration of actors, and the errors of their pools. Nothing here imports torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agent.core.fields import Above0, AtLeast0, Checked, Positive, Precision, Several, Size, Threads
from envs.guard import STEP_SECONDS

MAX_EPISODE_STEPS = 100_000
"""Longest episode in evaluations, agent steps. Half an hour of DeepMind Lab is 27,000."""


@dataclass(frozen=True)
class ActorsConfig(Checked):
    """How actors are distributed."""

    num_actors: Several = 2
    """Actor processes (with --local: actors that take turns in this process). Learning starts when all are up."""
    max_actors: Several | None = None
    """Elastic: up to this many actors join whenever the cluster has room; None for num_actors."""
    envs_per_actor: Several = 32
    """Environments that an actor steps together."""
    unroll_length: Size = 64
    """Steps of a trajectory (T); a multiple of the core's segment_size. Gradients end where it begins: a recurrent core
    hardly learns to keep something for longer. Cores with attention do, as far as their slots reach."""
    stagger: bool = False
    """Where all episodes are equally long, end the second one of each environment early, after another share of its
    length: environments that begin together would otherwise stay at the same step, and every update learn from one part
    of the episode. Not with --resident, EnvPool's environments and Atari, whose episodes cannot be ended one by one."""
    in_flight: Literal[1, 2] = 1
    """Unrolls that may be requested of an actor or finished before the learner takes one: 1 or 2."""
    threads: Threads = 1
    """CPU threads of an actor process."""
    cpus: AtLeast0 = 1.0
    """CPUs of the cluster for each actor."""
    gpus: AtLeast0 = 0.0
    """GPUs of the cluster for each actor, such as 0.25; if not 0, its network is on the GPU."""
    precision: Precision = "float32"
    """Precision of matrix products and convolutions when acting, in evaluations too; see that of the learner."""
    resources: tuple[str, ...] = ()
    """Other resources of the cluster for each actor, NAME=AMOUNT as `ray start` takes them."""
    labels: tuple[str, ...] = ()
    """Labels that an actor's node must have, KEY=VALUE as `ray start` takes them, or KEY=!VALUE that it must not."""
    placement: Literal["pack", "spread"] = "pack"
    """Whether actors fill one node after another or spread over all."""
    step_seconds: Above0 = STEP_SECONDS
    """Longest time to make, reset or step all of an actor's environments."""
    max_episode_steps: Positive = MAX_EPISODE_STEPS
    """Agent steps of an episode after which an evaluation or a video ends with an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_actors is not None and self.max_actors < self.num_actors:
            raise ValueError(f"max_actors: expected at least num_actors = {self.num_actors}, got {self.max_actors}")
        if self.gpus > 1 and self.gpus % 1:
            raise ValueError(f"gpus: expected a share of one or a whole number, got {self.gpus}")
        self.ray_options()

    @property
    def most_actors(self) -> int:
        """Greatest number of actors at a time."""
        return self.max_actors or self.num_actors

    @property
    def count(self) -> str:
        """The number of actors as text: "2", or "4..16" if it is elastic."""
        if self.most_actors == self.num_actors:
            return f"{self.num_actors}"
        return f"{self.num_actors}..{self.most_actors}"

    @property
    def device(self) -> str:
        """The device of an actor's network."""
        return "cuda" if self.gpus else "cpu"

    def ray_options(self) -> dict[str, Any]:
        """Resources and placement of an actor, as options of a Ray actor."""
        # Ray's own names.
        options: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        if self.resources:
            options["resources"] = self._amounts()
        if self.labels:
            options["label_selector"] = pairs("labels", self.labels)
        if self.placement == "spread":
            options["scheduling_strategy"] = "SPREAD"
        return options

    def _amounts(self) -> dict[str, float]:
        """The other resources, by name. Raises a ValueError for texts of another form and impossible amounts."""
        amounts = {}
        for text in self.resources:
            name, _, number = text.partition("=")
            try:
                amount = float(number)
            except ValueError:
                amount = math.nan
            if not name or not 0 <= amount < math.inf:
                raise ValueError(f"resources: expected NAME=AMOUNT, got {', '.join(self.resources)!r}")
            amounts[name] = amount
        return amounts


def pairs(name: str, texts: Sequence[str]) -> dict[str, str]:
    """The dict of texts such as "key=value". Raises a ValueError naming the field `name` and a text of another form."""
    found = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not key or not value:
            raise ValueError(f"{name}: expected KEY=VALUE, got {text!r}")
        found[key] = value
    return found


class ClusterError(RuntimeError):
    """Actors cannot run for a reason outside the program: their deaths, or the loss of the cluster."""
