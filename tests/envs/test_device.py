"""Environments on a device follow the vector environments: on a CPU, in numba's simulator of a GPU, and on a GPU."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import envs
from envs.device import DeviceEnv
from envs.rooms import VARIANTS, RoomsVectorEnv, oracle_actions

SPECS = (
    "rooms:small,episode_frames=50",
    "rooms:full,image_height=40,image_width=64,episode_frames=150",
    "rooms:transfer-choose,image_height=40,image_width=64,episode_frames=130,examples=2,delay_frames=30,redraw_match=True",
    "rooms:full-half,episode_frames=150",
    "rooms:transfer-choose,image_height=20,image_width=32,shrink=2,episode_frames=130,own_view=True",
    "rooms:small-recall,episode_frames=700",
    "diagnostic:recall,delay=5",
    "diagnostic:recall,delay=1,symbols=7",
)
TINY = ",image_height=12,image_width=16,hud=False"
SIMULATED = {
    "rooms:small,episode_frames=30": (20, 1),
    "rooms:transfer,image_height=20,image_width=32,shrink=2,episode_frames=120,own_view=True": (35, 4),
}
"""For the simulator: environments, the number of steps, and every how many of them they are compared."""
SIMULATED_LARGER = {
    "rooms:full,image_height=40,image_width=64,episode_frames=120": (35, 4),
    "rooms:transfer,image_height=40,image_width=64,episode_frames=120": (35, 4),
    "rooms:full-half,image_height=20,image_width=32,episode_frames=120": (35, 4),
}
EVERY_VARIANT = {f"rooms:{name}{TINY},episode_frames=170": (90, 6) for name in VARIANTS}


def tensors(env: DeviceEnv) -> dict[str, torch.Tensor]:
    """All of an environment's tensors by name."""
    own = {name: value for name, value in vars(env).items() if isinstance(value, torch.Tensor)}
    own.pop("observation", None)
    return {**own, **views_of(env.observation), **env.state, **env.counters}


def views_of(observation: Any) -> dict[str, Any]:
    """An observation, or its parts, by name."""
    if isinstance(observation, tuple):
        return {f"observation {index}": view for index, view in enumerate(observation)}
    return {"observation": observation}


def results(env: DeviceEnv) -> dict[str, np.ndarray]:
    """Copies of what a step has given, and of the state; random streams as int64."""
    own = {**tensors(env), "rng": env.state["rng"].view(torch.int64)}
    return {name: tensor.cpu().numpy().copy() for name, tensor in own.items() if name != "action"}


def synchronize(env: DeviceEnv, vector: Any) -> None:
    """Gives a device's environments the state of a vector environment."""
    for name, array in vector.get_state().items():
        env.state[name].copy_(torch.from_numpy(array))


def expected(step: Any, begin: Any, vector: Any) -> dict[str, np.ndarray]:
    """What `results` has to be after a step of a vector environment."""
    observation, reward, terminated, truncated, infos = step
    counters = {name: infos[name] for name in vector.metadata["episode_metrics"]}
    state = {name: array for name, array in vector.get_state().items() if name != "over"}
    state["rng"] = state["rng"].view(np.int64)
    seen = {"reward": reward, "terminated": terminated, "truncated": truncated}
    return {**views_of(observation), **seen, "begin": begin, **counters, **state}


def follow(env: DeviceEnv, vector: Any, steps: int, every: int = 1) -> Iterator[tuple[Any, Any]]:
    """Plays both with a scripted player's actions and random ones in turn, and yields what both give, every few steps.

    If not at every step, the device's environments are first brought to the other's state.
    """
    scripted = vector.oracle_actions
    if isinstance(vector, RoomsVectorEnv):  # whose own oracle would plan anew after every random action
        scripted = partial(oracle_actions, vector)
    random = np.random.default_rng(0)
    over = np.zeros(env.num_envs, bool)
    for count in range(steps):
        is_random = count % 4 == 0
        action = random.integers(env.num_actions, size=env.num_envs) if is_random else scripted()
        is_compared = count % every == 0
        if is_compared and every > 1:
            synchronize(env, vector)
        step = vector.step(action)
        if is_compared:
            env.step(torch.from_numpy(action).to(env.device))
            yield results(env), expected(step, over, vector)
        _, _, terminated, truncated, _ = step
        over = terminated | truncated


