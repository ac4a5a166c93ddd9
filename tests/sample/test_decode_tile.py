"""Which tile the decode attention kernel runs with."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_run import small_config

from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.sample.decode_tile import DEFAULT_TILE, DecodeTile, choose_parts, choose_tile

SMOLLM2, QWEN3, WIDE, MANY_QUERIES = (64, 3), (128, 2), (256, 4), (64, 32)


@pytest.mark.parametrize("shape", [SMOLLM2, QWEN3, WIDE, MANY_QUERIES])
def test_without_a_request_the_tile_is_the_one_that_was_measured(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POISE_DECODE_TILE", raising=False)
    assert choose_tile(*shape) == DEFAULT_TILE == DecodeTile(64, 4, 2)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [(SMOLLM2, (32, 1, 3)), (QWEN3, (32, 2, 3)), (WIDE, (64, 4, 2)), (MANY_QUERIES, (64, 4, 2))],
)
def test_by_shape(
    shape: tuple[int, int], tile: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POISE_DECODE_TILE", "by_shape")
    assert choose_tile(*shape) == tile
    monkeypatch.setenv("POISE_DECODE_TILE", "16,8,1")
    assert choose_tile(*shape) == (16, 8, 1)


@pytest.mark.parametrize(
    "request_text", ["small", "32,2", "8,1,1", "48,2,3", "32,3,3", "32,2,0", "32,x,2,3"]
)
def test_another_request_is_one_line(request_text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POISE_DECODE_TILE", request_text)
    with pytest.raises(PoiseError, match="give by_shape, or block, warps and stages"):
        choose_tile(*SMOLLM2)


def test_rows_are_cut_into_parts_where_few_long_ones_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("POISE_DECODE_PARTS", raising=False)
    parts = [choose_parts(num_programs, 8192) for num_programs in (8, 64, 128, 512, 1056, 4096)]
    assert parts == [16, 16, 16, 4, 1, 1]
    assert choose_parts(8, 1024) == 1
    monkeypatch.setenv("POISE_DECODE_PARTS", "4")
    assert choose_parts(4096, 128) == 4
    monkeypatch.setenv("POISE_DECODE_PARTS", "1")
    assert choose_parts(8, 8192) == 1


@pytest.mark.parametrize("request_text", ["many", "0", "3", "32", "-2"])
def test_another_number_of_parts_is_one_line(
    request_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POISE_DECODE_PARTS", request_text)
    with pytest.raises(PoiseError, match="give a power of two up to 16"):
        choose_parts(8, 8192)


@pytest.mark.parametrize(
    ("variable", "remedy"),
    [("POISE_DECODE_TILE", "give by_shape"), ("POISE_DECODE_PARTS", "give a power of two")],
)
def test_a_wrong_request_is_refused_before_a_run_begins_on_any_machine(
    variable: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a CPU, where the kernel does not run."""
    config = small_config(tmp_path)
    monkeypatch.setenv(variable, "bogus")
    with pytest.raises(PoiseError, match=f"^{variable}=bogus: {remedy}"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
