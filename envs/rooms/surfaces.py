"""Random surfaces for floors, walls and skies, in families of patterns that are divided into three groups.

Agents that are to play in the real level train on surfaces of the group `train`; which agent is kept is decided on
those of `choose`; and how they do on surfaces that were not used to select it is measured on those of `unseen`. No
family is in two groups. All is drawn by formulas from a seed.
"""

import colorsys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Pattern = Callable[[Floats, Floats, np.random.Generator], Floats]
"""Takes points (x, y) in u to shades in 0..1."""

#: The u after which noise repeats: walls repeat one tile of this length.
PERIOD = 64
#: Least and greatest brightness of a surface's colours, 0..1: objects' glow is brighter.
DARKEST, BRIGHTEST = 0.1, 0.75


def hexagons(x: Floats, y: Floats, length: float, width: float) -> tuple[Floats, Floats]:
    """Distance to the centre of the hexagon at each point (0 at the centre, 1 at the edge), and a number per cell.

    Rows of hexagons lie along y, one every `width`; two rows take `length` of x.
    """
    best, cell = np.full(x.shape, np.inf), np.zeros(x.shape)
    for shift in (0.0, 0.5):
        row, column = np.floor(x / length + 0.5 - shift), np.floor(y / width + shift)
        dx = np.abs(x / length - row - shift) * np.sqrt(3.0)
        dy = np.abs(y / width - column - 0.5 + shift)
        edge = 2.0 * np.maximum(dy, 0.5 * dy + 0.866 * dx)
        nearer = edge < best
        best = np.where(nearer, edge, best)
        cell = np.where(nearer, column * 7.0 + row * 13.0 + shift * 5.0, cell)
    return best, cell


def noise(x: Floats, y: Floats, rng: np.random.Generator, finest: float, roughness: float) -> Floats:
    """Sums of smooth random values on grids of 32 u, 16 u and so on down to `finest`, scaled to 0..1.

    Each grid has `roughness` times the weight of the coarser one.
    """
    total, weight, cell = np.zeros(x.shape), 1.0, 32.0
    while cell >= finest:
        size = int(PERIOD / cell)
        grid = rng.random((size, size))
        column, row = np.floor(x / cell).astype(int), np.floor(y / cell).astype(int)
        u, v = x / cell - column, y / cell - row
        u, v = u * u * (3.0 - 2.0 * u), v * v * (3.0 - 2.0 * v)
        corners = [grid[(column + a) % size, (row + b) % size] for a in (0, 1) for b in (0, 1)]
        low, high = corners[0] + v * (corners[1] - corners[0]), corners[2] + v * (corners[3] - corners[2])
        total += weight * (low + u * (high - low))
        weight *= roughness
        cell /= 2.0
    return (total - total.min()) / max(float(np.ptp(total)), 1e-9)


def _width(rng: np.random.Generator) -> float:
    """A size in u that divides `PERIOD`."""
    return float(rng.choice([8.0, 16.0, 32.0, 64.0]))


def _cell_shade(cell: Floats) -> Floats:
    """A shade in 0..0.5 that differs from cell to cell."""
    return 0.25 * (1.0 + np.sin(cell * 12.9898))


