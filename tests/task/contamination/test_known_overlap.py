"""On real files: everything that is known to overlap is found, and fast enough to be used."""

import json
import time
from functools import cache
from pathlib import Path

import pytest

from counterpoise.task.contamination.items import read_benchmarks, read_items
from counterpoise.task.contamination.search import find_overlap

DATA = Path(__file__).parents[4] / "shared" / "data"
BENCHMARKS = "aime24 aime25 amc23 amc83 math500 minerva olympiadbench gsm8k_test"

pytestmark = pytest.mark.skipif(
    not (DATA / "overlap.json").exists(),
    reason=f"{DATA} is not there: benchmarks are not part of the repository",
)


# Listed as exact, but the benchmark has z^4 + z^2 + 1 = 0 and the training sets z^4 - z^2 + 1 = 0.
OTHER_OPERATOR = "math500-precalculus-285"


def known(benchmarks, train):
    ids = {item.id for bench in benchmarks for item in bench.items}, {item.id for item in train}
    listed = json.loads((DATA / "overlap.json").read_text())
    return {
        (one["eval"], one["train"]): one["kind"]
        for one in listed
        if one["eval"] in ids[0] and one["train"] in ids[1] and one["eval"] != OTHER_OPERATOR
    }


@cache
def overlap(name):
    """Benchmarks, training set, what was found, and the CPU seconds that it took."""
    start = time.process_time()  # other work on the machine must not fail this
    benchmarks = read_benchmarks([DATA / f"{bench}.jsonl" for bench in BENCHMARKS.split()])
    train = read_items(DATA / f"{name}.jsonl")
    found = find_overlap(train, benchmarks)
    return benchmarks, train, found, time.process_time() - start


@pytest.mark.slow
def test_amc23_in_dapo():
    *_, found, _ = overlap("dapo_math_17k")
    kinds = found.counts_by_kind("amc23")
    assert (kinds["exact"], kinds["near"]) == (8, 12)
    assert found.count_copied("amc23") >= 27


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dapo_math_17k", "math_train"])
def test_every_listed_pair_is_found_as_listed(name):
    benchmarks, train, found, seconds = overlap(name)
    assert seconds < 60
    pairs = {(m.item.id, m.prompt.id): m.kind for m in found.matches}
    listed = known(benchmarks, train)
    assert {pair: pairs.get(pair) for pair in listed} == listed
    assert len(listed) == {"dapo_math_17k": 113, "math_train": 12}[name]
    assert OTHER_OPERATOR not in {item for item, _ in pairs}
