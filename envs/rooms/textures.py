"""Textures of the rooms: original and procedural, computed once from a config with numpy.

Colours and proportions were measured on pictures of the real level; patterns are drawn by formulas and by a generator
of random numbers. Floors are painted whole, walls repeat one tile, the sky is a panorama. Floors and walls come in
several degrees of blur against aliasing, the finest first. Without a seed they are those of the level; with one, those
of a group of `surfaces.FAMILIES`, among which "train" has the level's own patterns in other colours and sizes.
"""

import numpy as np
from numpy.typing import NDArray

from envs.rooms import level
from envs.rooms.surfaces import FAMILIES, colour, hexagons, noise, surface

#: u per texel of floors and of walls, number of degrees of blur (each twice as coarse).
TEXEL, WALL_TEXEL, LEVELS = 2.0, 1.0, 5
#: Texels of a wall's tile along the wall and downward; one tile is as high as the wall.
TILE, TILE_ROWS = 64, 128
#: The panorama hangs on a cylinder of this radius around this point, in u; its rows cover heights of 0..SKY_HEIGHT
#: radii above the floor. So the rim above the walls grows a little as one walks towards it.
SKY_ROWS, SKY_COLUMNS, SKY_HEIGHT, SKY_RADIUS, SKY_CENTRE = 64, 512, 0.96, 3400.0, (400.0, -64.0)
#: Numbers of random floors, walls and skies that an episode picks from.
FLOORS, WALLS, SKIES = 56, 140, 48
#: In the group "train" every so many-th of them is the level's own pattern in other colours.
OWN_EVERY = 3
#: Pillars, far behind the rim: azimuths in degrees from and to (left positive), height of the top, brightness. None
#: within 45 degrees of +x: the picture of the sky there is one of the files that the measured build of Lab lacks.
PILLARS = (
    *((52.1, 56.6, 0.67, 76), (69.9, 81.4, 0.64, 76), (84.3, 87.3, 1.0, 6), (-86.3, -82.9, 1.0, 2)),
    *((140.0, 146.0, 0.7, 76), (-152.0, -148.0, 0.8, 78)),
)
#: Random skies have up to so many pillars more, anywhere.
MORE_PILLARS = 4
#: Beams: azimuth at heights 0.5 and 0.8.
BEAMS = ((12.2, 10.3), (-52.0, -51.2), (83.5, 82.7), (-170.0, -168.0))
#: x of a view in either room from which pillars and beams are painted as they are far away.
SKY_VIEWS = (-130.0, 400.0)


