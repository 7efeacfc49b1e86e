"""The options of `compressive text` and `compressive speech`. Nothing here imports torch, so that --help is fast."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from agent.fields import Checked, Threads
from commands.options import NewFolder, RunFolder, TrainingOptions, parse, parse_training
from speech import config as speech_config
from speech.config import SpeechConfig, SpeechEvaluation, SpeechSampling
from text import config as text_config
from text.config import TextConfig, TextEvaluation, TextSampling
from training import UserError
from training.config import read_config
from training.run import Run, absolute

USAGE = """usage: compressive {kind} COMMAND [OPTIONS]

{about} on the agents' recurrent core.

  train      train a model, then measure it on the test split
  evaluate   measure a trained model on held-out data
  sample     continue a prompt with a trained model

`compressive {kind} COMMAND --help` explains a command's options. To begin:

  compressive {kind} train               {begin}, on a CPU, in minutes
  compressive {kind} evaluate runs/NAME
  compressive {kind} sample runs/NAME
"""


@dataclass(frozen=True)
class TextTraining(TextConfig, TrainingOptions):
    """Trains a language model, then measures it on the test split.

    Every number has an option. The defaults below are those of the preset and the core that are named beside --help.

      compressive text train                                     Python's source, bytes, one CPU core
      compressive text train --core transformer-xl               the baseline at equal attention cost
      compressive text train --core local                        attention within the segment alone
      compressive text train --corpus folder --path ~/books      any folder of text files
      compressive text train --preset enwik8 --path enwik8       the paper's models: enwik8, wikitext103, pg19
      compressive text train --model.core.compression mean --model.core.compression-loss none
      compressive text train --resume runs/NAME                  resume a run
    """


@dataclass(frozen=True)
class SpeechTraining(SpeechConfig, TrainingOptions):
    """Trains a model of waveforms, measures it on the test split and draws samples.

    Every number has an option. The defaults below are those of the preset and the core that are named beside --help.

      compressive speech train                                   synthetic voices, minutes on two CPU cores
      compressive speech train --corpus.path LJSpeech-1.1/wavs   a folder of WAV or FLAC files
      compressive speech train --core wavenet                    another core: transformer-xl, lstm or wavenet
      compressive speech train --preset paper --corpus.sample-rate 24000 --corpus.path DIR   section 5.6 of the paper
      compressive speech train --resume runs/NAME                resume a run
    """

    threads: Threads = 2
    """CPU threads of a learner."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(Checked):
    """What commands that use a trained model have in common."""

    run: RunFolder
    """Folder of the run; its last readable checkpoint is used."""
    path: str | None = None
    """Where the data are, if they have moved."""
    device: str = "auto"
    """Where to compute: auto (a GPU if there is one), cpu, cuda, cuda:1, ..."""
    threads: Threads = 1
    """CPU threads."""


@dataclass(frozen=True, kw_only=True)
class TextEvaluateOptions(TextEvaluation, RunOptions):
    """Measures a trained model on held-out text, which is read once, in order, with memory."""


@dataclass(frozen=True, kw_only=True)
class SpeechEvaluateOptions(SpeechEvaluation, RunOptions):
    """Measures a trained model: nats and bits per sample, beside fitted predictors."""

    threads: Threads = 2
    """CPU threads."""


@dataclass(frozen=True, kw_only=True)
class TextSampleOptions(TextSampling, RunOptions):
    """Continues a prompt; the text appears as it is drawn."""

    path: Annotated[None, tyro.conf.Suppress] = None


@dataclass(frozen=True, kw_only=True)
class SpeechSampleOptions(SpeechSampling, RunOptions):
    """Draws waveforms, each after a prompt of real sound.

    Each clip is written as WAV, twice: the prompt with what the model drew, and the real clip that the prompt is cut
    from; all of them as spectrograms in one picture, and to TensorBoard.
    """

    out: NewFolder = None
    """Where to write; if not given, the folder samples in the run's."""


CONFIGS: dict[str, Any] = {
    "text": (TextConfig, text_config.make_preset),
    "speech": (SpeechConfig, speech_config.make_preset),
}
"""Class of the configuration and function of presets, by modality."""
ABOUT = {
    "text": ("Language models: Enwik8, WikiText-103, PG-19, any folder, or Python's source,", "Python's source, bytes"),
    "speech": ("Models of raw waveforms, 8-bit mu-law,", "synthetic voices"),
}
"""Words of the usage, by modality."""
OPTIONS: dict[str, dict[str, Any]] = {
    "text": {"train": TextTraining, "evaluate": TextEvaluateOptions, "sample": TextSampleOptions},
    "speech": {"train": SpeechTraining, "evaluate": SpeechEvaluateOptions, "sample": SpeechSampleOptions},
}


def parse_sequence(kind: str, arguments: Sequence[str]) -> tuple[str, Any] | None:
    """The command of a modality (train, evaluate or sample) and its options; None if the usage was printed.

    The options of train are a pair; see `parse_train`.
    """
    name, *rest = arguments or ["help"]
    if name in ("-h", "--help", "help"):
        about, begin = ABOUT[kind]
        print(USAGE.format(kind=kind, about=about, begin=begin), end="")
        return None
    if name not in OPTIONS[kind]:
        raise UserError(f"{kind}: expected train, evaluate or sample, got {name!r} (see compressive {kind} --help)")
    if name == "train":
        return name, parse_train(kind, rest)
    return name, parse(OPTIONS[kind][name], f"compressive {kind} {name}", rest)


def parse_train(kind: str, arguments: Sequence[str]) -> tuple[Any, Any]:
    """The options of `compressive KIND train`, and the run's configuration among them, with absolute paths."""
    config, make_preset = CONFIGS[kind]
    prog, read = f"compressive {kind} train", lambda run: read_config(Run(run), config)
    options = parse_training(OPTIONS[kind]["train"], prog, arguments, make_preset, config.fixed, read)
    return options, options.config_of(config).located(absolute)
