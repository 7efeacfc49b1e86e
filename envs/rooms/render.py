"""Views of an environment: one column of one view at a time, as scalar functions, and the constants they read.

Walls, floor and sky are cast by column, objects are sphere-traced inside their bounding cylinders. A pitched view is
sheared rather than rotated, which is exact at pitch 0, the only one the nine actions reach.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from envs.batched import GOLDEN, mixed
from envs.rooms import level, shapes, textures
from envs.rooms.config import RoomsConfig
from envs.rooms.physics import FRAMES_PER_SECOND
from envs.rooms.textures import COLON, CROSS, FONT, LEVELS, MINUS, SKY_COLUMNS, SKY_ROWS, SKY_SLOPE, TEXEL, TILE

#: Size in u of one unit of `shapes.distances` at object scale 1.
UNIT = 16.0
#: Distance from a surface, in a shape's units, that counts as on it.
NEAR = 0.02
BOB_SECONDS, PULSE_SECONDS = 1.257, 5.0
TRIM = (46.0, 48.0, 58.0)


class Scene(NamedTuple):
    """The constants of the view. Lengths in u, already scaled. The first of K textures are the level's own."""

    floors: NDArray[np.uint8]  # [K, 2, LEVELS, X, Y, 3] by room
    origins: NDArray[np.float64]  # [2, 2] x, y of each floor's first texel
    wall: NDArray[np.uint8]  # [K, 2, LEVELS, TILE, TILE, 3]
    sky: NDArray[np.uint8]  # [K, SKY_ROWS, SKY_COLUMNS, 3]
    walls: NDArray[np.float64]  # [2, 8, 4] by room; see level.WALLS
    wall_counts: NDArray[np.int64]  # [2]
    colours: NDArray[np.float64]  # [C, 3]
    kinds: NDArray[np.int64]  # [S] number of each shape
    bounds: NDArray[np.float64]  # [S, 2] radius and half height of its bounding cylinder, in units
    focal: float  # pixels
    unit: float  # u of one unit of a shape
    spin: float  # radians a frame
    hud: bool
    eye_height: float  # this and the rest as in `RoomsConfig`
    wall_height: float
    hover_height: float
    bob_height: float
    glow_pulse: float


class Look(NamedTuple):
    """The part of the view that `RoomsConfig.randomise` draws for each episode; see `look`."""

    floor: int  # texture
    wall: int
    sky: int
    glow: tuple[float, float, float]  # factors of an object's colour
    ambient: float  # of the light on an object, whose rest falls from the player
    trim: float  # factor of the trim's colour
    hud: bool
    hud_shift: int  # pixels towards the middle of the view


@functools.lru_cache(maxsize=4)
def _paint(scale: float, randomise: bool) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Floors, walls and skies of a scene; cached, since random ones take a second or two."""
    seeds = (None, *range(textures.RANDOM)) if randomise else (None,)
    painted = [[textures.floor(room, scale, seed) for room in range(2)] for seed in seeds]
    floors = np.zeros((len(seeds), 2, *np.max([f.shape for f in painted[0]], axis=0)), np.uint8)
    for k, rooms in enumerate(painted):
        for room, floor in enumerate(rooms):
            floors[k, room, :, : floor.shape[1], : floor.shape[2]] = floor
    return floors, np.stack([textures.wall(seed) for seed in seeds]), np.stack([textures.sky(seed) for seed in seeds])


def build(config: RoomsConfig) -> Scene:
    """The scene a config describes."""
    scale = config.distance_scale
    floors, wall, sky = _paint(scale, config.randomise)
    walls = np.zeros((2, 8, 4))
    for room in range(2):
        walls[room, : len(level.WALLS[room])] = np.array(level.WALLS[room]) * (1, scale, scale, scale)
    kinds = [shapes.SHAPES[name] for name in config.shapes]
    return Scene(
        floors=floors,
        origins=np.array(level.BOUNDS, float)[:, :2] * scale,
        wall=wall,
        sky=sky,
        walls=walls,
        wall_counts=np.array([len(w) for w in level.WALLS]),
        colours=np.array(config.colours, float),
        kinds=np.array([k[0] for k in kinds]),
        bounds=np.array([k[1:] for k in kinds], float),
        focal=config.image_width / 2 / math.tan(math.radians(config.fov_degrees) / 2),
        unit=UNIT * config.object_scale,
        spin=2 * math.pi / (config.spin_seconds * FRAMES_PER_SECOND),
        hud=config.hud,
        **{name: float(getattr(config, name)) for name in Scene._fields[-5:]},
    )


@register_jitable
def _uniform(bits, k, low, high):
    """The kth random number of an episode's look, uniform in low..high."""
    return low + (high - low) * np.float64(mixed(bits + np.uint64(k) * GOLDEN) >> np.uint64(11)) * 2.0**-53