def _flat(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    return np.full(x.shape, rng.random())


def _noise(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    return noise(x, y, rng, float(rng.choice([2.0, 4.0, 8.0])), rng.uniform(0.4, 0.9))


def _bricks(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    width, joint = _width(rng), rng.uniform(1.5, 4.0)
    row = np.floor(y / width)
    along = x / (2.0 * width) + 0.5 * (row % 2)
    joints = np.minimum(along % 1.0 * 2.0 * width, y % width) < joint
    return np.where(joints, 1.0, _cell_shade(np.floor(along) + row * 78.233))


def _stripes(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    wave = np.sin(x * 2.0 * np.pi / _width(rng))
    return 0.5 + 0.5 * (np.sign(wave) if rng.random() < 0.5 else wave)


def _waves(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    directions = rng.integers(-3, 4, (6, 2)) * 2.0 * np.pi / PERIOD
    waves = [np.sin(a * x + b * y + p) for (a, b), p in zip(directions, rng.uniform(0, 6.3, 6))]
    return np.clip(0.5 + np.mean(waves, axis=0), 0.0, 1.0)


def _hexagons(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    width = float(rng.choice([16.0, 32.0]))
    edge, cell = hexagons(x, y, 2.0 * width, width)
    return np.where(edge > rng.uniform(0.8, 0.95), 1.0, _cell_shade(cell))


def _plates(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Outlines of plates and lines between them, as on the level's own walls, in any strength and density."""
    shade, line = np.full(x.shape, rng.uniform(0.0, 0.4)), rng.uniform(1.0, 3.0)
    for _ in range(rng.integers(4, 24)):
        left, top = rng.integers(0, PERIOD, 2)
        wide, tall = rng.integers(8, 40, 2)
        dx, dy = (x - left) % PERIOD, (y - top) % PERIOD
        inside = (dx < wide) & (dy < tall)
        border = inside & ((dx < line) | (dy < line) | (dx >= wide - line) | (dy >= tall - line))
        drawn = border if rng.random() < 0.6 else inside & (dy < line)
        shade = np.where(drawn, rng.uniform(0.5, 1.0), shade)
    return shade


def _blotches(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Areas of one shade each, bounded by the level lines of noise."""
    steps = rng.integers(2, 6)
    return np.floor(noise(x, y, rng, float(rng.choice([4.0, 8.0, 16.0])), 0.6) * steps * 0.999) / (steps - 1)


def _strokes(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Straight strokes in any direction, of any length and shade."""
    shade = np.full(x.shape, rng.random())
    for _ in range(rng.integers(4, 20)):
        px, py = rng.uniform(0, PERIOD, 2)
        angle, reach, width = rng.uniform(0, np.pi), rng.uniform(4.0, 30.0), rng.uniform(1.0, 4.0)
        dx, dy = (x - px + PERIOD / 2) % PERIOD - PERIOD / 2, (y - py + PERIOD / 2) % PERIOD - PERIOD / 2
        along, across = dx * np.cos(angle) + dy * np.sin(angle), dy * np.cos(angle) - dx * np.sin(angle)
        shade = np.where((np.abs(along) < reach) & (np.abs(across) < width), rng.random(), shade)
    return shade


def _gradient(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """From one side to the other and back, over a tile or two."""
    width = float(rng.choice([64.0, 128.0]))
    return np.abs((y / width + rng.random()) % 1.0 * 2.0 - 1.0)


def _checker(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    width = _width(rng)
    return (np.floor(x / width) + np.floor(y / width)) % 2


def _marble(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    bent = x + rng.uniform(16.0, 48.0) * noise(x, y, rng, 4.0, 0.6)
    return 0.5 + 0.5 * np.sin(bent * 2.0 * np.pi / _width(rng))


def _dots(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    width = _width(rng)
    row = np.floor(y / width)
    dx, dy = (x + 0.5 * width * (row % 2)) % width - width / 2, y % width - width / 2
    return (np.hypot(dx, dy) < rng.uniform(0.2, 0.45) * width).astype(float)


def _zigzag(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    width, high = _width(rng), float(rng.choice([8.0, 16.0]))
    fold = np.abs(x % width - width / 2) * rng.uniform(0.5, 1.5)
    return np.floor((y + fold) / high) % 2


def _cracks(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Edges between the cells that are nearest to random points."""
    distances = []
    for px, py in rng.uniform(0, PERIOD, (int(rng.integers(8, 24)), 2)):
        dx, dy = (x - px + PERIOD / 2) % PERIOD - PERIOD / 2, (y - py + PERIOD / 2) % PERIOD - PERIOD / 2
        distances.append(np.hypot(dx, dy))
    nearest = np.partition(np.stack(distances), 1, axis=0)[:2]
    return np.where(nearest[1] - nearest[0] < rng.uniform(1.5, 4.0), 1.0, 0.4 * nearest[0] / nearest[0].max())


FAMILIES: dict[str, tuple[Pattern, ...]] = {
    "train": (_plates, _flat, _noise, _bricks, _stripes, _waves, _hexagons, _blotches, _strokes, _gradient),
    "choose": (_checker, _marble),
    "unseen": (_dots, _zigzag, _cracks),
}
"""Patterns by group. The group `train` has the level's own as well, in other colours, sizes and strengths of lines."""


def colour(rng: np.random.Generator, darkest: float = DARKEST, brightest: float = BRIGHTEST) -> Floats:
    """A colour [3] in 0..255 of any hue and of a brightness between two of 0..1."""
    return 255.0 * np.array(colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.0, 0.9), rng.uniform(darkest, brightest)))


def surface(x: Floats, y: Floats, group: str, seed: int, rng: np.random.Generator) -> Floats:
    """Colours [..., 3] in 0..255 at points in u: a pattern of a group, chosen in turn by the seed, in two colours.

    Its rows lie along x or along y. With noise of three colours, which stands for a photograph, where the pattern is
    noise and chance wants it. In the group to train on, some surfaces are two patterns at once or have a colour more.
    """
    pattern = FAMILIES[group][seed % len(FAMILIES[group])]
    if rng.random() < 0.5:
        x, y = y, x
    dark, light = colour(rng), colour(rng)
    # Many real surfaces have little contrast.
    light = dark + rng.uniform(0.15, 1.0) * (light - dark)
    shade = np.clip(pattern(x, y, rng), 0.0, 1.0)
    if group == "train" and rng.random() < 0.4:
        other = FAMILIES[group][rng.integers(len(FAMILIES[group]))]
        share = rng.uniform(0.2, 0.8)
        shade = share * shade + (1.0 - share) * np.clip(other(x, y, rng), 0.0, 1.0)
    painted = dark + shade[..., None] * (light - dark)
    if group == "train" and rng.random() < 0.4:
        painted += np.clip(2.0 * shade - 1.0, 0.0, 1.0)[..., None] * (colour(rng) - painted)
    if pattern is _noise and rng.random() < 0.5:
        third = noise(x, y, rng, 4.0, 0.7)[..., None]
        painted += third * rng.uniform(0.2, 0.8) * (colour(rng) - painted)
    return painted
