"""Load a model by name: its weights, its tokenizer and the decoder that runs them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from counterpoise.config import ModelConfig
from counterpoise.errors import PoiseError, first_line
from counterpoise.files import atomic_write
from counterpoise.model import templates
from counterpoise.model.adapters import (
    ADAPTER_CONFIG,
    add_adapter,
    base_model,
    check_adapter,
    find_base,
    is_adapted,
    load_adapter,
)
from counterpoise.model.check_files import check_weight_files, check_weights_finite
from counterpoise.model.decoder import Decoder
from counterpoise.model.families import check_architecture, fast_path_refusal
from counterpoise.model.general import GeneralDecoder
from counterpoise.model.gguf_file import check_gguf, describe_source, gguf_folder, is_gguf
from counterpoise.model.memory_share import apply_memory_share
from counterpoise.model.shapes import SHAPE_PREFIX, random_model, shape_config
from counterpoise.model.smollm2 import smollm2_folder
from counterpoise.types import Ints, Prompt

EMBEDDED_FOLDER = Path(__file__).parents[1] / "assets" / "embedded"
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")  # as owner/name; anything else is a path


AnyDecoder = Decoder | GeneralDecoder
AUTO_PATH, FAST_PATH, GENERAL_PATH = "auto", "fast", "general"  # values of model.path


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """A model that can be sampled and trained. `decoder` runs the tensors of `model`."""

    name: str
    model: nn.Module
    tokenizer: Any
    decoder: AnyDecoder
    template: str  # a key of templates.TEMPLATES
    end_tokens: tuple[int, ...]  # any of them ends a response
    template_option: str = templates.TRAINING_OPTION  # how the user's command names a template

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def num_parameters(self) -> int:
        return self.decoder.num_parameters

    @property
    def notices(self) -> list[str]:
        """What a user should know about how the model runs.

        Empty for a model on the fast path, unless it is a GGUF file or has a LoRA adapter.
        """
        lines = []
        if quantised_source := describe_source(self.name):
            lines.append(quantised_source)
        if isinstance(self.decoder, GeneralDecoder):
            lines.append(
                f"{self.decoder.config.model_type}: transformers' own forward pass (the general "
                f"path), because {_why_general(self.decoder)}; results are the same, but "
                "prompts are read once for each response and there are no CUDA graphs, so it is "
                "slower"
            )
        if is_adapted(self.model):
            lines.append(
                "LoRA: the output layer is frozen. The pushes on a token are a proxy, computed as "
                "if this layer were trained; how far the token moved is measured as always"
            )
        return lines

    def encode(self, problem: Prompt | str) -> Ints:
        """The tokens of the prompt for a problem; of chat data, with its system prompt and turns.

        A text is a problem without a conversation.
        """
        return self.encode_all([problem])[0]

    def encode_all(self, problems: Sequence[Prompt | str]) -> list[Ints]:
        """`encode` for many problems, which takes less time than one by one."""
        prompt_ids = templates.encode_prompts(
            self.template, self.tokenizer, problems, self.template_option
        )
        size = vocabulary_size(self.model)
        return [self._as_tokens(token_ids, size) for token_ids in prompt_ids]

    def encode_reply(self, reply: str) -> Ints:
        """The tokens of the environment's reply to a response, until the next response begins."""
        reply_ids = templates.encode_reply(
            self.template, self.tokenizer, reply, self.end_tokens, self.template_option
        )
        return self.as_tokens(reply_ids)

    def as_tokens(self, token_ids: Sequence[int] | Ints) -> Ints:
        """The ids as an array; an error if the model has no such tokens."""
        return self._as_tokens(token_ids, vocabulary_size(self.model))

    def _as_tokens(self, token_ids: Sequence[int] | Ints, size: int) -> Ints:
        tokens = np.array(token_ids, dtype=np.int64)
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < size:
            raise PoiseError(
                f"model '{self.name}' has {size:,} tokens, and its tokenizer uses number "
                f"{tokens.max():,}: they do not belong together"
            )
        return tokens.astype(np.int32)

    def vocabulary_texts(self) -> list[str]:
        """The text of every single token of the vocabulary; an incomplete character is U+FFFD."""
        vocabulary_size = len(self.decoder.unembedding)
        token_texts: list[str] = self.tokenizer.batch_decode(
            [[token] for token in range(vocabulary_size)]
        )
        return token_texts

    def decode(self, tokens: Sequence[int] | Ints) -> str:
        return self.decode_rows([tokens])[0]

    def decode_rows(self, rows: Sequence[Sequence[int] | Ints]) -> list[str]:
        """The texts of many rows of tokens, without special tokens."""
        token_lists = [np.asarray(tokens).tolist() for tokens in rows]
        # The backend decodes all rows in one call, three times as fast as one by one. Tokenizers
        # that are written in Python, such as those of CTRL and BioGPT, have none.
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        decode = backend.decode_batch if backend else self.tokenizer.batch_decode
        decoded_texts: list[str] = decode(token_lists, skip_special_tokens=True)
        return decoded_texts


