"""Tasks of retention and of rewriting by their rules, replayed literally from what they show."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import envs
from envs.retention import KeyToDoor, PassiveTMaze, RepeatPrevious, VisualMatch
from envs.rewriting import Association, ColorCubes, EndlessTMaze

ROWS = 16


def episode(env: Any, steps: int, seed: int = 0, oracle: float = 0.5) -> tuple[NDArray[Any], ...]:
    """Observations [T + 1, N, F], actions, rewards and ends [T, N] from the start; actions are the oracle's in part."""
    rng = np.random.default_rng(seed)
    seen, actions, rewards, over = [env.reset(seed=seed)[0]], [], [], []
    for _ in range(steps):
        random = rng.integers(env.single_action_space.n, size=env.num_envs)
        actions.append(np.where(rng.random(env.num_envs) < oracle, env.oracle_actions(), random))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        seen.append(observation)
        rewards.append(reward)
        over.append(terminated | truncated)
    return tuple(map(np.stack, (seen, actions, rewards, over)))


@pytest.mark.parametrize("oracle", [0.0, 0.9])
def test_passive_tmaze(oracle: float) -> None:
    rows = 8 * ROWS  # in some of them the player goes back
    env = PassiveTMaze(rows, length=3)
    seen, actions, rewards, over = episode(env, 4, oracle=oracle)
    assert over.tolist() == [[step == 3] * rows for step in range(4)]
    for row in range(rows):
        goal = {0: 1, 1: -1}[int(seen[0, row, :2].argmax())]
        x = y = 0
        for step in range(4):
            action, was_there = int(actions[step, row]), x == 3
            if y == 0:
                x = min(max(x + (action == 0) - (action == 2), 0), 3)
            if was_there:
                y = min(max(y + (action == 1) - (action == 3), -1), 1)
            expected = float(y == goal) if step == 3 else -(x < step + 1) / 3
            assert rewards[step, row] == pytest.approx(expected)
            if step < 3:
                assert seen[step + 1, row].tolist() == [0, 0, x == 0, x == 3 and y == 0]


def test_repeat_previous() -> None:
    env = RepeatPrevious(ROWS, delay=3, symbols=4, steps=10)
    seen, actions, rewards, over = episode(env, 10)
    symbols = seen.argmax(axis=2)
    assert (seen.sum(axis=2) == 1).all()
    assert over[-1].all()
    assert not over[:-1].any()
    assert not rewards[:3].any()
    right = actions[3:] == symbols[:7]
    assert rewards[3:] == pytest.approx(np.where(right, 1 / 7, -1 / 7))
    assert {*symbols.ravel()} == set(range(4))


@pytest.mark.parametrize("apple", [0.0, 0.25])
def test_visual_match(apple: float) -> None:
    env = VisualMatch(ROWS, delay=4, symbols=3, apple=apple)
    seen, actions, rewards, over = episode(env, 6)
    symbol, side = seen[0, :, :3].argmax(axis=1), seen[1:5, :, 3:5].argmax(axis=2)
    assert (seen[0, :, :3].sum(axis=1) == 1).all()
    assert not seen[1:6, :, :3].any()
    assert (seen[1:5, :, 3:5].sum(axis=2) == 1).all()
    assert seen[:6, :, 5].tolist() == [[step == 5] * ROWS for step in range(6)]
    assert (rewards[0] == 0).all()
    assert (rewards[1:5] == apple * (actions[1:5] == side)).all()
    assert (rewards[5] == (actions[5] == symbol)).all()
    assert over.tolist() == [[step == 5] * ROWS for step in range(6)]


def test_key_to_door() -> None:
    env = KeyToDoor(ROWS, delay=3, apple=0.5)
    seen, actions, rewards, over = episode(env, 5)
    there = actions[:4] == seen[:4, :, :2].argmax(axis=2)
    assert seen[:5, :, 2:].argmax(axis=2).tolist() == [[min(step, 1) + (step == 4)] * ROWS for step in range(5)]
    assert (rewards[0] == 0).all()
    assert (rewards[1:4] == 0.5 * there[1:]).all()
    assert (rewards[4] == there[0]).all()
    assert 0 < there[0].sum() < ROWS
    assert over[4].all()


