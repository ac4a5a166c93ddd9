"""Files that TRL 1.16, W&B 0.31, verl 0.9, slime at 624b824a and miles at 31f1ca96 wrote; each is
skipped where it is not installed. slime and miles need only be on PYTHONPATH. Further trainers have
a test_real_writer.py of their own.
"""

from __future__ import annotations

import logging
import random
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from hosts.importing.foreign import read_lines, trl_file
from hosts.importing.foreign_dumps import (
    MICRO_BATCHES,
    PARTITIONS,
    sample_record,
    shard_columns,
    write_slime_dump,
)
from hosts.importing.foreign_traces import (
    episode_record,
    ship_update,
    trace_record,
    trainer_update,
    write_stream,
)

from counterpoise.batch.plan_file import plan_file
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.lab.choose_page import write_report
from counterpoise.model.load import EMBEDDED_FOLDER
from counterpoise.store.folder import RunFolder


@pytest.mark.slow
def test_trl_run(tmp_path: Path) -> None:
    """A GRPOTrainer on the embedded model: two prompts x four completions, two optimizer steps for
    each generation, two reward functions and a column of log_extra. Steps 2 and 4 repeat 1 and 3.
    """
    trl = pytest.importorskip("trl", reason="TRL is not installed: pip install trl==1.16.0")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    sampled: list[str] = []

    def correct(completions: list[str], log_extra, **_) -> list[float]:
        sampled.extend(completions)
        log_extra("length", [float(len(text)) for text in completions])
        return [float(i % 3 == 0) for i in range(len(completions))]

    def form(completions: list[str], **_) -> list[float]:
        return [0.5 * (i % 2) for i in range(len(completions))]

    trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER, dtype=torch.float32),
        reward_funcs=[correct, form],
        args=trl.GRPOConfig(
            output_dir=str(tmp_path / "run"),
            max_steps=4,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=4,
            steps_per_generation=2,
            num_generations=4,
            max_completion_length=8,
            report_to="none",
            logging_steps=1,
            save_strategy="no",
            log_completions=True,
            num_completions_to_print=0,
            disable_tqdm=True,
        ),
        processing_class=AutoTokenizer.from_pretrained(EMBEDDED_FOLDER),
        train_dataset=Dataset.from_dict({"prompt": [f"Ana has {i} pens." for i in range(4)]}),
    ).train()
    result = import_run(tmp_path / "run", tmp_path / "out", tokenizer="embedded")
    assert (result.source, result.steps, result.rollouts, result.groups) == ("TRL", 2, 16, 4)
    assert result.notes[0] == "reward = correct + form (inferred; --reward names other columns)"
    assert "left out because they repeat the generation before: 2 files" in result.notes
    files = [tmp_path / "out" / "rollouts" / f"step_0000{n}.jsonl" for n in (1, 3)]
    lines = [line for file in files for line in read_lines(file)]
    assert [line["response"] for line in lines] == sampled
    expected = [float(i % 3 == 0) + 0.5 * (i % 2) for i in range(8)] * 2
    assert [line["reward"] for line in lines] == expected
    assert plan_file(files[0], "grouped", 2, 0)["describe"]["split_groups"] == 0
    assert write_report(tmp_path / "out").is_file()


def test_verl_writer(tmp_path: Path) -> None:
    """What both of verl's trainers call to write a file of rollout_data_dir."""
    pytest.importorskip("verl", reason="verl is not installed: pip install verl==0.9.1")
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    inputs, outputs, scores = ["How many?"] * 4, ["3", "4", "5", "6"], [1.0, 0.0, 0.0, 1.0]
    uids = ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]
    for name, trainer, extra in (
        ("v1", PPOTrainer, {"uid": uids}),
        ("v0", RayPPOTrainer, {"request_id": uids}),
    ):
        folder = str(tmp_path / name)
        trainer._write_generations(inputs, outputs, ["3"] * 4, scores, extra, folder, 5)
    result = import_run(tmp_path / "v1", tmp_path / "out1", tokenizer="embedded")
    assert (result.source, result.rollouts, result.groups) == ("verl", 4, 2)
    lines = read_lines(tmp_path / "out1" / "rollouts" / "step_00005.jsonl")
    assert [line["group"] for line in lines] == ["5:a", "5:a", "5:b", "5:b"]
    assert [line["reward"] for line in lines] == scores
    assert import_run(tmp_path / "v0", tmp_path / "out0", tokenizer="embedded").groups == 1


