"""Tasks of retention and of rewriting by their rules, replayed literally from what they show."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import envs
from envs.retention import KeyToDoor, PassiveTMaze, RepeatPrevious, VisualMatch
from envs.rewriting import Association, ColorCubes, EndlessTMaze

ROWS = 16


def episode(env: Any, steps: int, seed: int = 0, oracle: float = 0.5) -> tuple[NDArray[Any], ...]:
    """Observations [T + 1, N, F], actions, rewards and ends [T, N] from the start.

    An action is the oracle's with the probability `oracle`, and else any.
    """
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    seen = [observation]
    actions = []
    rewards = []
    over = []
    for _ in range(steps):
        random = rng.integers(env.single_action_space.n, size=env.num_envs)
        by_oracle = rng.random(env.num_envs) < oracle
        action = np.where(by_oracle, env.oracle_actions(), random)
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append(observation)
        actions.append(action)
        rewards.append(reward)
        over.append(terminated | truncated)
    return np.stack(seen), np.stack(actions), np.stack(rewards), np.stack(over)


@pytest.mark.parametrize("oracle", [0.0, 0.9])
def test_passive_tmaze(oracle: float) -> None:
    """The player is at x in the corridor, and at y = 1 or -1 after a turn at its end."""
    rows = 8 * ROWS  # in some of them the player goes back
    length = 3
    last = length  # the step of the turn
    env = PassiveTMaze(rows, length=length)
    seen, actions, rewards, over = episode(env, length + 1, oracle=oracle)
    assert over.tolist() == [[step == last] * rows for step in range(length + 1)]
    for row in range(rows):
        sign = int(seen[0, row, :2].argmax())
        goal = {0: 1, 1: -1}[sign]
        x = y = 0
        for step in range(length + 1):
            # Actions are right, up, left and down.
            action = int(actions[step, row])
            at_junction = x == length
            if y == 0:
                x = min(max(x + (action == 0) - (action == 2), 0), length)
            if at_junction:
                y = min(max(y + (action == 1) - (action == 3), -1), 1)

            if step == last:
                assert rewards[step, row] == float(y == goal)
            else:
                is_late = x < step + 1
                assert rewards[step, row] == pytest.approx(-is_late / length)
                assert seen[step + 1, row].tolist() == [0, 0, x == 0, x == length and y == 0]


def test_repeat_previous() -> None:
    delay = 3
    asked = 7  # steps of an episode of 10 that ask for a symbol
    env = RepeatPrevious(ROWS, delay=delay, symbols=4, steps=delay + asked)
    seen, actions, rewards, over = episode(env, delay + asked)
    assert over[-1].all()
    assert not over[:-1].any()

    symbols = seen.argmax(axis=2)
    assert (seen.sum(axis=2) == 1).all()
    assert {*symbols.ravel()} == set(range(4))

    assert not rewards[:delay].any()
    right = actions[delay:] == symbols[:asked]
    assert rewards[delay:] == pytest.approx(np.where(right, 1 / asked, -1 / asked))


@pytest.mark.parametrize("apple", [0.0, 0.25])
def test_visual_match(apple: float) -> None:
    """The symbol at step 0, apples on either side at steps 1 to 4, the question at step 5."""
    env = VisualMatch(ROWS, delay=4, symbols=3, apple=apple)
    seen, actions, rewards, over = episode(env, 6)
    assert over.tolist() == [[step == 5] * ROWS for step in range(6)]

    symbols, apples, question = np.split(seen[:6], [3, 5], axis=2)
    assert (symbols[0].sum(axis=1) == 1).all()
    assert not symbols[1:].any()
    assert (apples[1:5].sum(axis=2) == 1).all()
    assert question[..., 0].tolist() == [[step == 5] * ROWS for step in range(6)]

    symbol = symbols[0].argmax(axis=1)
    side = apples[1:5].argmax(axis=2)
    assert (rewards[0] == 0).all()
    assert (rewards[1:5] == apple * (actions[1:5] == side)).all()
    assert (rewards[5] == (actions[5] == symbol)).all()


def test_key_to_door() -> None:
    """The key is on one side at step 0, apples are at steps 1 to 3, the door is at step 4."""
    env = KeyToDoor(ROWS, delay=3, apple=0.5)
    seen, actions, rewards, over = episode(env, 5)
    assert over[4].all()

    sides, phases = np.split(seen[:5], [2], axis=2)
    key, apples, door = 0, 1, 2
    assert phases.argmax(axis=2).tolist() == [[phase] * ROWS for phase in (key, apples, apples, apples, door)]

    on_the_side = actions[:4] == sides[:4].argmax(axis=2)
    has_key = on_the_side[0]
    assert (rewards[0] == 0).all()
    assert (rewards[1:4] == 0.5 * on_the_side[1:]).all()
    assert (rewards[4] == has_key).all()
    assert 0 < has_key.sum() < ROWS


@pytest.mark.parametrize("uniform", [False, True])
def test_endless_tmaze(uniform: bool) -> None:
    """Observations are the sign for the left and for the right, the junction, and the position.

    Actions 0 and 1 turn to the left and to the right, 2 walks on.
    """
    env = EndlessTMaze(ROWS, corridors=3, length=4, uniform=uniform, position=True)
    seen, actions, rewards, over = episode(env, 20, oracle=0.9)
    lengths = set()
    for row in range(ROWS):
        corridor = 0
        place = 0
        side = int(seen[0, row, :2].argmax())
        for step in range(20):
            *signs, at_junction, position = seen[step, row].tolist()
            assert position == pytest.approx(place / 4)
            if place == 0:
                assert signs == [side == 0, side == 1]
            else:
                assert signs == [0, 0]

            action = actions[step, row]
            turned = bool(at_junction) and action < 2
            right = turned and action == side
            assert rewards[step, row] == pytest.approx(right / 3)
            if action == 2 and not at_junction:
                place += 1
            if right:
                lengths.add(place)
                corridor += 1
                place = 0
                side = int(seen[step + 1, row, :2].argmax())

            wrong = turned and not right
            assert over[step, row] == (wrong or corridor == 3)
            if over[step, row]:
                assert seen[step + 1, row, 2], "no corridor after the last"
                break
    expected = {1, 2, 3, 4} if uniform else {4}
    assert lengths == expected


def test_endless_tmaze_is_truncated_without_a_turn() -> None:
    env = EndlessTMaze(2, corridors=2, length=1)
    env.reset(seed=0)
    walk_on = np.full(2, 2)
    for step in range(24):
        _, _, terminated, truncated, _ = env.step(walk_on)
        assert truncated.any() == (step == 23)
        assert not terminated.any()


def test_association() -> None:
    env = Association(ROWS, keys=3, values=4, steps=40)
    seen, actions, rewards, over = episode(env, 40)
    replaced = 0
    for row in range(ROWS):
        latest: dict[int, int] = {}
        for step in range(40):
            keys, values = np.split(seen[step, row], [3])
            assert keys.sum() == 1
            key = int(keys.argmax())
            if values.any():  # the key gets a value
                value = int(values.argmax())
                replaced += key in latest and latest[key] != value
                latest[key] = value
                assert rewards[step, row] == 0.0
            else:  # the key is asked for
                expected = (actions[step, row] == latest[key]) / 40
                assert rewards[step, row] == pytest.approx(expected)
    assert replaced > 50
    assert over[-1].all()


class Parts(NamedTuple):
    """The parts of an observation of color-cubes: places and colors are one-hot."""

    row: NDArray[Any]  # [N, size]
    column: NDArray[Any]  # [N, size]
    target: NDArray[Any]  # [N, colors]
    is_shown: NDArray[Any]  # [N, 1]
    cubes: NDArray[Any]  # [N, colors + 1, size * size]; the last are cubes of any color


def parts_of(env: ColorCubes, seen: NDArray[Any]) -> Parts:
    """Observations [N, F] in their parts."""
    lengths = [env.size, env.size, env.colors, 1]
    row, column, target, is_shown, cubes = np.split(seen, np.cumsum(lengths), axis=1)
    return Parts(row, column, target, is_shown, cubes.reshape(len(seen), env.colors + 1, env.size**2))


class Tracker:
    """Plays color-cubes by what it sees, and keeps a map: colors from the first picture, later from what has moved."""

    def __init__(self, env: ColorCubes) -> None:
        self.env = env
        self.cells: list[dict[int, int]] = [{} for _ in range(env.num_envs)]

    def see(self, seen: NDArray[Any]) -> None:
        """Corrects the map by an observation."""
        for cells, cubes in zip(self.cells, parts_of(self.env, seen).cubes, strict=True):
            by_color = cubes[:-1]
            any_color = cubes[-1]
            if by_color.any():
                for color, picture in enumerate(by_color):
                    cells[color] = int(picture.argmax())
            elif any_color.any():
                self._correct(cells, present=set(np.flatnonzero(any_color).tolist()))

    @staticmethod
    def _correct(cells: dict[int, int], present: set[int]) -> None:
        """The cube that is gone from its cell is the one in the new cell."""
        known = set(cells.values())
        gone = known - present
        new = present - known
        assert len(gone) == len(new) <= 1, "one cube moves at a time"
        if gone:
            (moved,) = (color for color, cell in cells.items() if cell in gone)
            cells[moved] = new.pop()

    def act(self, seen: NDArray[Any]) -> NDArray[np.int64]:
        """Actions [N] towards the target's cell, across before up or down."""
        size = self.env.size
        parts = parts_of(self.env, seen)
        actions = []
        for i, cells in enumerate(self.cells):
            cell = cells[int(parts.target[i].argmax())]
            across = cell % size - int(parts.column[i].argmax())
            up = cell // size - int(parts.row[i].argmax())
            if across > 0:
                actions.append(0)
            elif across < 0:
                actions.append(1)
            elif up > 0:
                actions.append(2)
            elif up < 0:
                actions.append(3)
            else:
                actions.append(4)
        return np.array(actions)


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("teleport", [0.0, 0.3])
def test_color_cubes_are_solved_by_keeping_a_map(extreme: bool, teleport: float) -> None:
    """The first episode of each row; `done` are the rows in which it is over."""
    env = ColorCubes(ROWS, size=4, colors=4, targets=3, teleport=teleport, extreme=extreme)
    tracker = Tracker(env)
    seen, _ = env.reset(seed=1)
    rows = np.arange(ROWS)
    score = np.zeros(ROWS)
    done = np.zeros(ROWS, bool)
    pictures = 0
    for _ in range(60):
        # The map is right, and so are the actions that follow from it.
        tracker.see(seen)
        known = np.array([[cells[color] for color in range(4)] for cells in tracker.cells])
        assert (known == env.cell)[~done].all()
        assert all(len(set(cells)) == 4 for cells in env.cell), "no two cubes in one cell"
        actions = tracker.act(seen)
        assert (actions == env.oracle_actions())[~done].all()

        asked = env.target.copy()
        place = env.cell[rows, asked].copy()
        seen, reward, terminated, truncated, _ = env.step(actions)
        stayed = env.cell[rows, asked] == place
        assert stayed[~done & (reward == 0)].all(), "the target does not move"

        score += np.where(done, 0, reward)
        done |= terminated | truncated
        pictures += int((env.shown > 0)[~done].sum())
        if extreme:
            by_color = parts_of(env, seen).cubes[:, :-1]
            assert not by_color[~done].any()
    assert score == pytest.approx(1)
    least = 50 if teleport else 0
    assert pictures > least


