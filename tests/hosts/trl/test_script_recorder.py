"""`run_folder`: what a trainer in one's own script leaves for `poise report` and `poise look`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hosts.trl.trl_compare import launch, needs_trl

from counterpoise.cli import token_view
from counterpoise.errors import PoiseError
from counterpoise.lab.choose_page import write_report
from counterpoise.report.compare.compared_runs import read_compared_runs
from counterpoise.types import Rollout, Row

RB: dict[str, Any] = {"tau": 0.4, "modulus": 3, "max_refills": 20}


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    text = (folder / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def untimed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in r.items() if not k.endswith(("_seconds", "_per_second"))} for r in records
    ]


def check_texts(folder: Path, plan: dict[str, Any], step: dict[str, Any], number: int) -> None:
    """The plan's rows of a step are those that the trainer took it from, and their rollouts are
    found under the plan's names, each after its own prompt."""
    rows = plan["steps"][number]
    assert [plan["groups"][plan["group"][i]] for i in rows] == step["groups"]
    assert [plan["index"][i] for i in rows] == step["index"]
    assert [plan["advantage"][i] for i in rows] == pytest.approx(step["advantages"])
    for group, index, prompt, response in zip(
        *(step[name] for name in ("groups", "index", "prompts", "responses")), strict=True
    ):
        born = int(group.split(":")[0])
        stored = lines(folder, f"rollouts/step_{born:05d}.jsonl")
        rollout = [line for line in stored if line["group"] == group][index]
        assert rollout["prompt_tokens"] == prompt.tolist()
        assert rollout["response_tokens"] == response.tolist()
        assert len({line["prompt"] for line in stored if line["group"] == group}) == 1


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_the_folder_holds_what_was_trained(tmp_path: Path, processes: int) -> None:
    folder = tmp_path / "poise"
    noted = launch(
        tmp_path, processes, generations=2, run_folder=str(folder), monitor_every=2, double=False,
        per_device_train_batch_size=6 // processes, **RB,
    )[0]  # fmt: skip
    plans, records = lines(folder, "plans.jsonl"), lines(folder, "metrics.jsonl")
    updates = [record for record in records if record["steps"]]
    assert [plan["iteration"] for plan in plans] == [record["iteration"] for record in updates]
    assert [step["now"] for step in noted["steps"][::4]] == [p["iteration"] for p in plans]
    assert len(records) == plans[-1]["iteration"] > len(plans) == 2  # some generations only waited
    for s, step in enumerate(noted["steps"]):
        check_texts(folder, plans[s // 4], step, s % 4)
    dropped = [v for line in lines(folder, "drops.jsonl") for k, v in line.items() if k in
               ("no_signal", "surplus", "aged")]  # fmt: skip
    lost = sum(len(positions) for groups in dropped for positions in groups.values())
    assert lost == sum(noted["counts"][k] for k in
                       ("dropped_surplus", "dropped_aged", "without_signal"))  # fmt: skip
    for name in ("dropped_surplus", "dropped_aged"):
        assert records[-1][name] == noted["counts"][name]
    for record, plan in zip(updates, plans, strict=True):
        tokens = pq.read_table(folder / f"tokens/step_{plan['iteration']:05d}.parquet").to_pydict()
        assert set(tokens["step"]) == {0, 2}  # every second optimizer step was looked at
        moved, advantage = np.array(tokens["displacement"]), np.array(tokens["advantage"])
        against = (moved * advantage < 0) & (np.abs(moved) > 1e-6)
        assert record["flipped"] == pytest.approx(against.mean(), abs=1e-9)
    logs = [line["poise/flipped"] for line in noted["logs"][:4:2]]  # of the steps 0 and 2
    assert min(logs) <= updates[0]["flipped"] <= max(logs)


@needs_trl
@pytest.mark.slow
def test_the_page_and_look_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "poise"
    launch(tmp_path, generations=1, run_folder=str(folder), monitor_every=1, double=False)
    page = write_report(folder).read_text(encoding="utf-8")
    for name in ("learning", "mosaic", "tokens", "monitor", "plans", "rollouts"):
        assert f'id="{name}"' in page, name
    assert "One iteration is one generation of rollouts." in page
    assert "composer=grouped, tau=0, credit=grpo" in page
    pushed = sorted(set(pq.read_table(folder / "pushes/step_00001.parquet")["row"].to_pylist()))
    sight = token_view.read_token_view(folder, row=pushed[0], token=0)
    assert sight.quantity.name == "displacement"
    assert sight.pushes is not None
    assert sight.texts[pushed[0]] is not None
    (content,) = lines(folder, "metrics.jsonl")
    assert (content["steps"], content["rollouts"], content["split_groups"]) == (4, 24, 0)
    other = tmp_path / "other"
    launch(tmp_path / "again", generations=1, run_folder=str(other), composer="shuffled")
    assert not (other / "tokens").exists()
    with pytest.raises(PoiseError, match="stored no tokens: train with monitor_every=1"):
        token_view.read_token_view(other)
    compared = read_compared_runs([folder, other])
    assert [item.data.metrics[0]["split_groups"] > 0 for item in compared] == [False, True]


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, RB])
def test_a_run_that_is_resumed_goes_on_in_its_folder(tmp_path: Path, more: dict[str, Any]) -> None:
    plan: dict[str, Any] = {
        "generations": 3, "run_folder": str(tmp_path / "poise"), "save_strategy": "steps",
        "save_steps": 4, **more,
    }  # fmt: skip
    names = ("metrics.jsonl", "plans.jsonl")
    launch(tmp_path, **plan)
    whole_run = [untimed(lines(tmp_path / "poise", name)) for name in names]
    with pytest.raises(PoiseError, match="is not empty: choose another or remove it"):
        launch(tmp_path, **plan)
    launch(tmp_path, resume=str(tmp_path / "checkpoint-8"), **plan)
    assert [untimed(lines(tmp_path / "poise", name)) for name in names] == whole_run
    assert len(whole_run[1]) == 3


