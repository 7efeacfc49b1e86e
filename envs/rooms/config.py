"""What can be varied about the rooms level: one frozen dataclass and its named variants.

Every number that shapes the task is a field here, so that a variant is nothing but a set of fields. The geometry of
the original level is in `level.py`, the laws of motion in `physics.py`; neither is repeated here.
"""

from __future__ import annotations

import dataclasses

from envs.rooms.shapes import SHAPES

RGB = tuple[int, int, int]

#: The three glow colours of the level: pink, light blue, green.
LEVEL_COLOURS: tuple[RGB, ...] = ((250, 50, 135), (125, 208, 236), (88, 230, 150))
#: Red, yellow and green, for images of a few hundred pixels: far apart in RGB and, but for the last two, in brightness.
DISTINCT_COLOURS: tuple[RGB, ...] = ((255, 0, 60), (255, 235, 0), (0, 255, 70))

#: No field of a config is larger: compiled code counts in 64 bits, and sums of such numbers stay exact.
MOST = 10**9


@dataclasses.dataclass(frozen=True)
class RoomsConfig:
    """One variant of the level. Lengths are Quake units (u, 32 u = 1 m), speeds u/s; defaults are the level's own.

    Attributes:
        image_height: rows of the view, pixels.
        image_width: columns of the view, pixels.
        fov_degrees: horizontal field of view.
        hud: draw health, armour, the clock and the running score over the view.
        randomise: draw the look anew for every episode: textures and colours of walls, floor and sky, light and
            shade on the objects, and whether and where the display is. The task stays the same, seed for seed.
        action_repeat: frames an action is held, i.e. frames per agent step.
        episode_frames: frames of an episode (60 a second); the clock spans all trials.
        redraw_match: draw a new match object for every trial; otherwise it is fixed for the episode.
        fixed_sides: the example stands left, and so does the choice of the lower number: with two objects, the second
            room always looks the same and what is remembered says where to go. Otherwise sides are drawn every trial.
        examples: examples of a round. Its first trials only show: the teleporter leads to the next example. Then the
            choices about them follow, in the same order.
        delay_frames: time in the dark, where nothing moves, between a round's last example and its first choice.
        delay_halvings: the delay of every round is halved so many times, drawn from 0 to this number.
        visit_frames: time between entering a room and entering the next: who is done sooner waits in the dark, who
            is not is moved on. 0 leaves it to the player.
        shapes: names of the shapes objects are made of, from `envs.rooms.shapes.SHAPES`.
        colours: glow colours (red, green, blue), 0..255. The objects are all pairs (shape, colour).
        object_scale: size of the objects; 1 is about 32 u tall.
        pickup_scale: size of the zone in which a choice counts as touched; 1 is dx -50..44, dy -36..36.
        hover_height: height of an object's base above the floor.
        bob_height: amplitude of the objects' bobbing.
        spin_seconds: time of one turn of an object.
        glow_pulse: depth of the glow's 0.2 Hz pulse, 0 (steady) to 1 (fades to black).
        distance_scale: scale of everything in plan: rooms, pedestals, pads, fences, and the speed of the throw out of
            the teleporter, so that it carries about as far in proportion. The player's width, his speed and all
            heights stay.
        wall_height: height of the walls.
        eye_height: height of the camera above the floor.
        run_speed: top speed of the player.
        look_pixels: mouse units a frame of the two look actions; 0.1056 degrees each.
        throw_speed: speed at which the teleporter throws the player forward, before `distance_scale`.
        throw_seconds: time after a teleport without friction and with little control. The engine's knockback lasts
            0.160 s; the fall onto the floor extends it to what lets a passive player slide from x = 288 to x = 440.
        reward_teleport: reward for entering the teleporter.
        reward_correct: reward for touching the object that does not match the example.
        reward_wrong: reward for touching the matching one.
    """

    image_height: int = 72
    image_width: int = 96
    fov_degrees: float = 90.0
    hud: bool = True
    randomise: bool = False
    action_repeat: int = 4
    episode_frames: int = 720
    redraw_match: bool = False
    fixed_sides: bool = False
    examples: int = 1
    delay_frames: int = 0
    delay_halvings: int = 0
    visit_frames: int = 0
    shapes: tuple[str, ...] = tuple(SHAPES)
    colours: tuple[RGB, ...] = LEVEL_COLOURS
    object_scale: float = 1.0
    pickup_scale: float = 1.0
    hover_height: float = 19.0
    bob_height: float = 4.0
    spin_seconds: float = 2.048
    glow_pulse: float = 0.15
    distance_scale: float = 1.0
    wall_height: float = 128.0
    eye_height: float = 50.0
    run_speed: float = 320.0
    look_pixels: int = 20
    throw_speed: float = 400.0
    throw_seconds: float = 0.2417
    reward_teleport: float = 1.0
    reward_correct: float = 10.0
    reward_wrong: float = -10.0

    def __post_init__(self) -> None:
        """Raises ValueError naming the field, what it must be and what it is."""

        def check(field: str, ok: bool, expected: str) -> None:
            if not ok:
                raise ValueError(f"RoomsConfig.{field}: expected {expected}, got {getattr(self, field)!r}")

        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "float":
                check(field.name, isinstance(value, (int, float)) and not isinstance(value, bool), "a number")
                check(field.name, abs(value) <= MOST, "a finite number, at most 10^9 in size")
            elif field.type == "int":
                check(field.name, isinstance(value, int) and not isinstance(value, bool), "an integer")
                check(field.name, abs(value) <= MOST, "at most 10^9 in size")
            elif field.type == "bool":
                check(field.name, isinstance(value, bool), "True or False")
        check("image_height", 8 <= self.image_height <= 1024, "8 to 1024 pixels")
        check("image_width", 8 <= self.image_width <= 1024, "8 to 1024 pixels")
        if self.hud and (self.image_height < 40 or self.image_width < 64):
            raise ValueError(
                "RoomsConfig.hud: expected False for images smaller than 40 x 64, "
                f"got True with {self.image_height} x {self.image_width}"
            )
        check("fov_degrees", 10 <= self.fov_degrees <= 150, "10 to 150 degrees")
        check("action_repeat", self.action_repeat >= 1, "at least 1")
        check("episode_frames", self.episode_frames >= 1, "at least 1")
        check("examples", 1 <= self.examples <= 10_000, "1 to 10000")
        check("redraw_match", self.redraw_match or self.examples == 1, f"True with examples={self.examples}")
        check("delay_frames", self.delay_frames >= 0, "0 or more")
        most = self.delay_frames.bit_length() - 1 if self.delay_frames else 0
        halves = f"0 to {most}, since delay_frames={self.delay_frames}"
        check("delay_halvings", 0 <= self.delay_halvings <= most, halves)
        check("visit_frames", self.visit_frames >= 0, "0 or more")
        names = ", ".join(SHAPES)
        check("shapes", isinstance(self.shapes, tuple) and len(self.shapes) > 0, f"a tuple of names out of {names}")
        check("shapes", all(name in SHAPES for name in self.shapes), f"names out of {names}")
        check("shapes", len(set(self.shapes)) == len(self.shapes), "no name twice")
        check("colours", isinstance(self.colours, tuple) and len(self.colours) > 0, "a tuple of (red, green, blue)")
        proper = all(
            isinstance(c, tuple) and len(c) == 3 and all(isinstance(v, int) and 0 <= v <= 255 for v in c)
            for c in self.colours
        )
        check("colours", proper, "tuples of three integers 0..255")
        check("colours", len(set(self.colours)) == len(self.colours), "no colour twice")
        if self.num_objects < 2:
            raise ValueError(
                "RoomsConfig.shapes: expected at least 2 objects (shapes x colours), since a choice needs a pair, got 1"
            )
        check("object_scale", 0.1 <= self.object_scale <= 8, "0.1 to 8")
        check("distance_scale", 0.3 <= self.distance_scale <= 4, "0.3 to 4 (the player is 30 u wide)")
        check("pickup_scale", self.pickup_scale > 0, "more than 0")
        apart = max(self.pickup_scale * 72 / 256, self.pickup_scale * 50 / 300) < self.distance_scale
        zones = f"pickup zones that touch neither each other nor the arrival at distance_scale={self.distance_scale}"
        check("pickup_scale", apart, zones)
        check("hover_height", self.hover_height >= 0, "0 or more")
        check("bob_height", self.bob_height >= 0, "0 or more")
        check("spin_seconds", self.spin_seconds > 0, "more than 0")
        check("glow_pulse", 0 <= self.glow_pulse <= 1, "0 to 1")
        check("eye_height", self.eye_height > 0, "more than 0")
        check("wall_height", self.wall_height > self.eye_height, f"more than eye_height={self.eye_height}")
        check("run_speed", 0 < self.run_speed <= 2000, "more than 0, up to 2000")
        check("look_pixels", 0 <= self.look_pixels <= 512, "0 to 512")
        check("throw_speed", 0 <= self.throw_speed <= 2000, "0 to 2000")
        check("throw_seconds", self.throw_seconds >= 0, "0 or more")

    @property
    def num_objects(self) -> int:
        """Number of different objects, shapes x colours; object k has shape k // C and colour k % C."""
        return len(self.shapes) * len(self.colours)

    @property
    def episode_steps(self) -> int:
        """Agent steps of an episode; the last one is shorter where action_repeat does not divide episode_frames."""
        return -(-self.episode_frames // self.action_repeat)


_FULL = RoomsConfig()
_SMALL = RoomsConfig(
    image_height=24,
    image_width=32,
    hud=False,
    shapes=("sphere",),
    colours=DISTINCT_COLOURS,
    object_scale=1.75,
    pickup_scale=1.1,
    hover_height=12.0,
    glow_pulse=0.0,
    distance_scale=0.35,
    wall_height=80.0,
    throw_seconds=0.0,
)
_SMALL_RECALL = dataclasses.replace(
    _SMALL,
    image_height=12,
    image_width=16,
    colours=(DISTINCT_COLOURS[0], DISTINCT_COLOURS[2]),
    redraw_match=True,
    fixed_sides=True,
    visit_frames=12,
    delay_frames=256,
    delay_halvings=5,
    episode_frames=1440,
    pickup_scale=1.2,
    run_speed=1000.0,
    throw_speed=2000.0,
    throw_seconds=0.08,
    reward_teleport=0.0,
    reward_wrong=0.0,
)

#: The named variants. "full" is the level; "small" is a task of the same structure that a CPU can learn in minutes:
#: everything nearer, objects that differ in colour alone, larger and more saturated, and no head-up display.
#: A number at the end is the memory that a level asks for, in steps (`envs.rooms.memory_spans`): "full-recall-N" shows
#: many examples before it asks for them. "small-recall" shows one of two objects, and after a delay of 2, 4, 8, 16, 32
#: or 64 steps the player is thrown between the choices, so that one step to the proper side is the answer.
VARIANTS: dict[str, RoomsConfig] = {
    "full": _FULL,
    "full-randomised": dataclasses.replace(_FULL, randomise=True),
    **{
        f"full-recall-{span}": dataclasses.replace(
            _FULL, redraw_match=True, examples=examples, visit_frames=80, episode_frames=2 * 80 * examples
        )
        for span, examples in ((112, 6), (192, 10), (292, 15), (532, 27))
    },
    "small": _SMALL,
    "small-recall": _SMALL_RECALL,
    **{
        f"small-recall-{span}": dataclasses.replace(_SMALL_RECALL, delay_frames=frames, delay_halvings=0)
        for span, frames in ((18, 64), (34, 128), (66, 256), (130, 512))
    },
}


def resolve(config: RoomsConfig | str) -> RoomsConfig:
    """A config, or the variant of that name. Raises ValueError listing the names if there is none."""
    if isinstance(config, RoomsConfig):
        return config
    if config not in VARIANTS:
        raise ValueError(f"no variant {config!r} of the rooms level; there are: {', '.join(VARIANTS)}")
    return VARIANTS[config]
