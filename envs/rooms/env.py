"""The rooms level as environments: a batch that one compiled call steps and renders, and a single `gymnasium.Env`.

The scalar functions of `level.py` and `render.py` are compiled for the CPU here, and for a GPU in `device.py`. On a CPU
one thread runs: actors are processes.
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numba
import numpy as np
from gymnasium import spaces
from numba.extending import register_jitable
from numpy.typing import NDArray

from envs.batched import BatchedEnv, Step
from envs.caches import ensure_cache_folder
from envs.rooms import hud, level, look, render
from envs.rooms.config import RoomsConfig, resolve
from envs.rooms.oracle import oracle_actions
from envs.rooms.planner import Planner, is_planned
from envs.rooms.scene import Scene, build_scene

SIDES = ("left", "right")
"""Of objects 0 and 1 of a room, as the player sees them who enters it."""


@register_jitable(forceinline=True)  # calls copy the tuples, which costs a fourth of a step of small-recall
def act(
    plan: level.Level,
    state: level.State,
    i: int,
    begin: NDArray[np.bool_],
    actions: NDArray[np.int64],
    rewards: NDArray[np.float64],
) -> None:
    """Begins an episode in environment i where begin [N], with reward 0, else takes its action, but not for -1."""
    if begin[i]:
        level.begin_episode(plan, state, i)
        rewards[i] = 0.0
    elif actions[i] >= 0:
        rewards[i] = level.advance_step(plan, state, i, actions[i])


@register_jitable(forceinline=True)
def draw(
    scene: Scene, plan: level.Level, state: level.State, i: int, start: int, stride: int, view: NDArray[np.uint8]
) -> None:
    """Draws the columns start, start + stride and so on of environment i's view [H, W, 3] with the display."""
    style = look.drawn(scene, state, i)
    render.draw_view(scene, plan, state, i, style, start, stride, view)
    hud.draw(plan, state, i, style, start, stride, view)


@register_jitable
def average(view: NDArray[np.uint8], start: int, stride: int, image: NDArray[np.uint8]) -> None:
    """Writes means of blocks of a view [k H, k W, 3] into image [H, W, 3] uint8, rounded to integers, halves upward.

    Of the image's columns only start, start + stride and so on.
    """
    k = view.shape[0] // image.shape[0]
    for row in range(image.shape[0]):
        for column in range(start, image.shape[1], stride):
            red = 0
            green = 0
            blue = 0
            for r in range(k * row, k * row + k):
                for q in range(k * column, k * column + k):
                    red += int(view[r, q, 0])
                    green += int(view[r, q, 1])
                    blue += int(view[r, q, 2])
            pixel = image[row, column]
            pixel[0] = np.uint8(red / (k * k) + 0.5)
            pixel[1] = np.uint8(green / (k * k) + 0.5)
            pixel[2] = np.uint8(blue / (k * k) + 0.5)


def _compile() -> Callable[..., None]:
    """The compiled step: advances or begins every environment, then draws it.

    numba caches by this file alone, so a digest of all sources is part of the function: an edit to any recompiles it.
    `_nrt=False` omits the reference counting of arrays at every call, a quarter of the time: nothing here allocates.
    Without any folder that can be written to, every process compiles it.
    """
    ensure_cache_folder()
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    sources = int(digest.hexdigest()[:12], 16)

    def run(
        plan: level.Level,
        scene: Scene,
        state: level.State,
        begin: NDArray[np.bool_],
        actions: NDArray[np.int64],
        rewards: NDArray[np.float64],
        views: NDArray[np.uint8],
        images: NDArray[np.uint8],
    ) -> None:
        """Fills rewards [N] and images [N, H, W, 3]: begins an episode where begin [N], else acts (not for -1).

        Views [N, k H, k W, 3] are averaged into images, but for k = 1, where they are not used.
        """
        version = sources  # noqa: F841
        for i in range(actions.shape[0]):
            act(plan, state, i, begin, actions, rewards)
            averaged = views.shape[1] > images.shape[1]
            view = views[i] if averaged else images[i]
            draw(scene, plan, state, i, 0, 1, view)
            if averaged:
                average(view, 0, 1, images[i])

    compiled = functools.partial(numba.njit, fastmath=False, nogil=True, _nrt=False)
    try:
        return compiled(cache=True)(run)
    except RuntimeError:  # numba finds no folder for its cache
        return compiled()(run)


_run = _compile()


@functools.lru_cache(maxsize=8)
def _planner(config: RoomsConfig) -> Planner:
    """The planner of a config, with all that it remembers."""
    return Planner(config, _run)


