"""Which token weights run inside verl, and why the others do not.

scores   log-probabilities and entropies of verl's scoring pass, tokens, groups, texts
states   hidden states of that pass as well, which stay in the workers (token_states.py)
"""

from __future__ import annotations

from counterpoise.credit.plugin_weights import PluginWeights
from counterpoise.plugins import display_name, is_plugin

SCORE_READING_WEIGHTS = ("high_entropy", "rsi_s", "negative_filter", "gtpo")
STATE_READING_WEIGHTS = ("cancellation", "nthr", "thr", "otb", "shear")
STATE_INPUTS = ("hidden", "unembedding")  # parameters of a user's function
OWN_PASSES = "it makes passes of its own through the policy, which FSDP splits over the ranks"
REFUSED_WEIGHTS = {
    "grail": OWN_PASSES,
    "oar_g": OWN_PASSES,
    "oar_p": OWN_PASSES,
    "oar_p_approximate": OWN_PASSES,
    "aligned": "it reads held-out answers, which only the native engine and TRL follow",
    "rlsd": "it scores responses after a prompt that contains the answer, which verl does not do",
    "serl": "it reads an environment's messages, which verl does not hand over",
    "crpo": "it compares with generic responses, which verl does not sample",
}


def reads_states(method: str) -> bool:
    """Whether token weights need hidden states."""
    if is_plugin(method):
        return any(name in STATE_INPUTS for name in PluginWeights(method).input_names)
    return method in STATE_READING_WEIGHTS


def balance_fault(method: str) -> str:
    """Why token weights cannot run together with RB; "" if they can."""
    if not reads_states(method):
        return ""
    return (
        f"{display_name(method)} reads hidden states, and rollouts that wait for a balanced batch "
        "keep none"
    )
