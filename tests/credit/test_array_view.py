"""Weights from arrays are those of training, number for number, and what is missing is named."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import answered
import numpy as np
import pytest
import tiny
import torch

from counterpoise.credit.array_view import weights
from counterpoise.credit.assign import parse_settings, with_token_weights
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.types import Row
from counterpoise.variants import TOKEN_WEIGHTS

TEMPERATURE, ITERATION = 0.8, 7

# What each method needs beside the advantages and the lengths of the rows.
NEEDS = {
    "uniform": set(),
    "high_entropy": {"entropies"},
    "gtpo": {"groups", "tokens", "entropies"},
    "cancellation": {"groups", "tokens", "hidden", "unembedding"},
    "nthr": {"groups", "tokens", "hidden", "unembedding"},
    "thr": {"groups", "tokens", "hidden", "unembedding"},
    "shear": {"groups", "hidden"},
    "rsi_s": {"logprobs", "entropies"},
    "negative_filter": {"logprobs"},
    "otb": {"groups", "tokens", "hidden", "unembedding"},
    "rlsd": {"logprobs", "hinted_logprobs"},
}
NEED_A_POLICY = {"grail", "oar_g", "oar_p", "oar_p_approximate", "serl", "aligned"}
SETTINGS = {  # that leave fewer weights at 1
    "high_entropy": ["share=0.3"],
    "gtpo": ["ceiling=4.0"],
    "nthr": ["beta=0.05"],
    "shear": ["width=4", "stride=2"],
}


def make_rows(groups: int = 3) -> list[Row]:
    """Groups of four rollouts of unlike lengths that share first tokens; one row has no signal."""
    rows = tiny.rows(groups=groups, size=4, seed=5)
    shared = []
    for i, row in enumerate(rows):
        tokens = row.content.response_tokens.copy()
        tokens[:2] = 40 + i // 4
        rollout = replace(row.content, response_tokens=tokens, answer="7")
        shared.append(replace(row, rollout=rollout))
    shared[5] = replace(shared[5], advantage=0.0)
    return shared


POLICY, ROWS = tiny.policy(), make_rows()
READER = PolicyReader(POLICY, TEMPERATURE, iteration=ITERATION)


def arrays_of(rows: list[Row]) -> dict[str, object]:
    """What a trainer knows of the rows, rows without signal included, from the same passes."""
    signal = [i for i, row in enumerate(rows) if row.sign]
    view = CreditView([rows[i] for i in signal], READER)
    place = {i: n for n, i in enumerate(signal)}

    def spread(values, *shape):
        """Values of the rows with signal, and zeros for the others."""
        return [
            values[place[i]] if i in place else torch.zeros(row.num_tokens, *shape).numpy()
            for i, row in enumerate(rows)
        ]

    hidden = spread(view.hidden, POLICY.decoder.config.hidden_size)
    return {
        "advantages": [row.advantage for row in rows],
        "groups": [row.group for row in rows],
        "tokens": [row.content.response_tokens for row in rows],
        "logprobs": spread(view.logprobs),
        "hinted_logprobs": spread(view.hinted_logprobs),
        "entropies": spread(view.entropies),
        "hidden": [torch.as_tensor(states) for states in hidden],
        "unembedding": POLICY.decoder.unembedding,
    }


ARRAYS = arrays_of(ROWS)
LENGTHS = [row.num_tokens for row in ROWS]


def weights_of_training(name: str, settings: list[str]) -> list[np.ndarray]:
    weights_of = TOKEN_WEIGHTS.load(name)
    (rows,) = with_token_weights(
        [ROWS], weights_of, parse_settings(name, weights_of, settings), READER
    )
    ones = [np.ones(row.num_tokens, np.float32) for row in ROWS]
    return [
        one if row.weights_T is None else row.weights_T for row, one in zip(rows, ones, strict=True)
    ]


def typed(settings: list[str]) -> dict[str, float]:
    return {key: float(value) if "." in value else int(value) for key, value in pairs(settings)}


def pairs(settings: list[str]) -> list[tuple[str, str]]:
    return [(key, value) for key, _, value in (text.partition("=") for text in settings)]


def padded(left: bool = False) -> tuple[dict[str, object], torch.Tensor]:
    """The arrays as TRL has them: [R, T] and [R, T, D], and their mask."""
    longest = max(LENGTHS) + 2
    mask = torch.zeros(len(ROWS), longest, dtype=torch.int64)
    for line, length in zip(mask, LENGTHS, strict=True):
        line[longest - length if left else 0 :][:length] = 1
    given = dict(ARRAYS)
    for name in ("tokens", "logprobs", "hinted_logprobs", "entropies", "hidden"):
        rows = [torch.as_tensor(row) for row in ARRAYS[name]]
        array = torch.full((*mask.shape, *rows[0].shape[1:]), 3, dtype=rows[0].dtype)
        for line, keep, row in zip(array, mask.bool(), rows, strict=True):
            line[keep] = row
        given[name] = array
    return given, mask


def only_needed(name: str, given: dict[str, object]) -> dict[str, object]:
    return {key: given[key] for key in ("advantages", *sorted(NEEDS[name]))}


def test_every_method_is_either_for_arrays_or_for_a_policy() -> None:
    assert NEEDS.keys() | NEED_A_POLICY | {"crpo"} == set(TOKEN_WEIGHTS)


@pytest.mark.parametrize("name", NEEDS)
def test_rows_give_the_weights_of_training(name: str) -> None:
    settings = SETTINGS.get(name, [])
    expected = weights_of_training(name, settings)
    arrays = {"tokens": ARRAYS["tokens"], **only_needed(name, ARRAYS)}
    computed = weights(
        name, **arrays, temperature=TEMPERATURE, iteration=ITERATION, **typed(settings)
    )
    for ours, theirs in zip(computed, expected, strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_array_equal(ours, theirs)
    flat = np.concatenate(expected)
    assert name == "uniform" or (flat != 1).mean() > 0.1  # otherwise equality shows little
    np.testing.assert_array_equal(computed[5], 1)  # no signal


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", NEEDS)
def test_padded_tensors_give_the_weights_of_training(name: str, left: bool) -> None:
    settings = SETTINGS.get(name, [])
    given, mask = padded(left)
    computed = weights(
        name,
        **only_needed(name, given),
        mask=mask,
        temperature=TEMPERATURE,
        iteration=ITERATION,
        **typed(settings),
    )
    assert isinstance(computed, torch.Tensor)
    assert computed.shape == mask.shape
    assert (computed[mask == 0] == 0).all()
    for line, keep, theirs in zip(
        computed, mask.bool(), weights_of_training(name, settings), strict=True
    ):
        np.testing.assert_array_equal(line[keep], theirs)


def test_numpy_in_numpy_out() -> None:
    given, mask = padded()
    computed = weights(
        "high_entropy",
        advantages=np.array(given["advantages"]),
        entropies=given["entropies"].numpy(),
        mask=mask.numpy(),
    )
    assert isinstance(computed, np.ndarray)
    tensors = weights(
        "high_entropy", advantages=given["advantages"], entropies=given["entropies"], mask=mask
    )
    np.testing.assert_array_equal(computed, tensors)


@pytest.mark.parametrize("name", ["cancellation", "nthr", "thr", "shear"])
def test_hidden_states_in_float64_as_numpy_makes_them(name: str) -> None:
    arrays = only_needed(name, ARRAYS)
    arrays["hidden"] = [states.double().numpy() for states in ARRAYS["hidden"]]
    if "unembedding" in arrays:
        arrays["unembedding"] = POLICY.decoder.unembedding.detach().double().numpy()
    computed = weights(name, **arrays, temperature=TEMPERATURE)
    expected = weights_of_training(name, [])
    np.testing.assert_allclose(np.concatenate(computed), np.concatenate(expected), atol=1e-3)


def test_a_forward_pass_by_transformers_gives_them_too() -> None:
    """The arrays as another trainer computes them: one padded batch, all positions."""
    prompts = [row.content.prompt_tokens for row in ROWS]
    ids = [
        torch.from_numpy(np.concatenate((prompt, row.content.response_tokens)).astype(np.int64))
        for prompt, row in zip(prompts, ROWS, strict=True)
    ]
    batch = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    mask = torch.zeros(batch[:, 1:].shape, dtype=torch.bool)
    for line, prompt, length in zip(mask, prompts, LENGTHS, strict=True):
        line[len(prompt) - 1 : len(prompt) - 1 + length] = True
    with torch.no_grad():
        hidden = POLICY.model.model(batch).last_hidden_state[:, :-1]
    computed = weights(
        "cancellation",
        advantages=ARRAYS["advantages"],
        groups=4,
        mask=mask,
        tokens=batch[:, 1:],
        hidden=hidden,
        unembedding=POLICY.model.lm_head.weight,
        temperature=TEMPERATURE,
    )
    expected = weights_of_training("cancellation", [])
    for line, keep, theirs in zip(computed, mask, expected, strict=True):
        np.testing.assert_allclose(line[keep], theirs, atol=2e-4)


@pytest.mark.parametrize("name", NEEDS)
def test_an_error_names_each_argument_that_is_missing(name: str) -> None:
    """Arguments are added as messages ask for them: in the end all that the method needs."""
    given, mask = padded()
    passed = {"advantages": given["advantages"], "mask": mask}
    for _ in range(9):
        try:
            weights(name, **passed)
            break
        except PoiseError as fault:
            message = str(fault)
            missing = re.fullmatch(rf"weights: {name} needs (\w+): pass \1, \[.*", message)
            assert missing, message
            passed[missing[1]] = given[missing[1]]
    assert passed.keys() - {"advantages", "mask"} == NEEDS[name]


@pytest.mark.parametrize("name", sorted(NEED_A_POLICY))
def test_methods_that_make_passes_are_refused(name: str) -> None:
    asked = "reads held-out answers" if name == "aligned" else "makes passes of its own"
    in_trl = "" if name == "serl" else ", or in TRL with counterpoise.trl"  # TRL has no texts
    remedy = f"train with credit.weights={name}{in_trl}"
    with pytest.raises(PoiseError, match=rf"^weights: {name} {asked}.*: {remedy}$"):
        weights(name, **ARRAYS)


def test_a_function_of_the_users_is_told_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def by_group(tokens, groups):\n"
        "    return [[float(g)] * len(t) for t, g in zip(tokens, groups)]\n"
        "def by_text(pieces):\n    return pieces\n"
    )
    given = {"advantages": [1.0, -1.0, 1.0, -1.0], "tokens": [[3], [4], [5], [6]]}
    computed = weights(f"{file}:by_group", **given, groups=2)
    assert np.concatenate(computed).tolist() == [0, 0, 1, 1]
    with pytest.raises(PoiseError, match="by_group needs groups: pass groups"):
        weights(f"{file}:by_group", **given)
    with pytest.raises(PoiseError, match="by_text reads the texts of tokens, which needs the tok"):
        weights(f"{file}:by_text", **given)


def test_capped_logits() -> None:
    """A Gemma 2 caps its logits: arrays with `softcap` give the weights of its policy."""
    policy = tiny.policy("gemma2", final_logit_softcapping=2.0, head_dim=16)
    policy.decoder.unembedding.data *= 6  # so that the cap acts
    rows = [row for row in ROWS if row.sign]
    view = CreditView(rows, PolicyReader(policy, TEMPERATURE))
    given = {
        "advantages": [row.advantage for row in rows],
        "groups": [row.group for row in rows],
        "tokens": view.tokens,
        "hidden": view.hidden,
        "unembedding": policy.decoder.unembedding,
        "temperature": TEMPERATURE,
    }
    expected = np.concatenate(TOKEN_WEIGHTS.load("cancellation")(view))
    capped = np.concatenate(weights("cancellation", **given, softcap=2.0))
    np.testing.assert_array_equal(capped, expected)
    assert np.abs(np.concatenate(weights("cancellation", **given)) - expected).max() > 0.01


def test_weights_that_need_generic_responses_are_refused() -> None:
    with pytest.raises(PoiseError, match="compares responses with generic ones"):
        weights("crpo", **ARRAYS)


def test_masked_out_rows_and_no_rows() -> None:
    given, mask = padded()
    mask = mask.clone()
    mask[0] = 0  # as TRL masks a truncated completion
    computed = weights("gtpo", **only_needed("gtpo", given), mask=mask, ceiling=np.inf)
    assert (computed[0] == 0).all()
    assert (computed[1][mask[1] == 1] != 0).any()
    assert weights("high_entropy", advantages=[], entropies=[]) == []
    assert weights("uniform", advantages=[0.0], tokens=[[3, 4]])[0].tolist() == [1.0, 1.0]


ONE = {"advantages": [1.0, -1.0], "entropies": [[0.1, 0.2], [0.3]]}
STATES = [np.zeros((2, 3)), np.zeros((1, 3))]
WRONG = [
    ({"advantages": [1.0, np.nan]}, "advantages must be finite, but row 1 has nan"),
    ({"advantages": [[1.0], [2.0]]}, r"advantages needs one number for each row, \[R\], not"),
    ({"advantages": ["a", "b"]}, "advantages is not an array of numbers"),
    ({"advantages": [1.0]}, "entropies has 2 rows, but advantages has 1"),
    ({"entropies": 3.0}, "entropies needs one array for each row"),
    ({"entropies": [0.1, 0.2]}, r"entropies needs an array \[T\] for each row, or a mask"),
    ({"entropies": [[np.inf, 0.2], [0.3]]}, "entropies must be finite, but row 0"),
    ({"tokens": [[1, 2], [3, 4]]}, "row 1 has 1 tokens in entropies, but 2 in tokens"),
    ({"tokens": [[1.5, 2], [3]]}, "tokens must be whole numbers"),
    ({"hidden": [[0.0, 1.0], [1.0]]}, r"hidden needs an array \[T, D\] for each row"),
    ({"hidden": [np.zeros((2, 3)), np.zeros((1, 4))]}, "hidden: the rows have states of different"),
    ({"hidden": [np.full((2, 3), np.nan), np.zeros((1, 3))]}, "hidden must be finite"),
    ({"hidden": STATES, "unembedding": np.zeros((9, 4))}, "unembedding is for states of size 4"),
    ({"hidden": STATES, "unembedding": np.zeros(9)}, r"unembedding has the shape \[9\], not"),
    ({"tokens": [[1, 9], [3]], "unembedding": np.zeros((9, 3))}, "tokens has ids outside"),
    ({"mask": np.ones((3, 2))}, r"mask has the shape \[3, 2\], not \[R, T\] with 2 rows"),
    ({"mask": np.ones((2, 2)), "entropies": np.ones((2, 3))}, r"entropies has the shape \[2, 3\]"),
    ({"groups": 3}, "groups: 2 rows are not whole groups of 3"),
    ({"groups": ["a"]}, "groups has 1 entries for 2 rows"),
    ({"groups": [[1], [2]]}, "groups needs one number or name for each row"),
    ({"temperature": 0}, "temperature must be above 0, not 0"),
    ({"softcap": np.nan}, "softcap must be 0 or above, not nan"),
    ({"shar": 0.2}, "weights: unknown setting of high_entropy 'shar': did you mean 'share'"),
    ({"share": "much"}, "weights: share is a number, not 'much'"),
    ({"entropies": None}, "weights: pass mask, or tokens, for the lengths of the rows"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_arguments_are_one_line(change: dict[str, object], message: str) -> None:
    with pytest.raises(PoiseError, match=f"^{message}") as fault:
        weights("high_entropy", **{**ONE, **change})
    assert "\n" not in str(fault.value)


def test_an_unknown_method() -> None:
    with pytest.raises(PoiseError, match="unknown token weights 'ntr': did you mean 'nthr'"):
        weights("ntr", advantages=[1.0], tokens=[[1]])


def test_rollouts_with_boxes_are_refused_as_well() -> None:
    """Rows in which grail and oar would find an answer, if they had a policy to read it."""
    rows = answered.rows()
    tokens = [row.content.response_tokens for row in rows]
    with pytest.raises(PoiseError, match=r"^weights: grail makes passes"):
        weights("grail", advantages=[row.advantage for row in rows], tokens=tokens)