@register_jitable
def look(scene, state, i):
    """The look of environment i's episode: the level's own, or drawn from the bits `State.look`.

    Objects lose up to a quarter of their brightness, and their colours change by a tenth: they remain distinct.
    """
    bits = state.look[i]
    if bits == 0:
        return Look(0, 0, 0, (1.0, 1.0, 1.0), 0.62, 1.0, scene.hud, 0)
    last = scene.wall.shape[0] - 1e-9
    bright = _uniform(bits, 3, 0.75, 1.1)
    red, green, blue = _uniform(bits, 4, 0.9, 1.1), _uniform(bits, 5, 0.9, 1.1), _uniform(bits, 6, 0.9, 1.1)
    return Look(
        int(_uniform(bits, 0, 0.0, last)),
        int(_uniform(bits, 1, 0.0, last)),
        int(_uniform(bits, 2, 0.0, last)),
        (bright * red, bright * green, bright * blue),
        _uniform(bits, 7, 0.4, 0.9),
        _uniform(bits, 8, 0.4, 2.0),
        scene.hud and _uniform(bits, 9, 0.0, 1.0) < 0.75,
        int(_uniform(bits, 10, 0.0, 4.0)),
    )


@register_jitable
def trace(kind, x, y, z, dx, dy, dz, t0, t1):
    """Follows the ray (x, y, z) + t (dx, dy, dz), t in t0..t1, to a shape, all in the shape's units.

    Returns (hit, glow, light): whether it meets the shape, whether at its glowing body rather than its trim, and the
    cosine 0..1 between the surface's normal and the ray's reverse, the rate at which the distance falls.
    """
    inverse = 1.0 / math.sqrt(dx * dx + dy * dy + dz * dz)
    t = t0
    for _ in range(40):
        glow, trim = shapes.distances(kind, x + t * dx, y + t * dy, z + t * dz)
        near = min(glow, trim)
        if near < NEAR:
            back = t - 0.02 * inverse
            glow_back, trim_back = shapes.distances(kind, x + back * dx, y + back * dy, z + back * dz)
            return True, glow <= trim, min(max((min(glow_back, trim_back) - near) * 50.0, 0.0), 1.0)
        t += near * inverse
        if t > t1:
            break
    return False, False, 0.0