@needs_trl
@pytest.mark.parametrize(
    ("trl_name", "recorded"),
    [("adamw_torch_fused", "adamw"), ("paged_adamw_8bit", "adamw"), ("sgd", "sgd"), ("lion", None)],
)
def test_an_optimizer_of_another_kind_is_not_recorded_as_adamw(
    trl_name: str, recorded: str | None
) -> None:
    from counterpoise.hosts.trl.script_recorder import describe_run

    options = SimpleNamespace(
        optim=trl_name, learning_rate=1e-6, max_grad_norm=1.0, generation_batch_size=8,
        num_generations=4, logging_strategy="steps",
    )  # fmt: skip
    trainer = SimpleNamespace(
        args=options, state=SimpleNamespace(logging_steps=1), epsilon_low=0.2, epsilon_high=0.2,
        temperature=1.0, max_completion_length=16, optimizer_steps=2, _tokenizer=None,
    )  # fmt: skip
    description = describe_run(trainer, "a test", "a note")  # type: ignore[arg-type]
    assert description["options"]["update"].get("optimizer") == recorded
    assert ("TRL's optimizer is lion" in description["notes"][-1]) == (recorded is None)


@needs_trl
def test_a_learning_rate_is_that_of_the_last_step(tmp_path: Path) -> None:
    """Without the monitor the number is TRL's log of it; other numbers are means."""
    from hosts.trl.test_adapter import small_trainer

    folder = tmp_path / "poise"
    options = {"run_folder": str(folder), "logging_steps": 1, "lr_scheduler_type": "linear"}
    trainer = small_trainer(tmp_path, **options)
    trainer.train()
    logs = [line for line in trainer.state.log_history if "loss" in line]
    (record,) = lines(folder, "metrics.jsonl")
    assert [log["learning_rate"] for log in logs] == pytest.approx([0.01, 0.005])
    assert record["lr"] == pytest.approx(0.005)
    assert record["loss"] == pytest.approx(np.mean([log["loss"] for log in logs]))


@needs_trl
@pytest.mark.parametrize(
    ("strategy", "steps", "said"),
    [
        ("steps", 1, None),
        ("steps", 5, "means over logging_steps=5 optimizer steps; gradient norm and learning rate"),
        ("epoch", 10, "means over an epoch; gradient norm and learning rate are those of the last"),
        ("no", 10, None),
    ],
)
def test_what_logged_numbers_average_over_is_noted(
    strategy: str, steps: int, said: str | None
) -> None:
    from counterpoise.hosts.trl.script_recorder import _describe_logs

    trainer = SimpleNamespace(
        args=SimpleNamespace(logging_strategy=strategy), state=SimpleNamespace(logging_steps=steps)
    )
    notes = _describe_logs(trainer)  # type: ignore[arg-type]
    assert len(notes) == (said is not None)
    assert all(str(said) in note for note in notes)


