"""The head-up display, as scalar functions: numbers, icons, the time left and the score, blended over the view.

Places, colors and strengths were measured on the real level at 72 x 96 pixels, where most of it cannot be read; it
grows with the view. The glyphs are original.
"""

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from envs.rooms import level
from envs.rooms.look import Look
from envs.rooms.physics import FRAME_SECONDS, FRAMES_PER_SECOND

PATCHES = np.array(
    [
        # Behind the two numbers.
        (65, 2, 7, 13, 110, 75, 5, 0.55),
        (65, 28, 7, 14, 105, 100, 105, 0.45),
        # A small icon with two holes.
        (65, 16, 4, 5, 150, 255, 255, 1.0),
        (66, 21, 2, 1, 120, 220, 220, 0.4),
        (66, 17, 1, 1, 150, 110, 50, 0.9),
        (67, 18, 1, 1, 150, 110, 50, 0.9),
        # A hand.
        (57, 43, 5, 3, 228, 225, 222, 0.4),
        (58, 43, 3, 3, 228, 225, 222, 0.6),
        (56, 47, 1, 6, 110, 200, 190, 0.4),
        (57, 47, 5, 1, 110, 200, 190, 0.35),
        # Behind the score.
        (61, 90, 3, 6, 25, 65, 225, 0.47),
    ]
)
"""Patches: row, column, rows and columns in 1/72 of the height and 1/96 of the width, red, green, blue, strength
0..1."""
DISC = (67.5, 46.5, 3.6)
"""Row and column of the disc's middle and its radius."""
_GLYPHS = "75557 26227 71747 71717 55711 74717 74757 71222 75757 75717 00700"
"""Glyphs of 3 x 5 pixels, a row per octal digit: the digits 0..9, then minus."""
MINUS = 10


def _font() -> NDArray[np.bool_]:
    """The pixels [11, 5, 3] of the glyphs."""
    glyphs = _GLYPHS.split()
    font = np.zeros((len(glyphs), 5, 3), bool)
    for number, glyph in enumerate(glyphs):
        for row, digit in enumerate(glyph):
            bits = int(digit)
            font[number, row] = bits & 4, bits & 2, bits & 1
    return font


FONT = _font()


@register_jitable
def _blend(
    image: NDArray[np.uint8], row: int, column: int, red: float, green: float, blue: float, strength: float
) -> None:
    """Moves a pixel towards a color by a share 0..1; pixels outside of the image are left out."""
    if 0 <= row < image.shape[0] and 0 <= column < image.shape[1]:
        pixel = image[row, column]
        share = min(strength, 1.0)
        pixel[0] = np.uint8(pixel[0] + share * (red - pixel[0]))
        pixel[1] = np.uint8(pixel[1] + share * (green - pixel[1]))
        pixel[2] = np.uint8(pixel[2] + share * (blue - pixel[2]))


@register_jitable
def _columns(own: tuple[int, int], low: int, high: int) -> range:
    """Those of low..high - 1 among the columns start, start + stride and so on, where `own` is (start, stride)."""
    start, stride = own
    first = low + (start - low) % stride
    return range(first, high, stride)


@register_jitable
def _glyph(
    image: NDArray[np.uint8],
    own: tuple[int, int],
    glyph: int,
    row: float,
    left: float,
    high: float,
    wide: float,
    color: tuple[float, float, float],
    strength: float,
) -> None:
    """Draws one glyph of the font, `high` x `wide` pixels with the gap to the next; the size may be a fraction."""
    first_row = int(row)
    first_column = int(left)
    rows = max(int(high), 1)
    columns = max(int(0.9 * wide), 1)
    for r in range(rows):
        font_row = int((r + 0.5) * 5 / rows)
        for column in _columns(own, first_column, first_column + columns):
            font_column = int((column - first_column + 0.5) * 3 / columns)
            if FONT[glyph, font_row, font_column]:
                _blend(image, first_row + r, column, color[0], color[1], color[2], strength)


@register_jitable
def _number(
    image: NDArray[np.uint8],
    own: tuple[int, int],
    value: int,
    row: float,
    right: float,
    high: float,
    wide: float,
    color: tuple[float, float, float],
    strength: float,
) -> None:
    """Draws an integer that ends at column `right`."""
    # The digits from the last to the first; of 0 one as well.
    rest = abs(value)
    begun = False
    while rest > 0 or not begun:
        right -= wide
        _glyph(image, own, rest % 10, row, right, high, wide, color, strength)
        rest //= 10
        begun = True
    if value < 0:
        _glyph(image, own, MINUS, row, right - wide, high, wide, color, strength)


@register_jitable
def draw(
    plan: level.Level, state: level.State, i: int, style: Look, start: int, stride: int, image: NDArray[np.uint8]
) -> None:
    """Draws health and armour (bottom left), the time left (top right) and the score (right) into image [H, W, 3].

    Of the columns only start, start + stride and so on.
    """
    if style.hud == 0.0:
        return
    own = (start, stride)
    strength = style.hud
    # Pixels of one unit, which is a pixel of the view that was measured.
    y = image.shape[0] / 72.0
    x = image.shape[1] / 96.0
    # Random looks move all parts towards the middle: `low` is added to rows, `left` and `right` to columns.
    low = -style.hud_shift
    left = style.hud_shift
    right = -style.hud_shift

    for k in range(PATCHES.shape[0]):
        patch = PATCHES[k]
        shift = left if patch[1] < 72.0 else right
        first_row = int((patch[0] + low) * y)
        end_row = int((patch[0] + patch[2] + low) * y)
        first_column = int((patch[1] + shift) * x)
        end_column = int((patch[1] + patch[3] + shift) * x)
        for row in range(first_row, end_row):
            for column in _columns(own, first_column, end_column):
                _blend(image, row, column, patch[4], patch[5], patch[6], patch[7] * strength)

    middle = (DISC[0] + low) * y
    center = (DISC[1] + left) * x
    radius = DISC[2] * y
    for row in range(int(middle - radius), int(middle + radius) + 1):
        for column in _columns(own, int(center - radius), int(center + radius) + 1):
            if (row + 0.5 - middle) ** 2 + (column + 0.5 - center) ** 2 < radius * radius:
                _blend(image, row, column, style.disc[0], style.disc[1], style.disc[2], strength)

    # Health falls from 125 by 1 a second.
    seconds_shown = int((state.frame[i] - state.shown[i]) * FRAME_SECONDS)
    health = max(125 - seconds_shown, 100)
    row_of_health = (65 + low) * y
    faint = 0.3 * strength
    _number(image, own, 100, row_of_health, (15 + left) * x, 7 * y, 4.3 * x, (220.0, 150.0, 10.0), faint)
    _number(image, own, health, row_of_health, (42 + left) * x, 7 * y, 4.7 * x, (225.0, 220.0, 215.0), faint)

    edge = (96 + right) * x
    score = round(state.score[i])
    _number(image, own, score, (61 + low) * y, edge, 3 * y, 2.0 * x, (235.0, 235.0, 240.0), 0.5 * strength)

    # The time left in seconds, rounded up.
    seconds_left = -((state.frame[i] - plan.episode_frames) // FRAMES_PER_SECOND)
    _number(image, own, seconds_left, (1 - low) * y, edge, 2.5 * y, 2.6 * x, (20.0, 26.0, 36.0), 0.85 * strength)