def test_wandb_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What TRL does after it wrote a parquet file: it logs the same data frame as a table."""
    wandb = pytest.importorskip("wandb", reason="W&B is not installed: pip install wandb")
    pandas = pytest.importorskip("pandas")
    monkeypatch.setenv("WANDB_MODE", "offline")
    nan = float("nan")
    rewards = {"correct": [1.0, 0.0, 0.0, 1.0], "form": [nan] * 4}
    prompts = [[{"role": "user", "content": text}] for text in ("How many?", "How far?")]
    parquet = trl_file(tmp_path / "run", 1, [prompts[0]] * 2 + [prompts[1]] * 2, rewards=rewards)
    with wandb.init(dir=str(tmp_path), project="test") as run:
        run.log({"completions": wandb.Table(dataframe=pandas.read_parquet(parquet))})
    folders = [tmp_path / "run", tmp_path / "wandb"]
    for folder, out in zip(folders, ("a", "b"), strict=True):
        import_run(folder, tmp_path / out, tokenizer="embedded", reward="correct")
    parquet_lines, table_lines = (
        read_lines(tmp_path / out / "rollouts" / "step_00001.jsonl") for out in "ab"
    )
    names = ("prompt", "response", "reward", "group", "response_tokens")
    for ours, theirs in zip(parquet_lines, table_lines, strict=True):
        assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}


def check_steps(out: Path, partitions: list, micro_batches: list, per_step: list[int]) -> None:
    """The plan has the steps, the ranks and the micro-batches of the trainer's own scheduler."""
    (plan,) = RunFolder(out).read("plans")
    steps: list[list[int]] = [[] for _ in per_step]
    for rank, (partition, batches) in enumerate(zip(partitions, micro_batches, strict=True)):
        remaining = iter(batches)
        for step, number in enumerate(per_step):
            for micro_batch in range(number):
                for index in next(remaining):
                    position = partition[index]
                    steps[step].append(position)
                    assert plan["rank"][position] == rank
                    assert plan["micro_batch"][position] == micro_batch
    assert [sorted(step) for step in plan["steps"]] == [sorted(step) for step in steps]


def scheduler_arguments(**changes: Any) -> Namespace:
    arguments = {
        "use_dynamic_batch_size": True, "max_tokens_per_gpu": 6, "micro_batch_size": None,
        "balance_data": False, "balance_by_flops": False, "global_batch_size": 4,
    }  # fmt: skip
    return Namespace(**arguments | changes)


