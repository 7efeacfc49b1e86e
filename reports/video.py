"""Video: recorded episodes as MP4, with what the agent did, expected and attended to beside its view."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from actors.recording import RENDERED_STEPS, Recording
from reports.actions import columns, received, value_in_words
from reports.views import BACKGROUND, Look, Panel, colored, looks, panels, views
from storage.files import replacing

VIEW = (640, 480)
PANEL = 280
STRIP = 120
"""Pixels: width and height of the view, width of the panel beside it, height of the remembered views below it."""
LOOKS = 5
"""Remembered views below the view."""
ACTION_LINES = 4
NAME_LINES = 2
INSTRUCTION_LINES = 5
LINE_WIDTH = 20
"""Most lines of what is said of an action, of its name alone and of an instruction; most characters of a line."""
REWARD_SECONDS = 0.7
"""A reward is shown so long."""
TEXT = (235, 237, 240)
FAINT = (130, 136, 148)
BAND = (44, 48, 58)
GOOD = (92, 184, 92)
BAD = (224, 92, 84)
COLORS = {"routed": (186, 104, 200), "compressed": (226, 122, 63), "memory": (69, 178, 157), "segment": (90, 140, 230)}


def film(recordings: Sequence[Recording], path: Path, progress: Callable[[int], None] = lambda frames: None) -> None:
    """Writes episodes to one MP4 (H.264), one after the other, in real time. The file is complete, or as it was before.

    An episode ends where its pictures do; see `reports.views.views`. `progress` is called with the number of frames
    that are drawn, of those that `count_frames` says.

    Raises:
        OSError: if it cannot be written, or would replace what is not a regular file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    first = recordings[0]
    fps = max(1, round(first.fps * frames_of_step(first)))
    width, height = frame_size(bool(first.attention))
    with replacing(path) as temporary, av.open(str(temporary.absolute()), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=fps, options={"crf": "28", "preset": "veryfast"})
        stream.width = width
        stream.height = height
        stream.pix_fmt = "yuv420p"
        stream.time_base = Fraction(1, fps)
        for number, picture in enumerate(pictures(recordings), 1):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            progress(number)
        container.mux(stream.encode(None))


def frame_size(attends: bool) -> tuple[int, int]:
    """Width and height of a frame; of an agent with attention, with a strip of the views that it remembers."""
    width, height = VIEW
    if attends:
        height += STRIP
    return width + PANEL, height


def frames_of_step(recording: Recording) -> int:
    """Frames of the video for each step: the view at the step, and those up to the next one if they were recorded."""
    if recording.views_between is None:
        return 1
    return 1 + recording.views_between.shape[1]


def count_frames(recordings: Sequence[Recording]) -> int:
    """Frames of the video of episodes."""
    frames = 0
    for recording in recordings:
        steps = min(RENDERED_STEPS, len(recording.actions))
        if steps == len(recording.actions):
            steps += steps_of_reward(recording)
        frames += steps * frames_of_step(recording)
    return frames


def steps_of_reward(recording: Recording) -> int:
    """For how many steps a reward is shown, and the end of an episode."""
    return max(1, round(REWARD_SECONDS * recording.fps))


def pictures(recordings: Sequence[Recording]) -> Iterator[np.ndarray]:
    """The frames of the video, [height, width, 3] uint8 each.

    An episode ends with a picture of the score after its last action, which is held as long as a reward is shown; one
    whose pictures end earlier does not.
    """
    for number, recording in enumerate(recordings, 1):
        scene = _Scene(recording, f"{number} of {len(recordings)}")
        view = scene.shown[0]
        last = len(recording.actions) - 1
        for step, remembered in zip(range(len(scene.shown)), looks(recording, LOOKS)):
            view = scene.shown[step]
            frame = scene.frame(step, step, view, remembered)
            yield np.asarray(frame.image)

            # The views until the next step, beside the same panel.
            if recording.views_between is not None:
                for between in recording.views_between[step]:
                    view = colored(between)
                    frame.picture(view, (0, 0, *VIEW))
                    yield np.asarray(frame.image)
            if step == last:
                end = np.asarray(scene.frame(last, last + 1, view, remembered).image)
                yield from [end] * (steps_of_reward(recording) * frames_of_step(recording))


