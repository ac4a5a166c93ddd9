"""The tables of store/schema.py are what real runs write: every field, and no other."""

from __future__ import annotations

import itertools
import re

import pyarrow.parquet as pq
import pytest
from small_run import small_model

from counterpoise.batch.describe import PlanDescription
from counterpoise.batch.dropped_rollouts import DROP_REASONS
from counterpoise.config.load import load_config
from counterpoise.loop import train
from counterpoise.store import schema
from counterpoise.store.check.stored_files import DERIVED
from counterpoise.store.folder import RunFolder

SETS = [
    "loop.iterations=2", "loop.checkpoint_every=1", "model.device='cpu'", "task.levels=[1]",
    "task.size=40", "task.heldout=8", "sample.prompts=4", "sample.group_size=4",
    "sample.max_new_tokens=8", "batch.steps=2", "evaluate.prompts=2", "evaluate.samples=1",
    "balance.tau=0", "monitor.watch=2", "monitor.probe=4", "monitor.probe_every=1",
    "monitor.probe_through=middle_layer",
]  # fmt: skip
VARIANTS = {
    "rewards": [
        "sample.anchors=1", "sample.refills=1", 'verify.also=["equations=0.5"]', "update.kl=0.01",
        "update.kl_control=adaptive",
    ],
    "turns": [
        'task.environment="tries"', "balance.tau=0.25", "balance.target=8",
        "sample.choose=skip_settled",
    ],
}  # fmt: skip
# Only a user's reward function brings these: tests/verify/test_reward_runs.py.
OF_OWN_REWARDS = {"graded", "unscored", "logged_*", "logged", "reward_low", "reward_high"}
COUPLING = "{same,other}_token_{same,other}_query_{positive,negative}"


@pytest.fixture(scope="module", params=VARIANTS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("schema")
    options = [*SETS, *small_model(folder), *VARIANTS[request.param]]
    return train(load_config("demo", options), folder / request.param)


def expand_braces(name: str) -> list[str]:
    parts = [part.strip("{}").split(",") for part in re.split(r"({.*?})", name)]
    return ["".join(words) for words in itertools.product(*parts)]


def test_the_logs_have_the_fields_of_the_schema(run: RunFolder) -> None:
    episodes = run.read_config().task.environment != "none"
    absent = (
        {"reward_*", "anchor_success", "kl_coefficient"}
        if episodes
        else {"turns", "turn_success", "told_tokens"}
    )
    absent |= OF_OWN_REWARDS | (set() if episodes else set(schema.PROMPT_MEMORY_METRICS))
    memory = {frozenset(line) for line in run.read("memory")}
    # Only sample.choose=aligned has influences: tests/sample/test_prompt_memory.py.
    fields = frozenset({"schema", *schema.MEMORY} - {"influence"})
    assert memory == ({fields} if episodes else set())
    names = [name.replace("*", "equations") for name in schema.METRICS if name not in absent]
    for line in run.read("metrics"):
        assert set(line) - {"schema"} == set(names)
    plans, evaluations = run.read("plans"), run.read("evaluations")
    assert {frozenset(line) for line in plans} == {frozenset({"schema", *schema.PLANS})}
    assert {frozenset(line["describe"]) for line in plans} == {frozenset(schema.DESCRIPTION)}
    assert {frozenset(line) for line in evaluations} == {
        frozenset({"schema", *schema.EVALUATIONS} - OF_OWN_REWARDS)
    }
    for line in run.read("probes"):
        assert set(line) == {"schema", *schema.PROBES}
    for line in run.read("drops"):
        assert set(line) <= {"schema", *schema.DROPS}


def test_the_files_of_an_iteration_have_the_columns_of_the_schema(run: RunFolder) -> None:
    episodes = run.read_config().task.environment != "none"
    absent = {"further", "anchor", "generic_logprob"} if episodes else {"turns"}
    lines = run.read_rollouts(1)
    # Only chat data has messages (tests/model/test_chat_data.py), only an environment of the
    # user's a first message (tests/store/test_turns.py), only imports a number without tokens or
    # an advantage.
    absent |= {"messages", "first_message", "num_tokens", "advantage", *OF_OWN_REWARDS}
    assert set().union(*lines) == {"schema", *schema.ROLLOUTS} - absent
    probe_sets = [name for names in schema.PROBE_SET_COLUMNS for name in expand_braces(names)]
    expected = [*schema.TOKEN_COLUMNS, "displacement", "own", *expand_braces(COUPLING), *probe_sets]
    stored = [pq.read_schema(path).names for path in run.step_files("tokens").values()]
    assert stored
    assert all(names[:11] == expected[:11] for names in stored)
    assert all(set(names) == set(expected) for names in stored)
    for kind in ("pushes", "likely", "probes", "probe_rows", "probe_pushes"):
        assert run.step_files(kind)
        for path in run.step_files(kind).values():
            assert pq.read_schema(path).names == list(schema.STEP_FILES[kind])


def test_the_folder_has_the_files_of_the_schema(run: RunFolder) -> None:
    described = {name.partition("/")[0] for name in schema.FILES}
    assert {path.name for path in run.path.iterdir()} <= described
    (checkpoint, *_) = run.checkpoints.iterdir()
    assert {path.name for path in checkpoint.iterdir()} == set(schema.CHECKPOINT)


def test_tables_that_stand_elsewhere_too_are_the_same() -> None:
    assert tuple(schema.DESCRIPTION) == tuple(PlanDescription.__annotations__)
    assert tuple(schema.DROPS)[1:] == DROP_REASONS
    assert {f"{log}.jsonl" for log in schema.LOGS} <= set(schema.FILES)
    described = {name.partition("/")[0] for name in schema.FILES}
    assert described >= set(schema.STEP_FILES)
    assert described >= DERIVED
