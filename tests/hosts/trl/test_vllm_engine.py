"""`--engine trl` with `sample.engine=vllm`: what TRL is told, and what it does with the result.

TRL takes no vLLM that runs on a CPU. Here transformers samples in its place and reports
log-probabilities that are off by a known amount, as vLLM's are by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.hosts.trl import run as trl_run
from counterpoise.hosts.trl.padding import SAMPLER_LOGPROBS, VLLM_CORRECTION
from counterpoise.hosts.trl.run_options import check_options, trainer_arguments
from counterpoise.hosts.trl.vllm_engine import vllm_token_fields
from counterpoise.loop import assign_credit, make_policy_reader, update, with_old_logprobs
from counterpoise.model.load import load_policy
from counterpoise.run.state import new_state
from counterpoise.store.check.check_run import check_run
from counterpoise.store.folder import RunFolder
from counterpoise.types import BatchPlan, Rollout, Row

from .test_run import flat, groups_of, needs_trl, run, small

WITH_VLLM = ["sample.engine=vllm", "sample.engine_memory=0.25"]
CORRECTED = {
    "token, cut off": ["update.importance=token", "update.importance_cap=1.2"],
    "sequence, masked": [
        "update.importance=sequence", "update.importance_cap=1.5", "update.importance_mode=mask",
    ],
}  # fmt: skip


def vllm_arguments_of(*sets: str) -> dict[str, Any]:
    arguments = trainer_arguments(small(*WITH_VLLM, *sets), longest_prompt=40, half=True, cpu=False)
    return {name: value for name, value in arguments.items() if "vllm" in name}


def test_trl_is_told_to_sample_with_vllm() -> None:
    sampler = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.25,
        "vllm_max_model_length": 40 + 64,
    }
    # TRL corrects unless it is told not to, and ours is off by default.
    assert vllm_arguments_of() == sampler | {"vllm_importance_sampling_correction": False}
    for mode, name in (("truncate", "token_truncate"), ("mask", "token_mask")):
        found = vllm_arguments_of(
            "update.importance=token", f"update.importance_mode={mode}", "update.importance_cap=3"
        )
        assert found == sampler | {
            "vllm_importance_sampling_correction": True,
            "vllm_importance_sampling_mode": name,
            "vllm_importance_sampling_clip_max": 3.0,
        }
    ended = trainer_arguments(
        small(*WITH_VLLM), longest_prompt=40, half=True, cpu=False, end_tokens=(3, 5)
    )
    assert ended["generation_kwargs"] == {"stop_token_ids": [3, 5]}
    sequence = vllm_arguments_of("update.importance=sequence")
    assert sequence["vllm_importance_sampling_mode"] == "sequence_truncate"


def test_without_vllm_nothing_is_said_of_it() -> None:
    arguments = trainer_arguments(small(), longest_prompt=40, half=False, cpu=True)
    assert not [name for name in arguments if "vllm" in name]


def test_a_correction_needs_vllm_and_the_whole_distribution() -> None:
    with pytest.raises(PoiseError, match=r"update\.importance=token \(TRL's transformers sampler"):
        check_options(small("update.importance=token"))
    cut = small(*WITH_VLLM, "update.importance=sequence", "sample.top_p=0.9")
    with pytest.raises(PoiseError, match=r"sequence with sample\.top_p=0\.9 and sample\.top_k=0"):
        check_options(cut)
    check_options(small(*WITH_VLLM, "sample.top_p=0.9"))


def test_vllm_does_not_sample_in_single_precision() -> None:
    """TRL passes no dtype on, and vLLM would take half precision without a word."""
    with pytest.raises(PoiseError, match=r"model\.dtype=float32 with sample\.engine=vllm"):
        check_options(small(*WITH_VLLM, "model.dtype=float32"))


def test_vllm_takes_no_more_rollouts_than_it_can_start() -> None:
    many = small(*WITH_VLLM, "sample.prompts=512", "sample.group_size=16", "task.size=512")
    with pytest.raises(PoiseError, match=r"prompts=512 x .*16 with .*more than 4,096 rollouts"):
        check_options(many)
    check_options(many, processes=2)


def test_vllm_takes_its_share_of_what_the_run_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POISE_MEMORY_SHARE", "0.5")
    assert vllm_arguments_of()["vllm_gpu_memory_utilization"] == 0.125


def test_a_waiting_rollout_gets_its_correction_back() -> None:
    """min(pi_old / pi_vllm, C), or 0 above C; where vLLM reported nothing, 1."""
    old_T = np.log(np.array([0.6, 0.2, 0.5], np.float32))
    sampled_T = np.log(np.array([0.3, 0.4, np.nan], np.float32))
    tokens = np.arange(3, dtype=np.int32)
    rollout = Rollout("", "", "", "", 1.0, tokens, tokens, sampled_T)
    row = Row("1:0", 1.0, 3, rollout=rollout, trainer_logprobs_T=old_T)

    def fields(*sets: str) -> dict[str, Any]:
        return vllm_token_fields(row, small(*WITH_VLLM, *sets))

    token = fields("update.importance=token", "update.importance_cap=1.5")
    assert token[VLLM_CORRECTION].tolist() == pytest.approx([1.5, 0.5, 1.0])
    assert token[SAMPLER_LOGPROBS] is sampled_T
    masked = fields(
        "update.importance=token", "update.importance_cap=1.5", "update.importance_mode=mask"
    )
    assert masked[VLLM_CORRECTION].tolist() == pytest.approx([0.0, 0.5, 1.0])
    sequence = fields("update.importance=sequence")
    assert sequence[VLLM_CORRECTION].tolist() == pytest.approx([2.0 * 0.5 * 1.0])
    assert list(fields()) == [SAMPLER_LOGPROBS]
    assert vllm_token_fields(row, small()) == {}


class TransformersInPlaceOfVLLM:
    """What TRL calls of its `VLLMGeneration`.

    It reports log p + OFFSET for tokens of even numbers and log p - OFFSET for the others, and
    draws a seed from numpy, as vLLM does for every request.
    """

    OFFSET = 0.25

    def __init__(self, model: Any, accelerator: Any, processing_class: Any, **options: Any) -> None:
        self.model, self.options = model, options
        self.folder = model.name_or_path
        self.end_tokens = set(options["generation_kwargs"]["stop_token_ids"])
        self.syncs = 0
        self.seeds: list[int] = []

    def sync_weights(self) -> None:
        self.syncs += 1

    @torch.no_grad()
    def generate(self, prompts: Sequence[Sequence[int]], **_: Any) -> tuple[Any, ...]:
        self.seeds.append(int(np.random.randint(2**31)))
        completions, logprobs = zip(*map(self._sample, prompts), strict=True)
        return prompts, list(completions), list(logprobs), None

    def _sample(self, prompt: Sequence[int]) -> tuple[list[int], list[list[float]]]:
        tokens, logprobs = list(prompt), []
        for _ in range(self.options["max_completion_length"]):
            logits_V = self.model(torch.tensor([tokens])).logits[0, -1].float()
            logprobs_V = torch.log_softmax(logits_V / self.options["temperature"], dim=-1)
            tokens.append(int(torch.multinomial(logprobs_V.exp(), 1)))
            logprobs.append([float(logprobs_V[tokens[-1]]) + self.OFFSET * (-1) ** tokens[-1]])
            if tokens[-1] in self.end_tokens:
                break
        return tokens[len(prompt) :], logprobs


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[TransformersInPlaceOfVLLM]:
    """The engines that TRL starts, without vLLM."""
    started: list[TransformersInPlaceOfVLLM] = []

    def start(**options: Any) -> TransformersInPlaceOfVLLM:
        started.append(TransformersInPlaceOfVLLM(**options))
        return started[-1]

    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", start)
    monkeypatch.setattr(trl_run, "check_vllm", lambda needed_by, device: None)
    monkeypatch.setattr(trl_run, "close_engine", lambda trainer: None)
    return started


SHORT = ["sample.max_new_tokens=24", "evaluate.prompts=0", "monitor.every=1"]


@pytest.fixture
def parity(tmp_path: Path) -> str:
    """Half of the responses are right, whatever the model knows."""
    source = "def parity(responses):\n    return [len(text) % 2 for text in responses]\n"
    (tmp_path / "reward.py").write_text(source)
    return f"verify.name={tmp_path / 'reward.py'}:parity"


def native_update(config: RunConfig, folder: RunFolder) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights at first, weights after the native update of the same rollouts and plans)"""
    policy = load_policy(config.model)
    before, state = flat(policy.model), new_state(policy, config)
    for plan in folder.read("plans"):
        state.iteration = plan["iteration"] - 1
        groups = groups_of(folder, plan["iteration"])
        credited = assign_credit(groups, config, make_policy_reader(state, config))
        rows = [row for group in credited for row in group]
        batch_plan = BatchPlan(plan["rule"], tuple(tuple(step) for step in plan["steps"]))
        update(state, with_old_logprobs(state, rows, batch_plan, config), batch_plan, config)
    return before, flat(policy.model)


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("correction", CORRECTED)
def test_the_correction_is_the_native_one(
    tmp_path: Path, engines: list[TransformersInPlaceOfVLLM], parity: str, correction: str
) -> None:
    """The same rollouts, corrected by TRL and by the native engine: the same weights."""
    sets = [
        *WITH_VLLM, *SHORT, parity, "update.optimizer=sgd", "update.lr=0.5",
        *CORRECTED[correction],
    ]  # fmt: skip
    config = small(*sets)
    folder = run(config, tmp_path / "run")
    (engine,) = engines
    assert engine.options["gpu_memory_utilization"] == 0.25
    assert not Path(engine.folder).exists()  # it is needed at the start only
    assert engine.syncs == 2  # before every generation after an update, and before the first
    for line in folder.read("metrics"):
        # Every token is off by OFFSET, one way or the other.
        assert line["sampler_mismatch"] == pytest.approx(engine.OFFSET, abs=1e-4)
        assert line["sampler_mismatch_max"] == pytest.approx(engine.OFFSET, abs=1e-3)
        assert line["sampler_ratio_std"] == pytest.approx(math.sinh(engine.OFFSET), rel=0.05)
        # Ratios of tokens are exp(0.25) = 1.28 or 0.78, and the first is above the cap of 1.2.
        if correction == "token, cut off":
            tokens = [
                token
                for group in groups_of(folder, line["iteration"])
                for rollout in group.rollouts
                for token in rollout.response_tokens
            ]
            odd_share = sum(token % 2 for token in tokens) / len(tokens)
            assert line["capped_share"] == pytest.approx(odd_share, abs=0.1)
    before, ours = native_update(config, folder)
    trained = load_policy(replace(config.model, name=str(tmp_path / "run" / "model")))
    distance = (flat(trained.model) - ours).norm() / (ours - before).norm()
    assert float(distance) < 1e-3
    uncorrected = replace(config, update=replace(config.update, importance="off"))
    _, other = native_update(uncorrected, folder)
    assert float((other - ours).norm() / (ours - before).norm()) > 0.02  # it mattered


