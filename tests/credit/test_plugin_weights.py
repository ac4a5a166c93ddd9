"""Token weights by a user's function: what it gets, what it may return, and a run with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
from report.synthetic import write_run

import counterpoise as poise
from counterpoise.config.load import load_config, to_toml
from counterpoise.credit.assign import with_token_weights
from counterpoise.credit.plugin_weights import WEIGHT_INPUTS, PluginWeights
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.hosts.trl.run_options import check_options
from counterpoise.hosts.verl.run_options import OPTIONS as VERL_OPTIONS
from counterpoise.lab.credit_view.result import compare_weightings
from counterpoise.loop import train
from counterpoise.run.try_plugins import check_plugins, make_trial_inputs, try_plugins
from counterpoise.store.resume import load_config_to_resume
from counterpoise.types import Row

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_token_weights.py"
ONES = "[[1.0] * len(t) for t in tokens]"
SMALL = [
    "loop.iterations=1", "loop.checkpoint_every=1", "model.device='cpu'", "task.levels=[1]",
    "task.size=16", "task.heldout=2", "sample.prompts=3", "sample.group_size=4",
    "sample.max_new_tokens=40", "balance.tau=0", "batch.steps=2", "evaluate.prompts=0",
]  # fmt: skip


def plugin(tmp_path: Path, returned: str, parameters: str = "tokens") -> str:
    path = tmp_path / "mine.py"
    path.write_text(f"import numpy as np\ndef weigh({parameters}):\n    return {returned}\n")
    return f"{path}:weigh"


def view() -> CreditView:
    return CreditView(tiny.rows(groups=2, size=4, seed=1), PolicyReader(tiny.policy()))


# -- what it gets -----------------------------------------------------------------------------


def test_every_input_has_its_shape(tmp_path: Path) -> None:
    """The values of a run and the invented ones of the trial agree in names and shapes."""
    seen = view()
    lengths = [row.num_tokens for row in seen.rows]
    values = {name: read(seen) for name, read in WEIGHT_INPUTS.items()}
    trial = make_trial_inputs(seen.rows)
    assert set(WEIGHT_INPUTS) < set(trial)
    for made in (values, trial):
        for name in ("tokens", "positions", "logprobs", "entropies", "pieces"):
            assert [len(row) for row in made[name]] == lengths
        assert [hidden.shape[0] for hidden in made["hidden"]] == lengths
        assert made["hidden"][0].shape[1] == made["unembedding"].shape[1]
        for name in ("advantages", "rewards", "groups", "texts", "prompts", "answers"):
            assert len(made[name]) == len(lengths)
    assert values["groups"].tolist() == trial["groups"].tolist()
    assert values["advantages"].tolist() == [row.advantage for row in seen.rows]


def test_surprise_of_the_example_by_hand() -> None:
    surprise = PluginWeights(f"{EXAMPLE}:surprise")
    seen = view()
    (credited,) = with_token_weights([seen.rows], surprise, {"cap": 1.5}, seen.reader)
    mean = -np.concatenate(seen.logprobs).mean()
    for row, logprobs_T in zip(credited, seen.logprobs, strict=True):
        np.testing.assert_allclose(row.weights_T, np.clip(-logprobs_T / mean, 0, 1.5), rtol=1e-6)
    assert surprise(CreditView([])) == []


def test_arrays_of_another_loop() -> None:
    logprobs = [np.log([0.5, 0.25]), np.log([0.5])]  # the mean is 4/3 ln 2
    found = poise.weights(f"{EXAMPLE}:surprise", advantages=[1, -1], logprobs=logprobs, cap=1.2)
    np.testing.assert_allclose(np.concatenate(found), [0.75, 1.2, 0.75], rtol=1e-6)
    with pytest.raises(PoiseError, match="needs logprobs: pass logprobs"):
        poise.weights(f"{EXAMPLE}:surprise", advantages=[1, -1], tokens=[[1], [2]])


def test_rewards_are_not_among_arrays(tmp_path: Path) -> None:
    name = plugin(tmp_path, "[[1.0]]", "rewards")
    with pytest.raises(PoiseError, match=r"^rewards, texts, prompts and answers are not among"):
        poise.weights(name, advantages=[1.0], tokens=[[1]])


def test_an_unknown_parameter_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        PoiseError, match=r"unknown parameter of weigh 'entropy': did you mean 'ent"
    ):
        PluginWeights(plugin(tmp_path, "1", "entropy"))


# -- what it returns --------------------------------------------------------------------------

ROWS = [Row("7:p/3", 1.0, 2, index=0), Row("7:p/3", -1.0, 3, index=1)]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            "None",
            "mine.py:weigh returned NoneType: return a list of 2 arrays, one for each rollout",
        ),
        ("[[1, 1]]", "returned 1 arrays: return a list of 2 arrays, one for each rollout"),
        (
            "[[1, 1], [1, 1]]",
            r"returned the shape [2] for rollout 1 of 7:p/3, which has 3 tokens: return one number",
        ),
        (
            "[[1, 1], [1, float('nan'), 1]]",
            "returned nan for token 1 of rollout 1 of 7:p/3: return finite numbers",
        ),
        ("[[1, 1e300], [1, 1, 1]]", "returned inf for token 1 of rollout 0 of 7:p/3"),
        ("[[1, 'x'], [1, 1, 1]]", "returned no numbers for rollout 0 of 7:p/3"),
        ("[[1 / 0], [1, 1, 1]]", "mine.py:3: ZeroDivisionError: division by zero"),
    ],
)
def test_a_bad_return_is_one_line(tmp_path: Path, returned: str, message: str) -> None:
    function = PluginWeights(plugin(tmp_path, returned))
    with pytest.raises(PoiseError) as fault:
        function.evaluate({"tokens": []}, ROWS, {})
    assert message in str(fault.value)
    assert "\n" not in str(fault.value)


def test_booleans_and_lists_are_weights(tmp_path: Path) -> None:
    function = PluginWeights(plugin(tmp_path, "[[True, False], np.arange(3)]"))
    found = function.evaluate({"tokens": []}, ROWS, {})
    assert [w_T.tolist() for w_T in found] == [[1, 0], [0, 1, 2]]
    assert {w_T.dtype for w_T in found} == {np.dtype(np.float32)}


# -- before a run -----------------------------------------------------------------------------


def test_it_is_tried_before_the_run(tmp_path: Path) -> None:
    name = plugin(tmp_path, "[t[:-1] for t in tokens]")
    with pytest.raises(PoiseError, match=r"called on invented rollouts before the run\)$"):
        train(load_config("demo", [*SMALL, f"credit.weights={name}"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_dry_run_tells_its_range(tmp_path: Path) -> None:
    name = plugin(tmp_path, "[np.full(len(t), gain) for t in tokens]", "tokens, *, gain=2.0")
    sets = [f"credit.weights={name}", "credit.settings=['gain=3']"]
    assert try_plugins(load_config("demo", sets)) == [
        "#   own token weights  mine.py:weigh: 3 to 3 on invented rollouts"
    ]
    sets[1] = "credit.settings=['gian=3']"
    with pytest.raises(PoiseError, match=r"unknown setting of mine\.py:weigh 'gian': did you mean"):
        check_plugins(load_config("demo", sets))


def test_a_stored_run_is_read_without_its_file(tmp_path: Path) -> None:
    name = plugin(tmp_path, ONES, "tokens, *, gain=2.0")
    config = load_config("demo", [f"credit.weights={name}", "credit.settings=['gain=3']"])
    (tmp_path / "config.toml").write_text(to_toml(config))
    (tmp_path / "mine.py").unlink()
    assert load_config(tmp_path / "config.toml") == config


def test_other_engines_say_whether_they_honour_it(tmp_path: Path) -> None:
    check_options(load_config("demo", [f"credit.weights={EXAMPLE}:surprise", "balance.tau=0"]))
    name = plugin(tmp_path, "[]", "texts")
    with pytest.raises(PoiseError, match=r"mine\.py:weigh \(it reads texts, and TRL hands over"):
        check_options(load_config("demo", [f"credit.weights={name}", "balance.tau=0"]))
    assert VERL_OPTIONS["credit.weights"].honours(name)
    assert not VERL_OPTIONS["credit.rule"].honours(name)


# -- a run ------------------------------------------------------------------------------------


def test_a_run_weighs_stores_and_resumes(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(EXAMPLE.read_text())
    sets = [*SMALL, f"credit.weights={path}:numbers", f"credit.rule={path}:spare_rare"]
    out = tmp_path / "run"
    train(load_config("demo", sets), out)
    import pyarrow.parquet as pq

    table = pq.read_table(out / "tokens" / "step_00001.parquet")
    sizes = np.abs(table["advantage"].to_numpy())
    rows = table["row"].to_numpy()
    for row in np.unique(rows):  # a factor of 2 at digits, and 0 where the rule leaves tokens out
        ratios = np.unique(np.round(sizes[rows == row] / sizes[rows == row].max(), 4))
        assert set(ratios.tolist()) <= {0.0, 0.5, 1.0}
    before = path.read_text()
    config = load_config_to_resume(out, None, ["loop.iterations=2"])
    path.write_text(before + "\n")
    with pytest.raises(PoiseError, match=r"with credit\.weights='.*mine\.py:numbers@\w+', not"):
        load_config_to_resume(out, load_config("demo", sets), [])
    path.write_text(before)
    train(config, out, resume=True)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 2]


def test_poise_credit_shows_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tau=0.0)
    shown = compare_weightings(f"{EXAMPLE}:surprise:cap=1.25,uniform", run, model="embedded")
    assert shown.weightings[0].choice.label == "own_token_weights.py:surprise cap=1.25"
    assert shown.weightings[0].statistics.highest == 1.25
