"""The audit of a run at an address of its own: made once for a state of its files, beside the
server, and of nothing outside the served folders."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from report.audit.made_up_run import Faults, write_made_up_run
from serve.served import AuditInThisProcess, get, line, serve, write_rollouts

from counterpoise.errors import PoiseError
from counterpoise.report.audit.rank import audit_run, report_to_data
from counterpoise.report.audit.run_files import Progress
from counterpoise.serve.audit import shelf
from counterpoise.serve.audit.shelf import AuditShelf
from counterpoise.serve.run_reader import RunReader

ADDRESS = "/runs/run/audit"


class CountedAudits(AuditInThisProcess):
    """Counts audits; each waits until it is let go."""

    def __init__(self, is_free: bool = True) -> None:
        self.count = 0
        self.gate = threading.Event()
        if is_free:
            self.gate.set()

    def run(
        self, run_folder: Path, roots: Sequence[Path], folder: Path, progress: Progress
    ) -> None:
        self.count += 1
        progress("rollouts", 3, 12)
        assert self.gate.wait(600)
        super().run(run_folder, roots, folder, progress)


@pytest.fixture
def cut_run(tmp_path: Path) -> Path:
    return write_made_up_run(tmp_path / "out" / "run", Faults(composer="shuffled"))


def served(tmp_path: Path, auditor: AuditInThisProcess | None = None):
    auditor = auditor or AuditInThisProcess()
    return serve(tmp_path / "out", cache=tmp_path / "cache", auditor=auditor)


def test_it_is_what_poise_audit_says_with_links_to_the_evidence(tmp_path: Path, cut_run: Path):
    report = json.loads(json.dumps(report_to_data(audit_run(cut_run))))
    with served(tmp_path) as client:
        view = get(client, ADDRESS)
        assert (view["state"], view["progress"], view["iterations_now"]) == ("ready", None, 12)
        findings = view["report"]["findings"]
        places = [example.pop("place") for each in findings for example in each["examples"]]
        assert findings == report["findings"]
        assert view["report"]["first"] == "cut_groups"
        assert view["report"]["facts"]["alarms"] == 1
        sections = [section["level"] for section in view["report"]["sections"]]
        assert sections == [
            level
            for level in ("alarm", "warning", "note", "clear", "unsupported")
            if any(finding["level"] == level for finding in findings)
        ]
        linked = [place for place in places if place]
        assert linked
        for place in linked:
            view = get(client, place)
            assert view["group"].startswith(f"{view['iteration']}:made/")
        page = client.get(f"{ADDRESS}.html")
        assert "attachment" in page.headers["content-disposition"]
        assert "Groups split over optimizer steps" in page.text


def test_what_cannot_be_checked_names_the_file(tmp_path: Path):
    write_rollouts(tmp_path / "out" / "run", 1, line("1:a"), line("1:a", reward=0.0))
    with served(tmp_path) as client:
        findings = get(client, ADDRESS)["report"]["findings"]
        missing = {each["name"]: each["missing"] for each in findings if each["missing"]}
        assert missing["cut_groups"] == ["plans.jsonl"]


def test_it_is_made_once_for_a_state_of_the_files(
    tmp_path: Path, cut_run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shelf, "LEAST_REST_SECONDS", 0.0)
    monkeypatch.setattr(shelf, "REST", 0.0)
    auditor = CountedAudits()
    with served(tmp_path, auditor) as client:
        assert get(client, ADDRESS)["report"]["rollouts"] == 12 * 64
        get(client, ADDRESS)
    assert auditor.count == 1
    with served(tmp_path, auditor) as client:  # kept by the next server too
        get(client, ADDRESS)
        assert auditor.count == 1
        rollouts = cut_run / "rollouts" / "step_00012.jsonl"
        rollouts.write_text("".join(rollouts.read_text().splitlines(keepends=True)[:-8]))
        assert get(client, ADDRESS)["report"]["rollouts"] == 12 * 64 - 8
        assert auditor.count == 2


def test_a_run_that_grows_is_not_audited_at_every_iteration(tmp_path: Path, cut_run: Path):
    auditor = CountedAudits()
    with served(tmp_path, auditor) as client:
        get(client, ADDRESS)
        with (cut_run / "metrics.jsonl").open("a") as log:
            log.write(json.dumps({"iteration": 13, "success": 0.5, "rollouts": 64}) + "\n")
        client.library._refreshed = float("-inf")
        view = get(client, ADDRESS)
        assert (view["state"], view["iterations_now"]) == ("older", 13)
        assert view["report"]["iterations"] == 12
    assert auditor.count == 1


def test_a_request_does_not_wait_for_it(tmp_path: Path, cut_run: Path):
    auditor = CountedAudits(is_free=False)
    with served(tmp_path, auditor) as client:
        client.library.patience = 0.05
        views = [get(client, ADDRESS) for _ in range(3)]
        assert {view["state"] for view in views} == {"reading"}
        assert views[-1]["progress"] == {"what": "rollouts", "done": 3, "total": 12}
        assert client.get(f"{ADDRESS}.html").status_code == 404
        assert get(client, "/runs/run")["iterations"] == 12  # other pages answer meanwhile
        auditor.gate.set()
        client.library.patience = 60
        assert get(client, ADDRESS)["state"] == "ready"
    assert auditor.count == 1


def test_nothing_outside_the_served_folders_is_read(tmp_path: Path, cut_run: Path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text(line("12:secret", "SECRET"))
    (cut_run / "rollouts" / "step_00013.jsonl").symlink_to(secret)
    with served(tmp_path) as client:
        response = client.get(ADDRESS)
        assert response.status_code == 422
        assert response.json()["problem"] == (
            "rollouts/step_00013.jsonl is a link that leads out of the served folders"
        )
        (cut_run / "rollouts" / "step_00013.jsonl").unlink()
        config = cut_run / "config.toml"
        config.write_text(
            config.read_text().replace("benchmarks = []", f'benchmarks = ["{secret}"]')
        )
        assert str(secret) in config.read_text()
        view = get(client, ADDRESS)
        names = {each["name"]: each for each in view["report"]["findings"]}
        assert names["benchmark_prompts"]["level"] == "unsupported"


def test_a_link_is_judged_by_the_folders_that_are_served_now(tmp_path: Path, cut_run: Path):
    log = cut_run / "plans.jsonl"
    log.rename(tmp_path / "out" / "plans.jsonl")
    log.symlink_to(tmp_path / "out" / "plans.jsonl")
    for folder, status in (("out/run", 422), ("out", 200), ("out/run", 422)):
        auditor = AuditInThisProcess()
        with serve(tmp_path / folder, cache=tmp_path / "cache", auditor=auditor) as client:
            assert client.get(ADDRESS).status_code == status


def test_a_damaged_run_says_so_until_it_is_mended(
    tmp_path: Path, cut_run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shelf, "LEAST_REST_SECONDS", 0.0)
    monkeypatch.setattr(shelf, "REST", 0.0)
    log = cut_run / "plans.jsonl"
    log.write_text("{broken\n" + log.read_text())
    auditor = CountedAudits()
    with served(tmp_path, auditor) as client:
        for attempt in (1, 2):  # what stood in the way may be gone although the files are the same
            response = client.get(ADDRESS)
            assert response.status_code == 422
            assert "plans.jsonl" in response.json()["problem"]
            assert auditor.count == attempt


def test_an_audit_whose_process_died_is_tried_again_after_a_rest(
    tmp_path: Path, cut_run: Path, monkeypatch: pytest.MonkeyPatch
):
    auditor = CountedAudits()
    run_audit = AuditInThisProcess.run

    def fail(*_: object) -> None:
        raise PoiseError("the audit ended with exit code -9")

    monkeypatch.setattr(AuditInThisProcess, "run", fail)
    with served(tmp_path, auditor) as client:
        for _ in range(2):
            assert client.get(ADDRESS).status_code == 422
        assert auditor.count == 1
        monkeypatch.setattr(AuditInThisProcess, "run", run_audit)
        monkeypatch.setattr(shelf, "FAILURE_REST_SECONDS", 0.0)
        assert get(client, ADDRESS)["state"] == "ready"


def test_the_process_reports_its_progress_and_ends_with_the_server(tmp_path: Path, cut_run: Path):
    reader = RunReader("run", cut_run, [tmp_path / "out"])
    audits = AuditShelf(tmp_path / "cache", shelf.AuditSubprocess())
    answer = audits.ask(reader, patience=600)
    assert answer.is_current
    assert answer.result["report"]["first"] == "cut_groups"
    launcher = shelf.AuditSubprocess()
    threading.Thread(target=kill_when_started, args=(launcher,), daemon=True).start()
    with pytest.raises(PoiseError, match="exit code -9: poise audit"):
        launcher.run(cut_run, [tmp_path], tmp_path / "cache", lambda *progress: None)


def kill_when_started(launcher: shelf.AuditSubprocess) -> None:
    while launcher._process is None:
        time.sleep(0.01)
    launcher._process.kill()
