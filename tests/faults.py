"""Every fault a user can make, as commands: what `test_cli.py` runs, one line each.

FILES and MODELS are what the commands speak of; KNOWN lists those that are not yet met as they
should be.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from counterpoise.config.load import config_from_tables, to_toml
from counterpoise.model.load import EMBEDDED_FOLDER

SMALL = {
    "loop": {"iterations": 1},
    "task": {"size": 8, "heldout": 2},
    "sample": {"prompts": 4, "group_size": 2, "max_new_tokens": 4},
    "batch": {"steps": 2},
    "verify": {"name": "exact"},
    "evaluate": {"prompts": 0},
}
GOOD = '{"id": "a", "problem": "1 + 1 = ?", "answer": "2"}'
ROLLOUT = '{"prompt_id": "p", "reward": 1, "num_tokens": 3}'

MINE = """
def score(responses, answers): return [float(a in r) for r, a in zip(responses, answers)]
def one(text): return 1.0
def with_tests(responses, answers, test): return []
def short(responses, answers): return [1.0]
def number(responses, answers): return 1.0
def nothing(responses, answers): pass
def nan(responses, answers): return [0.5, 1, float("nan"), 0]
def none(responses, answers): return [None] * len(responses)
def divides(responses, answers):
    return [1 / len(text) for text in responses]
