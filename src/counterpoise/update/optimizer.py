"""AdamW or SGD over float32 copies where the weights are bfloat16.

A step of 1e-6 times a weight is below bfloat16's resolution and would be rounded away, so half
precision weights are trained through float32 masters; float32 weights are their own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from counterpoise.config import UpdateConfig


class Optimizer:
    """One learning-rate schedule, one gradient clip, one place that knows about masters."""

    def __init__(self, model: nn.Module, config: UpdateConfig) -> None:
        self.config = config
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.masters: list[Tensor] = [
            p if p.dtype == torch.float32 else p.detach().float().requires_grad_()
            for p in self.weights
        ]
        self.inner: torch.optim.Optimizer
        if config.optimizer == "sgd":
            self.inner = torch.optim.SGD(self.masters, lr=config.lr)
        else:
            self.inner = torch.optim.AdamW(
                self.masters,
                lr=config.lr,
                betas=(0.9, config.beta2),
                weight_decay=config.weight_decay,
            )
        self.steps = 0

    def zero_grad(self) -> None:
        for weight in self.weights:
            weight.grad = None

    def grad_norm(self) -> float:
        """Euclidean norm of the whole gradient; not finite when any part of it is."""
        norms = [w.grad.detach().float().norm() for w in self.weights if w.grad is not None]
        return float(torch.stack(norms).norm()) if norms else 0.0

    def step(self, grad_norm: float, share: float = 1.0) -> None:
        """Clip to `max_grad_norm`, update the weights at `share` of the learning rate."""
        limit = self.config.max_grad_norm
        scale = min(1.0, limit / (grad_norm + 1e-6)) if limit > 0 else 1.0
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.grad = None if weight.grad is None else weight.grad.to(master.dtype)
            if master.grad is not None:
                master.grad.mul_(scale)
        rise = self.config.warmup_steps
        for group in self.inner.param_groups:
            group["lr"] = (
                share * self.config.lr * (min(1.0, (self.steps + 1) / rise) if rise else 1.0)
            )
        self.inner.step()
        self.steps += 1
        with torch.no_grad():
            for weight, master in zip(self.weights, self.masters, strict=True):
                if weight is not master:
                    weight.copy_(master)

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Flat tensors by name: what a safetensors file can hold."""
        tensors = {"steps": torch.tensor(self.steps)}
        for index, (weight, master) in enumerate(zip(self.weights, self.masters, strict=True)):
            if weight is not master:
                tensors[f"{index}/master"] = master.detach().contiguous()
            for name, value in self.inner.state.get(master, {}).items():
                tensors[f"{index}/{name}"] = value.detach().contiguous()
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.steps = int(tensors["steps"])
        for index, master in enumerate(self.masters):
            own = {k.partition("/")[2]: v for k, v in tensors.items() if k.startswith(f"{index}/")}
            if "master" in own:
                with torch.no_grad():
                    master.copy_(own.pop("master"))
            if own:
                self.inner.state[master] = {
                    name: value.clone() if name == "step" else value.to(master.device).clone()
                    for name, value in own.items()
                }
