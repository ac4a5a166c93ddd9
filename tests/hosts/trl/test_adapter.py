"""Real TRL runs of the embedded model: whole groups, balance, checkpoints, two processes."""

from __future__ import annotations

import json
from collections import defaultdict
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hosts.trl.trl_compare import EXACT, distance, launch, needs_trl, policy_at, rows_of

from counterpoise.config import UpdateConfig
from counterpoise.errors import PoiseError
from counterpoise.hosts.trl import host
from counterpoise.microscope.monitor import Monitor
from counterpoise.microscope.monitor_records import monitor_metrics
from counterpoise.model.load import EMBEDDED_FOLDER
from counterpoise.update.step import StepSettings, accumulate_gradient


def parts(runs: list[dict[str, Any]], together: int) -> list[dict[str, list[float]]]:
    """Per optimizer step: prompt -> the advantages of its rollouts that the loss was given."""
    count = len(runs[0]["passes"])
    steps = []
    for start in range(0, count, together):
        result = defaultdict(list)
        for item in runs:
            for rows in item["passes"][start : start + together]:
                for prompt, advantage, _ in rows:
                    result[str(prompt)].append(advantage)
        steps.append(dict(result))
    return steps


def cut(steps: list[dict[str, list[float]]]) -> tuple[int, int]:
    """Groups with rollouts in more than one optimizer step, and groups."""
    homes = defaultdict(set)
    for s, step in enumerate(steps):
        for prompt in step:
            homes[prompt].add(s)
    return sum(len(home) > 1 for home in homes.values()), len(homes)


# -- without TRL --------------------------------------------------------------------------------


def test_a_missing_or_another_trl_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(PoiseError, match=r"^TRL is not installed: pip install 'trl==1.16.\*'$"):
        from counterpoise.trl import PoiseConfig  # noqa: F401
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.17.0")
    with pytest.raises(PoiseError, match=r"^TRL 1.17.0 is not supported, only 1.16.x: pip install"):
        from counterpoise.trl import PoiseGRPOTrainer  # noqa: F401


def test_a_changed_signature_is_named() -> None:
    class Later:
        def _prepare_inputs(self, batch: Any, more: Any) -> None: ...

    faults = host.find_changes(Later)
    assert faults[0] == "GRPOTrainer._prepare_inputs takes (self, batch, more)"
    assert faults[1] == "GRPOTrainer._calculate_rewards is gone"
    assert len(faults) == len(host.PRIVATE_METHODS)


# -- with TRL -----------------------------------------------------------------------------------


@needs_trl
def test_private_methods_are_as_we_know_them() -> None:
    from trl import GRPOTrainer

    from counterpoise.trl import PoiseGRPOTrainer

    assert host.find_changes(GRPOTrainer) == []
    ours = {p.name for p in host.PRIVATE_METHODS if p.overridden}
    overridden = {name for name in vars(PoiseGRPOTrainer) if name in dir(GRPOTrainer)}
    assert overridden - {"__init__", "__module__", "__doc__", "__annotations__"} == ours


@needs_trl
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"composer": "groupd"}, "unknown composer 'groupd': did you mean 'grouped'"),
        ({"composer": "coupled"}, "which TRL's plans do not carry: set composer='grouped'"),
        ({"gradient_accumulation_steps": 3}, "not a multiple of gradient_accumulation_steps=3"),
        ({"scale_rewards": "none"}, "set credit='trl', or credit='dr_grpo'"),
        ({"loss_type": "grpo", "entropy_coef": 0.1}, "set denominator='trl'"),
        ({"credit": "positive_only", "tau": 0.25}, "set tau=0"),
        ({"credit": "w_reinforce", "credit_weights": "otb"}, "set credit='dr_grpo'"),
        (
            {"composer": "paired", "num_generations": 24},
            "1 group cannot fill 4 optimizer steps by paired",
        ),
        (
            {"num_generations": 24},
            "cannot fill 4 optimizer steps by grouped: lower steps_per_generation or",
        ),
        (
            {"tau": 0.25, "balance_target": 8},
            "balance_target=8 may be 2 groups, which cannot fill 4 .* or raise balance_target",
        ),
        (
            {"composer": "by_sign", "gradient_accumulation_steps": 4},
            "different steps: raise steps_per",
        ),
        ({"credit_weights": "rlsd"}, "reads texts or generic responses, and TRL hands"),
        (
            {"credit_weights": "high_entropy", "credit": "trl"},
            "set credit to one of Counterpoise's",
        ),
        (
            {"credit_weights": "high_entropy", "credit_settings": ["sharp=1"]},
            "did you mean 'share'",
        ),
        ({"credit_weights": "gtpo", "mask_truncated_completions": True}, "truncated ones too"),
        ({"tau": 0.7}, r"tau=0.7 is not a share of the rarer sign: choose one from 0 to 0.5"),
        ({"run_folder": "x", "num_iterations": 2}, "and num_iterations=2 makes several"),
    ],
)
def test_options_that_cannot_be_honoured_stop(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    from counterpoise.trl import PoiseConfig

    plan = {
        "per_device_train_batch_size": 6, "gradient_accumulation_steps": 1,
        "steps_per_generation": 4, "num_generations": 4, "use_cpu": True, "bf16": False,
    }  # fmt: skip
    with pytest.raises(PoiseError, match=said):
        PoiseConfig(output_dir=str(tmp_path), **{**plan, **options})


def small_trainer(
    out: Path, reward: Any = None, dataset: Any = None, peft_config: Any = None, **options: Any
) -> Any:
    """Two optimizer steps of the embedded model on eight prompts."""
    from datasets import Dataset
    from hosts.trl.trl_run import by_sum
    from transformers import AutoModelForCausalLM

    from counterpoise.trl import PoiseConfig, PoiseGRPOTrainer

    args = PoiseConfig(
        output_dir=str(out), per_device_train_batch_size=4, gradient_accumulation_steps=1,
        steps_per_generation=2, num_generations=4, max_steps=2, max_completion_length=8,
        use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
        disable_tqdm=True, save_strategy="no", learning_rate=1e-2, **options,
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": [f"What is {i} + 1?" for i in range(8)]})
    return PoiseGRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER, dtype=torch.float32),
        reward_funcs=reward or by_sum(2),
        args=args,
        train_dataset=dataset(prompts) if dataset else prompts,
        peft_config=peft_config,
    )