@pytest.mark.parametrize("uniform", [False, True])
def test_endless_tmaze(uniform: bool) -> None:
    env = EndlessTMaze(ROWS, corridors=3, length=4, uniform=uniform, position=True)
    seen, actions, rewards, over = episode(env, 20, oracle=0.9)
    lengths = set()
    for row in range(ROWS):
        corridor, place, side = 0, 0, int(seen[0, row, :2].argmax())
        for step in range(20):
            observation, action = seen[step, row], actions[step, row]
            assert observation[3] == pytest.approx(place / 4)
            assert observation[:2].tolist() == ([side == 0, side == 1] if place == 0 else [0, 0])
            at_junction = bool(observation[2])
            turned = at_junction and action < 2
            right = turned and action == side
            assert rewards[step, row] == pytest.approx(right / 3)
            place += int(action == 2 and not at_junction)
            if right:
                lengths.add(place)
                corridor += 1
                place, side = 0, int(seen[step + 1, row, :2].argmax())
            assert over[step, row] == ((turned and not right) or corridor == 3)
            if over[step, row]:
                assert seen[step + 1, row, 2], "no corridor after the last"
                break
    assert lengths == ({1, 2, 3, 4} if uniform else {4})


def test_endless_tmaze_is_truncated_without_a_turn() -> None:
    env = EndlessTMaze(2, corridors=2, length=1)
    env.reset(seed=0)
    ends = [env.step(np.full(2, 2))[2:4] for _ in range(24)]
    assert [bool(truncated.any()) for _, truncated in ends] == [step == 23 for step in range(24)]
    assert not any(terminated.any() for terminated, _ in ends)


def test_association() -> None:
    env = Association(ROWS, keys=3, values=4, steps=40)
    seen, actions, rewards, over = episode(env, 40)
    replaced = 0
    for row in range(ROWS):
        latest: dict[int, int] = {}
        for step in range(40):
            key, value = int(seen[step, row, :3].argmax()), seen[step, row, 3:]
            assert seen[step, row, :3].sum() == 1
            expected = 0.0
            if value.any():
                replaced += key in latest and latest[key] != value.argmax()
                latest[key] = int(value.argmax())
            else:
                expected = (actions[step, row] == latest[key]) / 40
            assert rewards[step, row] == pytest.approx(expected)
    assert replaced > 50
    assert over[-1].all()


class Tracker:
    """Plays color-cubes by what it sees, and keeps a map: colours from the first picture, later from what has moved."""

    def __init__(self, env: ColorCubes) -> None:
        self.env, self.size = env, env.size
        self.cells: list[dict[int, int]] = [{} for _ in range(env.num_envs)]

    def see(self, seen: NDArray[Any]) -> None:
        size, colours = self.size, self.env.colours
        cubes = seen[:, 2 * size + colours + 1 :].reshape(len(seen), colours + 1, size * size)
        for cells, picture in zip(self.cells, cubes, strict=True):
            if picture[:colours].any():
                cells.update({colour: int(picture[colour].argmax()) for colour in range(colours)})
            elif picture.any():
                present = set(np.flatnonzero(picture[colours]).tolist())
                gone, new = set(cells.values()) - present, present - set(cells.values())
                assert len(gone) == len(new) <= 1, "one cube moves at a time"
                for colour in [colour for colour, cell in cells.items() if cell in gone]:
                    cells[colour] = new.pop()

    def act(self, seen: NDArray[Any]) -> NDArray[np.int64]:
        size, actions = self.size, []
        for cells, one in zip(self.cells, seen, strict=True):
            row, column = int(one[:size].argmax()), int(one[size : 2 * size].argmax())
            cell = cells[int(one[2 * size : 2 * size + self.env.colours].argmax())]
            up, across = cell // size - row, cell % size - column
            ways = ((across > 0, 0), (across < 0, 1), (up > 0, 2), (up < 0, 3), (True, 4))
            actions.append(next(action for wanted, action in ways if wanted))
        return np.array(actions)


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("teleport", [0.0, 0.3])
def test_color_cubes_are_solved_by_who_keeps_the_map(extreme: bool, teleport: float) -> None:
    env = ColorCubes(ROWS, size=4, colours=4, targets=3, teleport=teleport, extreme=extreme)
    seen, tracker = env.reset(seed=1)[0], Tracker(env)
    score, done, events = np.zeros(ROWS), np.zeros(ROWS, bool), 0
    for _ in range(60):
        tracker.see(seen)
        known = np.array([[cells[colour] for colour in range(4)] for cells in tracker.cells])
        assert (known == env.cell)[~done].all()
        assert all(len(set(cells)) == 4 for cells in env.cell), "no two cubes in one cell"
        actions = tracker.act(seen)
        assert (actions == env.oracle_actions())[~done].all()
        rows = np.arange(ROWS)
        asked, place = env.target.copy(), env.cell[rows, env.target].copy()
        seen, reward, terminated, truncated, _ = env.step(actions)
        stayed = env.cell[rows, asked] == place
        assert stayed[~done & (reward == 0)].all(), "the target does not move"
        score += np.where(done, 0, reward)
        done |= terminated | truncated
        events += int((env.shown > 0)[~done].sum())
        colours_shown = seen[:, 13:77].reshape(ROWS, 4, 16).any((1, 2))
        assert not (extreme and colours_shown[~done].any())
    assert score == pytest.approx(1)
    assert events > (50 if teleport else 0)


