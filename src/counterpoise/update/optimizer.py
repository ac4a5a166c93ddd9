"""AdamW or SGD, with float32 master copies of half-precision weights.

A step of 1e-6 times a weight is below bfloat16's resolution and would be rounded away, so
half-precision weights are trained through float32 masters; wider weights are their own masters. The
gradients of several passes are also summed in the masters: a sum in bfloat16 loses any addend below
1/256 of it.

Each operation is one multi-tensor call of torch over all parameters: a model has hundreds, and on
a GPU a loop over them would queue kernels too small to fill it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from counterpoise.config import UpdateConfig
from counterpoise.update.schedules import learning_rate_factor

BETA1 = 0.9  # AdamW's decay of the first moment


class Optimizer:
    """The learning-rate schedule, gradient clipping and master weights of a run.

    `total_steps` are the optimizer steps of the whole run; 0 where a few steps are taken outside of
    a run, and the learning rate does not decay.
    """

    def __init__(self, model: nn.Module, config: UpdateConfig, total_steps: int = 0) -> None:
        self.config, self.total_steps = config, total_steps
        self.weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.masters: list[Tensor] = [
            parameter
            if parameter.dtype.itemsize >= 4
            else parameter.detach().float().requires_grad_()
            for parameter in self.weights
        ]
        weights_and_masters = zip(self.weights, self.masters, strict=True)
        self._half_precision = [
            (weight, master) for weight, master in weights_and_masters if weight is not master
        ]
        self.fused = bool(self.masters) and all(master.is_cuda for master in self.masters)
        self.inner: torch.optim.Optimizer
        if config.optimizer == "sgd":
            self.inner = torch.optim.SGD(self.masters, lr=config.lr)
        else:
            self.inner = torch.optim.AdamW(
                self.masters,
                lr=config.lr,
                betas=(BETA1, config.beta2),
                weight_decay=config.weight_decay,
                fused=self.fused or None,  # a single kernel without temporary memory
            )
        self.steps = 0

    def zero_grad(self) -> None:
        for weight, master in zip(self.weights, self.masters, strict=True):
            weight.grad = master.grad = None

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Move the gradients of half-precision weights to their masters, adding to what is there.

        Call it after every pass of a step; `grad_norm` and `step` collect what is left.
        """
        # The first gradient of a master is copied, later ones are added: no buffer of zeros.
        first_gradients = [
            (weight, master)
            for weight, master in self._half_precision
            if weight.grad is not None and master.grad is None
        ]
        further_gradients = [
            (weight, master)
            for weight, master in self._half_precision
            if weight.grad is not None and master.grad is not None
        ]
        for _, master in first_gradients:
            master.grad = torch.empty_like(master)
        if first_gradients:
            torch._foreach_copy_(
                _grads(master for _, master in first_gradients),
                _grads(weight for weight, _ in first_gradients),
            )
        if further_gradients:
            torch._foreach_add_(
                _grads(master for _, master in further_gradients),
                _grads(weight for weight, _ in further_gradients),
            )
        for weight, _ in self._half_precision:
            weight.grad = None

    @torch.no_grad()
    def grad_norm(self) -> float:
        """Euclidean norm of the whole gradient; not finite if any part of it is not."""
        self.collect_gradients()
        gradients = _grads(self.masters)
        return float(torch.stack(torch._foreach_norm(gradients)).norm()) if gradients else 0.0

    @torch.no_grad()
    def step(self, grad_norm: float, lr_scale: float = 1.0) -> None:
        """Clip to `max_grad_norm`, then update at `lr_scale` times the learning rate."""
        self.collect_gradients()
        max_grad_norm = self.config.max_grad_norm
        clip_factor = min(1.0, max_grad_norm / (grad_norm + 1e-6)) if max_grad_norm > 0 else 1.0
        # Scale in place: gradients are dropped after the step anyway.
        gradients = _grads(self.masters)
        if clip_factor != 1.0 and gradients:
            torch._foreach_mul_(gradients, clip_factor)
        for parameter_group in self.inner.param_groups:
            parameter_group["lr"] = lr_scale * self.learning_rate()
        self.inner.step()
        self.steps += 1
        if self._half_precision:
            torch._foreach_copy_(
                [weight for weight, _ in self._half_precision],
                [master for _, master in self._half_precision],
            )

    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self.config.lr * self.schedule_factor()

    def schedule_factor(self) -> float:
        """The share of `update.lr` that the next step takes."""
        return learning_rate_factor(self.config, self.steps, self.total_steps)

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Flat tensors by name, as a safetensors file holds them."""
        tensors = {"steps": torch.tensor(self.steps)}
        for parameter_index, (weight, master) in enumerate(
            zip(self.weights, self.masters, strict=True)
        ):
            if weight is not master:
                tensors[f"{parameter_index}/master"] = master.detach().contiguous()
            for state_name, state_tensor in self.inner.state.get(master, {}).items():
                tensors[f"{parameter_index}/{state_name}"] = state_tensor.detach().contiguous()
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        self.steps = int(tensors["steps"])
        for parameter_index, master in enumerate(self.masters):
            parameter_state = {
                tensor_name.partition("/")[2]: tensor
                for tensor_name, tensor in tensors.items()
                if tensor_name.startswith(f"{parameter_index}/")
            }
            if "master" in parameter_state:
                with torch.no_grad():
                    master.copy_(parameter_state.pop("master"))
            if parameter_state:
                self.inner.state[master] = {
                    state_name: state_tensor.to(self._device_of(state_name, master)).clone()
                    for state_name, state_tensor in parameter_state.items()
                }

    def _device_of(self, state_name: str, master: Tensor) -> torch.device:
        """torch keeps step counters on the host, except where its kernel is fused."""
        return torch.device("cpu") if state_name == "step" and not self.fused else master.device


def _grads(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.grad for tensor in tensors if tensor.grad is not None]
