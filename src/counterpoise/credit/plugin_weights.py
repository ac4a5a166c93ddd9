"""w_{i,t} = weights(tokens, entropies, ...)[i][t]: a user's function in place of a token weighting.

The function is called once for the rollouts with an advantage, and gets what its parameters name:

    advantages   [R]                rewards   [R]                groups   [R], the prompt's number
    tokens       [T] per rollout    pieces    the tokens' texts  positions   0, 1, ..., T - 1
    logprobs     [T] per rollout    entropies [T] per rollout    hidden   [T, D] per rollout
    unembedding  [V, D]             texts, prompts, answers      one string for each rollout
    temperature, iteration          numbers

"Per rollout" is a list of numpy arrays in the order of the rollouts. A keyword-only parameter with
a number, a word or a boolean as default is a setting (`credit.settings`). The function returns a
list with one array [T] of finite weights for each rollout. Log-probabilities, entropies, hidden
states and pieces are computed only if a parameter names them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from counterpoise import plugins
from counterpoise.credit.view import CreditView
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.types import Floats, Rollout, Row

SETTING_TYPES = (bool, int, float, str)
TEXT_INPUTS = ("texts", "prompts", "answers")  # TRL hands over tokens, and none of these

ViewT = TypeVar("ViewT", bound=CreditView)
InputReader = Callable[[ViewT], Any]


def _rollouts(view: CreditView) -> list[Rollout]:
    if any(row.rollout is None for row in view.rows):
        raise PoiseError("rewards, texts, prompts and answers are not among the arrays given here")
    return [row.content for row in view.rows]


def _to_array(states: Tensor) -> Floats:
    array: Floats = states.detach().float().cpu().numpy()
    return array


# parameter -> its value
WEIGHT_INPUTS: Mapping[str, InputReader[CreditView]] = {
    "advantages": lambda view: np.array([row.advantage for row in view.rows]),
    "rewards": lambda view: np.array([rollout.reward for rollout in _rollouts(view)]),
    "groups": lambda view: view.group_numbers_R,
    "tokens": lambda view: list(view.tokens),
    "pieces": lambda view: view.pieces,
    "positions": lambda view: [np.arange(row.num_tokens) for row in view.rows],
    "logprobs": lambda view: list(view.logprobs),
    "entropies": lambda view: list(view.entropies),
    "hidden": lambda view: [_to_array(hidden) for hidden in view.hidden],
    "unembedding": lambda view: _to_array(view.unembedding),
    "texts": lambda view: [rollout.response for rollout in _rollouts(view)],
    "prompts": lambda view: [rollout.prompt for rollout in _rollouts(view)],
    "answers": lambda view: [rollout.answer for rollout in _rollouts(view)],
    "temperature": lambda view: view.temperature,
    "iteration": lambda view: view.iteration,
}


class TokenFunction:
    """A user's function that returns one number for every token of the rollouts it is given.

    Example:
        surprise = TokenFunction("mine.py:surprise", WEIGHT_INPUTS)
        surprise.input_names  # ('logprobs',)
    """

    def __init__(self, name: str, inputs: Mapping[str, Any]) -> None:
        """`inputs` are the names that its parameters may have."""
        plugin = plugins.load_plugin(name)
        self.label, self._call = str(plugins.parse_plugin_name(name)), plugin.call
        parameters = plugin.signature.parameters.values()
        self.input_names = tuple(p.name for p in parameters if p.name in inputs)
        for parameter in parameters:
            starred = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if (
                parameter.name not in inputs
                and not starred
                and parameter.default is Parameter.empty
            ):
                kind = f"parameter of {plugin.name}"
                raise PoiseError(f"{plugin.path}: {unknown_name(kind, parameter.name, inputs)}")
        plugin.check_arguments(**dict.fromkeys(self.input_names, ""))
        self.settings = [
            p
            for p in parameters
            if p.name not in inputs
            and p.kind is p.KEYWORD_ONLY
            and isinstance(p.default, SETTING_TYPES)
        ]
        # `parse_settings` reads the settings of built-in methods from their signatures.
        self.__signature__ = Signature(self.settings)

    def evaluate(
        self, values: Mapping[str, Any], rows: Sequence[Row], settings: Mapping[str, Any]
    ) -> list[Floats]:
        """Call the function with the inputs it names, and check what it returns."""
        named_values = {input_name: values[input_name] for input_name in self.input_names}
        return check_token_values(self._call(**named_values, **settings), rows, self.label)


class PluginWeights(TokenFunction):
    """A token weighting by a user's function."""

    def __init__(self, name: str) -> None:
        super().__init__(name, WEIGHT_INPUTS)

    def __call__(self, view: CreditView, **settings: Any) -> list[Floats]:
        if not view.rows:  # a batch without signal
            return []
        values = {input_name: WEIGHT_INPUTS[input_name](view) for input_name in self.input_names}
        return self.evaluate(values, view.rows, settings)


def find_text_input(name: str) -> str:
    """The first parameter of a user's weighting that needs texts; "" if none does."""
    return next(filter(TEXT_INPUTS.__contains__, PluginWeights(name).input_names), "")


def check_token_values(returned: Any, rows: Sequence[Row], label: str) -> list[Floats]:
    """One array [T] of finite numbers for each row, or an error that names the rollout."""
    remedy = f"return a list of {len(rows)} arrays, one for each rollout"
    try:
        per_row = list(returned)
    except TypeError:
        raise PoiseError(f"{label} returned {type(returned).__name__}: {remedy}") from None
    if len(per_row) != len(rows):
        raise PoiseError(f"{label} returned {len(per_row)} arrays: {remedy}")
    return [_check_row(values, row, label) for values, row in zip(per_row, rows, strict=True)]


def _check_row(values: Any, row: Row, label: str) -> Floats:
    rollout = f"rollout {row.index} of {row.group}"
    try:
        # A number beyond float32 becomes infinite, and is refused below.
        with np.errstate(over="ignore"):
            values_T = np.asarray(values, dtype=np.float64).astype(np.float32)
    except (TypeError, ValueError, RuntimeError):  # torch raises RuntimeError
        raise PoiseError(
            f"{label} returned no numbers for {rollout}: return one for each of its "
            f"{row.num_tokens} tokens"
        ) from None
    if values_T.shape != (row.num_tokens,):
        raise PoiseError(
            f"{label} returned the shape {list(values_T.shape)} for {rollout}, which has "
            f"{row.num_tokens} tokens: return one number for each"
        )
    (invalid,) = np.nonzero(~np.isfinite(values_T))
    if len(invalid):
        position = int(invalid[0])
        raise PoiseError(
            f"{label} returned {values_T[position]} for token {position} of {rollout}: "
            "return finite numbers"
        )
    return values_T
