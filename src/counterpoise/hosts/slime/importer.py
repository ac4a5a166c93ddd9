"""Import slime's debug dumps, train_data/N.pt with its schedule and rollout_data/N.pt.

    DUMP/train_data/7.pt      slime: the samples of rollout batch 7 and `dp_shards`, their schedule
    DUMP/train_data/7_3.pt    miles, and slime before 2026-08-12: what rank 3 was given
    DUMP/rollout_data/7.pt    what was sampled: texts, groups, rewards

DUMP is the folder of --dump-details. A rollout batch becomes one iteration. Training dumps have
tokens, log-probabilities, advantages and the real schedule (schedule.py), but no texts and no
groups: these come from the sampling dump of the same batch (match_samples.py). Without it, samples
with equal prompt tokens are a group. A sampling dump alone gives rollouts without plans. Files of
evaluations (eval_7.pt) are left out.

Ranks of tensor parallelism write the same samples again, and count once. With context parallelism
miles writes a slice of each list of numbers, which is left out.

Read in slime at 624b824a (slime/observability/{train,rollout}_data_utils.py, slime/ray/rollout.py)
and miles at 31f1ca96 (miles/utils/train_dump_utils.py, miles/ray/rollout/debug_data.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from counterpoise.errors import PoiseError, format_count
from counterpoise.hosts.importing.formats import ImportContext, ImportedStep, RolloutSource
from counterpoise.hosts.slime.dump_files import (
    KNOWN_VERSIONS,
    NEWEST_FORMAT,
    DumpHead,
    load_dump,
    peek_head,
)
from counterpoise.hosts.slime.samples import RolloutDump, SampleCounts, TrainSamples, build_step

FOLDERS = (".", "train_data", "rollout_data")  # searched below the path that the user gives


def find_files(is_miles: bool, path: Path) -> list[Path]:
    """The dumps at a path, in the order of rollout batches; then a folder's other .pt files."""
    if path.is_file():
        candidates = [path] if path.suffix == ".pt" else []
    else:
        candidates = [file for folder in FOLDERS for file in (path / folder).glob("*.pt")]
    readable_heads = {file: head for file in candidates if (head := _peek_unless_evaluation(file))}
    # A sampling dump does not always say whose it is: the training dumps beside it do.
    deciding = [head for head in readable_heads.values() if head.kind != "rollouts"] or list(
        readable_heads.values()
    )
    if not deciding or any(head.is_miles for head in deciding) != is_miles:
        return []
    dumps = sorted(
        readable_heads,
        key=lambda file: (readable_heads[file].rollout_id, readable_heads[file].rank, str(file)),
    )
    return dumps + sorted(set(candidates) - set(dumps))


def _peek_unless_evaluation(file: Path) -> DumpHead | None:
    """What kind of dump a file is; None for evaluations and other files."""
    return None if file.stem.startswith("eval_") else peek_head(file)


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    counts = SampleCounts()
    files_of_batch: dict[int, list[tuple[DumpHead, Path]]] = {}
    other_files: list[Path] = []
    for file in files:
        if head := _peek_unless_evaluation(file):
            files_of_batch.setdefault(head.rollout_id, []).append((head, file))
        else:
            other_files.append(file)
    has_rollouts = False
    for rollout_id, dumps in files_of_batch.items():
        context.show_progress(f"rollout batch {rollout_id}")
        step = _read_batch(rollout_id, dumps, context, counts)
        if step is not None:
            has_rollouts = True
            yield step
    notes = (*counts.notes(), *_notes_on_other_files(other_files))
    if not has_rollouts and notes:
        raise PoiseError(f"{files[0]}: no rollout can be imported ({'; '.join(notes)})")
    for note in notes:
        context.add_note(note)


def _notes_on_other_files(files: Sequence[Path]) -> list[str]:
    """What is left out of the folders: evaluations, and files that are torn or no dumps."""
    evaluations = [file for file in files if file.stem.startswith("eval_")]
    unknown = [str(file) for file in files if file not in evaluations]
    notes = []
    if evaluations:
        notes.append(f"left out: {format_count(len(evaluations), 'file')} of evaluations")
    if unknown:
        names = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        notes.append(f"left out because they are no complete dumps: {names}")
    return notes


def _read_batch(
    rollout_id: int,
    dumps: list[tuple[DumpHead, Path]],
    context: ImportContext,
    counts: SampleCounts,
) -> ImportedStep | None:
    """One rollout batch: what was sampled, and what was trained of it."""
    by_kind: dict[str, list[Path]] = {"train": [], "ranks": [], "rollouts": []}
    for head, file in dumps:
        if head.format_version > NEWEST_FORMAT:
            raise PoiseError(
                f"{file}: format_version {head.format_version}, expected at most "
                f"{NEWEST_FORMAT}: {KNOWN_VERSIONS}"
            )
        by_kind[head.kind].append(file)
    for kind in ("train", "rollouts"):
        if len(by_kind[kind]) > 1:
            first_file, second_file = by_kind[kind][:2]
            raise PoiseError(
                f"{first_file} and {second_file} both hold rollout batch {rollout_id}: "
                "import each run by itself"
            )
    sampling_dump = None
    if by_kind["rollouts"]:
        file = by_kind["rollouts"][0]
        sampling_dump = RolloutDump(load_dump(file), str(file))
    train_samples = None
    if by_kind["train"]:
        file = by_kind["train"][0]
        train_samples = TrainSamples.from_whole_dump(load_dump(file), str(file))
    elif by_kind["ranks"]:
        rank_dumps = [(load_dump(file), str(file)) for file in by_kind["ranks"]]
        train_samples = TrainSamples.from_rank_dumps(rank_dumps)
    return build_step(rollout_id, sampling_dump, train_samples, context, counts)


def make_source(title: str, train_files: str) -> RolloutSource:
    return RolloutSource(
        title,
        f"{train_files} (--save-debug-train-data), rollout_data/N.pt (--save-debug-rollout-data)",
        partial(find_files, title == "miles"),
        read_steps,
        has_tokens=True,
    )


SOURCE = make_source("slime", "train_data/N.pt")
