"""Textures of the rooms: original and procedural, computed once from a config with numpy.

Floors are painted whole, pads included, so that the renderer needs one look-up a pixel; walls repeat one tile; the sky
is a panorama. Each texture comes in several degrees of blur against aliasing, the finest first. Without a seed they are
those of the level; with one, random.
"""

import colorsys

import numpy as np
from numpy.typing import NDArray

from envs.rooms import level

#: u per texel of floors and walls, number of degrees of blur (each twice as coarse), texels of a wall tile.
TEXEL = 2.0
LEVELS = 4
TILE = 64
#: Rows of the panorama cover slopes 0..SKY_SLOPE above the horizon.
SKY_ROWS, SKY_COLUMNS, SKY_SLOPE = 64, 512, 1.6
#: Number of floors, walls and skies that `RoomsConfig.randomise` picks from.
RANDOM = 24

#: Glyphs of 3 x 5 pixels, a row per octal digit: the digits 0..9, then minus, colon and cross.
_GLYPHS = "75557 26227 71747 71717 55711 74717 74757 71222 75757 75717 00700 02020 02720"
FONT: NDArray[np.bool_] = np.array(
    [[[int(row) >> c & 1 for c in (2, 1, 0)] for row in g] for g in _GLYPHS.split()], bool
)
MINUS, COLON, CROSS = 10, 11, 12


def blurred(texture: NDArray[np.float64]) -> NDArray[np.uint8]:
    """[H, W, 3] in 0..255 -> [LEVELS, H, W, 3]: the texture averaged over blocks of 1, 2, 4... texels a side."""
    out, (height, width) = [], texture.shape[:2]
    for block in (2**k for k in range(LEVELS)):
        padded = np.pad(texture, ((0, -height % block), (0, -width % block), (0, 0)), mode="edge")
        means = padded.reshape(padded.shape[0] // block, block, padded.shape[1] // block, block, 3).mean((1, 3))
        out.append(means.repeat(block, 0).repeat(block, 1)[:height, :width])
    return np.clip(np.round(np.stack(out)), 0, 255).astype(np.uint8)


def _hexagons(x: NDArray[np.float64], y: NDArray[np.float64], width: float) -> tuple[NDArray, NDArray]:
    """Distance to the centre of the hexagon at each point (0 at the centre, 1 at the edge), and a number per cell."""
    height = width * np.sqrt(3.0)
    best, cell = np.full(x.shape, np.inf), np.zeros(x.shape)
    for shift in (0.0, 0.5):
        column, row = np.floor(x / width + shift), np.floor(y / height + shift)
        dx = np.abs(x - (column - shift + 0.5) * width)
        dy = np.abs(y - (row - shift + 0.5) * height)
        edge = np.maximum(dx, 0.5 * dx + 0.866 * dy) / (0.5 * width)
        nearer = edge < best
        best = np.where(nearer, edge, best)
        cell = np.where(nearer, column * 7.0 + row * 13.0 + shift * 5.0, cell)
    return best, cell


def _random_colour(rng: np.random.Generator, darkest: float, brightest: float) -> NDArray[np.float64]:
    """A colour of any hue and of a brightness between two of 0..1."""
    return 255.0 * np.array(colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.0, 0.9), rng.uniform(darkest, brightest)))


