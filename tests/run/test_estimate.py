"""What a dry run promises: parameters as published, rollouts and memory by the formula."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch

from counterpoise.config import ModelConfig, RunConfig
from counterpoise.config.load import config_from_tables, load_config, to_toml
from counterpoise.errors import PoiseError
from counterpoise.lab.speed.families import make_policy
from counterpoise.model.decoder_shape import KNOWN_SHAPES, find_shape
from counterpoise.model.load import EMBEDDED_FOLDER, load_policy, save_policy
from counterpoise.run import estimate
from counterpoise.run.estimate import describe_run, describe_task
from counterpoise.task.task_prompts import TaskPrompts
from counterpoise.types import Prompt

PUBLISHED = {
    "Qwen/Qwen2.5-Math-7B": 7_615_616_512,
    "Qwen/Qwen3-1.7B-Base": 1_720_574_976,
    "Qwen/Qwen3-4B-Base": 4_022_468_096,
}


@pytest.mark.parametrize("name", KNOWN_SHAPES)
def test_parameters_as_published(name: str) -> None:
    """Biases and the norms of single heads are left out: a few parts in a hundred thousand."""
    assert KNOWN_SHAPES[name].parameters == pytest.approx(PUBLISHED[name], rel=1e-4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("architecture", "left_out"),
    [
        ("llama", 0),
        ("qwen2", 2 * (48 + 2 * 24)),  # biases of q, k, v in two layers
        ("qwen3", 2 * 2 * 16),  # norms of q and k in two layers
    ],
)
def test_parameters_of_a_folder(
    tmp_path: Path, architecture: str, left_out: int, tied: bool
) -> None:
    policy = tiny.policy(architecture, tie_word_embeddings=tied)
    policy.model.config.save_pretrained(tmp_path)
    shape = find_shape(str(tmp_path))
    assert shape is not None
    assert shape.parameters == policy.num_parameters - left_out


def test_a_model_without_attention_is_counted(tmp_path: Path) -> None:
    policy = make_policy("mamba")
    assert not hasattr(policy.model.config, "num_attention_heads")
    policy.model.config.save_pretrained(tmp_path)
    shape = find_shape(str(tmp_path))
    assert shape is not None
    assert shape.parameters == policy.num_parameters
    assert shape.kv_heads * shape.head_dim == 48  # the hidden size


def test_the_embedded_model_and_one_that_is_not_here() -> None:
    shape = find_shape("embedded")
    assert shape is not None
    assert 1e6 < shape.parameters < 3e6
    assert shape == find_shape(str(EMBEDDED_FOLDER))
    assert find_shape("nobody/nothing") is None


def test_counts_in_plain_words() -> None:
    text = describe_run(config_from_tables({"loop": {"iterations": 10}}))
    assert text.startswith(to_toml(RunConfig()).partition("iterations")[0])
    assert "16 prompts x 8 = 128 rollouts, 4 optimizer steps (grouped)" in text
    assert "1,280 rollouts, updates: 40\n" in text
    assert "at most 16,384 sampled an iteration, 163,840 in all" in text
    waiting = describe_run(
        config_from_tables({"loop": {"iterations": 10}, "balance": {"tau": 0.25}})
    )
    assert "updates: at most 40 (an update waits for a balanced batch)" in waiting


GPU, CPU = torch.device("cuda"), torch.device("cpu")
KEPT = 2 * 2048 + 2 * 6144 + (2 * 16 + 2 * 8) * 128  # by a layer on a GPU, numbers a token


def test_memory_by_the_formula() -> None:
    text = describe_run(load_config("qwen3-1.7b-base"), GPU)
    shape = KNOWN_SHAPES["Qwen/Qwen3-1.7B-Base"]
    training = 20 * shape.parameters  # bfloat16 with float32 masters
    live = 9216 * 28 * KEPT * 2
    row = (1024 + 8192) * 28 * 2 * 8 * 128 * 2
    told = [float(x) for x in re.findall(r"([\d.]+) GB", text)]
    expected = [training, live, row]
    assert told == pytest.approx([x / 1e9 for x in expected], abs=0.006)


def test_a_cpu_computes_in_float32_and_autograd_keeps_more() -> None:
    text = describe_run(load_config("qwen3-1.7b-base"), CPU)
    assert "M parameters, 32 bits on cpu" in text
    training = 16 * KNOWN_SHAPES["Qwen/Qwen3-1.7B-Base"].parameters
    live = 9216 * 28 * (10 * 2048 + 3 * 6144) * 4
    amounts = (
        f"training {training / 1e9:.2f} GB, activations {live / 1e9:.2f} GB, libraries 0.45 GB"
    )
    assert amounts in text
    half = describe_run(load_config("qwen3-1.7b-base", ["model.dtype=bfloat16"]), CPU)
    assert "16 bits on cpu" in half
    assert f"training {20 / 16 * training / 1e9:.2f} GB" in half


def test_the_general_path_keeps_what_autograd_keeps() -> None:
    """Known shapes and those of a config.json: no fused layer there, whatever the device."""
    for name in ("Qwen/Qwen3-1.7B-Base", "shape:smollm2-135m"):
        shape = find_shape(name)
        assert shape is not None
        assert shape.fused
        small = ["update.micro_tokens=1000", f"model.name={name}", "model.path=general"]
        text = describe_run(load_config("qwen3-1.7b-base", small), GPU)
        per_token = shape.layers * (10 * shape.hidden + 3 * shape.intermediate)
        assert f"activations {1000 * per_token * 2 / 1e9:.2f} GB" in text


def test_the_device_is_that_of_the_run() -> None:
    text = describe_run(load_config("demo", ["model.device=cpu"]))
    assert "1.3 M parameters, 32 bits on cpu" in text
    assert "16 bits on cuda" in describe_run(load_config("demo"), GPU)


def test_a_pass_holds_no_more_tokens_than_a_step() -> None:
    sets = ["sample.prompts=2", "sample.group_size=2", "batch.steps=2", "balance.tau=0"]
    text = describe_run(load_config("demo", sets), CPU)
    shape = find_shape("embedded")
    assert shape is not None
    tokens = 2 * (1024 + 112)
    live = tokens * shape.layers * (10 * shape.hidden + 3 * shape.intermediate) * 4
    assert f"activations {live / 1e9:.2f} GB" in text


@pytest.mark.parametrize(
    ("sets", "rows"),
    [
        ([], 64),
        (["batch.rows_per_step=16"], 31),
        (["batch.rows_per_step=2"], 8),  # a group may be larger than a step
        (["batch.rows_per_step=100"], 64),
        (["batch.rows_per_step=16", "update.kl=0.01"], 64),  # rows without signal have a loss
        (["batch.rows_per_step=16", "update.kl=0.01", "batch.drop_silent=true"], 31),
        (["balance.tau=0.25", "balance.target=40"], 40),
    ],
)
def test_a_step_has_the_rows_that_the_options_allow(sets: list[str], rows: int) -> None:
    run = ["sample.prompts=8", "batch.steps=1", "balance.tau=0", "update.micro_tokens=1000000"]
    text = describe_run(load_config("demo", [*run, *sets]), CPU)
    shape = find_shape("embedded")
    assert shape is not None
    per_token = shape.layers * (10 * shape.hidden + 3 * shape.intermediate) * 4
    assert f"activations {rows * (1024 + 112) * per_token / 1e9:.2f} GB" in text


def test_a_copy_of_the_first_weights_is_counted() -> None:
    parameters = KNOWN_SHAPES["Qwen/Qwen3-1.7B-Base"].parameters
    for sets, size in (([], 22), (["credit.rule_settings=['alpha=0']"], 20)):
        text = describe_run(load_config("qwen3-1.7b-base", ["credit.rule=sdpg", *sets]), GPU)
        assert f"training {size * parameters / 1e9:.2f} GB" in text


def test_checkpointing_keeps_the_inputs_of_layers_and_one_layer() -> None:
    text = describe_run(load_config("qwen3-1.7b-base", ["update.checkpointing=true"]), GPU)
    live = 9216 * (28 * 2048 + KEPT) * 2
    assert f"activations {live / 1e9:.2f} GB" in text


def test_an_unknown_shape_is_said() -> None:
    text = describe_run(config_from_tables({"model": {"name": "nobody/nothing"}}))
    assert "memory         unknown: config.json of nobody/nothing is not on this machine" in text


def test_the_cache_of_hugging_face_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached_model = tmp_path / "models--nobody--nothing"
    (cached_model / "refs").mkdir(parents=True)
    (cached_model / "refs/main").write_text("0" * 40)
    policy = tiny.policy("llama")
    policy.model.config.save_pretrained(cached_model / "snapshots" / ("0" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    shape = find_shape("nobody/nothing")
    assert shape is not None
    assert shape.parameters == policy.num_parameters


def test_every_turn_of_an_episode_is_counted() -> None:
    one, three = (
        describe_run(load_config("demo", sets))
        for sets in ([], ["task.environment='tries'", "task.turns=3"])
    )
    tokens = [
        int(re.search(r"at most ([\d,]+) sampled", text)[1].replace(",", ""))
        for text in (one, three)
    ]
    assert tokens == [16 * 8 * 112, 3 * 16 * 8 * 112]


# -- problems -----------------------------------------------------------------------------------

READ = "not checked    the model's weights"
SHOWN = [
    "columns        reading prompts from 'problem', answers from 'answer'",
    "left out       no records",
    "first prompt   9 tokens, as the model reads it:",
    "  | <|user|>0 + 1 = ?<|assistant|>",
]
UNREAD = "not checked    the model's weights and tokenizer, and so the length of prompts"


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    line = '{{"id": "{0}", "problem": "{0} + 1 = ?", "answer": "1"}}\n'
    path.write_text("".join(line.format(k) for k in range(50)))
    return path


def of_file(path: Path, *sets: str) -> RunConfig:
    return load_config("demo", ["task.name=jsonl", f"task.path={path}", "task.heldout=10", *sets])


def test_a_file_that_is_here_is_read(problems: Path) -> None:
    told = "task           mine: 40 problems to train on; 10 held out, 10 of them are evaluated"
    lines = describe_task(of_file(problems))
    assert lines == [told, *SHOWN, READ]
    assert describe_run(of_file(problems)).endswith("\n#   " + "\n#   ".join(lines))
    with pytest.raises(PoiseError, match=r"mine\.jsonl:1: no field 'gold' .*task\.answer_field"):
        describe_task(of_file(problems, "task.answer_field=gold"))
    with pytest.raises(PoiseError, match="40 training prompts cannot fill an iteration of 41"):
        describe_task(of_file(problems, "sample.prompts=41"))
    with pytest.raises(PoiseError, match="prompt '0' has no generic text"):
        describe_task(of_file(problems, "sample.anchors=1"))


def test_files_that_are_not_here_are_named(problems: Path) -> None:
    gone = problems.with_name("gone.jsonl")
    not_here = f"{gone} does not exist: the run would fail"
    unread = UNREAD.replace("checked    ", "checked    the problems; ")
    assert describe_task(of_file(gone)) == [f"task           {not_here}", unread]
    assert (
        describe_task(of_file(problems, f"task.heldout_path={gone}"))[0]
        == f"task           {not_here}"
    )
    found = describe_task(of_file(problems, f"task.benchmarks=['{gone}']"))
    assert found[0].startswith("task           mine: 40 problems")
    assert found[1:] == [f"               {not_here}", *SHOWN, READ]


def test_a_benchmark_that_is_here_is_read(problems: Path) -> None:
    bad = problems.with_name("bad.jsonl")
    bad.write_text("{}\n")
    with pytest.raises(PoiseError, match=r"bad\.jsonl:1: no field 'problem'"):
        describe_task(of_file(problems, f"task.benchmarks=['{bad}']"))


def test_nothing_is_fetched() -> None:
    told = describe_task(load_config("demo", ["task.name=hub", "task.path=nobody/nothing:en"]))
    assert told[0] == "task           nobody/nothing:en, by the package `datasets`"
    assert told[1].startswith("not checked    the dataset and its fields; the model's weights")


def test_of_generated_problems_one_is_made() -> None:
    told = describe_task(load_config("demo"))[0]
    made = "4,096 problems to train on, made when the run starts; 256 held out, 128 of them are"
    assert told == f"task           word_problems: {made} evaluated"
    unmade = "the length of prompts that are yet to be generated"
    assert describe_task(load_config("demo"))[-1] == f"{READ}; {unmade}"
    pytest.importorskip("reasoning_gym", reason="the gym extra is not installed")
    with pytest.raises(PoiseError, match="unknown reasoning_gym dataset 'leg_countin'"):
        describe_task(load_config("demo", ["task.name=reasoning_gym", "task.dataset=leg_countin"]))


def test_problems_of_an_environment_are_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the package `verifiers` come without columns, but all of them are loaded."""
    prompts = [Prompt(str(k), f"{k} + 1 = ?" + " more" * 60 * (k == 3), "1") for k in range(20)]
    loaded = TaskPrompts("env", prompts, prompts[:2], repeats=1)
    monkeypatch.setattr(estimate, "load_run_task", lambda config: loaded)
    sets = ["task.name=verifiers", "task.path=env", "sample.max_prompt_tokens=40"]
    lines = describe_task(load_config("demo", sets))
    assert "env: 19 problems to train on" in lines[0]
    assert lines[1] == (
        "left out       1 repeat a held-out problem; 1 longer than sample.max_prompt_tokens=40"
    )
    assert lines[-1] == READ


