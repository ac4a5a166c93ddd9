"""A small real TRL run that notes what every pass and every optimizer step was given.

    python trl_run.py OUT '{"composer": "grouped", ...}'     one process, or under torch's launcher

The model is in float64, so that what is compared is not rounding (`in_float64`). `stock` true runs
TRL's own GRPOTrainer, which `callback` records. Each process writes OUT/<process>.json and
.safetensors.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from counterpoise.credit.view import CreditView
from counterpoise.model.load import EMBEDDED_FOLDER
from counterpoise.task.word_problems import make_problem
from counterpoise.trl import PoiseCallback, PoiseConfig, PoiseGRPOTrainer
from counterpoise.types import Floats

PROMPTS, HELDOUT = 48, 4


def by_sum(modulus: int) -> Any:
    """Rewards of both signs, whatever the model knows: a function of the tokens alone."""

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [float(sum(ids) % modulus == 0) for ids in completion_ids]

    return reward


def ramp(view: CreditView) -> list[Floats]:
    """Token weights that are not uniform: from 0.5 to 1.5 along a response."""
    return [np.linspace(0.5, 1.5, row.num_tokens, dtype=np.float32) for row in view.rows]


def norm(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)


def turn(self: Any, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    angles = (positions[..., None] * self.inv_freq.double()).repeat(1, 1, 2)
    return angles.cos(), angles.sin()


class Head:
    @staticmethod
    def apply(
        hidden: Any, weight: Any, bias: Any, targets: Any, temperature: float, *_: Any
    ) -> Any:
        all_logprobs = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
        entropies = -(all_logprobs.exp() * all_logprobs).sum(-1)
        return all_logprobs.gather(1, targets[:, None]).squeeze(1), entropies, None, None, None


@contextmanager
def in_float64() -> Iterator[None]:
    """Whatever a model's dtype, transformers norms and takes the angles of positions in float32,
    and so does TRL's head with logits; here they are in float64 as the rest."""
    from transformers.models.qwen3 import modeling_qwen3 as qwen3

    with (
        patch.object(qwen3.Qwen3RMSNorm, "forward", norm),
        patch.object(qwen3.Qwen3RotaryEmbedding, "forward", turn),
        patch("trl.trainer.utils._ChunkedLogProbFunction", Head),
    ):
        yield


def by_token(batch: dict[str, Any]) -> list[tuple[list[int], list[int], list[float]]]:
    """Per row: prompt, response, advantages of its tokens."""
    mask_BT, advantages = batch["completion_mask"].bool(), batch["advantages"]
    if advantages.dim() == 1:
        advantages = advantages[:, None].expand(mask_BT.shape)
    columns = (batch["prompt_ids"], batch["prompt_mask"].bool(), batch["completion_ids"], mask_BT)
    return [
        (prompt[p].tolist(), response[m].tolist(), advantages_T[m].tolist())
        for prompt, p, response, m, advantages_T in zip(*columns, advantages, strict=True)
        if m.any()
    ]


class Watching:
    """Notes the rows of every pass as the loss gets them: (prompt, advantage, trained tokens), and
    token by token; and whether it was given old log-probabilities."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        batch = super()._prepare_inputs(generation_batch)  # type: ignore[misc]
        lines = zip(
            batch["prompt_ids"], batch["prompt_mask"], batch["advantages"],
            batch["completion_mask"].sum(1), strict=True,
        )  # fmt: skip
        rows = [(p[m.bool()].tolist(), float(a.flatten()[0]), int(n)) for p, m, a, n in lines if n]
        self.passes.append(rows)  # type: ignore[attr-defined]
        self.given.append(by_token(batch))  # type: ignore[attr-defined]
        self.scored.append("old_per_token_logps" in batch)  # type: ignore[attr-defined]
        return batch


class Gradients(TrainerCallback):
    """The weights and gradients of every optimizer step, and on process 0 its rows."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.trainer: Any = None

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        names = list(model.named_parameters())
        step = state.global_step % self.trainer.args.optimizer_steps
        decision = self.trainer.decision
        rows = [decision.rows[i] for i in decision.plan.steps[step]]
        samples = [self.trainer.rollouts_by_key[row.group, row.index] for row in rows]
        self.steps.append(
            {
                "weights": {name: p.detach().clone() for name, p in names},
                "gradient": {name: p.grad.detach().clone() for name, p in names},
                "groups": [row.group for row in rows],
                "advantages": [row.advantage for row in rows],
                "index": [row.index for row in rows],
                "born": [row.born for row in rows],
                "on_policy": self.trainer.on_policy(decision, step),
                "now": self.trainer._generation,
                "waiting": len(decision.waiting),
                "weights_T": [None if r.weights_T is None else r.weights_T.tolist() for r in rows],
                "prompts": [s.prompt_S for s in samples],
                "responses": [s.completion_T for s in samples],
                "old": [s.token_fields.get("old_per_token_logps") for s in samples],
            }
        )


