"""Episodes of a trained agent as a Minari dataset, the form in which offline reinforcement learning exchanges data."""

import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from actors.interface import Interface
from actors.recorder import record_episodes
from actors.recording import Recording
from agent.encoders import part_shapes
from agent.policies import Choice
from envs import names, parse_spec, reference_scores, tasks
from storage.files import Json, flush
from training.config import core_name
from training.evaluation import TrainedAgent, make_evaluator, value_column
from training.factories import interface


def new_dataset(name: str) -> Path:
    """The folder that a new Minari dataset will have.

    Args:
        name: as Minari has them: (namespace/)dataset-vN.

    Raises:
        ImportError: if Minari is missing.
        ValueError: if the name is none of Minari's, or there is such a dataset.
    """
    if importlib.util.find_spec("minari") is None or importlib.util.find_spec("h5py") is None:
        raise ImportError("datasets need Minari with HDF5: pip install -e '.[minari]'")
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.storage import get_dataset_path

    try:
        parse_dataset_id(name)
    except (ValueError, TypeError):  # the latter for a name without a version
        expected = "a name such as rooms/agent-v0, where a namespace has two letters or more"
        raise ValueError(f"expected {expected}, got {name!r}") from None
    folder: Path = get_dataset_path(name)
    if folder.exists():
        raise ValueError(f"expected a new dataset, and {folder} exists")
    return folder


def write_dataset(
    name: str,
    player: TrainedAgent,
    episodes: int,
    seed: int = 0,
    sample: bool = True,
    progress: Callable[[int], None] = lambda done: None,
) -> Path:
    """Plays episodes and writes them as the Minari dataset `name`, whole or not at all; returns its folder.

    If the agent is to play several tasks, it plays the first one.

    Observations and actions are those of the agent, pictures without loss; several parts are a tuple, and with
    instructions there is a dictionary of "observation" and "instruction", the ids of words. The infos of an episode of
    T steps are arrays [T]: see `_infos`.

    Args:
        seed: of the episodes.
        sample: draw actions from the policy, not the most probable ones.
        progress: called with the number of finished episodes.

    Raises:
        ImportError, ValueError: see `new_dataset`.
        OSError: if it cannot be written.
    """
    folder = new_dataset(name)
    player = player._replace(env=tasks(player.env)[0])
    known = interface(player.env)
    with _hidden_folder() as make_visible:
        _write(name, player, known, episodes, seed, sample, progress)
        make_visible(name, folder)
    return folder


@contextmanager
def _hidden_folder() -> Iterator[Callable[[str, Path], None]]:
    """Makes Minari write into a hidden folder; yields a function that moves a dataset from there to its own place.

    The function takes the name of the dataset and its folder. Minari finds its datasets by MINARI_DATASETS_PATH.
    """
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.namespace import create_namespace, list_local_namespaces
    from minari.storage import get_dataset_path

    root = get_dataset_path()
    before = os.environ.get("MINARI_DATASETS_PATH")

    def restore() -> None:
        os.environ.pop("MINARI_DATASETS_PATH", None)
        if before is not None:
            os.environ["MINARI_DATASETS_PATH"] = before

    def make_visible(name: str, folder: Path) -> None:
        written: Path = get_dataset_path(name)
        for path in written.rglob("*"):
            flush(path)
        # A namespace is a folder with a file of Minari, which Minari makes where the dataset belongs.
        restore()
        namespace, _, _ = parse_dataset_id(name)
        if namespace is not None and namespace not in list_local_namespaces():
            create_namespace(namespace)
        written.rename(folder)
        flush(folder.parent)

    with tempfile.TemporaryDirectory(prefix=".writing-", dir=root) as hidden:
        os.environ["MINARI_DATASETS_PATH"] = hidden
        try:
            yield make_visible
        finally:
            restore()


def _write(
    name: str,
    player: TrainedAgent,
    known: Interface,
    episodes: int,
    seed: int,
    sample: bool,
    progress: Callable[[int], None],
) -> None:
    """Plays the episodes, and appends each to the dataset when it has ended."""
    dataset = None
    column = value_column(player.config, tasks(player.env)[0])
    max_steps = player.config.actors.max_episode_steps
    actor = make_evaluator(player.config, player.agent, 1, seed, sample, player.env, film=True)
    try:
        for number in range(episodes):
            (recording,) = record_episodes(actor, 1, max_steps, in_detail=False, value_column=column)
            buffer = _episode(recording, number)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Minari recommends an author, a link and more
                if dataset is None:
                    num_words = 0 if recording.words is None else recording.words.shape[1]
                    how = f"{'Drawn from the policy' if sample else 'The most probable actions'}, seed {seed}."
                    dataset = _create(name, player, known, num_words, buffer, how)
                else:
                    dataset.update_dataset_from_buffer([buffer])
            progress(number + 1)
    finally:
        actor.close()


