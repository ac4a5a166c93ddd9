"""The state of a run: what changes while it trains, and how it is saved and restored."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from counterpoise.batch.buffer import BufferCounts, RewardBalancedBuffer
from counterpoise.config import RunConfig
from counterpoise.config.load import to_toml
from counterpoise.errors import PoiseError, format_count
from counterpoise.microscope.probe_monitor import ProbeReading
from counterpoise.model.fit_memory import FittedSize, describe_prompts
from counterpoise.model.load import Policy
from counterpoise.run.benchmarks import RunBenchmark
from counterpoise.run.probes import ProbeSet, probes_from_tensors, probes_to_tensors
from counterpoise.sample.collect import SamplerBinding
from counterpoise.sample.episodes import EpisodePlayer
from counterpoise.sample.native import sample
from counterpoise.sample.prompt_memory import PromptMemory
from counterpoise.sample.sampler import SampleFunction
from counterpoise.store import checkpoint
from counterpoise.store.finished import is_finished
from counterpoise.store.folder import RunFolder
from counterpoise.store.missing_logs import settle_missing_logs
from counterpoise.store.resume import (
    STRICT,
    ResumePermissions,
    check_checkpoint_options,
    check_restart,
    discard_run,
)
from counterpoise.store.row_records import rows_from_tensors, rows_to_tensors
from counterpoise.types import Prompt, Row
from counterpoise.update.graphs.passes import choose_passes
from counterpoise.update.kl_control import AdaptiveControl, make_kl_control
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.passes import EAGER, Passes
from counterpoise.update.reference import copy_weights
from counterpoise.update.rules.bind import reads_initial_weights

TEACHER_PREFIX = "teacher."  # of its weights in a checkpoint's buffer.safetensors


@dataclass(slots=True)
class RunState:
    """What a run carries from one iteration to the next.

    A checkpoint holds the weights, the state of the optimizer, the buffer, the two sizes that are
    fitted to memory (`micro_batch`, `prompts_per_draw`), the probes, the counters, the prompt
    memory, the teacher's weights and the state of the KL control. The rest is made again when a run
    is resumed: the initial weights, for example, are in the model's own files, and the checkpoint
    has their digest.
    """

    policy: Policy
    optimizer: Optimizer
    buffer: RewardBalancedBuffer
    # Two sizes that are halved when memory runs out: tokens of one pass of the update, and prompts
    # that are sampled at once, at first all of them.
    micro_batch: FittedSize
    prompts_per_draw: FittedSize
    passes: Passes = EAGER  # how the forward and backward passes of the update run
    sample_function: SampleFunction = sample  # the sampler
    episode_player: EpisodePlayer | None = None  # None without an environment
    benchmarks: Sequence[RunBenchmark] = ()  # evaluated beside held-out problems
    initial_weights: dict[str, Tensor] | None = None  # only if a KL or a rule reads them
    teacher_weights: dict[str, Tensor] | None = None  # only if a teacher follows the policy
    probes: ProbeSet | None = None  # held-out answers that are followed
    # Scores of the answers after the last update, used again before the next one; not saved, since
    # they can be computed again.
    probe_reading: ProbeReading | None = None
    iteration: int = 0  # number of finished iterations
    skipped_in_a_row: int = 0  # optimizer steps that were not finite
    # How often each prompt was visited and solved; empty with sample.choose=epochs.
    prompt_memory: PromptMemory = field(default_factory=PromptMemory)
    kl_control: AdaptiveControl | None = None  # None: the coefficient of the KL is fixed
    initial_digest: str = ""  # of the model's own files, see store/checkpoint.py


def new_state(policy: Policy, config: RunConfig) -> RunState:
    """The state at the start of a run, with the weights that the policy was loaded with."""
    update_options = config.update
    return RunState(
        policy,
        Optimizer(policy.model, update_options, config.max_optimizer_steps),
        _make_buffer(config),
        FittedSize(update_options.micro_tokens),
        FittedSize(config.sample.prompts, describe=describe_prompts),
        choose_passes(update_options),
        initial_weights=(
            copy_weights(policy)
            if update_options.kl or reads_initial_weights(config.credit)
            else None
        ),
        prompt_memory=PromptMemory(config.sample.memory_visits, config.sample.retry_after),
        kl_control=make_kl_control(update_options),
        initial_digest=checkpoint.initial_digest(policy.model),
    )


def bind_sampler(state: RunState) -> SamplerBinding:
    """The run's sampler with its policy, the prompts that it draws at once and its environment."""
    return SamplerBinding(
        state.policy, state.prompts_per_draw, state.sample_function, state.episode_player
    )