class _Scene:
    """What the frames of an episode are drawn of."""

    def __init__(self, recording: Recording, number: str) -> None:
        self.recording = recording
        self.number = number
        self.shown = views(recording)
        self.labels = panels(recording)
        self.actions = action_lines(recording)
        self.instructions = instruction_lines(recording)
        self.returns = np.concatenate([[0.0], recording.rewards.cumsum()])  # [T + 1] before each action, and at the end
        self.right = (recording.choices == 1).cumsum()
        self.wrong = (recording.choices == -1).cumsum()

    def frame(self, step: int, rewarded: int, view: np.ndarray, remembered: Sequence[Look]) -> "Frame":
        """The frame of a step, with the score after so many actions."""
        recording = self.recording
        frame = Frame(bool(recording.attention))
        frame.picture(view, (0, 0, *VIEW))
        frame.labels(self.labels, self.shown[step].shape[:2])
        frame.line("episode", self.number)
        frame.line("step", f"{step}")
        for name, value in [*self.instructions[step], *self.actions[step]]:
            frame.line(name, value)
        frame.line("value", f"{recording.values[step]:+.2f}")
        recent = recording.rewards[max(0, rewarded - steps_of_reward(recording)) : rewarded].sum()
        reward = signed(recent) if recent else ""
        color = GOOD if recent > 0 else BAD
        frame.line("score", signed(self.returns[rewarded]), reward, color)
        if recording.choices.any():
            frame.line("choices", f"{self.right[step]} right, {self.wrong[step]} wrong")
        if recording.attention:
            shares = recording.attention_by_kind[step].mean(axis=(0, 1))
            frame.attention(dict(zip(recording.slot_kinds, shares.tolist())))
            frame.remembered(self.shown, remembered)
        if recording.floor_plan and recording.poses is not None:
            frame.map(recording.floor_plan, recording.poses[: step + 1])
        return frame


def signed(score: float) -> str:
    """A score or reward with its sign: four digits, or whole numbers from 1000 on."""
    if 1000 <= abs(score) < 1e7:
        return f"{score:+,.0f}"
    return f"{score:+.4g}"


def action_lines(recording: Recording) -> list[list[tuple[str, str]]]:
    """What the film says of the action of each step: lines of a name and of what is beside it.

    Of a vector of few columns each is in a line; of others all values in few lines, which may end before the last one.
    """
    names = recording.action_names
    if not recording.parts:
        lines_of_names = [_titled("action", _wrapped(name)) for name in names]
        return _equally_long([lines_of_names[action] for action in recording.actions])
    known = columns(recording)
    found: list[list[tuple[str, str]]] = []
    for row in received(recording):
        values = [value_in_words(column, value) for column, value in zip(known, row.tolist(), strict=True)]
        if len(known) <= ACTION_LINES:
            lines = [f"{shortened(name)} {value}" for name, value in zip(names, values, strict=True)]
            if names == ("action",):  # as the line itself is called
                lines = values
        else:
            lines = textwrap.wrap("  ".join(values), LINE_WIDTH, max_lines=ACTION_LINES, placeholder=" …")
        found.append(_titled("action", lines))
    return _equally_long(found)


def instruction_lines(recording: Recording) -> list[list[tuple[str, str]]]:
    """What the film says of the environment's text at each step, as `action_lines`; no lines if there is none."""
    if recording.instructions is None:
        return [[] for _ in recording.actions]
    found: list[list[tuple[str, str]]] = []
    for text in recording.instructions:
        # An environment may put there what a font cannot draw.
        plain = "".join(letter if letter.isprintable() else " " for letter in text)
        lines = textwrap.wrap(plain, LINE_WIDTH, max_lines=INSTRUCTION_LINES, placeholder=" …")
        found.append(_titled("instruction", lines or [""]))
    return _equally_long(found)


def _titled(title: str, lines: list[str]) -> list[tuple[str, str]]:
    """Lines, the first of which has a title."""
    titles = [title, *[""] * (len(lines) - 1)]
    return list(zip(titles, lines, strict=True))


def _equally_long(found: list[list[tuple[str, str]]]) -> list[list[tuple[str, str]]]:
    """As many lines at every step, so that what is below them stays in its place."""
    most = max(map(len, found))
    return [lines + [("", "")] * (most - len(lines)) for lines in found]


def _wrapped(name: str) -> list[str]:
    """The name of an action in few lines."""
    name = shortened(name, NAME_LINES * LINE_WIDTH)
    return textwrap.wrap(name, LINE_WIDTH, max_lines=NAME_LINES, placeholder=" …") or [""]


def shortened(name: str, most: int = LINE_WIDTH - 9) -> str:
    """The end of a long name, which tells it from others; by default that of a column, with room for its value."""
    if len(name) <= most:
        return name
    return "…" + name[1 - most :]


