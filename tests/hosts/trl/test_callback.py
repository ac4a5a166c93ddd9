"""`PoiseCallback`: a stock trainer's run, recorded without changing it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hosts.trl.trl_compare import launch, needs_trl

from counterpoise.cli import token_view
from counterpoise.errors import PoiseError
from counterpoise.lab.choose_page import write_report
from counterpoise.lab.replay.folder import ReplayRequest
from counterpoise.lab.replay.run import replay

pytestmark = needs_trl


def stock_trainer(out: Path, lora: bool = False, algorithm: str = "GRPO", **changes: Any) -> Any:
    """TRL's own trainer of the embedded model: four optimizer steps a generation."""
    import trl
    from datasets import Dataset
    from hosts.trl.trl_run import PROMPTS, by_sum
    from transformers import AutoModelForCausalLM

    from counterpoise.model.load import EMBEDDED_FOLDER
    from counterpoise.task.word_problems import make_problem

    options = {
        "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2,
        "steps_per_generation": 8, "num_generations": 4, "seed": 3, "learning_rate": 3e-4,
        "save_strategy": "no", "max_steps": 8, "max_completion_length": 24,
        "lr_scheduler_type": "constant", **changes,
    }  # fmt: skip
    args = getattr(trl, f"{algorithm}Config")(
        output_dir=str(out), logging_steps=1, report_to="none", disable_tqdm=True, use_cpu=True,
        bf16=False, gradient_checkpointing=False, **options,
    )  # fmt: skip
    prompts = [make_problem("train", i, levels=[1]).problem for i in range(PROMPTS)]
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER, dtype=torch.float32)
    adapter = None
    if lora:
        peft = pytest.importorskip("peft", reason="PEFT is not installed: counterpoise[lora]")
        adapter = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    return getattr(trl, f"{algorithm}Trainer")(
        model=model, reward_funcs=by_sum(2), args=args, peft_config=adapter,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )  # fmt: skip


def attach(trainer: Any, folder: Path, monitor_every: int = 0) -> Any:
    from counterpoise.trl import PoiseCallback

    callback = PoiseCallback(trainer, folder, monitor_every=monitor_every)
    trainer.add_callback(callback)
    return callback


def note_losses(trainer: Any) -> list[dict[str, Any]]:
    """What TRL's loss was given in every pass."""
    given: list[dict[str, Any]] = []
    compute_loss = trainer._compute_loss

    def noting(model: Any, inputs: dict[str, Any]) -> Any:
        given.append({k: v.clone() for k, v in inputs.items() if isinstance(v, torch.Tensor)})
        return compute_loss(model, inputs)

    trainer._compute_loss = noting
    return given


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    text = (folder / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], Any]:
    out = tmp_path_factory.mktemp("callback")
    trainer = stock_trainer(out / "trl", lr_scheduler_type="linear")
    given = note_losses(trainer)
    attach(trainer, out / "poise", monitor_every=2)
    trainer.train()
    return out / "poise", given, trainer


def test_the_plans_are_what_shared_an_optimizer_step(recorded: Any) -> None:
    folder, given, _ = recorded
    plans, metrics = lines(folder, "plans.jsonl"), lines(folder, "metrics.jsonl")
    assert [plan["iteration"] for plan in plans] == [1, 2]
    assert [line["steps"] for line in metrics] == [4, 4]
    assert len(given) == 16  # two passes for each of eight steps
    for n, plan in enumerate(plans):
        rollouts = lines(folder, f"rollouts/step_{n + 1:05d}.jsonl")
        by_group: dict[str, list[Any]] = {}
        for rollout in rollouts:
            by_group.setdefault(rollout["group"], []).append(rollout)
        assert plan["rule"] == "trl"
        assert sorted(row for step in plan["steps"] for row in step) == list(range(24))
        for s, step in enumerate(plan["steps"]):
            expected = []
            for batch in given[8 * n + 2 * s : 8 * n + 2 * s + 2]:
                assert "poise_row" not in batch
                for ids, mask, advantage in zip(
                    batch["completion_ids"], batch["completion_mask"].bool(), batch["advantages"],
                    strict=True,
                ):  # fmt: skip
                    expected.append((ids[mask].tolist(), float(advantage)))
            noted = [
                (by_group[plan["groups"][plan["group"][i]]][plan["index"][i]]["response_tokens"],
                 plan["advantage"][i])
                for i in step
            ]  # fmt: skip
            assert noted == expected
    assert plans[0]["describe"]["split_groups"] > 0  # TRL shuffles groups apart


