"""A run file for verl: the command, its data files, its reward, and verl's own reading of it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hosts.verl.run_on_cpu import (
    compare_advantages,
    needs_verl,
    read_notes,
    read_update,
    with_native_weights,
)

from counterpoise.config import ModelConfig, RunConfig
from counterpoise.config.load import load_config
from counterpoise.credit.view import PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.hosts.choose_engine import stored_engine
from counterpoise.hosts.verl import command, host, run, run_options
from counterpoise.hosts.verl import options as adapter
from counterpoise.hosts.verl.reward import compute_score
from counterpoise.model.load import load_policy
from counterpoise.types import Prompt
from counterpoise.update.trajectory import with_trajectory_weights
from counterpoise.verify.reward_process import shared_process

OWN = Path(__file__).parents[3] / "examples" / "own_reward_and_composer.py"
PRESETS = ("qwen3-1.7b-base", "qwen3-4b-base", "qwen2.5-math-7b")


def words(config: RunConfig) -> dict[str, str]:
    pairs = (word.split("=", 1) for word in command.build_command(config, Path("out/x"))[3:])
    return {name.lstrip("+"): value for name, value in pairs}


@pytest.mark.parametrize("preset", PRESETS)
def test_the_papers_numbers_reach_the_command(preset: str) -> None:
    config = load_config(preset)
    options = words(config)
    expected = {
        "data.train_batch_size": "128", "actor_rollout_ref.rollout.n": "8",
        "actor_rollout_ref.actor.ppo_mini_batch_size": "32",
        "actor_rollout_ref.actor.clip_ratio_low": "0.2",
        "actor_rollout_ref.actor.clip_ratio_high": "0.28",
        "actor_rollout_ref.actor.optim.lr": "1e-06",
        "actor_rollout_ref.actor.optim.weight_decay": "0.0",
        "actor_rollout_ref.actor.use_kl_loss": "False",
        "actor_rollout_ref.actor.entropy_coeff": "0.0",
        "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
        "algorithm.adv_estimator": "poise_grpo", "poise.composer": "grouped",
        "poise.tau": str(config.balance.tau),
    }  # fmt: skip
    assert {name: options[name] for name in expected} == expected


def test_what_is_shown_is_the_command_itself() -> None:
    config = load_config("qwen3-4b-base")
    text = command.format_command(config, Path("out/x"))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == command.build_command(
        config, Path("out/x")
    )
    assert any("counts updates" in line for line in text.splitlines())


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["balance.target=64"], r"balance\.target=64 \("),
        (["update.warmup_steps=3"], r"update\.warmup_steps=3 \(verl's warmup starts at 0"),
        (["sample.prompts=6", "batch.steps=4"], r"sample\.prompts=6 in batch\.steps=4"),
        (['evaluate.settings=["training","0.6/0.95"]'], "verl evaluates in one way only"),
        (["model.name=shape:smollm2-135m"], "verl loads a folder or a hub id"),
        ([f"batch.composer={OWN}:easy_first"], "a user's function would see no advantages"),
        (["credit.weights=grail"], r"credit\.weights=grail \(it makes passes of its own"),
        (["credit.weights=shear", "balance.tau=0.25"], r"with balance\.tau=0\.25 \(shear reads"),
        (["credit.weights=rsi_s", "update.old_logprobs=sampler"], "read verl's scoring pass"),
        (["model.device=cpu", "update.optimizer=sgd"], r"model\.device=cpu .*update\.optimizer"),
    ],
)
def test_what_verl_cannot_honour_stops(sets: list[str], said: str) -> None:
    usual = ["balance.target=0", "update.warmup_steps=0"]
    with pytest.raises(PoiseError, match=said):
        run_options.check_options(load_config("demo", [*usual, *sets]))


def test_an_evaluation_as_in_training_keeps_its_top_k() -> None:
    for setting, top_k in (("training", "20"), ("0.6/0.95", "-1")):
        config = load_config(PRESETS[0], ["sample.top_k=20", f'evaluate.settings=["{setting}"]'])
        assert words(config)["actor_rollout_ref.rollout.val_kwargs.top_k"] == top_k


@needs_verl
@pytest.mark.parametrize(
    "text",
    [
        "out/run", "../x", "7", "1e-5", ".5", "true", "NULL", "", "a b", "größe/ä", "日本", "a\tb",
        "C:\\runs\\", 'say "no"', 'a\\"b', "x,y", "${HOME}", "width=16", "[0]",
    ],
)  # fmt: skip
def test_hydra_reads_back_what_was_written(text: str) -> None:
    """A folder may have any name: letters beyond ASCII, or only digits."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    written = command._hydra_value([text, "second"])
    read = OverridesParser.create().parse_override(f"name={written}").value()
    assert [getattr(value, "text", value) for value in read] == [text, "second"]
    assert all(isinstance(getattr(value, "text", value), str) for value in read)


