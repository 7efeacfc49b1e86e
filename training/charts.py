"""The charts of an agent's run in TensorBoard."""

CHARTS = {
    "learning": {
        "return": ["Multiline", ["^episode/return$"]],
        "correct choices": ["Multiline", ["^episode/correct_choices$"]],
        "normalized score": ["Multiline", ["^episode/.*normalized.*$"]],
        "return by task": ["Multiline", ["^.*:.*/return$"]],
    },
    "memory": {
        "attention": ["Multiline", ["^attention/.*$"]],
        "compression loss by layer": ["Multiline", ["^loss/compression/.*$"]],
    },
    "losses": {
        "losses": ["Multiline", ["^loss/(total|policy|baseline|entropy|reconstruction|prediction)$"]],
        "value": ["Multiline", ["^value/.*$"]],
        "entropy of the policy": ["Multiline", ["^policy/entropy$"]],
        "gradient norms": ["Multiline", ["^gradient/.*$"]],
    },
    "system": {
        "frames a second": ["Multiline", ["^speed/frames_per_second$"]],
        "policy lag": ["Multiline", ["^policy_lag/.*$", "^replay/age$"]],
        "learner idle": ["Multiline", ["^learner/idle_fraction$"]],
        "actors": ["Multiline", ["^actors/.*$"]],
    },
}
"""Charts of TensorBoard's tab "Custom scalars", by group: regular expressions of the scalars in each."""
