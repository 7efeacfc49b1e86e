"""The options of the rooms level: one frozen dataclass and its named variants.

A variant is a set of fields. The geometry of the original level is in `level.py`, the laws of motion in `physics.py`.
"""

import dataclasses
import math
from typing import Any

from envs.lab_interface import ACTION_SETS
from envs.rooms.shapes import SHAPES
from envs.rooms.surfaces import FAMILIES

RGB = tuple[int, int, int]

LEVEL_COLORS: tuple[RGB, ...] = ((250, 50, 135), (125, 208, 236), (88, 230, 150))
"""The three glow colors of the level."""
DISTINCT_COLORS: tuple[RGB, ...] = ((255, 0, 60), (255, 235, 0), (0, 255, 70))
"""Red, yellow and green, for images of a few hundred pixels: far apart in RGB and, but for the last two, in
brightness."""
_NAMES: dict[RGB, str] = {
    LEVEL_COLORS[0]: "pink",
    LEVEL_COLORS[1]: "light blue",
    LEVEL_COLORS[2]: "green",
    DISTINCT_COLORS[0]: "red",
    DISTINCT_COLORS[1]: "yellow",
    DISTINCT_COLORS[2]: "bright green",
}

LOOKS = ("own", *FAMILIES)
"""The level's own look, and groups of random ones."""
MOST = 10**9
"""No field of a config is larger: compiled code counts in 64 bits, and sums of such numbers stay exact."""
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("image_height", "image_width"), (8, 1024)),
    **dict.fromkeys(("action_repeat", "episode_frames"), (1, MOST)),
    **dict.fromkeys(
        ("delay_frames", "visit_frames", "hover_height", "bob_height", "throw_seconds", "drop_height"), (0, MOST)
    ),
    **dict.fromkeys(("run_speed", "throw_speed"), (0, 2000)),
    "shrink": (1, 8),
    "fov_degrees": (10, 150),
    "examples": (1, 10_000),
    "object_scale": (0.1, 8),
    "distance_scale": (0.3, 4),
    "glow_pulse": (0, 1),
    "look_pixels": (0, 512),
}
"""Least and greatest value of fields whose range is smaller; the player is 30 u wide."""
POSITIVE = ("pickup_scale", "spin_seconds", "eye_height", "run_speed")
"""Fields that may not be 0 either."""
_FIELD_TYPES: dict[Any, Any] = {
    float: ((int, float), "a number"),
    int: (int, "an integer"),
    bool: (bool, "True or False"),
    str: (str, "a name"),
}