def test_every_cube_but_the_target_moves_at_times() -> None:
    env = ColorCubes(ROWS, size=4, colours=4, targets=3, teleport=1.0)
    env.reset(seed=0)
    moved = set()
    for _ in range(20):
        before, target = env.cell.copy(), env.target.copy()
        _, _, terminated, truncated, _ = env.step(np.zeros(ROWS, int))
        rows, colours = np.nonzero((env.cell != before) & ~(terminated | truncated)[:, None])
        moved |= {int(offset) for offset in (colours - target[rows]) % 4}
    assert moved == {1, 2, 3}


def test_an_area_of_the_grid_is_a_smaller_task_seen_in_the_whole_grid() -> None:
    """Equal to the task on a grid of that size, action by action, with the rest of the grid empty."""
    small, inside = (ColorCubes(ROWS, size=size, colours=3, targets=3, teleport=0.5, area=3) for size in (3, 5))
    seen, tracker = small.reset(seed=4)[0], Tracker(small)
    other = inside.reset(seed=4)[0]
    ends = 0
    for _ in range(60):
        for size, picture in ((3, seen), (5, other)):
            row, column, _, cubes = np.split(picture, [size, 2 * size, 2 * size + 4], axis=1)
            grid = cubes.reshape(ROWS, 4, size, size)
            assert not row[:, 3:].any()
            assert not column[:, 3:].any()
            assert not grid[:, :, 3:].any()
            assert not grid[:, :, :, 3:].any()
            inner = (row[:, :3], column[:, :3], grid[:, :, :3, :3])
            if size == 3:
                expected = inner
        for ours, theirs in zip(inner, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)

        tracker.see(seen)
        actions = tracker.act(seen)
        assert (inside.oracle_actions() == small.oracle_actions()).all()
        seen, rewards, ended, *_ = small.step(actions)
        other, others, also, *_ = inside.step(actions)
        np.testing.assert_array_equal(rewards, others)
        np.testing.assert_array_equal(ended, also)
        ends += int(ended.sum())
    assert ends > ROWS


def test_color_cubes_end_at_a_wrong_cube_and_are_truncated() -> None:
    env = ColorCubes(ROWS, size=3, colours=2, targets=2, teleport=0.0)
    env.reset(seed=0)
    wrong = env.cell[np.arange(ROWS), env.target] != env.row * 3 + env.column
    _, reward, terminated, *_ = env.step(np.full(ROWS, 4))
    assert (terminated == wrong).all()
    assert (reward == ~wrong / 2).all()
    env.reset(seed=0)
    ends = [env.step(np.zeros(ROWS, int))[3].any() for _ in range(env.limit)]
    assert ends == [False] * (env.limit - 1) + [True]
    assert env.limit == 8 * 3 * 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("recall,reward=1e999", "reward: expected a number, got inf"),
        ("passive-tmaze,length=0", "length: expected an integer in 1"),
        ("repeat-previous,delay=4,steps=4", "steps: expected an integer in 5"),
        ("visual-match,apple=nan", "apple: expected a number, got 'nan'"),
        ("key-to-door,apple=x", "apple: expected a number, got 'x'"),
        ("endless-tmaze,uniform=1", "uniform: expected True or False, got 1"),
        ("association,values=1", "values: expected an integer in 2"),
        ("color-cubes,size=2,colours=4", "colours: expected fewer than the 4 cells for cubes, got 4"),
        ("color-cubes,teleport=2", "teleport: expected a probability in 0..1, got 2"),
        ("color-cubes,area=6", "area: expected at most the grid's 5 rows and columns, got 6"),
        ("color-cubes,area=1", "area: expected an integer in 2"),
        ("color-cubes,extreme=yes", "extreme: expected True or False, got 'yes'"),
    ],
)
def test_wrong_fields_are_named(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        envs.make_vector(f"diagnostic:{spec}", 2)