@register_jitable
def draw_object(scene, style, item, spot, frame, x, y, dx, dy, wall_depth, horizon, column, image):
    """Draws into one column the object numbered `item` at plan position spot [2], seen from (x, y) along (dx, dy)."""
    num_colours = scene.colours.shape[0]
    shape, colour = item // num_colours, item % num_colours
    radius, half = scene.bounds[shape, 0] * scene.unit, scene.bounds[shape, 1] * scene.unit
    # Where the column's vertical plane cuts the bounding cylinder, in depths t along (dx, dy).
    rx, ry = spot[0] - x, spot[1] - y
    length = dx * dx + dy * dy
    middle = (rx * dx + ry * dy) / length
    inside = radius * radius / length - ((rx * rx + ry * ry) / length - middle * middle)
    if inside <= 0.0:
        return
    reach = math.sqrt(inside)
    t0, t1 = middle - reach, middle + reach
    if t0 < 1.0 or t0 > wall_depth:
        return
    seconds = frame / FRAMES_PER_SECOND
    centre = (
        scene.hover_height
        + half
        + scene.bob_height * math.sin(2.0 * math.pi * seconds / BOB_SECONDS)
        - scene.eye_height
    )
    top, bottom = centre + half, centre - half
    slope_max, slope_min = max(top / t0, top / t1), min(bottom / t0, bottom / t1)
    first = max(math.floor(horizon - slope_max * scene.focal), 0)
    last = min(math.ceil(horizon - slope_min * scene.focal), image.shape[0])
    # The ray in the object's own frame, which spins.
    cos, sin = math.cos(scene.spin * frame), math.sin(scene.spin * frame)
    inverse = 1.0 / scene.unit
    lx, ly, lz = -(cos * rx + sin * ry) * inverse, -(cos * ry - sin * rx) * inverse, -centre * inverse
    ldx, ldy = (cos * dx + sin * dy) * inverse, (cos * dy - sin * dx) * inverse
    kind = scene.kinds[shape]
    pulse = 1.0 - 0.5 * scene.glow_pulse * (1.0 - math.cos(2.0 * math.pi * seconds / PULSE_SECONDS))
    for row in range(first, last):
        ldz = (horizon - row - 0.5) / scene.focal * inverse
        hit, glow, light = trace(kind, lx, ly, lz, ldx, ldy, ldz, t0, t1)
        if not hit:
            continue
        for c in range(3):
            if glow:
                shade = style.ambient + (1.0 - style.ambient) * light
                value = scene.colours[colour, c] * pulse * shade * style.glow[c]
            else:
                value = TRIM[c] * (0.4 + light) * style.trim
            image[row, column, c] = np.uint8(min(value, 255.0))


@register_jitable
def direction(scene, state, i, height):
    """Of environment i's view: cosine and sine of the yaw, and the row of the horizon."""
    yaw, pitch = math.radians(state.yaw[i]), math.radians(state.pitch[i])
    return math.cos(yaw), math.sin(yaw), 0.5 * height - math.tan(pitch) * scene.focal


