"""Model folders and files that are broken, contradictory, huge or malicious.

Each is a small working model with one thing changed. A command that gets it answers in one line and
with exit code 2; where the change does no harm, it may also work. Nothing in the folder is run,
and the folder stays as it is.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from small_run import write_model

Change = Callable[[Path, random.Random], None]

# What would run if a model could run code: it leaves a file beside the folder of the model.
EXECUTED = "executed"
HUGE_NUMBERS = (2**31, 2**40, 2**63, 10**400, -1, 0, 1.5, "8", None, [8], float("inf"))
SIZES = (
    "hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size", "head_dim",
    "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostileModel:
    change: Change
    is_harmless: bool = False  # a command may also work with it
    replaces_model: bool = False  # nothing of the folder's own weights is left


# -- the model -------------------------------------------------------------------------------------


def write_good_model(folder: Path) -> None:
    """The small model of the other cases, with a chat template, an adapter and a GGUF file."""
    from model.gguf_by_hand import tiny_llama, write_gguf

    write_model(folder / "model")
    write_adapter(folder / "adapter", folder / "model")
    write_gguf(folder / "model.gguf", tiny_llama(tied=True))


def write_adapter(adapter: Path, base: Path) -> None:
    """An adapter of LoRA on one layer, which changes nothing."""
    adapter.mkdir()
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4,
        "target_modules": ["q_proj"], "base_model_name_or_path": str(base),
    }  # fmt: skip
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    down, up = torch.ones(2, 8) / 8, torch.zeros(8, 2)
    weights = {f"{layer}.lora_A.weight": down, f"{layer}.lora_B.weight": up}
    save_file(weights, adapter / "adapter_model.safetensors")


def change_json_file(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | changes))


# -- config.json and what is beside it -------------------------------------------------------------


def absurd_size(folder: Path, rng: random.Random) -> None:
    change_json_file(folder / "config.json", **{rng.choice(SIZES): rng.choice(HUGE_NUMBERS)})


def endless_layers(folder: Path, rng: random.Random) -> None:
    path = folder / "config.json"
    content = json.loads(path.read_text())
    content.pop("layer_types", None)  # which would contradict the number
    content["num_hidden_layers"] = rng.choice((10**5, 10**6, 10**9))
    path.write_text(json.dumps(content))


def huge_matrices(folder: Path, rng: random.Random) -> None:
    """Sizes that a machine could just about allocate, and that the weights do not have."""
    sizes = {"hidden_size": 20_000, "intermediate_size": 200_000, "vocab_size": 10**6}
    names = rng.sample(sorted(sizes), rng.choice((1, 2, 3)))
    change_json_file(folder / "config.json", **{name: sizes[name] for name in names})


def absurd_setting(folder: Path, rng: random.Random) -> None:
    settings: list[tuple[str, Any]] = [
        ("rope_parameters", {"rope_type": "yarn", "factor": 0}),
        ("rope_parameters", {"rope_type": "no such", "rope_theta": 1e4}),
        ("rope_parameters", [1]),
        ("rms_norm_eps", "a"),
        ("layer_types", ["full_attention"] * 100_000),
        ("layer_types", ["no such"]),
        ("sliding_window", -1),
        ("tie_word_embeddings", False),
        ("hidden_act", "__import__"),
        ("attention_dropout", 2.0),
        ("torch_dtype", "no such"),
        ("dtype", "int8"),
        ("quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
        ("quantization_config", {"quant_method": "no such"}),
        ("quantization_config", 1),
        ("pad_token_id", 10**9),
        ("eos_token_id", -5),
        ("id2label", {"0": "x" * 100_000}),
        ("transformers_version", [1]),
        ("architectures", ["os.system"]),
        ("_attn_implementation", "no such"),
        ("text_config", {"model_type": "no such"}),
    ]
    name, value = rng.choice(settings)
    change_json_file(folder / "config.json", **{name: value})


def other_architecture(folder: Path, rng: random.Random) -> None:
    kind = rng.choice(("gpt2", "mamba", "t5", "bert", "llama", "no such", "", 1, None, "clip"))
    change_json_file(folder / "config.json", model_type=kind)


CODE = (
    "import pathlib\n"
    f"pathlib.Path(__file__).resolve().parents[1].joinpath({EXECUTED!r}).touch()\n"
    "class C:\n    pass\n"
)


def custom_code(folder: Path, rng: random.Random) -> None:
    (folder / "modeling_evil.py").write_text(CODE)
    names = ("AutoConfig", "AutoModelForCausalLM", "AutoModel", "AutoTokenizer")
    auto_map = dict.fromkeys(names, "modeling_evil.C")
    change_json_file(folder / "config.json", auto_map=auto_map)
    tokenizer_map = {"AutoTokenizer": ["modeling_evil.C", None]}
    change_json_file(folder / "tokenizer_config.json", auto_map=tokenizer_map)
    if rng.random() < 0.5:
        change_json_file(folder / "config.json", model_type="evil")


def custom_generation(folder: Path, rng: random.Random) -> None:
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(CODE)
    (folder / "__init__.py").write_text(CODE)


def broken_json(folder: Path, rng: random.Random) -> None:
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
    path = folder / rng.choice(names)
    content = path.read_bytes() if path.exists() else b"{}"
    path.write_bytes(
        rng.choice((
            b"", content[: len(content) // 2], b"[]", b"null", b"\xff\xfe" + content, b"1",
            b'{"a":' * 50_000, b'"' + b"x" * 1000 + b'"',
        ))
    )  # fmt: skip


def strange_generation(folder: Path, rng: random.Random) -> None:
    changes: list[dict[str, Any]] = [
        {"eos_token_id": 10**9}, {"eos_token_id": -1}, {"eos_token_id": "2"},
        {"eos_token_id": [[2]]}, {"eos_token_id": 1.5}, {"eos_token_id": {"a": 1}},
        {"temperature": -1}, {"max_length": 2**63}, {"num_beams": 10**9},
        {"eos_token_id": list(range(100_000))}, {"eos_token_id": [None]},
        {"pad_token_id": "x", "bos_token_id": []}, {"cache_implementation": "no such"},
    ]  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(rng.choice(changes)))


# -- weights ---------------------------------------------------------------------------------------


def pickled_weights(folder: Path, rng: random.Random) -> None:
    """A pickle that would run code; beside it the weights are missing, or not."""
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    weights.unlink()
    if rng.random() < 0.5:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        marker = folder.parent / EXECUTED
        pickle = f"cos\nsystem\n(S'touch {marker}'\ntR.".encode()
        (folder / "pytorch_model.bin").write_bytes(pickle)


def wrong_header(folder: Path, rng: random.Random) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    name = rng.choice(sorted(set(header) - {"__metadata__"}))
    kind = rng.randrange(9)
    if kind == 0:
        path.write_bytes(struct.pack("<Q", rng.choice((2**60, 2**63, 2**32, 0))) + content[8:])
        return
    if kind == 1:
        path.write_bytes(content[: rng.randrange(8 + size)])
        return
    if kind == 2:
        path.write_bytes(content[: rng.randrange(8 + size, len(content))])
        return
    changes: list[dict[str, Any]] = [
        {"data_offsets": [-8, 8]}, {"data_offsets": [0, 2**62]}, {"shape": [2**40, 2**40]},
        {"shape": [-1]}, {"dtype": "F999"}, {"dtype": "I64"}, {"data_offsets": [16, 0]},
    ]  # fmt: skip
    header[name] = header[name] | rng.choice(changes)
    if kind == 8:
        header["x" * 10_000] = header.pop(name)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


def wrong_weights(folder: Path, rng: random.Random) -> None:
    """Files that are whole, with tensors that are not those of the model."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = rng.choice(sorted(tensors))
    kind = rng.randrange(6)
    if kind == 0:
        tensors[name] = torch.zeros(3, 5)
    elif kind == 1:
        tensors[name] = tensors[name].to(rng.choice((torch.int8, torch.int64, torch.bool)))
    elif kind == 2:
        del tensors[name]
    elif kind == 3:
        tensors = {"nothing": torch.zeros(1)}
    elif kind == 4:
        tensors[name] = torch.zeros(0)
    else:
        tensors[name] = tensors[name].to(torch.complex64)
    save_file(tensors, path, metadata={"format": rng.choice(("pt", "pt", "tf", ""))})


