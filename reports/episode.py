"""Recorded episodes as a video and as a page on which every step, layer and head can be looked at.

`actors.recorder` decides what is recorded; `pages/episode.html` how the page looks.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from actors.causes import STRETCH, Effects
from actors.recording import Attention, Recording
from reports.actions import Column, columns, means, received
from reports.compression import what_is_kept
from reports.pages import packed, rounded, write_page
from reports.report import pages_about
from reports.tables import enumerated
from reports.video import count_frames, film
from reports.views import colored, panels, views, webp, what_is_seen
from training.console import Busy, counting

PAGE_BYTES = 15_000_000
"""Largest size of a page, so that it opens quickly; what does not fit is left out, and the page says so."""
SHEET_FRAMES = 100
SHEET_COLUMNS = 10
"""Frames in one picture of the page, and in a row of it."""
LOSSLESS_BYTES = 4_000_000
"""Size of an episode's frames above which they are compressed with loss."""
DECISIVE = 10.0
"""By how much the odds of an action fall without what decided it."""


def show(
    recordings: Sequence[Recording], stem: Path, title: str, core: str, run: Path, console: Console
) -> dict[str, str]:
    """Writes the video and the page of recorded episodes; returns where they are.

    Args:
        recordings: of one agent.
        stem: path of both without their endings.
        title: of the page.
        core: name of the agent's core.
        run: its folder, to whose report the page has a link, if there is one.
        console: where the progress is shown.
    """
    # Names have dots, such as lr0.001.
    video = stem.with_name(f"{stem.name}.mp4")
    page = stem.with_name(f"{stem.name}.html")
    show_film(recordings, video, console)
    with Busy(console, "writing the page"):
        data = page_data(recordings, title, core)
        write_page(page, "episode", data | {"related": pages_about(run, page)})
    return {"video": str(video), "page": f"{page}  (open it in a browser)"}


def show_film(recordings: Sequence[Recording], video: Path, console: Console) -> None:
    """Writes the video of recorded episodes, and shows the progress."""
    with counting(console, "writing the video", count_frames(recordings), "frames") as progress:
        film(recordings, video, progress)


def page_data(recordings: Sequence[Recording], title: str, core: str, limit: int = PAGE_BYTES) -> dict[str, Any]:
    """What `pages/episode.html` reads: the episodes that fit, but at least the beginning of the first."""
    first = recordings[0]
    kept = what_is_kept(recordings)
    if kept and not kept["views"] and not kept["names"]["rows"]:
        kept = None  # nothing to show
    _, height, width, _ = views(first).shape
    of_page_itself = 100_000
    episodes, note = _episodes_that_fit(recordings, limit - of_page_itself)
    is_vector = bool(first.parts)
    has_plan = first.poses is not None
    return {
        "title": title,
        "note": note,
        "attends": bool(first.attention),
        "without": f"This agent's core ({core}) has no attention, so its memory cannot be traced to steps.",
        "actions": [] if is_vector else first.action_names,
        "columns": [_column(column) for column in columns(first)],
        "fps": first.fps,
        "seen": what_is_seen(first),
        "panels": [panel._asdict() for panel in panels(first)],
        "drawn": None if first.reconstructions is None else first.reconstructions.shape[1:3],
        "plan": first.floor_plan if has_plan else None,
        "rule": first.rule,
        "chooses": any(recording.choices.any() for recording in recordings),
        "reported": any(_may_be_probed(recording) for recording in recordings),
        "agreement": agreement(recordings[: len(episodes)]),
        "kept": kept,
        "sheet": {
            "columns": SHEET_COLUMNS,
            "rows": SHEET_FRAMES // SHEET_COLUMNS,
            "width": width,
            "height": height,
        },
        "episodes": episodes,
    }


def _may_be_probed(recording: Recording) -> bool:
    """Whether `what_is_kept` may find something in many such episodes, as a report has them."""
    if not recording.compressed:
        return False
    return bool(recording.situations) or recording.reconstructions is not None