def save_state(folder: RunFolder, state: RunState, config: RunConfig) -> None:
    """Write a checkpoint. Logs are flushed first, because a checkpoint implies complete logs."""
    folder.sync()
    row_records, row_tensors = rows_to_tensors(state.buffer.state())
    probe_record, probe_tensors = probes_to_tensors(state.probes)
    snapshot = checkpoint.Checkpoint(
        iteration=state.iteration,
        model=checkpoint.model_weights(state.policy.model),
        optimizer=state.optimizer.state(),
        buffer={**row_tensors, **probe_tensors, **_teacher_tensors(state)},
        state={
            "rows": row_records,
            "probes": probe_record,
            "counts": asdict(state.buffer.counts),
            "skipped_in_a_row": state.skipped_in_a_row,
            "micro_tokens": state.micro_batch.size,
            "prompts_at_once": state.prompts_per_draw.size,  # a name from older checkpoints
            "checksums_from": folder.checksums_from,  # the first iteration that has checksums
            "initial_digest": state.initial_digest,
            **({"memory": state.prompt_memory.to_state()} if config.has_prompt_memory else {}),
            **({"kl_control": state.kl_control.to_state()} if state.kl_control else {}),
        },
        options=to_toml(config),
    )
    with folder.explain_write_errors(f"checkpoints/{checkpoint.folder_name(state.iteration)}"):
        checkpoint.save(folder.checkpoints, snapshot, config.loop.keep_checkpoints)


def check_finite(state: RunState, iteration: int) -> None:
    """Stop the run before weights that are not finite are stored: they cannot sample."""
    with torch.no_grad():
        largest_weight = get_total_norm(state.optimizer.weights, norm_type=math.inf)
    if not largest_weight.isfinite():
        raise PoiseError(
            f"the weights are not finite after the update of iteration {iteration}: start a "
            "new run with a lower update.lr or update.weight_decay; everything written before this "
            "iteration is intact"
        )


def replace_waiting_rows(state: RunState, rows: list[Row]) -> None:
    """Put `rows` in place of the buffer's waiting rows.

    For example, the same rows with their old log-probabilities (update/old_logprobs.py).
    """
    state.buffer.restore(rows, state.buffer.counts)


def restore_state(
    folder: RunFolder,
    policy: Policy,
    config: RunConfig,
    notify: Callable[[str], None],
    *,
    heldout: Sequence[Prompt],
    permissions: ResumePermissions = STRICT,
) -> RunState:
    """Load the newest intact checkpoint and rewind the folder to it.

    A run that was killed before its first checkpoint starts again. If checkpoints or lines of logs
    are missing for any other reason, an error is raised before the folder is changed, unless
    `permissions` allow it.
    Evaluations are expected only if there are `heldout` problems.
    """
    state = new_state(policy, config)
    if permissions.from_start:
        notify("starting again from iteration 0: what the run had is removed")
        # With `--engine trl` on several GPUs, every process restores the state from one folder, and
        # only process 0 changes it: for the others it is not writable, and `rewind` does nothing.
        if folder.writable:
            # First: if this is interrupted, the next resume must not take the old options.
            folder.write_config(config)
            discard_run(folder)
        return state
    snapshot = checkpoint.load_newest(folder.checkpoints, notify)
    if snapshot is None:
        if folder.writable:
            check_restart(folder)
        notify("no checkpoint was due yet: starting again from iteration 0")
        folder.rewind(-1)  # not 0: the evaluation before training, iteration 0, goes too
        return state
    check_checkpoint_options(
        folder.path, checkpoint.folder_name(snapshot.iteration), snapshot.options, config
    )
    _check_model(folder, state, snapshot, config)
    if snapshot.iteration > config.loop.iterations:
        raise PoiseError(
            f"{folder.path} has already done {format_count(snapshot.iteration, 'iteration')}: "
            f"raise loop.iterations={config.loop.iterations} to at least that"
        )
    if folder.writable:
        expects_evaluations = bool(heldout[: config.evaluate.prompts])
        settle_missing_logs(
            folder, config, snapshot.iteration, expects_evaluations, permissions, notify
        )
    # All checks have passed: nothing below refuses the run.
    if folder.writable:
        checkpoint.remove_superseded(
            folder.checkpoints, snapshot.iteration, config.loop.keep_checkpoints
        )
    _apply_checkpoint(state, snapshot, config)
    folder.checksums_from = snapshot.state.get("checksums_from", snapshot.iteration + 1)
    folder.rewind(snapshot.iteration)
    has_all_iterations = snapshot.iteration == config.loop.iterations
    if is_finished(folder.path, snapshot.iteration) and has_all_iterations:
        notify(
            f"already finished: {format_count(snapshot.iteration, 'iteration')}; to continue, "
            f"raise loop.iterations, for example --set loop.iterations={2 * snapshot.iteration}"
        )
    else:
        notify(f"resuming after iteration {snapshot.iteration}")
    return state