def blurred(texture: NDArray[np.float64]) -> NDArray[np.uint8]:
    """[H, W, 3] in 0..255 -> [LEVELS, H, W, 3]: the texture averaged over blocks of 1, 2, 4... texels a side."""
    out, (height, width) = [], texture.shape[:2]
    for block in (2**k for k in range(LEVELS)):
        padded = np.pad(texture, ((0, -height % block), (0, -width % block), (0, 0)), mode="edge")
        means = padded.reshape(padded.shape[0] // block, block, padded.shape[1] // block, block, 3).mean((1, 3))
        out.append(means.repeat(block, 0).repeat(block, 1)[:height, :width])
    return np.clip(np.round(np.stack(out)), 0, 255).astype(np.uint8)


def _generator(seed: int, part: int, group: str | None) -> np.random.Generator:
    """Random numbers of a texture: of another for every seed, part of the view and group."""
    number = [*FAMILIES].index(group) if group else len(FAMILIES)
    return np.random.Generator(np.random.PCG64((seed, part, number)))


def _varied(rng: np.random.Generator | None) -> tuple[NDArray[np.float64], float, float]:
    """Factors of colours [3], of lengths and of contrast for the level's own pattern: 1, or random."""
    if rng is None:
        return np.ones(3), 1.0, 1.0
    return rng.uniform(0.7, 1.15) * rng.uniform(0.8, 1.15, 3), rng.uniform(0.7, 1.4), rng.uniform(0.0, 1.6)


def _is_own(seed: int | None, group: str | None) -> bool:
    """Whether a texture is the level's own pattern."""
    return seed is None or (group == "train" and seed % OWN_EVERY == 0)


def floor(room: int, scale: float, seed: int | None = None, group: str | None = None) -> NDArray[np.uint8]:
    """[LEVELS, X, Y, 3]: a room's floor of ochre hexagons with pale joints; texel (0, 0) is at the lowest x, y."""
    x0, y0, x1, y1 = np.array(level.BOUNDS[room]) * scale
    x, y = np.meshgrid(np.arange(x0 + TEXEL / 2, x1, TEXEL), np.arange(y0 + TEXEL / 2, y1, TEXEL), indexing="ij")
    rng = None if seed is None else _generator(seed, 1, group)
    if rng is None or seed is None or group is None or _is_own(seed, group):
        tint, size, contrast = _varied(rng)
        edge, cell = hexagons(x, y, 38.88 * size, 24.3 * size)
        plain = np.array([193.0, 138.0, 30.0])
        dark = np.sin(cell * 12.9898) > 0.93
        painted = np.where(dark[..., None], plain + contrast * (np.array([162.0, 114.0, 24.0]) - plain), plain)
        joint = plain + contrast * (np.array([174.0, 170.0, 112.0]) - plain)
        painted += np.clip((edge - 0.82) / 0.1, 0, 1)[..., None] * (joint - painted)
        painted = np.clip(painted * tint, 0.0, 255.0)
    else:
        painted = surface(x, y, group, seed, rng)
    # Light falls off towards the walls, over 45 u.
    gap = np.minimum(np.minimum(x - x0, x1 - x), np.minimum(y - y0, y1 - y))
    return blurred(painted * (1.0 - 0.27 * np.clip(1.0 - gap / (45.0 * scale), 0, 1) ** 2)[..., None])


def wall(seed: int | None = None, group: str | None = None) -> NDArray[np.uint8]:
    """[LEVELS, TILE, TILE_ROWS, 3]: a tile (column along the wall, row downward): azure, thin dark circuit lines."""
    rng = None if seed is None else _generator(seed, 2, group)
    u, v = np.meshgrid(np.arange(TILE) * WALL_TEXEL, np.arange(TILE_ROWS) * WALL_TEXEL, indexing="ij")
    if rng is None or seed is None or group is None or _is_own(seed, group):
        tint, _, contrast = _varied(rng)
        plain = np.array([35.0, 118.0, 179.0])
        faint, strong = (plain + contrast * (np.array(c) - plain) for c in ((28.0, 98.0, 150.0), (12.0, 48.0, 78.0)))
        lines = np.random.Generator(np.random.PCG64(20191113 if seed is None else (seed, 4)))
        tile = np.empty((TILE, TILE, 3))
        tile[:] = plain
        spread = zip(lines.permutation(12) * 5, lines.permutation(12) * 5, lines.integers((14, 8), (32, 24), (12, 2)))
        for k, (at, down, (run, drop)) in enumerate(spread):
            along, below = np.arange(at, at + run) % TILE, np.arange(down, down + drop) % TILE
            if k % 2:  # the faint outline of a plate
                for edge in ((along, down), (along, below[-1]), (at, below), (along[-1], below)):
                    tile[edge] = faint
                continue
            # A line along, a bend, a line down, and a solder point.
            tile[along, down + 3] = tile[along[-1], (below + 3) % TILE] = strong
            tile[np.ix_(np.arange(at - 1, at + 2) % TILE, np.arange(down + 2, down + 5))] = strong
        tile = np.concatenate([tile, tile], axis=1) * tint
        tile[:, -12:-8] = np.array([20.0, 130.0, 215.0]) * tint
        tile[:, -8:] = np.array([22.0, 94.0, 146.0]) * tint
        if rng is not None and rng.random() < 0.5:  # lines downward in place of along
            tile[:, :TILE] = tile[:, :TILE].transpose(1, 0, 2)
        tile = np.clip(tile, 0.0, 255.0)
    else:
        tile = surface(u, v, group, seed, rng)
    # Light falls off towards the top and the foot.
    return blurred(tile * (1.0 - 0.16 * np.clip(np.abs(v - 60.0) / 30.0 - 1.0, 0, 1))[..., None])


def _random_sky(
    up: NDArray[np.float64], around: NDArray[np.float64], group: str, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Colours [SKY_ROWS, SKY_COLUMNS, 3]: a gradient with clouds ("train"), bands ("choose") or dots ("unseen")."""
    low, high, other = (colour(rng, 0.3, 1.0) for _ in range(3))
    x, y = np.broadcast_arrays(around * 64.0 / (2.0 * np.pi), up * 64.0)
    if group == "train":
        share = rng.choice([0.0, 0.8]) * noise(x, y, rng, 2.0, 0.6)
    elif group == "choose":
        share = np.floor(y / 8.0) % 2
    else:
        share = (np.hypot(x % 4.0 - 2.0, y % 4.0 - 2.0) < rng.uniform(0.5, 1.5)).astype(float)
    gradient = low + up[..., None] * (high - low)
    return gradient + share[..., None] * (other - gradient)


def _random_pillars(rng: np.random.Generator | None) -> list[tuple[float, float, float, float]]:
    """Pillars as in `PILLARS`; none without a generator."""
    if rng is None:
        return []
    pillars = []
    for _ in range(rng.integers(MORE_PILLARS + 1)):
        right = rng.uniform(-180.0, 176.0)
        pillars.append((right, right + rng.uniform(1.5, 4.0), rng.uniform(0.5, 1.0), rng.uniform(0.0, 120.0)))
    return pillars


def sky(room: int, seed: int | None = None, group: str | None = None) -> NDArray[np.uint8]:
    """[SKY_ROWS, SKY_COLUMNS, 3]: blue sky with pillars, beams and, ahead, two curved rims of lamps over dark blue.

    Rows from the floor's height up, columns around from -180 degrees.
    """
    up = (np.arange(SKY_ROWS)[:, None] + 0.5) / SKY_ROWS * SKY_HEIGHT
    around = np.radians((np.arange(SKY_COLUMNS)[None] + 0.5) / SKY_COLUMNS * 360.0 - 180.0)
    image = np.empty((SKY_ROWS, SKY_COLUMNS, 3))
    rng = None if seed is None else _generator(seed, 3, group)
    own = _is_own(seed, group)
    tint, _, _ = _varied(rng)
    reach = 6.0 if own else 180.0
    turn = 0.0 if rng is None else rng.uniform(-reach, reach)
    image[:] = np.minimum(tint * (np.array([85.0, 163.0, 255.0]) + up[..., None] * np.array([56.0, 56.0, 0.0])), 255.0)
    if rng is not None and group is not None and not own:
        image[:] = _random_sky(up, around, group, rng)
        if rng.random() < 0.5:  # nothing but the sky
            return np.round(np.minimum(image, 255.0)).astype(np.uint8)
    ahead = SKY_RADIUS * np.cos(around) + SKY_CENTRE[0] - SKY_VIEWS[room]
    far = (np.degrees(np.arctan2(SKY_RADIUS * np.sin(around), ahead)) - turn + 180.0) % 360.0 - 180.0
    for low, high in BEAMS:
        image[np.abs(far - low - (high - low) * (up - 0.5) / 0.3) < 0.5] = (255.0, 196.0, 255.0)
    for right, left, top, bright in (*PILLARS, *_random_pillars(rng)):
        image[(far > right) & (far < left) & (up < top)] = bright * np.array([0.9, 0.98, 1.07])
    near = (np.degrees(around) - turn + 180.0) % 360.0 - 180.0
    for height in (0.53, 0.32):
        below = height - 1.24e-4 * near**2 - up  # of the rim's middle line, in radii
        rim = np.abs(near) < 60.0
        lamp = 96.0 + 80.0 * (np.cos(near * 0.9) > -0.5)
        image[rim & (below > 0.075)] = (20.0, 69.0, 104.0)
        image[rim & (below > 0.022) & (below <= 0.075)] = (44.0, 50.0, 55.0)
        image = np.where((rim & (np.abs(below) <= 0.022))[..., None], lamp[..., None], image)
    return np.round(np.minimum(image, 255.0)).astype(np.uint8)
