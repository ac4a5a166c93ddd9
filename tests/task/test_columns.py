"""Data as people have it: file formats, columns recognised by name, chat messages, answers, ids."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.task.columns import FieldOptions, final_answer
from counterpoise.task.files_task import load, read_problems
from counterpoise.task.load import load_run_task
from counterpoise.task.read_files import look_up
from counterpoise.types import Message, Prompt

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "1 + 1 = ?"}
SAID = {"role": "assistant", "content": "1 + 1 makes \\boxed{2}."}
CHAT = (Message("system", "Be brief."), Message("user", "1 + 1 = ?"))
FREE = FieldOptions(answers_required=False)


def write(path, records):
    """Records as the format that the file's name says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(records))
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def verl_rows(count, **extra):
    return [
        {
            "data_source": "openai/gsm8k",
            "prompt": [SYSTEM, {"role": "user", "content": f"{k} + 1 = ?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(k + 1)},
            "extra_info": {"index": 7 * k, "split": "train", **extra},
        }
        for k in range(count)
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_verls_data(tmp_path, suffix):
    rows = verl_rows(3)
    task = load(write(tmp_path / f"train{suffix}", rows), heldout=0)
    assert [p.id for p in task.train] == ["0", "7", "14"]
    assert [p.problem for p in task.train] == ["0 + 1 = ?", "1 + 1 = ?", "2 + 1 = ?"]
    assert [p.answer for p in task.train] == ["1", "2", "3"]
    assert task.train[1].messages == CHAT
    assert [p.columns for p in task.train] == rows  # a reward gets them as they were
    assert task.columns_line == (
        "reading prompts from 'prompt' (chat), answers from 'reward_model.ground_truth', "
        "ids from 'extra_info.index'"
    )


@pytest.mark.parametrize("column", ["problem", "prompt", "question", "query"])
def test_plain_texts_under_their_usual_names(tmp_path, column):
    rows = [{column: f"{k} + 1 = ?", "answer": k + 1, "level": k} for k in range(3)]
    for suffix in (".jsonl", ".json", ".parquet"):
        task = load(write(tmp_path / f"a{suffix}", rows), heldout=0)
        assert task.train == [Prompt(str(k), f"{k} + 1 = ?", str(k + 1)) for k in range(3)]
        assert [p.columns["level"] for p in task.train] == [0, 1, 2]
        assert task.columns_line == (
            f"reading prompts from '{column}', answers from 'answer', ids from row numbers"
        )


def test_messages_whose_last_turn_is_the_answer(tmp_path):
    talk = [SYSTEM, USER, {"role": "assistant", "content": "2"}, USER, SAID]
    task = load(write(tmp_path / "a.jsonl", [{"messages": talk}]), heldout=0)
    (prompt,) = task.train
    assert [message.role for message in prompt.messages] == ["system", "user", "assistant", "user"]
    assert prompt.problem == "user: 1 + 1 = ?\n\nassistant: 2\n\nuser: 1 + 1 = ?"
    assert (prompt.answer, prompt.solution) == ("2", SAID["content"])
    assert "answers from the assistant's last turn" in task.columns_line
    # A column of answers comes first, and the turn is left out of the prompt all the same.
    (named,) = read_problems(write(tmp_path / "b.jsonl", [{"messages": talk, "ground_truth": 5}]))
    assert (named.answer, named.messages) == ("5", prompt.messages)


def test_a_prompt_may_begin_the_response(tmp_path):
    begun = {"role": "assistant", "content": "Let me see."}
    rows = [{"prompt": [USER, begun], "answer": 2}]
    (prompt,) = read_problems(write(tmp_path / "a.json", rows))
    assert [message.role for message in prompt.messages] == ["user", "assistant"]


def test_sharegpt_and_lists_of_text_parts(tmp_path):
    shared = [{"from": "human", "value": "1 + 1 = ?"}, {"from": "gpt", "value": "2"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "1 + "}, {"text": "1 = ?"}]}]
    rows = [{"conversations": shared, "answer": 2}, {"conversations": parts, "answer": 2}]
    prompts = read_problems(write(tmp_path / "a.jsonl", rows))
    assert [p.messages for p in prompts] == [CHAT[1:], CHAT[1:]]


def test_gsm8k(tmp_path):
    rows = [{"question": "How much?", "answer": "She has 9 * 2 = <<9*2=18>>18.\n#### 1,018"}]
    (prompt,) = read_problems(write(tmp_path / "a.jsonl", rows))
    solution = "She has 9 * 2 = 18.\nThe answer is \\boxed{1018}."
    assert prompt == Prompt("0", "How much?", "1018", solution)
    assert final_answer("(1, 2)") == "(1, 2)"
    assert final_answer("#### (1, 2)") == "(1, 2)"


@pytest.mark.parametrize(
    ("solution", "answer", "kept"),
    [("34", "34", ""), ("So it is \\boxed{34}.", "34", "So it is \\boxed{34}.")],
)
def test_solutions_that_hold_the_answer(tmp_path, solution, answer, kept):
    rows = [{"prompt": "p", "solution": solution}]
    for fields in (FieldOptions(), FREE):  # the box is found whether the reward needs it or not
        (prompt,) = read_problems(write(tmp_path / "a.jsonl", rows), fields)
        assert (prompt.answer, prompt.solution) == (answer, kept)


LETTER = {
    "long": "We are sorry to hear that. " * 20 + "Yours",
    "of two lines": "We are sorry.\nYours",
}


@pytest.mark.parametrize("letter", LETTER.values(), ids=LETTER)
@pytest.mark.parametrize("chat", [True, False])
def test_a_worked_solution_that_is_no_short_answer_is_kept_as_it_is(tmp_path, letter, chat):
    said = {"role": "assistant", "content": letter}
    row = {"messages": [USER, said]} if chat else {"problem": "p", "solution": letter}
    (prompt,) = read_problems(write(tmp_path / "a.jsonl", [row]), FREE)
    assert (prompt.answer, prompt.solution) == (letter, letter)


def test_the_tests_of_a_program_are_not_put_into_a_box(tmp_path):
    program = "```python\ndef f(x):\n    return x\n```"
    row = {"problem": "p", "answer": "assert f(1) == 1\nassert f(2) == 2", "solution": program}
    (prompt,) = read_problems(write(tmp_path / "a.jsonl", [row]))
    assert (prompt.answer, prompt.solution) == (row["answer"], program)


def test_a_list_of_one_answer_is_that_answer(tmp_path):
    rows = [{"prompt": "p", "answer": [value]} for value in ("$2$", 2, "so 2.\n#### 2")]
    for fields in (FieldOptions(), FREE):
        prompts = read_problems(write(tmp_path / "a.jsonl", rows), fields)
        assert [prompt.answer for prompt in prompts] == ["2", "2", "2"]
    assert final_answer(["$2$", "3"]) == "2"


def test_json_in_its_forms(tmp_path):
    rows = [{"question": f"{k}?", "answer": 0.10} for k in range(2)]
    path = tmp_path / "a.json"
    contents = [
        json.dumps(rows),
        json.dumps(rows, indent=2),
        json.dumps({"version": 1, "data": rows}),
        "\n".join(map(json.dumps, rows)),
    ]
    for content in contents:
        path.write_text(content.replace("0.1", "0.10"))
        assert [p.answer for p in read_problems(str(path))] == ["0.10", "0.10"]
    for form in (("role", "content"), ("from", "value")):  # one record, whose list is a chat
        turns = [
            dict(zip(form, turn, strict=True)) for turn in (("user", "1?"), ("assistant", "2"))
        ]
        for indent in (None, 1):
            path.write_text(json.dumps({"messages": turns, "level": 3}, indent=indent))
            (prompt,) = read_problems(str(path))
            assert (prompt.problem, prompt.answer) == ("1?", "2")
    path.write_text('[\n\n\n{"question": }]')
    with pytest.raises(PoiseError, match=r"not JSON \(Expecting value: line 4 column 14"):
        read_problems(str(path))  # blank lines count
    path.write_text("\n\n" + "\n\n".join(map(json.dumps, rows)))
    assert [p.id for p in read_problems(str(path))] == ["0", "1"]
    path.write_text(json.dumps({"a": rows, "b": rows}, indent=1))
    with pytest.raises(PoiseError, match="neither a list of records nor an object with one list"):
        read_problems(str(path))


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    write(tmp_path / "b.parquet", [{"query": "2?", "answer": "2"}])
    write(tmp_path / "a.jsonl", [{"query": "0?", "answer": "0"}, {"query": "1?", "answer": "1"}])
    (tmp_path / "README.md").write_text("not data")
    task = load(str(tmp_path), heldout=0)
    assert [(p.id, p.answer) for p in task.train] == [("a/0", "0"), ("a/1", "1"), ("b/0", "2")]
    for name in ("train-00000", "test"):
        write(tmp_path / f"{name}.jsonl", [{"query": name, "answer": 1}])
    with pytest.raises(PoiseError, match=r"several splits \(a\.jsonl, b\.parquet, test\.jsonl"):
        load(str(tmp_path))


def test_an_id_that_two_files_of_a_folder_have_is_reported_with_both(tmp_path):
    for name, ids in (("a", "xy"), ("b", "zy")):
        rows = [{"id": letter, "problem": name + letter, "answer": 1} for letter in ids]
        write(tmp_path / f"{name}.jsonl", rows)
    with pytest.raises(PoiseError, match=r"b\.jsonl:2: id 'y' is also at .*a\.jsonl:2$"):
        read_problems(str(tmp_path))


def test_ids_are_stable_and_held_out_problems_with_them(tmp_path):
    """The same rows in another format have the same ids, and so the same held-out problems."""
    first = load(write(tmp_path / "a.jsonl", verl_rows(40)), heldout=8)
    second = load(write(tmp_path / "b.parquet", verl_rows(40)), heldout=8)
    assert [p.id for p in first.heldout] == [p.id for p in second.heldout]
    assert first.train == second.train
    # Indices that repeat are no ids.
    joined = load(write(tmp_path / "c.parquet", verl_rows(2) + verl_rows(2)), heldout=0)
    assert [p.id for p in joined.train] == ["0", "1", "2", "3"]
    assert "ids from row numbers" in joined.columns_line


def test_one_text_in_chat_and_plain_data_is_one_problem(tmp_path):
    path = write(tmp_path / "a.jsonl", verl_rows(5))
    heldout = write(tmp_path / "b.jsonl", [{"question": "2 + 1 = ?", "answer": 3}])
    task = load(path, heldout_path=heldout)
    assert (len(task.train), task.repeats) == (4, 1)
    heard = []
    task.announce(heard.append)
    assert heard[1] == "1 training records repeat a held-out problem: left out"


def test_names_set_by_options(tmp_path):
    rows = [{"task": {"text": "1 + 1 = ?"}, "gold": {"value": 2}, "problem": "other", "n": 9}]
    fields = FieldOptions(problem="task.text", answer="gold.value", id="n")
    (prompt,) = read_problems(write(tmp_path / "a.jsonl", rows), fields)
    assert prompt == Prompt("9", "1 + 1 = ?", "2")
    both = write(tmp_path / "b.jsonl", [{"problem": "plain", "messages": [USER], "answer": 2}])
    assert load(both, heldout=0).columns_line.endswith(
        "; 'messages' is not read; to read it, set task.problem_field=messages"
    )
    chosen = load(both, heldout=0, fields=FieldOptions(problem="messages"))
    assert chosen.train[0].messages == CHAT[1:]


def test_answers_where_the_reward_needs_none(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"prompt": f"Tell me about {k}."} for k in range(4)])
    for name, source in (
        ("free", "def score(completions, **_): return [1.0 for _ in completions]"),
        ("bound", "def score(responses, answers): return [1.0 for _ in responses]"),
        ("offered", "def score(responses, prompts, answers=None): return [1.0 for _ in responses]"),
    ):
        (tmp_path / f"{name}.py").write_text(source)
    sets = ["task.name=files", f"task.path={path}", "task.heldout=1"]
    for name in ("free", "offered"):
        task = load_run_task(
            load_config("demo", [*sets, f"verify.name={tmp_path}/{name}.py:score"])
        )
        assert {p.answer for p in task.train} == {""}
        assert task.columns_line.endswith("'prompt', no answers, ids from row numbers")
    for verifier in (f"{tmp_path}/bound.py:score", "math", "exact"):
        with pytest.raises(PoiseError) as fault:
            load_run_task(load_config("demo", [*sets, f"verify.name={verifier}"]))
        assert str(fault.value) == (
            f"{path}:1: no field 'answer' (fields: prompt), nor reward_model.ground_truth, "
            "ground_truth, final_answer, expected_answer, target; set task.answer_field, or "
            "verify.name to a reward that takes no answers"
        )