def test_the_tokens_are_those_of_trls_own_loss(recorded: Any) -> None:
    folder, _, _ = recorded
    for number in (1, 2):
        table = pq.read_table(folder / f"tokens/step_{number:05d}.parquet").to_pandas()
        assert set(table["step"]) == {0, 1, 2, 3}
        # The monitor's own forward pass measured every second step, from global step 0.
        measured = table["displacement"].notna()
        assert set(table["step"][measured]) == {0, 2}
        assert (table["entropy"] >= 0).all()
        assert (table["logprob"] <= 0).all()
        # TRL's log-probabilities before the first step, and those that it computes within it.
        first = table[table["step"] == 0]
        np.testing.assert_allclose(first["logprob"], first["old_logprob"], atol=2e-4)
        later = table[table["step"] == 3]
        assert np.abs(later["logprob"] - later["old_logprob"]).max() > 1e-3
    record = lines(folder, "metrics.jsonl")[0]
    assert record["entropy"] > 0
    # of each generation's last step, by the linear schedule: those of steps 3 and 7 of 8
    rates = [line["lr"] for line in lines(folder, "metrics.jsonl")]
    assert rates == pytest.approx([3e-4 * 5 / 8, 3e-4 * 1 / 8])
    assert record["flipped"] is not None
    assert "NaN" not in (folder / "metrics.jsonl").read_text()


def test_readers_take_the_folder(recorded: Any, tmp_path: Path) -> None:
    folder, _, _ = recorded
    page = write_report(folder, tmp_path / "report.html").read_text(encoding="utf-8")
    for name in ("mosaic", "tokens", "monitor", "plans", "rollouts"):
        assert f'id="{name}"' in page, name
    assert token_view.read_token_view(folder).quantity.name == "displacement"
    # A replay of TRL's batches by the model that they began with: the same cut, the same direction.
    out = tmp_path / "replay"
    replay(ReplayRequest(folder, "embedded", iterations="1", device="cpu"), out)
    (plan,) = lines(out, "plans.jsonl")
    assert plan["steps"] == lines(folder, "plans.jsonl")[0]["steps"]
    ours, theirs = (
        pq.read_table(path / "tokens/step_00001.parquet").to_pandas().set_index(["row", "position"])
        for path in (out, folder)
    )
    measured = theirs[(theirs["step"] == 0) & theirs["displacement"].notna()]
    moved = ours.loc[measured.index, "displacement"]
    # TRL's AdamW clips gradients at 1 and starts with fresh moments, as the replay does.
    assert np.corrcoef(moved, measured["displacement"])[0, 1] > 0.999
    # TRL's `dapo` divides by the generation's tokens over its steps, the replay by the step's own.
    tokens = plan["describe"]["tokens_per_step"]
    scale = tokens[0] / np.mean(tokens)
    assert abs(scale - 1) > 0.01
    np.testing.assert_allclose(
        measured["pull"], scale * ours.loc[measured.index, "pull"], rtol=1e-4
    )


def test_training_is_the_same_with_and_without_it(recorded: Any, tmp_path: Path) -> None:
    _, given, trainer = recorded
    assert_same_training(
        trainer, given, stock_trainer(tmp_path / "alone", lr_scheduler_type="linear")
    )


def assert_same_training(trainer: Any, given: list[dict[str, Any]], alone: Any) -> None:
    """Bit for bit: the same batches, random numbers and weights as a trainer `alone`."""
    given_alone = note_losses(alone)
    alone.train()
    for batch, batch_alone in zip(given, given_alone, strict=True):
        assert batch.keys() == batch_alone.keys()
        for name in batch:
            assert torch.equal(batch[name], batch_alone[name]), name
    for weight, weight_alone in zip(
        trainer.model.parameters(), alone.model.parameters(), strict=True
    ):
        assert torch.equal(weight, weight_alone)
    assert "_prepare_inputs" not in vars(trainer)  # nothing stays wrapped


