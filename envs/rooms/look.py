"""The look of an episode: the level's own, or drawn from the random bits `State.look` (`RoomsConfig.looks`).

Scalar functions. What varies is what a re-creation cannot get right or was not measured; the task is the same.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from envs.batched import GOLDEN, mixed

DISC = (241.0, 255.0, 255.0)
"""Color of the display's disc as it was measured. It comes from one of the files that the measured build of Lab
lacks."""


(
    FLOOR,
    WALL,
    SKY,
    BRIGHT,
    RED,
    GREEN,
    BLUE,
    AMBIENT,
    METAL,
    HUD,
    HUD_SHIFT,
    TONE,
    FOCAL,
    WIDE,
    TALL,
    GROWN,
    PAD,
    PAD_GLOW,
    HAS_HUD,
    DISC_RED,
    DISC_GREEN,
    DISC_BLUE,
    LAMP,
    LAMP_LENGTH,
    PACE,
    LAMP_SPEED,
) = range(26)
"""Which random number of a look is for what. They are numbered in the order in which they came: with another number all
looks would be others. `level` takes PACE, `drawn` the rest."""


class Look(NamedTuple):
    """What `drawn` chooses for an episode."""

    floor: int  # texture
    wall: int
    sky: int
    tone: int  # row of `Scene.tones`: brightness and gamma
    focal: float  # pixels
    glow: tuple[float, float, float]  # factors of an object's color
    ambient: float  # of the light on an object, whose rest falls from the player
    metal: float  # factor of the metal's brightness
    wide: float  # factors of an object's width and height
    tall: float
    grown: float  # size of an object when it appears
    pad: float  # factors of a pad's height and brightness
    pad_glow: float
    hud: float  # strength of the display, 0 for none
    hud_shift: float  # towards the middle of the view, in 1/96 of its width
    disc: tuple[float, float, float]  # color of the display's disc
    lamp: float  # share by which light that moves along the walls darkens them at most
    lamp_length: float  # u of a radian of its wave
    lamp_speed: float  # radians a frame


@register_jitable
def uniform(bits: np.uint64, k: int, low: float, high: float) -> float:
    """The kth random number of an episode's look, uniform in low..high."""
    random = mixed(bits + np.uint64(k) * GOLDEN) >> np.uint64(11)  # 53 bits, as many as a float64 keeps
    return low + (high - low) * np.float64(random) * 2.0**-53


@register_jitable
def drawn(scene: Any, state: Any, i: int) -> Look:
    """The look of environment i's episode, from `scene.Scene` and `level.State`, which are defined above this module.

    Objects lose up to a quarter of their brightness, and their colors change by a tenth: they remain
    distinct, but for one look in forty, in which a wall has nearly an object's color or all is very dark.
    """
    bits = state.look[i]
    hud = 1.0 if scene.hud else 0.0
    if bits == 0:
        return Look(
            floor=0,
            wall=0,
            sky=0,
            tone=0,
            focal=scene.focal,
            glow=(1.0, 1.0, 1.0),
            ambient=0.86,
            metal=1.0,
            wide=1.0,
            tall=1.0,
            grown=0.46,
            pad=1.0,
            pad_glow=1.0,
            hud=hud,
            hud_shift=0.0,
            disc=DISC,
            lamp=0.0,
            lamp_length=1.0,
            lamp_speed=0.0,
        )

    # Numbers of textures are rounded down, and those of the level's own may be left out.
    first = 1.0 if scene.foreign else 0.0
    floors = scene.floors.shape[0] - 1e-9
    walls = scene.wall.shape[0] - 1e-9
    skies = scene.sky.shape[0] - 1e-9
    tones = scene.tones.shape[0] - 1e-9

    bright = uniform(bits, BRIGHT, 0.75, 1.1)
    red = bright * uniform(bits, RED, 0.9, 1.1)
    green = bright * uniform(bits, GREEN, 0.9, 1.1)
    blue = bright * uniform(bits, BLUE, 0.9, 1.1)

    # A fourth of the looks has no display.
    hud *= uniform(bits, HUD, 0.5, 1.2)
    if uniform(bits, HAS_HUD, 0.0, 1.0) >= 0.75:
        hud = 0.0
    return Look(
        floor=int(uniform(bits, FLOOR, first, floors)),
        wall=int(uniform(bits, WALL, first, walls)),
        sky=int(uniform(bits, SKY, first, skies)),
        tone=int(uniform(bits, TONE, 0.0, tones)),
        focal=scene.focal * uniform(bits, FOCAL, 0.965, 1.035),  # a field of view of 88 to 92 degrees
        glow=(red, green, blue),
        ambient=uniform(bits, AMBIENT, 0.5, 0.95),
        metal=uniform(bits, METAL, 0.5, 1.6),
        wide=uniform(bits, WIDE, 0.85, 1.15),
        tall=uniform(bits, TALL, 0.85, 1.15),
        grown=uniform(bits, GROWN, 0.3, 0.7),
        pad=uniform(bits, PAD, 0.3, 1.7),
        pad_glow=uniform(bits, PAD_GLOW, 0.5, 1.2),
        hud=hud,
        hud_shift=uniform(bits, HUD_SHIFT, 0.0, 4.0),
        disc=(
            uniform(bits, DISC_RED, 0.0, 255.0),
            uniform(bits, DISC_GREEN, 0.0, 255.0),
            uniform(bits, DISC_BLUE, 0.0, 255.0),
        ),
        lamp=max(uniform(bits, LAMP, -0.3, 0.4), 0.0),
        lamp_length=uniform(bits, LAMP_LENGTH, 8.0, 80.0),
        lamp_speed=uniform(bits, LAMP_SPEED, -0.08, 0.08),
    )