def test_answers_that_are_objects_reach_a_reward_of_the_users(tmp_path):
    rows = [{"prompt": "p", "reward_model": {"ground_truth": {"tests": [1]}}}]
    path = write(tmp_path / "a.jsonl", rows)
    assert read_problems(path, FREE)[0].answer == '{"tests": [1]}'
    with pytest.raises(PoiseError, match="ground_truth' is neither text nor a number"):
        read_problems(path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "p", "answer": 1}], r"row 0: no field 'problem' \(fields: answer, text\), nor "
         r"prompt, messages, conversations, question, query; set task\.problem_field"),
        ([*verl_rows(2), {**verl_rows(1)[0], "reward_model": {"style": "rule"}}],
         r"row 2: no field 'reward_model\.ground_truth' .*; set task\.answer_field"),
        ([{"messages": [SYSTEM]}], "row 0: 'messages' has no user message"),
        ([{"messages": [], "answer": 1}], "row 0: 'messages' has no user message"),
        ([{"messages": ["hello"]}], "row 0: message 1 of 'messages' is not an object"),
        ([{"messages": [{"content": "x"}]}], "row 0: message 1 of 'messages' has no role"),
        ([{"messages": [{"role": "user"}]}], "row 0: message 1 of 'messages' has no text"),
        ([{"messages": [{"role": "user", "content": [{"type": "image"}]}]}], "other than text"),
        ([{"messages": [USER, {**SAID, "tool_calls": [1]}]}], "message 2 of .* calls a tool"),
        ([{"messages": [USER, {"role": "tool", "content": "2"}]}],
         "row 0: message 2 of 'messages' has the role 'tool', and only system, user and assistant"),
        ([{"conversations": [{"from": "observation", "value": "2"}]}],
         "message 1 of 'conversations' has the role 'observation'"),
        ([{"messages": [USER, {**SAID, "content": "word " * 80}]}],
         "row 0: no answer: 'messages' does not end in a short or boxed answer"),
        ([{"prompt": "p", "solution": "word\n" * 9}], "'solution' has no .* too long to be an ans"),
        ([{"prompt": "p", "solution": "\\boxed{" + 99 * "x + " + "x}"}], "has no short "),
        ([{"prompt": [{**USER, "content": "\ud800"}], "answer": 1}], "half a surrogate pair"),
        ([1], "row 0: not an object"),
    ],
)  # fmt: skip
def test_faults_are_one_line_with_file_and_row(tmp_path, rows, message):
    path = write(tmp_path / "bad.json", rows)
    with pytest.raises(PoiseError, match=message) as fault:
        read_problems(path)
    assert str(fault.value).startswith(path)
    assert "\n" not in str(fault.value)


