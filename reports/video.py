"""Video: recorded episodes as MP4, with what the agent did, expected and attended to beside its view."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from actors.recording import Recording
from learner.files import replacing

HEIGHT, VIEW_WIDTH, PANEL_WIDTH = 360, 480, 280
BACKGROUND, TEXT, FAINT = (18, 20, 26), (235, 237, 240), (130, 136, 148)
COLOURS = {"routed": (186, 104, 200), "compressed": (226, 122, 63), "memory": (69, 178, 157), "segment": (90, 140, 230)}


def film(recordings: Sequence[Recording], path: Path) -> None:
    """Writes episodes to one MP4 (H.264), one after the other, in real time. The file is complete, or as it was before.

    Args:
        recordings: with image observations [T, height, width, 3] uint8.
        path: of the MP4.

    Raises:
        ValueError: if the observations are no such images.
        OSError: if it cannot be written, or would replace what is not a regular file.
    """
    check_images(recordings)
    path.parent.mkdir(parents=True, exist_ok=True)
    fps = round(recordings[0].fps)
    with replacing(path) as temporary, av.open(str(temporary), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=fps, options={"crf": "20", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = VIEW_WIDTH + PANEL_WIDTH, HEIGHT, "yuv420p"
        stream.time_base = Fraction(1, fps)
        for picture in pictures(recordings):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


def check_images(recordings: Sequence[Recording]) -> None:
    """Raises a ValueError where what the agent saw are no images in RGB."""
    shape = recordings[0].observations.shape[1:]
    if len(shape) != 3 or shape[2] != 3:
        raise ValueError(f"observation: expected an image [height, width, 3] to show, got {list(shape)}")


def pictures(recordings: Sequence[Recording]) -> Iterator[np.ndarray]:
    """The frames of the video, [HEIGHT, VIEW_WIDTH + PANEL_WIDTH, 3] uint8 each."""
    for number, recording in enumerate(recordings, 1):
        returns, chosen = recording.returns, [(recording.choices == sign).cumsum() for sign in (1, -1)]
        mass = recording.mass.mean(axis=(1, 2)).tolist() if recording.attention else None
        for step, view in enumerate(recording.observations):
            lines = {
                "episode": f"{number} of {len(recordings)}",
                "step": f"{step}",
                "action": recording.action_names[recording.actions[step]],
                "value": f"{recording.values[step]:+.2f}",
                "score": f"{returns[step]:+.0f}",
            }
            if recording.choices.any():
                right, wrong = (int(count[step]) for count in chosen)
                lines["choices"] = f"{right} right, {wrong} wrong"
            yield draw(view, lines, dict(zip(recording.kinds, mass[step])) if mass else {})


def draw(view: np.ndarray, lines: dict[str, str], attention: dict[str, float]) -> np.ndarray:
    """One frame: the view [height, width, 3] uint8 enlarged, and beside it a panel of text and attention bars.

    Returns:
        [HEIGHT, VIEW_WIDTH + PANEL_WIDTH, 3] uint8.
    """
    frame = Image.new("RGB", (VIEW_WIDTH + PANEL_WIDTH, HEIGHT), BACKGROUND)
    scale = min(VIEW_WIDTH / view.shape[1], HEIGHT / view.shape[0])
    size = (round(view.shape[1] * scale), round(view.shape[0] * scale))
    image = Image.fromarray(view).resize(size, Image.Resampling.NEAREST)
    frame.paste(image, ((VIEW_WIDTH - size[0]) // 2, (HEIGHT - size[1]) // 2))
    brush, font = ImageDraw.Draw(frame), ImageFont.load_default(16)
    left, top = VIEW_WIDTH + 18, 16
    for name, value in lines.items():
        brush.text((left, top), name, fill=FAINT, font=font)
        brush.text((left + 84, top), value, fill=TEXT, font=font)
        top += 26
    if attention:
        top += 18
        brush.text((left, top), "attention on", fill=FAINT, font=font)
        width = PANEL_WIDTH - 36
        for kind, mass in attention.items():
            top += 30
            brush.text((left, top), f"{kind}", fill=TEXT, font=font)
            brush.text((left + width - 44, top), f"{100 * mass:3.0f} %", fill=TEXT, font=font)
            top += 22
            brush.rectangle((left, top, left + width, top + 8), fill=(44, 48, 58))
            brush.rectangle((left, top, left + round(width * mass), top + 8), fill=COLOURS[kind])
    return np.asarray(frame)