class Frame:
    """A frame that is drawn from the top of its panel downward."""

    def __init__(self, attends: bool) -> None:
        self.image = Image.new("RGB", frame_size(attends), BACKGROUND)
        self.brush = ImageDraw.Draw(self.image)
        self.font = ImageFont.load_default(16)
        self.left = VIEW[0] + 18
        self.top = 16
        self.width = PANEL - 36

    def text(self, left: float, top: float, text: str, color: Any = TEXT) -> None:
        self.brush.text((left, top), text, fill=color, font=self.font)

    def picture(self, view: np.ndarray, box: tuple[int, int, int, int]) -> None:
        """A picture [height, width, 3] uint8, as large as fits into left, top, width and height."""
        left, top, width, height = box
        scale = min(width / view.shape[1], height / view.shape[0])
        wide = max(1, round(view.shape[1] * scale))
        high = max(1, round(view.shape[0] * scale))
        filter = Image.Resampling.NEAREST if scale > 4 else Image.Resampling.BICUBIC
        picture = Image.fromarray(view).resize((wide, high), filter)
        self.image.paste(picture, (left + (width - wide) // 2, top + (height - high) // 2))

    def labels(self, panels: Sequence[Panel], size: tuple[int, int]) -> None:
        """The names of several images that are beside each other in a picture of `size`, height and width, in the view.

        They are at the top of the view: below it the pictures of steps that are attended to may follow.
        """
        scale = min(VIEW[0] / size[1], VIEW[1] / size[0])
        begin = (VIEW[0] - size[1] * scale) / 2
        for panel in panels:
            left = begin + panel.left * scale + 4
            room = int(panel.width * scale) - 8
            name = panel.name
            while name and self.font.getlength(name) > room:
                name = name[:-1]
            self.brush.rectangle((left - 2, 2, left + self.font.getlength(name) + 2, 22), fill=BACKGROUND)
            self.text(left, 3, name)

    def line(self, name: str, value: str, more: str = "", color: Any = TEXT) -> None:
        self.text(self.left, self.top, name, FAINT)
        self.text(self.left + 84, self.top, value)
        behind = 84 + self.font.getlength(value) + 12
        self.text(self.left + max(160, behind), self.top, more, color)
        self.top += 24

    def attention(self, mass: dict[str, float]) -> None:
        """Bars of the share of each kind of memory."""
        self.top += 10
        self.text(self.left, self.top, "attention on", FAINT)
        self.top += 24
        for kind, share in mass.items():
            self.text(self.left, self.top, kind)
            self.text(self.left + self.width - 44, self.top, f"{100 * share:3.0f} %")
            self.top += 22
            self.bar(self.width, BAND)
            self.bar(round(self.width * share), COLORS[kind])
            self.top += 12

    def bar(self, width: int, color: Any) -> None:
        self.brush.rectangle((self.left, self.top, self.left + width, self.top + 6), fill=color)

    def remembered(self, shown: np.ndarray, found: Sequence[Look]) -> None:
        """The pictures of the steps that are attended to, below the view; of a slot of several steps the middle one."""
        width = (VIEW[0] + PANEL) // LOOKS
        top = VIEW[1]
        for index, look in enumerate(found):
            left = index * width
            middle = (look.first + look.last) // 2
            self.picture(shown[middle], (left + 4, top + 6, width - 8, STRIP - 36))
            steps = f"{look.first}"
            if look.last != look.first:
                steps += f"-{look.last}"
            self.text(left + 8, top + STRIP - 25, f"step {steps}  {100 * look.weight:.0f} %", COLORS[look.kind])

    def map(self, plan: dict[str, Any], poses: np.ndarray) -> None:
        """The path from above in what is left of the panel; y grows to the left of a player who looks along x."""
        walls = np.array(plan["walls"]).reshape(-1, 2, 2)  # [walls, ends, x and y]
        low = walls.min(axis=(0, 1))
        extent = walls.max(axis=(0, 1)) - low
        height = self.image.height - self.top - 30
        if height < 40:
            return  # there is no room
        scale = (np.array([self.width, height]) / extent).min()
        bottom = self.top + 16 + extent[1] * scale

        def point(spot: Any) -> tuple[float, float]:
            """Pixels of a place, of which only x and y are read."""
            x, y = (np.asarray(spot)[:2] - low) * scale
            return self.left + x, bottom - y

        def circle(x: float, y: float, radius: float, **colors: Any) -> None:
            self.brush.ellipse((x - radius, y - radius, x + radius, y + radius), **colors)

        for wall in walls:
            self.brush.line([point(wall[0]), point(wall[1])], fill=FAINT, width=2)
        for spot in plan["spots"].values():
            x, y = point(spot)
            circle(x, y, 4, outline=FAINT)

        # The way of the last steps, brighter toward the present one: from the color BAND to the color TEXT.
        recent = poses[-60:]
        for number, pose in enumerate(recent, 1):
            x, y = point(pose)
            shade = tuple(round(dark + (bright - dark) * number / len(recent)) for dark, bright in zip(BAND, TEXT))
            circle(x, y, 1.5, fill=shade)

        # The player, and where it looks.
        x, y = point(poses[-1])
        yaw = np.radians(poses[-1, 2])
        self.brush.line([(x, y), (x + 12 * np.cos(yaw), y - 12 * np.sin(yaw))], fill=TEXT, width=2)
        circle(x, y, 4, fill=TEXT)