@needs_trl
@pytest.mark.slow
def test_a_resumed_run_corrects_rows_that_waited(
    tmp_path: Path, engines: list[TransformersInPlaceOfVLLM], parity: str
) -> None:
    """RB keeps rows from before the checkpoint, and with them what vLLM reported."""
    sets = [
        *WITH_VLLM, *SHORT, parity, *CORRECTED["token, cut off"], "balance.tau=0.5",
        "balance.target=32", "loop.checkpoint_every=1",
    ]  # fmt: skip
    run(small(*sets, "loop.iterations=1"), tmp_path / "run")
    folder = run(small(*sets, "loop.iterations=3"), tmp_path / "run", resume=True)
    run(small(*sets, "loop.iterations=2"), tmp_path / "unbroken")
    run(small(*sets, "loop.iterations=1", "loop.seed=7"), tmp_path / "other seed")
    first, resumed, unbroken, other_seed = (engine.seeds for engine in engines)
    assert first + resumed[:1] == unbroken
    assert len({*unbroken, *other_seed}) == 3
    plans, lines = folder.read("plans"), folder.read("metrics")
    assert [line["iteration"] for line in lines] == [1, 2, 3]
    later_groups = {group for plan in plans if plan["iteration"] > 1 for group in plan["groups"]}
    assert any(group.startswith("1:") for group in later_groups)  # drawn before the checkpoint
    for line in lines:
        if line.get("sampler_mismatch") is not None:
            assert line["sampler_mismatch"] == pytest.approx(0.25, abs=1e-4)