def test_broken_parquet_files(tmp_path):
    path = tmp_path / "bad.parquet"
    write(path, verl_rows(3))
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[: len(whole) // 2], b"hello" * 9):
        path.write_bytes(content)
        with pytest.raises(PoiseError, match=r"bad\.parquet: not a parquet file that can") as fault:
            read_problems(str(path))
        assert "\n" not in str(fault.value)


def test_values_of_parquet_become_json(tmp_path):
    table = pa.table(
        {
            "question": ["1 + 1 = ?"],
            "answer": pa.array([2.0]),
            "day": pa.array([0], pa.date32()),
            "blob": pa.array([b"\xff"]),
            "text": pa.array([b"words"]),
            "share": pa.array([float("nan")]),
            "price": pa.array(["1.10"]).cast(pa.decimal128(4, 2)),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (prompt,) = read_problems(str(tmp_path / "a.parquet"))
    columns = {k: prompt.columns[k] for k in ("day", "blob", "text", "share", "price")}
    assert columns == {
        "day": "1970-01-01", "blob": None, "text": "words", "share": None, "price": "1.10"
    }  # fmt: skip
    assert json.loads(json.dumps(prompt.columns)) == prompt.columns


def test_dotted_names_reach_into_objects():
    values = {"a.b": 1, "a": {"b": 2, "c": {"d": 3}}, "text": "x"}
    assert [look_up(values, name) for name in ("a.b", "a.c.d", "a.x", "text.x", "none")] == [
        1, 3, None, None, None
    ]  # fmt: skip
