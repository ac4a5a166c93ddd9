"""Functions of the user's: found, pinned to their file's content, and the same to a run's end."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from counterpoise import plugins
from counterpoise.batch.compose import compose
from counterpoise.config.load import config_from_tables, load_config, to_toml
from counterpoise.errors import PoiseError
from counterpoise.lab.choose_page import write_report
from counterpoise.loop import train
from counterpoise.report.panels.mosaic import compact_plan
from counterpoise.run.estimate import describe_run
from counterpoise.run.try_plugins import check_plugins, try_plugins
from counterpoise.sample.build_groups import build_groups
from counterpoise.store.folder import RunFolder
from counterpoise.store.resume import load_config_to_resume
from counterpoise.task.load import load_run_task
from counterpoise.task.word_problems import load
from counterpoise.types import Prompt, Response, Row
from counterpoise.variants import ADVANTAGES, COMPOSERS, VERIFIERS
from counterpoise.verify.math.boxed import extract_boxed
from counterpoise.verify.scores import score_responses

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_reward_and_composer.py"
SCORE = "def score(responses, answers):\n    return [{} for _ in responses]\n"
SMALL = [
    "loop.iterations=2", "loop.checkpoint_every=1", "model.device='cpu'", "task.levels=[1]",
    "task.size=16", "task.heldout=4", "sample.prompts=4", "sample.group_size=4",
    "sample.max_new_tokens=48", "balance.target=8", "batch.steps=2", "evaluate.prompts=2",
    "evaluate.samples=1",
]  # fmt: skip


def written(path: Path, reward: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(SCORE.format(reward))
    return path


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:16]


def rewards(name: str) -> list[float]:
    return VERIFIERS.load(name)(5.0, 2).score(["a", "b"], ["1", "2"]).rewards


# -- names ------------------------------------------------------------------------------------


def test_a_run_file_means_the_file_beside_it_and_a_set_the_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, here = written(tmp_path / "runs/mine.py", 1), written(tmp_path / "here/mine.py", 2)
    run = tmp_path / "runs/run.toml"
    run.write_text('[verify]\nname = "mine.py:score"\n')
    monkeypatch.chdir(tmp_path / "here")
    assert load_config(run).verify.name == f"{beside}:score@{digest(beside)}"
    by_set = load_config(run, ["verify.name=mine.py:score"]).verify.name
    assert by_set == f"{here}:score@{digest(here)}"
    beside.unlink()
    assert load_config(run).verify.name == by_set


def test_a_stored_run_is_read_without_its_file(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", 1)
    config = config_from_tables({"verify": {"name": f"{path}:score"}})
    stored = tmp_path / "config.toml"
    stored.write_text(to_toml(config))
    path.unlink()
    assert load_config(stored) == config
    with pytest.raises(PoiseError, match=r"mine\.py cannot be read: No such file or directory$"):
        check_plugins(config)


def test_a_module_is_found_as_python_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "poise_test_package/rewards.py", 7)
    (tmp_path / "poise_test_package/broken.py").write_text("\nimport no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = config_from_tables({"verify": {"name": "poise_test_package.rewards:score"}}).verify.name
    found = digest(tmp_path / "poise_test_package/rewards.py")
    assert name == f"poise_test_package.rewards:score@{found}"
    assert rewards(name) == [7.0, 7.0]
    with pytest.raises(PoiseError, match=r"broken\.py:2: ModuleNotFoundError: No module named"):
        VERIFIERS.load("poise_test_package.broken:score")
    with pytest.raises(PoiseError, match=r"finds no module 'poise_test_package\.other'"):
        VERIFIERS.load("poise_test_package.other:score")


def test_what_a_package_lacks_is_not_taken_for_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "poise_test_needs").mkdir()
    (tmp_path / "poise_test_needs/__init__.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PoiseError, match="ModuleNotFoundError: No module named 'no_such_module'"):
        plugins.pin_plugin("poise_test_needs.rewards:score", Path())


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("/home/ana/my_rewards.py:score@1f0c6a2b9d3e4f50", "my_rewards.py:score"),
        ("../my_rewards.py:score", "my_rewards.py:score"),
        ("package.rewards:score@1f0c6a2b9d3e4f50", "package.rewards:score"),
        ("grouped", "grouped"),
    ],
)
def test_people_read_the_file_and_the_function(name: str, wanted: str) -> None:
    assert plugins.display_name(name) == wanted


def test_only_tables_that_say_so_take_them() -> None:
    assert VERIFIERS.choices == (*VERIFIERS, "FILE.py:FUNCTION")
    assert ADVANTAGES.choices == tuple(ADVANTAGES)
    with pytest.raises(PoiseError, match=r"^unknown credit"):
        ADVANTAGES.load(f"{EXAMPLE}:nearness")


# -- the same function to the end -------------------------------------------------------------


def test_an_edit_does_not_reach_a_run_that_goes_on(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", 1)
    pinned = plugins.pin_plugin("mine.py:score", tmp_path)
    for name in (pinned, f"{path}:score"):
        assert rewards(name) == [1.0, 1.0]
    written(path, 2)
    for name in (pinned, f"{path}:score"):
        assert rewards(name) == [1.0, 1.0]


def test_a_file_that_has_changed_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", 1)
    pinned, before = plugins.pin_plugin("mine.py:score", tmp_path), digest(path)
    written(path, 2)
    with pytest.raises(PoiseError) as fault:
        VERIFIERS.load(pinned)
    assert str(fault.value) == (
        f"{path} has changed since the run began (its sha256 was {before}..., now it is "
        f"{digest(path)}...): restore the file, start a new --out, discard the run with its "
        f"run file and --resume --from-start, or remove @{before} from "
        "the run's config.toml to continue with the new version"
    )


def test_a_file_is_run_once_for_both_functions_and_may_hold_dataclasses(tmp_path: Path) -> None:
    path = tmp_path / "both.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Seen:\n    times: int = 0\n"
        "seen = Seen()\n"
        "def score(responses, answers):\n    seen.times += 1\n    return [0.0] * len(responses)\n"
        "def rule(rows, num_steps, seed):\n    return [[seen.times]]\n"
    )
    assert rewards(f"{path}:score") == [0.0, 0.0]
    rows = [Row("a", 1.0, 3), Row("a", -1.0, 3)]
    assert COMPOSERS.load(f"{path}:rule")(rows, 1, 0) == [[1]]
    assert not (tmp_path / "__pycache__").exists()


def test_an_async_composer_is_refused_before_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "later.py"
    path.write_text("async def rule(rows, num_steps, seed):\n    return []\n")
    with pytest.raises(PoiseError) as fault:
        COMPOSERS.load(f"{path}:rule")
    assert str(fault.value) == f"{path}: rule is an `async def`: write a plain `def`"


def test_a_message_of_ours_is_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "ours.py"
    path.write_text(
        "from counterpoise.batch.grouped import compose\n"
        "def rule(rows, num_steps, seed):\n    return compose(rows, num_steps, seed)\n"
    )
    with pytest.raises(PoiseError, match=r"^1 whole group cannot fill 2 steps"):
        compose(f"{path}:rule", [Row("a", 1.0, 3), Row("a", -1.0, 3)], 2, seed=0)


# -- a run ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(the file, the folder) of a run with the example's reward and composer."""
    folder = tmp_path_factory.mktemp("own")
    path = folder / "mine.py"
    path.write_text(EXAMPLE.read_text())
    sets = [*SMALL, f"verify.name={path}:nearness", f"batch.composer={path}:easy_first"]
    train(load_config("demo", sets), folder / "run")
    return path, folder / "run"


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_example_trains(run: tuple[Path, Path]) -> None:
    path, out = run
    metrics, plans = lines(out / "metrics.jsonl"), lines(out / "plans.jsonl")
    rollouts = [r for file in sorted(out.glob("rollouts/*")) for r in lines(file)]
    assert len(rollouts) == 2 * 16
    graded = [r["reward"] for r in rollouts]
    assert max(graded) == 1.0
    assert min(graded) == -1.0
    assert any(-1 < reward < 0 for reward in graded)
    for record, part in zip(metrics, (graded[:16], graded[16:]), strict=True):
        assert record["reward"] == pytest.approx(sum(part) / 16)
        assert record["success"] == sum(reward > 0 for reward in part) / 16
    assert {plan["rule"] for plan in plans} == {f"{path}:easy_first@{digest(path)}"}
    for plan in plans:
        assert plan["describe"]["split_groups"] == 0
        assert plan["describe"]["max_abs_group_advantage_sum"] < 1e-6
    for record in lines(out / "evaluations.jsonl"):
        assert 2 * record["mean"] - 1 <= record["reward"] <= record["mean"]  # wrong: -1 to 0
        assert 0 <= record["low"] <= record["mean"] <= record["high"] <= 1


