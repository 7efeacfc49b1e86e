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
"""Takes points (x, y) in u to shades in 0..1. Points may be a grid that is given by its two axes, such as [X, 1] and
[1, Y]: what depends on one axis alone is then computed once."""

PERIOD = 64
"""The u after which noise repeats: walls repeat one tile of this length."""
DARKEST = 0.1
BRIGHTEST = 0.75
"""Least and greatest brightness of a surface's colors, 0..1: objects' glow is brighter."""


def hexagons(x: Floats, y: Floats, length: float, width: float) -> tuple[Floats, Floats]:
    """Distance to the center of the hexagon at each point (0 at the center, 1 at the edge), and a number per cell.

    Rows of hexagons lie along y, one every `width`; two rows take `length` of x.
    """
    nearest = _filled(x, y, np.inf)
    cell = _filled(x, y, 0.0)
    # Every second row is shifted by half a hexagon. A point is in the hexagon whose center is the nearest.
    for shift in (0.0, 0.5):
        row = np.floor(x / length + 0.5 - shift)
        column = np.floor(y / width + shift)
        dx = np.abs(x / length - row - shift) * np.sqrt(3.0)
        dy = np.abs(y / width - column - 0.5 + shift)
        distance = 2.0 * np.maximum(dy, 0.5 * dy + 0.866 * dx)
        number = column * 7.0 + row * 13.0 + shift * 5.0

        is_nearer = distance < nearest
        nearest = np.where(is_nearer, distance, nearest)
        cell = np.where(is_nearer, number, cell)
    return nearest, cell


def _filled(x: Floats, y: Floats, value: float) -> Floats:
    """The same value at all points."""
    return np.full(np.broadcast_shapes(x.shape, y.shape), value)


def _between(low: Floats, high: Floats, share: Floats) -> Floats:
    """Values between two: `low` at share 0, `high` at share 1."""
    return low + share * (high - low)


def _smooth(share: Floats) -> Floats:
    """Takes 0..1 to 0..1 with slope 0 at both ends, so that noise shows no edges between cells."""
    return share * share * (3.0 - 2.0 * share)


def noise(x: Floats, y: Floats, rng: np.random.Generator, finest: float, roughness: float) -> Floats:
    """Sums of smooth random values on grids of 32 u, 16 u and so on down to `finest`, scaled to 0..1.

    Each grid has `roughness` times the weight of the coarser one.
    """
    total = _filled(x, y, 0.0)
    weight = 1.0
    cell = 32.0
    while cell >= finest:
        size = int(PERIOD / cell)
        grid = rng.random((size, size))

        # The cell of the grid in which each point lies; the last cell ends at the first column or row.
        column = np.floor(x / cell).astype(int)
        row = np.floor(y / cell).astype(int)
        left = column % size
        right = (column + 1) % size
        top = row % size
        bottom = (row + 1) % size

        # Between the values at its four corners, by the point's place in the cell.
        across = _smooth(x / cell - column)
        down = _smooth(y / cell - row)
        at_left = _between(grid[left, top], grid[left, bottom], down)
        at_right = _between(grid[right, top], grid[right, bottom], down)
        total += weight * _between(at_left, at_right, across)

        weight *= roughness
        cell /= 2.0
    spread = max(float(np.ptp(total)), 1e-9)
    return (total - total.min()) / spread


def _offset(points: Floats, center: float) -> Floats:
    """The way along one axis from a center to each point, -PERIOD/2 to PERIOD/2: to its nearest repetition."""
    return (points - center + PERIOD / 2) % PERIOD - PERIOD / 2


def _width(rng: np.random.Generator) -> float:
    """A size in u that divides `PERIOD`."""
    return float(rng.choice([8.0, 16.0, 32.0, 64.0]))


def _cell_shade(cell: Floats) -> Floats:
    """A shade in 0..0.5 that differs from cell to cell."""
    return 0.25 * (1.0 + np.sin(cell * 12.9898))


