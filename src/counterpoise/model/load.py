"""A model name -> weights, tokenizer and the one forward that runs them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from counterpoise.config import ModelConfig
from counterpoise.errors import PoiseError, first_line
from counterpoise.files import replacing
from counterpoise.model import templates
from counterpoise.model.decoder import Decoder, check_architecture
from counterpoise.model.shapes import SHAPE_PREFIX, random_model, shape_config
from counterpoise.model.smollm2 import smollm2_folder
from counterpoise.types import Ints

EMBEDDED_FOLDER = Path(__file__).parents[1] / "assets" / "embedded"
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")  # as owner/name; anything else is a path


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """A model that can be sampled from and trained. `decoder` runs the tensors of `model`."""

    name: str
    model: nn.Module
    tokenizer: Any
    decoder: Decoder
    template: str  # of templates.TEMPLATES
    end_tokens: tuple[int, ...]  # any of them ends a response

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def num_parameters(self) -> int:
        return self.decoder.num_parameters

    def encode(self, problem: str) -> Ints:
        """A problem as the tokens of a prompt that asks for its solution."""
        ids = templates.encode_prompt(self.template, self.tokenizer, problem)
        return np.array(ids, dtype=np.int32)

    def encode_reply(self, text: str) -> Ints:
        """What someone says to a finished response, as the tokens between its end and the next."""
        ids = templates.encode_reply(self.template, self.tokenizer, text, self.end_tokens)
        return np.array(ids, dtype=np.int32)

    def vocabulary_texts(self) -> list[str]:
        """The text of every token of the vocabulary by itself; a cut character shows as U+FFFD."""
        size = len(self.decoder.unembedding)
        texts: list[str] = self.tokenizer.batch_decode([[i] for i in range(size)])
        return texts

    def decode(self, tokens: Sequence[int] | Ints) -> str:
        return self.decode_rows([tokens])[0]

    def decode_rows(self, rows: Sequence[Sequence[int] | Ints]) -> list[str]:
        """Rows of tokens as texts, special tokens left out."""
        ids = [np.asarray(row).tolist() for row in rows]
        backend = self.tokenizer.backend_tokenizer  # all rows in one call: three times as quick
        texts: list[str] = backend.decode_batch(ids, skip_special_tokens=True)
        return texts


def load_policy(config: ModelConfig) -> Policy:
    """'embedded', 'smollm2', a folder of `save_pretrained`, a hub id, or 'shape:NAME'."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    if config.name.startswith(SHAPE_PREFIX):
        return _shaped(config, device, dtype)
    source = find_model_folder(config.name)
    if not Path(source).exists() and not HUB_ID.fullmatch(source):
        raise PoiseError(
            f"no model '{config.name}': no such folder; give 'embedded', 'smollm2', a folder, or a "
            "hub id like Qwen/Qwen3-0.6B"
        )
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        raise PoiseError(f"{source} holds no model: config.json is missing")
    silence_libraries()
    try:
        check_architecture(AutoConfig.from_pretrained(source, trust_remote_code=False))
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model, told = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, output_loading_info=True, trust_remote_code=False
        )
    except PoiseError:
        raise
    except Exception as fault:  # transformers, tokenizers and safetensors raise as they please
        raise PoiseError(f"model '{config.name}' cannot be loaded: {first_line(fault)}") from fault
    if missing := sorted(told["missing_keys"]):
        raise PoiseError(
            f"model '{config.name}' cannot be loaded: its file lacks {len(missing)} weights, "
            f"{missing[0]} for one"
        )
    if not tokenizer.encode("1", add_special_tokens=False):
        raise PoiseError(f"model '{config.name}' cannot be loaded: it has no tokenizer")
    return wrap_model(config.name, model.to(device), tokenizer, config.template)


def find_model_folder(name: str) -> str:
    """Where a model that has a name of ours lies; any other name is its own place."""
    if name == "embedded":
        return str(EMBEDDED_FOLDER)
    if name == "smollm2":
        silence_libraries()
        return str(smollm2_folder())
    return name


def _shaped(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Policy:
    """Random weights in a published shape, behind the embedded model's tokenizer."""
    from transformers import AutoTokenizer

    silence_libraries()
    shape = shape_config(config.name)
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER, trust_remote_code=False)
    shape.eos_token_id, shape.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    return wrap_model(config.name, random_model(shape, device, dtype), tokenizer, config.template)


def save_policy(policy: Policy, out: Path, dtype: torch.dtype | None = None) -> None:
    """A folder that `model.name` takes, as `save_pretrained` writes it: complete or absent.

    Another dtype is that of the folder alone: the policy goes on with the weights it has.
    """
    silence_libraries()
    model: Any = policy.model
    if dtype not in (None, policy.decoder.dtype):
        model = deepcopy(model).to(dtype)
    with replacing(out) as temporary:
        model.save_pretrained(temporary)
        policy.tokenizer.save_pretrained(temporary)


def silence_libraries() -> None:
    """stderr is for our one line: no progress bars, no reports of the libraries underneath."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    logging.disable_progress_bar()  # a bar of its own would tear the display
    logging.set_verbosity(logging.CRITICAL)
    hub.set_verbosity_error()


def wrap_model(
    name: str, model: nn.Module, tokenizer: Any, template: str = templates.AUTO
) -> Policy:
    """Wrap a transformers model that is already in memory."""
    chosen = templates.resolve_template(template, tokenizer, name)
    model.eval()  # no dropout: the policy that is trained is the policy that was sampled
    ends = templates.end_tokens(chosen, tokenizer, _end_tokens(model, tokenizer))
    return Policy(name, model, tokenizer, Decoder(model), chosen, ends)


def choose_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise PoiseError("model.device=cuda, but torch sees no CUDA device: use auto or cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def _end_tokens(model: nn.Module, tokenizer: Any) -> tuple[int, ...]:
    """The tokenizer's end token, and whatever else the model's generation config stops at."""
    ends = {tokenizer.eos_token_id}
    extra = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends.update(extra if isinstance(extra, list) else [extra])
    found = tuple(sorted(int(e) for e in ends if e is not None))
    if not found:
        raise PoiseError("the tokenizer has no end token: responses could never finish")
    return found
