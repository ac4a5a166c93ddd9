"""Tasks of the package `verifiers`, with their own rewards: the real package, and a taskset of
ours."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.hosts.verl.run_options import OPTIONS
from counterpoise.loop import train
from counterpoise.task import verifiers_tasks
from counterpoise.task.columns import FieldOptions
from counterpoise.task.load import load_run_task
from counterpoise.types import Prompt
from counterpoise.variants import VERIFIERS
from counterpoise.verify.scores import score_responses
from counterpoise.verify.verifiers_tasks import DATA_COLUMN, load_taskset

TASKSET = """
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumState(vf.State):
    looked: int = 0


class SumTask(vf.Task[SumData, SumState]):
    @vf.reward(weight=2.0)
    async def right(self, task, trace) -> float:
        assert task is trace.task.data
        trace.state.looked += 1
        return float(task.answer in trace.last_reply)

    @vf.reward
    async def polite(self, trace) -> float:
        assert [message.role for message in trace.messages] == ["system", "user", "assistant"]
        return -0.5 * ("!" in trace.last_reply)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class SumTaskset(vf.Taskset[SumTask]):
    def load(self):
        for n in range(1, 41):
            data = SumData(
                prompt=f"Ana has {n} pens. She buys 1 pen. How many pens has she?",
                system_prompt="The answer is a number.", answer=str(n + 1), id=f"sum-{n}",
            )
            yield SumTask(data, self.config.task)