def _random_surface(x: NDArray[np.float64], y: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Colours at points in u: hexagons, bricks, stripes or clouds in two colours, darker than any object's glow."""
    width = float(rng.choice([16.0, 32.0, 64.0]))
    kind = rng.integers(4)
    if kind == 0:
        edge, cell = _hexagons(x, y, width)
        shade = np.where(edge > 0.9, 1.0, 0.25 * (1.0 + np.sin(cell * 12.9898)))
    elif kind == 1:
        row = np.floor(y / width)
        along = x / (2.0 * width) + 0.5 * (row % 2)
        joint = np.minimum(along % 1.0 * 2.0 * width, y % width) < 3.0
        shade = np.where(joint, 1.0, 0.25 * (1.0 + np.sin(np.floor(along) * 12.9898 + row * 78.233)))
    elif kind == 2:
        shade = 0.5 + 0.5 * np.sin((x if rng.random() < 0.5 else y) * 2.0 * np.pi / width)
    else:
        waves = rng.integers(-3, 4, (6, 2)) * 2.0 * np.pi / 128.0
        shade = 0.5 + np.mean([np.sin(a * x + b * y + p) for (a, b), p in zip(waves, rng.uniform(0, 6.3, 6))], axis=0)
    dark, light = _random_colour(rng, 0.15, 0.7), _random_colour(rng, 0.15, 0.7)
    return dark + np.clip(shade, 0.0, 1.0)[..., None] * (light - dark)


def floor(room: int, scale: float, seed: int | None = None) -> NDArray[np.uint8]:
    """[LEVELS, X, Y, 3]: a room's floor, orange hexagons and its pads; texel (0, 0) is at the lowest x, y."""
    x0, y0, x1, y1 = np.array(level.BOUNDS[room]) * scale
    x, y = np.meshgrid(np.arange(x0 + TEXEL / 2, x1, TEXEL), np.arange(y0 + TEXEL / 2, y1, TEXEL), indexing="ij")
    if seed is None:
        pads = np.ones(3)
        edge, cell = _hexagons(x, y, 40.0)
        tint = 0.86 + 0.14 * np.sin(cell * 12.9898)
        colour = np.array([226.0, 118.0, 34.0]) * tint[..., None] * (1.0 - 0.22 * np.clip(edge, 0, 1) ** 3)[..., None]
        colour = np.where((edge > 0.9)[..., None], np.array([112.0, 54.0, 22.0]), colour)
    else:
        rng = np.random.Generator(np.random.PCG64((seed, 1)))
        pads = rng.uniform(0.7, 1.05, 3)
        colour = _random_surface(x, y, rng)
    for cx, cy in np.array(level.EXAMPLES if room == 0 else level.CHOICES) * scale:
        radius = np.hypot(x - cx, y - cy) / 24.0
        disc = np.where((radius < 0.72)[..., None], np.array([236.0, 246.0, 255.0]), np.array([120.0, 178.0, 255.0]))
        colour = np.where((radius < 1.0)[..., None], disc * pads, colour)
    if room == 0:
        px0, py0, px1, py1 = np.array(level.PAD) * scale
        inside = np.minimum(np.minimum(x - px0, px1 - x), np.minimum(y - py0, py1 - y))
        swirl = np.sin(np.hypot(x - (px0 + px1) / 2, y - (py0 + py1) / 2) * 0.7)
        purple = np.array([150.0, 40.0, 214.0]) + swirl[..., None] * np.array([36.0, 24.0, 30.0])
        purple = np.where((inside < 4.0)[..., None], np.array([224.0, 150.0, 255.0]), purple)
        colour = np.where((inside >= 0)[..., None], purple * pads, colour)
    return blurred(colour)


def wall(seed: int | None = None) -> NDArray[np.uint8]:
    """[2, LEVELS, TILE, TILE, 3]: a tile (column along the wall, row downward) of blue circuit board, for walls at a
    fixed x and the darker ones at a fixed y."""
    if seed is not None:
        rng = np.random.Generator(np.random.PCG64((seed, 2)))
        u, v = np.meshgrid(np.arange(TILE) * TEXEL, np.arange(TILE) * TEXEL, indexing="ij")
        tile = _random_surface(u, v, rng)
        return np.stack([blurred(tile * rng.uniform(0.6, 1.0)), blurred(tile * rng.uniform(0.6, 1.0))])
    tile = np.empty((TILE, TILE, 3))
    tile[:] = (34.0, 62.0, 140.0)
    rng = np.random.Generator(np.random.PCG64(20191113))
    for _ in range(26):  # traces: a run along, a bend, a run down, and a solder point at both ends
        u, v, run, drop = (int(n) for n in rng.integers((0, 0, 5, 4), (TILE, TILE, 22, 20)))
        line = (70.0, 132.0, 226.0) if rng.random() < 0.6 else (52.0, 98.0, 190.0)
        along, down = np.arange(u, u + run) % TILE, np.arange(v, v + drop) % TILE
        tile[along, v] = line
        tile[along[-1], down] = line
        for point in ((u, v), (along[-1], down[-1])):
            tile[point] = (150.0, 214.0, 255.0)
    for u, v in ((8, 10), (40, 36)):  # two chips
        tile[u : u + 14, v : v + 9] = (18.0, 30.0, 74.0)
        tile[u : u + 14 : 2, [v - 1, v + 9]] = (132.0, 168.0, 220.0)
    tile[:, :2] = (104.0, 160.0, 240.0)
    tile[:, -3:] = (20.0, 34.0, 84.0)
    return np.stack([blurred(tile), blurred(tile * 0.72)])


def sky(seed: int | None = None) -> NDArray[np.uint8]:
    """[SKY_ROWS, SKY_COLUMNS, 3]: light sky with towers; rows from the horizon up, columns around from -180 degrees."""
    up = np.linspace(0, 1, SKY_ROWS)[:, None, None]
    low, high, tint = np.array([226.0, 238.0, 250.0]), np.array([142.0, 190.0, 240.0]), np.ones(3)
    rng = np.random.Generator(np.random.PCG64(7))
    if seed is not None:
        rng = np.random.Generator(np.random.PCG64((seed, 3)))
        low, high, tint = _random_colour(rng, 0.3, 1.0), _random_colour(rng, 0.3, 1.0), rng.uniform(0.3, 1.2, 3)
    image = np.broadcast_to((1 - up) * low + up * high, (SKY_ROWS, SKY_COLUMNS, 3)).copy()
    for column in range(4, SKY_COLUMNS, 16):
        width, height = int(rng.integers(4, 11)), int(rng.integers(10, 36))
        left = column + int(rng.integers(0, 4))
        shade = rng.uniform(0.86, 1.0) * tint
        columns = np.arange(left, left + width) % SKY_COLUMNS
        image[:height, columns] = np.array([168.0, 186.0, 212.0]) * shade
        image[:height, columns[: width // 3]] = np.array([200.0, 214.0, 232.0]) * shade
        image[2:height:4, columns[1:-1]] = np.array([122.0, 146.0, 186.0]) * shade
    return np.round(np.minimum(image, 255.0)).astype(np.uint8)
