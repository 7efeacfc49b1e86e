"""Textures of the rooms: original and procedural, computed once from a config with numpy.

Colors and proportions were measured on pictures of the real level; patterns are drawn by formulas and by a generator
of random numbers. Floors are painted whole, walls repeat one tile, the sky is a panorama. Floors and walls come in
several degrees of blur against aliasing, the finest first. Without a seed they are those of the level; with one, those
of a group of `surfaces.FAMILIES`, among which "train" has the level's own patterns in other colors and sizes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.rooms import level
from envs.rooms.surfaces import FAMILIES, Floats, color, hexagons, noise, surface

TEXEL = 2.0
WALL_TEXEL = 1.0
"""u per texel of floors and of walls."""
LEVELS = 5
"""Degrees of blur, each twice as coarse."""
TILE = 64
TILE_ROWS = 128
"""Texels of a wall's tile along the wall and downward; one tile is as high as the wall."""
SKY_ROWS = 64
SKY_COLUMNS = 512
SKY_HEIGHT = 0.96
SKY_RADIUS = 3400.0
SKY_CENTER = (400.0, -64.0)
"""The panorama hangs on a cylinder of this radius around this point, in u; its rows cover heights of 0..SKY_HEIGHT
radii above the floor. So the rim above the walls grows a little as one walks towards it."""


class TextureCounts(NamedTuple):
    """How many random floors, walls and skies an episode picks from."""

    floors: int
    walls: int
    skies: int


TEXTURE_COUNTS = {
    "own": TextureCounts(floors=0, walls=0, skies=0),
    "train": TextureCounts(floors=168, walls=420, skies=144),
    "choose": TextureCounts(floors=56, walls=140, skies=48),
    "unseen": TextureCounts(floors=56, walls=140, skies=48),
}
"""By `RoomsConfig.looks`, beside the level's own. Agents that train on more of them do better on those never seen."""
OWN_EVERY = 3
"""In the group "train" every so many-th of them is the level's own pattern in other colors."""
PILLARS = (
    (52.1, 56.6, 0.67, 76),
    (69.9, 81.4, 0.64, 76),
    (84.3, 87.3, 1.0, 6),
    (-86.3, -82.9, 1.0, 2),
    (140.0, 146.0, 0.7, 76),
    (-152.0, -148.0, 0.8, 78),
)
"""Pillars, far behind the rim: azimuths in degrees from and to (left positive), height of the top, brightness. None
within 45 degrees of +x: the picture of the sky there is one of the files that the measured build of Lab lacks."""
MORE_PILLARS = 4
"""Random skies have up to so many pillars more, anywhere."""
BEAMS = ((12.2, 10.3), (-52.0, -51.2), (83.5, 82.7), (-170.0, -168.0))
"""Beams: azimuth at heights 0.5 and 0.8."""
SKY_VIEWS = (-130.0, 400.0)
"""x of a view in either room from which pillars and beams are painted as they are far away."""


def blurred(texture: Floats) -> NDArray[np.uint8]:
    """[H, W, 3] in 0..255 -> [LEVELS, H, W, 3]: the texture averaged over blocks of 1, 2, 4... texels a side."""
    height, width, _ = texture.shape

    # Blocks at the end are filled with the last texels.
    largest = 2 ** (LEVELS - 1)
    missing_rows = -height % largest
    missing_columns = -width % largest
    sums = np.pad(texture, ((0, missing_rows), (0, missing_columns), (0, 0)), mode="edge")

    degrees = []
    for degree in range(LEVELS):
        block = 2**degree
        means = sums / block**2
        colors = np.clip(np.round(means), 0, 255).astype(np.uint8)
        # As large as the texture again.
        degrees.append(colors.repeat(block, 0).repeat(block, 1)[:height, :width])

        # Two by two blocks are one of the next degree.
        if block < largest:
            sums = sums[0::2] + sums[1::2]
            sums = sums[:, 0::2] + sums[:, 1::2]
    return np.stack(degrees)