def load_policy(config: ModelConfig, template_option: str = templates.TRAINING_OPTION) -> Policy:
    """Load 'embedded', 'smollm2', a folder, a GGUF file, a hub id, or 'shape:NAME'.

    Errors about the prompt template advise `template_option` and a name.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    device = choose_device(config.device)
    apply_memory_share(device)
    dtype = choose_dtype(config.dtype, device)
    if config.name.startswith(SHAPE_PREFIX):
        return _random_policy(config, device, dtype, template_option)
    # Checks come before loading: their messages are clearer than those of the libraries.
    folder = find_model_folder(config.name)
    check_model_source(folder)
    # The folder of an adapter names the model that it was trained for.
    adapter_base = find_base(folder)
    if adapter_base and config.lora_rank:
        raise PoiseError(
            f"{config.name} is an adapter already: set model.lora_rank to 0 to train it further"
        )
    source = find_model_folder(adapter_base) if adapter_base else folder
    check_model_source(source)
    silence_libraries()
    try:
        if config.path == FAST_PATH:
            model_config = AutoConfig.from_pretrained(source, trust_remote_code=False)
            check_architecture(model_config, device.type)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model, loading_info = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except PoiseError:
        raise
    except Exception as fault:  # transformers, tokenizers and safetensors raise errors of any type
        reason = first_line(fault)
        if "ignore_mismatched_sizes" in reason:  # the library has put the details into its log
            reason = "its weights have other shapes than config.json says"
        raise PoiseError(f"model '{config.name}' cannot be loaded: {reason}") from fault
    if missing_weights := sorted(loading_info["missing_keys"]):
        raise PoiseError(
            f"model '{config.name}' cannot be loaded: its file lacks {len(missing_weights)} "
            f"weights, for example {missing_weights[0]}"
        )
    if not tokenizer.encode("1", add_special_tokens=False):
        raise PoiseError(f"model '{config.name}' cannot be loaded: it has no tokenizer")
    _make_storable(model)
    model = model.to(device)
    check_weights_finite(model, config.name)
    if adapter_base:
        model = load_adapter(model, folder)
    elif config.lora_rank:
        model = add_adapter(model, config, source)
    return wrap_model(config.name, model, tokenizer, config.template, config.path, template_option)


def _make_storable(model: Any) -> None:
    """Drop generation settings that transformers reads but refuses to write.

    Many published models have some, such as a temperature without sampling. They would end a run
    when it stores its model. The tokens that end a response are kept.
    """
    from transformers import GenerationConfig

    settings = model.generation_config
    try:
        settings.validate(strict=True)
    except Exception:  # values of other types raise errors of any type
        model.generation_config = GenerationConfig(eos_token_id=settings.eos_token_id)


def check_model_source(model_name: str, *, check_parent: bool = False) -> None:
    """Raise an error if `model_name` is a folder that is missing, unsafe or without a model.

    `check_parent` also refuses OWNER/NAME if there is a folder OWNER here without NAME.
    """
    if model_name in ("embedded", "smollm2") or model_name.startswith(SHAPE_PREFIX):
        return
    if is_gguf(model_name):
        check_gguf(model_name)
        return
    model_path = Path(model_name)
    if model_name == "scratch" and not model_path.exists():
        raise PoiseError(
            "model.name=scratch is for poise warmup, which makes and trains a small model: train "
            "the folder that it wrote"
        )
    if not model_path.exists() and not HUB_ID.fullmatch(model_name):
        raise PoiseError(
            f"no model '{model_name}': no such folder; use 'embedded', 'smollm2', a folder, a "
            ".gguf file, or a hub id like Qwen/Qwen3-0.6B"
        )
    # `out/warm` looks like a hub id, but a folder `out` on this machine shows that it is a path.
    if check_parent and not model_path.exists() and model_path.parent.is_dir():
        raise PoiseError(
            f"no model '{model_name}': {model_path.parent} has no such folder; check model.name"
        )
    if model_path.is_dir() and not holds_model(model_path):
        raise PoiseError(
            f"{model_name} holds no model: config.json is missing{_suggest_gguf(model_path)}"
        )
    check_weight_files(model_name)


def holds_model(folder: Path) -> bool:
    """Whether a folder holds a model or an adapter."""
    return any((folder / file_name).is_file() for file_name in ("config.json", ADAPTER_CONFIG))


def _suggest_gguf(folder: Path) -> str:
    gguf_files = sorted(folder.glob("*.gguf"))
    return f"; to use its GGUF file, name {gguf_files[0]}" if gguf_files else ""


def find_model_folder(model_name: str) -> str:
    """The folder of a built-in model or of a GGUF file; any other name is returned as it is."""
    if model_name == "embedded":
        return str(EMBEDDED_FOLDER)
    if model_name == "smollm2":
        silence_libraries()
        return str(smollm2_folder())
    if is_gguf(model_name):
        silence_libraries()
        return str(gguf_folder(Path(model_name)))
    return model_name


def _random_policy(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, template_option: str
) -> Policy:
    """A policy with random weights in a published shape and the embedded model's tokenizer."""
    from transformers import AutoTokenizer

    silence_libraries()
    shape = shape_config(config.name)
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER, trust_remote_code=False)
    shape.eos_token_id, shape.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model: Any = random_model(shape, device, dtype)
    if config.lora_rank:
        model = add_adapter(model, config, config.name)
    return wrap_model(config.name, model, tokenizer, config.template, config.path, template_option)


