"""The comparison of views with pictures: regions are all there and apart, and our own pictures are found equal."""

import numpy as np

from benchmarks.fidelity_frames import REGIONS, compared
from envs.rooms import RoomsConfig, RoomsVectorEnv
from envs.rooms.level import ROOM_2

POSES = ((0, -150.0), (4, -100.0), (8, -60.0), (12, 380.0), (16, 480.0))
"""Frame and x of five pictures: three in the first room, two in the second."""


def test_our_own_pictures_differ_in_nothing_and_have_all_regions() -> None:
    """A run of five pictures through both rooms; the objects are found from the pictures alone."""
    known_frames, known_x = np.array(POSES).T
    env = RoomsVectorEnv(len(POSES), RoomsConfig())
    env.reset(seed=0)
    state = env.get_state()
    state["frame"][:] = known_frames
    state["x"][:] = known_x
    state["y"][:] = -64.0
    state["room"][3:] = ROOM_2
    state["shown"][:] = 0

    # The objects of the rooms, by number, and their sides.
    state["match"][:3] = 17
    state["match"][3:] = 31
    state["other"][3:] = 5
    state["match_side"][:] = 0
    state["example_side"][:] = 1
    pictures = env.set_state(state)
    beside_each_other = pictures.transpose(1, 0, 2, 3).reshape(72, -1, 3)

    # The trace: a row for each frame, between the pictures as well. The room is left between frames 11 and 12.
    x_of_frames = np.interp(np.arange(17), known_frames, known_x)
    x_of_frames[9:12] = (-50.0, -45.0, -40.0)
    rows = []
    for frame, x in enumerate(x_of_frames):
        rows.append({"frame": f"{frame}", "x": f"{x}", "y": "-64", "z": "24.125", "yaw": "0"})

    theirs, ours, masks = compared(rows, beside_each_other)
    assert (theirs == ours).all()

    # Regions do not overlap and cover nearly all.
    assert set(masks) == set(REGIONS)
    assert all(mask.any() for mask in masks.values())
    covered = np.sum(list(masks.values()), axis=0)
    assert (covered <= 1).all()
    assert np.mean(covered) > 0.99
