"""The output layer as a proxy of a LoRA step: the layer stays frozen, and is measured all the
same."""

from __future__ import annotations

from pathlib import Path

import torch

from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.proxy import measure


def test_a_step_of_an_adapter_is_compared_with_one_of_the_frozen_layer(tmp_path: Path) -> None:
    options = ("model.lora_rank=8", "model.device=cpu", "sample.max_new_tokens=64")
    lab = Lab("embedded", "quick", tmp_path, sizes={"prompts": 4, "batches": 1}, options=options)
    before = {name: weight.clone() for name, weight in lab.policy.model.named_parameters()}
    records = measure(lab)
    for name, weight in lab.policy.model.named_parameters():
        assert torch.equal(weight, before[name]), name
    for optimizer in ("adamw", "sgd"):
        tokens, agree = (
            sum(record[field] for record in records if record["optimizer"] == optimizer)
            for field in ("tokens", "agree")
        )
        # A token that the adapter left alone would not be counted.
        assert tokens > 100
        assert 0.5 < agree / tokens < 0.95
