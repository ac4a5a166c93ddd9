"""A run in TensorBoard or Weights & Biases: what its folder's logs hold, row by row."""

from counterpoise.registry import Registry

TRACKERS = Registry(
    "tracker",
    {
        "tensorboard": "counterpoise.track.tensorboard:TensorBoard",
        "wandb": "counterpoise.track.wandb:WandB",
    },
)
