"""Views of an environment: drawn column by column, as scalar functions.

Walls, floor, sky and pads are cast by column, objects are sphere-traced inside their bounding cylinders. A pitched view
is sheared rather than rotated, which is exact at pitch 0, the only one the nine actions reach.

What draws a column is inlined: a call would copy the scene and the state, which are passed by value, for each column.
"""

import math
from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from envs.rooms import level, shapes
from envs.rooms.look import Look
from envs.rooms.physics import FRAME_SECONDS
from envs.rooms.scene import Scene
from envs.rooms.textures import (
    SKY_CENTER,
    SKY_COLUMNS,
    SKY_HEIGHT,
    SKY_RADIUS,
    SKY_ROWS,
    TEXEL,
    TILE,
    TILE_ROWS,
    WALL_TEXEL,
)

BOB_SECONDS = 1.257
PULSE_SECONDS = 5.0
"""Periods of an object's bobbing and of its pulse."""
GROWTH_FRAMES = 34.0
"""Frames in which an object grows to its full size."""
PAD_GLOW = ((34.0, 176.0, 180.0), (134.0, 50.0, 214.0))
PAD_SIDE = 88.0
PAD_TOP = 250.0
"""Shades of gray of a pad's side and top, where they do not glow."""
STRIPS = ((1.0, 0.0), (0.0, 1.0), (math.sqrt(0.5), math.sqrt(0.5)), (math.sqrt(0.5), -math.sqrt(0.5)))
"""Directions across the four strips of which an octagon is the intersection."""
ROUND_PAD = 1.172
"""Square of an octagon's largest radius, in squares of its half width, rounded up."""
PAD_FADE = (1.2, 4.5)
"""u per pixel from which a pad fades to its mean color, and at which it shows that alone."""
PAD_MEAN = ((76.0, 124.0, 128.0), (122.0, 62.0, 165.0))
CORNER = 100.0
CORNER_LIGHT = 0.62
"""Walls darken over this many u towards their corners, to this share of their brightness."""
RING_RADIUS = 23.0
RING_FRAMES = 28
"""The two rings around the start: their radius in u, and the frames in which they fade."""
RINGS = ((42.3, 40.5, 4.0, (85.0, 125.0, 110.0)), (62.0, 98.0, 28.0, (100.0, 100.0, 100.0)))
"""For each ring: the heights in u from which and to which it moves, the frames that takes, and what it adds to
colors."""


class Camera(NamedTuple):
    """From where a view is seen, and how."""

    x: float  # u
    y: float
    eye: float  # height above the floor, in u
    cos: float  # of the yaw
    sin: float
    focal: float  # pixels
    horizon: float  # the row at which the eye's own height is seen


class Ray(NamedTuple):
    """A column of a view, and the direction in plan of all that is seen in it.

    At a depth of t u the column shows what is above and below (x + t dx, y + t dy). (dx, dy) has a length of 1 in the
    middle of the view and is longer beside it.
    """

    column: int
    dx: float
    dy: float
    length: float  # squared


class Hit(NamedTuple):
    """Where a ray meets the nearest wall, and which rows of the column that wall covers."""

    wall: int  # row of `Scene.walls`
    depth: float
    along: float  # coordinate along the wall, in u
    top: int  # the first row
    foot: int  # the first row below it


@register_jitable
def _camera(scene: Scene, style: Look, state: level.State, i: int, height: int) -> Camera:
    """Environment i's camera, for a view with `height` rows."""
    yaw = math.radians(state.yaw[i])
    pitch = math.radians(state.pitch[i])
    return Camera(
        x=state.x[i],
        y=state.y[i],
        eye=scene.eye_height + state.z[i],
        cos=math.cos(yaw),
        sin=math.sin(yaw),
        focal=style.focal,
        horizon=0.5 * height - math.tan(pitch) * style.focal,
    )


@register_jitable(forceinline=True)
def _ray(camera: Camera, column: int, width: int) -> Ray:
    across = (column + 0.5 - 0.5 * width) / camera.focal
    dx = camera.cos + across * camera.sin
    dy = camera.sin - across * camera.cos
    return Ray(column, dx, dy, dx * dx + dy * dy)


