"""Plays an agent that `compressive export RUN agent.onnx` wrote, with onnxruntime and numpy alone.

    pip install onnxruntime gymnasium
    python examples/play_onnx.py agent.onnx CartPole-v1

The file says how its state begins: `metadata` has an entry for each of its tensors. For the level of this project
(compressive/Rooms-FullHalf-v0) install it, too: pip install numba && pip install --no-deps -e .
This is for one image or vector and one choice of several actions.
"""

import contextlib
import json
import sys

import gymnasium
import numpy as np
import onnxruntime

with contextlib.suppress(ImportError):
    import envs  # noqa: F401 (it registers the level)


def main(path: str, env: str, rows: int = 16, seed: int = 0) -> float:
    """The mean return of the first episode of each row. Actions are drawn from the policy, as in training."""
    # One thread: several wait for each other wherever another program uses a core.
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["compressive"])
    inputs = [each.name for each in session.get_inputs()]
    if "observation" not in inputs or metadata["policy"]["kind"] != "Categorical":
        sys.exit(f"{path}: expected one observation and one choice of several actions, got {inputs}")
    outputs = [each.name for each in session.get_outputs()]
    rng = np.random.default_rng(seed)

    # The state before the first step.
    state = {}
    for each in metadata["state"]:
        shape = () if each["name"] == "offset" else (rows, *each["shape"])  # all rows share the offset
        state[each["name"]] = np.full(shape, each["initial"], each["dtype"])

    players = gymnasium.make_vec(env, num_envs=rows)
    observation, _ = players.reset(seed=seed)
    action = np.full(rows, -1)  # none yet
    reward = np.zeros(rows, np.float32)
    reset = np.ones(rows, bool)  # an episode begins
    returns = np.zeros(rows)
    over = np.zeros(rows, bool)
    while not over.all():
        # One step of the agent, and its next state.
        known = {"observation": observation, "last_action": action, "last_reward": reward, "reset": reset, **state}
        results = session.run(None, {name: known[name] for name in inputs})
        found = dict(zip(outputs, results, strict=True))
        state = {name: found[f"next_{name}"] for name in state}

        # Of the logits and noise with Gumbel's distribution, the greatest sum is a sample of the softmax.
        logits = found["policy_parameters"]
        action = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)

        # One step of the environments. After its first episode a row plays on, but does not count.
        observation, rewards, terminated, truncated, _ = players.step(action)
        returns += rewards * ~over
        reward = rewards.astype(np.float32)
        reset = np.zeros(rows, bool)
        over |= terminated | truncated
    return float(returns.mean())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: play_onnx.py FILE.onnx ID, such as play_onnx.py agent.onnx CartPole-v1")
    print(f"return {main(sys.argv[1], sys.argv[2]):.1f}")
