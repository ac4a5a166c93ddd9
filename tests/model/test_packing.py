"""Packed rows: every prompt once, every token where it belongs, and the forward of transformers."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.errors import PoiseError
from counterpoise.model.attention import PackedAttention
from counterpoise.model.decoder import Decoder
from counterpoise.model.load import wrap_model
from counterpoise.model.packing import Packing, pack, pack_prompts
from counterpoise.types import Ints

CPU = torch.device("cpu")
ARCHITECTURES = ["llama", "qwen2", "qwen3"]


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int32)


def packed(prompts: list[Ints], responses: list[Ints]) -> Packing:
    return pack(prompts, responses, CPU)


def test_the_example_of_the_docstring() -> None:
    p = ints(1, 2, 3)
    found = packed([p, p.copy()], [ints(10, 11, 12), ints(20, 21)])
    assert found.tokens_N.tolist() == [1, 2, 3, 10, 11, 20]
    assert found.positions_N.tolist() == [0, 1, 2, 3, 4, 3]
    assert found.predictors_M.tolist() == [2, 3, 4, 2, 5]
    assert found.targets_M.tolist() == [10, 11, 12, 20, 21]
    assert found.prompts == ((0, 3),)
    assert found.responses == ((3, 2), (5, 1))
    assert found.parents == (0, 0)
    assert found.lengths == (3, 2)


def test_equal_prompts_are_shared_wherever_they_stand() -> None:
    a, b = ints(1, 2), ints(3)
    found = packed([a, b, a, b], [ints(5, 6), ints(7, 8), ints(5, 6), ints(9, 9)])
    assert found.prompts == ((0, 2), (2, 1))
    assert found.parents == (0, 1, 0, 1)
    assert found.tokens_N.tolist() == [1, 2, 3, 5, 7, 5, 9]
    assert found.positions_N.tolist() == [0, 1, 0, 2, 1, 2, 1]


def test_a_prompt_that_begins_another_is_not_shared() -> None:
    found = packed([ints(1, 2), ints(1, 2, 3)], [ints(5), ints(5)])
    assert found.prompts == ((0, 2), (2, 3))


def test_responses_of_one_token_add_nothing_to_the_pass() -> None:
    found = packed([ints(4), ints(4), ints(5, 6)], [ints(7), ints(8, 9), ints(1)])
    assert found.tokens_N.tolist() == [4, 5, 6, 8]
    assert found.responses == ((3, 0), (3, 1), (4, 0))
    assert found.predictors_M.tolist() == [0, 0, 3, 2]
    assert found.targets_M.tolist() == [7, 8, 9, 1]


TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=5).map(lambda x: ints(*x))


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=8))
def test_following_the_indices_gives_the_rows_back(rows: list[tuple[Ints, Ints]]) -> None:
    prompts, responses = [p for p, _ in rows], [r for _, r in rows]
    found = packed(prompts, responses)
    distinct = {p.tobytes() for p in prompts}
    assert len(found.prompts) == len(distinct)
    assert len(found.tokens_N) == sum(len(d) // 4 for d in distinct) + sum(
        len(r) - 1 for r in responses
    )
    assert found.targets_M.tolist() == [t for r in responses for t in r.tolist()]
    predictors = found.predictors_M.split(list(found.lengths))
    for (prompt, response), (start, length), parent, where in zip(
        rows, found.responses, found.parents, predictors, strict=True
    ):
        at, size = found.prompts[parent]
        sequence = torch.cat(
            (found.tokens_N[at : at + size], found.tokens_N[start : start + length])
        )
        assert sequence.tolist() == [*prompt.tolist(), *response[:-1].tolist()]
        positions = found.positions_N[where]
        assert positions.tolist() == list(range(size - 1, size - 1 + len(response)))
        assert found.tokens_N[where].tolist() == sequence[size - 1 :].tolist()


def test_prompts_alone_are_not_merged() -> None:
    found = pack_prompts([ints(1, 2), ints(1, 2), ints(3)], CPU)
    assert found.tokens_N.tolist() == [1, 2, 1, 2, 3]
    assert found.positions_N.tolist() == [0, 1, 0, 1, 0]
    assert found.prompts == ((0, 2), (2, 2), (4, 1))
    assert found.responses == ()


def test_nothing_without_tokens_is_packed() -> None:
    """It would take its neighbour's last token for its own, and nothing would tell."""
    with pytest.raises(ValueError, match="a response without tokens"):
        packed([ints(1), ints(2)], [ints(3), ints()])
    with pytest.raises(ValueError, match="a prompt without tokens"):
        packed([ints(), ints(2)], [ints(3), ints(4)])
    with pytest.raises(ValueError, match="a prompt without tokens"):
        pack_prompts([ints(1), ints()], CPU)


# -- the forward --------------------------------------------------------------------------------


