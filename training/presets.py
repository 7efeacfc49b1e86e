"""Presets: functions from the name of a core to a complete configuration. Everything in them can be overridden."""

import dataclasses
from collections.abc import Callable

from actors import ActorsConfig
from agent import AgentConfig
from agent.core import CORES, CoreConfig, CustomCoreConfig, is_custom, matched_cores
from learner.config import LearnerConfig, ReplayConfig
from training.config import RunConfig, find_preset


def small_cores(memory: int = 16, clock: bool = False) -> dict[str, CoreConfig]:
    """The cores of the presets for CPU cores, of two layers of 64 features, by name; see `matched_cores`."""
    sizes = {"model_size": 64, "num_layers": 2, "num_heads": 4, "mlp_size": 128, "segment_size": 16, "norm": "pre"}
    return matched_cores({**sizes, "clock": clock}, memory, compressed=16)


def small_network(core: str) -> RunConfig:
    """What the presets for CPU cores have in common: one of the `small_cores`, and its learner."""
    return RunConfig(
        agent=AgentConfig(torso="small", torso_size=256, core=small_cores()[core], reconstruction_cost=1.0),
        learner=LearnerConfig(
            learning_rate=1e-3,
            discount=0.92,
            lambda_=0.85,
            entropy_cost=3e-2,
            baseline_cost=1.0,
            reward_clipping="abs_one",
            max_gradient_norm=1.0,
            precision="auto",
        ),
        actors=ActorsConfig(num_actors=2, envs_per_actor=64, unroll_length=32, precision="auto"),
    )


def cpu(core: str = "compressive") -> RunConfig:
    """The reduced level on two CPU cores in a few minutes; `make train` runs it.

    How soon the task is learned depends on the number of updates, so they are small. One actor keeps its unrolls one or
    two versions old: with two, whose unrolls wait for each other, they are three to four, and an agent that has learned
    the task may forget it for a while. Adam's memory is short because gradients grow fast when the task is learned.
    """
    config = small_network(core)
    learner = dataclasses.replace(
        config.learner,
        learning_rate_schedule="linear",
        entropy_cost_end=3e-3,
        schedule_start=0.4,
        adam_beta2=0.99,
        max_gradient_norm=0.5,
    )
    return dataclasses.replace(
        config,
        preset="cpu",
        env="rooms:small",
        frames=3_200_000,
        learner=learner,
        actors=dataclasses.replace(config.actors, num_actors=1, envs_per_actor=32),
    )


def general(core: str = "compressive") -> RunConfig:
    """Any environment with any observations, actions and rewards, on a CPU core; that of `gym:`, `dm:` and `envpool:`.

    Values are normalized by PopArt and advantages by their size, so that neither the size of rewards nor the length of
    episodes matters. Every unroll is learned from four times, because steps of other people's environments are dear;
    the limit on the policy's change keeps that stable. (Several learners cannot replay and learn once.) The heads see
    the observation beside the memory, so that memory costs little where none is needed. Vectors are standardized, and
    their values have a torso of their own; of images the background is seen as 0. The value's loss has little weight:
    with a discount of 0.99 its gradient is mostly noise. Updates are small, of 256 steps: most tasks are learned sooner
    with more of them. Environments whose episodes are all equally long are spread over the episode.
    """
    config = small_network(core)
    return dataclasses.replace(
        config,
        preset="general",
        env="gym:CartPole-v1",
        frames=1_000_000,
        rows_per_update=8,
        agent=dataclasses.replace(
            config.agent,
            torso="auto",
            torso_size=128,
            standardize=True,
            value_torso=True,
            reconstruction_cost=0.1,
            skip=True,
            pixel_zero="auto",
        ),
        learner=dataclasses.replace(
            config.learner,
            learning_rate=5e-4,
            learning_rate_schedule="linear",
            schedule_start=0.4,
            adam_beta2=0.99,
            discount=0.99,
            lambda_=0.95,
            entropy_cost=3e-3,
            baseline_cost=0.2,
            reward_clipping="none",
            popart=True,
            normalize_advantages=True,
            trust=0.2,
            max_gradient_norm=0.5,
        ),
        replay=ReplayConfig(share=0.75, unrolls=8),
        actors=dataclasses.replace(config.actors, num_actors=1, envs_per_actor=16, stagger=True),
    )