__all__ = ["SumTaskset"]
"""
UNFIT = {  # a change of the taskset, and what its tasks then need
    "tools": ("    @vf.metric\n", "    @classmethod\n    def toolsets(cls, config):\n"
              "        return [object()]\n\n    @vf.metric\n"),
    "a container": ("    @vf.metric\n", "    NEEDS_CONTAINER = True\n\n    @vf.metric\n"),
    "a runtime": ("async def polite(self, trace)", "async def polite(self, trace, runtime)"),
    "a user who opens the conversation": (
        'prompt=f"Ana has {n} pens. She buys 1 pen. How many pens has she?"', "prompt=None"
    ),
}  # fmt: skip
SETS = [
    "task.name=verifiers", "verify.name=verifiers", "task.heldout=4", "model.device=cpu",
    "loop.iterations=1", "sample.prompts=4", "sample.group_size=4", "sample.max_new_tokens=48",
    "balance.tau=0", "batch.steps=1", "evaluate.prompts=4", "evaluate.samples=1",
    "store.report=false",
]  # fmt: skip


def write_taskset(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, text: str = TASKSET
) -> str:
    pytest.importorskip(
        "verifiers.v1", reason="verifiers is not installed: pip install 'counterpoise[verifiers]'"
    )
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    load_taskset.cache_clear()
    return f"task.path={name.replace('_', '-')}"


def test_prompts_and_rewards_are_the_taskset_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_taskset(tmp_path, "sums_v1", monkeypatch)
    task = load_run_task(load_config("demo", [*SETS, path, "task.size=12"]))
    assert (len(task.train), len(task.heldout)) == (8, 4)
    first = task.train[0]
    assert first.id.startswith("sum-")
    assert [message.role for message in first.messages] == ["system", "user"]
    assert first.problem.startswith("Ana has ")
    gold = first.columns["answer"]
    scores = score_responses(
        VERIFIERS.load("verifiers")(5.0, 2), [gold, f"{gold}!", "none"], [first] * 3
    )
    assert scores.rewards == [2.0, 1.5, 0.0]
    assert scores.graded
    assert scores.logged == [
        {"length": len(gold)}, {"length": len(gold) + 1}, {"length": 4}
    ]  # fmt: skip


def test_a_run_trains_on_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_taskset(tmp_path, "sums_v1", monkeypatch)
    run = train(load_config("demo", [*SETS, path]), tmp_path / "run")
    (line,) = run.read("metrics")
    rollouts = run.read_rollouts(1)
    assert {rollout["reward"] for rollout in rollouts} <= {-0.5, 0.0, 1.5, 2.0}
    assert line["reward"] == pytest.approx(sum(each["reward"] for each in rollouts) / 16)
    assert line["logged_length"] > 0
    assert len(run.read("evaluations")) == 2


def test_answers_are_read_for_other_verifiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_taskset(tmp_path, "sums_v1", monkeypatch)
    sets = [*SETS, path, "verify.name=exact"]
    assert {prompt.answer for prompt in load_run_task(load_config("demo", sets)).train} <= {
        str(n) for n in range(2, 42)
    }
    with pytest.raises(PoiseError, match=r"in a field 'gold': set verify.name=verifiers"):
        load_run_task(load_config("demo", [*sets, "task.answer_field=gold"]))


@pytest.mark.parametrize("need", UNFIT)
def test_tasks_that_need_more_are_refused(
    need: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "unfit_" + need.replace(" ", "_")
    path = write_taskset(tmp_path, name, monkeypatch, TASKSET.replace(*UNFIT[need]))
    with pytest.raises(PoiseError, match=f"its tasks need {need}, and only a prompt and a resp"):
        load_run_task(load_config("demo", [*SETS, path]))


def test_a_reward_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TASKSET.replace("return float(task.answer in", "raise KeyError('gold')  #")
    path = write_taskset(tmp_path, "failing_v1", monkeypatch, text)
    first = load_run_task(load_config("demo", [*SETS, path])).train[0]
    with pytest.raises(PoiseError, match=r"failing-v1: a reward failed for sum-\d+: .*gold"):
        score_responses(VERIFIERS.load("verifiers")(5.0, 2), ["1"], [first])


def test_an_unknown_taskset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_taskset(tmp_path, "sums_v1", monkeypatch)
    with pytest.raises(PoiseError, match=r"task.path=no-such: taskset 'no-such' not found"):
        load_run_task(load_config("demo", [*SETS, "task.path=no-such"]))


# -- without the package ------------------------------------------------------------------------


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    load_taskset.cache_clear()
    with pytest.raises(PoiseError, match=r"pip install 'counterpoise\[verifiers\]'"):
        load_run_task(load_config("demo", [*SETS, "task.path=sums-v1"]))
    with pytest.raises(PoiseError, match=r"needs the name of a taskset: set task\.path"):
        load_run_task(load_config("demo", SETS))


def test_fields_of_tasks_are_read_like_columns_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """None instead of a missing column, JSON for lists, and repeats of held-out texts counted."""

    @dataclass
    class Data:
        idx: int
        prompt: str
        answer: list[str]
        id: str = ""
        system_prompt: str | None = None
        hint: str | None = None

        def model_dump(self, mode: str, exclude_none: bool = False) -> dict[str, object]:
            return {k: v for k, v in asdict(self).items() if v is not None or not exclude_none}

    class Taskset:
        def take(self, size: int) -> list[SimpleNamespace]:
            rows = [(k % 3, ["1", "2"]) for k in range(6)]
            return [
                SimpleNamespace(data=Data(idx=k, prompt=f"{number}?", answer=answers))
                for k, (number, answers) in enumerate(rows)
            ][:size]

    monkeypatch.setattr(verifiers_tasks, "load_taskset", lambda name: Taskset())
    monkeypatch.setattr(verifiers_tasks, "check_text_only", lambda task, name: None)
    free = FieldOptions(answers_required=False)
    task = verifiers_tasks.load("made-up", heldout=1, fields=free)
    assert (len(task.train), len(task.heldout), task.repeats) == (4, 1, 1)
    prompt = task.train[0]
    assert prompt.answer == '["1", "2"]'
    assert prompt.columns["hint"] is None
    assert "hint" not in prompt.columns[DATA_COLUMN]
    with pytest.raises(PoiseError, match=r"made-up has no text or number in a field 'answer'"):
        verifiers_tasks.load("made-up", fields=FieldOptions())
    with pytest.raises(PoiseError, match=r"unknown column 'hints': did you mean 'hint'"):
        verifiers_tasks.load("made-up", fields=replace(free, needed_columns=("hints",)))


def test_verl_refuses_them() -> None:
    assert not OPTIONS["verify.name"].honours("verifiers")
    assert OPTIONS["verify.name"].honours("math")


def test_other_problems_are_not_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "verifiers.v1", reason="verifiers is not installed: pip install 'counterpoise[verifiers]'"
    )
    with pytest.raises(PoiseError, match=r"problem '1' is none: set task.name=verifiers"):
        score_responses(VERIFIERS.load("verifiers")(5.0, 2), ["1"], [Prompt("1", "?", "1")])
