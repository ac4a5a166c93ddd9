"""The audit as a command: what it reads, what it writes, and what it says of missing files."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hosts.importing.foreign import advantages, trl_file, write_lines
from report.audit.made_up_run import Faults, G, write_made_up_run
from report.synthetic import Page, write_run
from serve.served import line as served_line
from serve.served import write_rollouts
from typer.testing import CliRunner

from counterpoise.cli import app
from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.report.audit import answer_check
from counterpoise.report.audit.answer_check import AnswerChecker, FinalAnswer, final_answer
from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.hacking import reward_gap
from counterpoise.report.audit.page import write_audit_page
from counterpoise.report.audit.plan_scan import scan_plans
from counterpoise.report.audit.rank import audit_run, rank_findings, report_to_data
from counterpoise.report.audit.records import AuditFinding, AuditReport, Measurement
from counterpoise.report.audit.run_files import RunFiles, thirds
from counterpoise.statistics.two_samples import change_estimate, ratio_estimate


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def by_name(report: AuditReport) -> dict[str, AuditFinding]:
    return {finding.name: finding for finding in report.findings}


# -- the command -----------------------------------------------------------------------------------


def test_only_the_page_is_written(tmp_path: Path):
    run = write_made_up_run(tmp_path / "run", Faults(composer="shuffled"))
    before = digests(run)
    result = CliRunner().invoke(app, ["audit", str(run), "--no-page"])
    assert result.exit_code == 0, result.output
    assert "alarm    Groups split over optimizer steps" in result.output
    assert "batch.composer" in result.output
    assert digests(run) == before
    data = json.loads(CliRunner().invoke(app, ["audit", str(run), "--json"]).stdout)
    assert data["findings"][0]["name"] == "cut_groups"
    assert data["findings"][0]["measurements"][0]["value"] == 1.0
    assert digests(run) == before
    elsewhere = tmp_path / "elsewhere.html"
    assert CliRunner().invoke(app, ["audit", str(run), "--out", str(elsewhere)]).exit_code == 0
    assert elsewhere.is_file()
    assert digests(run) == before
    # The findings are printed although the page is refused: it would replace the run's log.
    log = run / "metrics.jsonl"
    result = CliRunner().invoke(app, ["audit", str(run), "--out", str(log)])
    assert "alarm    Groups split over optimizer steps" in result.output
    assert str(result.exception).startswith(f"{log} exists and is not an HTML page")
    result = CliRunner().invoke(app, ["audit", str(run), "--no-page", "--out", str(elsewhere)])
    assert str(result.exception) == "--no-page writes no page: leave out --out"
    assert digests(run) == before
    assert CliRunner().invoke(app, ["audit", str(run)]).exit_code == 0
    assert set(digests(run)) - set(before) == {"audit.html"}


def test_a_page_has_a_policy_and_hostile_text_adds_nothing(tmp_path: Path):
    hostile = '</script><script>hacked()</script>" onload="x" \x1b[31m \u202e {{ 7 * 7 }}'
    pages = []
    for name, text in (("clean", "How many?"), ("hostile", hostile)):
        run = write_run(tmp_path / name, response=f"{text} \\boxed{{3}}", prompt=text)
        for file in (run / "rollouts").glob("*.jsonl"):  # every answer is right: examples appear
            lines = [json.loads(line) | {"reward": 0.0} for line in file.open(encoding="utf-8")]
            write_lines(file, lines)
        pages.append(Page(write_audit_page(audit_run(run), tmp_path / f"{name}.html")))
    clean, page = pages
    assert page.tags == clean.tags
    assert [name for name, _ in page.attributes] == [name for name, _ in clean.attributes]
    assert "<script>hacked()" not in page.source
    assert "default-src &#39;none&#39;" in page.source
    assert "http://" not in page.source.replace("http://www.w3.org", "")


@pytest.mark.parametrize("made", ["nothing", "file", "empty"])
def test_a_folder_without_a_run_is_one_line(made: str, tmp_path: Path):
    path = tmp_path / "run"
    if made == "file":
        path.write_text("x")
    if made == "empty":
        path.mkdir()
    with pytest.raises(PoiseError, match="run"):
        audit_run(path)


def test_a_torn_log_is_one_line_and_torn_rollouts_are_counted(tmp_path: Path):
    run = write_made_up_run(tmp_path / "run")
    with (run / "rollouts" / "step_00003.jsonl").open("a") as file:
        file.write('{"group": "3:x", "resp')
    report = audit_run(run)
    assert report.rollouts == 12 * 8 * 8
    assert report.notes == ("1 line of rollouts/ is no rollout: left out",)
    (run / "metrics.jsonl").write_text('{"iteration": 1}\n[3]\n')
    with pytest.raises(PoiseError, match=r"metrics.jsonl is damaged: line 2"):
        audit_run(run)


def test_what_is_missing_is_named(tmp_path: Path):
    run = write_made_up_run(tmp_path / "run")
    for name in ("plans.jsonl", "evaluations.jsonl"):
        (run / name).unlink()
    for file in (run / "rollouts").iterdir():
        file.unlink()
    findings = by_name(audit_run(run))
    assert findings["cut_groups"].missing == ("plans.jsonl",)
    assert findings["reward_gap"].missing == ("evaluations.jsonl with two evaluations",)
    for name in ("rejected_answers", "duplicate_prompts", "length_drift", "equal_rewards"):
        assert findings[name].missing == ("rollouts/",)
    assert findings["benchmark_prompts"].missing == ("contamination.json or benchmark files",)
    assert findings["cancelling_types"].level == "unsupported"


def test_every_finding_has_a_number(tmp_path: Path):
    for faults in (Faults(), Faults(composer="shuffled")):
        report = audit_run(write_made_up_run(tmp_path / faults.composer, faults))
        for finding in report.findings:
            if finding.level != "unsupported":
                assert any(character.isdigit() for character in finding.verdict), finding
            if finding.level in ("alarm", "warning"):
                assert finding.measurements
                assert finding.threshold
                assert finding.cost
                assert finding.remedy


# -- other trainers --------------------------------------------------------------------------------

# What a rollout's text and reward decide. Lengths are counted in other tokens by an importer, and
# TRL's files hold no references.
FROM_TEXTS = (
    "duplicate_prompts", "equal_rewards", "inconsistent_rewards", "question_echo",
    "rollouts_without_signal", "unusable_prompts",
)  # fmt: skip
FROM_REFERENCES = ("rejected_answers", "accepted_answers")


@pytest.mark.parametrize("trainer", ["trl", "verl"])
@pytest.mark.parametrize("sick", [False, True])
def test_an_import_gives_the_same_audit_as_the_native_folder(
    trainer: str, sick: bool, tmp_path: Path
):
    faults = Faults(reward=lambda right, response, rng: float(right != (rng.random() < 0.2)))
    native = write_made_up_run(tmp_path / "native", faults if sick else Faults())
    for file in sorted((native / "rollouts").glob("*.jsonl")):
        step = int(file.stem.removeprefix("step_"))
        lines = [json.loads(line) for line in file.open(encoding="utf-8")]
        rewards = [line["reward"] for line in lines]
        if trainer == "trl":
            trl_file(
                tmp_path / "theirs",
                step,
                [line["prompt"] for line in lines],
                [line["response"] for line in lines],
                {"correct": rewards},
                advantages(rewards, G),
            )
        else:
            write_lines(
                tmp_path / "theirs" / f"{step}.jsonl",
                [
                    {
                        "input": line["prompt"], "output": line["response"], "step": step,
                        "gts": line["answer"], "score": line["reward"],
                        "uid": f"{line['group']}_{place % G}_0",
                    }
                    for place, line in enumerate(lines)
                ],
            )  # fmt: skip
    import_run(tmp_path / "theirs", tmp_path / "imported", tokenizer="embedded")
    ours, theirs = (by_name(audit_run(path)) for path in (native, tmp_path / "imported"))
    assert theirs["cut_groups"].missing == ("plans.jsonl",)
    for name in (*FROM_TEXTS, *(FROM_REFERENCES if trainer == "verl" else ())):
        assert theirs[name].level == ours[name].level, name
        assert theirs[name].verdict == ours[name].verdict, name
        # Without references there is no share of right answers, the last measurement.
        count = len(theirs[name].measurements)
        assert theirs[name].measurements == ours[name].measurements[:count], name
        assert count >= 1
        places = [[(e.group, e.index, e.text) for e in f[name].examples] for f in (ours, theirs)]
        assert [place[1:] for place in places[0]] == [place[1:] for place in places[1]]
    if trainer == "trl":
        assert theirs["rejected_answers"].missing == ("answer in rollouts/",)
    if sick:
        assert theirs["inconsistent_rewards"].level == "alarm"


def test_graded_rewards_are_not_judged_as_verdicts(tmp_path: Path):
    graded = Faults(reward=lambda right, answer, rng: [0.25, 1.0][right] + 0.1 * rng.integers(3))
    run = write_made_up_run(tmp_path / "run", graded)
    findings = by_name(audit_run(run))
    assert findings["accepted_answers"].level == "unsupported"
    assert "mean reward" in findings["learning_rate"].verdict
    assert "training mean reward changed" in findings["reward_gap"].verdict
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").open()]
    for line in lines:
        del line["reward"]  # a success is no measure of a mean reward
    write_lines(run / "evaluations.jsonl", lines)
    assert reward_gap(AuditRun.read(run)).missing == ("reward in evaluations.jsonl",)


def test_the_cost_of_a_learning_rate_is_that_of_what_was_seen(tmp_path: Path):
    finding = by_name(audit_run(write_made_up_run(tmp_path / "run", Faults(clipped=0.08))))
    assert finding["learning_rate"].level == "warning"
    assert finding["learning_rate"].cost == "8.00 % of the gradients were computed and thrown away"


def test_a_metrics_line_without_a_reward_does_not_hide_the_trend(tmp_path: Path):
    run = write_made_up_run(tmp_path / "run", Faults(success=lambda progress: 0.6 - 0.5 * progress))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    for line in lines:
        del line["reward"]
    write_lines(run / "metrics.jsonl", lines)
    assert "training success from" in by_name(audit_run(run))["learning_rate"].verdict


def test_rollouts_without_a_reward_have_no_length_trend(tmp_path: Path):
    write_rollouts(tmp_path / "run", 1, served_line(reward=None), served_line(anchor=True))
    (tmp_path / "run" / "metrics.jsonl").write_text('{"iteration": 1, "rollouts": 2}\n')
    report = audit_run(tmp_path / "run")
    assert by_name(report)["length_drift"].missing == ("rollouts with a reward in rollouts/",)
    assert report.notes == ()  # an anchor and an unscored rollout are rollouts


def test_at_most_eight_plans_are_composed_again(tmp_path: Path):
    run = write_made_up_run(tmp_path / "run")  # twelve iterations
    assert len(scan_plans(RunFiles.read(run)).grouped) == 6


# -- its pieces ------------------------------------------------------------------------------------


def made(name: str, level: str, *explains: str) -> AuditFinding:
    return AuditFinding(name, level, "1", explains=explains, name=name)  # type: ignore[arg-type]


def test_consequences_become_notes_of_their_cause():
    ranked = rank_findings(
        [
            made("a", "warning"),
            made("cause", "alarm", "effect", "second"),
            made("effect", "alarm", "innocent"),
            made("second", "clear"),
            made("innocent", "warning"),
        ]
    )
    assert [(f.name, f.level, f.consequence_of) for f in ranked] == [
        ("cause", "alarm", ""),
        ("a", "warning", ""),
        ("innocent", "warning", ""),
        ("effect", "note", "cause"),
        ("second", "clear", ""),
    ]


def test_a_warning_does_not_explain_an_alarm():
    ranked = rank_findings([made("cause", "warning", "effect"), made("effect", "alarm")])
    assert [(f.name, f.level) for f in ranked] == [("effect", "alarm"), ("cause", "warning")]


def test_final_answers():
    assert final_answer("a \\boxed{1} b \\boxed{2}") == FinalAnswer("2", True)
    assert final_answer("steps\n#### 42") == FinalAnswer("42", False)
    assert final_answer("So the final answer is: **7**.") == FinalAnswer("7", False)
    assert final_answer("no idea") is None
    with AnswerChecker() as checker:
        pairs = [("11", "\\frac{22}{2}"), ("0.50", "1/2"), ("5+6", "11"), ("red", "\\text{red}")]
        assert checker.check(pairs) == [True, True, False, True]


def test_a_comparison_that_was_stopped_says_nothing(monkeypatch: pytest.MonkeyPatch):
    """It once counted as wrong: a limit of a millisecond made equal answers different ones."""
    pair = ("x^2-1", "(x-1)(x+1)")
    with AnswerChecker() as checker:
        assert checker.check([pair]) == [True]
        assert (checker.algebra_pairs, checker.undecided_pairs) == (1, 0)
    monkeypatch.setattr(answer_check, "ALGEBRA_SECONDS", 1e-3)
    with AnswerChecker() as checker:
        assert checker.check([pair]) == [None]
        assert (checker.algebra_pairs, checker.undecided_pairs) == (1, 1)


def test_prompts_that_differ_in_an_operator_are_not_copies(tmp_path: Path):
    run = write_made_up_run(tmp_path / "run")
    texts = ("What is 12 + 5?", "What is 12 - 5?", "What is 1.25?", "What is 125?")
    for file in (run / "rollouts").glob("*.jsonl"):
        lines = [json.loads(line) for line in file.open(encoding="utf-8")]
        groups = list(dict.fromkeys(line["group"] for line in lines))
        for line in lines:
            line["prompt"] = texts[groups.index(line["group"]) % len(texts)]
            line["prompt_id"] = line["prompt"]
        write_lines(file, [line for line in lines if groups.index(line["group"]) < len(texts)])
    totals = AuditRun.read(run).rollout_totals
    assert len(totals.prompts) == len(texts)
    assert sum(tally.copies for tally in totals.prompts.values()) == 0


def test_rewards_that_turn_out_to_be_graded_are_not_inconsistent(tmp_path: Path):
    """The first iteration has 0 and 1 alone, for equal answers in different words."""
    run = write_made_up_run(tmp_path / "run")
    for file in sorted((run / "rollouts").glob("*.jsonl")):
        lines = [json.loads(line) for line in file.open(encoding="utf-8")]
        for number, line in enumerate(lines):
            line["response"] = f"In words number {number}: \\boxed{{7}}"
            line["reward"] = float(number % 2) if file.stem == "step_00001" else 0.25
        write_lines(file, lines)
    totals = AuditRun.read(run).rollout_totals
    assert not totals.is_binary
    assert sum(tally.inconsistent for tally in totals.prompts.values()) == 0
    assert "inconsistent" not in totals.examples


def test_nothing_repeated_is_no_certainty(tmp_path: Path):
    run = write_made_up_run(tmp_path / "run")
    for file in (run / "rollouts").glob("*.jsonl"):
        lines = [json.loads(line) for line in file.open(encoding="utf-8")]
        for number, line in enumerate(lines):
            line["response"] = f"{file.stem} {number}"
        write_lines(file, lines)
    finding = by_name(audit_run(run))["inconsistent_rewards"]
    assert finding.level == "unsupported"
    assert finding.verdict == "needs answers that repeat another: there are 0"


def test_nothing_measured_is_not_clear(tmp_path: Path):
    """Two iterations of 3 groups of 3, every reward 0: no check may call its part sound."""
    run = write_made_up_run(tmp_path / "run", Faults(reward=lambda right, response, rng: 0.0))
    for file in sorted((run / "rollouts").glob("*.jsonl")):
        lines = [json.loads(line) for line in file.open(encoding="utf-8")]
        groups = list(dict.fromkeys(line["group"] for line in lines))[:3]
        kept = [line for group in groups for line in lines if line["group"] == group][::3]
        write_lines(file, [line for line in kept if line["group"] in groups])
        if file.stem > "step_00002":
            file.unlink()
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").open()][:2]
    for line in metrics:
        line |= {"rollouts": 9, "batch_rows": 9, "rows_without_signal": 9, "steps": 0}
        line |= {"entropy": None, "sampler_mismatch": None, "cancellation_types": None}
    write_lines(run / "metrics.jsonl", metrics)
    plans = [json.loads(line) for line in (run / "plans.jsonl").open()][:2]
    write_lines(run / "plans.jsonl", plans)
    findings = by_name(audit_run(run))
    no_update = "needs an update: the run took no optimizer step"
    expected = {
        "equal_rewards": "needs more groups: so far 0 of 6 have unequal rewards",
        "unused_rollouts": "needs rollouts with signal: there are 0, and 2 of 2 iterations made no "
        "update",
        "cut_groups": "needs groups with signal: there are 0 in 2 plans",
        "rare_sign": "needs iterations with signal: there are 0",
        "unusable_prompts": "needs prompts with 8 rollouts or more: there are 0",
        "accepted_answers": "needs rollouts that scored 1: there are 0",
        "entropy_collapse": no_update,
        "sampler_mismatch": no_update,
        "cancelling_types": no_update,
    }
    verdicts = {name: findings[name].verdict for name in expected}
    assert verdicts == expected
    assert {findings[name].level for name in expected} == {"unsupported"}


@pytest.mark.parametrize(
    ("groups", "mixed", "level"),
    [
        (15, 0, "unsupported"), (16, 0, "warning"), (72, 0, "warning"), (73, 0, "alarm"),
        (30, 1, "unsupported"), (30, 2, "clear"),
    ],
)  # fmt: skip
def test_groups_with_equal_rewards_are_judged_by_their_number(
    groups: int, mixed: int, level: str, tmp_path: Path
):
    run = write_made_up_run(tmp_path / "run")
    for file in (run / "rollouts").glob("*.jsonl"):
        if file.stem != "step_00001":
            file.unlink()
    (file,) = (run / "rollouts").glob("*.jsonl")
    line = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
    write_lines(
        file,
        [
            line | {"group": f"1:p{group}", "prompt_id": f"p{group}", "reward": reward}
            for group in range(groups)
            for reward in (0.0, float(group < mixed))
        ],
    )
    assert by_name(audit_run(run))["equal_rewards"].level == level


def test_thirds_and_changes_by_hand():
    assert thirds([1.0, 2, 3, 4, 5, 6, 7]) == ([1.0, 2], [6, 7])
    assert thirds([1.0]) == ([1.0], [1.0])
    change = change_estimate([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    # v = 1/3 + 1/3 with 4 degrees of freedom: t = 2.776
    half_width = 2.7764 * np.sqrt(2 / 3)
    assert change.high - 3 == pytest.approx(half_width, rel=1e-4)
    assert 3 - change.low == pytest.approx(half_width, rel=1e-4)
    assert change_estimate([1.0], [2.0]).low == -np.inf
    assert ratio_estimate([1.0, 1.0], [3.0, 3.0]).high == pytest.approx(3.0)


def test_plans_without_rows_are_read_from_their_description(tmp_path: Path):
    run = write_made_up_run(tmp_path / "run", Faults(composer="shuffled"))
    with_rows = scan_plans(RunFiles.read(run))
    lines = [json.loads(line) for line in (run / "plans.jsonl").open()]
    keep = ("schema", "iteration", "rule", "describe")
    for line in lines:  # as run/write_iteration.py leaves them
        line["describe"] = {k: v for k, v in line["describe"].items() if not isinstance(v, list)}
    write_lines(run / "plans.jsonl", [{k: line[k] for k in keep} for line in lines])
    described = scan_plans(RunFiles.read(run))
    assert described.rare_share == []
    assert described.split_groups >= with_rows.split_groups > 0
    finding = by_name(audit_run(run))["cut_groups"]
    assert finding.level == "alarm"
    assert f"of {described.groups} groups were split" in finding.verdict  # not only with signal


def test_json_is_plain(tmp_path: Path):
    data = report_to_data(audit_run(write_made_up_run(tmp_path / "run")))
    assert json.loads(json.dumps(data))["schema"] == 1
    assert str(Measurement("x", 0.25, 0.1, 0.4, "share")) == "25.0 % [10.0, 40.0]"


def test_a_mismatch_is_shown_by_token(tmp_path: Path):
    """One token type is off by half a nat; the tables of tokens say which."""
    run = write_run(tmp_path / "run", iterations=9, tau=0.0, microscope="off")
    odd_token, shift = 4, 0.5
    for file in (run / "rollouts").glob("*.jsonl"):
        lines = [json.loads(line) for line in file.open(encoding="utf-8")]
        for line in lines:
            line["sampled_logprobs"] = [
                logprob - shift * (token == odd_token)
                for token, logprob in zip(
                    line["response_tokens"], line["sampled_logprobs"], strict=True
                )
            ]
        write_lines(file, lines)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    for line in metrics:
        line |= {"sampler_mismatch": 0.02 * line["iteration"], "old_logprob": -0.5}
    write_lines(run / "metrics.jsonl", metrics)
    finding = by_name(audit_run(run))["sampler_mismatch"]
    assert finding.level == "alarm"
    by_type = [m for m in finding.measurements if m.name.startswith("mean difference at ")]
    assert by_type[0].name.startswith("mean difference at '3'")  # the text of token 4
    tables = [pq.read_table(file) for file in sorted((run / "tokens").iterdir())[-4:]]
    old_logprobs = np.concatenate(
        [
            table["old_logprob"].to_numpy()[table["token"].to_numpy() == odd_token]
            for table in tables
        ]
    )
    assert by_type[0].value == pytest.approx(np.abs(old_logprobs + 0.5 + shift).mean(), rel=1e-5)
    worst = finding.examples[0]
    lines = [
        json.loads(line)
        for file in (run / "rollouts").glob("*.jsonl")
        for line in file.open(encoding="utf-8")
        if json.loads(line)["group"] == worst.group
    ]
    position = int(worst.text.split(":")[0].removeprefix("token "))
    assert lines[worst.index or 0]["response_tokens"][position] == odd_token


def test_steps_without_signal_are_not_taken_for_steps_that_were_not_finite(tmp_path: Path):
    run = write_made_up_run(tmp_path / "run", Faults(reward=lambda right, response, rng: 1.0))
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    for line in metrics:
        line |= {"steps": 0, "skipped_steps": 4, "positive_share": None}
    write_lines(run / "metrics.jsonl", metrics)
    assert by_name(audit_run(run))["not_finite_steps"].level == "clear"
    # Release 0.3.0 did not count them by reason: with signal, a step can only be skipped for one.
    some_steps = {"steps": 2, "rows_without_signal": 8}
    for changes, level in (
        ({"positive_share": 0.5}, "alarm"),
        (some_steps, "clear"),
        ({"not_finite_steps": 0}, "clear"),
        ({"not_finite_steps": 2}, "alarm"),
    ):
        for line in metrics:
            line |= changes
        write_lines(run / "metrics.jsonl", metrics)
        finding = by_name(audit_run(run))["not_finite_steps"]
        assert finding.level == level
    assert finding.verdict.startswith(f"{2 * len(metrics)} of {6 * len(metrics)} optimizer steps")


def test_rollouts_without_texts_are_no_suspects(tmp_path: Path):
    """prime-rl's files, imported without a tokenizer: tokens and rewards alone."""
    run = write_made_up_run(tmp_path / "run")
    for file in (run / "rollouts").glob("*.jsonl"):
        lines = [json.loads(line) for line in file.open(encoding="utf-8")]
        for line in lines:
            for name in ("prompt", "response", "answer", "finished"):
                del line[name]
        write_lines(file, lines)
    report = audit_run(run)
    findings = by_name(report)
    assert report.rollouts == 768
    assert findings["inconsistent_rewards"].missing == ("response in rollouts/",)
    assert findings["question_echo"].missing == ("response in rollouts/",)
    assert findings["length_drift"].missing == ("finished in rollouts/",)
    assert findings["duplicate_prompts"].missing == ("prompt in rollouts/",)
    assert not [f for f in report.findings if f.level in ("alarm", "warning")]