def not_finite(folder: Path, rng: random.Random) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = rng.choice(sorted(tensors))
    tensors[name].view(-1)[rng.randrange(tensors[name].numel())] = rng.choice(
        (float("nan"), float("inf"), -float("inf"))
    )
    save_file(tensors, path, metadata={"format": "pt"})


def wrong_index(folder: Path, rng: random.Random) -> None:
    """Weights in several files, of which the index says strange things."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    names = sorted(tensors)
    file = "model-00001-of-00002.safetensors"
    maps: list[Any] = [
        dict.fromkeys(names, "../../etc/passwd"), dict.fromkeys(names, "/etc/passwd"),
        dict.fromkeys(names, "no-such.safetensors"), dict.fromkeys(names[:1], file), [], None,
        dict.fromkeys(names, 1), {"x": file}, {},
    ]  # fmt: skip
    index = {"metadata": {"total_size": 1}, "weight_map": rng.choice(maps)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


# -- files that are none ---------------------------------------------------------------------------


def no_plain_file(folder: Path, rng: random.Random) -> None:
    """A pipe that nobody writes, a device without an end, a folder, a link to itself or nowhere."""
    path = folder / rng.choice(
        ("config.json", "tokenizer.json", "model.safetensors", "tokenizer_config.json",
         "generation_config.json", "chat_template.jinja", "model.safetensors.index.json")
    )  # fmt: skip
    path.unlink(missing_ok=True)
    kind = rng.randrange(5)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.symlink_to("/dev/zero")
    elif kind == 2:
        path.mkdir()
    elif kind == 3:
        path.symlink_to(path.name)
    else:
        path.symlink_to("/proc/self/mem")


def links_out(folder: Path, rng: random.Random) -> None:
    """Links to files elsewhere, as in the hub's cache: they are read, and never written."""
    outside = folder.parent / "outside"
    outside.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_symlink() and (folder / name).is_file():
            (folder / name).rename(outside / name)
            (folder / name).symlink_to(outside / name)