@dataclasses.dataclass(frozen=True)
class RoomsConfig:
    """One variant of the level. Lengths are Quake units (u, 32 u = 1 m), speeds u/s; defaults are the level's own.

    A round shows all its `examples` first (the teleporter leads to the next one); then the choices about them follow,
    in the same order. The objects are all pairs of `shapes` and `colors`.
    """

    image_height: int = 72  # pixels
    image_width: int = 96  # pixels
    shrink: int = 1  # the view is drawn this many times as high and wide, and means of so many pixels are observed
    fov_degrees: float = 90.0  # horizontal field of view
    hud: bool = True  # draw health, armour, the clock and the score over the view
    looks: str = "own"  # or a group of `surfaces.FAMILIES`: textures, light, sizes... are drawn anew for every episode
    own_view: bool = False  # observe a pair: the view, and the same with the level's own look, which is for a teacher
    action_repeat: int = 4  # frames an action is held: frames per agent step
    episode_frames: int = 720  # frames of an episode (60 a second)
    redraw_match: bool = False  # draw a new match object for every trial, not only for every episode
    fixed_sides: bool = False  # example left, choice with the lower number left; otherwise drawn for every trial
    examples: int = 1  # examples of a round
    delay_frames: int = 0  # time in the dark, without motion, between a round's last example and its first choice
    delay_halvings: int = 0  # the delay of every round is halved so many times, drawn from 0 to this number
    visit_frames: int = 0  # time in each room: wait in the dark if faster, moved on if slower; 0 for no fixed time
    shapes: tuple[str, ...] = tuple(SHAPES)  # names in `envs.rooms.shapes.SHAPES`
    colors: tuple[RGB, ...] = LEVEL_COLORS  # glow colors (red, green, blue), 0..255
    object_scale: float = 1.0  # size of the objects; 1 is about 32 u tall
    pickup_scale: float = 1.0  # size of the zone in which an object is touched; 1 is dx -50..44, dy -36..36
    hover_height: float = 19.0  # of an object's base above the floor
    bob_height: float = 4.0  # amplitude of the objects' bobbing
    spin_seconds: float = 2.048  # time of one turn of an object
    glow_pulse: float = 0.1  # depth of the glow's 0.2 Hz pulse, 0 (steady) to 1 (fades to black)
    distance_scale: float = 1.0  # of the plan and of the throw's speed, not of heights, player or run speed
    wall_height: float = 128.0
    eye_height: float = 50.0  # of the camera above the floor
    run_speed: float = 320.0  # top speed of the player
    actions: str = "nine"  # a set of actions in `lab_interface.ACTION_SETS`
    look_pixels: int = 0  # mouse units (0.1056 degrees) a frame of the look actions; 0 for those of the set
    throw_speed: float = 400.0  # at which the teleporter throws the player forward, before `distance_scale`
    throw_seconds: float = 0.16  # after a teleport without friction and control, in the air or on the floor
    drop_height: float = 24.875  # from which the player falls at the end of the teleport
    reward_teleport: float = 1.0  # for entering the teleporter
    reward_correct: float = 10.0  # for touching the object that does not match the example
    reward_wrong: float = -10.0  # for touching the matching one

    def __post_init__(self) -> None:
        """Raises ValueError naming the field, what was expected and what was given."""
        self._check_fields()
        self._check_view()
        self._check_rounds()
        self._check_objects()
        self._check_plan()

    def _require(self, field: str, ok: bool, expected: str) -> None:
        if not ok:
            raise ValueError(f"RoomsConfig.{field}: expected {expected}, got {getattr(self, field)!r}")

    def _check_fields(self) -> None:
        """Type and range of each field by itself."""
        for field in dataclasses.fields(self):
            name = field.name
            value = getattr(self, name)
            if field.type in _FIELD_TYPES:
                kind, words = _FIELD_TYPES[field.type]
                # A bool is an int, too.
                is_of_kind = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
                self._require(name, is_of_kind, words)
            if field.type in (int, float):
                low, high = RANGES.get(name, (-MOST, MOST))
                self._require(name, low <= value <= high, f"{low} to {high}")
                if name in POSITIVE:
                    self._require(name, value > 0, "more than 0")

    def _check_view(self) -> None:
        height, width, _ = self.view_shape
        largest = RANGES["image_height"][1]
        self._require("shrink", max(height, width) <= largest, f"a view of at most {largest} x {largest} pixels")
        if self.hud:
            is_large = height >= 40 and width >= 64
            self._require("hud", is_large, f"False for images smaller than 40 x 64 such as {height} x {width}")

    def _check_rounds(self) -> None:
        if self.examples > 1:
            self._require("redraw_match", self.redraw_match, f"True with examples={self.examples}")
        most = max(self.delay_frames.bit_length() - 1, 0)
        halvings = f"0 to {most}, since delay_frames={self.delay_frames}"
        self._require("delay_halvings", 0 <= self.delay_halvings <= most, halvings)

    def _check_objects(self) -> None:
        for name, items in (("shapes", self.shapes), ("colors", self.colors)):
            self._require(name, isinstance(items, tuple) and len(items) > 0, f"a tuple of {name}")
        are_known = all(name in SHAPES for name in self.shapes)
        self._require("shapes", are_known, f"names out of {', '.join(SHAPES)}")
        are_proper = all(_is_color(color) for color in self.colors)
        self._require("colors", are_proper, "tuples of three integers 0..255")
        for name, items in (("shapes", self.shapes), ("colors", self.colors)):
            self._require(name, len(set(items)) == len(items), "none twice")
        self._require("shapes", self.num_objects >= 2, "at least 2 objects (shapes x colors) for a choice")

    def _check_plan(self) -> None:
        # A pickup zone is 72 u wide, and the two choices are 256 u apart. It begins 50 u before its object, which is a
        # little more than 300 u beyond the arrival. See `level.PICKUP`, `level.CHOICES` and `level.ARRIVAL`.
        across = self.pickup_scale * 72 / 256
        along = self.pickup_scale * 50 / 300
        zones = f"pickup zones that touch neither each other nor the arrival at distance_scale={self.distance_scale}"
        self._require("pickup_scale", max(across, along) < self.distance_scale, zones)
        self._require("looks", self.looks in LOOKS, f"one of {', '.join(LOOKS)}")
        self._require("actions", self.actions in ACTION_SETS, f"one of {', '.join(ACTION_SETS)}")
        self._require("wall_height", self.wall_height > self.eye_height, f"more than eye_height={self.eye_height}")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape of an observation: height, width and 3."""
        return self.image_height, self.image_width, 3

    @property
    def view_shape(self) -> tuple[int, int, int]:
        """Shape of the view that is drawn, before it is averaged."""
        return self.shrink * self.image_height, self.shrink * self.image_width, 3

    @property
    def action_names(self) -> tuple[str, ...]:
        """The actions, in order."""
        return ACTION_SETS[self.actions][0]

    @property
    def num_objects(self) -> int:
        """Number of objects, shapes x colors; object k has shape k // C and color k % C."""
        return len(self.shapes) * len(self.colors)

    def object_name(self, number: int) -> str:
        """An object in words, such as "light blue cone"; colors without a name are in hexadecimal."""
        shape = self.shapes[number // len(self.colors)]
        color = self.colors[number % len(self.colors)]
        name_of_color = _NAMES.get(color)
        if name_of_color is None:
            name_of_color = f"#{bytes(color).hex()}"
        return f"{name_of_color} {shape.replace('_', ' ')}"

    @property
    def episode_steps(self) -> int:
        """Agent steps of an episode; the last is shorter if action_repeat does not divide episode_frames."""
        return math.ceil(self.episode_frames / self.action_repeat)


def _is_color(value: object) -> bool:
    """Whether a value is red, green and blue in 0..255."""
    if not isinstance(value, tuple) or len(value) != 3:
        return False
    return all(isinstance(channel, int) and 0 <= channel <= 255 for channel in value)


_FULL = RoomsConfig()
_HALF = dataclasses.replace(_FULL, image_height=36, image_width=48, shrink=2)
_SMALL = RoomsConfig(
    image_height=24,
    image_width=32,
    hud=False,
    shapes=("sphere",),
    colors=DISTINCT_COLORS,
    object_scale=1.75,
    pickup_scale=1.1,
    hover_height=12.0,
    glow_pulse=0.0,
    distance_scale=0.35,
    wall_height=80.0,
    throw_seconds=0.0,
    drop_height=0.0,
)
_SMALL_RECALL = dataclasses.replace(
    _SMALL,
    image_height=12,
    image_width=16,
    colors=(DISTINCT_COLORS[0], DISTINCT_COLORS[2]),
    redraw_match=True,
    fixed_sides=True,
    visit_frames=12,
    delay_frames=256,
    delay_halvings=5,
    episode_frames=1440,
    pickup_scale=1.2,
    run_speed=1400.0,
    throw_speed=2000.0,
    throw_seconds=0.08,
    reward_teleport=0.0,
    reward_wrong=0.0,
)

VARIANTS: dict[str, RoomsConfig] = {
    "full": _FULL,
    "full-half": _HALF,
    "transfer": dataclasses.replace(_HALF, looks="train"),
    "transfer-choose": dataclasses.replace(_HALF, looks="choose"),
    "unseen": dataclasses.replace(_HALF, looks="unseen"),
    **{
        f"full-recall-{span}": dataclasses.replace(
            _FULL, redraw_match=True, examples=examples, visit_frames=80, episode_frames=2 * 80 * examples
        )
        for span, examples in ((112, 6), (192, 10), (292, 15), (532, 27))
    },
    "small": _SMALL,
    "small-recall": _SMALL_RECALL,
    "small-recall-long": dataclasses.replace(_SMALL_RECALL, delay_frames=512, delay_halvings=3, episode_frames=2880),
    **{
        f"small-recall-{span}": dataclasses.replace(_SMALL_RECALL, delay_frames=frames, delay_halvings=0)
        for span, frames in ((18, 64), (34, 128), (66, 256), (130, 512))
    },
}
"""The named variants. "full" is the level, and "full-half" the same at 36 x 48 pixels, each the mean of four of the
level's. "transfer" is "full-half" with random looks, for agents that are meant to play in the real level;
"transfer-choose" and "unseen" have surfaces of families that "transfer" does not show. "small" has the structure of
"full", and can be learned on a CPU in minutes: shorter ways, larger and more saturated objects that differ in color
alone, and no head-up display.

A number at the end is the number of steps that a memory has to bridge (`envs.rooms.memory_spans`): "full-recall-N"
shows many examples before the choices. "small-recall" shows one of two objects; after a delay of 2, 4, 8, 16, 32 or 64
steps ("-long": 16 to 128) the player is thrown between the choices; one step to the correct side is the answer.
"""


def resolve(config: RoomsConfig | str) -> RoomsConfig:
    """A config, or the variant of that name. Raises ValueError listing the names if there is none."""
    if isinstance(config, RoomsConfig):
        return config
    if config not in VARIANTS:
        raise ValueError(f"no variant {config!r} of the rooms level; there are: {', '.join(VARIANTS)}")
    return VARIANTS[config]
