"""Build a small Qwen3 and its tokenizer from scratch: the origin of the embedded model.

The vocabulary has one token for every word, digit and symbol that word problems use, and 256 bytes
to spell out anything else, so any text survives a round trip. Numbers are always split into digits.
Tokens are words rather than characters because cancellation is about tokens that right and wrong
rollouts share: with a character vocabulary they would share all of them.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from counterpoise.config import WarmupConfig
from counterpoise.task.word_problems import make_problem

PAD, USER, ASSISTANT, END, UNKNOWN = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>", "<unk>"
SPECIAL = (PAD, USER, ASSISTANT, END, UNKNOWN)
PIECE_PATTERN = r" ?\\[A-Za-z]+\{?| ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]|\s"
# Problems read to collect the words: enough for every template to appear many times.
SURVEYED_PROBLEMS = 20_000
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}" + USER + "{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}"
    + ASSISTANT
    + "{{ message['content'] }}"
    + END
    + "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)


def collect_vocabulary() -> list[str]:
    """All pieces of text that occur in the training split of word problems, sorted."""
    pieces: set[str] = set("0123456789 \n")
    for index in range(SURVEYED_PROBLEMS):
        example = make_problem("train", index)
        for text in (example.problem, example.solution):
            pieces.update(re.findall(PIECE_PATTERN, text))
    return sorted(pieces)


def build_tokenizer() -> Any:
    """A word-level tokenizer with byte fallback and a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    # A Unigram model takes the likeliest split: a known piece whole, spelled bytes otherwise.
    scored_pieces = [(token, 0.0) for token in SPECIAL] + [(piece, -10.0) for piece in byte_pieces]
    scored_pieces += [(piece, -1.0) for piece in collect_vocabulary()]
    tokenizer = Tokenizer(
        models.Unigram(scored_pieces, unk_id=SPECIAL.index(UNKNOWN), byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE_PATTERN), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_model(config: WarmupConfig, tokenizer: Any, seed: int) -> torch.nn.Module:
    """A Qwen3 of the configured size with random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)  # transformers draws initial weights from torch's global generator
    model: torch.nn.Module = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads // 2,
            head_dim=config.hidden // config.heads,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            initializer_range=0.04,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    return model
