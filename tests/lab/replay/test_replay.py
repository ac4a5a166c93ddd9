"""`poise replay`: virtual updates equal the run's own, for any rollouts and any model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny
from hosts.importing.foreign import write_lines
from hosts.importing.foreign_traces import trace_record
from small_run import checksum_reward, write_model

from counterpoise.cli import token_view
from counterpoise.config.load import load_config
from counterpoise.credit.advantages import dr_grpo, grpo
from counterpoise.credit.view import PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.files import folder_lock
from counterpoise.lab.choose_page import write_report
from counterpoise.lab.credit_view.result import compare_weightings
from counterpoise.lab.credit_view.stored_iteration import read_stored_iteration
from counterpoise.lab.replay.credit import CreditChanges, credit_batch
from counterpoise.lab.replay.folder import ReplayRequest
from counterpoise.lab.replay.options import replay_config
from counterpoise.lab.replay.run import ReplayObserver, replay
from counterpoise.lab.replay.source import RolloutFolder, StoredBatch
from counterpoise.lab.replay.start import find_model
from counterpoise.loop import train
from counterpoise.model.load import EMBEDDED_FOLDER
from counterpoise.store.checksums import CHECKSUMS_FILE
from counterpoise.store.folder import RunFolder
from counterpoise.types import BatchPlan, Group, Rollout, Row

SETS = [
    "loop.iterations=4", "loop.checkpoint_every=1", "loop.keep_checkpoints=9", "model.device='cpu'",
    "task.levels=[1]", "task.size=40", "task.heldout=8", "sample.prompts=4", "sample.group_size=4",
    "sample.max_new_tokens=16", "batch.steps=2", "evaluate.prompts=0", "store.model=true",
    "update.lr=1e-3", "update.schedule='linear'", "credit.weights='cancellation'",
    "balance.tau=0.25", "balance.target=8",
]  # fmt: skip


class Listen(ReplayObserver):
    def __init__(self) -> None:
        self.notices: list[str] = []
        self.iterations: list[int] = []

    def notify(self, message: str) -> None:
        self.notices.append(message)

    def on_iteration(self, record: dict[str, Any]) -> None:
        self.iterations.append(record["iteration"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the embedded model; rewards by a checksum, so that short responses have a signal."""
    folder = tmp_path_factory.mktemp("replayed")
    train(load_config("demo", [*SETS, *checksum_reward(folder)]), folder / "run")
    return folder / "run"


def checkpoint_of(run: Path, iteration: int) -> str:
    return str(run / "checkpoints" / f"iteration_{iteration:05d}")


def read_tokens(folder: Path, iteration: int) -> dict[str, np.ndarray]:
    table = pq.read_table(folder / f"tokens/step_{iteration:05d}.parquet")
    return {name: table[name].to_numpy() for name in table.column_names}


def untimed(record: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in record.items() if not k.endswith(("_seconds", "_per_second"))}


def test_token_weights_that_are_not_stored_are_computed(run: Path, tmp_path: Path) -> None:
    """With store.tokens=false the plan has advantages only; weights of 1 would be another run."""
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "tokens")
    # Rows that waited were weighted by the policy of an earlier iteration.
    plan = RunFolder(run).read("plans")[0]
    iteration = plan["iteration"]
    model = checkpoint_of(run, iteration - 1) if iteration > 1 else "embedded"
    replay(
        ReplayRequest(tmp_path / "run", model, iterations=str(iteration), device="cpu"),
        tmp_path / "replay",
    )
    own, replayed = read_tokens(run, iteration), read_tokens(tmp_path / "replay", iteration)
    is_new_N = np.array(plan["born"])[own["row"]] == iteration
    assert len(set(own["advantage"][is_new_N])) > 8
    np.testing.assert_allclose(
        replayed["advantage"][is_new_N], own["advantage"][is_new_N], rtol=1e-5
    )


def test_steps_are_refused_where_the_stored_cut_is_replayed(run: Path, tmp_path: Path) -> None:
    request = ReplayRequest(run, "embedded", iterations="1:4", steps=3, device="cpu")
    with pytest.raises(PoiseError, match="--steps 3: the run's own cut into steps is replayed"):
        replay(request, tmp_path / "replay")
    replay(replace(request, steps=0, iterations="1"), tmp_path / "replay")  # the folder is free