def test_every_cube_but_the_target_moves_at_times() -> None:
    env = ColorCubes(ROWS, size=4, colors=4, targets=3, teleport=1.0)
    env.reset(seed=0)
    offsets = set()  # of colors, counted from that of the target
    for _ in range(20):
        before = env.cell.copy()
        target = env.target.copy()
        _, _, terminated, truncated, _ = env.step(np.zeros(ROWS, int))
        goes_on = ~(terminated | truncated)
        rows, colors = np.nonzero((env.cell != before) & goes_on[:, None])
        offsets |= set(((colors - target[rows]) % 4).tolist())
    assert offsets == {1, 2, 3}


def test_an_area_of_the_grid_is_a_smaller_task_seen_in_the_whole_grid() -> None:
    """What is seen of the area is the task on a grid of that size, and the rest of the grid is empty."""
    options: Any = {"colors": 3, "targets": 3, "teleport": 0.5}
    small = ColorCubes(ROWS, size=3, **options)
    inside = ColorCubes(ROWS, size=5, area=3, **options)
    tracker = Tracker(small)
    seen, _ = inside.reset(seed=4)
    places = set()
    ends = 0
    total = 0.0
    for _ in range(60):
        found = parts_of(inside, seen)
        grid = found.cubes.reshape(ROWS, 4, 5, 5)
        cut = []
        for row, (top, left) in enumerate(zip(inside.top, inside.left, strict=True)):
            rows, columns = slice(top, top + 3), slice(left, left + 3)
            cubes = grid[row, :, rows, columns].ravel()
            parts = (found.row[row, rows], found.column[row, columns], found.target[row], found.is_shown[row], cubes)
            cut.append(np.concatenate(parts))
            places.add((int(top), int(left)))
        view = np.stack(cut).astype(np.float32)
        assert view.sum() == seen.sum(), "there is nothing elsewhere"

        tracker.see(view)
        actions = tracker.act(view)
        assert (actions == inside.oracle_actions()).all()
        seen, rewards, terminated, *_ = inside.step(actions)
        ends += int(terminated.sum())
        total += float(rewards.sum())
    assert places == {(top, left) for top in range(3) for left in range(3)}
    assert ends > ROWS
    assert total > 0.99 * ends, "no target was missed"


