"""A run file through TRL: what it is given, what it learns, and the folder it leaves."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.hosts.choose_engine import choose_engine, stored_engine
from counterpoise.hosts.trl import host
from counterpoise.hosts.trl import run as trl_run
from counterpoise.hosts.trl.run_options import (
    check_options,
    fewest_passes,
    format_arguments,
    trainer_arguments,
)
from counterpoise.lab.choose_page import write_report
from counterpoise.loop import assign_credit, make_policy_reader, train, update
from counterpoise.model.load import load_policy
from counterpoise.run.interrupts import sigterm_as_interrupt
from counterpoise.run.observer import RunObserver
from counterpoise.run.state import new_state
from counterpoise.store import checkpoint
from counterpoise.store.folder import RunFolder
from counterpoise.task.word_problems import load
from counterpoise.types import BatchPlan, Group, Rollout
from counterpoise.update.kl_penalty import with_reference_logprobs

needs_trl = pytest.mark.skipif(
    host.installed_version() is None or not host.is_supported(host.installed_version() or ""),
    reason=f"TRL {host.SUPPORTED_SERIES} is not installed: {host.INSTALL_REMEDY}",
)
SMALL = [
    "loop.iterations=2", "sample.prompts=6", "sample.group_size=4", "sample.max_new_tokens=64",
    "batch.steps=2", "balance.tau=0", "task.size=64", "task.levels=[1]", "evaluate.prompts=8",
    "evaluate.samples=2", "update.lr=3e-4", "loop.threads=1", "verify.name=exact",
]  # fmt: skip
OWN = Path(__file__).parents[3] / "examples" / "own_reward_and_composer.py"

LAUNCHED = [
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
    "-m", "counterpoise.cli", "train",
]  # fmt: skip
ON_TWO = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}


def small(*sets: str) -> RunConfig:
    return load_config("demo", [*SMALL, *sets])


def run(
    config: RunConfig, out: Path, *, resume: bool = False, observer: RunObserver | None = None
) -> RunFolder:
    from counterpoise.hosts.trl.run import train

    return train(config, out, resume=resume, observer=observer)


# -- without TRL --------------------------------------------------------------------------------


@pytest.mark.parametrize(("processes", "micro"), [(1, 20480), (1, 100), (2, 220), (3, 20480)])
def test_an_iteration_is_one_generation_in_equal_passes(processes: int, micro: int) -> None:
    config = small(f"update.micro_tokens={micro}")
    options = trainer_arguments(
        config, longest_prompt=40, half=False, cpu=True, processes=processes
    )
    rows = options["per_device_train_batch_size"] * processes
    passes, spread = options["gradient_accumulation_steps"], options["steps_per_generation"]
    assert rows * spread == 6 * 4
    assert spread == 2 * passes
    assert options["max_steps"] == 2 * 2
    fits = max(1, micro // (40 + 64))
    assert options["per_device_train_batch_size"] <= fits


def test_passes_are_the_fewest_that_fit() -> None:
    for rows in range(1, 25):
        for fits in range(1, 30):
            passes = fewest_passes(rows, rows, fits)
            assert rows % passes == 0
            assert rows // passes <= fits
            assert all(rows % n or rows // n > fits for n in range(1, passes))


def test_what_cannot_be_cut_equally_is_refused() -> None:
    odd = small("sample.prompts=5", "batch.steps=3")
    with pytest.raises(PoiseError, match=r"sample\.prompts=5 x sample\.group_size=4 in batch"):
        check_options(odd)
    with pytest.raises(PoiseError, match="on 5 processes"):
        check_options(small(), processes=5)


def test_the_arguments_can_be_read() -> None:
    text = format_arguments(small("update.clip_high=0.4", "model.device=cpu"))
    assert text.startswith("PoiseConfig(\n")
    assert "    epsilon_high=0.4,\n" in text
    assert "    use_cpu=True,\n" in text
    automatic = format_arguments(small("model.device=auto", "model.dtype=auto"))
    assert "    bf16=torch.cuda.is_available(),\n" in automatic
    assert "    use_cpu=not torch.cuda.is_available(),\n" in automatic


def test_a_folder_remembers_its_engine(tmp_path: Path) -> None:
    assert choose_engine(None, tmp_path, resume=True) == "native"
    (tmp_path / "engine.json").write_text(json.dumps({"engine": "trl"}))
    assert stored_engine(tmp_path) == "trl"
    assert choose_engine(None, tmp_path, resume=True) == "trl"
    assert choose_engine(None, tmp_path, resume=False) == "native"
    with pytest.raises(PoiseError, match="was made by --engine trl"):
        choose_engine("native", tmp_path, resume=True)
    with pytest.raises(PoiseError, match="did you mean 'verl'"):
        choose_engine("verll", None, resume=False)


def test_a_trl_that_cannot_be_imported_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL imports vLLM where it is installed, whether or not it is used."""

    class Broken(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("operator torchvision::nms does not exist\nand more")

    monkeypatch.setitem(sys.modules, "trl", Broken("trl"))
    monkeypatch.setattr(trl_run.host, "installed_version", lambda: "1.16.0")
    said = (
        r"^TRL 1\.16\.0 cannot be imported \(operator torchvision::nms does not exist\): if vLLM "
        r"is the cause, pip uninstall -y torchvision torchaudio torchcodec"
    )
    with pytest.raises(PoiseError, match=said):
        trl_run.host.require_trl()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read: Expecting value: line 1 column 1"),
        ('{"engine": "tr', "cannot be read: Unterminated string"),
        ("[]", "names no engine"),
        ('{"schema": 1}', "names no engine"),
        ('{"engine": "ray"}', "names no engine"),
    ],
)
def test_a_damaged_engine_json_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "engine.json").write_text(text)
    with pytest.raises(PoiseError) as fault:
        choose_engine(None, tmp_path, resume=True)
    assert str(fault.value).startswith(f"{tmp_path / 'engine.json'} {said}")
    assert str(fault.value).endswith("or remove it if the native engine made the run")
    assert "\n" not in str(fault.value)