# -- the tokenizer ---------------------------------------------------------------------------------


def strange_tokenizer(folder: Path, rng: random.Random) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    model = content["model"]
    pieces = [piece for piece, _ in model["vocab"]]
    ids = {piece: number for number, piece in enumerate(pieces)}
    pairs = [[piece[:1], piece[1:]] for piece in pieces if piece[:1] in ids and piece[1:] in ids]
    swapped = [[right, left] for left, right in pairs]
    models: list[dict[str, Any]] = [
        {"type": "Unigram", "unk_id": 0},  # without a vocabulary
        model | {"vocab": []},
        model | {"vocab": model["vocab"] * 2},
        model | {"unk_id": rng.choice((2**40, -1, len(pieces)))},
        model | {"vocab": [[piece, float("-inf")] for piece in pieces]},
        model | {"vocab": [*model["vocab"], *([f"more {i}", -1.0] for i in range(5000))]},
        {"type": "BPE", "vocab": ids, "merges": pairs + pairs},
        {"type": "BPE", "vocab": ids, "merges": pairs + swapped},  # needs pieces that are not there
        {"type": "BPE", "vocab": ids, "merges": [["", pieces[-1]], *pairs]},  # merges to itself
        {"type": "BPE", "vocab": ids | {pieces[-1]: rng.choice((2**32 - 1, 2**40, -1, "x"))}},
        {"type": "BPE", "vocab": {piece: number + 10**6 for piece, number in ids.items()}},
        {"type": "BPE", "vocab": dict.fromkeys(pieces, 3), "merges": []},
        {"type": rng.choice(("no such", "WordPiece", 1)), "vocab": ids},
    ]
    number = rng.randrange(len(models) + 3)
    if number < len(models):
        content["model"] = models[number]
    elif number == len(models):
        other = rng.choice((10**6, 2**32 - 1, -1))
        content["added_tokens"] = [entry | {"id": other} for entry in content["added_tokens"]]
    elif number == len(models) + 1:  # takes time that doubles with every letter
        pattern = {"Regex": "(a+a+)+$|([a-z]+)*X"}
        content["pre_tokenizer"] = content["pre_tokenizer"] | {"pattern": pattern}
    else:
        content["normalizer"] = {
            "type": "Replace", "pattern": {"String": " "}, "content": "x" * 10**4,
        }  # fmt: skip
    path.write_text(json.dumps(content))