def test_a_run_that_ends_within_a_generation(tmp_path: Path) -> None:
    trainer = stock_trainer(tmp_path / "trl", max_steps=3)
    attach(trainer, tmp_path / "poise")
    trainer.train()
    (plan,) = lines(tmp_path / "poise", "plans.jsonl")
    assert [len(step) for step in plan["steps"]] == [6, 6, 6]
    assert len(plan["group"]) == 18
    table = pq.read_table(tmp_path / "poise/tokens/step_00001.parquet").to_pandas()
    assert set(table["step"]) <= {0, 1, 2}
    assert set(table["row"]) <= set(range(18))
    assert "displacement" not in table


def test_completions_that_trl_masks_out_are_recorded_whole(tmp_path: Path) -> None:
    options: dict[str, Any] = {"mask_truncated_completions": True, "max_completion_length": 30}
    trainer = stock_trainer(tmp_path / "trl", max_steps=4, **options)
    given = note_losses(trainer)
    attach(trainer, tmp_path / "poise", monitor_every=1)
    trainer.train()
    (plan,) = lines(tmp_path / "poise", "plans.jsonl")
    rollouts = lines(tmp_path / "poise", "rollouts/step_00001.jsonl")
    table = pq.read_table(tmp_path / "poise/tokens/step_00001.parquet").to_pandas()
    cut = [i for i, rollout in enumerate(rollouts) if not rollout["finished"]]
    assert 0 < len(cut) < 24
    for i in cut:
        assert len(rollouts[i]["response_tokens"]) == 30  # the length limit
        assert plan["advantage"][i] == plan["tokens"][i] == 0
        assert np.isnan(rollouts[i]["sampled_logprobs"]).all()
    assert not set(table["row"]) & set(cut)
    # The monitor's pulls have TRL's denominator, in which masked tokens are not counted.
    masks = [batch["completion_mask"].sum().item() for batch in given]
    row = table.iloc[0]
    assert abs(row["pull"]) == pytest.approx(abs(row["advantage"]) * 4 / sum(masks), rel=1e-4)


def test_a_kl_trains_the_tokens_of_all_rows(tmp_path: Path) -> None:
    """With beta, rows whose group has equal rewards are in TRL's loss, so they are recorded."""
    trainer = stock_trainer(tmp_path / "trl", max_steps=4, beta=0.1)
    attach(trainer, tmp_path / "poise")
    trainer.train()
    (plan,) = lines(tmp_path / "poise", "plans.jsonl")
    assert 0.0 in plan["advantage"]
    table = pq.read_table(tmp_path / "poise/tokens/step_00001.parquet").to_pandas()
    assert set(table["row"]) == set(range(24))
    (record,) = lines(tmp_path / "poise", "metrics.jsonl")
    by_step = table.groupby("step")["entropy"].mean()
    logged = [line["entropy"] for line in trainer.state.log_history if "entropy" in line]
    # TRL's log is a mean of the passes' means, so it differs by the lengths of the passes.
    np.testing.assert_allclose(by_step, logged, rtol=0.05)
    assert record["entropy"] == pytest.approx(table["entropy"].mean())


def test_a_resumed_run_goes_on_in_its_folder(tmp_path: Path) -> None:
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4}
    trainer = stock_trainer(tmp_path / "trl", **saving)
    attach(trainer, tmp_path / "poise")
    trainer.train()
    whole = lines(tmp_path / "poise", "plans.jsonl")
    again = stock_trainer(tmp_path / "trl", **saving)
    attach(again, tmp_path / "poise")
    with pytest.raises(PoiseError, match="is not empty: choose another or remove it"):
        again.train()
    resumed = stock_trainer(tmp_path / "trl", **saving)
    attach(resumed, tmp_path / "poise")
    resumed.train(resume_from_checkpoint=str(tmp_path / "trl/checkpoint-4"))
    assert lines(tmp_path / "poise", "plans.jsonl") == whole


def test_the_record_reaches_every_checkpoint(tmp_path: Path) -> None:
    """A run that is killed when a checkpoint has just been written can resume from it."""
    from transformers import TrainerCallback

    class Killed(TrainerCallback):
        def on_save(self, *args: Any, **kwargs: Any) -> None:
            raise KeyboardInterrupt

    trainer = stock_trainer(tmp_path / "trl", save_strategy="steps", save_steps=6)
    trainer.add_callback(Killed())
    attach(trainer, tmp_path / "poise")
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert (tmp_path / "trl/checkpoint-6").is_dir()
    assert [p["iteration"] for p in lines(tmp_path / "poise", "plans.jsonl")] == [1]
    (plan,) = lines(tmp_path / "poise/unfinished/step_00006", "plans.jsonl")
    assert (plan["iteration"], len(plan["steps"])) == (2, 2)