def _episodes_that_fit(recordings: Sequence[Recording], room: int) -> tuple[list[dict[str, Any]], str]:
    """The episodes that fit into so many bytes, as the page reads them; and what is left out, in a sentence or ""."""
    episodes: list[dict[str, Any]] = []
    left_out: list[str] = []
    for number, recording in enumerate(recordings):
        pictures = views(recording)
        steps = len(pictures)
        episode, size = _episode(recording, pictures)
        # Of the first episode there is at least the beginning.
        while size > room and steps > 1 and not episodes:
            steps //= 2
            episode, size = _episode(recording, pictures[:steps])
        if size > room and episodes:
            left_out.append(f"{number} of {len(recordings)} episodes")
            break
        if steps < len(recording.actions):
            of_episode = f" of episode {number + 1}" if len(recordings) > 1 else ""
            left_out.append(f"{steps} of {len(recording.actions)} steps{of_episode}")
        episodes.append(episode)
        room -= size
    if not left_out:
        return episodes, ""
    return episodes, f"The page shows the first {enumerated(left_out)}, because of its size."


def _episode(recording: Recording, pictures: np.ndarray) -> tuple[dict[str, Any], int]:
    """An episode's steps of which there are pictures as the page reads them, and at most how many bytes that takes."""
    steps = len(pictures)
    episode: dict[str, Any] = {
        "score": recording.episode.score,
        "sheets": _sheets(pictures),
        "drawn": None,
        "actions": None,
        "numbers": None,
        "values": rounded(recording.values[:steps]),
        "rewards": rounded(recording.rewards[:steps]),
        # Square roots, as those of attention: small probabilities are told from 0.
        "probabilities": packed(np.rint(65_535 * np.sqrt(recording.probabilities[:steps])).astype(np.uint16)),
        "choices": recording.choices[:steps].tolist(),
        "evidence": _first_rounded(_evidence(recording), steps),
        "apart": _first_rounded(recording.counterfactual_distances, steps),
        "entered": None,
        "scores": rounded(recording.returns[:steps], 6),
        "layers": [_layer(layer, steps) for layer in recording.attention],
        "kinds": recording.slot_kinds,
        "effects": None,
        "situations": None,
        "instructions": _instructions(recording, steps),
        "poses": None,
    }
    # What not every agent or environment has.
    if recording.parts:
        episode["numbers"] = _numbers(recording, steps)
    else:
        episode["actions"] = recording.actions[:steps].tolist()
    if recording.reconstructions is not None:
        episode["drawn"] = packed(colored(recording.reconstructions[:steps], recording.observations))
    if recording.room_entries is not None:
        episode["entered"] = recording.room_entries[:steps].tolist()
    if recording.effects:
        episode["effects"] = _effects(recording.effects[:steps])
    if recording.situations:
        episode["situations"] = [_plain(situation) for situation in recording.situations[:steps]]
    if recording.poses is not None:
        episode["poses"] = [rounded(pose) for pose in recording.poses[:steps]]
    return episode, len(json.dumps(episode))


def _layer(layer: Attention, steps: int) -> dict[str, Any]:
    """The attention of a layer at the first steps as the page reads it."""
    rings = layer.rings
    # Square roots: a byte then tells small weights from each other, and rows still add up to 1.
    roots = np.rint(255 * np.sqrt(layer.weights[:steps]))
    return {
        "sizes": layer.sizes,
        "heads": layer.weights.shape[1],
        "slots": layer.weights.shape[2],
        "rate": layer.rate,
        "rings": dict(zip(("groups", "clusters", "window"), rings)) if rings else None,
        "weights": packed(roots.astype(np.uint8)),
        "steps": packed(layer.steps[:steps].astype(np.int32)),
    }


def _instructions(recording: Recording, steps: int) -> list[tuple[int, str]] | None:
    """The steps at which the text of the environment is another one than before, each with that text."""
    if recording.instructions is None:
        return None
    changes: list[tuple[int, str]] = []
    for step, text in enumerate(recording.instructions[:steps]):
        if not changes or text != changes[-1][1]:
            changes.append((step, text))
    return changes


def _column(column: Column) -> dict[str, Any]:
    """A column of an action as the page reads it: without bounds these are None, which JSON can hold."""
    bounds: dict[str, float | None] = {"low": None, "high": None}
    if column.is_bounded:
        bounds = {"low": column.low, "high": column.high}
    return {"name": column.name, "size": column.size, **bounds}