def _generator(seed: int | None, part: int, group: str | None) -> np.random.Generator | None:
    """Random numbers of a texture: others for every seed, part of the view and group; None without a seed."""
    if seed is None:
        return None
    groups = [*FAMILIES]
    number = len(groups)
    if group is not None:
        number = groups.index(group)
    return np.random.Generator(np.random.PCG64((seed, part, number)))


def _varied(rng: np.random.Generator | None) -> tuple[Floats, float, float]:
    """Factors of colors [3], of lengths and of contrast for the level's own pattern: 1, or random."""
    if rng is None:
        return np.ones(3), 1.0, 1.0
    tint = rng.uniform(0.7, 1.15) * rng.uniform(0.8, 1.15, 3)
    size = rng.uniform(0.7, 1.4)
    contrast = rng.uniform(0.0, 1.6)
    return tint, size, contrast


def _is_own(seed: int | None, group: str | None) -> bool:
    """Whether a texture is the level's own pattern."""
    if seed is None or group is None:
        return True
    return group == "train" and seed % OWN_EVERY == 0


def _random_surface(
    x: Floats, y: Floats, seed: int | None, group: str | None, rng: np.random.Generator | None
) -> Floats | None:
    """Colors [..., 3] of `surfaces.surface` at points in u; None for a texture that has the level's own pattern."""
    if _is_own(seed, group):
        return None
    assert seed is not None
    assert group is not None
    assert rng is not None
    return surface(x, y, group, seed, rng)


def floor(room: int, scale: float, seed: int | None = None, group: str | None = None) -> NDArray[np.uint8]:
    """[LEVELS, X, Y, 3]: a room's floor of ochre hexagons with pale joints; texel (0, 0) is at the lowest x, y."""
    x0, y0, x1, y1 = np.array(level.BOUNDS[room]) * scale
    columns = np.arange(x0 + TEXEL / 2, x1, TEXEL)
    rows = np.arange(y0 + TEXEL / 2, y1, TEXEL)
    x, y = np.meshgrid(columns, rows, indexing="ij", sparse=True)

    rng = _generator(seed, 1, group)
    painted = _random_surface(x, y, seed, group, rng)
    if painted is None:
        painted = _own_floor(x, y, rng)

    # Light falls off towards the walls, over 45 u.
    gap_x = np.minimum(x - x0, x1 - x)
    gap_y = np.minimum(y - y0, y1 - y)
    gap = np.minimum(gap_x, gap_y)
    shadow = np.clip(1.0 - gap / (45.0 * scale), 0, 1) ** 2
    light = 1.0 - 0.27 * shadow
    return blurred(painted * light[..., None])


def _own_floor(x: Floats, y: Floats, rng: np.random.Generator | None) -> Floats:
    """Colors [..., 3] of the level's own pattern at points in u."""
    tint, size, contrast = _varied(rng)
    edge, cell = hexagons(x, y, 38.88 * size, 24.3 * size)
    plain = np.array([193.0, 138.0, 30.0])
    darker = plain + contrast * (np.array([162.0, 114.0, 24.0]) - plain)
    joint = plain + contrast * (np.array([174.0, 170.0, 112.0]) - plain)

    # A few cells are darker.
    is_darker = np.sin(cell * 12.9898) > 0.93
    painted = np.where(is_darker[..., None], darker, plain)

    share_of_joint = np.clip((edge - 0.82) / 0.1, 0, 1)[..., None]
    painted += share_of_joint * (joint - painted)
    return np.clip(painted * tint, 0.0, 255.0)


def wall(seed: int | None = None, group: str | None = None) -> NDArray[np.uint8]:
    """[LEVELS, TILE, TILE_ROWS, 3]: a tile (column along the wall, row downward): azure, thin dark circuit lines."""
    columns = np.arange(TILE) * WALL_TEXEL
    rows = np.arange(TILE_ROWS) * WALL_TEXEL
    along, down = np.meshgrid(columns, rows, indexing="ij", sparse=True)

    rng = _generator(seed, 2, group)
    tile = _random_surface(along, down, seed, group, rng)
    if tile is None:
        tile = _own_wall(seed, rng)

    # Light falls off towards the top and the foot.
    shadow = np.clip(np.abs(down - 60.0) / 30.0 - 1.0, 0, 1)
    light = 1.0 - 0.16 * shadow
    return blurred(tile * light[..., None])


