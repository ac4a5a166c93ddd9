"""Per-example gradient products by dattri-llm: an independent reference for our influences.

    product of a row i and an answer q     <grad sum_t c_t log p_t(i), grad sum_t log p_t(q)>

dattri-llm 0.1 (https://github.com/TRAIS-Lab/dattri-llm) hooks the layers of transformers' own model
and multiplies their per-example gradients layer by layer (its TracIn at one checkpoint). That is
the same number as `removal.gradient_products`, by other code, if no weight is used by two layers:
where the embedding is tied to the output layer, the products of one's gradient with the other's are
left out.

It is optional: pip install dattri-llm. Where it is missing, studies leave the baseline out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy
from counterpoise.types import Floats, Row

NORM_SUFFIX = "RMSNorm"  # of transformers' classes, which dattri-llm has to be told about


def is_installed() -> bool:
    return find_spec("dattri_llm") is not None


def dattri_products(
    policy: Policy,
    rows: Sequence[Row],
    pulls: Sequence[Floats],  # c of each row, [T]
    answers: Sequence[Row],
    temperature: float = 1.0,
) -> NDArray[np.float64]:
    """The product of every row with every answer, through all parameters: [R, Q]."""
    if not is_installed():
        raise PoiseError("dattri-llm is not installed: pip install dattri-llm")
    from dattri_llm import AttributionArguments, AttributionTask, TracInAttributor

    def weighted_logprob(model: Any, batch: dict[str, Tensor]) -> Tensor:
        logits = model(input_ids=batch["input_ids"], use_cache=False).logits[:, :-1]
        logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
        targets = batch["input_ids"][:, 1:, None]
        return (logprobs.gather(2, targets).squeeze(2) * batch["weights"][:, 1:]).sum()

    ones = [np.ones(answer.num_tokens, dtype=np.float32) for answer in answers]
    with tempfile.TemporaryDirectory(prefix="poise-dattri-") as folder:
        arguments = AttributionArguments(
            output_dir=folder,
            per_device_train_batch_size=1,  # no padding, and every example is alone in its pass
            per_device_eval_batch_size=1,
            use_cpu=policy.device.type == "cpu",
        )
        task = AttributionTask(weighted_logprob, policy.model)
        score = TracInAttributor(arguments, task=task).attribute(
            _examples(rows, pulls), _examples(answers, ones), hook_config=_hook_config(policy.model)
        )
    # Read by position, not by dattri-llm's ids: those are hashes of the tokens, so equal responses
    # would share a row of the matrix.
    matrix = score.scores
    if matrix.shape != (len(rows), len(answers)):
        raise PoiseError(
            f"dattri-llm returned {tuple(matrix.shape)} products for {len(rows)} rows and "
            f"{len(answers)} answers"
        )
    return matrix.double().cpu().numpy()


def _examples(rows: Sequence[Row], weights: Sequence[Floats]) -> list[dict[str, Tensor]]:
    examples = []
    for row, weights_T in zip(rows, weights, strict=True):
        prompt, response = row.content.prompt_tokens, row.content.response_tokens
        weights_L = np.concatenate((np.zeros(len(prompt), np.float32), weights_T))
        examples.append(
            {
                "input_ids": torch.from_numpy(np.concatenate((prompt, response))).long(),
                "weights": torch.from_numpy(weights_L.astype(np.float32)),
            }
        )
    return examples


def _hook_config(model: torch.nn.Module) -> Any:
    """Hooks on all layers with weights, with transformers' norms declared as what they are."""
    from dattri_llm import REGISTER_ALL, HookManagerConfig
    from dattri_llm.utils.module import rms_norm_module_kwargs

    norms: dict[str, Any] = {
        name: layer
        for name, layer in model.named_modules()
        if type(layer).__name__.endswith(NORM_SUFFIX)
    }
    return HookManagerConfig(
        hook_types=dict.fromkeys(norms, "linear_io"),
        linear_io=REGISTER_ALL,
        layer_types=dict.fromkeys(norms, "nn.RMSNorm"),
        module_kwargs={
            name: rms_norm_module_kwargs(
                normalized_shape=len(norm.weight), eps=norm.variance_epsilon
            )
            for name, norm in norms.items()
        },
    )