def rows(seed: int = 0) -> tuple[list[Ints], list[Ints]]:
    """Groups of two, three and one; prompts of 1 to 9 tokens, responses of 1 to 12."""
    rng = np.random.default_rng(seed)

    def tokens(size: int) -> Ints:
        return rng.integers(2, tiny.VOCABULARY, size).astype(np.int32)

    prompts = [tokens(5), tokens(1), tokens(9)]
    owner = [0, 1, 0, 2, 1, 1]
    return [prompts[o] for o in owner], [tokens(n) for n in (12, 1, 3, 7, 2, 1)]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_the_forward_is_that_of_transformers(architecture: str, tied: bool) -> None:
    policy = tiny.policy(architecture, tie_word_embeddings=tied)
    prompts, responses = rows()
    packing = packed(prompts, responses)
    hidden = policy.decoder(packing.tokens_N, packing.positions_N, PackedAttention(packing))
    ours = (hidden[packing.predictors_M] @ policy.decoder.unembedding.T).log_softmax(-1)
    for prompt, response, found in zip(
        prompts, responses, ours.split(packing.lengths), strict=True
    ):
        ids = torch.from_numpy(np.concatenate((prompt, response)).astype(np.int64))[None]
        theirs = policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        torch.testing.assert_close(found, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_prompts_alone_are_that_of_transformers(architecture: str) -> None:
    policy = tiny.policy(architecture)
    prompts = rows()[0]
    packing = pack_prompts(prompts, CPU)
    hidden = policy.decoder(packing.tokens_N, packing.positions_N, PackedAttention(packing))
    for prompt, (start, length) in zip(prompts, packing.prompts, strict=True):
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        theirs = policy.model.model(input_ids=ids).last_hidden_state[0]
        torch.testing.assert_close(hidden[start : start + length], theirs, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_rows_do_not_see_each_other() -> None:
    policy = tiny.policy()
    prompts, responses = rows()

    def logits(which: list[int]) -> list[torch.Tensor]:
        packing = packed([prompts[i] for i in which], [responses[i] for i in which])
        hidden = policy.decoder(packing.tokens_N, packing.positions_N, PackedAttention(packing))
        return list(
            (hidden[packing.predictors_M] @ policy.decoder.unembedding.T).split(packing.lengths)
        )

    together = logits([5, 4, 3, 2, 1, 0])[::-1]
    for i in range(len(prompts)):
        torch.testing.assert_close(logits([i])[0], together[i], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_positions_beyond_the_first_table() -> None:
    """The table of angles grows when a longer sequence comes."""
    policy = tiny.policy("llama", max_position_embeddings=8)
    for length in (4, 30):
        ids = torch.arange(2, 2 + length)
        packing = pack_prompts([ids.numpy().astype(np.int32)], CPU)
        policy.decoder.reserve(packing.longest)
        hidden = policy.decoder(packing.tokens_N, packing.positions_N, PackedAttention(packing))
        theirs = policy.model.model(input_ids=ids[None]).last_hidden_state[0]
        torch.testing.assert_close(hidden, theirs, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
        {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16, "rope_theta": 500000.0,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
         "rope_theta": 10000.0},
    ],
    ids=lambda rope: rope["rope_type"],
)  # fmt: skip
def test_stretched_positions(rope: dict) -> None:
    """Long-context models scale their angles; the model's own rotary module says how."""
    policy = tiny.policy("llama", rope_parameters=rope)
    ids = torch.arange(2, 62)
    packing = pack_prompts([ids.numpy().astype(np.int32)], CPU)
    hidden = policy.decoder(packing.tokens_N, packing.positions_N, PackedAttention(packing))
    theirs = policy.model.model(input_ids=ids[None]).last_hidden_state[0]
    torch.testing.assert_close(hidden, theirs, rtol=2e-5, atol=2e-5)


def test_the_fast_path_refuses_other_models() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("gpt2", n_embd=8, n_layer=1, n_head=2, vocab_size=11)
    with pytest.raises(PoiseError, match="gpt2 models are not on the fast path"):
        Decoder(AutoModelForCausalLM.from_config(config))


def test_another_activation_is_refused_not_ignored() -> None:
    with pytest.raises(PoiseError, match="relu"):
        Decoder(tiny.policy("llama", hidden_act="relu").model)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
        {"rope_type": "longrope", "factor": 4.0, "rope_theta": 10000.0,
         "original_max_position_embeddings": 64,
         "short_factor": [1.0] * 6, "long_factor": [3.0] * 6},
    ],
    ids=lambda rope: rope["rope_type"],
)  # fmt: skip
def test_angles_that_follow_the_length_are_refused(rope: dict) -> None:
    """transformers turns a short sequence by other angles than a long one."""
    policy = tiny.policy("llama", rope_parameters=rope)
    with pytest.raises(PoiseError, match=rope["rope_type"]):
        Decoder(policy.model)
    constant = 64 if rope["rope_type"] == "longrope" else 256
    policy.decoder.reserve(constant)
    with pytest.raises(PoiseError, match=f"change beyond {constant} tokens, .* needs"):
        policy.decoder.reserve(constant + 1)


def test_heads_that_turn_in_part_are_refused() -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    with pytest.raises(PoiseError, match="rotate only 6 of a head's 12 numbers"):
        tiny.policy("llama", rope_parameters=rope).decoder.reserve(8)


def test_a_model_without_an_end_is_refused() -> None:
    class Endless(tiny.Words):
        eos_token_id = None

    model = tiny.policy().model
    model.generation_config.eos_token_id = None
    with pytest.raises(PoiseError, match="no end token"):
        wrap_model("endless", model, Endless())
    with pytest.raises(PoiseError, match="no chat template"):
        wrap_model("plain", model, tiny.Words(), template="chat")
