"""A digest of a model's weights: the same path may hold other weights tomorrow."""

from __future__ import annotations

from hashlib import file_digest, sha256
from pathlib import Path


def weights_digest(model: str) -> str:
    """A digest of the model's files, or its name if it is not a folder or file with weights.

    The file names are not part of it: the same weights in another folder have the same digest.
    `poise eval` has a digest of its own, in evaluate/models.py, which also knows checkpoints:
    neither may change, because stored results are recognised by them.
    """
    path = Path(model)
    weight_files = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    if path.is_file():
        weight_files = [path]
    if not weight_files:
        return model
    digests = []
    for weight_file in weight_files:
        with weight_file.open("rb") as opened_file:
            digests.append(file_digest(opened_file, "sha256").hexdigest())
    return sha256("".join(digests).encode()).hexdigest()[:16]
