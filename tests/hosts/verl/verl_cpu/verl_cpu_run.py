"""Real verl runs on the CPU, one after the other, each with a Ray cluster of its own.

    python verl_cpu_run.py OUT '{"stock": [2, []], "qb": [2, ["+poise.composer=grouped"]]}'

Two ranks of FSDP2 over gloo train the embedded model for a few steps. Each run leaves
OUT/<name>/metrics.jsonl (verl's own tracking) and OUT/<name>/rank_<r>.jsonl (what the workers got).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROMPTS, GROUP, STEPS, RANKS = 8, 4, 4, 2  # prompts a batch, rollouts each, optimizer steps


def environment(out: Path) -> dict[str, str]:
    """What every process of the runs has to see."""
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        "PYTHONPATH": path,
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",  # the name under which verl registers FSDP
        "VERL_USE_EXTERNAL_MODULES": "verl_cpu_platform,verl_cpu_watch",
        "VERL_CPU_NOTES": str(out),
        "VERL_FILE_LOGGER_PATH": str(out / "metrics.jsonl"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHDYNAMO_DISABLE": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_DISABLE_METRICS": "1",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Other work on the machine neither ends these runs nor starves them.
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_worker_niceness": "0",
    }


def write_data(path: Path, right: int) -> None:
    """Word problems; `right` of each four rollouts will be judged right (verl_cpu_reward.py)."""
    import pandas as pd

    from counterpoise.task.word_problems import make_problem

    problems = [make_problem("train", i, levels=[1]) for i in range(64)]
    rows = [
        {
            "data_source": str(right),
            "prompt": [{"role": "user", "content": p.problem}],
            "reward_model": {"style": "rule", "ground_truth": p.answer},
            "extra_info": {"index": i},
        }
        for i, p in enumerate(problems)
    ]
    pd.DataFrame(rows).to_parquet(path)


def overrides(data: Path) -> list[str]:
    """A stock verl run, small enough for two cores."""
    from counterpoise.model.load import EMBEDDED_FOLDER

    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    model, ray = "actor_rollout_ref.model", "ray_kwargs.ray_init"
    precision = f"+{actor}.fsdp_config.mixed_precision"
    return [
        f"data.train_files={data}", f"data.val_files={data}", f"data.train_batch_size={PROMPTS}",
        "data.max_prompt_length=128", "data.max_response_length=64",
        "data.dataloader_num_workers=0", "data.shuffle=False",
        "algorithm.adv_estimator=grpo", "algorithm.use_kl_in_reward=False",
        f"{model}.path={EMBEDDED_FOLDER}", f"{model}.use_remove_padding=False",
        f"{model}.enable_gradient_checkpointing=False",
        f"+{model}.override_config.attn_implementation=sdpa",
        f"{actor}.strategy=fsdp2", f"{actor}.use_torch_compile=False",
        f"{actor}.fsdp_config.use_torch_compile=False",
        f"{precision}.param_dtype=fp32", f"{precision}.reduce_dtype=fp32",
        f"{precision}.buffer_dtype=fp32",
        f"{actor}.use_kl_loss=False", f"{actor}.entropy_coeff=0", f"{actor}.optim.lr=2e-4",
        f"{actor}.ppo_mini_batch_size={PROMPTS // STEPS}",
        f"{actor}.ppo_micro_batch_size_per_gpu=2",
        f"{rollout}.name=native", f"{rollout}.n={GROUP}", f"{rollout}.calculate_log_probs=True",
        f"{rollout}.log_prob_micro_batch_size_per_gpu=4",
        f"{rollout}.tensor_model_parallel_size={RANKS}", f"{rollout}.agent.num_workers=1",
        f"trainer.n_gpus_per_node={RANKS}", "trainer.nnodes=1", "trainer.device=cpu",
        "trainer.logger=[file]", "trainer.val_before_train=False", "trainer.resume_mode=disable",
        "trainer.save_freq=-1", "trainer.test_freq=-1", "trainer.total_training_steps=2",
        f"reward.custom_reward_function.path={HERE / 'verl_cpu_reward.py'}",
        "reward.num_workers=1",
        f"+{ray}.num_gpus={RANKS}", f"{ray}.num_cpus=32", f"+{ray}.include_dashboard=False",
        f"+{ray}.object_store_memory=200000000",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    ]  # fmt: skip


def run(out: Path, name: str, changes: list[str], right: int) -> None:
    import ray
    from hydra import compose, initialize_config_module
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    data = out / f"{name}.parquet"
    write_data(data, right)
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[*overrides(data), *changes])
    validate_config(config, need_reference_policy(config), need_critic(config))
    train(config)
    ray.shutdown()
    folder = out / name
    folder.mkdir()
    for file in [*out.glob("rank_*.jsonl"), out / "metrics.jsonl"]:
        file.rename(folder / file.name)


def train(config: Any) -> None:
    """Run verl; again where Ray gives its processes up that need more than 30 s to start."""
    import ray
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    for attempts_left in reversed(range(5)):
        try:
            run_ppo(config, TaskRunnerV1)
            break
        except Exception as fault:
            if not attempts_left or "timed out during startup" not in str(fault):
                raise
            ray.shutdown()


def main(out: Path, runs: dict[str, Any]) -> None:
    os.environ.update(environment(out))
    for name, (right, changes) in runs.items():
        run(out, name, changes, right)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