def test_a_reward_that_needs_what_verl_lacks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def needs(completions, completion_ids, trainer_state, **kwargs): return [0.0]\n"
        "def may_use(completions, trainer_state=None, **kwargs): return [0.0]\n"
    )
    usual = ["balance.target=0", "update.warmup_steps=0", "model.device=auto"]
    with pytest.raises(PoiseError, match=r"needs completion_ids, which .* needs trainer_state"):
        run_options.check_options(load_config("demo", [*usual, f"verify.name={path}:needs"]))
    run_options.check_options(load_config("demo", [*usual, f"verify.name={path}:may_use"]))


def test_a_bound_that_is_off_is_never_met() -> None:
    options = words(load_config("demo", ["update.max_grad_norm=0"]))
    assert options["actor_rollout_ref.actor.optim.clip_grad"] == "1000000000.0"


@pytest.mark.parametrize("template", ["auto", "chat-boxed", "boxed"])
def test_data_files_hold_the_problems(tmp_path: Path, template: str) -> None:
    sets = ["task.size=32", "task.heldout=4", f"model.template={template}"]
    config = load_config("demo", sets)
    run.prepare_folder(config, tmp_path / "run")
    train = pq.read_table(tmp_path / "run" / "train.parquet").to_pylist()
    heldout = pq.read_table(tmp_path / "run" / "heldout.parquet").to_pylist()
    assert (len(train), len(heldout)) == (32, 4)
    (message,) = train[0]["prompt"]
    assert message["role"] == "user"
    assert ("\\boxed{}" in message["content"]) == (template != "auto")
    assert train[0]["reward_model"]["ground_truth"].isdigit()
    content = json.loads((tmp_path / "run" / "engine.json").read_text())
    assert content["engine"] == "verl"
    with pytest.raises(PoiseError, match="already holds a run"):
        run.prepare_folder(config, tmp_path / "run")


def test_a_resumed_run_gets_the_problems_that_it_had_not_written_yet(tmp_path: Path) -> None:
    config, out = load_config("demo", ["task.size=32", "task.heldout=4"]), tmp_path / "run"
    run.prepare_folder(config, out)
    written = {name: (out / name).read_bytes() for name in run.PROBLEM_FILES}
    (out / "heldout.parquet").unlink()
    run.complete_folder(config, out)
    assert {name: (out / name).read_bytes() for name in run.PROBLEM_FILES} == written
    assert stored_engine(out) == "verl"


