"""What guided fuzzing reads: the readers of fuzz.py, and further ones with files of their own.

Further are: the other trainers' formats, each log as lines, results of `poise eval`, `poise audit`,
the views of `poise serve`, and the text of an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

from fuzz import CHECK, Target, make_targets, read_import

from counterpoise.errors import UNEXPECTED_VALUE_ERRORS, PoiseError
from counterpoise.lab.evaluate.result_files import (
    SCHEMA,
    JudgedProblem,
    ResultHeader,
    read_result_file,
)
from counterpoise.report.audit.rank import audit_run
from counterpoise.serve.answers import BadRequestError, NotFoundError, encode_answer
from counterpoise.serve.run_reader import RunReader
from counterpoise.serve.views.batch import group_view, iteration_view
from counterpoise.serve.views.rollout import rollout_view
from counterpoise.serve.views.run import run_view
from counterpoise.serve.views.token import token_view
from counterpoise.store.logs import parse_log_line
from counterpoise.store.schema import LOGS
from counterpoise.verify.math.boxed import extract_boxed
from counterpoise.verify.math.decide import decide_by_text

ANSWERS = (
    r"So \boxed{\frac{12}{8}}", r"\boxed{-1{,}200 \text{ cm}}", r"\boxed{(1, 2]}", r"\boxed{52_8}",
    r"\boxed{\{1, \sqrt{2}\}}", r"\boxed{y = 2x + 1}", r"\boxed{50\%} or \boxed{\$3.50}",
    r"\boxed{1.5 \times 10^{3}}", r"\boxed{\text{Monday}}", r"\boxed{x \in [0, \infty)}",
)  # fmt: skip
REFERENCES = ("1.5", "-1200", "(1, 2]", "52_8", r"\{1, \sqrt{2}\}", "y = 2x+1", r"\text{Monday}")


def write_more_files(corpus: Path) -> None:
    """The files of the further readers."""
    from foreign import TWO, advantages, areal_files, prime_record, write_lines
    from foreign_dumps import write_rollout_dump
    from foreign_traces import (
        episode_record,
        ship_update,
        trace_record,
        trainer_update,
        write_stream,
    )

    exports = [prime_record((1, 2), (3, 4, 5), float(i % 2)) for i in range(4)]
    write_lines(corpus / "prime" / "token_exports" / "step_0" / "rank_0.jsonl", exports)
    episodes = [episode_record(trace_record(name, i % 2), group="g") for i, name in enumerate("ab")]
    shipped = [ship_update(name, 1, 0.5) for name in "ab"]
    write_stream(corpus / "stream", episodes, shipped, [trainer_update(name) for name in "ab"])
    areal_files(corpus / "areal")
    write_rollout_dump(corpus / "slime")
    write_rollout_dump(corpus / "miles", miles=True)
    rewards = [1.0, 0.0, 0.0, 1.0]
    of_trl = zip([1] * 4, TWO, "abcd", rewards, advantages(rewards), strict=True)
    plain = zip([1] * 4, TWO, "abcd", rewards, strict=True)
    _write_table(corpus / "wandb", ["step", "prompt", "completion", "correct", "advantage"], of_trl)
    _write_table(corpus / "tables", ["global_step", "question", "response", "score"], plain)
    header = dict.fromkeys((field.name for field in fields(ResultHeader)), "x")
    header |= {"problems": 2, "samples": 2, "temperature": 0.6, "top_p": 0.95}
    judged = JudgedProblem(
        "a", "1 + 1", "2", [1.0, 0.0], ["2", None], [3, 4], [True, False], ["2", ""]
    )
    records = [{"schema": SCHEMA, **header}, asdict(judged)]
    write_lines(corpus / "results.jsonl", records)
    (corpus / "answers.txt").write_text("\n".join(ANSWERS) + "\n")


def _write_table(folder: Path, columns: list[str], rows: Iterator[Any]) -> None:
    file = folder / "files" / "media" / "table" / "completions_1_aa.table.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"columns": columns, "data": list(map(list, rows))}))


def make_readers(corpus: Path) -> list[Target]:
    """All readers but `poise check`, each with a label of its own."""
    run = corpus / "run"
    readers = [target for target in make_targets(corpus) if target.label != CHECK]
    readers = [
        Target(f"{target.label} {Path(target.file).suffix[1:]}", target.file, target.read)
        for target in readers
    ]
    for log in LOGS:
        if (run / f"{log}.jsonl").exists():
            readers.append(Target(f"log {log}", f"run/{log}.jsonl", partial(read_log, log)))
    imported = {
        "prime-rl tokens": ("prime-rl", "prime/token_exports/step_0/rank_0.jsonl"),
        "prime-rl traces": ("prime-rl", "stream/monitors/file/traces/stream.jsonl"),
        "prime-rl updates": (
            "prime-rl",
            "stream/monitors/file/traces/annotations/orchestrator.jsonl",
        ),
        "AReaL": ("areal", "areal/rollout/1/0.jsonl"),
        "slime": ("slime", "slime/rollout_data/0.pt"),
        "miles": ("miles", "miles/rollout_data/0.pt"),
        "W&B of TRL": ("wandb", "wandb/files/media/table/completions_1_aa.table.json"),
        "W&B": ("wandb", "tables/files/media/table/completions_1_aa.table.json"),
    }
    for label, (source, file) in imported.items():
        top = corpus / file.split("/")[0]
        readers.append(Target(label, file, read_import(source, corpus, top)))
    readers.append(Target("eval results", "results.jsonl", read_result_file))
    readers.append(Target("math answers", "answers.txt", read_answers))
    for log in ("metrics", "plans"):
        readers.append(Target(f"audit {log}", f"run/{log}.jsonl", lambda path: audit_run(run)))
    rollouts = "run/rollouts/step_00001.jsonl"
    group = json.loads((corpus / rollouts).read_text().splitlines()[0])["group"]
    readers.append(Target("audit rollouts", rollouts, lambda path: audit_run(run)))
    for file, views in SERVED_FILES.items():
        name = file.removeprefix("run/").partition("/")[0].partition(".")[0]
        serve = partial(serve_run, run, group, views)
        readers.append(Target(f"serve {name}", file, lambda path, serve=serve: serve()))
    return readers


def read_log(log: str, path: Path) -> None:
    for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        try:
            parse_log_line(line, log)
        except (ValueError, RecursionError) as fault:  # as the readers of logs expect
            raise PoiseError(str(fault)) from fault


def read_answers(path: Path) -> None:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        given = extract_boxed(line) or line
        for reference in REFERENCES:
            decide_by_text(given, reference)
            decide_by_text(reference, given)


VIEWS: dict[str, Callable[[RunReader, str], Any]] = {
    "run": lambda reader, group: run_view(reader),
    "iteration": lambda reader, group: iteration_view(reader, 1),
    "group": lambda reader, group: group_view(reader, 1, group),
    "rollout": lambda reader, group: rollout_view(reader, 1, group, 0),
    "token": lambda reader, group: token_view(reader, 1, group, 0, 0),
}
SERVED_FILES = {  # and the views that show them
    "run/metrics.jsonl": ("run", "iteration"),
    "run/evaluations.jsonl": ("run",),
    "run/plans.jsonl": ("run", "iteration", "group", "rollout"),
    "run/rollouts/step_00001.jsonl": ("group", "rollout"),
    "run/config.toml": ("run",),
    "run/tokens/step_00001.parquet": ("rollout",),
    "run/pushes/step_00001.parquet": ("token",),
    "run/finished.json": ("run",),
}


def serve_run(run: Path, group: str, views: Sequence[str]) -> None:
    """Views of a run, as `poise serve` answers: damaged files may be a reason for none.

    Following the logs and encoding an answer have no such excuse.
    """
    reader = RunReader("run", run, [run])
    reader.refresh(None)
    for name in views:
        try:
            answer = VIEWS[name](reader, group)
        except (NotFoundError, BadRequestError, PoiseError, OSError, *UNEXPECTED_VALUE_ERRORS):
            continue
        encode_answer(answer)
