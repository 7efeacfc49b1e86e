"""The comparison of views with pictures: regions are all there and apart, and our own pictures are found equal."""

import numpy as np

from benchmarks.fidelity_frames import REGIONS, compared
from envs.rooms import RoomsConfig, RoomsVectorEnv
from envs.rooms.level import ROOM_2

POSES = ((0, -150.0), (4, -100.0), (8, -60.0), (12, 380.0), (16, 480.0))


def test_our_own_pictures_differ_in_nothing_and_have_all_regions() -> None:
    """A run of five pictures through both rooms; the objects are found from the pictures alone."""
    env = RoomsVectorEnv(len(POSES), RoomsConfig())
    env.reset(seed=0)
    state = env.get_state()
    state["frame"][:], state["x"][:] = np.array(POSES).T
    state["room"][3:], state["y"][:], state["shown"][:], state["match_side"][:] = ROOM_2, -64.0, 0, 0
    state["match"][:3], state["match"][3:], state["other"][3:], state["example_side"][:] = 17, 31, 5, 1
    pictures = env.set_state(state)
    frames = np.interp(np.arange(17), *np.array(POSES).T)
    rows = [{"frame": f"{k}", "x": f"{x}", "y": "-64", "z": "24.125", "yaw": "0"} for k, x in enumerate(frames)]
    for row, x in zip(rows[9:12], (-50.0, -45.0, -40.0)):
        row["x"] = f"{x}"
    theirs, ours, masks = compared(rows, pictures.transpose(1, 0, 2, 3).reshape(72, -1, 3))
    assert (theirs == ours).all()
    assert set(masks) == set(REGIONS)
    assert (np.sum(list(masks.values()), axis=0) <= 1).all()
    assert np.mean(np.sum(list(masks.values()), axis=0)) > 0.99
    assert all(mask.any() for mask in masks.values())
