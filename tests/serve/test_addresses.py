"""Every address answers in JSON with the numbers of the run's files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from report.synthetic import PIECES, write_run
from serve.served import encoded, get, line, serve, write_rollouts
from starlette.testclient import TestClient

from counterpoise.serve.index.query import encode_cursor
from counterpoise.store.credit_tables import credit_file, write_weights
from counterpoise.store.folder import RunFolder

LARGE_CURSOR = encode_cursor("-iteration", 1.0, 10**50)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    write_run(folder / "out" / "one", iterations=5)
    write_run(folder / "out" / "sweep" / "seed 1", iterations=3, microscope="off")
    with serve(folder / "out", cache=folder / "cache") as client:
        yield client, folder / "out" / "one"


def test_the_list_has_every_run_with_its_state_and_headline(served):
    client, _ = served
    runs = {run["name"]: run for run in get(client, "/")["runs"]}
    assert runs.keys() == {"one", "sweep/seed 1"}
    assert runs["one"]["iterations"] == 5
    assert runs["one"]["planned_iterations"] == 9
    assert runs["one"]["state"] == "failed"  # nobody trains it, and there is no checkpoint
    assert runs["one"]["headline"] == {"label": "held-out success", "value": 0.5}
    assert len(runs["one"]["sparkline"]) == 5
    assert runs["one"]["problem"] is None


def test_a_run_has_its_metrics_as_columns(served):
    client, path = served
    run = get(client, "/runs/one")
    records = RunFolder(path).read("metrics")
    for name in ("iteration", "success", "batch_rows", "flipped"):
        assert run["metrics"][name] == [record.get(name) for record in records]
    assert run["timing"]["sample"] == [record["sample_seconds"] for record in records]
    assert [each["mean"] for each in run["evaluations"]] == [0.25, 0.5]
    assert run["config"]["batch"]["composer"] == "grouped"
    assert run["terms"]["clipped_share"] == "tokens whose gradient the clip removed"
    assert get(client, f"/runs/{encoded('sweep/seed 1')}")["iterations"] == 3


def test_an_iteration_is_its_plan(served):
    client, path = served
    plan = next(plan for plan in RunFolder(path).read("plans") if plan["iteration"] == 4)
    view = get(client, "/runs/one/iterations/4")
    cells = [cell for step in view["steps"] for cell in step]
    assert [len(step) for step in view["steps"]] == [len(step) for step in plan["steps"]]
    assert [group["group"] for group in view["groups"]] == plan["groups"]
    for cell in cells:
        row = cell["row"]
        assert cell["advantage"] == plan["advantage"][row]
        assert cell["group"] == plan["group"][row]
        assert cell["waited"] == 4 - plan["born"][row]
        assert cell["reward"] in (0.0, 1.0)
        assert get(client, cell["place"])["trained_in"] == 4
    assert (view["previous"], view["next"]) == (3, 5)
    assert view["largest"] == max(map(abs, plan["advantage"]))


def test_an_iteration_without_an_update_says_why_it_is_empty(served):
    client, _ = served
    view = get(client, "/runs/one/iterations/1")
    assert (view["update"], view["steps"]) == (False, [])
    assert "rollouts wait in the buffer" in view["missing"]["steps"]
    assert view["waiting"]["positive"] + view["waiting"]["negative"] > 0


def test_a_run_of_ours_without_an_update_yet_is_not_called_an_import(tmp_path: Path):
    run = write_run(tmp_path / "run", 1)
    assert not (run / "plans.jsonl").exists()
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        reason = get(client, "/runs/run/iterations/1")["missing"]["steps"]
        assert "rollouts wait in the buffer" in reason
        table = get(client, "/runs/run/rollouts")
        rollout = get(client, table["rows"][0]["place"])
        assert (table["has_plans"], rollout["has_plans"]) == (True, True)
        assert rollout["missing"]["advantage"] == "no update has used the rollout"


def test_an_iteration_without_signal_has_nothing_that_waits(tmp_path: Path):
    run = write_run(tmp_path / "run", 1, tau=0.0)
    record = {"iteration": 2, "success": 1.0, "buffer_positive": 0, "buffer_negative": 0}
    with (run / "metrics.jsonl").open("a") as log:
        log.write(json.dumps(record) + "\n")
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        view = get(client, "/runs/run/iterations/2")
        assert view["missing"]["steps"].endswith("no rollout with signal is left")


def test_an_iteration_whose_outcome_is_unknown_is_not_said_to_have_no_update(tmp_path: Path):
    run = write_run(tmp_path / "run", 1, tau=0.0)
    write_rollouts(run, 2, line("2:a"))
    (run / "imported.json").unlink()
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        reason = get(client, "/runs/run/iterations/2")["missing"]["steps"]
        assert reason.startswith("metrics.jsonl has no line for this iteration")
    with (run / "metrics.jsonl").open("a") as log:  # without the buffer, as in another trainer
        log.write(json.dumps({"iteration": 2, "success": 0.5}) + "\n")
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        reason = get(client, "/runs/run/iterations/2")["missing"]["steps"]
        assert reason.startswith("plans.jsonl has no plan for this iteration")


def test_a_group_shows_its_rollouts_side_by_side(served):
    client, path = served
    group = "4:made/up/2"
    view = get(client, f"/runs/one/iterations/4/groups/{encoded(group)}")
    stored = [each for each in RunFolder(path).read_rollouts(4) if each["group"] == group]
    assert [each["reward"] for each in view["rollouts"]] == [each["reward"] for each in stored]
    assert [each["tokens"] for each in view["rollouts"]] == [
        len(each["response_tokens"]) for each in stored
    ]
    assert sum(each["advantage"] for each in view["rollouts"]) == pytest.approx(0, abs=1e-6)
    # The same group by another iteration's address: it is found where it was sampled.
    assert get(client, f"/runs/one/iterations/5/groups/{encoded(group)}")["born"] == 4


def trained_rollout(path: Path) -> tuple[dict, int]:
    """The plan of the last update, and a row whose pushes were stored."""
    plan = RunFolder(path).read("plans")[-1]
    pushes = pq.read_table(path / "pushes" / f"step_{plan['iteration']:05d}.parquet")
    return plan, int(pushes["row"][0].as_py())


def place_of(plan: dict, row: int) -> str:
    group = plan["groups"][plan["group"][row]]
    return f"/runs/one/rollouts/{plan['born'][row]}/{encoded(group)}/{plan['index'][row]}"


def test_a_rollout_has_every_column_of_its_tokens(served):
    client, path = served
    plan, row = trained_rollout(path)
    view = get(client, place_of(plan, row))
    table = pq.read_table(path / "tokens" / f"step_{plan['iteration']:05d}.parquet")
    mask = table["row"].to_numpy() == row
    tokens = view["tokens"]
    for name in ("displacement", "entropy", "advantage", "own", "same_token_same_query_positive"):
        assert tokens[name] == pytest.approx(table[name].to_numpy()[mask].tolist())
    assert tokens["token"] == table["token"].to_numpy()[mask].tolist()
    assert tokens["text"] == [PIECES[token] for token in tokens["token"]]
    assert tokens["ratio"] == pytest.approx([1.0] * len(tokens["token"]))
    expected = table["old_logprob"].to_numpy()[mask] + 0.5  # trainer - sampler
    assert tokens["sampler_mismatch"] == pytest.approx(expected.tolist(), abs=1e-6)
    assert view["missing"].keys() == {"credit of other methods"}
    assert view["watched"] is True
    assert view["place"] in view["watched_places"]
    assert len(view["siblings"]) == 4


def test_columns_that_were_not_stored_are_null_and_say_why(served):
    client, _ = served
    run = f"/runs/{encoded('sweep/seed 1')}"
    rows = get(client, f"{run}/rollouts", sign="positive")["rows"]
    view = get(client, rows[0]["place"])
    assert set(view["tokens"]["displacement"]) == {None}
    assert "monitor" in view["missing"]["displacement"]
    waiting = get(client, "/runs/one/rollouts", iteration_min=5, limit=100)["rows"]
    unused = next(row for row in waiting if row["trained_in"] is None)
    assert "no update" in get(client, unused["place"])["missing"]["entropy"]


def test_a_token_names_what_pushed_it_strongest_first(served):
    client, path = served
    plan, row = trained_rollout(path)
    view = get(client, f"{place_of(plan, row)}/tokens/1")
    table = pq.read_table(path / "pushes" / f"step_{plan['iteration']:05d}.parquet").to_pydict()
    stored = [
        table["push"][place]
        for place in range(len(table["push"]))
        if (table["row"][place], table["position"][place]) == (row, 1)
    ]
    pushes = [push["push"] for push in view["pushes"]]
    assert sorted(pushes) == pytest.approx(sorted(set(stored)), rel=1e-6)
    assert view["pushes"][0]["push"] == max(pushes)
    for push in view["pushes"]:
        source = get(client, push["place"])
        assert source["tokens"]["token"][push["position"]] == push["token"]
        assert push["text"] == PIECES[push["token"]]
    # Of the first group of a batch, tests/report/synthetic.py stores what else was likely.
    likely = view["distribution"]
    assert [round(each["probability"], 3) for each in likely] == [0.6, 0.3]
    assert [round(each["new_probability"], 3) for each in likely] == [0.7, 0.2]
    token = get(client, place_of(plan, row))["tokens"]["token"][1]
    assert [each["token"] for each in likely] == [token, token + 1]
    assert likely[0]["text"] == PIECES[token]
    assert view["replay"] is None
    assert client.get(f"{place_of(plan, row)}/tokens/999").status_code == 400


def test_weights_of_other_methods_and_what_is_missing(tmp_path):
    path = write_run(tmp_path / "one", 2, tau=0.0)
    plan, row = trained_rollout(path)
    address = place_of(plan, row)
    name = (plan["groups"][plan["group"][row]], plan["index"][row])
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        view = get(client, address)
        assert view["missing"]["credit of other methods"] == (
            f"poise credit NAME {path} --iteration 2 stores their weights"
        )
        length = view["length"]
        weights = np.linspace(0, 2, length, dtype=np.float32)
        write_weights(path, 2, [name], {"gtpo": [np.ones(length, np.float32)]})
        write_weights(path, 2, [name], {"shear width=16": [weights]})  # the first stays
        view = get(client, address)
        assert view["tokens"]["weight gtpo"] == [1.0] * length
        assert view["tokens"]["weight shear width=16"] == pytest.approx(weights.tolist())
        credit = [each for each in view["quantities"] if each["name"].startswith("weight ")]
        assert [(each["title"], each["family"], each["centre"]) for each in credit] == [
            ("gtpo", "Credit", 1.0),
            ("shear width=16", "Credit", 1.0),
        ]
        assert "credit of other methods" not in view["missing"]
        other = next(i for i in range(len(plan["group"])) if i != row)
        assert (
            "has no signal"
            in get(client, place_of(plan, other))["missing"]["credit of other methods"]
        )
        credit_file(path, 2).write_bytes(b"PAR1garbagePAR1")
        view = get(client, address)
        assert "credit/step_00002.parquet is damaged" in view["missing"]["credit of other methods"]
        for kind in ("pushes", "likely"):
            (path / kind / "step_00002.parquet").write_bytes(b"")
        token = get(client, f"{address}/tokens/1")
        assert "pushes/step_00002.parquet is damaged" in token["missing"]
        assert "likely/step_00002.parquet is damaged" in token["distribution_missing"]
        assert token["replay"]["command"].startswith(f"poise replay {path} --model ")


def test_a_rollout_that_was_dropped_or_waited_long_says_so_at_every_address(tmp_path: Path):
    run = tmp_path / "run"
    write_rollouts(run, 1, line("1:a", "dropped"), line("1:a", "waits"))
    (run / "config.toml").write_text("[balance]\nmax_age = 90\n")
    folder = RunFolder(run)
    folder.append("drops", {"iteration": 1, "surplus": {"1:a": [0]}})
    for iteration in range(1, 91):
        is_last = iteration == 90
        plan = {
            "iteration": iteration, "rule": "whole", "steps": [[0]], "group": [0],
            "groups": ["1:a" if is_last else f"{iteration}:b"], "index": [int(is_last)],
            "advantage": [0.5], "tokens": [3], "born": [1 if is_last else iteration],
            "describe": {},
        }  # fmt: skip
        folder.append("plans", plan)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        address = f"/runs/run/rollouts/1/{encoded('1:a')}"
        assert "it was dropped (surplus)" in get(client, f"{address}/0/tokens/1")["missing"]
        assert get(client, f"{address}/1")["trained_in"] == 90
        rows = get(client, "/runs/run/rollouts")["rows"]
        assert {row["index"]: row["trained_in"] for row in rows} == {0: None, 1: 90}


def test_a_prompt_is_looked_for_until_the_run_is_indexed(tmp_path: Path):
    write_rollouts(tmp_path / "run", 1, line("1:a"))
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        follow, client.library.indexer.follow = client.library.indexer.follow, lambda *_: None
        view = get(client, "/runs/run/prompts/a")
        assert (view["over_time"], view["indexed"]) == ([], 0.0)
        client.library.indexer.follow = follow
        view = get(client, "/runs/run/prompts/a")
        assert ([each["iteration"] for each in view["over_time"]], view["indexed"]) == ([1], 1.0)


def test_a_prompt_over_time(served):
    client, path = served
    prompt = RunFolder(path).read_rollouts(3)[0]["prompt_id"]
    view = get(client, f"/runs/one/prompts/{encoded(prompt)}")
    stored = [each for each in RunFolder(path).read_rollouts(3) if each["prompt_id"] == prompt]
    assert [point["iteration"] for point in view["over_time"]] == [3]
    point = view["over_time"][0]
    assert point["success"] == np.mean([each["reward"] > 0 for each in stored])
    assert point["mean_length"] == np.mean([len(each["response_tokens"]) for each in stored])
    assert point["responses"][0]["response"] == "The answer is 3."
    listed = get(client, "/runs/one/prompts", sort="-mean_reward", limit=5)
    assert listed["total"] == 30
    assert listed["rows"][0]["mean_reward"] == 1.0
    second = get(client, "/runs/one/prompts", sort="-mean_reward", limit=5, after=listed["next"])
    assert not {row["prompt_id"] for row in listed["rows"]} & {
        row["prompt_id"] for row in second["rows"]
    }


def test_the_success_of_a_prompt_leaves_out_anchors(tmp_path: Path):
    right, anchor = line(reward=1.0), line(reward=0.0, anchor=True)
    write_rollouts(tmp_path / "run", 1, right, right, anchor)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        (row,) = get(client, "/runs/run/prompts")["rows"]
        assert (row["first_success"], row["mean_reward"], row["successes"]) == (1.0, 1.0, [1.0])
        (visit,) = get(client, "/runs/run/prompts/a")["over_time"]
        assert (visit["success"], visit["mean_reward"], visit["count"]) == (1.0, 1.0, 3)
        assert [each["anchor"] for each in visit["responses"]] == [False, False, True]


def test_prompts_are_found_by_their_text_and_by_their_id(tmp_path: Path):
    texts = {"a": "Add Seven and two.", "b": "How many sheep?", "seven": "Count."}
    lines = [line(f"1:{name}", "x" * 301, prompt=text) for name, text in texts.items()]
    write_rollouts(tmp_path / "lr=1,tau=0%", 1, *lines)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        run = f"/runs/{encoded('lr=1,tau=0%')}"
        for search, expected, words in (
            ("seven", ["a", "seven"], ["seven"]),
            ("seven TWO", ["a"], ["seven", "two"]),
            ('"and TWO"', ["a"], ["and two"]),
            ("eight", [], ["eight"]),
        ):
            page = get(client, f"{run}/prompts", search=search)
            assert page["search"] == words
            assert [row["prompt_id"] for row in page["rows"]] == expected
            assert page["total"] == len(expected)
        (response,) = get(client, f"{run}/prompts/b")["over_time"][0]["responses"]
        assert (len(response["response"]), response["response_cut"]) == (300, True)
        # A comma or a percent sign in a name does not split or change it.
        overlay = client.get("/overlay", params={"run": "lr=1,tau=0%"}).json()
        assert [each["name"] for each in overlay["runs"]] == ["lr=1,tau=0%"]


def test_a_response_without_tokens_has_none_to_look_at(tmp_path: Path):
    empty = json.loads(line(response="")) | {"response_tokens": [], "sampled_logprobs": []}
    write_rollouts(tmp_path / "run", 1, json.dumps(empty) + "\n")
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        answer = client.get(f"/runs/run/rollouts/1/{encoded('1:a')}/0/tokens/5")
        assert answer.status_code == 400
        assert answer.json()["problem"] == "the response has no tokens: there is no token 5"


def test_a_diff_gives_back_both_texts(served):
    client, _ = served
    view = get(client, "/runs/one/diff", left="4/4:made/up/2/1", right="3/3:made/up/2/0")
    for side in ("left", "right"):
        parts = [part["text"] for part in view["parts"] if part["kind"] in ("same", side)]
        assert "".join(parts) == view[side]["response"]


def test_types_and_overlay(served):
    client, _ = served
    types = get(client, "/runs/one/types")
    assert types["types"][0]["text"] == "3"
    assert types["types"][0]["cancellation"] == [0.9] * len(types["iterations"])
    for query in ("run=one&run=sweep%2Fseed%201", "runs=one,sweep%2Fseed%201"):
        runs = client.get(f"/overlay?{query}").json()["runs"]
        assert [len(run["metrics"]["success"]) for run in runs] == [5, 3]


def test_pages_to_save_are_downloads_without_scripts_of_ours(served):
    client, _ = served
    response = client.get("/runs/one/rollouts.html", params={"search": "answer"})
    assert response.headers["content-disposition"].startswith("attachment")
    assert "120 of 120 rollouts; search answer; sorted by iteration, largest" in response.text
    cursor = get(client, "/runs/one/rollouts", sort="length")["next"]
    parameters = {"sort": "length", "after": cursor, "format": "json"}
    response = client.get("/runs/one/rollouts.html", params=parameters)
    assert "120 of 120 rollouts; no filter; sorted by length.</p>" in response.text
    assert "<script" not in response.text


def test_a_browser_gets_the_page_and_a_script_gets_json(served):
    client, _ = served
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for address in ("/", "/runs/one", "/runs/one/rollouts/4/4%3Amade%2Fup%2F2/1", "/nowhere"):
        page = client.get(address, headers=browser)
        assert page.headers["content-type"].startswith("text/html"), address
    asked = client.get("/runs/one?format=json", headers=browser)
    assert asked.headers["content-type"] == "application/json"
    assert client.get("/runs/one", headers={"accept": "*/*"}).json()["name"] == "one"
    assert client.get("/assets/main.js").headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/runs/nobody", 404, "no run nobody"),
        ("/runs/one/iterations/77", 404, "step_00077"),
        ("/runs/one/iterations/x", 400, "not a number"),
        ("/runs/one/rollouts/4/nobody/0", 404, "no rollout 0"),
        ("/runs/one/prompts/nobody", 404, "no rollouts of the prompt"),
        ("/runs/one/rollouts?sort=colour", 400, "choose one of iteration"),
        (
            "/runs/one/rollouts?reward=1&format=json",
            400,
            "unknown parameter reward: choose from re",
        ),
        ("/runs/one/prompts?sorted=x", 400, "choose from sort, after, limit, search, format"),
        ("/runs/one?reward=1", 400, "unknown parameter reward: choose from format"),
        ("/?run=one", 400, "unknown parameter run: choose from format"),
        ("/overlay?run=one&x=1", 400, "unknown parameter x: choose from run, runs, format"),
        ("/runs/one/rollouts?reward_min=much", 400, "not a number"),
        ("/runs/one/rollouts?after=nonsense", 400, "cursor"),
        (f"/runs/one/rollouts?after={LARGE_CURSOR}", 400, "cursor"),
        ("/runs/one/rollouts?limit=0", 400, "1 to 500"),
        ("/runs/one/diff?left=1&right=2", 400, "ITERATION/GROUP/INDEX"),
        ("/overlay", 400, "run=A&run=B"),
        ("/nowhere/at/all", 404, "nothing at this address"),
        ("/assets/app.py", 404, "nothing at this address"),
        ("/assets/..%2fapp.py", 404, "nothing at this address"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(served, address, status, words):
    client: TestClient = served[0]
    response = client.get(address)
    assert response.status_code == status
    assert words in response.json()["problem"]


def test_nothing_in_a_run_folder_is_touched(served):
    client, path = served

    def state() -> dict[str, tuple[int, int]]:
        files = sorted(path.rglob("*"))
        return {
            str(file): (file.stat().st_mtime_ns, file.stat().st_size) for file in [path, *files]
        }

    before = state()
    for address in ("/", "/runs/one", "/runs/one/rollouts?search=3", "/runs/one/types"):
        get(client, address)
    assert state() == before


def test_an_imported_run_without_plans_or_config(tmp_path: Path):
    write_run(tmp_path / "theirs", iterations=2)
    (tmp_path / "theirs" / "config.toml").unlink()
    (tmp_path / "theirs" / "plans.jsonl").unlink()
    (tmp_path / "theirs" / "imported.json").write_text(
        json.dumps({"source": "TRL", "notes": [], "options": {}})
    )
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        (run,) = get(client, "/")["runs"]
        assert run["problem"] is None
        rows = get(client, "/runs/theirs/rollouts")["rows"]
        assert {row["advantage"] for row in rows} == {None}
        assert "no plans.jsonl" in get(client, "/runs/theirs/iterations/1")["missing"]["steps"]


def test_an_import_is_counted_by_its_iterations(tmp_path: Path):
    run = write_run(tmp_path / "theirs", iterations=2)
    (run / "config.toml").unlink()
    (run / "imported.json").write_text(json.dumps({"source": "verl", "notes": []}))
    lines = (run / "metrics.jsonl").read_text().replace('"iteration": 2,', '"iteration": 103,')
    (run / "metrics.jsonl").write_text(lines)
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        (entry,) = get(client, "/")["runs"]
        assert (entry["counted_iterations"], entry["iterations"]) == (2, 103)


def test_a_response_without_a_text_is_not_an_empty_one(tmp_path: Path):
    absent = json.loads(line(group="1:b"))
    del absent["response"]
    run = tmp_path / "run"
    write_rollouts(run, 1, line(response=""), json.dumps(absent) + "\n")
    with serve(tmp_path, cache=tmp_path / "cache") as client:
        rows = {row["group"]: row for row in get(client, "/runs/run/rollouts")["rows"]}
        for group, response in (("1:a", ""), ("1:b", None)):
            row, group_name = rows[group], encoded(group)
            assert row["response"] == response
            view = get(client, row["place"])
            assert view["response"] == response
            assert ("response" in view["missing"]) == (response is None)
            members = get(client, f"/runs/run/iterations/1/groups/{group_name}")["rollouts"]
            assert [each["response"] for each in members] == [response]
            visits = get(client, f"/runs/run/prompts/{encoded(row['prompt_id'])}")["over_time"]
            assert visits[0]["responses"][0]["response"] == response
        diff = get(client, "/runs/run/diff", left="1/1:a/0", right="1/1:b/0")
        assert (diff["left"]["response"], diff["right"]["response"]) == ("", None)
        page = client.get("/runs/run/rollouts.html").text
        assert page.count("no text stored") == 1


def test_a_rollout_whose_tokens_were_not_stored_is_shown_all_the_same(tmp_path: Path):
    run = write_run(tmp_path / "out" / "run", iterations=2)
    (run / "tokens" / "step_00002.parquet").unlink()
    with serve(tmp_path / "out", cache=tmp_path / "cache") as client:
        batch = get(client, "/runs/run/iterations/2")
        view = get(client, batch["steps"][0][0]["place"])
        assert view["response"]
        assert "tokens of iteration 2 were not stored" in view["missing"]["displacement"]
