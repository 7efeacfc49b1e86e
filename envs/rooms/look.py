"""The look of an episode: the level's own, or drawn from the random bits `State.look` (`RoomsConfig.looks`).

Scalar functions. What varies is what a re-creation cannot get right or was not measured; the task is the same.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from envs.batched import GOLDEN, mixed

#: Colour of the display's disc as it was measured. It comes from one of the files that the measured build of Lab lacks.
DISC = (241.0, 255.0, 255.0)


class Look(NamedTuple):
    """What `drawn` chooses for an episode."""

    floor: int  # texture
    wall: int
    sky: int
    tone: int  # row of `Scene.tones`: brightness and gamma
    focal: float  # pixels
    glow: tuple[float, float, float]  # factors of an object's colour
    ambient: float  # of the light on an object, whose rest falls from the player
    metal: float  # factor of the metal's brightness
    wide: float  # factors of an object's width and height
    tall: float
    grown: float  # size of an object when it appears
    pad: float  # factors of a pad's height and brightness
    pad_glow: float
    hud: float  # strength of the display, 0 for none
    hud_shift: float  # towards the middle of the view, in 1/96 of its width
    disc: tuple[float, float, float]  # colour of the display's disc
    lamp: float  # share by which light that moves along the walls darkens them at most
    lamp_length: float  # u of a radian of its wave
    lamp_speed: float  # radians a frame


@register_jitable
def uniform(bits: np.uint64, k: int, low: float, high: float) -> float:
    """The kth random number of an episode's look, uniform in low..high. `level` uses k = 24, `drawn` others to 25."""
    return low + (high - low) * np.float64(mixed(bits + np.uint64(k) * GOLDEN) >> np.uint64(11)) * 2.0**-53


@register_jitable
def drawn(scene: Any, state: Any, i: int) -> Look:
    """The look of environment i's episode, from `render.Scene` and `level.State`, which are defined above this module.

    Objects lose up to a quarter of their brightness, and their colours change by a tenth: they remain
    distinct, but for one look in forty, in which a wall has nearly an object's colour or all is very dark.
    """
    bits, hud = state.look[i], 1.0 if scene.hud else 0.0
    if bits == 0:
        return Look(
            0, 0, 0, 0, scene.focal, (1.0, 1.0, 1.0), 0.86, 1.0, 1.0, 1.0, 0.46, 1.0, 1.0, hud, 0.0, DISC, 0.0, 1.0, 0.0
        )
    first, tones = 1.0 if scene.foreign else 0.0, scene.tones.shape[0] - 1e-9
    bright = uniform(bits, 3, 0.75, 1.1)
    red, green, blue = uniform(bits, 4, 0.9, 1.1), uniform(bits, 5, 0.9, 1.1), uniform(bits, 6, 0.9, 1.1)
    return Look(
        int(uniform(bits, 0, first, scene.floors.shape[0] - 1e-9)),
        int(uniform(bits, 1, first, scene.wall.shape[0] - 1e-9)),
        int(uniform(bits, 2, first, scene.sky.shape[0] - 1e-9)),
        int(uniform(bits, 11, 0.0, tones)),
        scene.focal * uniform(bits, 12, 0.965, 1.035),  # a field of view of 88 to 92 degrees
        (bright * red, bright * green, bright * blue),
        uniform(bits, 7, 0.5, 0.95),
        uniform(bits, 8, 0.5, 1.6),
        uniform(bits, 13, 0.85, 1.15),
        uniform(bits, 14, 0.85, 1.15),
        uniform(bits, 15, 0.3, 0.7),
        uniform(bits, 16, 0.3, 1.7),
        uniform(bits, 17, 0.5, 1.2),
        hud * uniform(bits, 9, 0.5, 1.2) if uniform(bits, 18, 0.0, 1.0) < 0.75 else 0.0,
        uniform(bits, 10, 0.0, 4.0),
        (uniform(bits, 19, 0.0, 255.0), uniform(bits, 20, 0.0, 255.0), uniform(bits, 21, 0.0, 255.0)),
        max(uniform(bits, 22, -0.3, 0.4), 0.0),
        uniform(bits, 23, 8.0, 80.0),
        uniform(bits, 25, -0.08, 0.08),
    )
