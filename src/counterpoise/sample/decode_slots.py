"""The decoding loop of the GPU sampler: replay steps, look who has finished, refill their slots.

    step step ... step | look | step ...          FINISH_CHECK_INTERVAL steps between two looks
                         rows that finished are read out and leave their places; those still running
                         move up, and rows that wait start behind them in the free slots

Looking makes the host wait for the GPU, so a finished row stands still for a few steps. The steps
need no change for a refill: the number of places and the memory of all slots stay the same.

Where rows share pages (`sample/kv_slots.py`), a look also gives every row the pages that it needs
until the next one. How long a row will be is not known, so pages may run out. Then the row that
started last gives its pages to the others and waits, ahead of all rows that never ran; it keeps its
slot and its prefix, and begins again with its first token. Its tokens depend on its own random
numbers alone, so they are the same as before but for rounding. The oldest row never waits, and the
pages hold a row of full length: so every row finishes.

Too many rows would begin again too often. Therefore rows start only while

    rows * expected pages of a row <= pages      and      every row that runs could grow once more

The expected pages are at first a share of the longest response, then an average over the rows that
finished; when pages run out, they are raised to all pages / rows still running if that is more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from counterpoise.sample.kv_slots import PageMemory, PrefixMemory, num_pages

# Counting the running rows makes the host wait for the GPU, so it is done every so many tokens.
FINISH_CHECK_INTERVAL = 16
# Before any row has finished, a row is expected to take 1 / this of the longest response's pages.
EXPECTED_SHARE_DIVISOR = 8
FINISHED_ROW_WEIGHT = 1 / 16  # of a row that finishes, in the average of the expected pages


@torch.no_grad()
def decode_in_slots(policy: Policy, queue: ForkQueue, config: SampleConfig) -> DecodedRows:
    """Decode every fork of the queue; those beyond the slots wait for one."""
    decoder = require_fast_path(policy, "decoding with CUDA graphs")
    lengths = [len(queue.sequences[index]) for index in {fork.sequence for fork in queue.forks}]
    # Forks of one sequence may belong to several passes of the prefill, and each pass stores it
    # again. That is not counted here: where there is no room, later rows wait.
    capacity = plan_slots(decoder, queue.forks, sum(lengths), max(lengths))
    settings = DrawSettings(config.temperature, config.top_p, config.top_k, policy.end_tokens)
    return SlotDecoding(queue, graphs_for(decoder, capacity), settings).run()


@dataclass(slots=True)
class SlotRow:
    """A row that has a slot."""

    slot: int
    fork_index: int
    prefix_start: int
    max_new_tokens: int
    start_step: int  # the step that decodes its first sampled token

    @property
    def end_step(self) -> int:
        """The step before which it must have finished."""
        return self.start_step + self.max_new_tokens - 1


class SlotDecoding:
    """The host's side of the slots: which fork decodes where, and since when."""

    def __init__(self, queue: ForkQueue, graphs: DecodeGraphs, settings: DrawSettings) -> None:
        self.queue, self.graphs, self.settings = queue, graphs, settings
        self.decoded: DecodedRows = {}
        self.row_steps = 0  # places decoded, summed over all steps
        self.restarts = 0  # rows that began again because pages ran out
        capacity = graphs.slots.capacity
        self._prefix_memory = PrefixMemory(capacity.prefix_tokens)
        self._prefix_starts: dict[int, int] = {}  # of the sequences of the last prefill
        self._free_slots = list(range(capacity.rows))
        self._rows: list[SlotRow] = []  # by place, those that started first come first
        self._interrupted: list[SlotRow] = []  # they have a slot, but no pages
        self._pages = PageMemory(capacity) if capacity.pages else None
        # Pages of the longest response, and those that a row of this call is expected to take.
        self._max_row_pages = num_pages(max(fork.max_new_tokens for fork in queue.forks))
        self._expected_row_pages = max(1.0, self._max_row_pages / EXPECTED_SHARE_DIVISOR)
        self._step = 0
        graphs.slots.set_batch([])

    def run(self) -> DecodedRows:
        """Decode until no row runs and none waits."""
        slots, decoder = self.graphs.slots, self.queue.decoder
        self._admit()
        while self._rows:
            batch = min(batch_size(len(self._rows)), slots.capacity.rows)
            steps_left = max(row.end_step for row in self._rows) - self._step
            for _ in range(min(FINISH_CHECK_INTERVAL, steps_left)):
                self.graphs.step(decoder, batch, self.settings)
                self._step += 1
                self.row_steps += batch
            running = slots.running[: len(self._rows)].tolist()
            num_running = sum(running)
            # If no row waits and pages are not shared, finished rows may stay until a smaller batch
            # suffices.
            smaller_suffices = batch_size(num_running) < batch or num_running == 0
            removal_helps = len(self.queue) > 0 or self._pages is not None or smaller_suffices
            removes_finished = num_running < len(running) and removal_helps
            if removes_finished:
                self._remove_finished(running)
            was_interrupted = self._provide_pages()
            if removes_finished and not was_interrupted:
                self._admit()
        return self.decoded

    def _remove_finished(self, running: list[bool]) -> None:
        """Read out the finished rows, free their memory and close the gaps between places."""
        slots = self.graphs.slots
        finished_places = [place for place, is_running in enumerate(running) if not is_running]
        samples = slots.read_rows(finished_places)
        for place, sample in zip(finished_places, samples, strict=True):
            row = self._rows[place]
            self.decoded[row.fork_index] = sample
            self._free_slots.append(row.slot)
            self._prefix_memory.release_row(row.prefix_start)
            if self._pages is not None:
                surplus = self._pages.num_held(row.slot) - self._expected_row_pages
                self._expected_row_pages += FINISHED_ROW_WEIGHT * surplus
                self._pages.release(row.slot)
        running_places = [place for place, is_running in enumerate(running) if is_running]
        self._rows = [self._rows[place] for place in running_places]
        slots.set_batch(running_places)

    def _provide_pages(self) -> bool:
        """Give every row the pages it needs until the next look; whether rows were interrupted."""
        if self._pages is None:
            return False
        num_rows = len(self._rows)
        place = 0
        while place < len(self._rows):
            row = self._rows[place]
            num_tokens = self._step - row.start_step + FINISH_CHECK_INTERVAL
            if self._pages.grow(row.slot, min(num_tokens, row.max_new_tokens)):
                place += 1
            else:
                self._interrupt_last()
        self.graphs.slots.set_page_table(self._pages)
        if len(self._rows) < num_rows:
            self.graphs.slots.set_batch(range(len(self._rows)))
        return len(self._rows) < num_rows

    def _interrupt_last(self) -> None:
        """Take the pages of the row that started last; it will begin again."""
        assert self._pages is not None
        assert len(self._rows) > 1, "the pages hold a row of full length"
        row = self._rows.pop()
        self._pages.release(row.slot)
        self._interrupted.insert(0, row)  # it started before those that were interrupted earlier
        pages_per_row = self._pages.num_pages / len(self._rows)
        self._expected_row_pages = max(self._expected_row_pages, pages_per_row)
        self.restarts += 1

    def _num_rows_to_start(self) -> int:
        """How many more rows the pages are expected to hold; one at least if none runs."""
        if self._pages is None:
            return len(self._free_slots)
        num_running = len(self._rows)
        num_expected = int(self._pages.num_pages / self._expected_row_pages) - num_running
        # Pages until the next look, and as many again if the row can be longer than that.
        first_pages = min(num_pages(FINISH_CHECK_INTERVAL), self._max_row_pages)
        start_pages = min(2 * first_pages, self._max_row_pages)
        reserve = num_running * (start_pages - first_pages)
        num_with_pages = (self._pages.num_free - reserve) // start_pages
        return max(min(num_expected, num_with_pages), 0 if num_running else 1)

    def _admit(self) -> None:
        """Start rows that wait, as long as there are free slots, pages and room for prefixes."""
        num_rows = self._num_rows_to_start()
        restarted, self._interrupted = self._interrupted[:num_rows], self._interrupted[num_rows:]
        self._restart(restarted)
        num_rows -= len(restarted)
        while num_rows > 0 and self._free_slots and len(self.queue):
            if self.queue.needs_prefill and not self._prefill_next():
                break  # the prefix memory is full until more rows have finished
            ready = self.queue.take(min(num_rows, len(self._free_slots)))
            self._start(ready)
            num_rows -= len(ready.forks)
        was_interrupted = self._provide_pages()
        assert not was_interrupted, "rows start only where they have pages until the next look"

    def _restart(self, rows: Sequence[SlotRow]) -> None:
        """Let interrupted rows begin again behind the running ones."""
        if not rows:
            return
        self.graphs.slots.restart_rows([row.slot for row in rows], first_place=len(self._rows))
        for row in rows:
            row.start_step = self._step
        self._rows += rows

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
        first_place = len(self._rows)
        slots.start_rows(row_slots, ready.forks, starts, first_place)
        logits = ready.hidden_RD @ self.queue.decoder.unembedding.T
        exclude_tokens(logits, ready.forks)
        self.graphs.draw_tokens(logits, self.settings, offset=0, first_place=first_place)
        self._rows += [
            SlotRow(slot, index, start, fork.max_new_tokens, start_step=self._step)
            for slot, index, start, fork in zip(
                row_slots, ready.indices, starts, ready.forks, strict=True
            )
        ]