def addresses(env: DeviceEnv) -> dict[str, int]:
    """Where an environment's tensors are in memory."""
    return {name: tensor.data_ptr() for name, tensor in tensors(env).items()}


def check(spec: str, steps: int, every: int = 1, num_envs: int = 3) -> int:
    """Asserts that a device's environments follow the vector environment exactly; returns the number of episodes."""
    env = envs.make_device(spec, num_envs, "cpu")
    vector = envs.make_vector(spec, num_envs)
    assert env.num_actions == vector.single_action_space.n
    assert env.action_repeat == vector.metadata["action_repeat"]
    assert tuple(env.counters) == vector.metadata["episode_metrics"]

    env.reset(7)
    observation, _ = vector.reset(seed=7)
    for name, view in views_of(observation).items():
        assert np.array_equal(tensors(env)[name].numpy(), view)

    before = addresses(env)
    episodes = 0
    for given, wanted in follow(env, vector, steps, every):
        for name, array in wanted.items():
            assert given[name].dtype == array.dtype, name
            assert np.array_equal(given[name], array), name
        episodes += given["begin"].sum()
    assert addresses(env) == before, "all is written in place"
    return episodes


@pytest.mark.parametrize("spec", SPECS)
def test_it_follows_the_vector_environment(spec: str) -> None:
    assert check(spec, 300) >= 3


def played(env: DeviceEnv, steps: int) -> list[dict[str, np.ndarray]]:
    """The results of each of some random steps."""
    random = np.random.default_rng(1)
    found = []
    for _ in range(steps):
        env.step(torch.from_numpy(random.integers(env.num_actions, size=env.num_envs)))
        found.append(results(env))
    return found


@pytest.mark.parametrize("spec", SPECS)
def test_a_state_resumes_exactly(spec: str) -> None:
    """Also between the end of an episode and the next step."""
    env = envs.make_device(spec, 3, "cpu")
    other = envs.make_device(spec, 3, "cpu")
    env.reset(3)
    while not (env.terminated | env.truncated).any():
        played(env, 1)
    state = env.get_state()
    views = {name: view.clone() for name, view in views_of(env.observation).items()}
    expected_steps = played(env, 40)

    other.set_state(state)
    for name, view in views_of(other.observation).items():
        assert torch.equal(view, views[name])
    for found, wanted in zip(played(other, 40), expected_steps, strict=True):
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            assert np.array_equal(found[name], array), name