def _own_wall(seed: int | None, rng: np.random.Generator | None) -> Floats:
    """Colors [TILE, TILE_ROWS, 3] of the level's own pattern: two equal squares, and two stripes at the foot."""
    tint, _, contrast = _varied(rng)
    plain = np.array([35.0, 118.0, 179.0])
    faint = plain + contrast * (np.array([28.0, 98.0, 150.0]) - plain)
    strong = plain + contrast * (np.array([12.0, 48.0, 78.0]) - plain)

    square = np.empty((TILE, TILE, 3))
    square[:] = plain
    _draw_circuit(square, faint, strong, seed)
    tile = np.concatenate([square, square], axis=1) * tint
    tile[:, -12:-8] = np.array([20.0, 130.0, 215.0]) * tint
    tile[:, -8:] = np.array([22.0, 94.0, 146.0]) * tint

    if rng is not None and rng.random() < 0.5:  # lines downward in place of along
        tile[:, :TILE] = tile[:, :TILE].transpose(1, 0, 2)
    return np.clip(tile, 0.0, 255.0)


def _draw_circuit(square: Floats, faint: Floats, strong: Floats, seed: int | None) -> None:
    """Draws lines and outlines of plates into a square [TILE, TILE, 3] that repeats."""
    entropy: int | tuple[int, int] = 20191113
    if seed is not None:
        entropy = (seed, 4)
    rng = np.random.Generator(np.random.PCG64(entropy))
    lefts = rng.permutation(12) * 5
    tops = rng.permutation(12) * 5
    sizes = rng.integers((14, 8), (32, 24), (12, 2))

    for number in range(12):
        left = lefts[number]
        top = tops[number]
        wide, tall = sizes[number]
        along = np.arange(left, left + wide) % TILE
        down = np.arange(top, top + tall) % TILE
        right = along[-1]
        bottom = down[-1]
        if number % 2 == 1:  # the faint outline of a plate
            square[along, top] = faint
            square[along, bottom] = faint
            square[left, down] = faint
            square[right, down] = faint
        else:
            # A line along, a bend, a line down, and a solder point where it begins.
            square[along, top + 3] = strong
            square[right, (down + 3) % TILE] = strong
            point_columns = np.arange(left - 1, left + 2) % TILE
            point_rows = np.arange(top + 2, top + 5)
            square[np.ix_(point_columns, point_rows)] = strong


def _random_sky(up: Floats, around: Floats, group: str, rng: np.random.Generator) -> Floats:
    """Colors [SKY_ROWS, SKY_COLUMNS, 3]: a gradient with clouds ("train"), bands ("choose") or dots ("unseen")."""
    low = color(rng, 0.3, 1.0)
    high = color(rng, 0.3, 1.0)
    other = color(rng, 0.3, 1.0)
    x = around * 64.0 / (2.0 * np.pi)
    y = up * 64.0
    if group == "train":
        strength = rng.choice([0.0, 0.8])
        share = strength * noise(x, y, rng, 2.0, 0.6)
    elif group == "choose":
        share = np.floor(y / 8.0) % 2
    else:
        radius = rng.uniform(0.5, 1.5)
        share = (np.hypot(x % 4.0 - 2.0, y % 4.0 - 2.0) < radius).astype(float)
    gradient = low + up[..., None] * (high - low)
    return gradient + share[..., None] * (other - gradient)


def _random_pillars(rng: np.random.Generator | None) -> list[tuple[float, float, float, float]]:
    """Pillars as in `PILLARS`; none without a generator."""
    if rng is None:
        return []
    pillars = []
    for _ in range(rng.integers(MORE_PILLARS + 1)):
        right = rng.uniform(-180.0, 176.0)
        left = right + rng.uniform(1.5, 4.0)
        top = rng.uniform(0.5, 1.0)
        brightness = rng.uniform(0.0, 120.0)
        pillars.append((right, left, top, brightness))
    return pillars


