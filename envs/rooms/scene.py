"""The scene of a view: the constants of a `RoomsConfig` that drawing reads, and the textures of its looks."""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.rooms import level, shapes, textures
from envs.rooms.config import RoomsConfig
from envs.rooms.physics import FRAME_SECONDS

UNIT = 16.0
"""Size in u of one unit of `shapes.distances` at object scale 1."""
PADS = ((24.5, 8.0), (23.5, 9.0))
"""Pads: half width of the octagon and height, of those under the objects and of the teleporter; measured."""


class Scene(NamedTuple):
    """The constants of the view. Lengths in u, already scaled. The first of K textures are the level's own."""

    floors: NDArray[np.uint8]  # [K, 2, LEVELS, X, Y, 3] by room
    origins: NDArray[np.float64]  # [2, 2] x, y of each floor's first texel
    wall: NDArray[np.uint8]  # [K, LEVELS, TILE, TILE_ROWS, 3]
    sky: NDArray[np.uint8]  # [K, 2, SKY_ROWS, SKY_COLUMNS, 3] by room
    tones: NDArray[np.uint8]  # [T, 256] values shown for values drawn; the first are the same
    walls: NDArray[np.float64]  # [2, 8, 6] by room; see level.WALLS; then where both ends are dark corners
    wall_counts: NDArray[np.int64]  # [2]
    pads: NDArray[np.float64]  # [2, 3, 5] by room: x, y, half width (0 for none), height, number of its colors
    colors: NDArray[np.float64]  # [S, C, 3] of the bodies
    kinds: NDArray[np.int64]  # [S] number of each shape
    bounds: NDArray[np.float64]  # [S, 4] as in `shapes.SHAPES`: radius, half height, brightness of the metal, ball
    focal: float  # pixels
    unit: float  # u of one unit of a shape
    spin: float  # radians a frame
    scale: float  # `RoomsConfig.distance_scale`
    hud: bool
    foreign: bool  # whether random looks leave out the level's own textures
    eye_height: float  # this and the rest as in `RoomsConfig`
    wall_height: float
    hover_height: float
    bob_height: float
    glow_pulse: float


_OF_CONFIG = Scene._fields[Scene._fields.index("eye_height") :]


@functools.lru_cache(maxsize=4)
def _paint(scale: float, looks: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Floors, walls and skies of a scene, first the level's own; cached, since random ones take some seconds."""
    group = None if looks == "own" else looks
    counts = textures.TEXTURE_COUNTS[looks]

    def seeds(count: int) -> list[int | None]:
        """None for the level's own texture, then the seeds of random ones."""
        return [None, *range(count)]

    # One array holds the floors of both rooms, which differ in size.
    painted = []
    for seed in seeds(counts.floors):
        painted.append([textures.floor(room, scale, seed, group) for room in range(2)])
    largest = np.max([floor.shape for floor in painted[0]], axis=0)
    floors = np.zeros((len(painted), 2, *largest), np.uint8)
    for k, rooms in enumerate(painted):
        for room, floor in enumerate(rooms):
            _, length, width, _ = floor.shape
            floors[k, room, :, :length, :width] = floor

    walls = []
    for seed in seeds(counts.walls):
        walls.append(textures.wall(seed, group))

    skies = []
    for seed in seeds(counts.skies):
        skies.append([textures.sky(room, seed, group) for room in range(2)])
    return floors, np.stack(walls), np.stack(skies)


def _tones(random: bool) -> NDArray[np.uint8]:
    """[T, 256]: the identity and, for random looks, sixteen pairs of gamma and brightness, the brightest first."""
    pairs = [(1.0, 1.0)]
    if random:
        pairs += itertools.product((0.8, 0.93, 1.07, 1.25), (1.1, 1.0, 0.9, 0.8))
    values = np.arange(256) / 255.0
    tones = []
    for gamma, top in pairs:
        tones.append(255.0 * np.minimum(top * values**gamma, 1.0))
    return np.round(tones).astype(np.uint8)


def _dark_ends(room: int, axis: int, at: float, low: float, high: float) -> tuple[bool, bool]:
    """Whether a wall meets another in a corner of the room at its low and its high end: not at the alcove's mouth."""
    if room == 0:
        return True, True
    mouth = ((384, -128), (384, 0))
    low_end = (at, low) if axis == 0 else (low, at)
    high_end = (at, high) if axis == 0 else (high, at)
    return low_end not in mouth, high_end not in mouth


def build_scene(config: RoomsConfig) -> Scene:
    """The scene a config describes."""
    scale = config.distance_scale
    floors, wall, sky = _paint(scale, config.looks)

    walls = np.zeros((2, 8, 6))
    for room in range(2):
        for k, (axis, at, low, high) in enumerate(level.WALLS[room]):
            low_is_dark, high_is_dark = _dark_ends(room, axis, at, low, high)
            walls[room, k] = axis, scale * at, scale * low, scale * high, low_is_dark, high_is_dark

    # The pads under the objects, then the teleporter's.
    pads = np.zeros((2, 3, 5))
    half_width, height = PADS[0]
    for room, spots in enumerate((level.EXAMPLES, level.CHOICES)):
        for side, (x, y) in enumerate(spots):
            pads[room, side] = scale * x, scale * y, half_width, height, 0
    half_width, height = PADS[1]
    x0, y0, x1, y1 = (scale * edge for edge in level.PAD)
    pads[0, 2] = (x0 + x1) / 2, (y0 + y1) / 2, half_width * scale, height, 1

    # Bodies are darker than the colors, or mixed with white.
    glow = np.array(config.colors, float)
    kinds = [shapes.SHAPES[name] for name in config.shapes]
    colors = []
    for kind in kinds:
        own = glow * min(kind.body, 1.0)
        white = (300.0 - glow) * max(kind.body - 1.0, 0.0)
        colors.append(own + white)

    half_view = config.view_shape[1] / 2
    return Scene(
        floors=floors,
        origins=np.array(level.BOUNDS, float)[:, :2] * scale,
        wall=wall,
        sky=sky,
        tones=_tones(config.looks != "own"),
        walls=walls,
        wall_counts=np.array([len(walls_of_room) for walls_of_room in level.WALLS]),
        pads=pads,
        colors=np.stack(colors),
        kinds=np.array([kind.number for kind in kinds]),
        bounds=np.array([(kind.radius, kind.half_height, kind.metal, kind.ball) for kind in kinds], float),
        focal=half_view / math.tan(math.radians(config.fov_degrees) / 2),
        unit=UNIT * config.object_scale,
        spin=2 * math.pi / config.spin_seconds * FRAME_SECONDS,
        scale=float(scale),
        hud=config.hud,
        foreign=config.looks not in ("own", "train"),
        **{name: float(getattr(config, name)) for name in _OF_CONFIG},
    )