def imported_copy(run: Path, out: Path, *, prompts_as_text: bool = False) -> Path:
    """The rollouts of a run as another trainer's import has them: no options, no plans."""
    (out / "rollouts").mkdir(parents=True)
    for file in (run / "rollouts").iterdir():
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            del line["sampled_logprobs"]
            if prompts_as_text:
                del line["prompt_tokens"]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (out / "rollouts" / file.name).write_text(text, encoding="utf-8")
    (out / "imported.json").write_text('{"schema": 1, "source": "test", "notes": []}')
    return out


def test_a_run_replayed_from_its_checkpoint_repeats_its_own_numbers(
    run: Path, tmp_path: Path
) -> None:
    planned = [plan["iteration"] for plan in RunFolder(run).read("plans")]
    iteration = next(number for number in reversed(planned) if number > 1)
    request = ReplayRequest(run, checkpoint_of(run, iteration - 1), iterations=str(iteration))
    out = tmp_path / "replay"
    listen = Listen()
    replay(replace(request, device="cpu"), out, listen)
    assert any("the optimizer state of that checkpoint" in notice for notice in listen.notices)
    own, replayed = read_tokens(run, iteration), read_tokens(out, iteration)
    assert own.keys() == replayed.keys()
    assert np.abs(own["displacement"]).max() > 1e-3
    assert len(set(own["advantage"])) > 8  # token weights, not one number for each rollout
    for name in own:
        np.testing.assert_array_equal(own[name], replayed[name], err_msg=name)
    (line,) = RunFolder(out).read("metrics")
    expected = next(r for r in RunFolder(run).read("metrics") if r["iteration"] == iteration)
    skipped = {"dropped_no_spread", "dropped_surplus", "dropped_aged", "buffer_positive",
               "buffer_negative", "sampling_rounds", "sampler_mismatch", "sampler_mismatch_max",
               "sampler_ratio_std"}  # fmt: skip
    for name, value in untimed(expected).items():
        if name not in skipped:
            assert line[name] == value, name
    plan = next(p for p in RunFolder(run).read("plans") if p["iteration"] == iteration)
    assert RunFolder(out).read("plans") == [plan]


def test_every_iteration_starts_from_the_same_weights(run: Path, tmp_path: Path) -> None:
    """Two copies of one iteration get equal displacements: the first update left no trace."""
    rollouts = imported_copy(run, tmp_path / "theirs")
    first = rollouts / "rollouts/step_00002.jsonl"
    for number in (1, 3, 4):
        (rollouts / f"rollouts/step_{number:05d}.jsonl").unlink()
    (rollouts / "rollouts/step_00003.jsonl").write_text(first.read_text())
    out = tmp_path / "replay"
    overrides = ("update.lr=1e-3", "loop.seed=3")
    replay(ReplayRequest(rollouts, "embedded", composer="whole", overrides=overrides), out)
    second, third = read_tokens(out, 2), read_tokens(out, 3)
    assert np.nanmean(np.abs(second["displacement"])) > 1e-3
    np.testing.assert_array_equal(second["displacement"], third["displacement"])