def save_policy(
    policy: Policy,
    out: Path,
    dtype: torch.dtype | None = None,
    *,
    card: str = "",
    before_rename: Callable[[Path], None] | None = None,
) -> None:
    """Write a folder that `model.name` accepts; it is either complete or not there at all.

    `dtype` converts the saved weights only: the policy itself stays as it is. `card` is the text of
    README.md. `before_rename` gets the complete folder while it still has its temporary name.
    """
    silence_libraries()
    model: Any = policy.model
    if dtype not in (None, policy.decoder.dtype):
        model = deepcopy(model).to(dtype)
    with atomic_write(out) as temporary:
        model.save_pretrained(temporary)
        policy.tokenizer.save_pretrained(temporary)
        # PEFT writes an empty model card.
        (temporary / "README.md").unlink(missing_ok=True)
        if card:
            (temporary / "README.md").write_text(card, encoding="utf-8")
        if before_rename is not None:
            before_rename(temporary)


def silence_libraries() -> None:
    """Turn off the progress bars and reports of transformers and the hub client."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # a second bar would garble the live display
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    hub_logging.set_verbosity_error()


def wrap_model(
    name: str,
    model: nn.Module,
    tokenizer: Any,
    template: str = templates.AUTO,
    path: str = AUTO_PATH,
    template_option: str = templates.TRAINING_OPTION,
) -> Policy:
    """Wrap a transformers model that is already in memory; `path` as model.path."""
    template_name = templates.resolve_template(template, tokenizer, name, template_option)
    model.eval()  # no dropout: the policy that is trained is the policy that was sampled
    end_tokens = templates.end_tokens(template_name, tokenizer, _end_tokens(model, tokenizer))
    decoder = make_decoder(model, path)
    return Policy(name, model, tokenizer, decoder, template_name, end_tokens, template_option)


def make_decoder(model: Any, path: str = AUTO_PATH) -> AnyDecoder:
    """The decoder of the fast path if it knows the model, otherwise that of the general path."""
    if is_adapted(model):
        check_adapter(model)
    transformers_model = base_model(model)
    device = next(transformers_model.parameters()).device
    refusal = fast_path_refusal(transformers_model.config, device.type)
    if path == GENERAL_PATH or (path == AUTO_PATH and refusal):
        return GeneralDecoder(transformers_model)
    return Decoder(transformers_model, is_adapted=is_adapted(model))


def check_no_logit_softcap(policy: Policy, feature: str) -> None:
    """Raise an error if the model caps its logits: the formulas of `feature` do not hold then."""
    if policy.decoder.softcap:
        raise PoiseError(
            f"{feature} compares whole distributions, by formulas that do not hold for models that "
            f"cap their logits, such as this {policy.decoder.config.model_type}: choose another "
            "setting"
        )


def require_fast_path(policy: Policy, feature: str) -> Decoder:
    """The policy's decoder if it is on the fast path; otherwise an error that names `feature`."""
    if isinstance(policy.decoder, GeneralDecoder):
        config = policy.decoder.config
        remedy = (
            "another model"
            if fast_path_refusal(config, policy.device.type)
            else f"model.path={AUTO_PATH}"
        )
        raise PoiseError(
            f"{feature} needs a model on the fast path, and this {config.model_type} model takes "
            f"the general one, because {_why_general(policy.decoder)}: choose another setting, or "
            f"{remedy}"
        )
    return policy.decoder