@needs_trl
def test_a_run_that_vllm_cannot_do_is_refused_in_one_line(
    tmp_path: Path, engines: list[TransformersInPlaceOfVLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(*WITH_VLLM, *SHORT, "sample.max_new_tokens=100000")
    with pytest.raises(PoiseError, match=r"^sample\.engine=vllm: .* positions"):
        run(config, tmp_path / "long")
    assert not (tmp_path / "long").exists()

    def fail(**_: Any) -> None:
        raise ValueError("Free memory on device cuda:0 is less than desired\nand more")

    monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", fail)
    said = r"^out of memory: TRL cannot start with vLLM: Free memory [^\n]* less than desired; set"
    with pytest.raises(PoiseError, match=said):
        run(small(*WITH_VLLM, *SHORT), tmp_path / "run")

    def fail_before(*_: Any) -> None:
        raise KeyError("a mistake of ours")

    # What comes before vLLM is not blamed on it.
    monkeypatch.setattr("datasets.Dataset.from_list", fail_before)
    with pytest.raises(KeyError):
        run(small(*WITH_VLLM, *SHORT), tmp_path / "other")


@needs_trl
def test_log_probabilities_after_a_cut_are_not_taken_for_the_sampler_s(
    tmp_path: Path,
    engines: list[TransformersInPlaceOfVLLM],
    parity: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the sampler's were is not known: the trainer's in their place would be a mismatch of 0,
    and a pass over all rollouts."""
    from counterpoise.hosts.trl.run_trainer import RunTrainer

    monkeypatch.setattr(RunTrainer, "_score_rollouts", None)
    sets = [*WITH_VLLM, *SHORT, parity, "loop.iterations=1", "batch.steps=1", "sample.top_p=0.9"]
    folder = run(small(*sets), tmp_path / "run")
    (line,) = folder.read("metrics")
    assert line["sampler_mismatch"] is None
    for group in groups_of(folder, 1):
        for rollout in group.rollouts:
            assert len(rollout.sampled_logprobs) == len(rollout.response_tokens) > 0
            assert np.isnan(rollout.sampled_logprobs).all()
    assert check_run(folder.path).is_whole