def level(core: str = "compressive") -> RunConfig:
    """The level itself, halved to 36 x 48 pixels, on two CPU cores in an hour or two.

    Large and near objects come first, so that the agent meets choices before it knows its way. A stage ends when most
    choices are right; all of them together at the latest after 44 of 96 M frames.
    """
    config = small_network(core)
    near = "rooms:full-half,distance_scale={},object_scale={} until correct {} or frames {}"
    return dataclasses.replace(
        config,
        preset="level",
        env="rooms:full-half",
        stages=(
            "rooms:small,image_height=36,image_width=48 until correct 0.95 or frames 8M",
            near.format(0.4, 1.75, 0.84, "12M"),
            near.format(0.5, 1.6, 0.84, "8M"),
            near.format(0.65, 1.35, 0.84, "8M"),
            near.format(0.8, 1.2, 0.82, "8M"),
        ),
        frames=96_000_000,
        log_every=40,
        agent=dataclasses.replace(config.agent, torso_size=192),
        learner=dataclasses.replace(
            config.learner, learning_rate_schedule="linear", discount=0.95, lambda_=0.9, entropy_cost_end=1e-3
        ),
    )


def transfer(core: str = "compressive") -> RunConfig:
    """An agent for the real level: it sees random surfaces and light, and learns from an agent of the level.

    That is its teacher, `pretrained/level` or, with the core Transformer-XL, `pretrained/level-transformer-xl`. The
    teacher sees the level's own look of the same states, and so knows what to do. Reinforcement learning alone, also
    from the teacher's weights, stays at chance here. The agent needs no stages, because it is shown the way; the weight
    of the teacher's advice falls, so that the agent may become better than it. Nor does it need to explore much, and
    with odd surfaces an entropy bonus costs several points: it falls to 0. With Transformer-XL and `--resident` a run
    takes 8 minutes of a GPU.
    """
    config = level(core)
    teacher = "pretrained/level-transformer-xl" if core == "transformer-xl" else "pretrained/level"
    return dataclasses.replace(
        config,
        preset="transfer",
        env="rooms:transfer,own_view=True",
        stages=(),
        from_run=teacher,
        frames=90_000_000,
        learner=dataclasses.replace(
            config.learner, entropy_cost=1e-2, entropy_cost_end=0.0, teacher_cost=3.0, teacher_cost_end=0.0
        ),
        actors=dataclasses.replace(config.actors, num_actors=1),
    )


def paper(core: str = "compressive") -> RunConfig:
    """Section 5.7 of the paper on DeepMind Lab; `docs/decisions.md` says what the paper leaves open."""
    sizes = {"model_size": 256, "num_layers": 4, "num_heads": 8, "mlp_size": 1024, "segment_size": 64}
    cores = matched_cores({**sizes, "norm": "pre", "gate": "gru"}, 64, 64)
    return RunConfig(
        preset="paper",
        env="dmlab:rooms_select_nonmatching_object",
        frames=1_000_000_000,
        unrolls_per_update=8,
        checkpoint_seconds=600,
        agent=AgentConfig(torso="deep", torso_size=256, core=cores[core]),
        learner=LearnerConfig(
            optimizer="adam",
            learning_rate=1.5e-5,
            discount=0.99,
            entropy_cost=2e-3,
            reward_clipping="soft_asymmetric",
            reduction="sum",
            max_gradient_norm=40.0,
            precision="auto",
        ),
        actors=ActorsConfig(num_actors=48, envs_per_actor=4, unroll_length=128, in_flight=1, precision="auto"),
    )


def paper_recall(core: str = "compressive") -> RunConfig:
    """The paper's agent on the level with many examples before the choices, which asks for 192 steps of memory.

    256 environments, for `--resident`; other spans are `--env rooms:full-recall-112`, -292 and -532.
    """
    config = paper(core)
    actors = dataclasses.replace(config.actors, num_actors=64)
    return dataclasses.replace(config, preset="paper-recall", env="rooms:full-recall-192", actors=actors)


def dmlab30(core: str = "compressive") -> RunConfig:
    """The paper's agent on all of DMLab-30, with instructions and two actors a level.

    10^10 frames, and ten episodes of each level for the test, are IMPALA's.
    """
    config = paper(core)
    return dataclasses.replace(
        config,
        preset="dmlab30",
        env="dmlab:dmlab30",
        frames=10_000_000_000,
        eval_episodes=10,
        agent=dataclasses.replace(config.agent, instruction=True),
        actors=dataclasses.replace(config.actors, num_actors=60),
    )