def run(out: Path, options: dict[str, Any]) -> dict[str, Any]:
    given = {**options}
    stock, generations = given.pop("stock", False), given.pop("generations", 2)
    modulus, double = given.pop("modulus", 2), given.pop("double", True)
    chat, resume = given.pop("chat", False), given.pop("resume", None)
    callback_folder = given.pop("callback", "")  # of a stock trainer
    plan = {
        "per_device_train_batch_size": 6, "gradient_accumulation_steps": 1,
        "steps_per_generation": 4, "num_generations": 4, "seed": 3,
        "learning_rate": 3e-4, "save_strategy": "no", **given,
    }  # fmt: skip
    steps = generations * plan["steps_per_generation"] // plan["gradient_accumulation_steps"]
    args = (GRPOConfig if stock else PoiseConfig)(
        output_dir=str(out), max_steps=steps, max_completion_length=24,
        lr_scheduler_type="constant", max_grad_norm=0.0, epsilon=0.2, epsilon_high=0.28,
        logging_steps=1, report_to="none", disable_tqdm=True, use_cpu=True,
        bf16=False, gradient_checkpointing=False, **plan,
    )  # fmt: skip
    problems: list[Any] = [make_problem("train", i, levels=[1]).problem for i in range(PROMPTS)]
    if chat:  # as the model was trained
        problems = [[{"role": "user", "content": text}] for text in problems]
    heldout = [make_problem("heldout", i, levels=[1]).problem for i in range(HELDOUT)]
    host = GRPOTrainer if stock else PoiseGRPOTrainer
    kind = type("Watched", (Watching, host), {"passes": [], "given": [], "scored": []})
    dtype = torch.float64 if double else torch.float32
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER, dtype=dtype)
    notes = Gradients()
    trainer = kind(
        model=model, reward_funcs=by_sum(modulus), args=args,
        train_dataset=Dataset.from_dict({"prompt": problems}),
        eval_dataset=Dataset.from_dict({"prompt": heldout}) if given.get("probe") else None,
        callbacks=[] if stock else [notes],
    )  # fmt: skip
    notes.trainer = trainer
    if callback_folder:
        trainer.add_callback(PoiseCallback(trainer, callback_folder))
    with in_float64() if double else nullcontext():
        trainer.train(resume_from_checkpoint=resume)
    counts = None
    if not stock and trainer.planner.buffer is not None:
        buffer = trainer.planner.buffer
        names = ("added", "emitted", "dropped_surplus", "dropped_aged", "without_signal")
        counts = {name: getattr(buffer.counts, name) for name in names} | {"waiting": len(buffer)}
    logs = [line for line in trainer.state.log_history if "loss" in line]
    content = {name: getattr(trainer, name) for name in ("passes", "given", "scored")}
    return {**content, "steps": notes.steps, "logs": logs, "counts": counts}


def write(folder: Path, name: str, told: dict[str, Any]) -> None:
    """What was noted as JSON; tensors are names of those in a safetensors file."""
    tensors: dict[str, torch.Tensor] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors[str(len(tensors))] = value.contiguous()
            return {"tensor": str(len(tensors) - 1)}
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    (folder / f"{name}.json").write_text(json.dumps(plain(told)))
    save_file(tensors, folder / f"{name}.safetensors")


def read(folder: Path, name: str) -> dict[str, Any]:
    """The inverse of `write`."""
    tensors = load_file(folder / f"{name}.safetensors")

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {"tensor"}:
                return tensors[value["tensor"]]
            return {key: whole(item) for key, item in value.items()}
        return [whole(item) for item in value] if isinstance(value, list) else value

    result: dict[str, Any] = whole(json.loads((folder / f"{name}.json").read_text()))
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    told = run(folder, json.loads(sys.argv[2]))
    write(folder, os.environ.get("RANK", "0"), told)
