"""`poise eval --sampler vllm`, where vLLM is installed: the same prompts, seeds and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from counterpoise.config.evaluation_settings import EvaluationSetting
from counterpoise.lab.evaluate.plan import EvaluationOptions
from counterpoise.lab.evaluate.result_files import read_result_files
from counterpoise.lab.evaluate.run import evaluate
from counterpoise.sample import vllm_host
from counterpoise.task.word_problems import load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not vllm_host.is_supported(vllm_host.installed_version() or ""),
        reason=f"no supported vLLM is installed: {vllm_host.INSTALL_REMEDY}",
    ),
]


def test_the_embedded_model_through_vllm(tmp_path: Path) -> None:
    """Two settings by one engine; as good as the native sampler, within what 32 problems show."""
    problems = load(levels=[1], size=8, heldout=32).heldout
    records = [{"id": p.id, "problem": p.problem, "answer": p.answer} for p in problems]
    (tmp_path / "words.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    found = {}
    for sampler in ("native", "vllm"):
        options = EvaluationOptions(
            models=["embedded"], out=tmp_path / sampler, benchmarks=["words"], data=tmp_path,
            settings=[EvaluationSetting(0.6, 0.95), EvaluationSetting(1.0, 1.0)], samples={"": 4},
            max_new_tokens=80, rows=64, device="cpu", sampler=sampler, verify_workers=1,
        )  # fmt: skip
        found[sampler] = evaluate(options).lines
    for ours, theirs in zip(*found.values(), strict=True):
        a, b = ours.scores["words"], theirs.scores["words"]
        assert abs(a.average.mean - b.average.mean) < 0.12
        assert b.mean_tokens == pytest.approx(a.mean_tokens, rel=0.1)
        assert b.truncated == 0
    assert all(len(cell.judged) == 32 for cell in read_result_files(tmp_path / "vllm"))