@pytest.mark.parametrize("extreme", [False, True])
def test_views_of_color_cubes_say_where_everything_is(extreme: bool) -> None:
    """Of a player that walks at random, also against walls, in an area of three rows and columns."""
    env = ColorCubes(ROWS, size=4, area=3, colors=2, teleport=0.3, extreme=extreme)
    seen, _ = env.reset(seed=2)
    moves = {0: (0, 1), 1: (0, -1), 2: (1, 0), 3: (-1, 0)}
    random = np.random.default_rng(0)
    shown_without_colors = 0
    for _ in range(30):
        parts = parts_of(env, seen)
        for row in range(ROWS):
            top, left = int(env.top[row]), int(env.left[row])
            assert parts.row[row].tolist() == np.eye(4)[top + env.row[row]].tolist()
            assert parts.column[row].tolist() == np.eye(4)[left + env.column[row]].tolist()
            assert parts.target[row].tolist() == np.eye(2)[env.target[row]].tolist()
            assert parts.is_shown[row] == (env.shown[row] > 0)
            cubes = np.zeros((3, 16))
            for color, cell in enumerate(env.cell[row]):
                place = 4 * (top + cell // 3) + left + cell % 3
                cubes[color, place] = env.shown[row] == 1
                cubes[2, place] = env.shown[row] > 0
            np.testing.assert_array_equal(parts.cubes[row], cubes)
            shown_without_colors += env.shown[row] == 2

        actions = random.integers(4, size=ROWS)
        expected = []
        for row, action in enumerate(actions.tolist()):
            up, right = moves[action]
            expected.append((min(max(env.row[row] + up, 0), 2), min(max(env.column[row] + right, 0), 2)))
        seen, *_ = env.step(actions)
        assert list(zip(env.row, env.column, strict=True)) == expected
    assert (shown_without_colors > 0) == extreme


def test_cubes_begin_in_all_cells_and_move_to_all_free_ones() -> None:
    env = ColorCubes(500, size=3, colors=2, teleport=1.0)
    env.reset(seed=0)
    for color in range(2):
        assert set(env.cell[:, color].tolist()) == set(range(9))
    before = env.cell.copy()
    env.step(np.zeros(500, int))
    has_moved = env.cell != before
    assert (has_moved.sum(axis=1) <= 1).all()
    assert set(env.cell[has_moved].tolist()) == set(range(9))


def test_color_cubes_end_at_a_wrong_cube() -> None:
    env = ColorCubes(ROWS, size=3, colors=2, targets=2, teleport=0.0)
    env.reset(seed=0)
    here = env.row * 3 + env.column
    wrong = env.cell[np.arange(ROWS), env.target] != here
    take = np.full(ROWS, 4)
    _, reward, terminated, *_ = env.step(take)
    assert (terminated == wrong).all()
    assert (reward == ~wrong / 2).all()


def test_color_cubes_are_truncated_at_their_limit() -> None:
    env = ColorCubes(ROWS, size=3, colors=2, targets=2, teleport=0.0)
    env.reset(seed=0)
    assert env.limit == 8 * 3 * 2
    go_right = np.zeros(ROWS, int)
    for step in range(env.limit):
        _, _, _, truncated, _ = env.step(go_right)
        assert truncated.any() == (step == env.limit - 1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("recall,reward=1e999", "reward: expected a number, got inf"),
        ("passive-tmaze,length=0", "length: expected an integer in 1"),
        ("repeat-previous,delay=4,steps=4", "steps: expected an integer in 5"),
        ("visual-match,apple=nan", "apple: expected a number, got 'nan'"),
        ("visual-match,apple=-1", "apple: expected 0 or more, got -1"),
        ("key-to-door,apple=-0.5", "apple: expected 0 or more, got -0.5"),
        ("recall,reward=-1", "reward: expected 0 or more, got -1"),
        ("key-to-door,apple=x", "apple: expected a number, got 'x'"),
        ("endless-tmaze,uniform=1", "uniform: expected True or False, got 1"),
        ("association,values=1", "values: expected an integer in 2"),
        ("color-cubes,size=2,colors=4", "colors: expected fewer than the 4 cells for cubes, got 4"),
        ("color-cubes,teleport=2", "teleport: expected a probability in 0..1, got 2"),
        ("color-cubes,area=6", "area: expected at most the grid's 5 rows and columns, got 6"),
        ("color-cubes,area=1", "area: expected an integer in 2"),
        ("color-cubes,extreme=yes", "extreme: expected True or False, got 'yes'"),
        ("color-cubes,size=100000", "observation: expected fields that need at most .*, got 40,000,200,004"),
        ("recall,symbols=1000000000", "observation: .*, got 1,000,000,001"),
        ("repeat-previous,delay=1000000,steps=1000001", "shown: expected .* at most 1,000,000 numbers, got 1,000,001"),
    ],
)
def test_wrong_fields_are_named(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        envs.make_vector(f"diagnostic:{spec}", 2)