def test_rollouts_of_another_trainer(run: Path, tmp_path: Path) -> None:
    """Without options, plans or log-probabilities: GRPO's advantages, whole groups, and pages."""
    rollouts = imported_copy(run, tmp_path / "theirs")
    out = tmp_path / "replay"
    request = ReplayRequest(rollouts, "embedded", iterations="2:", compare=True,
                            overrides=("update.optimizer=sgd", "update.lr=0.1"))  # fmt: skip
    folder = replay(request, out)
    assert [line["iteration"] for line in folder.read("metrics")] == [2, 3, 4]
    for line in folder.read("plans"):
        assert line["describe"]["split_groups"] == 0
        assert len(line["steps"]) == 4
        sums = np.bincount(line["group"], weights=line["advantage"])
        np.testing.assert_allclose(sums, 0, atol=1e-5)
    for line in folder.read("alternatives"):
        own, grouped = line["own"], line["grouped"]
        assert own["split_groups"] == grouped["split_groups"] == 0
        # The same composer and seed: the same plan, so the very same displacement.
        assert (grouped["same_direction"], grouped["correlation"]) == (1.0, pytest.approx(1.0))
        assert grouped["flipped"] == own["flipped"]
        if "balanced" in line:
            assert min(line["balanced"]["positive_share"],
                       1 - line["balanced"]["positive_share"]) >= 0.25  # fmt: skip
    assert any("balanced" in line for line in folder.read("alternatives"))
    # Rows without signal are not trained, but have their log-probabilities and entropies.
    plan = next(p for p in folder.read("plans") if p["describe"]["rows_without_signal"])
    tokens = read_tokens(out, plan["iteration"])
    assert set(tokens["row"]) == set(range(len(plan["group"])))
    assert (tokens["entropy"] > 0).mean() > 0.9
    assert (tokens["logprob"] <= 0).all()
    no_signal = np.array(plan["advantage"])[tokens["row"]] == 0
    assert np.isnan(tokens["displacement"][no_signal]).all()
    assert not np.isnan(tokens["displacement"][~no_signal]).any()
    page = write_report(out).read_text(encoding="utf-8")
    for name in ("mosaic", "tokens", "monitor", "plans", "rollouts"):
        assert f'id="{name}"' in page, name
    pushes = pq.read_table(out / "pushes/step_00004.parquet")
    view = token_view.read_token_view(out, row=pushes["row"][0].as_py(), token=0)
    assert view.quantity.name == "displacement"
    assert view.pushes is not None
    comparison = compare_weightings("high_entropy", out, (), None, None, lambda activity: None)
    assert comparison.scored_by.startswith("replayed model")