def test_a_run_that_is_resumed_within_a_generation(tmp_path: Path) -> None:
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
    for max_steps, resume in ((7, 0), (10, 6), (12, 10)):
        trainer = stock_trainer(tmp_path / "trl", max_steps=max_steps, **saving)
        attach(trainer, tmp_path / "poise")
        checkpoint = str(tmp_path / f"trl/checkpoint-{resume}") if resume else None
        trainer.train(resume_from_checkpoint=checkpoint)
    plans = lines(tmp_path / "poise", "plans.jsonl")
    # Steps 1 to 4; 5 and 6; 7 to 10, which is a whole generation; 11 and 12.
    assert [(p["iteration"], len(p["steps"])) for p in plans] == [(1, 4), (2, 2), (3, 4), (4, 2)]
    tables = [
        pq.read_table(tmp_path / f"poise/tokens/step_{n:05d}.parquet").to_pandas()
        for n in range(1, 5)
    ]
    assert [set(table["step"]) <= set(range(4)) for table in tables] == [True] * 4
    assert set(tables[1]["step"]) <= {0, 1}
    # Parts whose checkpoints are gone are gone too.
    assert len(list((tmp_path / "poise/unfinished").iterdir())) <= 2


def test_a_train_that_was_interrupted_leaves_no_wrappers(tmp_path: Path) -> None:
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4}
    trainer = stock_trainer(tmp_path / "trl", max_steps=8, **saving)
    attach(trainer, tmp_path / "poise")
    rewards = trainer.reward_funcs[0]

    def interrupted(**columns: Any) -> list[float]:
        if trainer.state.global_step == 4:
            raise KeyboardInterrupt
        values: list[float] = rewards(**columns)
        return values

    trainer.reward_funcs[0] = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.reward_funcs[0] = rewards
    trainer.train(resume_from_checkpoint=str(tmp_path / "trl/checkpoint-4"))
    plans = lines(tmp_path / "poise", "plans.jsonl")
    assert [(p["iteration"], len(p["steps"])) for p in plans] == [(1, 4), (2, 4)]
    trainer._step += 1  # as after Ctrl-C between two passes
    with pytest.raises(PoiseError, match="interrupted within a generation"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "trl/checkpoint-4"))


@pytest.mark.slow
def test_two_processes_make_one_plan(tmp_path: Path) -> None:
    folder = tmp_path / "poise"
    noted = launch(
        tmp_path, 2, stock=True, callback=str(folder), generations=1, double=False,
        per_device_train_batch_size=3,
    )  # fmt: skip
    (plan,) = lines(folder, "plans.jsonl")
    rollouts = lines(folder, "rollouts/step_00001.jsonl")
    assert sorted(row for step in plan["steps"] for row in step) == list(range(24))
    for s, step in enumerate(plan["steps"]):
        given = [row[1] for process in noted for row in process["given"][s]]
        assert [rollouts[i]["response_tokens"] for i in step] == given
    table = pq.read_table(folder / "tokens/step_00001.parquet").to_pandas()
    with_signal = {i for i in range(24) if plan["advantage"][i]}
    assert set(table["row"]) == with_signal