@needs_trl
@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ({}, [-1.0, -2.0]), ({"top_p": 0.9}, [math.nan] * 2), ({"top_k": 20}, [math.nan] * 2),
        ({"min_p": 0.05}, [math.nan] * 2),
    ],
)  # fmt: skip
def test_log_probabilities_of_vllm_after_a_cut_are_not_taken_for_the_sampler_s(
    cut: dict[str, float], expected: list[float]
) -> None:
    """They are those of the tokens that are left, and would look like another policy's."""
    from counterpoise.hosts.trl.padding import OLD_LOGPROBS, SAMPLER_LOGPROBS, UnpaddedRollout
    from counterpoise.hosts.trl.script_recorder import _bare_rollout

    def sampled_logprobs(or_old: bool, **token_fields: torch.Tensor) -> list[float]:
        fields = {OLD_LOGPROBS: torch.tensor([-1.5, -2.5]), **token_fields}
        two_T = torch.tensor([7, 8])
        sample = UnpaddedRollout(two_T, two_T, torch.ones(2), fields, trl_advantage=0.0)
        options = SimpleNamespace(**{"top_p": 1.0, "top_k": 0, "min_p": None} | cut)
        return _bare_rollout(sample, options, or_old_logprobs=or_old).sampled_logprobs.tolist()

    by_vllm = {SAMPLER_LOGPROBS: torch.tensor([-1.0, -2.0])}
    for or_old in (False, True):
        assert sampled_logprobs(or_old, **by_vllm) == pytest.approx(expected, nan_ok=True)
    # transformers samples with the trainer's model, whose numbers are of the whole distribution
    assert sampled_logprobs(True) == [-1.5, -2.5]


# -- the microscope and TRL's losses ------------------------------------------------------------


def seen(**changes: Any) -> SimpleNamespace:
    """As much of a trainer as the monitor reads of one."""
    options = SimpleNamespace(
        loss_type="dapo", beta=0.0, entropy_coef=0.0, use_adaptive_entropy=False, delta=None,
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_bias_correction_kl=True,
    )  # fmt: skip
    kind = changes.pop("kind", "qwen3")
    vars(options).update(changes)
    model = SimpleNamespace(config=SimpleNamespace(model_type=kind))
    return SimpleNamespace(
        args=options, asking_option="monitor_every", is_fsdp_enabled=False,
        is_deepspeed_enabled=False, model=model,
        accelerator=SimpleNamespace(device=SimpleNamespace(type="cpu")),
        importance_sampling_level="token", epsilon_low=0.2, epsilon_high=0.28,
    )  # fmt: skip


@needs_trl
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"entropy_coef": 0.1},
            r"not what entropy_coef=0.1 does to the loss: set entropy_coef=0.0",
        ),
        ({"beta": 0.04}, r"beta=0.04 without its correction: set use_bias_correction_kl=False"),
        ({"top_entropy_quantile": 0.2}, "set top_entropy_quantile=1.0, or"),
        ({"delta": 1.1}, r"delta=1.1 only above 1 \+ epsilon_high=1.28: raise it"),
        ({"loss_type": "sapo"}, "monitor_every knows the losses dapo, bnpo, grpo, dr_grpo"),
    ],
)
def test_the_monitor_refuses_a_loss_that_it_sees_only_in_part(
    change: dict[str, Any], said: str
) -> None:
    from counterpoise.hosts.trl.monitor import StepMonitor

    with pytest.raises(PoiseError, match=said):
        StepMonitor(seen(**change))  # type: ignore[arg-type]


@needs_trl
def test_the_option_that_asked_for_the_monitor_is_named(tmp_path: Path) -> None:
    from hosts.trl.test_adapter import small_trainer

    probes = tmp_path / "probes.jsonl"
    probes.write_text('{"prompt": "What is 1 + 1?", "response": "2", "reward": 1.0}\n')
    with pytest.raises(PoiseError, match=r"^probe knows .* not 'cispo': set probe=0 and probe_f"):
        small_trainer(
            tmp_path, loss_type="cispo", probe_file=str(probes), run_folder=str(tmp_path / "poise")
        )
    with pytest.raises(PoiseError, match="set denominator='step' or loss_type='dapo'"):
        launch(
            tmp_path, monitor_every=1, denominator="trl", loss_type="grpo",
            gradient_accumulation_steps=2,
        )  # fmt: skip