def test_without_a_tokenizer_nothing_is_said_of_long_prompts(problems: Path) -> None:
    lines = describe_task(of_file(problems, "model.name=nobody/nothing"))
    assert lines[2:] == [
        "left out       how many prompts are too long is unknown without the tokenizer",
        UNREAD,
    ]


# -- LoRA ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["embedded", "gpt2", "gemma3_text"])
@pytest.mark.parametrize("targets", [["all-linear"], ["down_proj", "c_proj"]])
def test_an_adapter_has_as_many_parameters_as_peft_makes(
    family: str, targets: list[str], tmp_path: Path
) -> None:
    model = ModelConfig(name="embedded", device="cpu", lora_rank=4, lora_targets=targets)
    if family != "embedded":
        save_policy(make_policy(family), tmp_path / family)
        model = replace(model, name=str(tmp_path / family))
    shape = find_shape(model.name)
    assert shape is not None
    policy = load_policy(model)
    trained = [weight.numel() for weight in policy.model.parameters() if weight.requires_grad]
    assert shape.adapter_parameters(4, targets) == sum(trained) > 0


def test_lora_needs_the_weights_once_and_trains_the_adapter() -> None:
    shape = KNOWN_SHAPES["Qwen/Qwen2.5-Math-7B"]
    queries, keys = 3584 + 28 * 128, 3584 + 4 * 128
    adapter = 16 * 28 * (2 * queries + 2 * keys + 3 * (3584 + 18944))
    lora = ["model.lora_rank=16", "balance.tau=0"]
    reads_start = [*lora, "credit.rule=sdpg"]  # its alpha is above 0
    teacher = [*lora, "credit.weights=rlsd", "credit.settings=['teacher_every=5']"]
    copies = (([*lora, "update.kl=0.01"], 20), (reads_start, 20), (teacher, 20))
    for sets, size in ((lora, 16), *copies, ([*teacher, "update.kl=0.01"], 24)):
        text = describe_run(load_config("qwen2.5-math-7b", sets), GPU)
        assert f"training {(2 * shape.parameters + size * adapter) / 1e9:.2f} GB" in text
        note = f"a LoRA adapter of {adapter / 1e6:.1f} M parameters is trained"
        assert f"bits on cuda; {note}" in text