def _create(name: str, player: TrainedAgent, known: Interface, num_words: int, first_episode: Any, how: str) -> Any:
    """A Minari dataset of one episode, to which others are appended.

    `num_words`: see `spaces_of`. `how`: how actions were chosen, in a sentence.
    """
    import minari

    scores = reference_scores(player.env)
    observation_space, action_space = spaces_of(known, num_words)
    return minari.create_dataset_from_buffers(
        name,
        [first_episode],
        env=_registered(player.env, observation_space, action_space),
        algorithm_name=f"IMPALA, core {core_name(player.config)}",
        action_space=action_space,
        observation_space=observation_space,
        ref_min_score=scores["random"],
        ref_max_score=scores["oracle"],
        description=f"{_description(player)} {how}",
        jpeg_encoding=False,  # it would lose some of each picture
    )


def spaces_of(known: Interface, num_words: int = 0) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """The spaces of what an agent sees and does, without classes of our own.

    `num_words`: the number of ids in an instruction; 0 without instructions.
    """
    return _observation_space(known, num_words), _action_space(known)


def _observation_space(known: Interface, num_words: int) -> spaces.Space[Any]:
    """Images are bytes, vectors have no bounds; several parts are a tuple, with instructions a dictionary."""
    boxes: list[spaces.Space[Any]] = []
    for shape in part_shapes(known.observation_shape):
        is_image = len(shape) == 3
        if is_image:
            boxes.append(spaces.Box(0, 255, shape, np.uint8))
        else:
            boxes.append(spaces.Box(-np.inf, np.inf, shape, np.float32))
    observation: spaces.Space[Any] = spaces.Tuple(boxes) if len(boxes) > 1 else boxes[0]
    if not num_words:
        return observation
    words = spaces.Box(0, known.vocabulary - 1, (num_words,), np.int64)
    return spaces.Dict(observation=observation, instruction=words)


def _action_space(known: Interface) -> spaces.Space[Any]:
    """Discrete, or a vector in the units of `envs.ActionVector`: indices of choices, and numbers from -1 to 1."""
    if isinstance(known.actions, int):
        return spaces.Discrete(known.actions)
    lows: list[float] = []
    highs: list[float] = []
    for part in known.actions:
        if isinstance(part, Choice):
            lows.append(0.0)
            highs.append(part.size - 1.0)
            continue
        for is_bounded in part.bounded:
            bound = 1.0 if is_bounded else np.inf
            lows.append(-bound)
            highs.append(bound)
    return spaces.Box(np.array(lows, np.float32), np.array(highs, np.float32))


def _registered(env: str, *expected: spaces.Space[Any]) -> gymnasium.envs.registration.EnvSpec | None:
    """How gymnasium makes the environment, if that has the same spaces; else None."""
    name = names.gymnasium_name(*parse_spec(env))
    if name is None:
        return None
    made = gymnasium.make(name)
    found = made.observation_space, made.action_space
    made.close()
    return gymnasium.spec(name) if found == expected else None


def _description(player: TrainedAgent) -> str:
    return (
        f"Episodes of an agent of compressive-impala in {player.env}, which had learned for "
        f"{player.checkpoint.step:,} steps of {player.config.env}."
    )


def _episode(recording: Recording, number: int) -> Any:
    """An episode as Minari takes it."""
    from minari.data_collector import EpisodeBuffer

    parts = []
    for part, last in zip((recording.observations, *recording.more_observations), recording.last_observation):
        parts.append(np.concatenate([part, last[None]]))
    observations: Any = tuple(parts) if len(parts) > 1 else parts[0]
    if recording.words is not None:
        observations = {"observation": observations, "instruction": recording.words}
    steps = len(recording.rewards)
    is_last = np.arange(steps) == steps - 1
    return EpisodeBuffer(
        id=number,
        observations=observations,
        actions=recording.actions,
        rewards=recording.rewards.astype(np.float64),
        terminations=is_last & recording.terminated,
        truncations=is_last & (not recording.terminated),
        infos=_infos(recording),
    )


def _infos(recording: Recording) -> Json:
    """What the agent made of each step, arrays [T].

    value: before the action. probability: of the action taken, of a Discrete space. choice: 1 where the step led to a
    right choice, -1 to a wrong one. Of cores with attention, attention/KIND: the share of each kind of memory, as a
    mean over layers and heads; attended_step: the step of the episode to which the first layer attended most, this one
    included, and attended_share its share.
    """
    steps = np.arange(len(recording.rewards))
    found: Json = {"value": recording.values, "choice": recording.choices}
    if recording.actions.ndim == 1:
        found["probability"] = recording.probabilities[steps, recording.actions]
    if recording.attention:
        shares = recording.attention_by_kind.mean(axis=(1, 2))
        found["attention"] = {kind: shares[:, index] for index, kind in enumerate(recording.slot_kinds)}
        attended = [(row.argmax(), row.max()) for row in recording.attention[0].rows_by_step()]
        found["attended_step"] = np.array([step for step, _ in attended])
        found["attended_share"] = np.array([share for _, share in attended])
    return found
