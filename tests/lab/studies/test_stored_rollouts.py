"""A model's own rollouts, exported as prime-rl would and imported, give the study the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.lab.studies.coupling import measure
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.run import study_settings
from counterpoise.lab.studies.terminal import run_studies
from counterpoise.store.rollout_files import read_groups
from counterpoise.store.rollout_lines import rollout_lines
from counterpoise.types import Group

PROMPTS = 3


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = Lab("embedded", "quick", tmp_path_factory.mktemp("drawn"))
    lab.sizes = {"prompts": PROMPTS, "pairs": 50, "watched": 16}
    lab.groups(PROMPTS)
    yield lab
    lab.close()


def export(groups: list[Group], folder: Path) -> None:
    """A rollout a line, as prime-rl's token export has them; an odd one goes to the other rank."""
    lines: tuple[list[str], list[str]] = ([], [])
    for i, rollout in enumerate(r for group in groups for r in group.rollouts):
        prompt, response = rollout.prompt_tokens.tolist(), rollout.response_tokens.tolist()
        record = {
            "schema_version": 1,
            "step": 0,
            "export_step": 0,
            "env_name": "words",
            "token_ids": prompt + response,
            "loss_mask": [False] * len(prompt) + [True] * len(response),
            "rewards": [rollout.reward] * (len(prompt) + len(response)),
            "inference_logprobs": [0.0] * len(prompt) + rollout.sampled_logprobs.tolist(),
        }
        lines[i % 2].append(json.dumps(record) + "\n")
    for rank in (0, 1):
        file = folder / "token_exports" / "step_0" / f"rank_{rank}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(lines[rank]))


def test_imported_rollouts_are_studied_like_drawn_ones(drawn: Lab, tmp_path: Path) -> None:
    export(drawn.groups(PROMPTS), tmp_path / "run")
    import_run(tmp_path / "run", tmp_path / "out")
    lab = Lab("embedded", "quick", tmp_path, sizes=drawn.sizes, rollouts=tmp_path / "out")
    rows = {tuple(row.content.response_tokens): row for row in lab.rows(PROMPTS)}
    expected = drawn.rows(PROMPTS)
    assert expected
    for row in expected:
        other = rows[tuple(row.content.response_tokens)]
        assert other.advantage == pytest.approx(row.advantage, abs=1e-6)
        np.testing.assert_allclose(other.old_logprobs, row.old_logprobs, atol=1e-5)
        np.testing.assert_allclose(
            other.content.sampled_logprobs, row.content.sampled_logprobs, atol=1e-6
        )
    assert list(measure.STUDY.measure(lab))


def test_a_runs_own_files_come_back_group_by_group(drawn: Lab, tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    text = "".join(line + "\n" for line in rollout_lines(drawn.groups(PROMPTS)))
    (tmp_path / "rollouts" / "step_00001.jsonl").write_text(text)
    lab = Lab("embedded", "quick", tmp_path, rollouts=tmp_path)
    first, second = lab.groups(1, batch=1), lab.groups(1, batch=2)
    assert [g.key for g in (*first, *second)] == [g.key for g in drawn.groups(PROMPTS)[:2]]
    with pytest.raises(PoiseError, match="holds 3 groups, and the study needs 4 for batch 2 of 2"):
        lab.groups(2, batch=2)
    for number, group in zip((100_000, 99_999), drawn.groups(PROMPTS), strict=False):
        text = "".join(line + "\n" for line in rollout_lines([group]))
        (tmp_path / "rollouts" / f"step_{number:05d}.jsonl").write_text(text)
    (tmp_path / "rollouts" / "step_00001.jsonl").unlink()
    keys = [group.key for group in read_groups(tmp_path)]
    assert keys == [group.key for group in drawn.groups(PROMPTS)[1::-1]]


def test_other_rollouts_at_the_same_path_are_other_settings(drawn: Lab, tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    digests = []
    for groups in (drawn.groups(PROMPTS), drawn.groups(PROMPTS)[::-1]):
        text = "".join(line + "\n" for line in rollout_lines(groups))
        (tmp_path / "rollouts" / "step_00001.jsonl").write_text(text)
        for prompts in (1, PROMPTS):
            sizes = {"prompts": prompts}
            lab = Lab("embedded", "quick", tmp_path, rollouts=tmp_path, size_overrides=sizes)
            lab.__dict__["policy"] = drawn.policy
            digests.append(study_settings(measure.STUDY, lab)["rollouts_digest"])
    assert len(set(digests)) == 4  # only the groups that are used count


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("flipping", "", "samples its own rollouts; --rollouts works with coupling"),
        ("coupling", '{"group": "a", "prompt_id": "a", "reward": 1.0}', "no 'prompt_tokens'"),
        ("coupling", '{"group": ', "line 1: not JSON"),
        (
            "coupling",
            '{"group": "a", "prompt_id": "a", "reward": 1, "prompt_tokens": [1], '
            '"response_tokens": [999999]}',
            "have the token 999999",
        ),
        (
            "coupling",
            '{"group": "a", "prompt_id": "a", "reward": 1, "prompt_tokens": ["x"], '
            '"response_tokens": [1]}',
            "line 1: invalid literal",
        ),
    ],
)
def test_faults(tmp_path: Path, name: str, line: str, message: str) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "step_00001.jsonl").write_text(line + "\n")
    out = tmp_path / "out"
    with pytest.raises(PoiseError, match=message):
        run_studies(name, "embedded", "quick", out, again=False, rollouts=tmp_path)
    assert not out.exists()
