"""Ways of sampling held-out problems: read, refused, and told apart in old and new folders."""

from __future__ import annotations

import pytest

from counterpoise.cli.evaluate import parse_sample_count
from counterpoise.config import SampleConfig
from counterpoise.config.evaluation_settings import (
    EvaluationSetting,
    group_by_setting,
    parse_benchmarks,
    parse_setting,
    parse_settings,
)
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError

SAMPLE = SampleConfig(temperature=0.8, top_p=0.9, top_k=20)


def test_training_is_the_trainings_own() -> None:
    assert parse_setting("training", SAMPLE) == EvaluationSetting(0.8, 0.9)
    assert parse_setting("training", SAMPLE).apply_to(SAMPLE) == SAMPLE


def test_another_setting_changes_only_how_tokens_are_chosen() -> None:
    found = parse_setting("0.6/0.95", SAMPLE).apply_to(SAMPLE)
    assert (found.temperature, found.top_p, found.top_k) == (0.6, 0.95, 0)
    assert found.max_new_tokens == SAMPLE.max_new_tokens
    assert str(parse_setting("1.0/1.0", SAMPLE)) == "1/1"


@pytest.mark.parametrize("text", ["", "0.6", "0/1", "0.6/0", "0.6/1.1", "a/b", "1/1/1", "nan/1"])
def test_faults(text: str) -> None:
    with pytest.raises(PoiseError, match=r"write 'training', or .* '0\.6/0\.95'"):
        load_config("demo", [f'evaluate.settings=["{text}"]'])


@pytest.mark.parametrize("count", ["0", "-1", "2.5", "\u00b2", "100001", "9" * 5000, ""])
def test_samples_are_whole_numbers_in_the_file_and_on_the_command_line(count: str) -> None:
    with pytest.raises(PoiseError, match="write NAME, or NAME=SAMPLES"):
        load_config("demo", [f'evaluate.benchmarks=["aime24={count}"]'])
    with pytest.raises(PoiseError, match="is not a whole number from 1 to 100,000"):
        parse_sample_count(count)
    assert parse_sample_count("100000") == parse_benchmarks(["a=100000"])["a"] == 100_000


def test_no_setting_twice() -> None:
    with pytest.raises(PoiseError, match="twice"):
        parse_settings(["training", "0.8/0.9"], SAMPLE)


def test_lines_of_old_and_new_runs() -> None:
    old = [{"iteration": 0, "mean": 0.4}, {"iteration": 9, "mean": 0.5}]
    assert group_by_setting(old) == {None: old}
    new = [
        {"iteration": i, "temperature": t, "top_p": p, "mean": 0.5}
        for i in (0, 9)
        for t, p in ((1.0, 1.0), (0.6, 0.95))
    ]
    found = group_by_setting(new)
    assert list(found) == [EvaluationSetting(1.0, 1.0), EvaluationSetting(0.6, 0.95)]
    assert [line["iteration"] for line in found[EvaluationSetting(0.6, 0.95)]] == [0, 9]
    assert group_by_setting([]) == {}