def misses(rows, num_steps, seed): return [[0, 1, 2], [3, 4, 5, 6]]
def twice(rows, num_steps, seed): return [[0, 1, 2, 3], [0, 4, 5, 6, 7]]
def one_more(rows, num_steps, seed): return [range(4), range(4, 9)]
def one_step(rows, num_steps, seed): return [range(8)]
def flat(rows, num_steps, seed): return list(range(8))
def halves(rows, num_steps, seed): return [[0.5]] * num_steps
def tests(responses, answers, tests): return [0.0] * len(responses)
not_a_function = 3
"""

# What a user may hand to the command, by its name in the folder "w".
FILES: dict[str, str | bytes] = {
    "small.toml": to_toml(config_from_tables(SMALL)),
    "cut.toml": "[loop\niterations = 3",
    "twice.toml": "[loop]\nseed = 1\nseed = 2\n",
    "latin.toml": b'[model]\nname = "\xe9"\n',
    "section.toml": "[sampel]\nprompts = 4\n",
    "option.toml": "[sample]\npromts = 4\n",
    "typed.toml": '[sample]\nprompts = "four"\n',
    "bare.toml": "loop = 3\n",
    "newer.toml": "schema = 99\n",
    "gone.jsonl/keep": "",
    "good.jsonl": "\n".join(GOOD.replace('"a"', f'"{k}"').replace("1 +", f"{k} +") for k in "1234"),
    "tests.jsonl": GOOD.replace("}", ', "tests": [1, 0.5]}'),
    "empty.jsonl": "",
    "cut.jsonl": GOOD + '\n{"id": "b", "problem"\n',
    "field.jsonl": GOOD + '\n{"id": "b", "problem": "2 + 2 = ?"}\n',
    "blank.jsonl": GOOD + '\n{"id": "b", "problem": "  ", "answer": "4"}\n',
    "again.jsonl": GOOD + "\n" + GOOD + "\n",
    "bytes.jsonl": GOOD.encode() + b"\n\xff\n",
    "rows.jsonl": "\n".join(ROLLOUT.replace("1,", f"{k % 2},") for k in range(4)) + "\n",
    "no_reward.jsonl": '{"prompt_id": "p", "num_tokens": 3}\n',
    "mine.py": MINE,
    "broken.py": "import math\nimport no_such_module\n",
    "syntax.py": "def score(responses, answers):\n    return [\n",
    "fails.py": "table = {}\nfirst = table['first']\n",
    "script.py": "raise SystemExit\n",
    "a_file": "",
    "full/something": "",
    "run/config.toml": to_toml(config_from_tables(SMALL)),
    "damaged_run/config.toml": "[loop\n",
    "damaged_log/config.toml": to_toml(config_from_tables(SMALL)),
    "damaged_log/metrics.jsonl": '{"iteration": 1,\n{"iteration": 2}\n',
    "no_model/readme.txt": "",
}


def embedded_with(change: Callable[[Path], object]) -> Callable[[Path], None]:
    """A copy of the embedded model with something wrong with it."""

    def make(folder: Path) -> None:
        shutil.copytree(EMBEDDED_FOLDER, folder)
        change(folder)

    return make


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def replaced(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text)


def configured(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return change


def without_a_layer(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "layers.3" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


MODELS = {
    "cut_weights": embedded_with(cut("model.safetensors", 100_000)),
    "cut_header": embedded_with(cut("model.safetensors", 100)),
    "empty_weights": embedded_with(cut("model.safetensors", 0)),
    "no_weights": embedded_with(lambda folder: (folder / "model.safetensors").unlink()),
    "few_weights": embedded_with(without_a_layer),
    "cut_config": embedded_with(cut("config.json", 40)),
    "list_config": embedded_with(replaced("config.json", "[]")),
    "cut_tokenizer": embedded_with(cut("tokenizer.json", 400)),
    "no_tokenizer": embedded_with(lambda f: [p.unlink() for p in f.glob("*token*")]),
    "other_shape": embedded_with(configured(hidden_size=128)),
    "gpt2": embedded_with(configured(model_type="gpt2", architectures=["GPT2LMHeadModel"])),
    "invented": embedded_with(configured(model_type="qwen99")),
    "bert": embedded_with(configured(model_type="bert", architectures=["BertModel"])),
}

SMALL_RUN = "train {w}/small.toml --out {o}"
JSONL = SMALL_RUN + " -s task.name=jsonl -s task.heldout=0 -s task.path={w}/"
MODEL = SMALL_RUN + " -s model.name="
REWARD = SMALL_RUN + " -s verify.name={w}/"
REWARD_DRY = "train {w}/small.toml --dry-run -s verify.name={w}/"
DRY_RUN = "train {w}/small.toml --dry-run"
TESTS = " -s task.name=jsonl -s task.path={w}/tests.jsonl -s task.heldout=0 -s sample.prompts=2"
HELD = TESTS + " -s task.heldout_path={w}/good.jsonl -s verify.name={w}/mine.py:"
TESTS += " -s verify.name={w}/mine.py:"
EVAL = "eval embedded --bench tests --data {w} --out {o} --verifier {w}/mine.py:"
ALSO, ALSO_DRY = (run + ' -s verify.also=["{w}/' for run in (SMALL_RUN, DRY_RUN))
RULE_DRY = "train {w}/small.toml --dry-run -s batch.composer={w}/"
ODD = " -s balance.tau=0.5 -s balance.target=7"
EXPERIMENT = "experiment smollm2-interventions --out {o}"
DRY = "train {w}/small.toml --dry-run -s model.name={w}/"

# (name, command, what the line says). {w}: the files above; {o}: a folder that does not exist.
FAULTS: list[tuple[str, str, str]] = [
    # -- the engine
    ("engine: name", "train demo --engine trll --out {o}", "did you mean 'trl'"),
    ("engine: trl", "train demo -e trl -s update.surrogate=cispo --out {o}", "honour update.surro"),
    ("engine: verl", "train demo --engine verl --out {o}", "balance.target=96 .*warmup_steps=8"),
    ("engine: native", "train demo --print", "add --engine trl or --engine verl"),
    ("engine: no data", "train qwen3-4b-base -e verl --print --out {o}", "dapo_math_17k.jsonl"),
    ("engine: another", "train --resume --engine trl --out {w}/run", "by --engine native"),
    # -- the configuration
    ("no config", "train --out {o}", "name a run"),
    ("no out", "train {w}/small.toml", "--out is missing"),
    ("missing file", "train {w}/none.toml --out {o}", "no such file, and unknown preset .*demo"),
    ("unknown preset", "train demoo --out {o}", "unknown preset 'demoo': did you mean 'demo'"),
    ("a folder", "train {w}/full --out {o}", "is a folder"),
    ("bad TOML", "train {w}/cut.toml --out {o}", "cut.toml: not a TOML file"),
    ("an option twice", "train {w}/twice.toml --out {o}", "twice.toml: not a TOML file"),
    ("not UTF-8", "train {w}/latin.toml --out {o}", "latin.toml: not a TOML file"),
    ("unknown section", "train {w}/section.toml --out {o}", "'sampel': did you mean 'sample'"),
    ("unknown option", "train {w}/option.toml --out {o}", "'promts': did you mean 'prompts'"),
    ("ill-typed", "train {w}/typed.toml --out {o}", "sample.prompts must be a whole number"),
    ("no section", "train {w}/bare.toml --out {o}", r"\[loop\] must be a section"),
    ("newer schema", "train {w}/newer.toml --out {o}", "schema 99"),
    ("set without value", SMALL_RUN + " --set loop.seed", "write section.option=value"),
    ("set without option", SMALL_RUN + " --set loop=1", "write section.option=value"),
    ("set without section", SMALL_RUN + " --set steps=3", "for example batch.steps=3"),
    ("set without name", SMALL_RUN + " --set =1", "write section.option=value"),
    ("set unknown section", SMALL_RUN + " --set lop.seed=1", "did you mean 'loop'"),
    ("set unknown option", SMALL_RUN + " --set loop.sead=1", "did you mean 'seed'"),
    ("set ill-typed", SMALL_RUN + " --set loop.seed=one", "a whole number, not 'one'"),
    ("a float for an int", SMALL_RUN + " --set loop.seed=1.5", "a whole number, not 1.5"),
    ("a bool for an int", SMALL_RUN + " --set loop.seed=true", "a whole number, not True"),
    ("a word for a float", SMALL_RUN + " --set update.lr=fast", "a number, not 'fast'"),
    ("a number for a word", SMALL_RUN + " --set model.name=7", "a string, not 7"),
    ("a number for a bool", SMALL_RUN + " --set store.tokens=1", "true or false, not 1"),
    ("a number for a list", SMALL_RUN + " --set task.levels=3", "a list of int, not 3"),
    ("an empty list", SMALL_RUN + " --set task.levels=[]", "must not be empty"),
    ("no such level", SMALL_RUN + " --set task.levels=[5]", "5 is not a level"),
    ("below", SMALL_RUN + " --set sample.group_size=1", "at least 2, not 1"),
    ("above", SMALL_RUN + " --set balance.tau=0.6", "between 0 and 0.5, not 0.6"),
    ("negative", SMALL_RUN + " --set update.lr=-1.0", "at least 0, not -1"),
    ("nan", SMALL_RUN + " --set update.lr=nan", "update.lr must be"),
    ("infinite", SMALL_RUN + " --set update.lr=inf", "update.lr must be"),
    ("huge", SMALL_RUN + " --set update.lr=1" + 400 * "0", "update.lr is too large a number"),
    ("composer", SMALL_RUN + " --set batch.composer=groupd", "did you mean 'grouped'"),
    ("credit", SMALL_RUN + " --set credit.name=grop", "did you mean 'grpo'"),
    ("weights", SMALL_RUN + " --set credit.weights=unifrom", "did you mean 'uniform'"),
    ("task", SMALL_RUN + " --set task.name=word_problem", "did you mean 'word_problems'"),
    ("verifier", SMALL_RUN + " --set verify.name=maths", "did you mean 'math'"),
    ("surrogate", SMALL_RUN + " --set update.surrogate=cipso", "did you mean 'cispo'"),
    ("aggregation", SMALL_RUN + " --set update.aggregate=token", "did you mean 'token_mean'"),
    ("optimizer", SMALL_RUN + " --set update.optimizer=adam", "did you mean 'adamw'"),
    ("unit", SMALL_RUN + " --set balance.unit=groups", "did you mean 'group'"),
    ("device", SMALL_RUN + " --set model.device=gpu", "choices: auto, cpu, cuda"),
    # -- functions of the user's
    ("own: no file", REWARD + "none.py:score", "verify.name: .*/none.py cannot be read: No such"),
    ("own: no function named", REWARD + "mine.py", r"unknown value .*FUNCTION, code, exact"),
    ("own: no name", REWARD + "mine.py:", "names no function: write FILE.py:FUNCTION or MODULE:"),
    ("own: no module", SMALL_RUN + " -s verify.name=no.such:f", "finds no module 'no.such'"),
    ("own: built in", SMALL_RUN + " -s verify.name=math:sqrt", "finds no module 'math'"),
    ("own: no function", REWARD + "mine.py:scor", "mine.py: .*'scor': did you mean 'score'"),
    ("own: no function but", REWARD + "mine.py:not_a_function", "unknown function 'not_a_func"),
    ("own: import", REWARD + "broken.py:f", "broken.py:2: ModuleNotFoundError: No module named"),
    ("own: syntax", REWARD + "syntax.py:score", r"syntax.py:2: SyntaxError: '\[' was never closed"),
    ("own: fails", REWARD + "fails.py:score", "fails.py:2: KeyError: 'first'"),
    ("own: a script", REWARD + "script.py:score", "script.py:1: SystemExit$"),
    ("own: no responses", REWARD + "mine.py:one", r"one\(text\) has no parameter for the resp"),
    ("own: no columns", REWARD + "mine.py:with_tests", "have no columns, and .* names 'test'"),
    ("own: no columns, dry", REWARD_DRY + "mine.py:with_tests", "have no columns, and a reward"),
    ("own: column", SMALL_RUN + TESTS + "with_tests", r"'test': did you mean 'tests'\? \(choices"),
    ("own: column, dry", DRY_RUN + TESTS + "with_tests", "tests.*, and a reward function"),
    ("own: column, held out", SMALL_RUN + HELD + "tests", "/good.jsonl: unknown column 'tests'"),
    ("own: column, eval", EVAL + "with_tests", "/tests.jsonl: unknown column 'test': did you mean"),
    ("own: also, no file", ALSO + "none.py:f=0.5\"]", "verify.also: .*/none.py cannot be read: No"),
    ("own: also, function", ALSO + "mine.py:scor\"]", "mine.py: .*'scor': did you mean 'score'"),
    ("own: also, weight", ALSO + "mine.py:score=no\"]", r"mine.py:score@\w+=no' has no weight"),
    ("own: also, short", ALSO_DRY + "mine.py:short\"]", "short returned 1 numbers for 4 responses"),
    ("own: weight alone", REWARD + "mine.py:score=0.5", r"score@\w+=0.5' names no function: write"),
    ("own: short", REWARD_DRY + "mine.py:short", "short returned 1 numbers for 4 responses"),
    ("own: a number", REWARD_DRY + "mine.py:number", "returned 1.0: return a list of 4 numbers"),
    ("own: nothing", REWARD_DRY + "mine.py:nothing", "returned None: return a list of 4 numbers"),
    ("own: nan", REWARD_DRY + "mine.py:nan", "returned nan for response 3 of 4: a reward is a fi"),
    ("own: none", REWARD_DRY + "mine.py:none", "returned None for response 1 of 4: a reward is a"),
    ("own: divides", REWARD_DRY + "mine.py:divides", "mine.py:11: ZeroDivisionError: division by"),
    ("own: misses", RULE_DRY + "mine.py:misses", r"8 rows: row 7 \(counting from 0\) occurs 0 "),
    ("own: twice", RULE_DRY + "mine.py:twice", r"8 rows: row 0 \(counting from 0\) occurs 2 ti"),
    ("own: one more", RULE_DRY + "mine.py:one_more", r"row 8 \(counting from 0\) occurs 1 tim"),
    ("own: one step", RULE_DRY + "mine.py:one_step", "mine.py:one_step.*1 steps instead of 2"),
    ("own: flat", RULE_DRY + "mine.py:flat", "did not return lists of row numbers .*: return 2 l"),
    ("own: halves", RULE_DRY + "mine.py:halves", "did not return lists of row numbers .*: return"),
    ("own: reward as rule", RULE_DRY + "mine.py:score", r"score\(rows, num_steps, seed\): too"),
    ("own: verl", RULE_DRY + "mine.py:misses -e verl", "cannot honour .*batch.composer=.*mine"),
    ("own: plan", "plan {w}/rows.jsonl -k 2 -c {w}/mine.py:misses", "partition of the 4 rows"),
    ("own: in a table of ours", SMALL_RUN + " -s credit.name={w}/mine.py:score", "unknown value"),
    ("no CUDA device", SMALL_RUN + " --set model.device=cuda", "torch sees no CUDA device"),
    ("demo, too", "demo --out {o} --set loop.sead=1", "did you mean 'seed'"),
    # -- options that do not fit together
    ("groups and steps", SMALL_RUN + " -s batch.steps=5", "4 groups cannot fill 5 steps"),
    ("rows and steps", SMALL_RUN + " -s batch.composer=shuffled -s batch.steps=9", "fill 9 steps"),
    ("target and steps", SMALL_RUN + " -s balance.tau=0.5 -s balance.target=2", "fill 2 steps"),
    ("whole in two", SMALL_RUN + " -s batch.composer=whole", "set batch.steps=1"),
    ("signs in one", SMALL_RUN + " -s batch.composer=by_sign -s batch.steps=1", "batch.steps"),
    ("odd target", SMALL_RUN + ODD, "even or lower tau"),
    ("too few prompts", SMALL_RUN + " -s sample.prompts=9", "8 training prompts cannot fill"),
    ("too long", SMALL_RUN + " -s sample.max_prompt_tokens=1", "=1, and 0 are left, too few"),
    # -- the model
    ("unknown model", MODEL + "embeded", "no model 'embeded'"),
    ("scratch", MODEL + "scratch", "model.name=scratch is for poise warmup"),
    ("no model folder", MODEL + "{w}/nowhere", "nowhere.*no such folder"),
    ("hub id, offline", MODEL + "nobody/nothing", "model 'nobody/nothing' cannot be loaded"),
    ("a file", MODEL + "{w}/a_file", "a_file"),
    ("not a model", MODEL + "{w}/no_model", "no_model holds no model: config.json"),
    ("truncated weights", MODEL + "{w}/cut_weights", "cut_weights.* cannot be loaded"),
    ("truncated header", MODEL + "{w}/cut_header", "cut_header.* cannot be loaded"),
    ("empty weights", MODEL + "{w}/empty_weights", "empty_weights.* cannot be loaded"),
    ("no weights", MODEL + "{w}/no_weights", "no_weights.* cannot be loaded"),
    ("a layer missing", MODEL + "{w}/few_weights", "few_weights.* cannot be loaded"),
    ("bad config.json", MODEL + "{w}/cut_config", "cut_config.* cannot be loaded"),
    ("config.json a list", MODEL + "{w}/list_config", "list_config.* cannot be loaded"),
    ("bad tokenizer", MODEL + "{w}/cut_tokenizer", "cut_tokenizer.* cannot be loaded"),
    ("no tokenizer", MODEL + "{w}/no_tokenizer", "no_tokenizer.* cannot be loaded"),
    ("other shapes", MODEL + "{w}/other_shape", "other_shape.* cannot be loaded"),
    ("gpt2", MODEL + "{w}/gpt2", r"gpt2.* cannot be loaded: its file lacks \d+ weights"),
    ("bert", MODEL + "{w}/bert", r"bert.* cannot be loaded: its file lacks \d+ weights"),
    ("invented", MODEL + "{w}/invented", "qwen99"),
    ("dry run, bad config", DRY + "cut_config", "cut"),
    # -- the data
    ("no data path", JSONL[: JSONL.index(" -s task.path")], "set task.path"),
    ("no data file", JSONL + "none.jsonl", "none.jsonl: no such file"),
    ("data is a folder", JSONL + "gone.jsonl", "gone.jsonl: a folder"),
    ("no records", JSONL + "empty.jsonl", "empty.jsonl: no records"),
    ("bad JSON", JSONL + "cut.jsonl", "cut.jsonl:2: not JSON"),
    ("missing field", JSONL + "field.jsonl", "field.jsonl:2: no field 'answer'"),
    ("empty problem", JSONL + "blank.jsonl", "blank.jsonl:2: field 'problem' is empty"),
    ("duplicate id", JSONL + "again.jsonl", "again.jsonl:2: id 'a' is also on line 1"),
    ("not UTF-8 data", JSONL + "bytes.jsonl", "bytes.jsonl:2: not UTF-8"),
    ("all held out", JSONL + "good.jsonl -s task.heldout=4", "lower task.heldout"),
    ("few records", JSONL + "good.jsonl -s sample.prompts=5", "4 training prompts cannot fill"),
    ("other data", JSONL + "good.jsonl -s task.heldout_path={w}/none", "none: no such file"),
    ("no hub path", SMALL_RUN + " -s task.name=hub", "task.path"),
    ("no gym dataset", SMALL_RUN + " -s task.name=reasoning_gym", "task.dataset"),
    # -- the output folder
    ("holds a run", "train {w}/small.toml --out {w}/run", "poise train --resume --out"),
    ("demo on a run", "demo --out {w}/run", "already holds a run"),
    ("out is a file", "train {w}/small.toml --out {w}/a_file", "is a file"),
    ("out is not empty", "train {w}/small.toml --out {w}/full", "is not empty"),
    ("out under a file", "train {w}/small.toml --out {w}/a_file/x", "cannot be written"),
    ("out not writable", "train {w}/small.toml --out /proc/poise/run", "cannot be written"),
    ("out too long", "train {w}/small.toml --out {o}" + 300 * "x", "File name too long"),
    ("resume what", "train --resume", "--resume needs --out"),
    ("resume nothing", "train --resume --out {o}", "does not exist"),
    ("resume a file", "train --resume --out {w}/a_file", "holds no run"),
    ("resume no run", "train --resume --out {w}/full", "holds no run"),
    ("resume damaged", "train --resume --out {w}/damaged_run", "not a TOML file"),
    ("contradicting", "train --resume --out {w}/run -s update.lr=1", "update.lr=1e-06, not 1.0"),
    ("another config", "train demo --resume --out {w}/run", "was made with"),
    # -- the other commands
    ("plan: missing", "plan {w}/none.jsonl", "none.jsonl cannot be read"),
    ("plan: a folder", "plan {w}/full", "full is a folder: name a file of rollouts"),
    ("plan: empty", "plan {w}/empty.jsonl", "holds no rollouts"),
    ("plan: bad JSON", "plan {w}/cut.toml", "line 1: not JSON"),
    ("plan: no reward", "plan {w}/no_reward.jsonl", "line 1: no 'reward'"),
    ("plan: composer", "plan {w}/rows.jsonl -k 1 -c groupd", "did you mean 'grouped'"),
    ("plan: credit", "plan {w}/rows.jsonl -k 1 --credit grop", "did you mean 'grpo'"),
    ("plan: groups", "plan {w}/rows.jsonl -k 2", "1 whole group cannot fill 2 steps"),
    ("plan: rows", "plan {w}/rows.jsonl -k 5 -c shuffled", "4 rows cannot fill 5 steps"),
    ("plan: no steps", "plan {w}/rows.jsonl -k 0", "0 steps"),
    ("plan: seed", "plan {w}/rows.jsonl -k 2 -c shuffled --seed -1", "seed"),
    ("track: a tracker", SMALL_RUN + " -s track.to=[tensorbord]", "did you mean 'tensorboard'"),
    ("track: twice", SMALL_RUN + " -s track.to=[wandb,wandb]", "track.to names wandb twice"),
    ("track: a word", SMALL_RUN + " -s track.to=wandb", r"""not 'wandb': write \["wandb"\]"""),
    ("track: missing", "track {w}/nowhere --to tensorboard", "does not exist"),
    ("track: no metrics", "track {w}/run --to tensorboard", "there is nothing to send"),
    ("track: bad log", "track {w}/damaged_log --to tensorboard", "metrics.jsonl is damaged"),
    ("track: nobody", "track {w}/run --to tensorbord", "did you mean 'tensorboard'"),
    ("track: nowhere", "track {w}/run", "missing option '--to'"),
    ("report: missing", "report {w}/nowhere", "does not exist"),
    ("report: no run", "report {w}/full", "holds no run"),
    ("report: a file", "report {w}/a_file", "is a file"),
    ("report: damaged", "report {w}/damaged_run", "not a TOML file"),
    ("report: bad log", "report {w}/damaged_log", "metrics.jsonl is damaged"),
    ("study: name", "study flippin --out {o}/s", "did you mean 'flipping'"),
    ("study: budget", "study proxy --budget tiny --out {o}/s", "unknown budget 'tiny'"),
    ("study: out", "study proxy --out {w}/a_file", "cannot be used"),
    ("study: model", "study proxy --model nowhere --out {o}/s", "no model 'nowhere'"),
    ("study: on a run", "study proxy --out {w}/run", "holds a run: choose another --out"),
    ("study: audit", "study audit --minutes 5 --out {o}/s", "audit does not use --minutes"),
    ("study: tables", "study replication --set a.b=1", "replication does not use --set"),
    ("study: minutes", "study proxy --minutes -1 --out {o}/s", "greater than or equal to 0"),
    ("experiment: on a run", "experiment smollm2-pilot --out {w}/run", "holds a run: choose"),
    ("experiment: minutes", EXPERIMENT + " --minutes -1", "greater than or equal to 0"),
    ("experiment: a run", "experiment {w}/small.toml --out {o}", "no section .experiment."),
    ("experiment: file", "experiment {w}/none.toml --out {o}", "no such file, and unknown preset"),
    ("experiment: seeds", EXPERIMENT + " --seeds 99:", "none of the experiment's 16 seeds"),
    ("experiment: rate", EXPERIMENT + " --rates 7", "not a rate of the experiment"),
    ("experiment: arm", EXPERIMENT + " --arms shufled", "did you mean 'shuffled'"),
    ("experiment: no out", "experiment smollm2-interventions", "--out is missing"),
    ("experiment: out", "experiment smollm2-pilot --out {w}/a_file", "cannot be used"),
    ("look: missing", "look {w}/nowhere", "does not exist"),
    ("look: above a run", "look {w}", "w.* holds no run: .*; .*damaged_log holds one"),
    ("look: no tokens", "look {w}/run", "stored no tokens"),
    ("credit: name", "credit hihg_entropy {w}/run", "did you mean 'high_entropy'"),
    ("credit: setting", "credit high_entropy {w}/run --settings sahre=1", "did you mean 'share'"),
    ("credit: missing", "credit uniform {w}/nowhere", "does not exist"),
    ("credit: turned round", "credit {w}/run uniform", "the name of the weights comes first"),
    ("credit: no rollouts", "credit uniform {w}/run", "stored no rollouts"),
    ("bench: minutes", "bench --minutes -1", "minutes.*greater than or equal to 0"),
    ("report: bad out", "report {w}/run --out {o}/no/where.html", "choose another --out"),
    ("warmup: not empty", "warmup {w}/small.toml --out {w}/full", "not an empty folder"),
    ("warmup: on a file", "warmup {w}/small.toml --out {w}/a_file", "not an empty folder"),
    ("warmup: no solutions", JSONL.replace("train", "warmup") + "good.jsonl", "worked solution"),
    ("warmup: config", "warmup {w}/none.toml --out {o}", "no such file, and unknown preset"),
    ("options: none", "options zzzzzz", "no option matches 'zzzzzz'"),
    ("flag: lr", "train demo --lr 1 --out {o}", r"--lr; did you mean --set update\.lr=\.\.\.\?"),
    ("flag: beta", "train demo --beta=0 --out {o}", r"--set update\.kl=\.\.\.\? The reference"),
    ("flag: seed", "demo --seed 1 --out {o}", r"did you mean --set loop\.seed=\.\.\.\?"),
    ("flag: misspelled", "train demo --rsume --out {o}", "Possible options: --resume"),
    ("flag: folder", "train demo --output_dir {o}", "did you mean --out?"),
    ("set: section", "train demo --set loop.learning_rate=1 --out {o}", "did you mean 'update.lr'"),
]  # fmt: skip

# Faults that are not met as they should be. Whoever mends one strikes it out here.
KNOWN: dict[str, str] = {}
