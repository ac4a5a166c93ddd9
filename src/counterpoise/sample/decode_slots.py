"""The decoding loop of the GPU sampler: replay steps, look who has finished, refill their slots.

    step step ... step | look | step ...          FINISH_CHECK_INTERVAL steps between two looks
                         rows that finished are read out and leave their places; those still running
                         move up, and rows that wait start behind them in the free slots

Looking makes the host wait for the GPU, so a finished row stands still for a few steps. The steps
need no change for a refill: the number of places and the memory of all slots stay the same.
"""

from __future__ import annotations

import torch

from counterpoise.config import SampleConfig
from counterpoise.model.load import Policy, require_fast_path
from counterpoise.sample.decode_graphs import (
    DecodeGraphs,
    DrawSettings,
    batch_size,
    graphs_for,
    plan_slots,
)
from counterpoise.sample.fork_queue import DecodedRows, ForkQueue, ReadyForks, exclude_tokens
from counterpoise.sample.kv_slots import PrefixMemory

# Counting the running rows makes the host wait for the GPU, so it is done every so many tokens.
FINISH_CHECK_INTERVAL = 16


@torch.no_grad()
def decode_in_slots(policy: Policy, queue: ForkQueue, config: SampleConfig) -> DecodedRows:
    """Decode every fork of the queue; those beyond the slots wait for one."""
    decoder = require_fast_path(policy, "decoding with CUDA graphs")
    lengths = [len(queue.sequences[index]) for index in {fork.sequence for fork in queue.forks}]
    # A sequence that one pass of the prefill leaves to the next may be there twice for a while.
    capacity = plan_slots(decoder, queue.forks, sum(lengths), max(lengths))
    settings = DrawSettings(config.temperature, config.top_p, config.top_k, policy.end_tokens)
    return SlotDecoding(queue, graphs_for(decoder, capacity), settings).run()


class SlotDecoding:
    """The host's side of the slots: which fork decodes where, and since when."""

    def __init__(self, queue: ForkQueue, graphs: DecodeGraphs, settings: DrawSettings) -> None:
        self.queue, self.graphs, self.settings = queue, graphs, settings
        self.decoded: DecodedRows = {}
        self.row_steps = 0  # places decoded, summed over all steps
        capacity = graphs.slots.capacity
        self._prefix_memory = PrefixMemory(capacity.prefix_tokens)
        self._prefix_starts: dict[int, int] = {}  # of the sequences of the last prefill
        self._free_slots = list(range(capacity.rows))
        # By place: (slot, index of the fork, start of its prefix, step in which it must end).
        self._places: list[tuple[int, int, int, int]] = []
        self._step = 0
        graphs.slots.set_batch([])

    def run(self) -> DecodedRows:
        """Decode until no row runs and none waits."""
        slots, decoder = self.graphs.slots, self.queue.decoder
        self._admit()
        while self._places:
            batch = min(batch_size(len(self._places)), slots.capacity.rows)
            steps_left = max(end for *_, end in self._places) - self._step
            for _ in range(min(FINISH_CHECK_INTERVAL, steps_left)):
                self.graphs.step(decoder, batch, self.settings)
                self._step += 1
                self.row_steps += batch
            running = slots.running[: len(self._places)].tolist()
            num_running = sum(running)
            # Without rows that wait, finished ones may stay until a smaller batch suffices.
            is_smaller = batch_size(num_running) < batch or num_running == 0
            if num_running < len(running) and (len(self.queue) or is_smaller):
                self._remove_finished(running)
                self._admit()
        return self.decoded

    def _remove_finished(self, running: list[bool]) -> None:
        """Read out the finished rows, free their slots and close the gaps between places."""
        slots = self.graphs.slots
        finished_places = [place for place, is_running in enumerate(running) if not is_running]
        rows = slots.read_rows(finished_places)
        for place, row in zip(finished_places, rows, strict=True):
            slot, fork_index, prefix_start, _ = self._places[place]
            self.decoded[fork_index] = row
            self._free_slots.append(slot)
            self._prefix_memory.release_row(prefix_start)
        running_places = [place for place, is_running in enumerate(running) if is_running]
        self._places = [self._places[place] for place in running_places]
        slots.set_batch(running_places)

    def _admit(self) -> None:
        """Start rows that wait, as long as there are free slots and room for their prefixes."""
        while self._free_slots and len(self.queue):
            if self.queue.needs_prefill and not self._prefill_next():
                return  # the prefix memory is full until more rows have finished
            self._start(self.queue.take(len(self._free_slots)))

    def _prefill_next(self) -> bool:
        """Prefill the next sequences into the prefix memory, as many as it has room for."""
        starts = self._prefix_starts = {}

        def allocate(sequence: int, num_tokens: int) -> bool:
            start = self._prefix_memory.allocate(num_tokens)
            if start is not None:
                starts[sequence] = start
            return start is not None

        forks = self.queue.prefill_next(allocate)
        for fork in forks:
            self._prefix_memory.hold_for_row(starts[fork.sequence])
        if forks:
            spans = [(start, len(self.queue.sequences[index])) for index, start in starts.items()]
            self.graphs.slots.store_prefixes(self.queue.hand_over_keys(), spans)
        return bool(forks)

    def _start(self, ready: ReadyForks) -> None:
        """Give the forks free slots behind the running rows, and draw their first tokens."""
        slots, num_rows = self.graphs.slots, len(ready.forks)
        row_slots, self._free_slots = self._free_slots[:num_rows], self._free_slots[num_rows:]
        starts = [self._prefix_starts[fork.sequence] for fork in ready.forks]
        first_place = len(self._places)
        slots.start_rows(row_slots, ready.forks, starts, first_place)
        logits = ready.hidden_RD @ self.queue.decoder.unembedding.T
        exclude_tokens(logits, ready.forks)
        self.graphs.draw_tokens(logits, self.settings, offset=0, first_place=first_place)
        self._places += [
            (slot, index, start, self._step + fork.max_new_tokens - 1)
            for slot, index, start, fork in zip(
                row_slots, ready.indices, starts, ready.forks, strict=True
            )
        ]