def strange_special_tokens(folder: Path, rng: random.Random) -> None:
    changes: list[dict[str, Any]] = [
        {"eos_token": "<no such token>"}, {"eos_token": None}, {"pad_token": ["a"]},
        {"eos_token": {"content": "x", "__type": "AddedToken"}}, {"model_max_length": -1},
        {"tokenizer_class": "os.system"}, {"tokenizer_class": 3}, {"extra_special_tokens": [1]},
        {"eos_token": ""}, {"added_tokens_decoder": {"x": 1}}, {"backend": "no such"},
        {"additional_special_tokens": ["x"] * 10_000}, {"clean_up_tokenization_spaces": "x"},
    ]  # fmt: skip
    change_json_file(folder / "tokenizer_config.json", **rng.choice(changes))


# -- chat templates --------------------------------------------------------------------------------

TEMPLATES = {
    "stopped by the sandbox": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "runs code": "{{ cycler.__init__.__globals__.os.system('touch ' ~ 'MARKER') }}",
    "never ends": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a gigabyte": "{{ 'x' * 1073741824 }}",
    "many gigabytes": "{% set ns = namespace(a='x' * 1048576) %}{% for i in range(40) %}"
    "{% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a }}",
    "calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "no template": "{% if %}",
    "nothing": "{# empty #}",
    "raises": "{{ raise_exception('no\\n\\x1b[2J') }}",
    "unknown name": "{{ messages[7].x.y }}",
    "includes": "{% include '/etc/passwd' %}",
    "long": "{% for m in messages %}{{ m.content * 200 }}{% endfor %}",
    "later gigabyte": "{{ 'x' * (1073741824 if 'many' in messages[0].content else 1) }}",
    "half a character": "{{ '\\ud800' }}{{ messages[0].content }}",
    "a huge number": "{{ 10 ** 10 ** 8 }}",
}
LATER = {name: text for name, text in TEMPLATES.items() if name.startswith("later")}


def hostile_template(folder: Path, rng: random.Random) -> None:
    name = rng.choice(sorted(set(TEMPLATES) - set(LATER)))
    _write_template(folder, TEMPLATES[name], rng)


def later_template(folder: Path, rng: random.Random) -> None:
    """A template that behaves until it sees a word of the problems."""
    _write_template(folder, LATER[rng.choice(sorted(LATER))], rng)


def _write_template(folder: Path, template: str, rng: random.Random) -> None:
    template = template.replace("MARKER", str(folder.parent / EXECUTED))
    if rng.random() < 0.5:
        (folder / "chat_template.jinja").write_text(template)
    else:
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        change_json_file(folder / "tokenizer_config.json", chat_template=template)


def strange_template(folder: Path, rng: random.Random) -> None:
    """A template that is no text."""
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    values: list[Any] = [1, [], {}, [{"name": "x", "template": "{{ 1 }}"}], ["x"], True]
    change_json_file(folder / "tokenizer_config.json", chat_template=rng.choice(values))


# -- adapters and GGUF files -----------------------------------------------------------------------