def sky(room: int, seed: int | None = None, group: str | None = None) -> NDArray[np.uint8]:
    """[SKY_ROWS, SKY_COLUMNS, 3]: blue sky with pillars, beams and, ahead, two curved rims of lamps over dark blue.

    Rows from the floor's height up, columns around from -180 degrees.
    """
    up = (np.arange(SKY_ROWS)[:, None] + 0.5) / SKY_ROWS * SKY_HEIGHT
    around = np.radians((np.arange(SKY_COLUMNS)[None] + 0.5) / SKY_COLUMNS * 360.0 - 180.0)
    rng = _generator(seed, 3, group)
    is_own = _is_own(seed, group)
    tint, _, _ = _varied(rng)

    # A random sky is turned to any side, the level's own pattern a little.
    turn = 0.0
    if rng is not None:
        reach = 6.0 if is_own else 180.0
        turn = rng.uniform(-reach, reach)

    image = np.empty((SKY_ROWS, SKY_COLUMNS, 3))
    if is_own:
        blue = np.array([85.0, 163.0, 255.0]) + up[..., None] * np.array([56.0, 56.0, 0.0])
        image[:] = np.minimum(tint * blue, 255.0)
    else:
        assert rng is not None
        assert group is not None
        image[:] = _random_sky(up, around, group, rng)
        if rng.random() < 0.5:  # nothing but the sky
            return _bytes(image)

    # What is far away, as it is seen from a view in the room.
    ahead = SKY_RADIUS * np.cos(around) + SKY_CENTER[0] - SKY_VIEWS[room]
    aside = SKY_RADIUS * np.sin(around)
    azimuth = _half_turn(np.degrees(np.arctan2(aside, ahead)) - turn)
    _draw_far(image, up, azimuth, [*PILLARS, *_random_pillars(rng)])

    # What is as near as the panorama.
    _draw_rims(image, up, _half_turn(np.degrees(around) - turn))
    return _bytes(image)


def _draw_far(image: Floats, up: Floats, azimuth: Floats, pillars: Sequence[tuple[float, float, float, float]]) -> None:
    """Draws beams and pillars into a sky, whose columns have these azimuths in degrees."""
    for low, high in BEAMS:
        lean = (high - low) * (up - 0.5) / 0.3
        image[np.abs(azimuth - low - lean) < 0.5] = (255.0, 196.0, 255.0)
    for right, left, top, brightness in pillars:
        is_pillar = (azimuth > right) & (azimuth < left) & (up < top)
        image[is_pillar] = brightness * np.array([0.9, 0.98, 1.07])


def _draw_rims(image: Floats, up: Floats, azimuth: Floats) -> None:
    """Draws two rims of lamps into a sky, whose columns have these azimuths in degrees."""
    is_rim = np.abs(azimuth) < 60.0
    lamp = 96.0 + 80.0 * (np.cos(azimuth * 0.9) > -0.5)
    lamps = np.broadcast_to(lamp[..., None], image.shape)
    for height in (0.53, 0.32):
        below = height - 1.24e-4 * azimuth**2 - up  # of the rim's middle line, in radii
        image[is_rim & (below > 0.075)] = (20.0, 69.0, 104.0)
        image[is_rim & (below > 0.022) & (below <= 0.075)] = (44.0, 50.0, 55.0)
        is_lamp = is_rim & (np.abs(below) <= 0.022)
        image[is_lamp] = lamps[is_lamp]


def _half_turn(degrees: Floats) -> Floats:
    """The same directions as -180 to 180 degrees."""
    return (degrees + 180.0) % 360.0 - 180.0


def _bytes(image: Floats) -> NDArray[np.uint8]:
    """Colors of 0 or more, rounded, at most 255."""
    return np.round(np.minimum(image, 255.0)).astype(np.uint8)