def test_a_folder_that_is_taken_is_refused_before_trl_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("require_trl", "installed_version"):
        monkeypatch.delattr(trl_run.host, name)
    (tmp_path / "config.toml").touch()
    with pytest.raises(PoiseError, match="already holds a run"):
        trl_run.train(small(), tmp_path)
    (tmp_path / "finished.json").touch()
    with pytest.raises(PoiseError, match="has ended and kept no model"):
        trl_run.train(small("store.model=false"), tmp_path, resume=True)


def test_a_wrong_request_of_the_native_sampler_is_refused_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It evaluates and draws probes, whatever TRL samples with."""
    monkeypatch.setattr(trl_run.host, "require_trl", lambda: None)
    monkeypatch.setenv("POISE_DECODE_TILE", "bogus")
    with pytest.raises(PoiseError, match=r"^POISE_DECODE_TILE=bogus: give by_shape"):
        trl_run.train(small(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_where_memory_runs_out_the_size_of_a_pass_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL's passes do not shrink by themselves, and their size may change on resume."""

    def load(_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(trl_run.host, "require_trl", lambda: None)
    monkeypatch.setattr(trl_run, "load_policy", load)
    said = "^out of memory: continue with --resume and --set update.micro_tokens=N"
    with pytest.raises(PoiseError, match=said):
        trl_run.train(small(), tmp_path / "run")


def test_a_run_that_ended_while_another_loaded_keeps_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `test_alone.py` has it of the native engine; TRL itself is not reached."""
    config = small("store.model=false", "monitor.every=0", "evaluate.prompts=0")
    train(config, tmp_path / "run")
    log, real, calls = tmp_path / "run" / "metrics.jsonl", trl_run.refuse_finished, []
    before = log.read_bytes()

    def too_early(path: Path, asked: RunConfig) -> None:
        calls.append(path)
        if len(calls) > 1:
            real(path, asked)

    monkeypatch.setattr(trl_run, "refuse_finished", too_early)
    monkeypatch.setattr(trl_run.host, "require_trl", lambda: None)
    with pytest.raises(PoiseError, match="there is nothing to resume"):
        run(config, tmp_path / "run", resume=True)
    assert log.read_bytes() == before


# -- with TRL -----------------------------------------------------------------------------------


def groups_of(folder: RunFolder, iteration: int) -> list[Group]:
    result: dict[str, list[Rollout]] = {}
    for line in folder.read_rollouts(iteration):
        names = ("prompt_id", "prompt", "answer", "response", "reward", "finished")
        tokens = [np.array(line[f"{k}_tokens"], dtype=np.int32) for k in ("prompt", "response")]
        logprobs = np.array(line["sampled_logprobs"], dtype=np.float32)
        fields = {name: line[name] for name in names}
        rollout = Rollout(
            **fields, prompt_tokens=tokens[0], response_tokens=tokens[1], sampled_logprobs=logprobs
        )
        result.setdefault(line["group"], []).append(rollout)
    return [Group(key, iteration, tuple(rollouts)) for key, rollouts in result.items()]


def by_hand(config: RunConfig, folder: RunFolder) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights at first, weights after the native update of the same rollouts and plans)"""
    policy = load_policy(config.model)
    before = flat(policy.model)
    native = replace(config, update=replace(config.update, old_logprobs="sampler"))
    state = new_state(policy, native)
    for plan in folder.read("plans"):
        state.iteration = plan["iteration"] - 1
        groups = groups_of(folder, plan["iteration"])
        rows = [
            row
            for group in assign_credit(groups, native, make_policy_reader(state, native))
            for row in group
        ]
        native_plan = BatchPlan(plan["rule"], tuple(tuple(step) for step in plan["steps"]))
        rows = with_reference_logprobs(
            make_policy_reader(state, native),
            native.update,
            state.initial_weights,
            rows,
            native_plan,
        )
        update(state, rows, native_plan, native)
    return before, flat(policy.model)


def without_times(folder: RunFolder) -> list[dict[str, Any]]:
    lines = folder.read("metrics")
    return [{k: v for k, v in line.items() if "second" not in k} for line in lines]


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@needs_trl
def test_how_the_model_runs_is_said(tmp_path: Path) -> None:
    notices: list[str] = []

    class Listening(RunObserver):
        def notify(self, message: str) -> None:
            notices.append(message)

    config = small("model.path=general", "sample.max_prompt_tokens=1")  # no prompt is left
    with pytest.raises(PoiseError, match="prompt"):
        run(config, tmp_path / "run", observer=Listening())
    assert notices[0].startswith("qwen3: transformers' own forward pass (the general path)")


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize(
    "sets",
    [
        ["update.optimizer=sgd", "update.lr=0.5", "update.warmup_steps=3"],
        ["update.optimizer=sgd", "update.lr=0.5", "update.aggregate=sequence_mean",
         "update.max_grad_norm=0.02"],
        ["update.optimizer=sgd", "update.lr=0.5", "update.aggregate=constant",
         "sample.temperature=0.8", "update.micro_tokens=200"],
        ["update.optimizer=sgd", "update.lr=0.5", "update.surrogate=gspo",
         "update.clip_low=3e-4", "update.clip_high=4e-4", "update.checkpointing=true"],
        ["update.weight_decay=0.1", "update.beta2=0.95", "update.warmup_steps=3"],
        ["update.optimizer=sgd", "update.lr=0.5", "credit.weights=high_entropy",
         "credit.settings=['share=0.3']", "sample.temperature=0.8"],
        ["update.optimizer=sgd", "update.lr=0.5", "credit.weights=cancellation"],
        ["update.optimizer=sgd", "update.lr=0.5", f"verify.name={OWN}:nearness",
         f"batch.composer={OWN}:easy_first"],
        ["update.optimizer=sgd", "update.lr=0.5", "update.kl=0.5", "update.schedule=cosine",
         "update.warmup_steps=1", "update.clip_dual=1.3"],
    ],
    ids=["rise", "sequence-clip", "constant-temperature", "gspo", "adamw", "entropy", "cancel",
         "own", "kl"],
)  # fmt: skip
def test_trl_takes_the_native_steps(tmp_path: Path, sets: list[str]) -> None:
    """Rate, rise, decay, clips, average, temperature: the weights that come out are the same."""
    config = small(*sets, "evaluate.prompts=0")
    folder = run(config, tmp_path / "trl")
    assert sum(line["steps"] for line in folder.read("metrics")) == 4
    before, after = by_hand(config, folder)
    trained = load_policy(replace(config.model, name=str(tmp_path / "trl" / "model")))
    trl_values = flat(trained.model) - before
    ours = after - before
    loose = "update.weight_decay=0.1" in sets  # Adam divides by gradients that are rounding
    assert float((trl_values - ours).norm() / ours.norm()) < (0.02 if loose else 1e-3)
    assert float(ours.norm()) > 0
    if config.update.kl:
        assert [line["kl"] > 0 for line in folder.read("metrics")] == [True, True]
        without = replace(config, update=replace(config.update, kl=0.0))
        other = by_hand(without, folder)[1] - before
        assert float((other - ours).norm() / ours.norm()) > 0.01  # the KL mattered


@needs_trl
@pytest.mark.slow
def test_two_processes_take_the_native_steps(tmp_path: Path) -> None:
    """Through the command, over gloo; the first process writes the folder."""
    sets = [*SMALL, "update.optimizer=sgd", "update.lr=0.5", "evaluate.prompts=0"]
    words = [*LAUNCHED, "demo", "--engine=trl", f"--out={tmp_path / 'trl'}"]
    words += [f"--set={option}" for option in sets]
    process = subprocess.run(words, env=ON_TWO, capture_output=True, text=True, timeout=1800)
    assert process.returncode == 0, process.stderr[-3000:]
    config, folder = load_config("demo", sets), RunFolder.open(tmp_path / "trl")
    assert [line["rollouts"] for line in folder.read("metrics")] == [24, 24]
    assert all(line["split_groups"] == 0 for line in folder.read("metrics"))
    before, after = by_hand(config, folder)
    trained = load_policy(replace(config.model, name=str(tmp_path / "trl" / "model")))
    ours, trl_values = after - before, flat(trained.model) - before
    assert float((trl_values - ours).norm() / ours.norm()) < 1e-3


@needs_trl
@pytest.mark.slow
def test_the_folder_is_that_of_the_native_engine(tmp_path: Path) -> None:
    from counterpoise.loop import train

    config = small("evaluate.every=1")
    folder, native = run(config, tmp_path / "trl"), train(config, tmp_path / "native")
    ours, trl_values = native.read("metrics"), folder.read("metrics")
    assert set(trl_values[0]) == set(ours[0]) - {"score_seconds"}
    for line in trl_values:
        assert line["split_groups"] == 0
        assert line["max_abs_group_advantage_sum"] < 1e-6
        assert line["steps"] + line["skipped_steps"] == 2
        assert 0 <= line["cancellation"] <= 1
    for iteration in (1, 2):  # the same prompts, in the same order
        prompts = [
            [line["prompt_id"] for line in f.read_rollouts(iteration)] for f in (folder, native)
        ]
        assert prompts[0] == prompts[1]
    evaluations = [f.read("evaluations") for f in (folder, native)]
    assert [line["iteration"] for line in evaluations[0]] == [0, 1, 2]
    assert (
        evaluations[0][0]["mean"] == evaluations[1][0]["mean"]
    )  # before training they are one model
    names = [
        sorted(str(p.relative_to(f.path)) for p in f.path.rglob("*") if p.is_file())
        for f in (folder, native)
    ]
    assert set(names[0]) == set(names[1]) | {"engine.json"}
    assert write_report(folder.path).stat().st_size > 10_000


@needs_trl
@pytest.mark.slow
def test_a_run_can_be_taken_up(tmp_path: Path) -> None:
    """What waits for a balanced batch is in the checkpoint, and random numbers go by iteration."""
    sets = [
        "balance.tau=0.4", "balance.target=24", "loop.checkpoint_every=2", "store.tokens=false",
        "update.kl=0.05",
    ]  # fmt: skip
    whole_run = run(small(*sets, "loop.iterations=4", "monitor.every=0"), tmp_path / "whole")
    half = small(*sets, "loop.iterations=2", "monitor.every=0")
    run(half, tmp_path / "parts")
    more = replace(half, loop=replace(half.loop, iterations=4))
    resumed = run(more, tmp_path / "parts", resume=True)
    timeless = [without_times(f) for f in (whole_run, resumed)]
    assert timeless[0] == timeless[1]
    assert any(line["buffer_positive"] for line in timeless[0])
    assert whole_run.read("drops") == resumed.read("drops") != []
    dropped: dict[str, int] = {}
    for line in whole_run.read("drops"):
        for reason in set(line) - {"schema", "iteration"}:
            dropped[reason] = dropped.get(reason, 0) + sum(map(len, line[reason].values()))
    last = timeless[0][-1]
    assert dropped.get("surplus", 0) == last["dropped_surplus"]
    assert dropped.get("aged", 0) == last["dropped_aged"]
    assert dropped.get("no_signal", 0) == sum(line["rows_without_signal"] for line in timeless[0])


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("template", ["chat-boxed", "boxed"])
def test_prompts_have_the_native_tokens(tmp_path: Path, template: str) -> None:
    sets = ("loop.iterations=1", "evaluate.prompts=0", "store.report=false", "store.model=false")
    config = small(f"model.template={template}", *sets)
    folder = run(config, tmp_path / "run")
    policy = load_policy(config.model)
    for line in folder.read_rollouts(1):
        assert line["prompt_tokens"] == policy.encode(line["prompt"]).tolist()
    assert load_policy(small().model).encode("?").tolist() != policy.encode("?").tolist()


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("sets", [(), ("monitor.every=0", "store.tokens=false")])
def test_steps_without_signal_are_left_out(tmp_path: Path, sets: tuple[str, ...]) -> None:
    """Every reward is 0: nothing moves, as in the native engine, momentum or not."""
    zero_rewards = ("sample.max_new_tokens=2", "update.weight_decay=0.1", "evaluate.prompts=0")
    config = small(*zero_rewards, *sets)
    folder = run(config, tmp_path / "trl")
    lines = folder.read("metrics")
    assert [(line["steps"], line["skipped_steps"]) for line in lines] == [(0, 2), (0, 2)]
    assert all(line["grad_norm"] is line["loss"] is line["lr"] is None for line in lines)
    trained = load_policy(replace(config.model, name=str(tmp_path / "trl" / "model")))
    assert torch.equal(flat(trained.model), flat(load_policy(config.model).model))


@needs_trl
@pytest.mark.slow
def test_iterations_are_sampling_rounds_with_reward_balance_too(tmp_path: Path) -> None:
    config = small("balance.tau=0.5", "balance.target=48", "loop.iterations=3", "monitor.every=0")
    lines = run(config, tmp_path / "trl").read("metrics")
    assert [line["iteration"] for line in lines] == [1, 2, 3]
    assert lines[0]["steps"] == 0  # 24 rollouts make no batch of 48


@needs_trl
@pytest.mark.slow
def test_an_empty_buffer_still_tells_what_was_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from counterpoise.batch.buffer import RewardBalancedBuffer

    monkeypatch.setattr(RewardBalancedBuffer, "__bool__", lambda self: False, raising=False)
    config = small("balance.tau=0.5", "balance.target=480", "balance.max_age=0", "monitor.every=0")
    first, second = run(config, tmp_path / "out").read("metrics")
    assert first["dropped_aged"] == 0
    assert second["dropped_aged"] == first["buffer_positive"] + first["buffer_negative"] > 0


@needs_trl
@pytest.mark.slow
def test_a_reward_gets_the_problem_and_its_columns(tmp_path: Path) -> None:
    path, data = tmp_path / "mine.py", tmp_path / "data.jsonl"
    path.write_text(
        "def score(prompts, completions, marks):\n"
        "    return [m['worth'] * (len(c) % 2) - len(p)\n"
        "            for p, c, m in zip(prompts, completions, marks)]\n"
    )
    problems = load(levels=[1], size=16, heldout=0).train
    records = [
        {"id": k, "problem": p.problem, "answer": p.answer, "marks": {"worth": k + 0.5}}
        for k, p in enumerate(problems)
    ]
    data.write_text("\n".join(map(json.dumps, records)))
    sets = ["task.name=jsonl", f"task.path={data}", "task.heldout=4", f"verify.name={path}:score"]
    folder = run(small(*sets, "monitor.every=0"), tmp_path / "out")
    rollouts = [r for iteration in (1, 2) for r in folder.read_rollouts(iteration)]
    assert len(rollouts) == 48
    for r in rollouts:
        odd = len(r["response"]) % 2
        assert r["reward"] == (int(r["prompt_id"]) + 0.5) * odd - len(r["prompt"])
    assert len({r["reward"] for r in rollouts}) > 12


@needs_trl
@pytest.mark.slow
def test_a_reward_of_trl_logs_and_may_not_apply(tmp_path: Path) -> None:
    """The progress of the run, tokens, None, log_metric and log_extra."""
    path = tmp_path / "mine.py"
    path.write_text(
        "def score(completions, completion_ids, trainer_state, log_metric, log_extra, **kwargs):\n"
        "    log_metric('steps', trainer_state.max_steps)\n"
        "    log_extra('first', [ids[0] for ids in completion_ids])\n"
        "    lengths = map(len, completions)\n"
        "    return [None if n % 3 == 0 else 0.5 * (n % 2) for n in lengths]\n"
    )
    folder = run(small(f"verify.name={path}:score", "monitor.every=0"), tmp_path / "out")
    first, second = folder.read("metrics")
    assert first["graded"]
    assert first["logged_steps"] == second["logged_steps"] == 2 * folder.read_config().batch.steps
    rollouts = folder.read_rollouts(1)
    assert all(r["logged"]["first"] == r["response_tokens"][0] for r in rollouts)
    unscored = [math.isnan(r["reward"]) for r in rollouts]
    assert unscored == [len(r["response"]) % 3 == 0 for r in rollouts]
    assert first["unscored"] == sum(unscored) > 0
    assert "reward_low" in folder.read("evaluations")[0]


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("every", [0, 1])
def test_weights_that_are_not_finite_end_the_run_before_they_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """As `test_resume.py` has it: the last step of iteration 2 leaves one weight at infinity."""
    from counterpoise.hosts.trl.run_recorder import RunRecorder

    after = RunRecorder.after_step

    def diverging(self: RunRecorder) -> None:
        after(self)
        if self.iteration and self.iteration.number == 2 and len(self.iteration.logs) == 1:
            with torch.no_grad():
                self.state.optimizer.weights[-1].view(-1)[-1] = torch.inf

    config = small(f"monitor.every={every}", "evaluate.prompts=0", "loop.checkpoint_every=1")
    monkeypatch.setattr(RunRecorder, "after_step", diverging)
    with pytest.raises(PoiseError, match=r"^the weights are not finite after the update of iter"):
        run(config, tmp_path / "out")
    folder = RunFolder.open(tmp_path / "out")
    assert [line["iteration"] for line in folder.read("metrics")] == [1]
    assert [path.name for path in checkpoint.list_checkpoints(folder.checkpoints)] == [
        "iteration_00001"
    ]
    assert not (tmp_path / "out" / "model").exists()
    monkeypatch.setattr(RunRecorder, "after_step", after)
    run(config, tmp_path / "out", resume=True)
    assert [line["iteration"] for line in folder.read("metrics")] == [1, 2]


@needs_trl
def test_a_missing_signal_stops_before_a_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(PoiseError, match=r"cannot honour update\.surrogate=cispo"):
        run(small("update.surrogate=cispo"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@needs_trl
@pytest.mark.slow
def test_a_run_that_goes_on_is_not_resumed(tmp_path: Path) -> None:
    out, config, refused = tmp_path / "run", small("evaluate.prompts=0", "monitor.every=0"), []

    class Impatient(RunObserver):
        def on_iteration(self, record: dict[str, Any]) -> None:
            before = (out / "metrics.jsonl").read_bytes()
            with pytest.raises(PoiseError, match="being written by another process"):
                run(config, out, resume=True)
            refused.append(before == (out / "metrics.jsonl").read_bytes())

    run(config, out, observer=Impatient())
    assert refused == [True, True]
    run(config, out, resume=True)  # ended: nobody holds it


@needs_trl
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["iterated", "evaluated"])
def test_what_was_done_when_a_run_was_stopped_is_kept(
    tmp_path: Path, number: int, moment: str
) -> None:
    """In an iteration, which is finished, or while it is judged; and the run goes on as it would
    have."""
    sets = (
        "loop.checkpoint_every=1000",
        "evaluate.every=1",
        "monitor.every=0",
        "loop.iterations=3",
    )
    config, out = small(*sets, "balance.tau=0.4", "balance.target=24"), tmp_path / "stopped"
    heard = []

    class Stopping(RunObserver):
        def on_iteration(self, record: dict[str, Any]) -> None:
            if moment == "iterated":
                self.stop(record["iteration"])

        def on_evaluation(self, iteration: int, *_: Any) -> None:
            if moment == "evaluated":
                self.stop(iteration)

        def stop(self, now: int) -> None:
            if now == 2:
                heard.append(now)
                signal.raise_signal(number)

    before = signal.getsignal(signal.SIGINT)
    with sigterm_as_interrupt(), pytest.raises(KeyboardInterrupt):
        run(config, out, observer=Stopping())
    assert heard == [2]
    assert signal.getsignal(signal.SIGINT) is before
    folder = RunFolder.open(out)
    assert [path.name for path in checkpoint.list_checkpoints(folder.checkpoints)] == [
        checkpoint.folder_name(2)
    ]
    assert len(folder.read("metrics")) == 2
    run(config, out, resume=True)
    whole_run = run(config, tmp_path / "whole")
    assert without_times(folder) == without_times(whole_run)
    evaluations = [
        [(e["iteration"], e["mean"]) for e in f.read("evaluations")] for f in (folder, whole_run)
    ]
    assert evaluations[0] == evaluations[1]


@needs_trl
@pytest.mark.slow
def test_the_second_signal_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoise.run.interrupts.REPEATED_SIGNAL_SECONDS", 0.0)

    class Impatient(RunObserver):
        def on_iteration(self, record: dict[str, Any]) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("never here")

    config = small("evaluate.prompts=0", "monitor.every=0", "loop.checkpoint_every=1000")
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", observer=Impatient())
    assert checkpoint.list_checkpoints(RunFolder.open(tmp_path / "run").checkpoints) == []


@needs_trl
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc to find processes in")
@pytest.mark.parametrize("to", ["launcher", "second process"])
def test_all_processes_stop_after_the_same_iteration(tmp_path: Path, to: str) -> None:
    """The first one saves, whoever heard the signal; no other leaves before."""
    sets = ("loop.iterations=200", "loop.checkpoint_every=1000", "evaluate.prompts=0")
    out = tmp_path / "run"
    words = [*LAUNCHED, "demo", "--engine=trl", f"--out={out}"]
    words += [f"--set={option}" for option in (*SMALL, *sets, "monitor.every=0")]
    launched = subprocess.Popen(words, env=ON_TWO, stderr=subprocess.PIPE, text=True)
    metrics = out / "metrics.jsonl"
    while launched.poll() is None and not (
        metrics.exists() and metrics.read_bytes().count(b"\n") > 1
    ):
        time.sleep(0.1)
    assert launched.poll() is None, launched.stderr.read()[-3000:]
    children = Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
    assert len(children) == 2
    os.kill(launched.pid if to == "launcher" else int(children[1]), signal.SIGTERM)
    said = launched.communicate(timeout=1800)[1]
    assert launched.returncode != 0
    assert "poise: finishing the iteration" in said
    folder = RunFolder.open(out)
    behind = len(folder.read("metrics"))
    checkpoints = checkpoint.list_checkpoints(folder.checkpoints)
    assert [path.name for path in checkpoints] == [checkpoint.folder_name(behind)], said[-3000:]
    more = [*LAUNCHED, "--resume", f"--out={out}", f"--set=loop.iterations={behind + 1}"]
    process = subprocess.run(more, env=ON_TWO, capture_output=True, text=True, timeout=1800)
    assert process.returncode == 0, process.stderr[-3000:]
    assert f"resuming after iteration {behind}" in process.stdout
    lines = folder.read("metrics")
    assert [line["iteration"] for line in lines] == list(range(1, behind + 2))