def _check_model(
    folder: RunFolder, state: RunState, snapshot: checkpoint.Checkpoint, config: RunConfig
) -> None:
    """Raise if the model's own files are no longer those that the run began with.

    Trained weights come from the checkpoint. The weights in the model's files still matter if they
    are the base of a LoRA run, or if a KL or a rule compares the policy with its start.
    """
    name, model = checkpoint.folder_name(snapshot.iteration), state.policy.model
    checkpoint.check_model_weights(
        model, snapshot.model, f"{folder.path}: {name}", config.model.name
    )
    is_base_frozen = len(snapshot.model) < len(list(model.parameters()))
    needs_files = state.initial_weights is not None or is_base_frozen
    saved_digest = snapshot.state.get("initial_digest", "")  # older checkpoints lack it
    # The digest depends on the precision, which another device may change while the files stay the
    # same.
    is_comparable = saved_digest.partition(" ")[0] == state.initial_digest.partition(" ")[0]
    if needs_files and is_comparable and saved_digest != state.initial_digest:
        raise PoiseError(
            f"{folder.path}: the model '{config.model.name}' has changed since the run began, and "
            "the run still needs it as it was: restore it, or start a new --out"
        )


def _apply_checkpoint(state: RunState, snapshot: checkpoint.Checkpoint, config: RunConfig) -> None:
    """Set a new state to what a checkpoint holds."""
    checkpoint.set_model_weights(state.policy.model, snapshot.model)
    state.optimizer.restore(snapshot.optimizer)
    waiting_rows = rows_from_tensors(snapshot.state["rows"], snapshot.buffer)
    state.buffer = _make_buffer(config, waiting_rows, BufferCounts(**snapshot.state["counts"]))
    # Checkpoints of older versions know no probes.
    state.probes = probes_from_tensors(snapshot.state.get("probes"), snapshot.buffer)
    state.skipped_in_a_row = snapshot.state["skipped_in_a_row"]
    # Sizes that were lowered to fit into memory stay lowered, even if their options are raised. A
    # size was lowered if it is not its option's value. Older checkpoints lack sizes or options.
    options = tomllib.loads(snapshot.options)
    for fitted_size, state_name, option in (
        (state.micro_batch, "micro_tokens", options.get("update", {}).get("micro_tokens")),
        (state.prompts_per_draw, "prompts_at_once", options.get("sample", {}).get("prompts")),
    ):
        saved_size = snapshot.state.get(state_name)
        if saved_size is not None and saved_size != option:
            fitted_size.size = min(fitted_size.size, saved_size)
    teacher_weights = {
        name.removeprefix(TEACHER_PREFIX): tensor.to(state.policy.device)
        for name, tensor in snapshot.buffer.items()
        if name.startswith(TEACHER_PREFIX)
    }
    state.teacher_weights = teacher_weights or None
    if "memory" in snapshot.state:
        state.prompt_memory.restore(snapshot.state["memory"])
    if state.kl_control:
        state.kl_control.restore(snapshot.state["kl_control"])
    state.iteration = snapshot.iteration


def _teacher_tensors(state: RunState) -> dict[str, Tensor]:
    """The teacher's weights, as a checkpoint names them."""
    weights = state.teacher_weights or {}
    return {f"{TEACHER_PREFIX}{name}": tensor.contiguous() for name, tensor in weights.items()}


def _make_buffer(
    config: RunConfig, rows: list[Row] | None = None, counts: BufferCounts | None = None
) -> RewardBalancedBuffer:
    buffer = RewardBalancedBuffer(
        tau=config.balance.tau,
        target=config.balance_target,
        unit=config.balance.unit,
        sign=config.balance.sign,
        max_age=config.balance.max_age,
    )
    buffer.restore(rows or (), counts)
    return buffer
