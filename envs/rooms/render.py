"""Views of an environment: drawn column by column, as scalar functions, and the constants they read.

Walls, floor, sky and pads are cast by column, objects are sphere-traced inside their bounding cylinders. A pitched view
is sheared rather than rotated, which is exact at pitch 0, the only one the nine actions reach.
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from envs.rooms import level, shapes, textures
from envs.rooms.config import RoomsConfig
from envs.rooms.look import Look
from envs.rooms.physics import FRAME_SECONDS
from envs.rooms.textures import (
    SKY_CENTRE,
    SKY_COLUMNS,
    SKY_HEIGHT,
    SKY_RADIUS,
    SKY_ROWS,
    TEXEL,
    TILE,
    TILE_ROWS,
    WALL_TEXEL,
)

UNIT = 16.0
"""Size in u of one unit of `shapes.distances` at object scale 1."""
BOB_SECONDS = 1.257
PULSE_SECONDS = 5.0
"""Periods of an object's bobbing and of its pulse."""
GROWTH_FRAMES = 34.0
"""Frames in which an object grows to its full size."""
PADS = ((24.5, 8.0), (23.5, 9.0))
"""Pads: half width of the octagon and height, of those under the objects and of the teleporter; measured."""
PAD_GLOW = ((34.0, 176.0, 180.0), (134.0, 50.0, 214.0))
PAD_SIDE = 88.0
PAD_TOP = 250.0
"""Shades of gray of a pad's side and top, where they do not glow."""
STRIPS = ((1.0, 0.0), (0.0, 1.0), (math.sqrt(0.5), math.sqrt(0.5)), (math.sqrt(0.5), -math.sqrt(0.5)))
"""Directions across the four strips of which an octagon is the intersection."""
PAD_FADE = (1.2, 4.5)
"""u per pixel from which a pad fades to its mean colour, and at which it shows that alone."""
PAD_MEAN = ((76.0, 124.0, 128.0), (122.0, 62.0, 165.0))
CORNER = 100.0
CORNER_LIGHT = 0.62
"""Walls darken over this many u towards their corners, to this share of their brightness."""
RING_RADIUS = 23.0
RING_FRAMES = 28
"""The two rings around the start: their radius in u, and the frames in which they fade."""
RINGS = ((42.3, 40.5, 4.0, (85.0, 125.0, 110.0)), (62.0, 98.0, 28.0, (100.0, 100.0, 100.0)))
"""For each ring: the heights in u from which and to which it moves, the frames that takes, and what it adds to
colours."""


class Scene(NamedTuple):
    """The constants of the view. Lengths in u, already scaled. The first of K textures are the level's own."""

    floors: NDArray[np.uint8]  # [K, 2, LEVELS, X, Y, 3] by room
    origins: NDArray[np.float64]  # [2, 2] x, y of each floor's first texel
    wall: NDArray[np.uint8]  # [K, LEVELS, TILE, TILE_ROWS, 3]
    sky: NDArray[np.uint8]  # [K, 2, SKY_ROWS, SKY_COLUMNS, 3] by room
    tones: NDArray[np.uint8]  # [T, 256] values shown for values drawn; the first are the same
    walls: NDArray[np.float64]  # [2, 8, 6] by room; see level.WALLS; then where both ends are dark corners
    wall_counts: NDArray[np.int64]  # [2]
    pads: NDArray[np.float64]  # [2, 3, 5] by room: x, y, half width (0 for none), height, number of its colours
    colours: NDArray[np.float64]  # [S, C, 3] of the bodies
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


def build(config: RoomsConfig) -> Scene:
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

    # Bodies are darker than the colours, or mixed with white.
    glow = np.array(config.colours, float)
    kinds = [shapes.SHAPES[name] for name in config.shapes]
    colours = []
    for kind in kinds:
        own = glow * min(kind.body, 1.0)
        white = (300.0 - glow) * max(kind.body - 1.0, 0.0)
        colours.append(own + white)

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
        colours=np.stack(colours),
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


