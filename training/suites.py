"""Suites: tasks on which memories are compared together, each with the frames that it is learned for.

A suite is a list of tasks. `compressive compare --suite NAME` trains every core on every task. All runs have the preset
`general`, so that nothing is chosen for a core. What is chosen for a task is the same for all cores. Where a task says
for how many steps something has to be kept, unrolls are longer than that: gradients end where an unroll begins, and a
recurrent core could not learn to keep it otherwise. Where policies become sure before they have tried the choice that
memory is for, exploration has another bonus. Color-Cubes is learned on small areas of its grid first.
"""

from typing import NamedTuple


class Task(NamedTuple):
    """A task of a suite.

    name: in tables and in the names of folders.
    env: where agents are trained.
    frames: for how long.
    eval_env: where they are evaluated, if not there.
    greedy: whether evaluations take the most probable actions.
    unroll: steps of an unroll, a multiple of 16; None for those of the preset. There are as many fewer whole rows as
        keep an update within the preset's number of steps: four rows of 64 steps are all 256, one row of 176 is fewer.
    options: other options of the training.
    """

    name: str
    env: str
    frames: int
    eval_env: str | None = None
    greedy: bool = False
    unroll: int | None = None
    options: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The options of `compressive launch` that ask for it."""
        words = ["--env", self.env, "--frames", str(self.frames)]
        if self.eval_env:
            words += ["--eval-env", self.eval_env]
        if self.greedy:
            words.append("--eval-greedy")
        if self.unroll:
            # An update has at most as many steps as with the preset's own unrolls; a batch has the rows of two updates.
            rows_per_update = max(1, STEPS_PER_UPDATE // self.unroll)
            rows_of_batch = 2 * rows_per_update
            words += ["--actors.unroll-length", str(self.unroll)]
            words += ["--actors.envs-per-actor", str(rows_of_batch)]
            words += ["--rows-per-update", str(rows_per_update)]
        return [*words, *self.options]


STEPS_PER_UPDATE = 256
"""Steps that the preset `general` learns from in an update; its batches have new rows for two updates."""


def _bonus(cost: str) -> tuple[str, ...]:
    """The bonus for exploration that does not vanish where a choice has become improbable."""
    kind = ("--learner.exploration", "evenness")
    return (*kind, "--learner.entropy-cost", cost, "--learner.entropy-cost-end", "0.001")


BONUS = _bonus("0.03")
"""For Passive T-Maze: in its corridor only the way on is not punished, and with the preset's bonus nearly all agents go
on at the junction, too, before they have tried to turn."""


def _diagnostic(spec: str, frames: int, options: tuple[str, ...] = ()) -> Task:
    return Task(spec, f"diagnostic:{spec}", frames, unroll=64, options=options)


def _color_cubes(spec: str, frames: int) -> Task:
    """The whole grid, beside small areas of it.

    On the whole grid alone nothing is learned. An area of it comes first; every target is a few steps away; and with
    the preset's bonus agents give up an edge of the grid, and do not find it again.
    """
    task = f"diagnostic:{spec}"
    areas = f"{task},{task},area=4,{task},area=3"
    first_area = ("--stages", f"{task},area=3 until return 0.9 or frames 600k")
    returns = ("--learner.discount", "0.92", "--learner.lambda_", "0.85")
    options = (*first_area, *returns, *_bonus("0.01"))
    return Task(spec, areas, frames, eval_env=task, unroll=64, options=options)


def _popgym(name: str, level: str, frames: int) -> Task:
    return Task(f"{name}{level}", f"gym:popgym-{name}{level}-v0", frames)


def _gym(task: str, frames: int, env: str | None = None) -> Task:
    return Task(task, f"gym:{env or task}", frames)


def _horizon(task: str, length: str, trained: int, tested: int, frames: int, options: tuple[str, ...] = ()) -> Task:
    """A task that is learned with one length and evaluated with a longer one.

    Evaluations are greedy: of 10,000 samples of the policy a few are wrong ways, which say nothing of the memory.
    """
    name = f"{task} {trained} to {tested}"
    env = f"diagnostic:{task},{length}="
    segments = 2 + trained // 16
    unroll = 16 * segments
    return Task(name, f"{env}{trained}", frames, f"{env}{tested}", greedy=True, unroll=unroll, options=options)


POPGYM = (
    "Autoencode",
    "Battleship",
    "Concentration",
    "CountRecall",
    "HigherLower",
    "LabyrinthEscape",
    "LabyrinthExplore",
    "MineSweeper",
    "MultiarmedBandit",
    "NoisyPositionOnlyCartPole",
    "NoisyPositionOnlyPendulum",
    "PositionOnlyCartPole",
    "PositionOnlyPendulum",
    "RepeatFirst",
    "RepeatPrevious",
    "VelocityOnlyCartpole",
)
"""The tasks of POPGym, of three levels each."""

SUITES: dict[str, tuple[Task, ...]] = {
    "memory": (
        _diagnostic("recall,delay=50", 200_000),
        _diagnostic("passive-tmaze,length=50", 300_000, BONUS),
        _diagnostic("visual-match,delay=50", 300_000),
        _diagnostic("key-to-door,delay=50", 300_000),
        _diagnostic("repeat-previous,delay=8", 300_000),
        _diagnostic("association", 500_000),
        _diagnostic("endless-tmaze", 500_000),
    ),
    "rewriting": (
        _diagnostic("association", 500_000),
        _diagnostic("endless-tmaze", 500_000),
        _diagnostic("endless-tmaze,uniform=True", 1_000_000),
        _color_cubes("color-cubes", 2_000_000),
        _color_cubes("color-cubes,extreme=True", 2_000_000),
    ),
    # An odd length: episodes then begin and end at every step of a segment, which an even one would never show.
    "horizon": (
        _horizon("recall", "delay", 159, 10_000, 1_000_000),
        _horizon("passive-tmaze", "length", 159, 10_000, 1_000_000, BONUS),
    ),
    "minigrid": tuple(
        Task(
            f"Memory{size}",
            f"gym:MiniGrid-Memory{size}-v0,max_episode_steps=96",
            500_000,
            f"gym:MiniGrid-Memory{size}-v0",
        )
        for size in ("S7", "S9", "S11", "S13")
    ),
    # Tasks that people know, most of which need no memory.
    "common": (
        _gym("CartPole-v1", 400_000),
        _gym("Acrobot-v1", 300_000),
        _gym("MountainCar-v0", 500_000),
        _gym("Pendulum-v1", 500_000),
        _gym("LunarLander-v3", 600_000),
        _gym("LunarLander, continuous", 600_000, "LunarLander-v3,continuous=True"),
        _gym("HalfCheetah-v5", 1_000_000),
        _gym("Hopper-v5", 1_000_000),
        _gym("Walker2d-v5", 1_000_000),
        _gym("cartpole-swingup", 1_000_000, "dm_control/cartpole-swingup-v0"),
        _gym("DoorKey-6x6", 400_000, "MiniGrid-DoorKey-6x6-v0"),
        _gym("MemoryS9", 400_000, "MiniGrid-MemoryS9-v0,max_episode_steps=96"),
        _gym("BabyAI-GoToLocal", 500_000, "BabyAI-GoToLocal-v0"),
    ),
    "popgym-easy": tuple(_popgym(name, "Easy", 1_000_000) for name in POPGYM),
    "popgym": tuple(_popgym(name, level, 2_000_000) for level in ("Easy", "Medium", "Hard") for name in POPGYM),
}
"""By name. Frames are for a desk: a task takes a core some minutes; `--frames` changes them for all tasks."""