def strange_adapter(folder: Path, rng: random.Random) -> None:
    """The folder becomes an adapter whose base or whose weights do not fit."""
    adapter = folder.parent / "adapter"
    for path in folder.iterdir():
        path.unlink()
    for path in adapter.iterdir():
        shutil.copyfile(path, folder / path.name)
    config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    kind = rng.randrange(10)
    if kind == 0:
        change_json_file(config, base_model_name_or_path=str(folder))
    elif kind == 1:
        change_json_file(config, base_model_name_or_path="/no/such/model")
    elif kind == 2:
        change_json_file(config, r=rng.choice((0, -1, 2**40, "2", None, 3)))
    elif kind == 3:
        change_json_file(config, peft_type=rng.choice(("IA3", "no such", 1, "PREFIX_TUNING")))
    elif kind == 4:
        change_json_file(config, target_modules=rng.choice((["none"], ".*", "(a+)+$", [], 1)))
    elif kind == 5:
        save_file({f"{layer}.lora_A.weight": torch.ones(7, 9)}, weights)
    elif kind == 6:
        weights.write_bytes(weights.read_bytes()[: rng.randrange(weights.stat().st_size)])
    elif kind == 7:
        weights.unlink()
        marker = folder.parent / EXECUTED
        (folder / "adapter_model.bin").write_bytes(f"cos\nsystem\n(S'touch {marker}'\ntR.".encode())
    elif kind == 8:
        save_file({"nothing": torch.zeros(1)}, weights)
    else:
        change_json_file(
            config, auto_mapping={"base_model_class": "C", "parent_library": "modeling_evil"}
        )
        (folder / "modeling_evil.py").write_text(CODE)


def strange_gguf(folder: Path, rng: random.Random) -> None:
    """The folder becomes a GGUF file: cut, with absurd counts, or with changed bytes."""
    shutil.rmtree(folder)
    content = (folder.parent / "model.gguf").read_bytes()
    kind = rng.randrange(5)
    if kind == 0:
        content = content[: rng.randrange(len(content))]
    elif kind == 1:  # version, then the numbers of tensors and of fields
        counts = [rng.choice((2**63, 2**32, 2**31, 10**6, 0)) for _ in range(2)]
        content = content[:8] + struct.pack("<QQ", *counts) + content[24:]
    elif kind == 2:
        content = b"GGUF" + struct.pack("<I", rng.choice((0, 1, 999, 2**31))) + content[8:]
    else:
        changed = bytearray(content)
        last = 600 if kind == 3 else len(content)
        for _ in range(rng.choice((1, 4, 20))):
            changed[rng.randrange(4, last)] = rng.choice((0, 255, rng.randrange(256)))
        content = bytes(changed)
    gguf_path(folder).write_bytes(content)


def gguf_path(folder: Path) -> Path:
    return folder.with_name("changed.gguf")


KINDS: dict[str, HostileModel] = {
    "absurd size": HostileModel(absurd_size, is_harmless=True),
    "endless layers": HostileModel(endless_layers),
    "huge matrices": HostileModel(huge_matrices),
    "absurd setting": HostileModel(absurd_setting, is_harmless=True),
    "other architecture": HostileModel(other_architecture, is_harmless=True),
    "custom code": HostileModel(custom_code, is_harmless=True),
    "custom generation": HostileModel(custom_generation, is_harmless=True),
    "broken JSON": HostileModel(broken_json, is_harmless=True),
    "strange generation": HostileModel(strange_generation, is_harmless=True),
    "pickled weights": HostileModel(pickled_weights),
    "wrong header": HostileModel(wrong_header, is_harmless=True),
    "wrong weights": HostileModel(wrong_weights, is_harmless=True),
    "not finite": HostileModel(not_finite),
    "wrong index": HostileModel(wrong_index, is_harmless=True),
    "no plain file": HostileModel(no_plain_file, is_harmless=True),
    "links out": HostileModel(links_out, is_harmless=True),
    "strange tokenizer": HostileModel(strange_tokenizer, is_harmless=True),
    "strange special tokens": HostileModel(strange_special_tokens, is_harmless=True),
    "hostile template": HostileModel(hostile_template, is_harmless=True),
    "later template": HostileModel(later_template, is_harmless=True),
    "strange template": HostileModel(strange_template, is_harmless=True),
    "strange adapter": HostileModel(strange_adapter, is_harmless=True, replaces_model=True),
    "strange GGUF": HostileModel(strange_gguf, is_harmless=True, replaces_model=True),
}
