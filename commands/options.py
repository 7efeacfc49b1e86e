"""The options of every command. Nothing here imports torch, so that --help is fast."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from agent.core.fields import AtLeast0, Checked, Count, Positive, Range, Threads
from commands.shared_options import (
    PARTS,
    Allow,
    AllowOptions,
    DrawingOptions,
    ModelOptions,
    NewFolder,
    PlayOptions,
    RunOptions,
    TrainingOptions,
    Words,
    words_of,
)
from sequences.images.config import ImagesConfig, ImagesEvaluation, ImagesSampling
from sequences.speech.config import SpeechConfig, SpeechEvaluation, SpeechSampling
from sequences.text.config import TextConfig, TextEvaluation, TextSampling
from storage.files import is_url
from training.config import RunConfig
from training.console import program
from training.suites import SUITES
from training.trust import permissions


@dataclass(frozen=True)
class LaunchOptions(AllowOptions, RunConfig, TrainingOptions):
    """Trains an agent with IMPALA on this machine or a Ray cluster; then evaluates it and films two episodes.

    Every number has an option. The defaults below are those of the preset and the core that are named beside --help.
    Numbers of frames and steps may be written as 6M, 200k or 1e6.

      compressive launch --core lstm --seed 1               another memory
      compressive launch --resume runs/NAME                 resume a run
      compressive launch --like runs/NAME --seed 1          a new run with its configuration, but for the seed
      compressive launch --from-run runs/NAME --env rooms:small,glow_pulse=1    a new run with its weights
      compressive launch --stages 'rooms:small,object_scale=2.5 until correct 0.9' --env rooms:small    a curriculum
      compressive launch --resume s3://bucket/run           the same, if its folder is lost
      compressive launch --actors 4..16                     4 actors, and up to 16 as the cluster has room for them
      compressive launch --learners 2                       two learners, each with half of every batch
      compressive launch --preset level                     the level itself, re-created, in stages: an hour or two
      compressive launch --preset paper                     section 5.7 of the paper, on DeepMind Lab
      compressive launch --preset paper --env rooms:full    the same on the re-created level
      compressive launch --preset paper --env rooms:full --resident    the same, all of it on one GPU
      compressive launch --preset paper --core lstm --help  the defaults of that preset and core
    """

    core: str = "compressive"
    """Recurrent core: compressive, transformer-xl, gated-transformer-xl, routing, lstm, gru, mingru, lru, ffm,
    deltanet or memoryless; or MODULE:CLASS of your own, a subclass of agent.core.Core (docs/extending.md)."""
    resume: Annotated[str | None, tyro.conf.arg(metavar="DIR|URL")] = None
    """Resume the run in this folder, from its last readable checkpoint and with its own configuration.
    Agent, environment and seed stay as they are; --frames and most other values may be changed.
    With the URL of its checkpoints instead, the run gets a new folder (--run)."""
    local: bool = False
    """Act and learn in this one process, without Ray: slower, deterministic, and exactly resumable."""
    ray_address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Join the Ray cluster at this address instead of starting one on this machine."""
    skip_missing_levels: bool = False
    """Of several levels of DeepMind Lab (--env), train on those that can be played; else a missing one is an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local and self.ray_address:
            raise ValueError("--local acts in this process and --ray-address on a cluster: give only one of them")
        if self.local and self.actors.max_actors is not None:
            raise ValueError(f"--local acts in this process: expected one number of actors, got {self.actors.count}")
        if self.resident and self.learners == 1 and self.ray_address:
            raise ValueError("--resident acts and learns in this process and --ray-address on a cluster: give only one")
        if self.local and self.learners > 1:
            raise ValueError(f"--local learns in this process: expected --learners 1, got {self.learners}")

    @property
    def in_process(self) -> bool:
        """Whether all happens in this process, without Ray."""
        return self.local or (self.resident and self.learners == 1)

    def again(self, run: Path | str) -> str:
        """The command that resumes a run."""
        how = words_of(self, "ray_address", "local", "threads")
        return f"{program()} launch --resume {shlex.quote(str(run))}{how}{permissions(self)}"


@dataclass(frozen=True)
class TextTraining(TextConfig, TrainingOptions):
    """Trains a language model, then measures it on the test split.
    The defaults below are those of the preset and the core that are named beside --help.

      compressive text train --core transformer-xl               the baseline at equal attention cost
      compressive text train --corpus folder --path ~/books      any folder of text files
      compressive text train --preset enwik8 --path enwik8       the paper's models: enwik8, wikitext103, pg19
      compressive text train --model.core.compression mean --model.core.compression-loss none
    """


@dataclass(frozen=True)
class SpeechTraining(SpeechConfig, TrainingOptions):
    """Trains a model of waveforms, measures it on the test split and draws samples.
    The defaults below are those of the preset and the core that are named beside --help.

      compressive speech train --corpus.path LJSpeech-1.1/wavs   a folder of WAV or FLAC files
      compressive speech train --core wavenet                    another core: transformer-xl, lstm or wavenet
      compressive speech train --preset paper --corpus.sample-rate 24000 --corpus.path DIR   section 5.6 of the paper
    """

    threads: Threads = 2
    """CPU threads of a learner."""


@dataclass(frozen=True)
class ImagesTraining(ImagesConfig, TrainingOptions):
    """Trains a model of images as sequences of bytes, measures it on the test split and draws samples.
    The defaults below are those of the preset and the core that are named beside --help.

      compressive images train --corpus.path ~/pictures          a folder of PNG or JPEG files
      compressive images train --core routing                    another core at equal attention cost
    """


@dataclass(frozen=True)
class EvaluateOptions(PlayOptions):
    """Plays episodes with the agents of runs and reports their scores with 95 % bootstrap intervals.

    Actions are drawn from the policy, as in training, unless --greedy.

      compressive evaluate runs/NAME                            the agent of a run
      compressive evaluate runs/A runs/B --greedy               several agents, in one table
      compressive evaluate runs/NAME/checkpoints/*              what it could do when (--keep-every), in one table
      compressive evaluate hf://USER/NAME                       an agent on the Hugging Face Hub
      compressive evaluate --policy oracle --env rooms:full     what can be reached there, or by chance (random)
    """

    runs: Annotated[Words, tyro.conf.Positional, tyro.conf.arg(metavar="[DIR|URL [DIR|URL ...]]")] = ()
    """Folders of runs, as `compressive launch` created them, or of shared ones the URL, such as hf://USER/NAME; the
    last readable checkpoint of each is used. Or folders of checkpoints, RUN/checkpoints/STEPS."""
    policy: Literal["agent", "oracle", "random"] = "agent"
    """Who plays: the agents of the runs, or in an environment (--env) without any run an oracle that reads its state,
    or uniform random actions."""
    episodes: Positive = 128
    """Episodes of each task, rounded up to a multiple of the environments that are played together (up to 64)."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Another environment than the run's own (in DeepMind Lab: its test level), with the same observations and
    actions."""
    json: bool = False
    """Print JSON, a list with an object for each run, instead of a table."""
    csv: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write a row for each episode to this CSV: its return, steps and counters."""
    video: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also film two episodes, of the first task if there are several, to this MP4."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy == "agent" and not self.runs:
            raise ValueError("expected DIR, the folder of a run, or --policy oracle or random with --env; got neither")
        if self.policy != "agent" and (self.runs or not self.env):
            got = f"--env {self.env} and {len(self.runs)} runs"
            raise ValueError(f"policy: expected --env and no run for {self.policy}, got {got}")
        if self.policy != "agent" and self.greedy:
            raise ValueError(f"--greedy: has no effect with --policy {self.policy}")
        if self.video and len(self.runs) != 1:
            raise ValueError(f"video: expected one run to film, got {len(self.runs)}")


@dataclass(frozen=True)
class VisualizeOptions(PlayOptions):
    """Plays episodes of a trained agent and shows what it sees, does, expects and attends to: a video and a page.

    Without --output they are in the run's folder videos.

      compressive visualize runs/NAME                         episodes.mp4 and episodes.html
      compressive visualize runs/A runs/B --output FOLDER     several agents, side by side in the same episodes
      compressive visualize runs/NAME/checkpoints/* --output FOLDER      one agent, earlier and later in its training
    """

    runs: Annotated[Words, tyro.conf.Positional, tyro.conf.arg(metavar="DIR|URL [DIR|URL ...]")]
    """Folders of runs, or of shared ones the URL, such as hf://USER/NAME; the last readable checkpoint of each is
    used. Or folders of checkpoints, RUN/checkpoints/STEPS."""
    episodes: Positive = 2
    """Episodes to play; if there are several tasks, of the first."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder for episodes.mp4 and episodes.html; if not given, the run's videos. Several runs have a video and a page
    each, and episodes.html shows the pages together."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.runs:
            raise ValueError("DIR: expected a run")
        if len(self.runs) > 1 and self.output is None:
            raise ValueError("output: expected a folder for the pages of several runs")
        if is_url(self.runs[0]) and self.output is None:
            raise ValueError(f"output: expected a folder for the page of {self.runs[0]}")


@dataclass(frozen=True)
class RecordOptions(PlayOptions):
    """Plays episodes with a trained agent and writes them as a Minari dataset: observations, actions, rewards, and as
    infos the agent's value and what its memory attended to.

    The dataset is where Minari looks for it: in MINARI_DATASETS_PATH, or ~/.minari/datasets.

      compressive record runs/NAME --minari rooms/agent-v0
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR|URL")]
    """Folder of the run, or of a shared one the URL, such as hf://USER/NAME."""
    minari: Annotated[str, tyro.conf.arg(metavar="NAME")]
    """The new dataset, as Minari names them: (namespace/)dataset-vN."""
    episodes: Positive = 100
    """Episodes to play; if there are several tasks, of the first."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Another environment than the run's own, with the same observations and actions."""


@dataclass(frozen=True)
class ReportOptions(PlayOptions, RunOptions):
    """Writes one page about a run, which may still be training: scores, curves, memory, configuration, provenance."""

    episodes: Annotated[Count | None, tyro.conf.arg(metavar="INT")] = None
    """Episodes to play for what memory is used for; 0 for none. If not given, 8, or 72 where the environment names
    what it shows and memory is compressed; none for cores without attention. Only agents play."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The page; if not given, report.html in the run."""


@dataclass(frozen=True)
class ExportOptions(AllowOptions, RunOptions):
    """Writes a trained agent for others: to a small folder, or to a file that other programs play.

    It is the agent alone, also if it had a teacher.

      compressive export runs/NAME small         a folder in half precision, which evaluate, visualize and compare take
      compressive export runs/NAME/checkpoints/STEPS small       the same of an earlier checkpoint
      compressive export runs/NAME agent.onnx    one step of acting with an explicit state (docs/sharing.md)
      compressive export runs/NAME agent.pt2     the same for torch.export.load
    """

    output: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="NEW")]
    """The new folder, or a new file whose name ends with .onnx or .pt2."""


@dataclass(frozen=True)
class PushOptions(AllowOptions, RunOptions):
    """Publishes a trained agent on the Hugging Face Hub: its weights in half precision, its evaluation and curves, a
    film, and a card that says how it was made.

    The token is that of `hf auth login`, or HF_TOKEN. The commands of the run's launches are published with it.

      compressive push runs/NAME USER/NAME --license apache-2.0
      compressive push runs/NAME/checkpoints/STEPS USER/NAME      an earlier checkpoint, without a score
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="USER/NAME")]
    """The repository; it is made if there is none, otherwise its content is replaced."""
    license: str | None = None
    """License of the agent, as the Hub abbreviates it: apache-2.0, mit, cc-by-4.0, ... None says nothing about it."""
    private: bool = False
    """Make a new repository that only its owner can see."""
    video_episodes: Count = 2
    """Episodes of the film; 0 for none."""


@dataclass(frozen=True)
class PullOptions(Checked):
    """Copies an agent from the Hugging Face Hub, or from a run's folder behind any fsspec URL, into a new folder.

    Pages are not copied, and nothing that is can run code.

      compressive pull USER/NAME                     into runs/NAME
      compressive pull hf://USER/NAME@v1 agent       a revision, into the folder agent
      compressive pull s3://bucket/run
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="USER/NAME|URL")]
    """The repository on the Hub, or a URL."""
    output: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NEW]")] = None
    """The new folder; if not given, one in runs/ of the same name."""


@dataclass(frozen=True)
class StatusOptions(AllowOptions, RunOptions):
    """Shows the progress of a run, its scores or losses, actors, policy lag and its last readable checkpoint."""


@dataclass(frozen=True)
class MirrorOptions(RunOptions):
    """Copies a run's metrics and configuration to Weights & Biases, as its settings and login say; new rows only."""

    project: str = "compressive"
    """Project in Weights & Biases."""
    follow: bool = False
    """Go on until the run's training ends."""


@dataclass(frozen=True)
class RunsOptions(Checked):
    """Lists the runs below a folder, the newest last: state, progress, score, and what to type next."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[DIR]")] = Path("runs")
    """Where to look, three folders deep; links are not followed."""


@dataclass(frozen=True)
class WatchOptions(AllowOptions, RunsOptions):
    """Shows the runs below a folder in the browser, with reports and comparisons, live while they train. Only this
    machine can open the pages; nothing is written."""

    port: Annotated[int, Range(0, 65535)] = 8765
    """Port on 127.0.0.1; 0 for any that is free."""


@dataclass(frozen=True)
class CompareOptions(Checked):
    """Trains variants of an agent, or of a model of text, speech or images, with several seeds each, and compares them.

    As many runs are trained at a time as there is room for. All options of the command that trains one hold for every
    run (--frames, --env, --learner.discount, ...). Agents are evaluated but not filmed, unless --video-episodes N asks
    for it. The same command again resumes the sweep: finished runs are kept, the others are resumed from their last
    checkpoint.

      compressive compare --rates 1 2 4 --cores lstm transformer-xl     Figure 5 of the paper, with two baselines
      compressive compare --vary agent.core.compression mean max convolution
      compressive compare --cores gru lstm --vary learner.discount 0.9 0.99 --frames 1000000 --seeds 0 1
      compressive compare --kind speech --cores compressive transformer-xl lstm wavenet --seeds 0     section 5.6
      compressive compare --kind text --cores compressive lstm --corpus folder --path ~/books
      compressive compare --suite memory --cores compressive gru lru memoryless     one table of tasks and cores
      compressive compare --suite memory --cores lstm --add             more cores, or seeds, in the same table
      compressive compare --suite memory --cores lstm --beside scores.json    the same, with the runs of another table
      compressive compare --resume runs/compare-cpu                     resume the sweep in this folder
      compressive compare --from runs/A runs/B runs/C                   only compare finished runs
    """

    kind: Literal["launch", "text", "speech", "images"] = "launch"
    """Which command trains a run: launch (agents), or train of text, speech or images."""
    suite: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Train on every task of a suite, with the preset general unless another is named: memory, rewriting, horizon (the
    diagnostic tasks), minigrid, popgym-easy, popgym (which need the extra envs) or common (which needs more packages).
    See docs/leaderboard.md."""
    tasks: Annotated[Words, tyro.conf.arg(metavar="TASK [TASK ...]")] = ()
    """Only these tasks of the suite, by their names, as recall,delay=50, or environments; a wrong name lists them."""
    preset: str | None = None
    """Where all other defaults come from; see --help of the command that trains. None: as that command chooses."""
    cores: Annotated[Words, tyro.conf.arg(metavar="CORE [CORE ...]")] = ()
    """Cores to compare; if not given, the compressive one."""
    rates: Annotated[Words, tyro.conf.arg(metavar="RATE [RATE ...]")] = ()
    """Compression rates of the compressive core."""
    vary: Annotated[tyro.conf.UseAppendAction[tuple[Words, ...]], tyro.conf.arg(metavar="FIELD VALUE [VALUE ...]")] = ()
    """Any other field of the configuration and its values; may be given several times, for all combinations. Fields
    of a core are varied for the cores that have them."""
    seeds: Annotated[tuple[Count, ...], tyro.conf.arg(metavar="SEED [SEED ...]")] = (0, 1, 2)
    """A run of each variant with each of these seeds."""
    state_bytes: Annotated[int | None, Range(1, 2**40)] = None
    """Bytes of each core's state, at most: cores get as many slots or features as fit, instead of those of the
    preset."""
    folder: NewFolder = None
    """Where runs and the report go; by default runs/compare-PRESET (compare-KIND-PRESET, suite-SUITE), or
    runs/comparison."""
    add: bool = False
    """Add these runs to the sweep in the folder, which is finished or stopped; its own runs are kept."""
    resume: NewFolder = None
    """Resume the sweep in this folder."""
    runs: Annotated[tuple[Path, ...], tyro.conf.arg(name="from", metavar="DIR [DIR ...]")] = ()
    """Train nothing: compare these finished runs, all of one kind."""
    beside: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE [FILE ...]")] = ()
    """Agents on several tasks: show in the table the runs of these files, too, report/scores.json of other comparisons.
    Nothing of them is trained."""
    threshold: float | None = None
    """A score; the report says when runs reach it. By default 75 % for normalized scores, and none for others."""
    cpus_per_trial: Annotated[float, Range(0, 1024.0, above=True)] = 1.0
    """CPUs, and threads of torch, of a run; as many are trained at a time as the machine or cluster has room for."""
    gpus_per_trial: AtLeast0 = 0.0
    """GPUs of a run, such as 0.25; with 0 it learns on the CPU, also where there are GPUs."""
    remote_actors: bool = False
    """Agents: each run has its actors in processes of their own, as with `launch` without --local, placed together
    with it; otherwise it acts and learns in one process."""
    ray_address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Join the Ray cluster at this address; all its nodes must share the folder."""
    allow: Allow = None
    """With --from or --resume: allow what runs name, an environment's code or a URL; several are joined by commas."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seeds:
            raise ValueError("seeds: expected numbers, got none")
        if not all(self.vary):
            raise ValueError("vary: expected a field and its values, as in agent.core.compression mean max, got none")
        if self.resume and (self.folder or self.runs):
            raise ValueError("--resume names a folder, and so do --folder and --from: give only one of them")
        if self.suite is not None and self.suite not in SUITES:
            raise ValueError(f"suite: expected one of {', '.join(SUITES)}, got {self.suite!r}")
        if self.suite is not None and self.kind != "launch":
            raise ValueError(f"suite: expected none with --kind {self.kind}: suites are tasks of agents")
        self._check_tasks()
        if self.beside and (self.runs or self.kind != "launch"):
            raise ValueError("beside: expected agents that are trained on several tasks, got --from or another --kind")
        grid = ("kind", "suite", "tasks", "preset", "cores", "rates", "vary", "seeds", "state_bytes", "add")
        given = [f"--{name.replace('_', '-')}" for name in grid if getattr(self, name) != getattr(CompareOptions, name)]
        if given and (self.resume or self.runs):
            raise ValueError(f"{self.source}, got {', '.join(given)}")

    def _check_tasks(self) -> None:
        """Raises a ValueError if a task is none of the suite."""
        if self.tasks and self.suite is None:
            raise ValueError(f"tasks: expected --suite NAME beside them, got {' '.join(self.tasks)}")
        if self.suite is None:
            return
        names = [task.name for task in SUITES[self.suite]]
        known = {*names, *(task.env for task in SUITES[self.suite])}
        for name in self.tasks:
            if name not in known:
                expected = " ".join(shlex.quote(each) for each in names)
                raise ValueError(f"tasks: expected some of {expected}, got {name!r}")

    @property
    def source(self) -> str:
        """What is expected with --resume or --from."""
        return "--from: expected finished runs as they are" if self.runs else "--resume: expected the sweep as it began"


@dataclass(frozen=True, kw_only=True)
class TextEvaluateOptions(TextEvaluation, ModelOptions):
    """Measures a trained model on held-out text, which is read once, in order, with memory."""


@dataclass(frozen=True, kw_only=True)
class SpeechEvaluateOptions(SpeechEvaluation, ModelOptions):
    """Measures a trained model: nats and bits per sample, beside fitted predictors."""

    threads: Threads = 2
    """CPU threads."""


@dataclass(frozen=True, kw_only=True)
class ImagesEvaluateOptions(ImagesEvaluation, ModelOptions):
    """Measures a trained model: bits per dimension, beside those of a uniform distribution and of PNG files."""


@dataclass(frozen=True, kw_only=True)
class TextSampleOptions(TextSampling, ModelOptions):
    """Continues a prompt; the text appears as it is drawn."""

    path: Annotated[None, tyro.conf.Suppress] = None


@dataclass(frozen=True, kw_only=True)
class SpeechSampleOptions(SpeechSampling, DrawingOptions):
    """Draws waveforms, each after a prompt of real sound.

    Each clip is written as WAV, twice: the prompt with what the model drew, and the real clip that the prompt is cut
    from; all of them as spectrograms in one picture, and to TensorBoard.
    """


@dataclass(frozen=True, kw_only=True)
class ImagesSampleOptions(ImagesSampling, DrawingOptions):
    """Draws images, or completes held-out ones, and writes them to the picture sheet.png below the held-out ones."""


@dataclass(frozen=True)
class CompletionOptions(Checked):
    """Prints a script for the completion of commands and options; in bash: source <(compressive completion)"""


_SEQUENCES = {
    "text": (TextTraining, TextEvaluateOptions, TextSampleOptions),
    "speech": (SpeechTraining, SpeechEvaluateOptions, SpeechSampleOptions),
    "images": (ImagesTraining, ImagesEvaluateOptions, ImagesSampleOptions),
}
OPTIONS: dict[str, Any] = {
    "launch": LaunchOptions,
    "evaluate": EvaluateOptions,
    "visualize": VisualizeOptions,
    "record": RecordOptions,
    "report": ReportOptions,
    "compare": CompareOptions,
    "export": ExportOptions,
    "push": PushOptions,
    "pull": PullOptions,
    "status": StatusOptions,
    "runs": RunsOptions,
    "watch": WatchOptions,
    "mirror": MirrorOptions,
    "completion": CompletionOptions,
    **{f"{kind} {part}": each for kind, parts in _SEQUENCES.items() for part, each in zip(PARTS, parts)},
}
"""Options by command."""