def test_its_page_and_its_dry_run_say_no_folder_and_no_pin(run: tuple[Path, Path]) -> None:
    path, out = run
    config = RunFolder.open(out).read_config()
    assert "2 optimizer steps (mine.py:easy_first)" in describe_run(config)
    page = write_report(out).read_text(encoding="utf-8")
    told, _, file = page.partition("config.toml, resolved")
    assert "The composer <b>mine.py:easy_first</b> divides a batch" in told
    assert "How the composer mine.py:easy_first divided each batch into optimizer steps." in told
    assert "Rewards come from <b>mine.py:nearness</b>; they are graded" in told
    assert "Share of prompts whose responses did not all get the same reward." in told
    assert "<code>&#34;mine.py:nearness&#34;</code>" in told
    assert str(path) not in told
    assert f"{path}:nearness@{digest(path)}" in file  # as it is stored
    plans = RunFolder.open(out).read("plans")
    assert {compact_plan(plan)["rule"] for plan in plans} == {"mine.py:easy_first"}


def test_it_is_resumed_with_the_same_file_only(run: tuple[Path, Path]) -> None:
    path, out = run
    before = path.read_text()
    config = load_config_to_resume(out, None, ["loop.iterations=3"])
    check_plugins(config)
    path.write_text(before + "\n")
    try:
        sets = [*SMALL, f"verify.name={path}:nearness", f"batch.composer={path}:easy_first"]
        said = rf"with verify\.name='.*mine\.py:nearness@\w+', not '.*:nearness@{digest(path)}'"
        with pytest.raises(PoiseError, match=said):
            load_config_to_resume(out, load_config("demo", sets), [])
        # to go on with the new file is to strike out what stands behind the @
        stored = (out / "config.toml").read_text()
        struck = out.with_name("struck.toml")
        struck.write_text(re.sub(r"@\w{16}\"", '"', stored))
        assert load_config(struck).verify.name == f"{path}:nearness@{digest(path)}"
    finally:
        path.write_text(before)
    train(config, out, resume=True)
    assert [line["iteration"] for line in lines(out / "metrics.jsonl")] == [1, 2, 3]