@needs_trl
def test_the_monitor_has_trls_denominator(tmp_path: Path) -> None:
    """denominator='trl': the loss of `dapo` is divided by the generation's mean tokens a step."""
    folder = tmp_path / "poise"
    (noted,) = launch(
        tmp_path, generations=1, run_folder=str(folder), monitor_every=1, double=False,
        denominator="trl",
    )  # fmt: skip
    (plan,) = lines(folder, "plans.jsonl")
    table = pq.read_table(folder / "tokens/step_00001.parquet").to_pandas()
    mean_tokens = sum(plan["tokens"]) / 4
    first = table[table["step"] == 0]  # ratios are 1: the pull is A / N
    np.testing.assert_allclose(first["pull"], first["advantage"] / mean_tokens, rtol=1e-4)
    assert abs(plan["describe"]["tokens_per_step"][0] / mean_tokens - 1) > 0.01
    # What `poise replay` reads, and what TRL logged at every step.
    options = json.loads((folder / "imported.json").read_text())["options"]
    assert options["sample"]["temperature"] == 1.0
    assert options["sample"]["max_new_tokens"] == 24
    expected = {"lr": 3e-4, "clip_low": 0.2, "clip_high": 0.28, "aggregate": "token_mean"}
    assert expected.items() <= options["update"].items()
    (record,) = lines(folder, "metrics.jsonl")
    assert record["lr"] == pytest.approx(3e-4)
    assert record["grad_norm"] == pytest.approx(
        np.mean([log["grad_norm"] for log in noted["logs"]])
    )


@needs_trl
def test_a_checkpoint_within_a_generation(tmp_path: Path) -> None:
    """The record of a resumed run has the steps that its weights took, each once."""
    folder = tmp_path / "poise"
    plan: dict[str, Any] = {
        "run_folder": str(folder), "save_strategy": "steps", "save_steps": 2, "double": False,
    }  # fmt: skip
    launch(tmp_path, generations=2, **plan)
    whole = lines(folder, "plans.jsonl")
    assert sorted(path.name for path in (folder / "unfinished").iterdir()) == [
        "step_00002", "step_00006",
    ]  # fmt: skip
    launch(tmp_path, generations=2, resume=str(tmp_path / "checkpoint-6"), **plan)
    plans = lines(folder, "plans.jsonl")
    assert [(p["iteration"], len(p["steps"])) for p in plans] == [(1, 4), (2, 2), (3, 2)]
    assert plans[0] == whole[0]
    trained = {row for step in whole[1]["steps"][:2] for row in step}
    assert plans[1]["advantage"] == [
        advantage for row, advantage in enumerate(whole[1]["advantage"]) if row in trained
    ]
    assert [line["steps"] for line in lines(folder, "metrics.jsonl")] == [4, 2, 2]
    write_report(folder)


@needs_trl
def test_train_again_after_an_interrupt(tmp_path: Path) -> None:
    """A trainer that Ctrl-C stopped within a generation begins the next one with its first pass."""
    from hosts.trl.test_adapter import small_trainer
    from transformers import TrainerCallback

    class Interrupt(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step == 1:
                raise KeyboardInterrupt

    trainer, interrupt = small_trainer(tmp_path, monitor_every=1), Interrupt()
    trainer.add_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer._step == 1
    trainer.remove_callback(interrupt)
    passes: list[Any] = []
    prepare = trainer._prepare_inputs
    trainer._prepare_inputs = lambda batch: passes.append(prepare(batch)) or passes[-1]
    trainer.train()
    assert len(passes) == 2
    assert passes[0] is trainer._buffered_inputs[0]


@needs_trl
def test_pulls_have_the_correction_of_vllms_probabilities() -> None:
    """-dL/dlogp = c_t A / N where the ratio is 1: c_t by token, or one for the whole sequence."""
    from counterpoise.hosts.trl.monitor import StepMonitor

    monitor = StepMonitor.__new__(StepMonitor)
    monitor.trainer = seen()  # type: ignore[assignment]
    tokens = np.array([1, 2, 3], np.int32)
    rollout = Rollout("", "", "", "", 1.0, tokens, tokens, np.zeros(3, np.float32))
    rows = [Row("a", 2.0, 3, rollout=rollout), Row("a", -1.0, 3, rollout=rollout)]
    by_token, by_sequence = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([3.0])
    pulls, _, _ = monitor._surrogate_pulls(
        torch.full((6,), -1.0), rows, np.full(2, 1 / 6), [by_token, by_sequence]
    )
    assert pulls.tolist() == pytest.approx([1 / 6, 2 / 6, 4 / 6, -3 / 6, -3 / 6, -3 / 6])