@register_jitable
def draw_column(scene, plan, state, i, style, view, column, image):
    """Draws one column of environment i's view into image [H, W, 3] uint8, without the head-up display."""
    height, width = image.shape[0], image.shape[1]
    if state.room[i] == level.DARK:
        image[:, column] = 0
        return
    if state.room[i] == level.GREY:
        image[:, column] = 56
        return
    x, y = state.x[i], state.y[i]
    room = 0 if state.room[i] == level.ROOM_1 else 1
    cos, sin, horizon = view
    across = (column + 0.5 - 0.5 * width) / scene.focal
    dx, dy = cos + across * sin, sin - across * cos

    depth, along, fixed_y = 1e9, 0.0, 0
    for k in range(scene.wall_counts[room]):
        axis = scene.walls[room, k, 0]
        if axis == 0.0:
            rate, gap, start, slope = dx, scene.walls[room, k, 1] - x, y, dy
        else:
            rate, gap, start, slope = dy, scene.walls[room, k, 1] - y, x, dx
        if rate == 0.0:
            continue
        t = gap / rate
        if 0.0 < t < depth:
            met = start + t * slope
            if scene.walls[room, k, 2] - 1e-6 <= met <= scene.walls[room, k, 3] + 1e-6:
                depth, along, fixed_y = t, met, int(axis)

    pixels = scene.focal / depth  # of one u at the wall
    top = min(max(math.ceil(horizon - (scene.wall_height - scene.eye_height) * pixels - 0.5), 0), height)
    foot = min(max(math.ceil(horizon + scene.eye_height * pixels - 0.5), top), height)

    sky_column = int((math.atan2(dy, dx) / (2.0 * math.pi) + 0.5) * SKY_COLUMNS) & (SKY_COLUMNS - 1)
    rise = SKY_ROWS / SKY_SLOPE / (scene.focal * math.sqrt(dx * dx + dy * dy))
    for row in range(top):
        r = min(max(int((horizon - row - 0.5) * rise), 0), SKY_ROWS - 1)
        for c in range(3):
            image[row, column, c] = scene.sky[style.sky, r, sky_column, c]

    blur = _blur(1.0 / pixels)
    tile_column = math.floor(along / TEXEL) & (TILE - 1)
    step = 1.0 / (pixels * TEXEL)
    tile_row = (top + 0.5 - horizon) * step + (scene.wall_height - scene.eye_height) / TEXEL
    for row in range(top, foot):
        r = int(tile_row) & (TILE - 1)
        tile_row += step
        for c in range(3):
            image[row, column, c] = scene.wall[style.wall, fixed_y, blur, tile_column, r, c]

    x0, y0 = (x - scene.origins[room, 0]) / TEXEL, (y - scene.origins[room, 1]) / TEXEL
    last_x, last_y = scene.floors.shape[3] - 1, scene.floors.shape[4] - 1
    for row in range(foot, height):
        t = scene.eye_height * scene.focal / (row + 0.5 - horizon)
        u = min(max(int(x0 + t * dx / TEXEL), 0), last_x)
        v = min(max(int(y0 + t * dy / TEXEL), 0), last_y)
        blur = _blur(1.5 * t / scene.focal)
        for c in range(3):
            image[row, column, c] = scene.floors[style.floor, room, blur, u, v, c]

    if room == 0:
        item, spot = state.match[i], plan.examples[state.example_side[i]]
        draw_object(scene, style, item, spot, state.frame[i], x, y, dx, dy, depth, horizon, column, image)
        return
    first = 0 if y <= plan.arrival[1] else 1  # the farther one, which the nearer may hide
    for side in (first, 1 - first):
        if side != state.taken[i]:
            item, spot = state.match[i] if side == state.match_side[i] else state.other[i], plan.choices[side]
            draw_object(scene, style, item, spot, state.frame[i], x, y, dx, dy, depth, horizon, column, image)


@register_jitable
def _blur(u_per_pixel):
    """The degree of blur for a texture of which one pixel covers this many u."""
    texels = u_per_pixel / TEXEL
    blur = 0
    while blur < LEVELS - 1 and texels > 1.5:
        texels *= 0.5
        blur += 1
    return blur


@register_jitable
def _glyph(image, number, row, column, colour):
    """Draws one glyph of the font with its top left corner at (row, column)."""
    for r in range(5):
        for c in range(3):
            if FONT[number, r, c]:
                for channel in range(3):
                    image[row + r, column + c, channel] = colour[channel]


@register_jitable
def _number(image, value, row, right, colour):
    """Draws an integer that ends before column `right`."""
    rest = abs(value)
    while True:
        right -= 4
        _glyph(image, rest % 10, row, right, colour)
        rest //= 10
        if rest == 0:
            break
    if value < 0:
        _glyph(image, MINUS, row, right - 4, colour)


@register_jitable
def draw_hud(plan, state, i, shift, image):
    """Draws health and armour (bottom left), the time left (top right) and the score (bottom right).

    All of it is moved by `shift` pixels towards the middle of the view.
    """
    white, yellow = (255, 255, 255), (255, 220, 90)
    left, right, top, bottom = shift, image.shape[1] - shift, 2 + shift, image.shape[0] - 7 - shift
    _glyph(image, CROSS, bottom, left + 2, (255, 60, 60))
    _number(image, 100, bottom, left + 18, yellow)
    _glyph(image, CROSS, bottom, left + 22, (90, 160, 255))
    _number(image, 0, bottom, left + 30, yellow)
    _number(image, round(state.score[i]), bottom, right - 1, white)
    minutes, seconds = divmod(-((state.frame[i] - plan.episode_frames) // FRAMES_PER_SECOND), 60)
    _glyph(image, seconds % 10, top, right - 5, white)
    _glyph(image, seconds // 10, top, right - 9, white)
    _glyph(image, COLON, top, right - 13, white)
    _number(image, minutes, top, right - 13, white)