@register_jitable
def _row(height: float, first: int, last: int) -> int:
    """The first row in first..last whose center is not above a height measured in rows."""
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
    center: float  # height above the eye, in u
    radius: float  # of the bounding cylinder, in u
    half: float
    eye: tuple[float, float, float]  # the player's eye in the object's frame
    cos: float  # of its spin
    sin: float
    inverse: float  # units of the shape in a u across
    tall: float  # u of a unit upward
    pulse: float
    glow: tuple[float, float, float]  # color of the body
    metal: float  # brightness


@register_jitable
def _body(
    scene: Scene,
    style: Look,
    state: level.State,
    i: int,
    camera: Camera,
    item: int,
    spot: NDArray[np.float64],
    shown: bool,
) -> Body:
    """The object numbered `item` at plan position spot [2], as environment i's player sees it."""
    num_colors = scene.colors.shape[1]
    shape = item // num_colors
    color = scene.colors[shape, item % num_colors]
    age = state.frame[i] - state.shown[i]
    seconds = state.frame[i] * FRAME_SECONDS

    # It grows after it has appeared.
    size = scene.unit * min(1.0, style.grown + (1.0 - style.grown) * age / GROWTH_FRAMES)
    wide = size * style.wide
    tall = size * style.tall
    half = scene.bounds[shape, 1] * tall

    # It bobs and spins.
    rx = spot[0] - camera.x
    ry = spot[1] - camera.y
    bob = scene.bob_height * math.cos(2.0 * math.pi * seconds / BOB_SECONDS)
    center = scene.hover_height + half - bob - camera.eye
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
        center=center,
        radius=scene.bounds[shape, 0] * wide,
        half=half,
        eye=(-(cos * rx + sin * ry) * inverse, -(cos * ry - sin * rx) * inverse, -center / tall),
        cos=cos,
        sin=sin,
        inverse=inverse,
        tall=tall,
        pulse=1.0 - 0.5 * scene.glow_pulse * wave,
        glow=(color[0] * style.glow[0], color[1] * style.glow[1], color[2] * style.glow[2]),
        metal=scene.bounds[shape, 2],
    )


@register_jitable
def _bodies(
    scene: Scene, style: Look, plan: level.Level, state: level.State, i: int, camera: Camera, room: int
) -> tuple[Body, Body]:
    """The objects of a room, in the order in which they are drawn. The first room has one, which is both."""
    if room == 0:
        spot = plan.examples[state.example_side[i]]
        example = _body(scene, style, state, i, camera, state.match[i], spot, True)
        return example, example

    # The farther one first, which the nearer may hide.
    side = 0 if camera.y <= plan.arrival[1] else 1
    far = state.other[i]
    near = state.match[i]
    if side == state.match_side[i]:
        far = state.match[i]
        near = state.other[i]
    return (
        _body(scene, style, state, i, camera, far, plan.choices[side], side != state.taken[i]),
        _body(scene, style, state, i, camera, near, plan.choices[1 - side], 1 - side != state.taken[i]),
    )


@register_jitable(forceinline=True)
def _nearest_wall(scene: Scene, room: int, camera: Camera, ray: Ray, height: int) -> Hit:
    """The wall that a ray of a view with `height` rows meets first."""
    walls = scene.walls[room]
    depth = 1e9
    along = 0.0
    met_wall = 0
    for k in range(scene.wall_counts[room]):
        if walls[k, 0] == 0.0:  # at a fixed x
            gap = walls[k, 1] - camera.x
            rate = ray.dx
            origin = camera.y
            slope = ray.dy
        else:
            gap = walls[k, 1] - camera.y
            rate = ray.dy
            origin = camera.x
            slope = ray.dx
        if rate == 0.0:
            continue
        t = gap / rate
        if 0.0 < t < depth:
            met = origin + t * slope
            if walls[k, 2] - 1e-6 <= met <= walls[k, 3] + 1e-6:
                depth = t
                along = met
                met_wall = k

    pixels = camera.focal / depth  # of one u at the wall
    top = _row(camera.horizon - (scene.wall_height - camera.eye) * pixels, 0, height)
    foot = _row(camera.horizon + camera.eye * pixels, top, height)
    return Hit(met_wall, depth, along, top, foot)


