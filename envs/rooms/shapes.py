"""The twelve shapes of the level's objects, as signed distances: original designs, glowing bodies with dark trim.

Lengths are in units of 16 u at object scale 1, so most shapes are 2 units tall; z is up and the spin axis. `render.py`
places, spins and colours them.
"""

import math

from numba.extending import register_jitable

#: Name -> (number in `distances`, radius of the bounding cylinder, its half height).
SHAPES: dict[str, tuple[int, float, float]] = {
    "barbell": (0, 0.52, 1.02),
    "coil": (1, 0.86, 1.02),
    "cone": (2, 0.96, 1.02),
    "crossbar": (3, 1.02, 1.02),
    "cube": (4, 1.02, 0.72),
    "cylinder": (5, 0.72, 1.54),
    "double_prism": (6, 1.02, 0.48),
    "glow_ball": (7, 0.94, 0.94),
    "pot_cone": (8, 0.92, 1.02),
    "prism_jack": (9, 1.02, 1.02),
    "sphere": (10, 1.02, 1.02),
    "toroid": (11, 1.02, 1.02),
}


@register_jitable
def _length(a: float, b: float) -> float:
    """math.hypot without its care for overflow, which costs a library call."""
    return math.sqrt(a * a + b * b)


@register_jitable
def _box(x: float, y: float, z: float, a: float, b: float, c: float) -> float:
    """Signed distance to the box |x| <= a, |y| <= b, |z| <= c."""
    dx, dy, dz = abs(x) - a, abs(y) - b, abs(z) - c
    outside = math.sqrt(max(dx, 0.0) ** 2 + max(dy, 0.0) ** 2 + max(dz, 0.0) ** 2)
    return outside + min(max(dx, max(dy, dz)), 0.0)


@register_jitable
def _tube(across: float, along: float, radius: float, half: float) -> float:
    """Signed distance to a cylinder, from the distance to its axis and the coordinate along it."""
    da, dh = across - radius, abs(along) - half
    return math.sqrt(max(da, 0.0) ** 2 + max(dh, 0.0) ** 2) + min(max(da, dh), 0.0)


@register_jitable
def _ring(across: float, along: float, major: float, minor: float) -> float:
    """Signed distance to a torus around the axis, from the distance to its axis and the coordinate along it."""
    return _length(across - major, along) - minor


@register_jitable
def distances(shape: int, x: float, y: float, z: float) -> tuple[float, float]:
    """Distances (a lower bound of each) from the point to the glowing body and to the dark trim of a shape."""
    r = math.sqrt(x * x + y * y)
    if shape == 0:  # barbell: two balls on a rod
        glow = math.sqrt(r * r + (abs(z) - 0.52) ** 2) - 0.48
        return glow, _tube(r, z, 0.15, 0.7)
    if shape == 1:  # coil: a spring of three turns around a rod
        pitch = 0.6
        turn = z / pitch - math.atan2(y, x) / (2.0 * math.pi)
        off = (turn - round(min(max(turn, -1.0), 1.0))) * pitch
        glow = 0.8 * (_length(r - 0.64, off) - 0.2)
        return max(glow, abs(z) - 1.0), _tube(r, z, 0.14, 0.95)
    if shape == 2:  # cone on a ring
        glow = max(0.9 * (r * 0.91 + (z - 1.0) * 0.41), -z - 0.9)
        return glow, _ring(r, z + 0.88, 0.82, 0.12)
    if shape == 3:  # crossbar: three beams that cross in a dark block
        glow = min(_box(x, y, z, 1.0, 0.22, 0.22), min(_box(x, y, z, 0.22, 1.0, 0.22), _box(x, y, z, 0.22, 0.22, 1.0)))
        return glow, _box(x, y, z, 0.34, 0.34, 0.34)
    if shape == 4:  # cube with dark posts at its corners
        return _box(x, y, z, 0.64, 0.64, 0.64), _box(abs(x) - 0.62, abs(y) - 0.62, z, 0.09, 0.09, 0.7)
    if shape == 5:  # cylinder with dark caps
        return _tube(r, z, 0.62, 1.4), _tube(r, abs(z) - 1.38, 0.7, 0.14)
    if shape == 6:  # double prism: two flat pyramids, base to base, in a dark belt
        s = (abs(x) + abs(y)) * 0.7071
        return max(0.42 * s + 0.907 * (abs(z) - 0.45), s - 0.68), _length(s - 0.64, z) - 0.09
    if shape == 7:  # glow ball: a ball in two dark hoops
        ball = math.sqrt(r * r + z * z)
        hoop = min(_length(math.sqrt(x * x + z * z) - 0.82, y), _length(r - 0.82, z)) - 0.1
        return ball - 0.78, hoop
    if shape == 8:  # pot cone: a pot, wider at its dark rim
        glow = max(0.9 * (r * 0.95 - 0.31 * (z + 1.0) - 0.28), abs(z) - 0.95)
        return glow, _ring(r, z - 0.9, 0.78, 0.12)
    if shape == 9:  # prism jack: six spikes around a dark ball
        spike_z = r * 0.96 + 0.28 * (abs(z) - 1.0)
        spike_x = math.sqrt(y * y + z * z) * 0.96 + 0.28 * (abs(x) - 1.0)
        spike_y = math.sqrt(x * x + z * z) * 0.96 + 0.28 * (abs(y) - 1.0)
        return min(spike_x, min(spike_y, spike_z)), math.sqrt(r * r + z * z) - 0.36
    if shape == 10:  # sphere on a dark foot
        return math.sqrt(x * x + y * y + z * z) - 1.0, _tube(r, z + 0.93, 0.4, 0.08)
    # toroid: an upright ring in four dark collars
    glow = _length(math.sqrt(x * x + z * z) - 0.74, y) - 0.25
    arm = abs(abs(x) - abs(z)) * 0.7071
    along = (abs(x) + abs(z)) * 0.7071
    return glow, max(_length(along - 0.74, y) - 0.29, arm - 0.1)