def test_a_composer_that_is_gone_is_missed_before_anything_is_written(tmp_path: Path) -> None:
    """Also where no command has looked for it: `loop.train`, and so `poise demo`."""
    path = tmp_path / "mine.py"
    path.write_text("def rule(rows):\n    return []\n")
    config = load_config("demo", [*SMALL, f"batch.composer={path}:rule"])
    with pytest.raises(PoiseError, match=r"cannot be called as rule\(rows, num_steps, seed\)"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- the dry run ------------------------------------------------------------------------------


def test_a_dry_run_tries_both() -> None:
    sets = [f"verify.name={EXAMPLE}:nearness", f"batch.composer={EXAMPLE}:easy_first"]
    assert try_plugins(load_config("demo", sets)) == [
        f"#   own reward     {EXAMPLE.name}:nearness: 1 for the answer in a box, -1 for an empty "
        "response",
        f"#   own composer   {EXAMPLE.name}:easy_first: steps of 32, 32, 32, 32 rows",
    ]
    assert try_plugins(load_config("demo")) == []


def test_a_dry_run_has_rollouts_where_the_run_has_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def rule(rows, num_steps, seed):\n"
        "    right = [i for i, row in enumerate(rows) if row.rollout.response == '\\\\boxed{2}']\n"
        "    wrong = [i for i, row in enumerate(rows) if row.rollout.reward == 0]\n"
        "    for row in rows:\n"
        "        r = row.rollout\n"
        "        assert len(r.response_tokens) == len(r.sampled_logprobs) == row.num_tokens\n"
        "    return [right, wrong]\n"
    )
    config = load_config("demo", [f"batch.composer={path}:rule", "batch.steps=2"])
    assert try_plugins(config) == ["#   own composer   mine.py:rule: steps of 64, 64 rows"]
    with pytest.raises(PoiseError) as fault:
        try_plugins(config, "trl")
    assert str(fault.value) == (
        f"{path}:2: AttributeError: 'NoneType' object has no attribute 'response' (here "
        "row.rollout is None: TRL does not expose rollouts, and a file without response_tokens has "
        "none)"
    )


