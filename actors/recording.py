"""Recording: episodes as MP4, with what the agent did, expected and attended to beside its view.

The frames come from an ordinary actor with one environment, so what is seen is what was evaluated.
"""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from actors.actor import Actor
from agent.core import ATTENTION_KINDS, CompressiveTransformer
from agent.trajectory import image_of

HEIGHT, VIEW_WIDTH, PANEL_WIDTH = 360, 480, 280
BACKGROUND, TEXT, FAINT = (18, 20, 26), (235, 237, 240), (130, 136, 148)
COLOURS = {"compressed": (226, 122, 63), "memory": (69, 178, 157), "segment": (90, 140, 230)}


def record_episodes(
    actor: Actor, episodes: int, path: Path, action_names: tuple[str, ...], fps: int = 15
) -> list[float]:
    """Plays episodes in the actor's first environment and writes them to one MP4.

    Args:
        actor: with image observations [height, width, 3] uint8.
        episodes: how many to play.
        path: of the MP4 (H.264), which is written to a temporary name first.
        action_names: one for each action.
        fps: agent steps a second; 15 is real time at 60 frames a second and an action repeat of 4.

    Returns:
        the score of each episode.
    """
    shape = image_of(actor.moment.observation).shape[1:]
    if len(shape) != 3 or shape[2] != 3:
        raise ValueError(f"observation: expected an image [height, width, 3] to record, got {list(shape)}")
    temporary = path.with_name(f".{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    scores: list[float] = []
    with av.open(str(temporary), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=fps, options={"crf": "20", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = VIEW_WIDTH + PANEL_WIDTH, HEIGHT, "yuv420p"
        stream.time_base = Fraction(1, fps)
        score, step = 0.0, 0
        while len(scores) < episodes:
            view = image_of(actor.moment.observation)[0].numpy()
            action, output = actor.act(actor.core_state, return_attention=True)
            actor.core_state = output.state
            lines = {
                "episode": f"{len(scores) + 1} of {episodes}",
                "step": f"{step}",
                "action": action_names[int(action[0])],
                "value": f"{float(output.value[0, 0]):+.2f}",
                "score": f"{score:+.0f}",
            }
            if step >= 0:
                picture = draw(view, lines, _attention(actor, output.attention))
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            ended = actor.step(action)
            score, step = score + float(actor.moment.reward[0]), step + 1
            for episode in ended:
                if episode.environment == 0:
                    scores.append(episode.score)
                    score, step = 0.0, -1  # not shown: the step that only resets, still with the old episode's view
        container.mux(stream.encode(None))
    temporary.replace(path)
    return scores


def _attention(actor: Actor, weights: tuple[torch.Tensor, ...] | None) -> dict[str, float]:
    """Mean mass by kind of memory for the first row, or nothing for cores without attention."""
    core = actor.agent.core
    if weights is None or not isinstance(core, CompressiveTransformer):
        return {}
    means = core.attention_by_kind(weights)[:, 0, :, 0].mean(dim=(0, 1)).tolist()
    return dict(zip(ATTENTION_KINDS, means))


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