def test_shuffled_rows_move_otherwise_than_whole_groups(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "replay"
    request = ReplayRequest(run, "embedded", iterations="2", composer="shuffled", steps=4,
                            compare=True, overrides=("update.lr=1e-4",))  # fmt: skip
    (line,) = replay(request, out).read("alternatives")
    assert line["own"]["split_groups"] > 0 == line["grouped"]["split_groups"]
    assert line["own"]["cross_advantage_ratio"] > line["grouped"]["cross_advantage_ratio"]
    assert 0.2 < line["grouped"]["correlation"] < 0.9999


def test_prompts_without_tokens_are_encoded(run: Path, tmp_path: Path) -> None:
    """With the run's own template the tokens, and so the numbers, are those of the run."""
    rollouts = imported_copy(run, tmp_path / "texts", prompts_as_text=True)
    template = load_config(run / "config.toml").model.template
    out = tmp_path / "replay"
    replay(ReplayRequest(rollouts, "embedded", iterations="1", template=template), out)
    prompts = [line["prompt_tokens"] for line in RunFolder(out).read_rollouts(1)]
    assert prompts == [line["prompt_tokens"] for line in RunFolder(run).read_rollouts(1)]


def test_a_template_that_the_tokenizer_lacks_is_answered_by_one_that_it_has(
    run: Path, tmp_path: Path
) -> None:
    request = ReplayRequest(run, "embedded", iterations="1", template="qwen-math")
    with pytest.raises(PoiseError, match=r"does not have: give --template chat$"):
        replay(request, tmp_path / "replay")


def test_a_chat_template_that_fails_is_answered_by_the_option_of_the_command(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(EMBEDDED_FOLDER, tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").write_text("{{ 1 / 0 }}", encoding="utf-8")
    rollouts = imported_copy(run, tmp_path / "texts", prompts_as_text=True)
    request = ReplayRequest(rollouts, str(tmp_path / "m"), iterations="1", template="chat")
    with pytest.raises(PoiseError, match=r"division by zero; give --template boxed$"):
        replay(request, tmp_path / "replay")


def test_stored_advantages_of_the_lines_are_taken(run: Path, tmp_path: Path) -> None:
    rollouts = imported_copy(run, tmp_path / "theirs")
    file = rollouts / "rollouts/step_00001.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    advantages = [0.5 - i % 3 for i in range(len(lines))]
    lines = [
        line | {"advantage": advantage} for line, advantage in zip(lines, advantages, strict=True)
    ]
    write_lines(file, lines)
    observer = Listen()
    replay(ReplayRequest(rollouts, "embedded", iterations="1"), tmp_path / "replay", observer)
    (plan,) = RunFolder(tmp_path / "replay").read("plans")
    assert plan["advantage"] == advantages
    assert not any("without a stored advantage" in notice for notice in observer.notices)

    # Some are missing: mixing theirs with ours would be an update that nobody made.
    write_lines(file, [line | {"advantage": None} for line in lines[:2]] + lines[2:])
    replay(ReplayRequest(rollouts, "embedded", iterations="1"), tmp_path / "partly", observer)
    (plan,) = RunFolder(tmp_path / "partly").read("plans")
    assert not set(plan["advantage"]) & set(advantages)
    assert observer.notices[-1] == (
        "iteration 1: 2 rollouts without a stored advantage, so those of all are computed from "
        "rewards (grpo)"
    )


def test_prime_rls_own_folder_is_imported_though_it_is_called_rollouts(tmp_path: Path) -> None:
    records = [trace_record("a", 1.0), trace_record("b", 0.0)]
    write_lines(tmp_path / "theirs/rollouts/step_5/train/effective/traces.jsonl", records)
    out = tmp_path / "replay"
    for source in (None, "prime-rl"):
        shutil.rmtree(out, ignore_errors=True)
        folder = replay(ReplayRequest(tmp_path / "theirs", "embedded", source=source), out)
        assert [record["iteration"] for record in folder.read("metrics")] == [5]


def test_a_second_command_meets_the_lock_before_it_touches_anything(
    run: Path, tmp_path: Path
) -> None:
    request, out = ReplayRequest(run, "embedded", iterations="1"), tmp_path / "replay"
    (out / "imported").mkdir(parents=True)  # of a replay that is importing or loading its model
    (out / "replay.json").write_text("{}", encoding="utf-8")
    with folder_lock(out), pytest.raises(PoiseError, match="being written by another process"):
        replay(request, out)
    assert (out / "imported").is_dir()
    assert (out / "replay.json").read_text(encoding="utf-8") == "{}"


def test_a_new_optimizer_has_no_warm_up(run: Path, tmp_path: Path) -> None:
    source = RolloutFolder(run)
    model = find_model(checkpoint_of(run, 2), "cpu")
    overrides = ((), ("update.optimizer=sgd",), ("update.lr=1e-4",), ("update.warmup_steps=3",))
    options = [
        replay_config(
            ReplayRequest(run, model.name, overrides=override), model, run,
            source.read(1, with_plan=True),
        ).update
        for override in overrides
    ]  # fmt: skip
    demo_warm_up = RunFolder.open(run).read_config().update.warmup_steps
    assert demo_warm_up > 0
    assert [(update.schedule, update.warmup_steps) for update in options] == [
        ("linear", demo_warm_up), ("constant", 0), ("constant", 0), ("linear", 3),
    ]  # fmt: skip


def test_rows_that_the_run_masked_count_as_rows_without_signal(run: Path, tmp_path: Path) -> None:
    masked = tmp_path / "masked"
    shutil.copytree(run, masked)
    (masked / CHECKSUMS_FILE).unlink()  # the copy's files are edited
    text = (run / "config.toml").read_text(encoding="utf-8")
    (masked / "config.toml").write_text(
        text.replace("mask_truncated = false", "mask_truncated = true"), encoding="utf-8"
    )
    with_signal = read_stored_iteration(run, 1).rows
    cut_off = with_signal[0].name
    file = masked / "rollouts/step_00001.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line["finished"] = True
    [line for line in lines if line["group"] == cut_off[0]][cut_off[1]]["finished"] = False
    write_lines(file, lines)
    without_signal = [
        replay(ReplayRequest(folder, "embedded", iterations="1"), tmp_path / f"{folder.name}-again")
        .read("metrics")[0]["rows_without_signal"]
        for folder in (run, masked)
    ]  # fmt: skip
    assert without_signal[1] == without_signal[0] + 1
    names = [row.name for row in read_stored_iteration(masked, 1).rows]
    assert names == [row.name for row in with_signal[1:]]


def test_a_run_that_masked_truncated_responses_repeats_its_own_update(tmp_path: Path) -> None:
    """Masked tokens are no part of the loss's denominator, in the run and in its replay."""
    masked, out = tmp_path / "masked", tmp_path / "replay"
    options = [
        "loop.iterations=1", "credit.weights='uniform'", "balance.tau=0", "balance.target=0",
        "sample.max_new_tokens=39", "update.mask_truncated=true", "batch.steps=1",
        "update.schedule='constant'", "update.warmup_steps=0", "update.max_grad_norm=100",
    ]  # fmt: skip
    train(load_config("demo", [*SETS, *options]), masked)
    rollouts = RunFolder(masked).read_rollouts(1)
    assert 0 < sum(not rollout["finished"] for rollout in rollouts) < len(rollouts)
    replay(ReplayRequest(masked, "embedded", iterations="1", device="cpu"), out)
    (own_line,), (line,) = (RunFolder(folder).read("metrics") for folder in (masked, out))
    assert own_line["grad_norm"] > 0
    for name in ("loss", "grad_norm", "rows_without_signal"):
        assert line[name] == own_line[name], name
    own, replayed = read_tokens(masked, 1), read_tokens(out, 1)
    trained = np.isin(replayed["row"], own["row"])  # a replay also scores rows without loss
    assert np.abs(own["displacement"]).max() > 1e-3
    for name in own:
        np.testing.assert_array_equal(own[name], replayed[name][trained], err_msg=name)
    # Without the mask, truncated responses have the advantage of their reward.
    unmasked = tmp_path / "unmasked"
    overrides = ("update.mask_truncated=false",)
    replay(ReplayRequest(masked, "embedded", device="cpu", overrides=overrides), unmasked)
    (plan,), (own_plan,) = (RunFolder(folder).read("plans") for folder in (unmasked, masked))
    rewards = np.array([rollout["reward"] for rollout in rollouts]).reshape(-1, 4)
    expected = np.concatenate([grpo(rewards_G) for rewards_G in rewards])
    is_cut = np.array([not rollout["finished"] for rollout in rollouts])
    np.testing.assert_array_equal(plan["advantage"], expected)
    np.testing.assert_array_equal(own_plan["advantage"], np.where(is_cut, 0, expected))
    assert expected[is_cut].any()
    assert plan["steps"] == own_plan["steps"]


def test_credit_that_is_set_replaces_the_stored_credit_and_keeps_the_plan(
    run: Path, tmp_path: Path
) -> None:
    """Also of rows that waited in the buffer."""
    plans = RunFolder(run).read("plans")
    plan = next(p for p in reversed(plans) if set(p["born"]) != {p["iteration"]})
    iteration = plan["iteration"]
    request = ReplayRequest(run, checkpoint_of(run, iteration - 1), iterations=str(iteration),
                            device="cpu")  # fmt: skip

    def replay_with(name: str, *overrides: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        folder = replay(replace(request, overrides=overrides), tmp_path / name)
        (replayed,) = folder.read("plans")
        for field in ("steps", "group", "index", "born"):
            assert replayed[field] == plan[field]
        return replayed, read_tokens(folder.path, iteration)

    # Other weights: the stored advantages, on every token alike.
    replayed, tokens = replay_with("uniform", "credit.weights=uniform")
    assert replayed["advantage"] == plan["advantage"]
    row_advantages = np.array(plan["advantage"], np.float32)
    np.testing.assert_array_equal(tokens["advantage"], row_advantages[tokens["row"]])
    # Another advantage, from the rewards of the iterations that sampled the rows.
    replayed, tokens = replay_with("dr_grpo", "credit.name=dr_grpo", "credit.weights=uniform")
    rewards: dict[str, list[float]] = {}
    for born in set(plan["born"]):
        for line in RunFolder(run).read_rollouts(born):
            rewards.setdefault(line["group"], []).append(line["reward"])
    advantages = {group: dr_grpo(np.array(values)) for group, values in rewards.items()}
    expected = [
        advantages[plan["groups"][number]][index]
        for number, index in zip(plan["group"], plan["index"], strict=True)
    ]
    np.testing.assert_allclose(replayed["advantage"], expected, rtol=1e-6)
    assert not np.allclose(expected, plan["advantage"])


def test_the_kl_in_the_rewards_is_part_of_advantages_that_are_computed(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    sets = [
        *SETS, *checksum_reward(tmp_path), f"model.name={tmp_path / 'model'}", "loop.iterations=2",
        "credit.weights=uniform", "balance.tau=0", "balance.target=0", "update.kl=0.1",
        "update.kl_in=reward", "update.kl_estimator=k1",
    ]  # fmt: skip
    config = load_config("demo", sets)
    train(config, tmp_path / "run")
    own = RunFolder(tmp_path / "run").read("plans")[-1]
    request = ReplayRequest(
        tmp_path / "run", checkpoint_of(tmp_path / "run", 1), iterations="2", device="cpu"
    )

    def advantages(name: str, **changes: Any) -> dict[tuple[str, int], float]:
        (plan,) = replay(replace(request, **changes), tmp_path / name).read("plans")
        return by_name(plan)

    def by_name(plan: dict[str, Any]) -> dict[tuple[str, int], float]:
        names = [plan["groups"][number] for number in plan["group"]]
        return dict(zip(zip(names, plan["index"], strict=True), plan["advantage"], strict=True))

    expected = by_name(own)
    assert advantages("anew", composer="shuffled") == pytest.approx(expected, abs=1e-5)
    without = advantages("in the loss", overrides=("update.kl_in=loss",))
    assert without != pytest.approx(expected, abs=1e-3)
    assert CreditChanges.from_options({"update.kl"}, config, {}).advantages


def test_credit_that_is_set_is_recentred_where_the_run_dropped_rows() -> None:
    tokens, logprobs = np.arange(3, dtype=np.int32), np.zeros(3, np.float32)
    rollouts = tuple(
        Rollout("p", "1 + 1 = ?", "2", "", reward, tokens[:1], tokens, logprobs)
        for reward in (1.0, 0.0, 0.0, 0.0)
    )
    group = Group("7:p", 7, rollouts)
    # Reward balance kept one row of each sign.
    kept = [Row("7:p", a, 3, index=i, rollout=rollouts[i]) for i, a in ((0, 1.0), (2, -1.0))]
    batch = StoredBatch(kept, BatchPlan("grouped", ((0, 1),)), [])
    config = load_config("demo", ["credit.name=dr_grpo", "credit.weights=uniform"])
    expected = {"group": [0.75, -0.25], "rollout": [0.5, -0.5]}
    for unit, advantages in expected.items():
        changes = CreditChanges.from_options(
            {"credit.name"}, config, {"tau": 0.25, "unit": unit, "sign": "advantage"}
        )
        rows = credit_batch(batch, [group], config, PolicyReader(tiny.policy()), changes)
        assert [row.advantage for row in rows] == advantages
    rows = credit_batch(batch, [group], config, PolicyReader(tiny.policy()), CreditChanges())
    assert [row.advantage for row in rows] == [1.0, -1.0]


def test_token_weights_of_another_trainers_rows_see_its_advantages(
    run: Path, tmp_path: Path
) -> None:
    """Signs that contradict the rewards: the filter drops tokens of the negative rows alone."""
    rollouts = imported_copy(run, tmp_path / "theirs")
    file = rollouts / "rollouts/step_00001.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    signs = np.where(np.arange(len(lines)) % 2, 1.0, -1.0)
    write_lines(
        file,
        [line | {"advantage": sign} for line, sign in zip(lines, signs.tolist(), strict=True)],
    )

    def replay_with(override: str) -> RunFolder:
        out = tmp_path / override.partition("=")[2]
        return replay(
            ReplayRequest(rollouts, "embedded", iterations="1", overrides=(override,)), out
        )

    tokens = read_tokens(replay_with("credit.weights=negative_filter").path, 1)
    is_positive = signs[tokens["row"]] > 0
    assert (tokens["advantage"][is_positive] == 1).all()
    assert set(tokens["advantage"][~is_positive]) == {0.0, -1.0}
    # An advantage that is set replaces those of the lines.
    (plan,) = replay_with("credit.name=dr_grpo").read("plans")
    rewards = np.array([line["reward"] for line in lines]).reshape(-1, 4)
    np.testing.assert_array_equal(plan["advantage"], np.concatenate(list(map(dr_grpo, rewards))))


def test_a_stopped_replay_goes_on(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = imported_copy(run, tmp_path / "theirs")
    request = ReplayRequest(rollouts, "embedded")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    replay(request, whole)
    from counterpoise.lab.replay import run as module

    real = module.write_iteration

    def stop_at_three(folder: Any, result: Any, record: Any, store: Any) -> None:
        real(folder, result, record, store)
        if record["iteration"] == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_iteration", stop_at_three)
    with pytest.raises(KeyboardInterrupt):
        replay(request, stopped)
    monkeypatch.undo()
    shutil.copy(whole / "tokens/step_00004.parquet", stopped / "tokens/step_00003.parquet")
    listen = Listen()
    replay(request, stopped, listen)
    assert listen.iterations == [3, 4]
    assert "going on after iteration 2" in listen.notices
    for number in (1, 2, 3, 4):
        for name, values in read_tokens(whole, number).items():
            np.testing.assert_array_equal(values, read_tokens(stopped, number)[name])
    logs = [RunFolder(folder).read("alternatives") for folder in (whole, stopped)]
    assert logs[0] == logs[1]
    with pytest.raises(PoiseError, match=r"begun with another --composer: none then, shuffled now"):
        replay(replace(request, composer="shuffled"), stopped)
    with pytest.raises(PoiseError, match=r"another --steps: none then, 3 now; repeat the first"):
        replay(replace(request, steps=3), stopped)
    with pytest.raises(PoiseError, match=r"another --set: none then, update\.lr=1 now"):
        replay(replace(request, overrides=("update.lr=1",)), stopped)
    with pytest.raises(PoiseError, match="written by poise replay and has nothing to train"):
        train(load_config(stopped / "config.toml"), stopped, resume=True)


def test_bad_requests_are_one_line_and_leave_the_folder_usable(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "replay"
    with pytest.raises(PoiseError, match="the rollouts are of 1-4"):
        replay(ReplayRequest(run, "embedded", iterations="7:9"), out)
    with pytest.raises(PoiseError, match="write for example 10:20"):
        replay(ReplayRequest(run, "embedded", iterations="x"), out)
    with pytest.raises(PoiseError, match=r"does not read task\.size"):
        replay(ReplayRequest(run, "embedded", overrides=("task.size=3",)), out)
    with pytest.raises(PoiseError, match="does not exist"):
        replay(ReplayRequest(tmp_path / "nowhere", "embedded"), tmp_path / "other")
    assert not (tmp_path / "other").exists()
    replay(ReplayRequest(run, "embedded", iterations="1"), out)
    assert len(RunFolder(out).read("metrics")) == 1


def test_an_adapter_and_the_general_path(run: Path, tmp_path: Path) -> None:
    """A LoRA adapter's folder repeats what its own run did; the general path agrees."""
    lora = tmp_path / "lora"
    changes = ["loop.iterations=2", "model.lora_rank=2", "balance.tau=0",
               "credit.weights='uniform'", "update.schedule='constant'"]  # fmt: skip
    train(load_config("demo", [*SETS, *checksum_reward(tmp_path), *changes]), lora)
    own = read_tokens(lora, 2)["displacement"]
    repeated = tmp_path / "repeated"
    replay(ReplayRequest(lora, checkpoint_of(lora, 1), iterations="2"), repeated)
    replayed = read_tokens(repeated, 2)["displacement"]
    np.testing.assert_array_equal(replayed[~np.isnan(replayed)], own)
    assert np.abs(own).max() > 1e-4
    adapter = tmp_path / "adapter"
    replay(ReplayRequest(run, str(lora / "model"), iterations="2", composer="whole"), adapter)
    assert np.nanmax(np.abs(read_tokens(adapter, 2)["displacement"])) > 0
    displacements = []
    for path in ("fast", "general"):
        out = tmp_path / path
        request = ReplayRequest(run, "embedded", iterations="2", composer="grouped",
                                overrides=(f"model.path={path}", "update.optimizer=sgd",
                                           "update.lr=0.5"))  # fmt: skip
        replay(request, out)
        displacements.append(read_tokens(out, 2)["displacement"])
    assert np.nanmax(np.abs(displacements[0])) > 1e-2
    np.testing.assert_allclose(*displacements, rtol=1e-4, atol=2e-5)


def test_logs_of_trl_are_imported_first(run: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    lines = RunFolder(run).read_rollouts(1)
    advantages = [0.7 * line["reward"] - 0.25 for line in lines]  # not those of GRPO
    table = {
        "step": [1] * len(lines),
        "prompt": [line["prompt"] for line in lines],
        "completion": [line["response"] for line in lines],
        "correct": [line["reward"] for line in lines],
        "advantage": advantages,
    }
    (tmp_path / "trl/completions").mkdir(parents=True)
    pq.write_table(pa.table(table), tmp_path / "trl/completions/completions_00001.parquet")
    out = tmp_path / "replay"
    listen = Listen()
    folder = replay(ReplayRequest(tmp_path / "trl", "embedded", reward="correct"), out, listen)
    assert any(notice.startswith("TRL: 1 step, 16 rollouts") for notice in listen.notices)
    stored = folder.read_rollouts(1)
    assert [line["reward"] for line in stored] == [line["reward"] for line in lines]
    assert all(line["prompt_tokens"] for line in stored)
    assert folder.read("metrics")[0]["steps"] >= 1
    plan = folder.read("plans")[0]
    assert sorted(plan["advantage"]) == sorted(advantages)


def test_the_command(run: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from counterpoise.cli import app

    out = tmp_path / "replay"
    words = ["replay", str(run), "--model", "embedded", "--iterations", "2:", "--out", str(out),
             "--composer", "shuffled", "--steps", "2", "--lr", "1e-5", "--optimizer", "sgd",
             "--micro-tokens", "512", "--device", "cpu"]  # fmt: skip
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert "every iteration starts from the same weights, embedded, with a new optimizer" in (
        result.output
    )
    assert "3/3  iteration 4" in result.output
    assert "groups split" in result.output
    config = RunFolder(out).read_config()
    assert (config.update.lr, config.update.optimizer) == (1e-5, "sgd")
    assert (config.update.micro_tokens, config.batch.composer) == (512, "shuffled")


def test_given_held_out_answers_are_followed(run: Path, tmp_path: Path) -> None:
    """Every iteration starts from the same weights, so the answers do too."""
    answers = tmp_path / "answers.jsonl"
    lines = [
        {"prompt_id": "a", "prompt": "What is 1 + 1?", "response": "It is 2.", "reward": 1},
        {"prompt_id": "b", "prompt": "What is 2 + 2?", "response": "It is 5.", "reward": 0},
    ]
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    request = ReplayRequest(
        rollouts=run, model=str(run / "model"), overrides=(f"monitor.probe_file={answers}",)
    )
    out = tmp_path / "replay"
    replay(request, out)
    tables = [pq.read_table(file) for file in sorted((out / "probes").iterdir())]
    assert len(tables) > 1
    for table in tables:
        assert table["logprob"].to_pylist() == tables[0]["logprob"].to_pylist()
        assert np.abs(table["displacement"].to_numpy()).max() > 0
    assert len(RunFolder.open(out).read("probes")) == 1
    through = (f"monitor.probe_file={answers}", "monitor.probe_through=middle_layer")
    replay(replace(request, overrides=through), tmp_path / "middle")
    (first, *_) = sorted((tmp_path / "middle" / "probe_rows").iterdir())
    assert np.abs(pq.read_table(first)["gradient_push"].to_numpy()).max() > 0
    # What the replayed run measured its own answers through is no choice of the replay's.
    request_of_replay = ReplayRequest(
        rollouts=tmp_path / "middle", model=str(run / "model"), overrides=request.overrides
    )
    replay(request_of_replay, tmp_path / "plain")
    (first, *_) = sorted((tmp_path / "plain" / "probe_rows").iterdir())
    assert "gradient_push" not in pq.read_table(first).column_names
    with pytest.raises(PoiseError, match=r"a virtual update does not read monitor\.probe;"):
        replay(replace(request, overrides=("monitor.probe=4",)), tmp_path / "refused")