def test_too_few_problems_are_refused(tmp_path: Path) -> None:
    config = load_config("demo", ["task.size=15"])
    with pytest.raises(PoiseError, match=r"^15 training prompts cannot fill an iteration of 16: "):
        run.prepare_folder(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_reward_is_the_runs_verifier() -> None:
    right = {"data_source": "x", "ground_truth": "11", "verifier": "exact"}
    assert compute_score(solution_str="so \\boxed{11}", **right) == 1.0
    assert compute_score(solution_str="so \\boxed{12}", extra_info={}, **right) == 0.0


def test_the_reward_may_be_a_function_of_the_users() -> None:
    name = load_config("demo", [f"verify.name={OWN}:nearness"]).verify.name
    prompts = {"data_source": "x", "ground_truth": "10", "verifier": name}
    assert compute_score(solution_str="so \\boxed{10}", **prompts) == 1.0
    assert compute_score(solution_str="so \\boxed{12}", **prompts) == -0.2
    options = words(load_config("demo", [f"verify.name={name}"]))
    assert options["reward.custom_reward_function.reward_kwargs.verifier"] == f'"{name}"'


def test_a_reward_that_hangs_has_the_runs_limit(
    tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import time\n"
        "def score(completion, answer):\n"
        "    if completion == 'hang': time.sleep(3600)\n"
        "    return 0.5\n"
    )
    call = {"data_source": "x", "ground_truth": "10", "verifier": f"{path}:score"}
    limited = {**call, "extra_info": {"id": "p7"}, "reward_timeout_seconds": 1.0}
    try:
        assert compute_score(solution_str="quick", **limited) == 0.5
        assert compute_score(solution_str="hang", **limited) == 0.0
        assert "mine.py:score took too long for p7: its reward is 0" in capfd.readouterr().err
        assert compute_score(solution_str="quick", **limited) == 0.5
    finally:
        shared_process(1.0).close()
    options = words(load_config("demo", ["verify.reward_timeout_seconds=7"]))
    assert options["reward.custom_reward_function.reward_kwargs.reward_timeout_seconds"] == "7.0"


def test_what_a_reward_asks_for_travels_with_the_data(tmp_path: Path) -> None:
    """To verl's reward workers: the problem's text and columns of any form."""
    path, data = tmp_path / "mine.py", tmp_path / "data.jsonl"
    path.write_text(
        "def score(prompts, responses, marks):\n"
        "    asked = zip(prompts, responses, marks)\n"
        "    return [m['worth'] * (p in r) if m else -1 for p, r, m in asked]\n"
    )
    marks = [{"worth": 0.5}, None, {"worth": 2, "more": [1]}]
    records = [{"id": k, "problem": f"{k}?", "answer": k, "marks": m} for k, m in enumerate(marks)]
    data.write_text("\n".join(map(json.dumps, records)))
    sets = ["task.name=jsonl", f"task.path={data}", "task.heldout=0", "sample.prompts=3"]
    config = load_config("demo", [*sets, f"verify.name={path}:score", "batch.steps=3"])
    run.prepare_folder(config, tmp_path / "run")
    rows = pq.read_table(tmp_path / "run" / "train.parquet").to_pylist()
    rewards = [
        compute_score(
            row["data_source"], f"I read {k}?", row["reward_model"]["ground_truth"],
            row["extra_info"], verifier=config.verify.name,
        )
        for k, row in enumerate(rows)
    ]  # fmt: skip
    assert rewards == [0.5, -1.0, 2.0]
    hub_task = replace(config.task, name="hub", path="openai/gsm8k:main")
    (row,) = run.prompt_table([Prompt("7", "?", "1")], replace(config, task=hub_task)).to_pylist()
    assert row["data_source"] == "openai/gsm8k"  # as in the other engines
    odd = Prompt("7", "?", "1", columns={"marks": {1, 2}})
    with pytest.raises(PoiseError, match=r"^problem '7': .* as JSON.*: Object of type set is"):
        run.prompt_table([odd], config)


def test_a_missing_verl_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "installed_version", lambda: None)
    with pytest.raises(PoiseError, match=r"^verl is not installed: pip install"):
        run.launch_verl(load_config("demo"), tmp_path / "x")
    assert not (tmp_path / "x").exists()


SLOW_TO_STOP = """
import pathlib, signal, sys, time

def stop(*_):
    time.sleep(0.6)
    pathlib.Path(sys.argv[1]).touch()
    sys.exit(3)

signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
time.sleep(60)
"""


def test_verl_has_time_to_stop_after_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = tmp_path / "stopped"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", SLOW_TO_STOP, str(stopped)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == b"ready\n"

    def press_ctrl_c() -> None:
        for pid in (process.pid, os.getpid()):
            os.kill(pid, signal.SIGINT)

    key_press = threading.Timer(0.1, press_ctrl_c)
    key_press.start()
    with pytest.raises(KeyboardInterrupt):
        run.wait_for_verl(process)
    assert (process.returncode, stopped.exists()) == (3, True)
    assert "waiting for verl to stop its workers" in capsys.readouterr().err