def _why_general(decoder: GeneralDecoder) -> str:
    """Why a model is not on the fast path, as the end of "because ..."."""
    refusal = fast_path_refusal(decoder.config, decoder.device.type)
    return refusal or "model.path=general asks for it"


def choose_device(device_name: str) -> torch.device:
    """The device for `model.device`; "auto" prefers CUDA."""
    if device_name == "cuda" and not torch.cuda.is_available():
        raise PoiseError("model.device=cuda, but torch sees no CUDA device: use auto or cpu")
    return torch.device("cuda" if device_name != "cpu" and torch.cuda.is_available() else "cpu")


def choose_dtype(dtype_name: str, device: torch.device) -> torch.dtype:
    """The dtype for `model.dtype`; "auto" is bfloat16 on a GPU and float32 on a CPU."""
    if dtype_name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype_name]


def vocabulary_size(model: Any) -> int:
    """The number of tokens that the model has embeddings for."""
    return len(base_model(model).get_input_embeddings().weight)


def is_token(token_id: Any, vocabulary_size: int) -> bool:
    is_number = isinstance(token_id, int) and not isinstance(token_id, bool)
    return is_number and 0 <= token_id < vocabulary_size


def _end_tokens(model: nn.Module, tokenizer: Any) -> tuple[int, ...]:
    """The tokenizer's end token, and any others in the model's generation config."""
    generation_config = getattr(base_model(model), "generation_config", None)
    generation_ends = getattr(generation_config, "eos_token_id", None)
    listed_ends = generation_ends if isinstance(generation_ends, list) else [generation_ends]
    token_ids = [tokenizer.eos_token_id, *listed_ends]
    # A number that is no token can end nothing.
    size = vocabulary_size(model)
    end_tokens = tuple(sorted({int(token) for token in token_ids if is_token(token, size)}))
    if not end_tokens:
        raise PoiseError(
            "the tokenizer has no end token, so responses could never finish: choose another model"
        )
    return end_tokens
