"""Rules of a step: what they see, what a run keeps for them, and runs that use them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import by_autograd as by
import numpy as np
import pytest
import tiny
import torch
from safetensors.numpy import load_file
from small_run import small_model

from counterpoise.config import CreditConfig, RunConfig
from counterpoise.config.load import config_from_tables, load_config
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.run.observer import RunObserver
from counterpoise.run.state import new_state
from counterpoise.store import checkpoint
from counterpoise.update.graphs.passes import CapturedPasses
from counterpoise.update.reference import copy_weights
from counterpoise.update.rules.bind import OptimizerStepView, bind_rule
from counterpoise.update.rules.rule import RuleEffect, apply_rule
from counterpoise.update.step import StepSettings, accumulate_gradient
from counterpoise.variants import STEP_RULES

RUN = [
    "loop.iterations=3", "loop.checkpoint_every=2", "sample.prompts=4", "sample.group_size=4",
    "batch.steps=2", "balance.tau=0", "task.size=40", "task.heldout=4",
    "evaluate.prompts=0", "update.lr=1e-3", "store.report=false", "store.tokens=false",
    "monitor.every=0", "task.levels=[1]", "sample.max_new_tokens=16",
]  # fmt: skip
RULED = {
    "clip_cov": ["credit.rule_settings=['share=0.02', 'low=0.1']"],
    "kl_cov": ["update.surrogate=unclipped", "credit.rule_settings=['share=0.02']"],
    "sdpg": ["credit.rule_settings=['beta=0.1', 'alpha=0.1', 'warm=2', 'decay=3']"],
}


def test_a_step_sees_old_log_probabilities_by_the_weights_that_sampled() -> None:
    policy, rows = tiny.policy(), tiny.rows(seed=1)
    rows[0] = replace(rows[0], trainer_logprobs_T=np.full(rows[0].num_tokens, -7.0, np.float32))
    later = OptimizerStepView(rows, by.reader(policy))
    for row, old_T in zip(rows, later.old_logprobs, strict=True):
        assert old_T is row.old_logprobs
    first = OptimizerStepView(rows, by.reader(policy), on_policy=True)
    assert (first.old_logprobs[0] == -7).all()  # it waited while the weights changed
    for old_T, now_T in zip(first.old_logprobs[1:], first.logprobs[1:], strict=True):
        assert old_T is now_T


def test_the_reference_reads_the_first_weights() -> None:
    policy, rows = tiny.policy(), tiny.rows(seed=1)
    kept = copy_weights(policy)
    before = OptimizerStepView(rows, by.reader(policy)).logprobs
    with torch.no_grad():
        for p in policy.model.parameters():
            p.mul_(1.1)
    step = OptimizerStepView(rows, by.reader(policy, micro=30), reference_weights=kept)
    for first_T, was_T, now_T in zip(step.reference_logprobs(), before, step.logprobs, strict=True):
        np.testing.assert_allclose(first_T, was_T, atol=2e-5)
        assert np.abs(first_T - now_T).max() > 1e-3


@pytest.mark.parametrize(
    ("rule", "settings", "kept"),
    [
        ("off", [], False), ("clip_cov", [], False), ("kl_cov", [], False), ("sdpg", [], True),
        ("sdpg", ["alpha=0"], False), ("sdpg", ["alpha=1e-9"], True),
    ],
)  # fmt: skip
def test_first_weights_are_kept_only_where_they_are_read(
    rule: str, settings: list[str], kept: bool
) -> None:
    config = replace(RunConfig(), credit=CreditConfig(rule=rule, rule_settings=settings))
    state = new_state(tiny.policy(), config)
    assert (state.initial_weights is not None) == kept
    if state.initial_weights:
        for name, p in state.policy.model.named_parameters():
            assert torch.equal(state.initial_weights[name], p)
            assert state.initial_weights[name].data_ptr() != p.data_ptr()


def test_without_a_rule_none_is_bound() -> None:
    assert bind_rule(RunConfig(), by.reader(tiny.policy()), None) is None
    made = STEP_RULES.load("off")(OptimizerStepView([]))
    assert made.factors is None
    assert made.term is None


def test_settings_of_no_rule_are_refused() -> None:
    with pytest.raises(PoiseError, match=r"credit\.rule_settings: 'off' has no settings"):
        config_from_tables({}, ["credit.rule_settings=['share=1']"])


def test_rows_without_signal_are_not_shown_to_a_rule() -> None:
    rows = tiny.rows(groups=2, seed=1)
    rows[2] = replace(rows[2], advantage=0.0)

    def halved(shown: list, *, on_policy: bool) -> RuleEffect:
        assert rows[2] not in shown
        return RuleEffect(factors=[np.full(row.num_tokens, 0.5, np.float32) for row in shown])

    done, _ = apply_rule(rows, halved, on_policy=False)
    assert done[2] is rows[2]
    for i in (0, 1, 3, 4, 5, 6, 7):
        np.testing.assert_allclose(done[i].advantages_T, 0.5 * rows[i].advantages_T, rtol=1e-6)


def test_a_step_with_a_term_is_not_captured() -> None:
    """Nothing but the feed would be read anew in a replay."""
    policy, rows = tiny.policy(), by.told(tiny.rows(seed=1))
    config = config_from_tables({}, ["credit.rule=sdpg", "credit.rule_settings=['alpha=0']"])
    made = bind_rule(config, by.reader(policy), None).for_step(0)(rows, on_policy=False)
    passes = CapturedPasses()
    passes._pad_if_worthwhile = lambda *_: pytest.fail("asked for a captured pass")  # type: ignore[method-assign]
    result = accumulate_gradient(
        policy,
        rows,
        StepSettings(by.PLAIN, temperature=1.0, max_new_tokens=17, passes=passes),
        term=made.term,
    )
    assert result.added_loss > 0


def ended(out: Path) -> dict[str, bytes]:
    last = checkpoint.list_checkpoints(out / "checkpoints")[-1]
    return {
        f"{part}/{name}": tensor.tobytes()
        for part in ("model", "optimizer")
        for name, tensor in load_file(last / f"{part}.safetensors").items()
    }


def timeless(records: list[dict]) -> list[dict]:
    return [
        {k: v for k, v in record.items() if not k.endswith(("_seconds", "_per_second"))}
        for record in records
    ]


class Killed(RunObserver):
    """Dies in the third iteration: one after the checkpoint."""

    def on_iteration(self, record: dict) -> None:
        if record["iteration"] == 3:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", RULED)
def test_a_run_goes_on_as_if_it_had_never_stopped(name: str, tmp_path: Path) -> None:
    sets = [*RUN, *small_model(tmp_path)]
    config = load_config("demo", [*sets, f"credit.rule={name}", *RULED[name]])
    whole = train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "killed", observer=Killed())
    resumed = train(config, tmp_path / "killed", resume=True)
    assert ended(tmp_path / "killed") == ended(tmp_path / "whole")
    records = timeless(whole.read("metrics"))
    assert timeless(resumed.read("metrics")) == records
    assert all(record["chosen_share"] is not None for record in records)
    assert max(record["chosen_share"] for record in records) > 0
    assert any(record["added_loss"] for record in records) == (name != "clip_cov")
    plain = train(load_config("demo", [*sets, *RULED[name][:-1]]), tmp_path / "plain")
    assert ended(tmp_path / "plain") != ended(tmp_path / "whole")
    first, same = plain.read("metrics")[0], records[0]
    assert first["success"] == same["success"]  # the same rollouts
    assert (first["added_loss"], first["chosen_share"]) == (0, 0)


def test_a_rule_is_asked_with_the_weights_of_its_own_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On policy in a batch's first step, and not in the second."""
    seen = []

    def spy(step: OptimizerStepView) -> RuleEffect:
        ratios = [a - b for a, b in zip(step.logprobs, step.old_logprobs, strict=True)]
        far = max(float(np.abs(x).max()) for x in ratios)
        seen.append((step.reader.iteration, step.step_index, step.on_policy, far))
        return RuleEffect()

    monkeypatch.setattr("counterpoise.update.rules.bind.off", spy)
    monkeypatch.setattr("counterpoise.update.rules.bind.OFF", "")
    config = load_config("demo", [*RUN, *small_model(tmp_path), "loop.iterations=2"])
    train(config, tmp_path / "run")
    for iteration in (1, 2):  # a step without signal asks nobody
        steps = [x[1:] for x in seen if x[0] == iteration]
        assert [number for number, *_ in steps] == sorted({number for number, *_ in steps})
        assert [on_policy for _, on_policy, _ in steps] == [True, False][: len(steps)]
        assert [far == 0 for *_, far in steps] == [True, False][: len(steps)]
    assert len(seen) > 2
