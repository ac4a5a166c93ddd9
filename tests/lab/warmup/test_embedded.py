"""The embedded model and its tokenizer, as anyone's transformers loads them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from counterpoise.config import ModelConfig, SampleConfig
from counterpoise.lab.warmup import scratch
from counterpoise.lab.warmup.scratch import SPECIAL, build_tokenizer, collect_vocabulary
from counterpoise.model.load import EMBEDDED_FOLDER, Policy, load_policy
from counterpoise.run.heldout import evaluate_policy
from counterpoise.sample.collect import SamplerBinding
from counterpoise.task.word_problems import LEVELS, load, make_problem
from counterpoise.verify.exact import ExactVerifier


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelConfig(device="cpu"))


@pytest.fixture(scope="module")
def tokenizer(policy: Policy) -> Any:
    return policy.tokenizer


def spelled(tokenizer: Any, ids: list[int]) -> list[str]:
    """Tokens that are single bytes, because no word of the vocabulary would do."""
    return [t for t in tokenizer.convert_ids_to_tokens(ids) if re.fullmatch(r"<0x..>", t)]


# -- the model ----------------------------------------------------------------------------------


def test_automodel_loads_it(policy: Policy) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER, dtype=torch.float32)
    assert model.config.model_type == "qwen3"
    assert 1e6 < sum(p.numel() for p in model.parameters()) < 3e6
    assert policy.num_parameters == sum(p.numel() for p in model.parameters())
    ids = torch.tensor([policy.encode("1 + 1 = ?").tolist()])
    assert model(input_ids=ids).logits.shape == (1, ids.shape[1], model.config.vocab_size)
    assert len(AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)) == model.config.vocab_size


def test_weights_are_bfloat16_safetensors_of_a_few_megabytes() -> None:
    with safe_open(EMBEDDED_FOLDER / "model.safetensors", "pt") as file:
        kinds = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118  no mapping
    assert kinds == {torch.bfloat16}
    assert sum(path.stat().st_size for path in EMBEDDED_FOLDER.iterdir()) < 8e6
    assert {path.suffix for path in EMBEDDED_FOLDER.iterdir()} <= {
        ".json",
        ".safetensors",
        ".jinja",
    }


def test_it_runs_in_float32_on_the_cpu(policy: Policy) -> None:
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    assert policy.template == "chat"
    assert policy.end_tokens == (policy.tokenizer.eos_token_id,)


def test_it_is_right_about_half_the_time_and_unsure_nearly_everywhere(policy: Policy) -> None:
    """Few problems, so wide bounds: benchmarks measure the 35 to 55 % that is promised."""
    heldout = load(size=1, heldout=24).heldout
    found = evaluate_policy(
        SamplerBinding(policy), heldout, 8, SampleConfig(max_new_tokens=112), ExactVerifier(), 0
    )
    assert 0.3 < found.mean < 0.6
    assert found.pass_any > 0.75
    assert found.mixed > 0.6


# -- the tokenizer ------------------------------------------------------------------------------


def test_size_and_what_every_token_is(tokenizer: Any) -> None:
    assert 500 <= len(tokenizer) <= 2000
    ids = [tokenizer.convert_tokens_to_ids(name) for name in SPECIAL]
    assert ids == [0, 1, 2, 3, 4]
    assert tokenizer.eos_token == "<|end|>"
    assert tokenizer.pad_token == "<|pad|>"


@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("seed", [0, 11])
def test_word_problems_need_no_spelling_and_survive(tokenizer: Any, split: str, seed: int) -> None:
    for i in range(700):
        prompt = make_problem(split, i, LEVELS, seed, slips=0.3)
        for text in (prompt.problem, prompt.solution, prompt.answer):
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert not spelled(tokenizer, ids)
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids) == text


def test_the_code_and_the_embedded_vocabulary_agree(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every word that the generator can say today has a token of its own in the package."""
    monkeypatch.setattr(scratch, "SURVEYED_PROBLEMS", 4000)
    assert set(collect_vocabulary()) <= set(tokenizer.get_vocab())


def test_numbers_are_split_into_digits(tokenizer: Any) -> None:
    for text in ("1234567890", "x = 42 + 7", "\\boxed{108}", "3.14", "007", "12a34"):
        tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode(text, add_special_tokens=False))
        assert [t for t in tokens if re.search(r"\d", t) and not t.startswith("<0x")] == (
            re.findall(r"\d", text)
        )
    ids = [tokenizer.encode(digit, add_special_tokens=False) for digit in "0123456789"]
    assert all(len(found) == 1 for found in ids)
    assert len({found[0] for found in ids}) == 10


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "  two  spaces ", "\n\n\t\r\n", "½ + ⅓ ≠ ∑", "naïve café", "日本語テキスト",
        "😀 👩‍👩‍👧", "\x00\x01\x7f", "a\u2028b\u00a0c", "مرحبا", "<0x41>", "▁word", "\\frac{1}{2}",
        "\\boxed{", "A" * 500,
    ],
)  # fmt: skip
def test_awkward_texts_survive(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_survives(text: str) -> None:
    if not any(name in text for name in SPECIAL):
        tokenizer = _shared()
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def _shared() -> Any:
    """hypothesis and module fixtures do not mix; one tokenizer for all its examples."""
    if not hasattr(_shared, "tokenizer"):
        from transformers import AutoTokenizer

        _shared.tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)
    return _shared.tokenizer


def test_the_chat_template(policy: Policy) -> None:
    tokenizer = policy.tokenizer
    messages = [{"role": "user", "content": "1 + 1 = ?"}, {"role": "assistant", "content": "2"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
        "<|user|>1 + 1 = ?<|assistant|>2<|end|>"
    )
    asked = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert asked == "<|user|>1 + 1 = ?<|assistant|>"
    ids = policy.encode("1 + 1 =")
    assert tokenizer.convert_ids_to_tokens(ids.tolist()) == (
        ["<|user|>", "1", " +", " ", "1", " =", "<|assistant|>"]
    )
    assert policy.decode([*ids, tokenizer.eos_token_id]) == "1 + 1 ="


def test_a_fresh_tokenizer_is_saved_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    monkeypatch.setattr(scratch, "SURVEYED_PROBLEMS", 200)
    built = build_tokenizer()
    built.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == built.get_vocab()
    assert loaded.chat_template == built.chat_template
    assert loaded.eos_token_id == built.eos_token_id == 3
    text = make_problem("train", 0).problem + " ½"
    assert loaded.encode(text) == built.encode(text)


def test_no_file_of_the_package_says_where_it_was_made() -> None:
    for path in EMBEDDED_FOLDER.glob("*.json"):
        content = json.dumps(json.loads(path.read_text()))
        assert "/tmp" not in content
        assert "/work" not in content