@pytest.mark.parametrize("spec", ["rooms:small", "diagnostic:recall"])
def test_states_of_another_form_are_refused(spec: str) -> None:
    env = envs.make_device(spec, 2, "cpu")
    env.reset(0)
    state = env.get_state()
    for name, wrong in (("rng", state["rng"][:1]), ("rng", state["rng"].double()), ("more", torch.zeros(2))):
        with pytest.raises(ValueError, match=rf"state\['{name}'\]: expected "):
            env.set_state({**state, name: wrong})
    with pytest.raises(ValueError, match=r"^state\['more'\]: expected nothing, got torch\.float32 \[2\]$"):
        env.set_state({**state, "more": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"^state\['truncated'\]: expected torch\.bool \[2\], got nothing$"):
        env.set_state({name: tensor for name, tensor in state.items() if name != "truncated"})


def test_what_cannot_be_on_a_device_is_refused() -> None:
    for spec in ("gym:CartPole-v1", "diagnostic:tmaze", "rooms:small,rooms:full"):
        with pytest.raises(ValueError, match=f"'{spec}': expected one task .*: rooms:\\* or diagnostic:recall"):
            envs.make_device(spec, 2, "cpu")
    with pytest.raises(ValueError, match=r"diagnostic:recall has no field 'length'; there are: delay, symbols, reward"):
        envs.make_device("diagnostic:recall,length=3", 2, "cpu")
    for spec in ("rooms:small", "diagnostic:recall"):
        with pytest.raises(ValueError, match=r"num_envs: expected at least 1, got 0"):
            envs.make_device(spec, 0, "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device 'cuda': expected a GPU"):
            envs.make_device("rooms:small", 2, "cuda")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba_cuda", None)
    monkeypatch.delitem(sys.modules, "envs.rooms.kernels", raising=False)
    with pytest.raises(ImportError, match=r"^the rooms level on a GPU needs .*: pip install -e '\.\[gpu\]'$"):
        import envs.rooms.kernels  # noqa: F401


def python(*lines: str, **variables: str) -> None:
    """Runs a program in another process."""
    ignore = ["-W", "ignore"]  # the simulator's random numbers overflow, as they should
    command = [sys.executable, *ignore, "-c", "\n".join(lines)]
    found = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_the_level_alone_loads_neither_torch_nor_cuda() -> None:
    python("import envs.registry, sys", "assert not {'torch', 'numba.cuda'} & sys.modules.keys()")


def simulate(specs: dict[str, tuple[int, int]]) -> None:
    """`check` in a process in which numba simulates a GPU."""
    python(
        "from envs.rooms import kernels",
        "from tests.envs.test_device import check",
        "kernels.THREADS = 2",
        f"for spec, (steps, every) in {specs}.items():",
        "    check(spec, steps, every, num_envs=2)",
        NUMBA_ENABLE_CUDASIM="1",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "specs",
    [SIMULATED, SIMULATED_LARGER, EVERY_VARIANT, {"rooms:full": (365, 10), "rooms:transfer": (365, 10)}],
    ids=["small", "larger", "variants", "full-size"],
)
def test_the_kernel_equals_the_cpu_in_the_simulator(specs: dict[str, tuple[int, int]]) -> None:
    simulate(specs)


@pytest.mark.slow
def test_the_kernel_compiles_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        from envs.rooms import kernels
    except ImportError as error:
        pytest.skip(f"{error}: {error.__cause__}")
    from numba import cuda
    from numba.cuda import dispatcher
    from numba.cuda.typing.typeof import typeof

    class Hopper:
        compute_capability = (9, 0)

    monkeypatch.setattr(dispatcher, "get_current_device", lambda: Hopper)
    arguments = envs.make_device("rooms:full", 1, "cpu")._launches[0]
    ptx, _ = cuda.compile_ptx(kernels.step.py_func, tuple(map(typeof, arguments)), cc=(9, 0))
    assert ".target sm_90" in ptx


@pytest.mark.gpu
@pytest.mark.parametrize(
    "spec", ["rooms:full", "rooms:transfer,own_view=True", "rooms:small-recall,episode_frames=300"]
)
def test_a_gpu_follows_the_cpu_up_to_rounding(spec: str) -> None:
    """From the same state at every step, since differences grow."""
    env = envs.make_device(spec, 64, "cuda")
    vector = envs.make_vector(spec, 64)
    env.reset(7)
    vector.reset(seed=7)
    shares_that_differ: dict[str, list[float]] = {}
    for given, wanted in follow(env, vector, 200):
        for name, array in wanted.items():
            allowed = 2 if name.startswith("observation") else 1e-6
            difference = np.abs(given[name].astype(float) - array.astype(float))
            shares_that_differ.setdefault(name, []).append((difference > allowed).mean())
        synchronize(env, vector)
    assert {name: shares for name, shares in shares_that_differ.items() if np.mean(shares) > 1e-3} == {}


@pytest.mark.gpu
@pytest.mark.parametrize("spec", ["rooms:small,episode_frames=50", "diagnostic:recall"])
def test_a_cuda_graph_holds_a_step(spec: str) -> None:
    env = envs.make_device(spec, 64, "cuda")
    other = envs.make_device(spec, 64, "cuda")
    action = torch.zeros(64, dtype=torch.int64, device="cuda")
    env.reset(7)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        env.step(action)
    for one in (env, other):
        one.reset(7)
    for count in range(100):
        action.fill_(count // 3 % 4)
        graph.replay()
        other.step(action)
        wanted = tensors(other)
        for name, tensor in tensors(env).items():
            assert torch.equal(tensor, wanted[name]), name
