"""Token weights from the arrays of another trainer's loop: no policy, no forward pass.

A weighting reads what it needs from a `CreditView`. In training the view asks the policy; an
`ArrayView` answers from the arrays that the caller passed, so both run the same code. What a
weighting asks for and the caller did not pass is an error that names the argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from counterpoise.credit.array_inputs import ArrayLike, to_group_numbers, to_row_values
from counterpoise.credit.assign import parse_settings
from counterpoise.credit.token_layout import TokenLayout, to_state_tensor
from counterpoise.credit.view import CreditView, NoPolicyError, PolicyReader, unit_weights
from counterpoise.errors import PoiseError
from counterpoise.types import Floats, Ints, Row
from counterpoise.variants import TOKEN_WEIGHTS, WEIGHTS_THAT_READ_TEXTS

SHAPES = {
    "groups": "[R], or the number of consecutive rows of a prompt",
    "tokens": "[T] for each row",
    "logprobs": "[T] for each row",
    "hinted_logprobs": "[T] for each row",
    "entropies": "[T] for each row",
    "hidden": "[T, D] for each row",
    "unembedding": "[V, D]",
}


@dataclass(frozen=True, eq=False)
class ArrayView(CreditView):
    """Rows with signal, and the arrays that the caller has of them."""

    method: str = ""
    # What the caller passed, by argument name; per-token arguments as lists in the order of `rows`.
    arrays: Mapping[str, Any] = field(default_factory=dict)
    sampling_temperature: float = 1.0
    run_iteration: int = 1
    logit_softcap: float = 0.0

    @cached_property
    def groups(self) -> list[list[int]]:
        self._argument("groups")
        return CreditView(self.rows).groups

    @property
    def tokens(self) -> list[Ints]:
        return self._argument("tokens")

    @property
    def logprobs(self) -> list[Floats]:
        return self._argument("logprobs")

    @cached_property
    def hinted_logprobs(self) -> list[Floats | None]:
        return self._argument("hinted_logprobs")

    @property
    def entropies(self) -> list[Floats]:
        return self._argument("entropies")

    @property
    def hidden(self) -> list[Tensor]:
        return self._argument("hidden")

    @property
    def softcap(self) -> float:
        return self.logit_softcap

    @property
    def generic_logprobs(self) -> list[float | None]:
        raise self._refusal("compares responses with generic ones, which arrays do not hold")

    @property
    def pieces(self) -> list[list[str]]:
        raise self._refusal("reads the texts of tokens, which needs the tokenizer")

    @property
    def steering_rows(self) -> Sequence[Row]:
        raise self._refusal("reads held-out answers, which arrays do not hold")

    @property
    def unembedding(self) -> Tensor:
        return self._argument("unembedding")

    @property
    def temperature(self) -> float:
        return self.sampling_temperature

    @property
    def iteration(self) -> int:
        return self.run_iteration

    def _argument(self, argument: str) -> Any:
        if argument not in self.arrays:
            raise PoiseError(
                f"weights: {self.method} needs {argument}: pass {argument}, {SHAPES[argument]}"
            )
        return self.arrays[argument]

    @property
    def _reader(self) -> PolicyReader:
        raise self._refusal(
            "makes passes of its own through the policy, which arrays do not replace"
        )

    def _refusal(self, reason: str) -> NoPolicyError:
        works_in_trl = self.method not in WEIGHTS_THAT_READ_TEXTS
        return NoPolicyError(
            f"weights: {self.method} {reason}: train with credit.weights={self.method}"
            + (", or in TRL with counterpoise.trl" if works_in_trl else "")
        )


def weights(
    method: str,
    *,
    advantages: ArrayLike,
    groups: ArrayLike | int | None = None,
    mask: ArrayLike | None = None,
    tokens: ArrayLike | None = None,
    logprobs: ArrayLike | None = None,
    hinted_logprobs: ArrayLike | None = None,
    entropies: ArrayLike | None = None,
    hidden: ArrayLike | None = None,
    unembedding: NDArray[Any] | Tensor | None = None,
    temperature: float = 1.0,
    softcap: float = 0.0,
    iteration: int = 1,
    **settings: float | str,
) -> Any:
    """Compute a weight for every token, by which its rollout's advantage is multiplied.

    Per-token arguments are lists with one array [T] for each rollout, or arrays [R, T] together
    with `mask`. The weights come back in the same form: a list of float32 arrays, or one array or
    tensor like `mask`, with 0 where it is false. Rollouts with an advantage of 0 get 1.

    Arguments:
        method           uniform, high_entropy (needs entropies), gtpo (groups, tokens, entropies),
                         rsi_s (logprobs, entropies), negative_filter (logprobs; support="group":
                         groups, tokens), cancellation, nthr, thr or otb (groups, tokens, hidden,
                         unembedding), shear (groups, hidden), rlsd (logprobs, hinted_logprobs).
                         Refused: grail, oar_g, oar_p, oar_p_approximate, serl (own passes), crpo
                         (generic responses), aligned (held-out answers)
        advantages       [R]
        groups           [R] or G, as in `counterpoise.advantages`
        mask             [R, T], true at the trained tokens
        tokens           [R, T], ids of the response tokens
        logprobs         [R, T], of those tokens
        hinted_logprobs  [R, T], the same if the prompt contained the answer
        entropies        [R, T], of the distributions that the tokens were sampled from, in nats
        hidden           [R, T, D], the unembedding's inputs that predicted the tokens
        unembedding      [V, D]
        temperature      of sampling
        softcap          as in `decompose`
        iteration        from 1: rlsd fades with it
        settings         of the method, such as share=0.3

    Example:
        >>> entropies = [[0.1, 0.9], [0.8, 0.2, 0.3]]
        >>> weights("high_entropy", advantages=[1.0, -1.0], entropies=entropies, share=0.4)
        [array([0., 1.], dtype=float32), array([1., 0., 0.], dtype=float32)]
    """
    weigh_tokens = TOKEN_WEIGHTS.load(method)
    settings_text = [
        f"{setting_name}={setting_value}" for setting_name, setting_value in settings.items()
    ]
    parsed_settings = parse_settings(method, weigh_tokens, settings_text, option="weights")
    if not temperature > 0:
        raise PoiseError(f"temperature must be above 0, not {temperature}")
    if not softcap >= 0:
        raise PoiseError(f"softcap must be 0 or above, not {softcap}")
    per_token = {
        "tokens": tokens,
        "logprobs": logprobs,
        "hinted_logprobs": hinted_logprobs,
        "entropies": entropies,
        "hidden": hidden,
    }
    array_rows = ArrayRows(advantages, groups, mask, per_token)
    arrays = array_rows.arrays_of_signal_rows()
    if unembedding is not None:
        arrays["unembedding"] = check_unembedding(unembedding, arrays)
    signal_rows = [array_rows.rows[i] for i in array_rows.signal_indices]
    view = ArrayView(signal_rows, None, method, arrays, temperature, iteration, softcap)
    return array_rows.join(weigh_tokens(view, **parsed_settings))


class ArrayRows:
    """The caller's rollouts as rows, and which of them carry signal."""

    def __init__(
        self,
        advantages: ArrayLike,
        groups: ArrayLike | int | None,
        mask: ArrayLike | None,
        per_token: Mapping[str, ArrayLike | None],
    ) -> None:
        A_R = to_row_values("advantages", advantages)
        self.layout = TokenLayout(len(A_R), mask)
        self.per_token: dict[str, Sequence[Any]] = {
            argument: self.layout.split_states(values)
            if argument == "hidden"
            else self.layout.split_numbers(argument, values)
            for argument, values in per_token.items()
            if values is not None
        }
        self.group_R = None if groups is None else to_group_numbers(groups, len(A_R))
        keys_R = [0] * len(A_R) if self.group_R is None else self.group_R.tolist()
        columns = zip(keys_R, A_R.tolist(), self.layout.lengths_R, strict=True)
        self.rows = [
            Row(group=str(group_number), advantage=advantage, num_tokens=length, index=i)
            for i, (group_number, advantage, length) in enumerate(columns)
        ]
        # As in training, a weighting sees only rows with signal. A row whose tokens are all masked
        # out, as TRL masks truncated completions, has none.
        self.signal_indices = [i for i, row in enumerate(self.rows) if row.sign and row.num_tokens]

    def arrays_of_signal_rows(self) -> dict[str, Any]:
        """What the caller passed, by argument: per-token arrays of the rows with signal only."""
        arrays: dict[str, Any] = {
            argument: [values[i] for i in self.signal_indices]
            for argument, values in self.per_token.items()
        }
        if self.group_R is not None:
            arrays["groups"] = self.group_R
        return arrays

    def join(self, signal_weights: Sequence[Floats] | None) -> list[Floats] | Floats | Tensor:
        """Weights of all rows in the caller's layout; 1 where a weighting decided nothing."""
        weights_by_row = unit_weights(self.rows)
        if signal_weights is not None:
            for i, weights_T in zip(self.signal_indices, signal_weights, strict=True):
                weights_by_row[i] = weights_T
        return self.layout.join(weights_by_row)


def check_unembedding(values: NDArray[Any] | Tensor, arrays: Mapping[str, Any]) -> Tensor:
    """The unembedding [V, D] on the device of the hidden states; raises if it does not fit them."""
    W = to_state_tensor("unembedding", values)
    if W.ndim != 2:
        raise PoiseError(f"unembedding has the shape {list(W.shape)}, not [V, D]")
    for hidden in arrays.get("hidden", ())[:1]:
        W = W.to(hidden.device)
        if W.shape[1] != hidden.shape[1]:
            raise PoiseError(
                f"unembedding is for states of size {W.shape[1]}, but hidden has {hidden.shape[1]}"
            )
    for tokens_T in arrays.get("tokens", ()):
        if tokens_T.min() < 0 or tokens_T.max() >= len(W):
            raise PoiseError(f"tokens has ids outside the unembedding's vocabulary of {len(W)}")
    return W
