"""DeepMind Lab's interface without the engine: sets of actions and the length of instructions.

Both the adapter of the engine (`dmlab.py`) and the re-created level (`rooms/`) read it.
"""

import numpy as np
from numpy.typing import NDArray

NINE = (
    "forward",
    "backward",
    "strafe left",
    "strafe right",
    "look left",
    "look right",
    "look left, forward",
    "look right, forward",
    "fire",
)
"""The nine actions of IMPALA's code. An action is a set of motions, joined by ", "."""
FIFTEEN = (
    "forward",
    "backward",
    "strafe left",
    "strafe right",
    "look left",
    "look right",
    "look far left",
    "look far right",
    "look down",
    "look up",
    "look left, forward",
    "look right, forward",
    "look far left, forward",
    "look far right, forward",
    "fire",
)
"""The fifteen actions of Hessel et al. 2019 (PopArt) and most later work."""
ACTION_SETS = {"nine": (NINE, 20), "fifteen": (FIFTEEN, 10)}
"""Names of the actions, and look pixels a frame, by the name of the set."""
_MOTIONS = {
    "look left": (0, -1),
    "look right": (0, 1),
    "look far left": (0, -1),
    "look far right": (0, 1),
    "look up": (1, -1),
    "look down": (1, 1),
    "strafe left": (2, -1),
    "strafe right": (2, 1),
    "forward": (3, 1),
    "backward": (3, -1),
    "fire": (4, 1),
}
"""Column of a row of `action_rows`, and sign, of each motion."""


def action_rows(names: tuple[str, ...], look_pixels: int, far_pixels: int = 60) -> NDArray[np.intc]:
    """Actions as Lab takes them each frame: [A, 7] of (look right, down, strafe right, forward, fire, jump, crouch).

    A look, or a far one, turns by some pixels (mouse units of 0.1056 degrees) a frame.
    """
    rows = np.zeros((len(names), 7), np.intc)
    for row, name in zip(rows, names):
        for motion in name.split(", "):
            column, sign = _MOTIONS[motion]
            amount = 1
            if "far" in motion:
                amount = far_pixels
            elif "look" in motion:
                amount = look_pixels
            row[column] = sign * amount
    return rows


INSTRUCTION_WORDS = 16
"""Number of words of an instruction that are kept; all instructions of DMLab-30 are shorter."""