def test_a_stock_rloo_trainer(tmp_path: Path) -> None:
    options = {"algorithm": "RLOO", "max_steps": 4, "normalize_advantages": True}
    trainer = stock_trainer(tmp_path / "trl", **options)  # beta=0.05: with a reference model
    given = note_losses(trainer)
    attach(trainer, tmp_path / "poise")
    trainer.train()
    (plan,) = lines(tmp_path / "poise", "plans.jsonl")
    rollouts = lines(tmp_path / "poise", "rollouts/step_00001.jsonl")
    table = pq.read_table(tmp_path / "poise/tokens/step_00001.parquet").to_pandas()
    for s, step in enumerate(plan["steps"]):
        passes = given[2 * s : 2 * s + 2]
        advantages = torch.cat([batch["advantages"] for batch in passes])
        assert [plan["advantage"][i] for i in step] == advantages.tolist()
        ids = [
            row[mask].tolist()
            for batch in passes
            for row, mask in zip(
                batch["completion_ids"], batch["completion_mask"].bool(), strict=True
            )
        ]
        assert [rollouts[i]["response_tokens"] for i in step] == ids
        # The loss has old log-probabilities summed over a sequence; the table has each token's.
        old_sums = torch.cat([batch["old_logps"] for batch in passes])
        by_row = table[table["step"] == s].groupby("row")["old_logprob"].sum()
        np.testing.assert_allclose([by_row[i] for i in step], old_sums, rtol=1e-4)
    assert (table["entropy"] >= 0).all()
    assert_same_training(trainer, given, stock_trainer(tmp_path / "alone", **options))
    with pytest.raises(PoiseError, match="knows GRPOTrainer's losses, not RLOOTrainer's"):
        attach(trainer, tmp_path / "monitored", monitor_every=1)
    with pytest.raises(PoiseError, match="GRPOTrainer and RLOOTrainer, not object"):
        attach(object(), tmp_path / "monitored")
    from hosts.trl.test_adapter import small_trainer

    with pytest.raises(PoiseError, match="set run_folder in PoiseConfig, and leave PoiseCallback"):
        attach(small_trainer(tmp_path / "ours"), tmp_path / "monitored")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_iterations": 2}, "num_iterations=2 makes several: set num_iterations=1"),
        ({"steps_per_generation": 8, "gradient_accumulation_steps": 3}, "would span two gener"),
    ],
)
def test_what_it_cannot_record_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    trainer = stock_trainer(tmp_path / "trl", **changes)
    with pytest.raises(PoiseError, match=message):
        attach(trainer, tmp_path / "poise")
    assert not (tmp_path / "poise").exists()


def test_another_version_of_trl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import counterpoise.trl
    from counterpoise.hosts.trl import host

    monkeypatch.setattr(host, "installed_version", lambda: "1.17.0")
    with pytest.raises(PoiseError, match=r"TRL 1\.17\.0 is not supported, only 1\.16\.x"):
        counterpoise.trl.PoiseCallback  # noqa: B018


def test_an_adapter_is_recorded_and_measured(tmp_path: Path) -> None:
    """A trainer with PEFT: weights of LoRA move the tokens, and the folder is the same."""
    trainer = stock_trainer(tmp_path / "trl", lora=True, max_steps=4, learning_rate=1e-2)
    attach(trainer, tmp_path / "poise", monitor_every=1)
    trainer.train()
    (plan,) = lines(tmp_path / "poise", "plans.jsonl")
    assert sorted(row for step in plan["steps"] for row in step) == list(range(24))
    table = pq.read_table(tmp_path / "poise/tokens/step_00001.parquet").to_pandas()
    assert set(table["step"]) == {0, 1, 2, 3}
    assert np.abs(table["displacement"]).max() > 1e-4
    first = table[table["step"] == 0]
    np.testing.assert_allclose(first["logprob"], first["old_logprob"], atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_it_costs_at_most_five_percent(tmp_path: Path, lora: bool) -> None:
    """CPU time inside the callback over that of training, in one run, with the monitor off."""
    trainer = stock_trainer(tmp_path / "trl", lora, max_steps=16)
    callback = attach(trainer, tmp_path / "poise")
    spent = 0.0

    def timed(method: Any, calls_trl: bool) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal spent
            start = time.process_time()
            inner = 0.0
            if calls_trl:
                original = args[0]

                def original_timed(*a: Any, **k: Any) -> Any:
                    nonlocal inner
                    begin = time.process_time()
                    outputs = original(*a, **k)
                    inner += time.process_time() - begin
                    return outputs

                args = (original_timed, *args[1:])
            outputs = method(*args, **kwargs)
            spent += time.process_time() - start - inner
            return outputs

        return run

    for name in ("_observe_generation", "_observe_passes", "_observe_rewards", "_observe_logprobs"):
        setattr(callback, name, timed(getattr(callback, name), calls_trl=True))
    for name in ("on_step_end", "on_log", "on_train_end"):
        setattr(callback, name, timed(getattr(callback, name), calls_trl=False))
    start = time.process_time()
    trainer.train()
    share = spent / (time.process_time() - start)
    print(f"callback: {share:.2%} of a step")
    assert share < 0.05