class RoomsVectorEnv(BatchedEnv):
    """N environments of one config, stepped together; see `BatchedEnv`.

    Observations [N, H, W, 3] uint8, or with `RoomsConfig.own_view` a pair of such; actions [N] integers
    (`RoomsConfig.action_names`); rewards [N] float64. An episode ends with its clock, as terminated. The infos hold
    `correct_choices` and `wrong_choices` [N] int64 of the episode.

    Args:
        config: a `RoomsConfig` or the name of a variant.
        render_mode: None or "rgb_array".
    """

    def __init__(
        self, num_envs: int = 1, config: RoomsConfig | str = "full", *, render_mode: str | None = None
    ) -> None:
        self.config = config = resolve(config)
        self.render_mode = render_mode
        self.level = level.build(config)
        self.scene = build_scene(config)
        self.state = level.allocate(num_envs, config.examples)
        image = spaces.Box(0, 255, config.image_shape, np.uint8)
        seen: spaces.Space[Any] = image
        if config.own_view:
            seen = spaces.Tuple((image, image))
        super().__init__(
            num_envs,
            seen,
            len(config.action_names),
            arrays=self.state._asdict(),
            over=self.state.done,
            counters={"correct_choices": self.state.correct, "wrong_choices": self.state.wrong},
            render_modes=["rgb_array"],
            render_fps=60 / config.action_repeat,
            action_repeat=config.action_repeat,
            action_names=config.action_names,
            floor_plan=level.floor_plan(config),
            rule=level.rule(config),
        )
        self._images = np.zeros((num_envs, *config.image_shape), np.uint8)
        num_views = num_envs if config.shrink > 1 else 1  # views that are not averaged are drawn as images
        self._views = np.zeros((num_views, *config.view_shape), np.uint8)
        self._rewards = np.zeros(num_envs)
        if config.own_view:
            # The same state with the level's own look. When it is drawn nothing happens: no row begins an episode or
            # has an action, and the rewards are not used.
            self._own_state = self.state._replace(look=np.zeros_like(self.state.look))
            self._own_images = np.zeros_like(self._images)
            begins_nowhere = np.zeros(num_envs, bool)
            no_actions = np.full(num_envs, -1)
            no_rewards = np.zeros(num_envs)
            self._nothing = (begins_nowhere, no_actions, no_rewards)

    def entropy(self, seed: int, row: int) -> tuple[int, int]:
        return seed, row

    def begin(self, rows: NDArray[np.bool_]) -> None:
        self.advance(np.full(self.num_envs, -1), rows)

    def advance(self, actions: NDArray[np.int64], begin: NDArray[np.bool_]) -> Step:
        _run(self.level, self.scene, self.state, begin, actions, self._rewards, self._views, self._images)
        return self._rewards.copy(), self.state.done.copy(), np.zeros(self.num_envs, bool)

    def observe(self) -> NDArray[np.uint8] | tuple[NDArray[np.uint8], ...]:
        if not self.config.own_view:
            return self._images.copy()
        _run(self.level, self.scene, self._own_state, *self._nothing, self._views, self._own_images)
        return self._images.copy(), self._own_images.copy()

    def oracle_actions(self) -> NDArray[np.int64]:
        """Actions [N] of the player that plans, or of the scripted one where trials cannot be planned."""
        if is_planned(self.config):
            return _planner(self.config).actions(self)
        return oracle_actions(self)

    def poses(self) -> NDArray[np.float64]:
        """Where the players are, [N, 4]: x, y, yaw in degrees (0 along +x, growing to the left) and the room.

        `metadata["floor_plan"]` names the rooms by number and can be drawn.
        """
        room = np.array([0, 1, 1, 2, 0])[self.state.room]  # CHOSEN is still in the second room, GRAY in the first
        return np.stack([self.state.x, self.state.y, self.state.yaw, room], axis=1)

    def situations(self) -> list[dict[str, Any]]:
        """For each environment the example and, in the room of the choice, the objects to take and to leave.

        Each is a text with its side, then x and y. After it was shown the example has no side, and where a round has
        several examples no place either.
        """
        state = self.state
        found: list[dict[str, Any]] = []
        for row in range(self.num_envs):
            match = self.config.object_name(int(state.match[row]))
            other = self.config.object_name(int(state.other[row]))
            side_of_match = int(state.match_side[row])
            room = state.room[row]
            situation: dict[str, Any] = {}

            side = int(state.example_side[row])
            place = self.level.examples[side]
            if room == level.ROOM_1:
                situation["example"] = (f"{match}, {SIDES[side]}", *place)
            elif self.config.examples == 1:
                situation["example"] = (match, *place)
            else:
                situation["example"] = match
            if room in (level.ROOM_2, level.CHOSEN):
                for name, thing, side in (("to take", other, 1 - side_of_match), ("to leave", match, side_of_match)):
                    situation[name] = (f"{thing}, {SIDES[side]}", *self.level.choices[side])
            found.append(situation)
        return found

    def between(self, actions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The views after each frame but the last of a step with these actions, [N, action_repeat - 1, H, W, 3].

        The environments themselves stay where they are. After the end of an episode the last view is repeated.
        """
        slow = self._slow
        slow.set_state(self.get_state())
        view = self._images.copy()
        ended = self.over.copy()
        views = np.zeros((self.num_envs, self.config.action_repeat - 1, *view.shape[1:]), np.uint8)
        for frame in range(self.config.action_repeat - 1):
            next_view, *_ = slow.step(actions)
            view = np.where(ended[:, None, None, None], view, next_view)
            ended |= slow.over
            views[:, frame] = view
        return views

    def counterfactuals(self, states: Sequence[dict[str, NDArray[Any]]]) -> list[tuple[int, NDArray[np.uint8]]]:
        """What the first environment would have shown, with the other of a choice's two objects as the example.

        The room of the choice looks the same. Where all rounds of an episode have one example, it is changed in all.

        Args:
            states: of `get_state` before each of the T steps of an episode.

        Returns:
            For each choice the step at which its room was entered, and the views from the beginning of the episode to
            the choice, uint8 [at most T, H, W, 3].
        """
        # The states of the first environment as those of as many environments as there are steps, to draw all at once.
        rows = {}
        for name in self.arrays:
            rows[name] = np.concatenate([state[name][:1] for state in states])
        drawn = RoomsVectorEnv(len(states), dataclasses.replace(self.config, own_view=False))
        visit = rows["visit"]
        match = rows["match"]
        other = rows["other"]
        match_side = rows["match_side"]

        # By step: the round's number, which grows where the number of the visit falls; and the visit, -1 if it is not
        # to the room of a choice. Where the latter changes, such a room is entered or left.
        rounds = np.cumsum(np.diff(visit, prepend=0) < 0)
        is_choosing = np.isin(rows["room"], (level.ROOM_2, level.CHOSEN))
        visit_of_choice = np.where(is_choosing, visit, -1)
        changes = np.flatnonzero(np.diff(visit_of_choice, prepend=-1)).tolist()

        found: list[tuple[int, NDArray[np.uint8]]] = []
        for begin, end in itertools.pairwise([*changes, len(states)]):
            if not is_choosing[begin]:
                continue
            # The steps of this choice and of its example, and those in which another example would be seen.
            visit_of_example = visit[begin] - self.config.examples - 1
            in_pair = (rounds == rounds[begin]) & np.isin(visit, (visit[begin], visit_of_example))
            in_question = in_pair
            if not self.config.redraw_match:
                in_question = np.ones_like(in_pair)

            # Example and other object change places; the sides, too, so that the room of the choice looks the same.
            is_new_match = in_question & (other == other[begin])
            changed = {
                "match": np.where(in_question, other[begin], match),
                "other": np.where(is_new_match, match[begin], other),
                "match_side": np.where(in_pair, 1 - match_side, match_side),
            }
            views = drawn.set_state(rows | changed)
            found.append((begin, views[:end]))
        return found

    @functools.cached_property
    def _slow(self) -> "RoomsVectorEnv":
        return RoomsVectorEnv(self.num_envs, dataclasses.replace(self.config, action_repeat=1, own_view=False))

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """The present view of every environment."""
        return tuple(self._images.copy())


class RoomsEnv(gymnasium.Env[NDArray[np.uint8], int]):
    """One environment: observation [H, W, 3] uint8, or a pair of such; discrete actions; choices in the infos.

    The infos are `correct_choices` and `wrong_choices`. Seeded with s, it is row 0 of a `RoomsVectorEnv` seeded with s.
    That batch of one is `vector`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(self, config: RoomsConfig | str = "full", render_mode: str | None = None) -> None:
        self.vector = RoomsVectorEnv(1, config)
        self.config = self.vector.config
        self.metadata = {name: value for name, value in self.vector.metadata.items() if name != "autoreset_mode"}
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begins an episode; without a seed, the random stream continues."""
        super().reset(seed=seed)
        observation, _ = self.vector.reset(seed=seed)
        return self._only(observation), self._info()

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """One agent step. Raises RuntimeError after the end of an episode."""
        if self.vector.over[0]:
            raise RuntimeError("step() after the episode ended: call reset()")
        observation, reward, terminated, _, _ = self.vector.step(np.array([action]))
        return self._only(observation), float(reward[0]), bool(terminated[0]), False, self._info()

    @staticmethod
    def _only(observation: Any) -> Any:
        """The observation of the only row."""
        if isinstance(observation, tuple):
            return tuple(part[0] for part in observation)
        return observation[0]

    def _info(self) -> dict[str, Any]:
        return {name: int(counter[0]) for name, counter in self.vector.counters.items()}

    def render(self) -> NDArray[np.uint8] | None:
        """The present view, with render mode "rgb_array"."""
        if self.render_mode != "rgb_array":
            return None
        return self.vector.render()[0]