PARALLEL = {"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}


def test_slime_writer_and_scheduler(tmp_path: Path) -> None:
    writer = pytest.importorskip("slime.observability.train_data_utils", reason="no slime")
    from slime.utils.dp_schedule import build_dp_schedule

    shards = [
        {"rank": rank, "data_parallel_rank": rank, "rollout_data": shard_columns(rank)}
        for rank in range(2)
    ]
    real = writer._build_dump_payload(shards, rollout_id=0, writer_rank=0)
    by_hand = torch.load(write_slime_dump(tmp_path / "hand"), weights_only=True)
    assert str(real) == str(by_hand)
    lengths = [len(sample_record(position)["tokens"]) for position in range(8)]
    partitions, micro_batches, per_step, sizes = build_dp_schedule(
        scheduler_arguments(), PARALLEL, lengths, global_batch_size=4, rollout_indices=[*range(8)]
    )
    columns = {  # of the whole batch, by position
        name: {
            position: value
            for rank in range(2)
            for position, value in zip(PARTITIONS[rank], shard_columns(rank)[name], strict=True)
        }
        for name in shard_columns(0)
        if len(shard_columns(0)[name]) == len(PARTITIONS[0]) and name != "micro_batch_indices"
    }
    for rank, shard in enumerate(shards):
        shard["rollout_data"] = {
            **shard_columns(rank),
            **{n: [values[p] for p in partitions[rank]] for n, values in columns.items()},
            "partition": partitions[rank],
            "micro_batch_indices": micro_batches[rank],
            "num_microbatches": per_step,
            "global_batch_sizes": sizes,
        }
    file = tmp_path / "run" / "train_data" / "0.pt"
    file.parent.mkdir(parents=True)
    torch.save(writer._build_dump_payload(shards, rollout_id=0, writer_rank=0), file)
    import_run(tmp_path / "run", tmp_path / "out")
    assert micro_batches != MICRO_BATCHES
    check_steps(tmp_path / "out", partitions, micro_batches, per_step)


def test_miles_writers_and_scheduler(tmp_path: Path) -> None:
    """Sampling dump, conversion, schedule and a training dump for each rank, all by miles."""
    conversion = pytest.importorskip("miles.ray.rollout.train_data_conversion", reason="no miles")
    from miles.ray.rollout.debug_data import save_debug_rollout_data
    from miles.utils.train_dump_utils import save_debug_train_data_for_rank
    from miles.utils.types import Sample

    logging.disable()
    arguments = scheduler_arguments(
        save_debug_rollout_data=str(tmp_path / "run" / "rollout_data" / "{rollout_id}.pt"),
        save_debug_train_data=str(tmp_path / "run" / "train_data" / "{rollout_id}_{rank}.pt"),
        save_debug_trajectory_data=None, use_dynamic_global_batch_size=False,
        advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=True,
        rollout_batch_size=4, n_samples_per_prompt=2, reward_key=None, qkv_format="thd",
    )  # fmt: skip
    records = [sample_record(position) for position in range(8)]
    random.Random(0).shuffle(records)
    samples = [Sample.from_dict(record) for record in records]
    save_debug_rollout_data(arguments, samples, rollout_id=0, evaluation=False)
    data = conversion.convert_samples_to_train_data(arguments, samples, {}, None, None)
    shards = conversion.split_train_data_by_dp_scheduled_raw(
        arguments, data, train_parallel_config=PARALLEL
    )
    partitions = [list(shard["partition"]) for shard in shards]
    for rank, shard in enumerate(shards):
        ready = conversion.process_rollout_data_shard(arguments, dict(shard))
        for copy in range(2):
            save_debug_train_data_for_rank(
                arguments, rollout_id=0, rollout_data=ready, rank=2 * rank + copy
            )
    result = import_run(tmp_path / "run", tmp_path / "out")
    assert (result.source, result.rollouts, result.groups) == ("miles", 8, 4)
    micro_batches = [shard["micro_batch_indices"] for shard in shards]
    check_steps(tmp_path / "out", partitions, micro_batches, shards[0]["num_microbatches"])
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00000.jsonl")
    assert [line["reward"] for line in lines] == [record["reward"] for record in records]


def test_prime_rl_episodes_by_verifiers(tmp_path: Path) -> None:
    """prime-rl's stream holds what verifiers' `Episode.to_record` returns, a line for each.

    The episodes are built of verifiers' own classes; prime-rl itself, which adds the annotations,
    is not in any package index.
    """
    pytest.importorskip("verifiers", reason="verifiers is not installed: counterpoise[verifiers]")
    from verifiers.v1.episode import WireEpisode

    records = [
        episode_record(trace_record(name, score), group="g0")
        for name, score in (("a", 1.0), ("b", 0.0))
    ]
    written = [WireEpisode.model_validate(record).to_record() for record in records]
    # The real record has fields that no import reads, and none that are null.
    assert {"timing", "num_output_tokens"} <= set(written[0]["traces"][0])
    assert "stop_condition" not in written[0]["traces"][0]
    shipped = [ship_update("a", 1, 0.5), ship_update("b", 1, -0.5)]
    trainer = [trainer_update(name) for name in "ab"]
    write_stream(tmp_path / "hand", records, shipped, trainer)
    write_stream(tmp_path / "real", written, shipped, trainer)
    for name in ("hand", "real"):
        result = import_run(tmp_path / name, tmp_path / f"{name}_out")
        assert (result.source, result.rollouts, result.groups) == ("prime-rl", 2, 1)
    for file in ("rollouts/step_00001.jsonl", "plans.jsonl", "metrics.jsonl"):
        by_hand, by_verifiers = (
            read_lines(tmp_path / f"{name}_out" / file) for name in ("hand", "real")
        )
        assert by_hand == by_verifiers, file
