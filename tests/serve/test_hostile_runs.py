"""Whatever a run folder holds, it is delivered as data, and the other runs stay usable."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from report.synthetic import write_run
from serve.served import all_rows, encoded, get, line, serve, write_rollouts

HOSTILE = (
    "</script><script>window.hacked = 1</script><img src=x onerror='hacked()'>"
    "\x1b]0;title\x07\x1b[2J\u202egnp.exe\u202c\u2066 \x00\x7f\x9b {{ 7 * 7 }} \\u003c"
)


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "a'b\"c", "\u202eexe", "%2e%2e"])
def test_hostile_texts_and_names_come_back_as_they_are(tmp_path: Path, name: str):
    run = write_run(
        tmp_path / name, 3, response=HOSTILE, prompt=HOSTILE, prompt_id=f"../{HOSTILE[:40]}",
        pieces=[HOSTILE] * 9,
    )  # fmt: skip
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        raw = client.get("/").content
        assert raw.isascii()  # a terminal shows it without acting on it
        assert b"\x1b" not in client.get(f"/runs/{encoded(name)}/rollouts").content
        assert b"\x7f" not in client.get(f"/runs/{encoded(name)}/rollouts").content
        assert get(client, "/")["runs"][0]["name"] == name
        address = f"/runs/{encoded(name)}/rollouts"
        rows = get(client, address, search='"window.hacked = 1"', sign="positive")["rows"]
        assert {row["response"] for row in rows} == {HOSTILE}
        view = get(client, rows[0]["place"])
        assert (view["prompt"], view["response"]) == (HOSTILE, HOSTILE)
        page = client.get(f"{address}.html")
        assert "<script" not in page.text
        assert "<img" not in page.text
        assert "window.hacked = 1" in page.text
        assert not set("\x1b\x00\u202e\x9b") & set(page.text)
        assert "sandbox" in page.headers["content-security-policy"]
    assert run.is_dir()


def test_a_response_of_ten_megabytes(tmp_path: Path):
    long_text = "word " * 2_000_000
    lines = [line("1:a", f"{long_text} end"), line("1:b", "short")]
    write_rollouts(tmp_path / "run", 1, *lines)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        rows = all_rows(client, "/runs/run/rollouts", search="word")
        assert [row["response"] for row in rows] == [long_text[:300]]
        view = get(client, rows[0]["place"])
        assert len(view["response"]) == 1_000_000
        assert view["response_cut"] is True
        group = get(client, f"/runs/run/iterations/1/groups/{encoded('1:a')}")
        assert group["rollouts"][0]["response_cut"] is True
        diff = get(client, "/runs/run/diff", left="1/1:a/0", right="1/1:b/0")
        assert [part["kind"] for part in diff["parts"]] == ["left", "right"]


def test_torn_lines_are_counted_and_the_others_shown(tmp_path: Path):
    run = write_run(tmp_path / "run", 3)
    file = run / "rollouts" / "step_00002.jsonl"
    text = file.read_text()
    file.write_text("{broken\n" + text + text.splitlines()[0][:80])
    with (run / "metrics.jsonl").open("ab") as log:
        log.write(b'{"iteration": 3, "succ')  # a line that is being written is no fault
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        page = get(client, "/runs/run/rollouts")
        assert (page["total"], page["problem_count"]) == (72, 1)
        assert "step_00002.jsonl: 2 damaged, first line 1" in page["problems"][0]
        assert get(client, "/")["runs"][0]["problem"] is None


@pytest.mark.parametrize("log", ["metrics", "evaluations"])
@pytest.mark.parametrize(
    "damage",
    [
        b"\xff\xfe\n",
        b"[1]\n",
        b'{"iteration": 1%s}\n' % (b"0" * 30),
        b'{"iteration": -1}\n',
        b"[" * 99999 + b"\n",
        b"{}\n",
    ],
)
def test_a_damaged_log_is_a_problem_of_its_run_only(tmp_path: Path, log: str, damage: bytes):
    write_run(tmp_path / "good", 2)
    run = write_run(tmp_path / "bad", 2)
    with (run / f"{log}.jsonl").open("ab") as file:
        file.write(damage)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        runs = {each["name"]: each for each in get(client, "/")["runs"]}
        assert runs["good"]["problem"] is None
        assert f"{log}.jsonl is damaged: line 3" in runs["bad"]["problem"]
        assert runs["bad"]["state"] == "torn"
        assert runs["bad"]["iterations"] == 2  # the other lines are still used
        assert get(client, "/runs/bad")["alerts"][0]["level"] == "error"
        assert get(client, "/runs/bad/rollouts")["total"] == 48


def test_numbers_that_json_cannot_hold(tmp_path: Path):
    run = write_run(tmp_path / "run", 1)
    record = {"iteration": 2, "success": 0.5, "loss": 1e999, "grad_norm": -1e999}
    huge = f'{{"iteration": 3, "success": {"9" * 400}, "loss": NaN, "odd": "<b>"}}\n'
    with (run / "metrics.jsonl").open("a") as log:
        log.write(json.dumps(record) + "\n" + huge)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        view = get(client, "/runs/run")
        assert view["metrics"]["loss"][1:] == [None, None]
        assert "odd" not in view["metrics"]
        assert [alert["text"] for alert in view["alerts"] if alert["iteration"] == 2] == [
            "loss is not finite",
            "grad_norm is not finite",
        ]
        # NaN is not the same as an absent loss.
        assert [alert["iteration"] for alert in view["alerts"]] == [3, 2, 2]


def test_fates_that_no_table_can_hold_do_not_stop_the_index(tmp_path: Path):
    run = tmp_path / "run"
    write_rollouts(run, 1, line("1:a", "yes"), line("1:\\ud800", "no").replace("\\\\", "\\"))
    plan = {
        "schema": 1, "iteration": 1, "rule": "whole", "steps": [[0, 1, 2]], "group": [0, 0, 0],
        "groups": ["1:a"], "index": [0, 2**40, 1], "advantage": [0.5, 0.5, 0.5],
        "tokens": [3, 3, 3], "born": [1, 1, 2**40], "describe": {},
    }  # fmt: skip
    (run / "plans.jsonl").write_text(json.dumps(plan) + "\n")
    drops = {"schema": 1, "iteration": 1, "surplus": {"1:\ud800": [0]}}
    (run / "drops.jsonl").write_text(json.dumps(drops) + "\n")
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        rows = {row["response"]: row for row in get(client, "/runs/run/rollouts")["rows"]}
    assert (rows["yes"]["advantage"], rows["no"]["dropped"]) == (0.5, "surplus")


def test_broken_parquet_is_named_and_the_rollout_is_still_readable(tmp_path: Path):
    run = write_run(tmp_path / "run", 4)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        row = get(client, "/runs/run/rollouts", sign="positive")["rows"][0]
        tokens = run / "tokens" / f"step_{row['trained_in']:05d}.parquet"
        for content in (b"", b"PAR1garbagePAR1", tokens.read_bytes()[:-40], b"\x00" * 5000):
            tokens.write_bytes(content)
            response = client.get(row["place"])
            assert response.status_code == 200
            missing = response.json()["missing"]
            assert f"tokens/{tokens.name} is damaged" in missing["entropy"]
            assert response.json()["response"] == "The answer is 3."
            assert client.get(f"{row['place']}/tokens/0").status_code == 200
        assert get(client, "/runs/run")["name"] == "run"


def test_pushes_are_shown_without_the_table_of_tokens(tmp_path: Path):
    run = write_run(tmp_path / "run", 4)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        rows = all_rows(client, "/runs/run/rollouts", limit=100)
        place = next(row["place"] for row in rows if get(client, row["place"])["watched"])
        pushes = get(client, f"{place}/tokens/0")["pushes"]
        tokens = run / "tokens" / f"step_{get(client, place)['trained_in']:05d}.parquet"
        tokens.write_bytes(b"damaged")
        view = get(client, f"{place}/tokens/0")
        assert "is damaged" in view["missing"]
        assert [push["push"] for push in view["pushes"]] == [push["push"] for push in pushes]
        assert {push["text"] for push in view["pushes"]} == {None}
        tokens.unlink()
        assert get(client, f"{place}/tokens/0")["pushes"] == view["pushes"]


@pytest.mark.parametrize(
    "plan",
    [
        {"steps": [[99]], "group": [0], "groups": ["1:a"]},
        {"steps": "x"},
        {"steps": [[0]], "group": [7], "groups": ["1:a"], "index": [0], "advantage": [1],
         "tokens": [1], "born": [1]},
        {"steps": [[0]], "group": [0], "groups": [{"x": 1}], "index": [0], "advantage": [1],
         "tokens": [1], "born": [1]},
    ],
)  # fmt: skip
def test_a_plan_that_does_not_fit_together_is_left_out(tmp_path: Path, plan: dict):
    write_rollouts(tmp_path / "run", 1, line("1:a"))
    (tmp_path / "run" / "plans.jsonl").write_text(json.dumps({"iteration": 1, **plan}) + "\n")
    (tmp_path / "run" / "drops.jsonl").write_text(
        json.dumps({"iteration": 1, "aged": {"1:a": "x"}, "surplus": [1]}) + "\n"
    )
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        assert get(client, "/runs/run/iterations/1")["steps"] == []
        assert get(client, "/runs/run/rollouts")["rows"][0]["advantage"] is None
        get(client, "/runs/run/rollouts/1/1%3Aa/0")


def test_links_that_lead_out_of_the_folders_are_not_followed(tmp_path: Path):
    secret = write_run(tmp_path / "secret", 2, response="SECRET", prompt="SECRET")
    served = tmp_path / "served"
    run = write_run(served / "run", 2)
    (served / "linked").symlink_to(secret)  # a whole run
    shutil.copy(run / "config.toml", tmp_path / "secret.toml")
    for name in ("metrics.jsonl", "plans.jsonl", "config.toml", "vocabulary.json"):
        (run / name).unlink()
        (run / name).symlink_to(secret / name)
    (run / "rollouts" / "step_00001.jsonl").unlink()
    (run / "rollouts" / "step_00001.jsonl").symlink_to(secret / "rollouts" / "step_00001.jsonl")
    (run / "rollouts" / "step_00009.jsonl").symlink_to("/etc/passwd")
    shutil.rmtree(run / "tokens")
    (run / "tokens").symlink_to(secret / "tokens")
    with serve(served, cache=tmp_path / "cache") as client:
        (listed,) = get(client, "/")["runs"]
        assert listed["name"] == "run"
        assert "leads out of the served folders" in listed["problem"]
        assert get(client, "/runs/run")["metrics"] == {"iteration": []}
        rows = all_rows(client, "/runs/run/rollouts")
        assert {row["iteration"] for row in rows} == {2}
        assert client.get("/runs/run/iterations/1").status_code == 404
        assert client.get("/runs/run/iterations/9/groups/root").status_code == 404
        answers = [client.get(row["place"]).text for row in rows]
        assert not [answer for answer in answers if "SECRET" in answer]
        # These read the run's files by themselves, so any such link refuses them.
        (run / "probes.jsonl").symlink_to(secret / "plans.jsonl")
        for address in ("/runs/run/page", "/runs/run/trace"):
            answer = client.get(address)
            assert answer.status_code == 422
            assert "leads out of the served folders" in answer.json()["problem"]


def test_links_inside_the_folders_are_followed(tmp_path: Path):
    run = write_run(tmp_path / "store" / "run", 2)
    (tmp_path / "latest").symlink_to(run)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        assert len(get(client, "/")["runs"]) == 1  # one folder, however many names
        assert get(client, "/runs/store%2Frun")["iterations"] == 2


@pytest.mark.parametrize(
    "name", ["..", "../secret", "/etc", "one/../..", ".", "%2e%2e", "one\x00", "", "one/"]
)
def test_names_of_runs_are_no_paths(tmp_path: Path, name: str):
    write_run(tmp_path / "served" / "one", 1)
    write_run(tmp_path / "secret", 1)
    with serve(tmp_path / "served", cache=tmp_path / "cache") as client:
        response = client.get(f"/runs/{encoded(name)}")
        # The client itself shortens /runs/.. to /, the list of runs.
        assert response.status_code == (200 if name == ".." else 404)
        assert "secret" not in response.text.replace("/secret", "")


def test_a_run_that_is_deleted_or_replaced_meanwhile(tmp_path: Path):
    run = write_run(tmp_path / "run", 3)
    write_run(tmp_path / "other", 1)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        row = get(client, "/runs/run/rollouts")["rows"][0]
        (run / "rollouts" / f"step_{row['iteration']:05d}.jsonl").write_text(line("9:x", "else"))
        page = get(client, "/runs/run/rollouts", limit=100)
        assert "The answer is 3." in {each["response"] for each in page["rows"]}
        shutil.rmtree(run)
        assert client.get(row["place"]).status_code == 404
        assert client.get("/runs/run/rollouts").status_code in (200, 404)
        client.library._next_search = float("-inf")
        assert client.get("/runs/run").status_code == 404
        assert [each["name"] for each in get(client, "/")["runs"]] == ["other"]
        write_run(tmp_path / "run", 2)
        client.library._next_search = client.library._refreshed = float("-inf")
        assert get(client, "/runs/run/rollouts")["total"] == 48


def test_a_row_whose_file_changed_shows_no_other_text(tmp_path: Path):
    from counterpoise.serve.index.query import RolloutSearch
    from counterpoise.serve.views.rollouts import CHANGED, rollouts_view

    path = write_rollouts(tmp_path / "run", 1, line("1:a", "mine"), line("1:b", "mine too"))
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        get(client, "/runs/run/rollouts")
        path.write_text(line("1:c", "else", 0.0) * 2)
        # The index has not been brought up to date since.
        (entry,) = client.library._tables.values()
        search: RolloutSearch = entry.search
        rows = rollouts_view(client.library.readers["run"], search, {})["rows"]
        assert {(row["response"], row["problem"]) for row in rows} == {("", CHANGED)}
