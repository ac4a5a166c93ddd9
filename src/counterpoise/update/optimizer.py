"""AdamW or SGD over float32 copies where the weights are half precision.

A step of 1e-6 times a weight is below bfloat16's resolution and would be rounded away, so half
precision weights are trained through float32 masters; wider weights are their own. The gradients
of several passes add up in the masters too: a sum in bfloat16 loses what is below 1/256 of it.

All parameters are handled by one call each (torch's multi-tensor functions): a model has hundreds,
and on a GPU a loop over them is a queue of kernels too small to fill it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from counterpoise.config import UpdateConfig


class Optimizer:
    """One learning-rate schedule, one gradient clip, one place that knows about masters."""

    def __init__(self, model: nn.Module, config: UpdateConfig) -> None:
        self.config = config
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.masters: list[Tensor] = [
            p if p.dtype.itemsize >= 4 else p.detach().float().requires_grad_()
            for p in self.weights
        ]
        pairs = zip(self.weights, self.masters, strict=True)
        self._half_precision = [
            (weight, master) for weight, master in pairs if weight is not master
        ]
        self.fused = bool(self.masters) and all(master.is_cuda for master in self.masters)
        self.inner: torch.optim.Optimizer
        if config.optimizer == "sgd":
            self.inner = torch.optim.SGD(self.masters, lr=config.lr)
        else:
            self.inner = torch.optim.AdamW(
                self.masters,
                lr=config.lr,
                betas=(0.9, config.beta2),
                weight_decay=config.weight_decay,
                fused=self.fused or None,  # one kernel that needs no memory of its own
            )
        self.steps = 0

    def zero_grad(self) -> None:
        for weight, master in zip(self.weights, self.masters, strict=True):
            weight.grad = master.grad = None

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Move the gradients of half precision weights to their masters, adding up there.

        After every pass of several; `grad_norm` and `step` collect what is left.
        """
        news = [(w, m) for w, m in self._half_precision if w.grad is not None and m.grad is None]
        olds = [
            (w, m) for w, m in self._half_precision if w.grad is not None and m.grad is not None
        ]
        for _, master in news:
            master.grad = torch.empty_like(master)
        if news:
            torch._foreach_copy_(_grads(m for _, m in news), _grads(w for w, _ in news))
        if olds:
            torch._foreach_add_(_grads(m for _, m in olds), _grads(w for w, _ in olds))
        for weight, _ in self._half_precision:
            weight.grad = None

    @torch.no_grad()
    def grad_norm(self) -> float:
        """Euclidean norm of the whole gradient; not finite when any part of it is."""
        self.collect_gradients()
        grads = _grads(self.masters)
        return float(torch.stack(torch._foreach_norm(grads)).norm()) if grads else 0.0

    @torch.no_grad()
    def step(self, grad_norm: float, lr_scale: float = 1.0) -> None:
        """Clip to `max_grad_norm`, update the weights at `lr_scale` of the learning rate."""
        self.collect_gradients()
        limit = self.config.max_grad_norm
        scale = min(1.0, limit / (grad_norm + 1e-6)) if limit > 0 else 1.0
        grads = _grads(self.masters)
        if scale != 1.0 and grads:
            torch._foreach_mul_(grads, scale)
        rise = self.config.warmup_steps
        for group in self.inner.param_groups:
            group["lr"] = (
                lr_scale * self.config.lr * (min(1.0, (self.steps + 1) / rise) if rise else 1.0)
            )
        self.inner.step()
        self.steps += 1
        if self._half_precision:
            torch._foreach_copy_(
                [w for w, _ in self._half_precision], [m for _, m in self._half_precision]
            )

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
                    name: value.to(self._device_of(name, master)).clone()
                    for name, value in own.items()
                }

    def _device_of(self, name: str, master: Tensor) -> torch.device:
        """torch counts steps on the host, but on the device where its kernel is fused."""
        return torch.device("cpu") if name == "step" and not self.fused else master.device


def _grads(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.grad for tensor in tensors if tensor.grad is not None]
