"""The tokenizer of a GGUF file: vocabulary, merges and chat template.

GGUF stores only the name of the scheme that splits a text before byte-level BPE
(`tokenizer.ggml.pre`), so the schemes of the common families are written out here. Other files
are left to transformers; a scheme that it does not know either is an error, because a text split
in another way becomes other tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError

CONTROL_TOKEN, USER_TOKEN, UNUSED_TOKEN = 3, 4, 5  # GGUF's types of tokens
# Contractions, words, numbers, punctuation and white space; families differ in how many digits
# make a token.
WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT_PATTERNS = {
    "qwen2": WORD_PATTERN.format(digits=""),
    "deepseek-r1-qwen": WORD_PATTERN.format(digits=""),
    "llama-bpe": WORD_PATTERN.format(digits="{1,3}"),
}
OWN_SCHEMES = ("smollm", "gpt-2", *SPLIT_PATTERNS)


def read_tokenizer(reader: Any, source: Path) -> Any:
    """The tokenizer as transformers builds it from the original model's files."""
    from transformers import AutoTokenizer

    fields = reader.fields

    def field(field_name: str, default: Any = None) -> Any:
        full_name = f"tokenizer.ggml.{field_name}"
        return fields[full_name].contents() if full_name in fields else default

    model, scheme = field("model"), field("pre", "default")
    if model is None:
        raise PoiseError(f"{source} has no tokenizer: use the original model's folder or hub id")
    if model == "gpt2" and scheme in OWN_SCHEMES:
        return build_byte_level(reader, field, scheme)
    if model == "gpt2" and scheme not in _schemes_of_transformers():
        raise PoiseError(
            f"{source}: the tokenizer's scheme '{scheme}' is not known: use the original model's "
            "folder or hub id"
        )
    return AutoTokenizer.from_pretrained(
        source.resolve().parent, gguf_file=source.name, trust_remote_code=False
    )


def build_byte_level(reader: Any, field: Any, scheme: str) -> Any:
    """A byte-level BPE tokenizer with the special tokens and the chat template of the file."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens, token_types = field("tokens"), field("token_type")
    if token_types is None:
        token_types = [1] * len(tokens)
    # Unused tokens at the end only fill the embedding up to a round number.
    num_tokens = len(tokens)
    while num_tokens and token_types[num_tokens - 1] == UNUSED_TOKEN:
        num_tokens -= 1
    merges = [tuple(merge.split(" ")) for merge in field("merges")]
    vocabulary = {token: i for i, token in enumerate(tokens[:num_tokens])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    if scheme in ("qwen2", "deepseek-r1-qwen"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _make_splitter(scheme)
    tokenizer.decoder = decoders.ByteLevel()
    for token, token_type in zip(tokens, token_types, strict=True):
        if token_type == CONTROL_TOKEN:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif token_type == USER_TOKEN:
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=False)])
    first_token = field("bos_token_id")
    if first_token is not None and field("add_bos_token", scheme == "llama-bpe"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[first_token]} $A",
            pair=f"{tokens[first_token]} $A {tokens[first_token]}:1 $B:1",
            special_tokens=[(tokens[first_token], first_token)],
        )
    named = {
        f"{name}_token": tokens[token_id]
        for name, gguf_name in (
            ("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")
        )
        if (token_id := field(f"{gguf_name}_token_id")) is not None
    }  # fmt: skip
    architecture = reader.fields["general.architecture"].contents()
    template = reader.fields.get("tokenizer.chat_template")
    length = reader.fields.get(f"{architecture}.context_length")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **named,
        **({"model_max_length": length.contents()} if length else {}),
        chat_template=template.contents() if template else None,
        clean_up_tokenization_spaces=False,
    )


def _make_splitter(scheme: str) -> Any:
    """How a text is split before BPE."""
    from tokenizers import Regex, pre_tokenizers

    if scheme == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if scheme == "smollm":
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
        )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERNS[scheme]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _schemes_of_transformers() -> set[str]:
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:  # an earlier transformers
        return set()
    return set(GGUF_PRE_TOKENIZER_SPLITS)