def test_a_dry_run_tells_a_reward_that_is_always_the_same(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", 0)
    assert try_plugins(load_config("demo", [f"verify.name={path}:score"])) == [
        "#   own reward     mine.py:score: 0 for the answer in a box, 0 for an empty response; "
        "WARNING: these are equal, and a group with equal rewards trains nothing"
    ]


def test_a_dry_run_tells_a_reward_that_never_applies(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(completion): return None")
    sets = [f"verify.name={tmp_path}/mine.py:score", "verify.reward_timeout_seconds=0"]
    (line,) = try_plugins(load_config("demo", sets))
    assert "no reward for an empty response; WARNING: these are equal" in line


@pytest.mark.parametrize("task", ["task.name=hub", "task.name=jsonl"])
def test_a_dry_run_fetches_nothing(task: str) -> None:
    config = load_config("demo", [task, "task.path=no/such", f"verify.name={EXAMPLE}:nearness"])
    assert try_plugins(config) == [
        f"#   own reward     {EXAMPLE.name}:nearness: not tried: "
        "the problems are not on this machine"
    ]


# -- what a reward asks for, and rewards beside it --------------------------------------------

FACTS = """
from counterpoise.verify.math.boxed import extract_boxed

def score(prompts, responses, facts):
    return [f["scale"] * (1 if extract_boxed(r) == str(f["gold"]) else -1)
            for r, f in zip(responses, facts, strict=True)]

def length(completions, prompts, **_):
    return [len(c) / len(p) for c, p in zip(completions, prompts, strict=True)]
"""


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(the folder, its run): a reward that reads a column, and one beside it, in episodes."""
    folder = tmp_path_factory.mktemp("asking")
    (folder / "mine.py").write_text(FACTS)
    problems = load(levels=[1], size=16, heldout=0).train
    records = [
        {"id": p.id, "problem": p.problem, "answer": "?", "facts": {"gold": p.answer, "scale": 0.5}}
        for p in problems
    ]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, records)))
    (folder / "run.toml").write_text(
        f'[task]\nname = "jsonl"\npath = "{folder}/data.jsonl"\nenvironment = "tries"\n'
        '[verify]\nname = "mine.py:score"\nalso = ["mine.py:length=0.1", "equations"]\n'
    )
    sets = [each for each in SMALL if not each.startswith("balance")]
    train(load_config(folder / "run.toml", sets), folder / "run")
    return folder, folder / "run"


def test_rewards_get_the_columns_and_the_problem(asking: tuple[Path, Path]) -> None:
    folder, out = asking
    gold = {r["id"]: r["facts"]["gold"] for r in lines(folder / "data.jsonl")}
    rollouts = [r for file in sorted(out.glob("rollouts/*")) for r in lines(file)]
    for r in rollouts:
        right = extract_boxed(r["response"]) == gold[r["prompt_id"]]
        assert r["reward"] == (0.5 if right else -0.5)
        assert set(r["further"]) == {"mine.py:length", "equations"}
        assert r["further"]["mine.py:length"] == len(r["response"]) / len(r["prompt"])
        assert "facts" not in json.dumps(r)
    assert {r["reward"] for r in rollouts} == {0.5, -0.5}
    first, records = rollouts[:16], lines(out / "metrics.jsonl")
    mean = sum(r["further"]["mine.py:length"] for r in first) / 16
    assert records[0]["reward_mine.py:length"] == pytest.approx(mean)
    for record in lines(out / "evaluations.jsonl"):
        assert record["reward"] == record["mean"] - 0.5


def test_rewards_beside_the_verifier_are_pinned(asking: tuple[Path, Path]) -> None:
    folder, out = asking
    path, config = folder / "mine.py", RunFolder.open(out).read_config()
    pinned = f"{path}:length@{digest(path)}=0.1"
    assert config.verify.also == [pinned, "equations"]
    page = write_report(out).read_text(encoding="utf-8")
    assert "<code>[&#34;mine.py:length=0.1&#34;, &#34;equations&#34;]</code>" in page
    train(load_config_to_resume(out, None, ["loop.iterations=3"]), out, resume=True)
    assert [line["iteration"] for line in lines(out / "metrics.jsonl")] == [1, 2, 3]
    other = written(folder / "other.py", 1)
    changed = load_config("demo", [f"verify.also=['{other}:score=2']"])
    written(other, 2)
    with pytest.raises(PoiseError, match=r"other\.py has changed since the run began"):
        check_plugins(changed)


def test_a_dry_run_tries_all_of_them(asking: tuple[Path, Path]) -> None:
    folder, _ = asking
    config = load_config(folder / "run.toml")
    first = json.loads((folder / "data.jsonl").read_text().splitlines()[0])
    ratio = f"{len(chr(92) + 'boxed{?}') / len(first['problem']):g}"
    assert try_plugins(config) == [
        "#   own reward     mine.py:score: -0.5 for the answer in a box, -0.5 for an empty "
        "response; WARNING: these are equal, and a group with equal rewards trains nothing",
        f"#   own reward     mine.py:length: {ratio} for the answer in a box, 0 for an empty "
        "response (TRL's signature, called once for each batch)",
    ]


def test_a_reward_beside_the_verifier_may_be_always_the_same(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", 0.5)
    assert try_plugins(load_config("demo", [f"verify.also=['{path}:score=2']"])) == [
        "#   own reward     mine.py:score: 0.5 for the answer in a box, 0.5 for an empty response"
    ]


def test_a_dry_run_says_which_parameter_holds_the_answers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def score(responses, tests):\n    return [float(t in r) for r, t in zip(responses, tests)]"
    )
    assert try_plugins(load_config("demo", [f"verify.name={tmp_path}/mine.py:score"])) == [
        "#   own reward     mine.py:score: 1 for the answer in a box, 0 for an empty response "
        "(its argument `tests` receives the answers)"
    ]


def test_rollouts_hold_their_problems_columns_and_no_copies(asking: tuple[Path, Path]) -> None:
    task = load_run_task(load_config(asking[0] / "run.toml", ["task.heldout=4"]))
    assert all(p.columns["facts"] for p in (*task.train, *task.heldout))
    tokens = np.array([1], dtype=np.int32)
    answered = Response(tokens, np.zeros(1, np.float32), "", finished=True)
    prompt = task.train[0]
    (group,) = build_groups([(prompt, tokens)], [[answered] * 2], [0.0, 1.0], iteration=1)
    assert all(rollout.columns is prompt.columns for rollout in group.rollouts)
    assert group.rollouts[0].problem == prompt


def test_the_example_counts_the_numbers_of_the_problem(asking: tuple[Path, Path]) -> None:
    prompt = Prompt("1", "Ana has 3 pens and 12 books.", "15")
    verifier = VERIFIERS.load(f"{EXAMPLE}:numbers_used")()
    rewards = score_responses(verifier, ["3 + 12 = 15", "3 pens", "123"], [prompt] * 3).rewards
    assert rewards == [1.0, 0.5, 0.0]