def _flat(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    return _filled(x, y, rng.random())


def _noise(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    finest = float(rng.choice([2.0, 4.0, 8.0]))
    roughness = rng.uniform(0.4, 0.9)
    return noise(x, y, rng, finest, roughness)


def _bricks(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Rows of bricks, twice as long as they are high, with pale joints; every second row is shifted by half a brick."""
    height = _width(rng)
    joint = rng.uniform(1.5, 4.0)
    row = np.floor(y / height)
    along = x / (2.0 * height) + 0.5 * (row % 2)  # in bricks

    from_side = along % 1.0 * 2.0 * height
    from_top = y % height
    is_joint = np.minimum(from_side, from_top) < joint
    brick = np.floor(along) + row * 78.233
    return np.where(is_joint, 1.0, _cell_shade(brick))


def _stripes(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Stripes of one width, with soft or with sharp edges."""
    wave = np.sin(x * 2.0 * np.pi / _width(rng))
    if rng.random() < 0.5:
        wave = np.sign(wave)
    return 0.5 + 0.5 * wave


def _waves(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """The mean of six sine waves in random directions. Each repeats after `PERIOD`."""
    directions = rng.integers(-3, 4, (6, 2)) * 2.0 * np.pi / PERIOD
    phases = rng.uniform(0, 6.3, 6)
    waves = []
    for (per_x, per_y), phase in zip(directions, phases):
        waves.append(np.sin(per_x * x + per_y * y + phase))
    return np.clip(0.5 + np.mean(waves, axis=0), 0.0, 1.0)


def _hexagons(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    width = float(rng.choice([16.0, 32.0]))
    edge, cell = hexagons(x, y, 2.0 * width, width)
    return np.where(edge > rng.uniform(0.8, 0.95), 1.0, _cell_shade(cell))


def _plates(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Outlines of plates and lines between them, as on the level's own walls, in any strength and density."""
    shade = _filled(x, y, rng.uniform(0.0, 0.4))
    line = rng.uniform(1.0, 3.0)
    for _ in range(rng.integers(4, 24)):
        left, top = rng.integers(0, PERIOD, 2)
        wide, tall = rng.integers(8, 40, 2)
        dx = (x - left) % PERIOD
        dy = (y - top) % PERIOD

        # The outline of a plate, or a line along its upper edge.
        is_inside = (dx < wide) & (dy < tall)
        if rng.random() < 0.6:
            is_edge = (dx < line) | (dy < line) | (dx >= wide - line) | (dy >= tall - line)
        else:
            is_edge = dy < line
        shade = np.where(is_inside & is_edge, rng.uniform(0.5, 1.0), shade)
    return shade


def _blotches(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Areas of one shade each, bounded by the level lines of noise."""
    steps = rng.integers(2, 6)
    finest = float(rng.choice([4.0, 8.0, 16.0]))
    height = noise(x, y, rng, finest, 0.6)
    return np.floor(height * steps * 0.999) / (steps - 1)


def _strokes(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Straight strokes in any direction, of any length and shade."""
    shade = _filled(x, y, rng.random())
    for _ in range(rng.integers(4, 20)):
        middle_x, middle_y = rng.uniform(0, PERIOD, 2)
        angle = rng.uniform(0, np.pi)
        half_length = rng.uniform(4.0, 30.0)
        half_width = rng.uniform(1.0, 4.0)

        # Each point in the stroke's own frame.
        dx = _offset(x, middle_x)
        dy = _offset(y, middle_y)
        along = dx * np.cos(angle) + dy * np.sin(angle)
        across = dy * np.cos(angle) - dx * np.sin(angle)

        is_inside = (np.abs(along) < half_length) & (np.abs(across) < half_width)
        shade = np.where(is_inside, rng.random(), shade)
    return shade


def _gradient(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """From one side to the other and back, over a tile or two."""
    width = float(rng.choice([64.0, 128.0]))
    return np.abs((y / width + rng.random()) % 1.0 * 2.0 - 1.0)


def _checker(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    width = _width(rng)
    column = np.floor(x / width)
    row = np.floor(y / width)
    return (column + row) % 2


def _marble(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Stripes that noise bends."""
    strength = rng.uniform(16.0, 48.0)
    bent = x + strength * noise(x, y, rng, 4.0, 0.6)
    return 0.5 + 0.5 * np.sin(bent * 2.0 * np.pi / _width(rng))


def _dots(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Rows of discs; every second row is shifted by half the distance between two."""
    width = _width(rng)
    row = np.floor(y / width)
    shifted = x + 0.5 * width * (row % 2)
    dx = shifted % width - width / 2
    dy = y % width - width / 2
    radius = rng.uniform(0.2, 0.45) * width
    return (np.hypot(dx, dy) < radius).astype(float)


def _zigzag(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Stripes that zigzag: they are folded in the middle of every width."""
    width = _width(rng)
    height = float(rng.choice([8.0, 16.0]))
    steepness = rng.uniform(0.5, 1.5)
    fold = np.abs(x % width - width / 2) * steepness
    return np.floor((y + fold) / height) % 2


def _cracks(x: Floats, y: Floats, rng: np.random.Generator) -> Floats:
    """Edges between the cells that are nearest to random points."""
    num_points = int(rng.integers(8, 24))
    distances = []
    for point_x, point_y in rng.uniform(0, PERIOD, (num_points, 2)):
        dx = _offset(x, point_x)
        dy = _offset(y, point_y)
        distances.append(np.hypot(dx, dy))
    # A partition at index 1 puts the two smallest of the distances first.
    nearest, second = np.partition(np.stack(distances), 1, axis=0)[:2]

    # At an edge two points are about as near. Inside a cell it is brighter further from its point.
    is_edge = second - nearest < rng.uniform(1.5, 4.0)
    return np.where(is_edge, 1.0, 0.4 * nearest / nearest.max())


FAMILIES: dict[str, tuple[Pattern, ...]] = {
    "train": (_plates, _flat, _noise, _bricks, _stripes, _waves, _hexagons, _blotches, _strokes, _gradient),
    "choose": (_checker, _marble),
    "unseen": (_dots, _zigzag, _cracks),
}
"""Patterns by group. The group `train` has the level's own as well, in other colors, sizes and strengths of lines."""


def color(rng: np.random.Generator, darkest: float = DARKEST, brightest: float = BRIGHTEST) -> Floats:
    """A color [3] in 0..255 of any hue and of a brightness between two of 0..1."""
    hue = rng.random()
    saturation = rng.uniform(0.0, 0.9)
    brightness = rng.uniform(darkest, brightest)
    return 255.0 * np.array(colorsys.hsv_to_rgb(hue, saturation, brightness))


def surface(x: Floats, y: Floats, group: str, seed: int, rng: np.random.Generator) -> Floats:
    """Colors [..., 3] in 0..255 at points in u: a pattern of a group, chosen in turn by the seed, in two colors.

    Its rows lie along x or along y. With noise of three colors, which stands for a photograph, where the pattern is
    noise and chance wants it. In the group to train on, some surfaces are two patterns at once or have a color more.
    """
    family = FAMILIES[group]
    pattern = family[seed % len(family)]
    if rng.random() < 0.5:
        x, y = y, x  # rows along y
    dark = color(rng)
    light = color(rng)
    # Many real surfaces have little contrast.
    contrast = rng.uniform(0.15, 1.0)
    light = dark + contrast * (light - dark)

    shade = _filled(x, y, 0.0)  # at all points, also if the pattern depends on one axis alone
    shade += np.clip(pattern(x, y, rng), 0.0, 1.0)
    if group == "train" and rng.random() < 0.4:  # two patterns at once
        other = family[rng.integers(len(family))]
        share = rng.uniform(0.2, 0.8)
        shade = share * shade + (1.0 - share) * np.clip(other(x, y, rng), 0.0, 1.0)
    painted = dark + shade[..., None] * (light - dark)

    if group == "train" and rng.random() < 0.4:  # a color more, where the pattern is brighter than half
        amount = np.clip(2.0 * shade - 1.0, 0.0, 1.0)[..., None]
        painted += amount * (color(rng) - painted)

    if pattern is _noise and rng.random() < 0.5:  # like a photograph
        clouds = noise(x, y, rng, 4.0, 0.7)[..., None]
        amount = clouds * rng.uniform(0.2, 0.8)
        painted += amount * (color(rng) - painted)
    return painted