def under_peft(out: Path, **options: Any) -> Any:
    """A trainer of a LoRA over the embedded model; peft is nobody's dependency here."""
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft")
    lora = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2)
    return small_trainer(out, peft_config=lora, **options)


@needs_trl
def test_balance_needs_a_dataset_with_a_length(tmp_path: Path) -> None:
    with pytest.raises(PoiseError, match="which needs a dataset with a length: load it whole"):
        small_trainer(tmp_path, dataset=lambda prompts: prompts.to_iterable_dataset(), tau=0.25)


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            {"reward": lambda completions, **_: [0.0] * len(completions)},
            "^no rollout to learn from after 2 generations: in the last one the rewards of every "
            "group are equal; check the reward, or choose other problems$",
        ),
        (
            {"balance_target": 400},
            r"^no balanced batch in 2 generations: \d+ positive and \d+ negative rollouts wait, "
            "but a batch takes 400 with a share of 0.25 of each; lower tau or balance_target",
        ),
    ],
)
def test_a_run_that_finds_no_balance_says_what_there_is(
    tmp_path: Path, ask: dict[str, Any], said: str
) -> None:
    folder = tmp_path / "poise"
    trainer = small_trainer(tmp_path, tau=0.25, max_refills=1, run_folder=str(folder), **ask)
    with pytest.raises(PoiseError, match=said):
        trainer.train()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2  # both can be looked at


@needs_trl
def test_token_weights_and_the_monitor_read_an_adapter_of_peft(tmp_path: Path) -> None:
    trainer = under_peft(
        tmp_path, credit_weights="high_entropy", monitor_every=1, run_folder=str(tmp_path / "poise")
    )
    trainer.train()
    records = [
        json.loads(line) for line in (tmp_path / "poise" / "metrics.jsonl").read_text().splitlines()
    ]
    assert all(np.isfinite(record["cancellation"]) for record in records)