@register_jitable(forceinline=True)
def _draw_sky(sky: NDArray[np.uint8], camera: Camera, ray: Ray, hit: Hit, image: NDArray[np.uint8]) -> None:
    """Draws what is above the wall: sky [SKY_ROWS, SKY_COLUMNS, 3], which hangs on a cylinder."""
    # The ray meets the cylinder at the depth t.
    sx = camera.x - SKY_CENTER[0]
    sy = camera.y - SKY_CENTER[1]
    towards = sx * ray.dx + sy * ray.dy
    outside = sx * sx + sy * sy - SKY_RADIUS**2
    t = (math.sqrt(towards * towards - ray.length * outside) - towards) / ray.length

    turn = math.atan2(sy + t * ray.dy, sx + t * ray.dx) / (2.0 * math.pi) + 0.5
    sky_column = int(turn * SKY_COLUMNS) & (SKY_COLUMNS - 1)
    rise = t / camera.focal * (SKY_ROWS / SKY_HEIGHT / SKY_RADIUS)
    base = camera.eye * (SKY_ROWS / SKY_HEIGHT / SKY_RADIUS)
    for row in range(hit.top):
        r = min(max(int(base + (camera.horizon - row - 0.5) * rise), 0), SKY_ROWS - 1)
        for c in range(3):
            image[row, ray.column, c] = sky[r, sky_column, c]