def memory(core: str = "compressive") -> RunConfig:
    """A level that asks for up to 130 steps of memory, learned in five minutes of a fast CPU core: `make compare`.

    The one layer sees 8 recent steps and 16 compressed slots. So rate 1 and Transformer-XL reach back 24 steps, rate 2
    40, rate 4 72 and rate 8 136, and delays of 16, 32, 64 and 128 steps tell them apart. The first stage has delays of
    4, 8 and 16 steps, so that compressed slots must be read.
    """
    sizes = {"model_size": 64, "num_layers": 1, "num_heads": 4, "mlp_size": 128, "segment_size": 8, "norm": "pre"}
    config = small_network(core)
    return dataclasses.replace(
        config,
        preset="memory",
        env="rooms:small-recall-long",
        stages=("rooms:small-recall,delay_frames=64,delay_halvings=2 until correct 0.95 or frames 6M",),
        frames=12_000_000,
        agent=dataclasses.replace(config.agent, torso_size=64, core=matched_cores(sizes, 8, 16)[core]),
        learner=dataclasses.replace(
            config.learner, learning_rate_schedule="linear", discount=0.8, lambda_=0.95, entropy_cost_end=3e-3
        ),
        actors=dataclasses.replace(config.actors, num_actors=1, envs_per_actor=32),
    )


def minigrid_pixels(core: str = "compressive") -> RunConfig:
    """MiniGrid-Memory from pixels, with the view of 3 x 3 cells that CleanRL's ppo_trxl has; here 24 x 24 pixels.

    What must be remembered is then seen only from beside it, and a discount of 0.99 makes the way there worth it.
    Episodes of the training end after 96 steps, as in ppo_trxl; evaluate with the environment itself.
    """
    config = small_network(core)
    return dataclasses.replace(
        config,
        preset="minigrid-pixels",
        env="gym:MiniGrid-MemoryS9-v0,agent_view_size=3,view=pixels,max_episode_steps=96",
        frames=2_000_000,
        agent=dataclasses.replace(config.agent, torso_size=128, reconstruction_cost=2.0, reconstruction_height=12),
        learner=dataclasses.replace(
            config.learner,
            learning_rate=5e-4,
            learning_rate_schedule="linear",
            discount=0.99,
            lambda_=0.95,
            entropy_cost=1e-2,
            reward_clipping="none",
            reward_scale=2.0,
        ),
        replay=ReplayConfig(share=0.75, unrolls=64),
        actors=dataclasses.replace(config.actors, num_actors=1, envs_per_actor=16),
    )


def popgym(core: str = "compressive") -> RunConfig:
    """POPGym's games of cards, chosen with --env, on a CPU core: the preset `general`, and what they have in common.

    Actions are rewarded at once, so that later rewards are noise in their advantages: the discount is low. What has to
    be recalled is up to 102 steps old (Autoencode, easy), and is addressed by its step number: transformers have more
    slots, and a clock.
    """
    config = general(core)
    return dataclasses.replace(
        config,
        preset="popgym",
        env="gym:popgym-AutoencodeEasy-v0",
        agent=dataclasses.replace(config.agent, core=small_cores(memory=96, clock=True)[core]),
        learner=dataclasses.replace(config.learner, discount=0.9),
    )


PRESETS: dict[str, Callable[[str], RunConfig]] = {
    "cpu": cpu,
    "general": general,
    "level": level,
    "transfer": transfer,
    "memory": memory,
    "paper": paper,
    "paper-recall": paper_recall,
    "dmlab30": dmlab30,
    "minigrid-pixels": minigrid_pixels,
    "popgym": popgym,
}


OWN = ("rooms:", "dmlab:", "diagnostic:")
"""How the names of the environments begin whose runs do not have the preset `general` unless it is named."""


def preset_of(env: str | None) -> str:
    """The name of the preset of an environment's runs, if none was named; `env` is None for the preset's own."""
    if env is None or env.startswith(OWN):
        return "cpu"
    return "general"


def describe_preset(name: str, env: str) -> str:
    """The name of the preset of a run in an environment, and why it may have been chosen."""
    if name == "general" and preset_of(env) == name:
        return "general, for any environment but those of this project (--preset names another)"
    return name


def make_preset(preset: str, core: str) -> RunConfig:
    """The configuration of an agent's run, given the names of a preset and a core.

    A custom core has the features of the preset's other cores, and all of the preset that is not about its core.

    Raises:
        ValueError: if there is no such preset or core.
    """
    if not is_custom(core):
        return find_preset(PRESETS, CORES, preset, core)
    config = find_preset(PRESETS, CORES, preset, "compressive")
    custom = CustomCoreConfig(core, config.agent.core.model_size)
    return dataclasses.replace(config, agent=dataclasses.replace(config.agent, core=custom))