@needs_trl
def test_plans_alone_train_an_adapter_of_peft(tmp_path: Path) -> None:
    trainer = under_peft(tmp_path)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    moved = {n for n, p in trainer.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved
    assert all("lora_" in name for name in moved)
    assert trainer.decision.plan.composer == "grouped"
    assert [len(step) for step in trainer.decision.plan.steps] == [4, 4]


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("together", [1, 2])
def test_groups_stay_whole_and_gradients_are_native(
    tmp_path: Path, processes: int, together: int
) -> None:
    sizes = {
        "per_device_train_batch_size": 6 // together // processes,
        "gradient_accumulation_steps": together,
        "steps_per_generation": 4 * together,
    }
    runs = launch(tmp_path, processes, **sizes)
    steps = parts(runs, together)
    assert len(steps) == 8
    rows = processes * sizes["per_device_train_batch_size"] * sizes["steps_per_generation"]
    assert cut(steps) == (0, 2 * rows // 4)  # two generations of groups of four
    sums = [sum(advantages) for step in steps for advantages in step.values()]
    assert max(map(abs, sums)) < 1e-6
    assert max(abs(a) for step in steps for group in step.values() for a in group) > 0.5
    for step in runs[0]["steps"]:
        assert distance(step) < EXACT
    assert len(runs[0]["steps"]) == 8
    for item in runs:  # in a generation's first step TRL takes the ratio to be 1
        assert item["scored"] == 2 * ([False] * together + [True] * 3 * together)
    for line in runs[0]["logs"][::4]:
        assert line["poise/split_groups"] == 0
        assert line["poise/rows"] == rows


@needs_trl
@pytest.mark.slow
def test_stock_trl_cuts_most_groups(tmp_path: Path) -> None:
    steps = parts(launch(tmp_path, stock=True), together=1)
    number, groups = cut(steps)
    assert groups == 12
    assert number > 6
    sums = [sum(advantages) for step in steps for advantages in step.values()]
    assert max(map(abs, sums)) > 0.5


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "unit", "together"),
    [(1, "rollout", 1), (1, "group", 1), (1, "rollout", 4), (2, "rollout", 1)],
)
def test_updates_are_balanced_and_rollouts_accounted_for(
    tmp_path: Path, processes: int, unit: str, together: int
) -> None:
    runs = launch(
        tmp_path, processes, tau=0.4, balance_unit=unit, modulus=3, generations=4, max_refills=20,
        per_device_train_batch_size=6 // processes, gradient_accumulation_steps=together,
    )  # fmt: skip
    noted, per_batch = runs[0], 4 // together
    for start in range(0, len(noted["steps"]), per_batch):
        batch = noted["steps"][start : start + per_batch]
        signs = [np.sign(a) for step in batch for a in step["advantages"]]
        assert len(signs) >= 24
        assert min(signs.count(1), signs.count(-1)) >= 0.4 * len(signs)
        groups = [set(step["groups"]) for step in batch]
        assert sum(map(len, groups)) == len(set.union(*groups))  # none is in two steps
    for step in noted["steps"]:
        assert step["now"] - min(step["born"]) <= 4
        for group in set(step["groups"]):
            pairs = zip(step["groups"], step["advantages"], strict=True)
            assert abs(sum(a for g, a in pairs if g == group)) < 1e-6
        assert distance(step) < EXACT
    trained = sum(len(step["groups"]) for step in noted["steps"])
    assert sum(len(rows) for item in runs for rows in item["passes"]) == trained
    counts = noted["counts"]
    assert counts["emitted"] == trained
    assert counts["added"] == 24 * noted["steps"][-1]["now"]
    assert counts["added"] == sum(counts.values()) - counts["added"]
    assert any(step["now"] > min(step["born"]) for step in noted["steps"])  # some had waited


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_what_waits_is_in_a_checkpoint(tmp_path: Path, processes: int) -> None:
    """A run that is resumed trains on the rows that waited, and counts on from there."""
    plan: dict[str, Any] = {
        "tau": 0.4, "modulus": 3, "max_refills": 20, "save_strategy": "steps", "save_steps": 4,
        "per_device_train_batch_size": 6 // processes, "credit_weights": "high_entropy",
    }  # fmt: skip
    from counterpoise.hosts.trl.checkpoint import load_extras

    whole_run = launch(tmp_path, processes, generations=3, **plan)[0]
    saved = load_extras(tmp_path / "checkpoint-8")
    assert saved is not None
    assert saved.generation == whole_run["steps"][7]["now"]
    assert len(saved.rows) == whole_run["steps"][7]["waiting"] > 0
    assert set(saved.rollouts_by_key) == {row.name for row in saved.rows}
    later = str(tmp_path / "checkpoint-8")
    resumed_run = launch(tmp_path, processes, generations=3, resume=later, **plan)[0]
    assert len(resumed_run["steps"]) == 4
    assert resumed_run["counts"] == whole_run["counts"]
    waited = [born <= saved.generation for step in resumed_run["steps"] for born in step["born"]]
    assert any(waited)
    for resumed, uninterrupted in zip(resumed_run["steps"], whole_run["steps"][8:], strict=True):
        for name in ("groups", "index", "born", "advantages", "weights_T", "now"):
            assert resumed[name] == uninterrupted[name]
        for name in ("prompts", "responses", "old"):
            assert all(map(torch.equal, resumed[name], uninterrupted[name]))
    assert load_extras(tmp_path) is None  # a checkpoint of a run without RB: an empty buffer


@needs_trl
@pytest.mark.slow
def test_the_microscope_sees_what_the_native_one_sees(tmp_path: Path) -> None:
    (noted,) = launch(tmp_path, generations=1, monitor_every=1, double=False)
    for step, after, line in zip(
        noted["steps"], [*noted["steps"][1:], None], noted["logs"], strict=True
    ):
        assert distance(step) < 3e-5  # looking changes nothing
        if after is None:
            continue
        policy, rows = policy_at(step), rows_of(step)
        result = accumulate_gradient(
            policy,
            rows,
            StepSettings(UpdateConfig(), temperature=1.0, max_new_tokens=24),
            keep_hidden=True,
        )
        monitor = Monitor(1.0, 20480, ())
        monitor.before_update(policy, rows, result)
        policy.model.load_state_dict(after["weights"], strict=False)
        monitor.after_update(policy)
        expected = monitor_metrics(monitor.measurements)
        for name in (
            "cancellation",
            "own_share",
            "same_token_share",
            "flipped",
            "boosted_positive",
        ):
            assert line[f"poise/{name}"] == pytest.approx(expected[name], abs=2e-3), name
