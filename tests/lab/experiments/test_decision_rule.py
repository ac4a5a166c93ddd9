"""The rule in words, as it is executed, and the head of every result."""

from __future__ import annotations

from pathlib import Path

from lab.experiments.small_experiment import EXPERIMENT, write

from counterpoise import __version__
from counterpoise.lab.experiments.decision_rule import describe_rule
from counterpoise.lab.experiments.dry_run import describe_plan
from counterpoise.lab.experiments.experiment_file import read_experiment
from counterpoise.lab.experiments.header import markdown_heading, result_header

SMALL = (
    "An arm minus shuffled in held-out success at 1/1, paired by seed and read at equal rollouts "
    "and at equal updates (the fewer that either run of a pair spent), with 95 % intervals. "
    "'QB > shuffled': replicated when both intervals lie above 0, not replicated when both lie "
    "below +3 points. Otherwise, with fewer than 3 seeds, or where every seed has the same "
    "difference: inconclusive."
)


def test_one_hypothesis_one_rate(tmp_path: Path) -> None:
    assert describe_rule(read_experiment(write(tmp_path))) == SMALL


def test_what_decides_is_in_it_and_the_authors_words_are_not(tmp_path: Path) -> None:
    changed = EXPERIMENT.replace("[experiment]", "[experiment]\nmargin = 0.015\nlevel = 0.9", 1)
    changed = changed.replace("[1e-4]", "[1e-4, 2e-4]").replace("it is", "I say so")
    changed = changed.replace('["QB > shuffled"]', '["by_sign < shuffled", "QB > shuffled"]')
    changed += 'by_sign = ["batch.composer=by_sign"]\n'
    said = describe_rule(read_experiment(write(tmp_path, changed)))
    assert "with 90 % intervals that hold for 4 comparisons together." in said
    assert (
        "'QB > shuffled': replicated when at some rate both intervals lie above 0, not replicated "
        "when at every rate both lie below +1.5 points. 'by_sign < shuffled': replicated when at "
        "some rate both intervals lie below 0, not replicated when at every rate both lie above "
        "-1.5 points."
    ) in said
    assert said.endswith("The first hypothesis is the verdict.")
    assert "I say so" not in said


def test_without_a_hypothesis(tmp_path: Path) -> None:
    none = EXPERIMENT.replace('hypotheses = ["QB > shuffled"]', "")
    said = describe_rule(read_experiment(write(tmp_path, none)))
    assert "replicated when" not in said
    assert said.endswith("No hypothesis is stated, so there is no verdict.")


def test_a_pilot_has_its_own() -> None:
    said = describe_rule(read_experiment("smollm2-pilot"))
    assert said.startswith("A run learns if its best held-out success is at least 5 points above")


def test_the_head_of_a_result(tmp_path: Path) -> None:
    named = EXPERIMENT.replace("[experiment]", '[experiment]\ntitle = "Q"\nclaim = "It is."', 1)
    experiment = read_experiment(write(tmp_path, named))
    assert markdown_heading(experiment, {}) == (
        "# Q\n\nIt is.\n\n"
        f"small.toml ({experiment.digest}), counterpoise {__version__}; model embedded; arms "
        "shuffled, QB; rates 0.0001; seeds 2; iterations 2; rollouts 4 x 8; steps 2; heldout 4 x "
        f"2.\n\nRule: {SMALL}\n\n"
        "In the author's words, which decide nothing: replicated when it is\n\n"
    )
    plain = read_experiment(write(tmp_path))
    assert markdown_heading(plain, {}).startswith("# small\n\nsmall.toml (")
    assert (result_header(plain)["rule"], result_header(plain)["executed"]) == (
        "replicated when it is",
        SMALL,
    )
    told = describe_plan(plain, plain.design.run_keys(), None, 1)
    words = "in the author's words, which decide nothing: replicated when it is"
    assert told.endswith(f"\nrule: {SMALL}\n{words}")
