"""`compressive visualize`: plays episodes and lays the agent's memory open, as a video and as a page.

What is recorded is decided in `actors/recording.py`; how the page looks in `pages/episode.html`.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from PIL import Image
from rich.console import Console

from actors.recording import Recording
from agent.fields import Count, Positive
from commands.evaluate import film, filmable, load_player, record
from commands.options import PlayOptions, parse, user_errors
from learner.files import require_output
from reports.pages import packed, rounded, write_page
from reports.video import check_images
from training import UserError
from training.config import RunConfig
from training.console import quantity, table
from training.impala import interface

PAGE_BYTES = 15_000_000
"""A page is not larger than this, so that it opens at once; what does not fit is left out, and the page says so."""
SHEET_FRAMES = 100
"""Frames drawn together in one picture of the page, in ten columns."""
LOSSLESS_BYTES = 4_000_000
"""An episode whose frames take more than this without loss is compressed with a little."""


@dataclass(frozen=True)
class Options(PlayOptions):
    """Plays episodes of a trained agent and shows what it sees, does, expects and attends to: a video, and a page for
    the browser in which every step, layer and head can be looked at."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder of the run, as `compressive launch` made it; its last readable checkpoint is taken."""
    episodes: Positive = 2
    """How many episodes to play, of the first task if there are several."""
    greedy: bool = False
    """Take the most probable action rather than a sample of the policy."""
    seed: Count = 0
    """Seed of the episodes; never shared with training."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder for episodes.mp4 and episodes.html; if not given, the run's videos."""


def visualize(arguments: Sequence[str]) -> None:
    """Runs the command."""
    options = parse(Options, "compressive visualize", args=list(arguments), config=(tyro.conf.FlagCreatePairsOff,))
    console = Console()
    torch.set_num_threads(1)
    _, config, agent, _, checkpoint = load_player(options.run, console, options)
    if not filmable(config.env):
        seen = list(interface(config.env).observation_shape)
        raise UserError(f"{options.run}: expected images in RGB to show, got {seen} from {config.env}")
    stem = (options.output or options.run / "videos") / "episodes"
    with user_errors("output"):
        for ending in (".mp4", ".html"):
            require_output(stem.with_suffix(ending))
    with console.status("playing"):
        recordings = record(config, agent, options.episodes, options.seed, not options.greedy)
    title = f"{options.run.resolve().name}, {quantity(checkpoint.step)} steps"
    with console.status("drawing"), user_errors("output"):
        rows = show(recordings, stem, title, config)
    scores = ", ".join(f"{recording.episode.score:g}" for recording in recordings)
    console.print(table("episodes", {"checkpoint": str(checkpoint.path), "score": scores} | rows))


def show(recordings: Sequence[Recording], stem: Path, title: str, config: RunConfig) -> dict[str, str]:
    """Writes the video and the page of recorded episodes; returns where they are.

    Args:
        recordings: with image observations [T, height, width, 3] uint8.
        stem: path of both without their endings.
        title: of the page.
        config: the run's.
    """
    video = film(recordings, stem.with_suffix(".mp4"))
    page = write_page(stem.with_suffix(".html"), "episode", title, page_data(recordings, title, config.core_name))
    return {"video": str(video), "page": f"{page}  (open it in a browser)"}


def page_data(recordings: Sequence[Recording], title: str, core: str, limit: int = PAGE_BYTES) -> dict[str, Any]:
    """What `pages/episode.html` reads: the episodes that fit, in full, and of the first at least its beginning."""
    check_images(recordings)
    first = recordings[0]
    height, width = first.observations.shape[1:3]
    limit -= 100_000  # the page itself
    episodes: list[dict[str, Any]] = []
    room, note = limit, ""
    for number, recording in enumerate(recordings):
        steps = len(recording.actions)
        episode, size = _episode(recording, steps)
        while size > room and not episodes:
            steps //= 2
            episode, size = _episode(recording, steps)
            note = f"Of the episode's {len(recording.actions)} steps the first {steps} are shown, for the page's size."
        if size > room:
            note = f"Of {len(recordings)} episodes the first {number} are shown, for the page's size."
            break
        episodes.append(episode)
        room -= size
    return {
        "title": title,
        "note": note,
        "without": f"This agent's core ({core}) has no attention, so that what it remembers cannot be traced to steps.",
        "actions": first.action_names,
        "fps": first.fps,
        "plan": first.floor_plan if first.poses is not None else None,
        "sheet": {"columns": 10, "rows": SHEET_FRAMES // 10, "width": width, "height": height},
        "episodes": episodes,
    }


def _episode(recording: Recording, steps: int) -> tuple[dict[str, Any], int]:
    """The first steps of an episode as the page reads them, and about how many bytes that takes."""
    layers = []
    for layer in recording.attention:
        weights = layer.weights[:steps]
        layers.append(
            {
                "sizes": layer.sizes,
                "heads": weights.shape[1],
                "slots": weights.shape[2],
                # Square roots: a byte then tells small weights from each other, and rows still add up to 1.
                "weights": packed(np.rint(255 * np.sqrt(weights)).astype(np.uint8)),
                "steps": packed(layer.steps[:steps].astype(np.int32)),
            }
        )
    sheets = _sheets(recording.observations[:steps])
    poses = None if recording.poses is None else [rounded(pose) for pose in recording.poses[:steps]]
    episode = {
        "score": recording.episode.score,
        "sheets": sheets,
        "actions": recording.actions[:steps].tolist(),
        "values": rounded(recording.values[:steps]),
        "rewards": rounded(recording.rewards[:steps]),
        "scores": rounded(recording.returns[:steps], 6),
        "layers": layers,
        "poses": poses,
    }
    size = sum(map(len, sheets)) + sum(len(layer["weights"]) + len(layer["steps"]) for layer in layers) + 80 * steps
    return episode, size


def _sheets(frames: np.ndarray) -> list[str]:
    """Frames [T, height, width, 3] as data URLs of WebP pictures, ten columns each; without loss if they are small."""
    pictures = []
    for begin in range(0, len(frames), SHEET_FRAMES):
        part = frames[begin : begin + SHEET_FRAMES]
        rows = -(-len(part) // 10)
        grid = np.zeros((rows * 10, *part.shape[1:]), np.uint8)
        grid[: len(part)] = part
        pictures.append(
            np.concatenate([np.concatenate(list(row), axis=1) for row in grid.reshape(rows, 10, *part.shape[1:])])
        )
    sheets = [_webp(picture, lossless=True, quality=50, method=2) for picture in pictures]
    if sum(map(len, sheets)) > LOSSLESS_BYTES:
        sheets = [_webp(picture, quality=85, method=2) for picture in pictures]
    return sheets


def _webp(picture: np.ndarray, **options: Any) -> str:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "WEBP", **options)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