def _numbers(recording: Recording, steps: int) -> dict[str, str]:
    """Actions that are vectors: what the environment received, in its units, and the policy's means and scales.

    Float32 [steps, K], [steps, N] and [steps, N], packed. Scales are those before numbers are brought within bounds.
    """
    known = {"received": received(recording), "means": means(recording), "scales": recording.scales}
    return {name: packed(values[:steps].astype(np.float32)) for name, values in known.items()}


def _first_rounded(values: np.ndarray | None, steps: int) -> list[Any] | None:
    """The values of the first steps, rounded; None if there are none."""
    if values is None:
        return None
    return rounded(values[:steps])


def _evidence(recording: Recording) -> np.ndarray | None:
    """[T] log of the action's probability over that with the other example as the example; NaN where there is none.

    None if that was not recorded.
    """
    otherwise = recording.counterfactual_probabilities
    if otherwise is None:
        return None
    steps = np.arange(len(recording.actions))
    taken = recording.probabilities[steps, recording.actions]
    return np.log(np.maximum(taken, 1e-30) / np.maximum(otherwise, 1e-30))


def _effects(effects: Sequence[Effects]) -> dict[str, Any]:
    """What memory caused, by step, as the page reads it; see `actors.causes`."""
    of_slots = np.stack([each.slots for each in effects])
    thousandths = np.clip(np.rint(1000 * of_slots), -32_767, 32_767)
    return {
        "slots": packed(thousandths.astype(np.int16)),
        "kinds": [rounded(each.kinds, 3) for each in effects],
        "stretches": [each.stretch.tolist() for each in effects],
        "of_stretches": rounded(np.array([each.stretch_effect for each in effects]), 3),
    }


def agreement(recordings: Sequence[Recording]) -> dict[str, int] | None:
    """How often attention points at what memory caused; None if that is not known.

    "of": the steps at which the odds of the action would fall to a tenth or less without some `STRETCH` steps of the
    memory. "agree": those among them where the earlier step that the first layer attends to most is one of these.
    """
    known = [recording for recording in recordings if recording.effects and recording.attention]
    if not known:
        return None
    counted = 0
    agree = 0
    for recording in known:
        assert recording.effects
        attended = recording.attention[0].rows_by_step()
        for step, (row, found) in enumerate(zip(attended, recording.effects, strict=True)):
            if found.stretch_effect < math.log(DECISIVE):
                continue
            first, last = found.stretch
            most_attended = row[:step].argmax()
            counted += 1
            if first <= most_attended <= last:
                agree += 1
    return {"agree": agree, "of": counted, "steps": STRETCH}


def _plain(situation: Mapping[str, Any]) -> dict[str, Any]:
    """A situation as JSON can hold it: words, or a list of words, x and y."""
    found: dict[str, Any] = {}
    for name, said in situation.items():
        if isinstance(said, tuple):
            words, *place = said
            found[name] = [words, *rounded(np.array(place, float))]
        else:
            found[name] = said
    return found


def _sheets(frames: np.ndarray) -> list[str]:
    """Frames [T, height, width, 3] as data URLs of WebP pictures, ten columns each; without loss if they are small."""
    _, height, width, _ = frames.shape
    pictures = []
    for begin in range(0, len(frames), SHEET_FRAMES):
        part = frames[begin : begin + SHEET_FRAMES]
        # Black frames fill up the last row.
        missing = -len(part) % SHEET_COLUMNS
        filled = np.pad(part, [(0, missing), (0, 0), (0, 0), (0, 0)])
        grid = filled.reshape(-1, SHEET_COLUMNS, height, width, 3).swapaxes(1, 2)
        pictures.append(grid.reshape(-1, SHEET_COLUMNS * width, 3))
    sheets = [webp(picture, lossless=True, quality=50) for picture in pictures]
    if sum(len(sheet) for sheet in sheets) > LOSSLESS_BYTES:
        sheets = [webp(picture, quality=85) for picture in pictures]
    return sheets