@register_jitable
def _row(height: float, first: int, last: int) -> int:
    """The first row in first..last whose centre is not above a height measured in rows."""
    row = -int((0.5 - height) // 1.0)  # height - 0.5, rounded up
    return min(max(row, first), last)


@register_jitable(forceinline=True)
def _put(image: NDArray[np.uint8], row: int, column: int, channel: int, value: float) -> None:
    """Writes a value of 0 or more, at most 255 of it, into a channel of a pixel."""
    image[row, column, channel] = np.uint8(min(value, 255.0))


class Body(NamedTuple):
    """An object of a view. Its own frame spins and is measured in units of the shape."""

    shown: bool
    kind: int  # number of the shape
    ball: float  # radius of the ball around it, in units of the shape
    rx: float  # plan position relative to the player's, in u
    ry: float
    centre: float  # height above the eye, in u
    radius: float  # of the bounding cylinder, in u
    half: float
    eye: tuple[float, float, float]  # the player's eye in the object's frame
    cos: float  # of its spin
    sin: float
    inverse: float  # units of the shape in a u across
    tall: float  # u of a unit upward
    pulse: float
    glow: tuple[float, float, float]  # colour of the body
    metal: float  # brightness


@register_jitable
def body(
    scene: Scene, style: Look, state: level.State, i: int, item: int, spot: NDArray[np.float64], eye: float, shown: bool
) -> Body:
    """The object numbered `item` at plan position spot [2], as environment i's player sees it."""
    num_colours = scene.colours.shape[1]
    shape = item // num_colours
    colour = scene.colours[shape, item % num_colours]
    age = state.frame[i] - state.shown[i]
    seconds = state.frame[i] * FRAME_SECONDS

    # It grows after it has appeared.
    size = scene.unit * min(1.0, style.grown + (1.0 - style.grown) * age / GROWTH_FRAMES)
    wide = size * style.wide
    tall = size * style.tall
    half = scene.bounds[shape, 1] * tall

    # It bobs and spins.
    rx = spot[0] - state.x[i]
    ry = spot[1] - state.y[i]
    bob = scene.bob_height * math.cos(2.0 * math.pi * seconds / BOB_SECONDS)
    centre = scene.hover_height + half - bob - eye
    cos = math.cos(scene.spin * state.frame[i])
    sin = math.sin(scene.spin * state.frame[i])
    inverse = 1.0 / wide

    wave = 1.0 - math.cos(2.0 * math.pi * seconds / PULSE_SECONDS)
    return Body(
        shown=shown,
        kind=scene.kinds[shape],
        ball=scene.bounds[shape, 3],
        rx=rx,
        ry=ry,
        centre=centre,
        radius=scene.bounds[shape, 0] * wide,
        half=half,
        eye=(-(cos * rx + sin * ry) * inverse, -(cos * ry - sin * rx) * inverse, -centre / tall),
        cos=cos,
        sin=sin,
        inverse=inverse,
        tall=tall,
        pulse=1.0 - 0.5 * scene.glow_pulse * wave,
        glow=(colour[0] * style.glow[0], colour[1] * style.glow[1], colour[2] * style.glow[2]),
        metal=scene.bounds[shape, 2],
    )


@register_jitable
def draw_object(
    body: Body,
    style: Look,
    dx: float,
    dy: float,
    wall_depth: float,
    horizon: float,
    column: int,
    image: NDArray[np.uint8],
) -> None:
    """Draws into one column an object seen along (dx, dy)."""
    # Where the column's vertical plane cuts the bounding cylinder, in depths t along (dx, dy). It passes the axis at
    # the depth `middle`, and the square of its distance there is `aside`, in squares of the length of (dx, dy).
    rx = body.rx
    ry = body.ry
    length = dx * dx + dy * dy  # squared
    middle = (rx * dx + ry * dy) / length
    aside = (rx * rx + ry * ry) / length - middle * middle
    inside = body.radius * body.radius / length - aside
    if inside <= 0.0:
        return
    reach = math.sqrt(inside)
    t0 = middle - reach
    t1 = middle + reach
    if t0 < 1.0 or t0 > wall_depth:
        return

    # The rows that the cylinder covers.
    top = body.centre + body.half
    bottom = body.centre - body.half
    slope_max = max(top / t0, top / t1)
    slope_min = min(bottom / t0, bottom / t1)
    first = _row(horizon - slope_max * style.focal - 0.5, 0, image.shape[0])
    last = _row(horizon - slope_min * style.focal + 0.5, 0, image.shape[0])

    # The ray of each pixel in the object's own frame, from the point (lx, ly, lz) along (ldx, ldy, ldz).
    lx, ly, lz = body.eye
    ldx = (body.cos * dx + body.sin * dy) * body.inverse
    ldy = (body.cos * dy - body.sin * dx) * body.inverse
    for row in range(first, last):
        ldz = (horizon - row - 0.5) / (style.focal * body.tall)
        hit, glow, light = shapes.trace(body.kind, body.ball, lx, ly, lz, ldx, ldy, ldz, t0, t1)
        if not hit:
            continue
        for c in range(3):
            if glow:
                lit = style.ambient + (1.0 - style.ambient) * light
                value = body.glow[c] * (body.pulse * lit)
            else:
                value = body.metal * (0.6 + 0.4 * light) * style.metal
            _put(image, row, column, c, value)


@register_jitable
def draw_pad(
    pad: NDArray[np.float64],
    tall: float,
    bright: float,
    focal: float,
    ox: float,
    oy: float,
    eye: float,
    dx: float,
    dy: float,
    wall_depth: float,
    horizon: float,
    column: int,
    image: NDArray[np.uint8],
) -> None:
    """Draws into one column a raised octagon, a row of `Scene.pads`, seen along (dx, dy) from (ox, oy) beside it."""
    half = pad[2]
    kind = int(pad[4])

    # Depths at which the ray enters and leaves the octagon, the intersection of four strips.
    t0 = -1e9
    t1 = wall_depth
    for k in range(len(STRIPS)):
        nx, ny = STRIPS[k]
        rate = nx * dx + ny * dy
        off = nx * ox + ny * oy
        if abs(rate) < 1e-9:  # the ray is parallel to the strip
            if abs(off) > half:
                return
            continue
        a = (-half - off) / rate
        b = (half - off) / rate
        t0 = max(t0, min(a, b))
        t1 = min(t1, max(a, b))
    if t1 <= max(t0, 0.5):
        return
    front = max(t0, 0.5)

    # Rows of the top, from `first` to `edge`, and of the side, from there to `last`. From above there is no side.
    height = image.shape[0]
    drop = (eye - tall) * focal
    first = _row(horizon + drop / t1, 0, height)
    edge = _row(horizon + drop / front, 0, height)
    last = edge
    if t0 > 0.5:
        last = _row(horizon + eye * focal / front, 0, height)

    # In the distance it fades to its mean colour.
    u_per_pixel = front / focal
    fade = min(max((u_per_pixel - PAD_FADE[0]) / (PAD_FADE[1] - PAD_FADE[0]), 0.0), 1.0)
    strength = bright * (1.0 - fade)
    strength_of_mean = bright * fade

    belt = (eye - 0.45 * tall) * focal / front  # rows below the horizon
    for row in range(first, last):
        share = 0.0  # of the glow's colour; the rest is that of the top or of the dark side
        base = PAD_TOP
        if row < edge:  # it glows towards the edge
            t = drop / (row + 0.5 - horizon)
            px = ox + t * dx
            py = oy + t * dy
            share = min(max(1.5 * (px * px + py * py) / (half * half) - 0.3, 0.0), 1.0)
        else:  # it glows in the lower part of the side
            base = PAD_SIDE
            if row + 0.5 - horizon > belt:
                share = 1.0
        for c in range(3):
            shade = base + share * (PAD_GLOW[kind][c] - base)
            _put(image, row, column, c, strength * shade + strength_of_mean * PAD_MEAN[kind][c])


@register_jitable
def draw_rings(
    scene: Scene,
    style: Look,
    plan: level.Level,
    state: level.State,
    i: int,
    eye: float,
    dx: float,
    dy: float,
    horizon: float,
    column: int,
    image: NDArray[np.uint8],
) -> None:
    """Brightens the column where the rings around the start are seen, which move and fade as a visit begins."""
    age = state.frame[i] - state.shown[i]
    rx = state.x[i] - plan.start[0]
    ry = state.y[i] - plan.start[1]
    radius = RING_RADIUS * scene.scale
    outside = rx * rx + ry * ry - radius * radius
    if outside >= 0.0:
        return

    # The ray leaves the circle at the depth t where a t^2 + 2 b t + outside = 0.
    a = dx * dx + dy * dy
    b = rx * dx + ry * dy
    pixels = style.focal * a / (math.sqrt(b * b - a * outside) - b)  # of one u at the rings

    height = image.shape[0]
    strength = 1.0 - age / RING_FRAMES
    for low, high, frames, added in RINGS:
        up = low + min(age / frames, 1.0) * (high - low)
        middle = horizon + (eye - up) * pixels
        first = _row(middle - 0.6 * pixels, 0, height)
        last = _row(middle + 0.6 * pixels, 0, height)
        for row in range(first, last):
            for c in range(3):
                _put(image, row, column, c, image[row, column, c] + strength * added[c])


@register_jitable
def draw_view(  # noqa: C901, PLR0912, PLR0915 (calls would copy the scene and the state)
    scene: Scene,
    plan: level.Level,
    state: level.State,
    i: int,
    style: Look,
    start: int,
    stride: int,
    image: NDArray[np.uint8],
) -> None:
    """Draws environment i's view into image [H, W, 3] uint8, without the head-up display.

    Of the columns only start, start + stride and so on. They are independent, so that threads can share a view. The
    loop is in here because a call for every column would copy the scene and the state, which are passed by value.
    """
    height = image.shape[0]
    width = image.shape[1]
    if state.room[i] == level.DARK or level.is_gray(state, i):
        # The shade of gray is the low byte of the engine's clock.
        shade = 0 if state.room[i] == level.DARK else level.clock(state, i) % 256
        for column in range(start, width, stride):
            image[:, column] = shade
        return

    # The camera. `horizon` is the row at which the eye's own height is seen.
    room = 0 if state.room[i] == level.ROOM_1 else 1
    x = state.x[i]
    y = state.y[i]
    eye = scene.eye_height + state.z[i]
    focal = style.focal
    yaw = math.radians(state.yaw[i])
    pitch = math.radians(state.pitch[i])
    cos = math.cos(yaw)
    sin = math.sin(yaw)
    horizon = 0.5 * height - math.tan(pitch) * focal

    # What is the same in all columns.
    walls = scene.walls[room]
    sky = scene.sky[style.sky, room]
    floor = scene.floors[style.floor, room]
    x0 = (x - scene.origins[room, 0]) / TEXEL
    y0 = (y - scene.origins[room, 1]) / TEXEL
    spread = 1.5 / (focal * TEXEL)  # texels in a pixel, at depth 1
    last_x = floor.shape[1] - 1
    last_y = floor.shape[2] - 1
    widest = (1.2 * scene.unit * style.wide) ** 2
    has_rings = room == 0 and 0 <= state.frame[i] - state.shown[i] < RING_FRAMES
    num_bodies = 1 if room == 0 else 2
    if room == 0:
        example = body(scene, style, state, i, state.match[i], plan.examples[state.example_side[i]], eye, True)
        bodies = (example, example)  # the second is not drawn
    else:
        side = 0 if y <= plan.arrival[1] else 1  # the farther one, which the nearer may hide
        far = state.other[i]
        near = state.match[i]
        if side == state.match_side[i]:
            far = state.match[i]
            near = state.other[i]
        bodies = (
            body(scene, style, state, i, far, plan.choices[side], eye, side != state.taken[i]),
            body(scene, style, state, i, near, plan.choices[1 - side], eye, 1 - side != state.taken[i]),
        )

    for column in range(start, width, stride):
        across = (column + 0.5 - 0.5 * width) / focal
        dx = cos + across * sin
        dy = sin - across * cos
        length = dx * dx + dy * dy  # squared

        # The nearest wall: the depth at which the ray meets it, and where along it.
        depth = 1e9
        along = 0.0
        met_wall = 0
        for k in range(scene.wall_counts[room]):
            if walls[k, 0] == 0.0:  # at a fixed x
                gap = walls[k, 1] - x
                rate = dx
                origin = y
                slope = dy
            else:
                gap = walls[k, 1] - y
                rate = dy
                origin = x
                slope = dx
            if rate == 0.0:
                continue
            t = gap / rate
            if 0.0 < t < depth:
                met = origin + t * slope
                if walls[k, 2] - 1e-6 <= met <= walls[k, 3] + 1e-6:
                    depth = t
                    along = met
                    met_wall = k

        pixels = focal / depth  # of one u at the wall
        top = _row(horizon - (scene.wall_height - eye) * pixels, 0, height)
        foot = _row(horizon + eye * pixels, top, height)

        # The sky, where the ray meets the cylinder on which it hangs.
        sx = x - SKY_CENTRE[0]
        sy = y - SKY_CENTRE[1]
        towards = sx * dx + sy * dy
        outside = sx * sx + sy * sy - SKY_RADIUS**2
        t = (math.sqrt(towards * towards - length * outside) - towards) / length
        turn = math.atan2(sy + t * dy, sx + t * dx) / (2.0 * math.pi) + 0.5
        sky_column = int(turn * SKY_COLUMNS) & (SKY_COLUMNS - 1)
        rise = t / focal * (SKY_ROWS / SKY_HEIGHT / SKY_RADIUS)
        base = eye * (SKY_ROWS / SKY_HEIGHT / SKY_RADIUS)
        for row in range(top):
            r = min(max(int(base + (horizon - row - 0.5) * rise), 0), SKY_ROWS - 1)
            for c in range(3):
                image[row, column, c] = sky[r, sky_column, c]

        # The wall, which darkens towards its corners.
        wall = walls[met_wall]
        reach = CORNER * scene.scale
        gloom = wall[4] * max(1.0 - (along - wall[2]) / reach, 0.0)
        gloom += wall[5] * max(1.0 - (wall[3] - along) / reach, 0.0)
        bright = 1.0 - (1.0 - CORNER_LIGHT) * min(gloom, 1.0)
        if style.lamp > 0.0:  # darker and brighter places move along the walls
            wave = math.sin(along / style.lamp_length + state.frame[i] * style.lamp_speed)
            bright *= 1.0 - style.lamp * (0.5 + 0.5 * wave)
        light = int(256.0 * bright)
        step = 1.0 / (pixels * WALL_TEXEL)
        tile = scene.wall[style.wall, _blur(step), int(along // WALL_TEXEL) & (TILE - 1)]
        tile_row = 16 * TILE_ROWS - eye / WALL_TEXEL + (top + 0.5 - horizon) * step
        for row in range(top, foot):
            r = int(tile_row) & (TILE_ROWS - 1)
            tile_row += step
            for c in range(3):
                image[row, column, c] = (int(tile[r, c]) * light) >> 8

        # The floor.
        rate_x = dx / TEXEL
        rate_y = dy / TEXEL
        for row in range(foot, height):
            t = eye * focal / (row + 0.5 - horizon)
            u = min(max(int(x0 + t * rate_x), 0), last_x)
            v = min(max(int(y0 + t * rate_y), 0), last_y)
            blur = _blur(t * spread)
            for c in range(3):
                image[row, column, c] = floor[blur, u, v, c]

        # Pads, rings and objects. A call costs more than the test whether the ray passes near.
        for k in range(3):
            pad = scene.pads[room, k]
            ox = x - pad[0]
            oy = y - pad[1]
            tall = pad[3] * style.pad
            aside = ox * dy - oy * dx  # how far from the middle the ray passes, times its length
            if aside**2 < 1.172 * pad[2] * pad[2] * length:  # within the circle around the octagon
                draw_pad(pad, tall, style.pad_glow, focal, ox, oy, eye, dx, dy, depth, horizon, column, image)
        if has_rings:
            draw_rings(scene, style, plan, state, i, eye, dx, dy, horizon, column, image)
        for k in range(num_bodies):
            item = bodies[k]
            aside = item.rx * dy - item.ry * dx
            if item.shown and aside**2 < widest * length:
                draw_object(item, style, dx, dy, depth, horizon, column, image)

        if style.tone > 0:
            tone = scene.tones[style.tone]
            for row in range(height):
                for c in range(3):
                    image[row, column, c] = tone[image[row, column, c]]


@register_jitable
def _blur(texels: float) -> int:
    """The degree of blur, below LEVELS, for a texture of which one pixel covers this many texels."""
    return int(texels > 0.75) + int(texels > 1.5) + int(texels > 3.0) + int(texels > 6.0)
