"""The kinds of runs, by the name in `config.json`: their configurations and presets. Nothing here imports torch."""

from collections.abc import Callable
from typing import Any

from sequences.images.config import ImagesConfig
from sequences.images.config import make_preset as images_preset
from sequences.speech.config import SpeechConfig
from sequences.speech.config import make_preset as speech_preset
from sequences.text.config import TextConfig
from sequences.text.config import make_preset as text_preset
from training.config import RunConfig
from training.presets import make_preset

CONFIGS: dict[str, Any] = {"launch": RunConfig, "text": TextConfig, "speech": SpeechConfig, "images": ImagesConfig}
PRESETS: dict[str, Callable[[str, str], Any]] = {
    "launch": make_preset,
    "text": text_preset,
    "speech": speech_preset,
    "images": images_preset,
}
"""Functions from the names of a preset and a core to a configuration."""