@needs_verl
@pytest.mark.parametrize("preset", PRESETS)
def test_verl_knows_every_option_of_the_command(preset: str) -> None:
    """Composed by Hydra from verl's own files, and checked by the adapter."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    overrides = command.build_command(load_config(preset), Path("out/x"))[3:]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    OmegaConf.resolve(config)
    options = adapter.check_config(config)
    assert options is not None
    assert (options.composer, options.max_age) == ("grouped", 4)
    assert adapter.optimizer_steps(config) == 4
    assert adapter.rollouts_per_batch(config) == 1024
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)  # checks itself
    assert list(actor.optim.betas) == [0.9, 0.999]
    assert (actor.optim.clip_grad, actor.clip_ratio_c) == (1.0, 1e9)
    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert config.reward.custom_reward_function.reward_kwargs.timeout_seconds == 5.0


@needs_verl
@pytest.mark.parametrize("place", ["loss", "reward"])
def test_verl_knows_the_options_of_its_loss(place: str) -> None:
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    sets = [
        "balance.tau=0", "balance.target=0", "update.warmup_steps=0", "batch.steps=1",
        "update.kl=0.02", f"update.kl_in={place}", "update.kl_estimator=k2", "update.clip_dual=3",
        "update.entropy_bonus=0.01", "update.schedule=cosine", "update.final_lr_share=0.1",
    ]  # fmt: skip
    config = load_config("demo", sets)
    run_options.check_options(config)
    overrides = command.build_command(config, Path("out/x"))[3:]
    with initialize_config_module("verl.trainer.config", version_base=None):
        composed = compose("ppo_trainer", overrides=overrides)
    OmegaConf.resolve(composed)
    actor = omega_conf_to_dataclass(composed.actor_rollout_ref.actor)
    assert (actor.clip_ratio_c, actor.entropy_coeff) == (3.0, 0.01)
    assert (actor.optim.lr_scheduler_type, actor.optim.min_lr_ratio) == ("cosine", 0.1)
    algorithm = composed.algorithm
    assert (actor.use_kl_loss, algorithm.use_kl_in_reward) == (place == "loss", place == "reward")
    if place == "loss":
        assert (actor.kl_loss_coef, actor.kl_loss_type) == (0.02, "mse")
    else:
        assert (algorithm.kl_ctrl.kl_coef, algorithm.kl_penalty) == (0.02, "mse")
        assert algorithm.kl_ctrl.type == "fixed"


RANKS = 2
ON_A_CPU = [  # verl has neither a platform nor a sampler for it: tests/hosts/verl/verl_cpu has
    "actor_rollout_ref.model.use_remove_padding=False",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
    "actor_rollout_ref.rollout.name=native",
    f"actor_rollout_ref.rollout.tensor_model_parallel_size={RANKS}",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "data.dataloader_num_workers=0", "trainer.save_freq=-1", "trainer.device=cpu",
    f"trainer.n_gpus_per_node={RANKS}", f"+ray_kwargs.ray_init.num_gpus={RANKS}",
    "ray_kwargs.ray_init.num_cpus=32", "+ray_kwargs.ray_init.include_dashboard=False",
    "+ray_kwargs.ray_init.object_store_memory=200000000",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
]  # fmt: skip


@needs_verl
@pytest.mark.slow
def test_verl_runs_the_command(tmp_path: Path) -> None:
    """Two updates of the embedded model on two ranks, with our data files and our reward."""
    harness = Path(__file__).parent / "verl_cpu"
    record = tmp_path / "record"
    config = load_config(
        "demo",
        [
            "balance.tau=0", "balance.target=0", "update.warmup_steps=0", "sample.prompts=8",
            "sample.group_size=4", "sample.max_new_tokens=64", "sample.max_prompt_tokens=128",
            "loop.iterations=2", "task.levels=[1]", "task.size=64", "task.heldout=8",
            "evaluate.prompts=8", "evaluate.samples=1", "model.dtype=float32", "verify.workers=1",
            "verify.name=exact", "monitor.every=1", "sample.temperature=0.9",
            "credit.weights=gtpo", 'credit.settings=["penalty=0.2"]',
            "update.surrogate=reinforce", "update.trajectory=orthogonal",
        ],
    )  # fmt: skip
    out = tmp_path / "run"
    run_options.check_options(config)
    run.prepare_folder(config, out)
    words = [
        sys.executable, "-W", "ignore", *command.build_command(config, out)[1:], *ON_A_CPU,
        f"+poise.run_folder={record}",
    ]  # fmt: skip
    sys.path.insert(0, str(harness))
    try:
        from verl_cpu_run import environment
    finally:
        sys.path.remove(str(harness))
    settings = {**os.environ, **environment(out), "VERL_FILE_LOGGER_PATH": str(out / "log.jsonl")}
    with (tmp_path / "log").open("w") as log:
        started = subprocess.Popen(
            words, cwd=tmp_path, env=settings, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = started.wait(timeout=3600)
        finally:
            if started.poll() is None:  # Ray's processes are of the same session
                os.killpg(started.pid, signal.SIGTERM)
    assert code == 0, (tmp_path / "log").read_text()[-4000:]
    lines = [json.loads(line)["data"] for line in (out / "log.jsonl").read_text().splitlines()]
    updates = [line for line in lines if "poise/split_groups" in line]
    assert len(updates) == 2
    assert all(line["poise/split_groups"] == 0 for line in updates)
    assert all(0 < line["critic/rewards/mean"] < 1 for line in updates)  # our verifier's
    assert all(line["actor/lr"] == pytest.approx(1e-4) for line in updates)
    evaluations = [name for line in lines for name in line if name.startswith("val-")]
    assert evaluations  # held-out problems, before and after
    assert len(list((out / "rollouts").glob("*.jsonl"))) == 2
    check_both_weights(config, out, record)


def check_both_weights(config: RunConfig, out: Path, record: Path) -> None:
    """The first update's advantages, as the workers trained on them, against the native engine's:
    token weights by the policy in the model's files, then trajectory weights of every step by the
    log-probabilities that the monitor measured in it."""
    policy = load_policy(ModelConfig(name="embedded", device="cpu", dtype="float32"))
    reader = PolicyReader(policy, config.sample.temperature)
    credit = config.credit
    rows = with_native_weights(read_update(record, 1), credit.weights, credit.settings, reader)
    table = pq.read_table(record / "tokens/step_00001.parquet").to_pandas()
    (plan, *_) = map(json.loads, (record / "plans.jsonl").read_text().splitlines())
    expected, factors = list(rows), []
    for step in plan["steps"]:
        step_rows = [i for i in step if rows[i].sign]
        tokens = {i: table[table["row"] == i].sort_values("position") for i in step_rows}
        weighted = with_trajectory_weights(
            [replace(rows[i], trainer_logprobs_T=tokens[i]["old_logprob"].to_numpy())
             for i in step_rows],
            [tokens[i]["logprob"].to_numpy() for i in step_rows],
            config.update.trajectory,
        )  # fmt: skip
        for i, row in zip(step_rows, weighted, strict=True):
            expected[i] = row
            credit_T = rows[i].weights_T
            assert row.weights_T is not None
            assert credit_T is not None
            factors.append(row.weights_T[credit_T != 0] / credit_T[credit_T != 0])
    compare_advantages(read_notes(out, len(plan["steps"])), expected, atol=2e-4)
    assert len(plan["steps"]) == 4
    weights_T = np.concatenate([row.weights_T for row in rows if row.weights_T is not None])
    assert len(np.unique(weights_T.round(3))) > 4
    # Of steps after the first; by the order of verl's random uids it may be only one that has any.
    assert np.abs(np.concatenate(factors) - 1).max() > 4e-4