@register_jitable(forceinline=True)
def _draw_wall(
    scene: Scene, style: Look, room: int, frame: int, camera: Camera, ray: Ray, hit: Hit, image: NDArray[np.uint8]
) -> None:
    """Draws the wall, as it is lit in a frame of the episode."""
    # It darkens towards the corners of the room.
    wall = scene.walls[room, hit.wall]
    reach = CORNER * scene.scale
    gloom = wall[4] * max(1.0 - (hit.along - wall[2]) / reach, 0.0)
    gloom += wall[5] * max(1.0 - (wall[3] - hit.along) / reach, 0.0)
    bright = 1.0 - (1.0 - CORNER_LIGHT) * min(gloom, 1.0)
    if style.lamp > 0.0:  # darker and brighter places move along the walls
        wave = math.sin(hit.along / style.lamp_length + frame * style.lamp_speed)
        bright *= 1.0 - style.lamp * (0.5 + 0.5 * wave)
    light = int(256.0 * bright)

    pixels = camera.focal / hit.depth  # of one u
    step = 1.0 / (pixels * WALL_TEXEL)  # texels a row
    tile = scene.wall[style.wall, _blur(step), int(hit.along // WALL_TEXEL) & (TILE - 1)]
    tile_row = 16 * TILE_ROWS - camera.eye / WALL_TEXEL + (hit.top + 0.5 - camera.horizon) * step
    for row in range(hit.top, hit.foot):
        r = int(tile_row) & (TILE_ROWS - 1)
        tile_row += step
        for c in range(3):
            image[row, ray.column, c] = (int(tile[r, c]) * light) >> 8


@register_jitable(forceinline=True)
def _draw_floor(
    floor: NDArray[np.uint8], origin: NDArray[np.float64], camera: Camera, ray: Ray, hit: Hit, image: NDArray[np.uint8]
) -> None:
    """Draws what is below the wall: floor [LEVELS, X, Y, 3], whose first texel is at origin [2]."""
    x0 = (camera.x - origin[0]) / TEXEL
    y0 = (camera.y - origin[1]) / TEXEL
    rate_x = ray.dx / TEXEL
    rate_y = ray.dy / TEXEL
    last_x = floor.shape[1] - 1
    last_y = floor.shape[2] - 1
    spread = 1.5 / (camera.focal * TEXEL)  # texels in a pixel, at depth 1
    for row in range(hit.foot, image.shape[0]):
        t = camera.eye * camera.focal / (row + 0.5 - camera.horizon)
        u = min(max(int(x0 + t * rate_x), 0), last_x)
        v = min(max(int(y0 + t * rate_y), 0), last_y)
        blur = _blur(t * spread)
        for c in range(3):
            image[row, ray.column, c] = floor[blur, u, v, c]


@register_jitable(forceinline=True)
def _draw_pad(
    pad: NDArray[np.float64], style: Look, camera: Camera, ray: Ray, wall_depth: float, image: NDArray[np.uint8]
) -> None:
    """Draws a raised octagon, a row of `Scene.pads`."""
    ox = camera.x - pad[0]
    oy = camera.y - pad[1]
    half = pad[2]
    tall = pad[3] * style.pad
    kind = int(pad[4])

    # Nothing is seen of it where the ray passes the circle around it.
    aside = ox * ray.dy - oy * ray.dx  # how far from the middle the ray passes, times its length
    if aside**2 >= ROUND_PAD * half * half * ray.length:
        return

    # Depths at which the ray enters and leaves the octagon, the intersection of four strips.
    t0 = -1e9
    t1 = wall_depth
    for k in range(len(STRIPS)):
        nx, ny = STRIPS[k]
        rate = nx * ray.dx + ny * ray.dy
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
    drop = (camera.eye - tall) * camera.focal
    first = _row(camera.horizon + drop / t1, 0, height)
    edge = _row(camera.horizon + drop / front, 0, height)
    last = edge
    if t0 > 0.5:
        last = _row(camera.horizon + camera.eye * camera.focal / front, 0, height)

    # In the distance it fades to its mean color.
    u_per_pixel = front / camera.focal
    fade = min(max((u_per_pixel - PAD_FADE[0]) / (PAD_FADE[1] - PAD_FADE[0]), 0.0), 1.0)
    strength = style.pad_glow * (1.0 - fade)
    strength_of_mean = style.pad_glow * fade

    belt = (camera.eye - 0.45 * tall) * camera.focal / front  # rows below the horizon
    for row in range(first, last):
        below = row + 0.5 - camera.horizon
        share = 0.0  # of the glow's color; the rest is that of the top or of the dark side
        base = PAD_TOP
        if row < edge:  # it glows towards the edge
            t = drop / below
            px = ox + t * ray.dx
            py = oy + t * ray.dy
            share = min(max(1.5 * (px * px + py * py) / (half * half) - 0.3, 0.0), 1.0)
        else:  # it glows in the lower part of the side
            base = PAD_SIDE
            if below > belt:
                share = 1.0
        for c in range(3):
            shade = base + share * (PAD_GLOW[kind][c] - base)
            _put(image, row, ray.column, c, strength * shade + strength_of_mean * PAD_MEAN[kind][c])


@register_jitable(forceinline=True)
def _draw_rings(
    age: int,
    start: NDArray[np.float64],
    scale: float,
    camera: Camera,
    ray: Ray,
    image: NDArray[np.uint8],
) -> None:
    """Brightens where the rings around start [2] are seen, which move and fade in their first frames."""
    rx = camera.x - start[0]
    ry = camera.y - start[1]
    radius = RING_RADIUS * scale
    outside = rx * rx + ry * ry - radius * radius
    if outside >= 0.0:
        return

    # The ray leaves the circle at the depth t where a t^2 + 2 b t + outside = 0.
    a = ray.length
    b = rx * ray.dx + ry * ray.dy
    pixels = camera.focal * a / (math.sqrt(b * b - a * outside) - b)  # of one u at the rings

    height = image.shape[0]
    strength = 1.0 - age / RING_FRAMES
    for low, high, frames, added in RINGS:
        up = low + min(age / frames, 1.0) * (high - low)
        middle = camera.horizon + (camera.eye - up) * pixels
        first = _row(middle - 0.6 * pixels, 0, height)
        last = _row(middle + 0.6 * pixels, 0, height)
        for row in range(first, last):
            for c in range(3):
                _put(image, row, ray.column, c, image[row, ray.column, c] + strength * added[c])


@register_jitable(forceinline=True)
def _draw_object(
    body: Body, style: Look, camera: Camera, ray: Ray, wall_depth: float, image: NDArray[np.uint8]
) -> None:
    """Draws an object, which is traced in its own frame."""
    if not body.shown:
        return

    # Where the column's vertical plane cuts the bounding cylinder, in depths t along the ray. It passes the axis at
    # the depth `middle`, and the square of its distance there is `aside`, in squares of the length of (dx, dy).
    rx = body.rx
    ry = body.ry
    middle = (rx * ray.dx + ry * ray.dy) / ray.length
    aside = (rx * rx + ry * ry) / ray.length - middle * middle
    inside = body.radius * body.radius / ray.length - aside
    if inside <= 0.0:
        return
    reach = math.sqrt(inside)
    t0 = middle - reach
    t1 = middle + reach
    if t0 < 1.0 or t0 > wall_depth:
        return

    # The rows that the cylinder covers.
    top = body.center + body.half
    bottom = body.center - body.half
    slope_max = max(top / t0, top / t1)
    slope_min = min(bottom / t0, bottom / t1)
    first = _row(camera.horizon - slope_max * camera.focal - 0.5, 0, image.shape[0])
    last = _row(camera.horizon - slope_min * camera.focal + 0.5, 0, image.shape[0])

    # The ray of each pixel in the object's own frame, from the point (lx, ly, lz) along (ldx, ldy, ldz).
    lx, ly, lz = body.eye
    ldx = (body.cos * ray.dx + body.sin * ray.dy) * body.inverse
    ldy = (body.cos * ray.dy - body.sin * ray.dx) * body.inverse
    for row in range(first, last):
        ldz = (camera.horizon - row - 0.5) / (camera.focal * body.tall)
        hit, glow, light = shapes.trace(body.kind, body.ball, lx, ly, lz, ldx, ldy, ldz, t0, t1)
        if not hit:
            continue
        for c in range(3):
            if glow:
                lit = style.ambient + (1.0 - style.ambient) * light
                value = body.glow[c] * (body.pulse * lit)
            else:
                value = body.metal * (0.6 + 0.4 * light) * style.metal
            _put(image, row, ray.column, c, value)


@register_jitable(forceinline=True)
def _change_tone(tone: NDArray[np.uint8], column: int, image: NDArray[np.uint8]) -> None:
    """Replaces each value of a column by that of tone [256]."""
    for row in range(image.shape[0]):
        for c in range(3):
            image[row, column, c] = tone[image[row, column, c]]


@register_jitable
def draw_view(
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

    Of the columns only start, start + stride and so on. They are independent, so that threads can share a view.
    """
    height, width, _ = image.shape
    if state.room[i] == level.DARK or level.is_gray(state, i):
        # The shade of gray is the low byte of the engine's clock.
        shade = 0 if state.room[i] == level.DARK else level.clock(state, i) % 256
        for column in range(start, width, stride):
            image[:, column] = shade
        return

    room = 0 if state.room[i] == level.ROOM_1 else 1
    camera = _camera(scene, style, state, i, height)
    sky = scene.sky[style.sky, room]
    floor = scene.floors[style.floor, room]
    bodies = _bodies(scene, style, plan, state, i, camera, room)
    num_bodies = 1 if room == 0 else 2
    age = state.frame[i] - state.shown[i]
    has_rings = room == 0 and 0 <= age < RING_FRAMES

    for column in range(start, width, stride):
        ray = _ray(camera, column, width)
        hit = _nearest_wall(scene, room, camera, ray, height)
        _draw_sky(sky, camera, ray, hit, image)
        _draw_wall(scene, style, room, state.frame[i], camera, ray, hit, image)
        _draw_floor(floor, scene.origins[room], camera, ray, hit, image)
        for k in range(scene.pads.shape[1]):
            _draw_pad(scene.pads[room, k], style, camera, ray, hit.depth, image)
        if has_rings:
            _draw_rings(age, plan.start, scene.scale, camera, ray, image)
        for k in range(num_bodies):
            _draw_object(bodies[k], style, camera, ray, hit.depth, image)
        if style.tone > 0:
            _change_tone(scene.tones[style.tone], column, image)


@register_jitable
def _blur(texels: float) -> int:
    """The degree of blur, below LEVELS, for a texture of which one pixel covers this many texels."""
    return int(texels > 0.75) + int(texels > 1.5) + int(texels > 3.0) + int(texels > 6.0)
