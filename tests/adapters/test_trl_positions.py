"""Padded rows read at their own places: the model of transformers, without TRL."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

from counterpoise.adapters.trl.positions import from_first_token
from counterpoise.policy.load import EMBEDDED


@torch.no_grad()
def test_padding_moves_no_token() -> None:
    """Two columns of padding before a row, in float64: what is left is the rounding of angles."""
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float64).eval()
    ids_T = torch.arange(5, 45)
    ids_RT = torch.cat([torch.zeros(2, dtype=torch.long), ids_T])[None]
    mask_RT = (torch.arange(42) >= 2).long()[None]
    alone = model(input_ids=ids_T[None]).logits[0]
    places = []
    record = lambda module, args, given: places.append(given.get("position_ids"))  # noqa: E731
    model.model.register_forward_pre_hook(record, with_kwargs=True)
    shifted = model(input_ids=ids_RT, attention_mask=mask_RT).logits[0, 2:]
    from_first_token(model)
    placed = model(input_ids=ids_RT, attention_mask=mask_RT).logits[0, 2:]
    assert places[0] is None
    assert places[1].tolist() == [[0, 0, *range(40)]]
    assert float((placed - alone).abs().max()) < 1e-9
    assert float((shifted - alone).abs().max()) > 1e-7
    given = torch.arange(42)[None] + 7
    model(input_ids=ids_RT, attention_mask=mask_RT, position_ids=given)
    assert places[2] is given  # whoever counts is left alone


def test_generation_counts_by_itself() -> None:
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()
    ids_RT = torch.cat([torch.zeros(2, dtype=torch.long), torch.arange(5, 25)])[None]
    mask_RT = (torch.arange(22) >= 2).long()[None]
    how = {"attention_mask": mask_RT, "do_sample": False, "max_new_tokens": 8}
    before = model.generate(ids_RT, **how)
    from_first_token(model)
    assert model.generate(ids_RT, **how).tolist() == before.tolist()


def test_other_architectures_are_left_alone() -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model("gpt2", n_layer=1, n_head=2, n_embd=8, vocab_size=16)
    model = AutoModelForCausalLM.from_config(config)
    from_first_token(model)
    assert not model._forward_pre_hooks
