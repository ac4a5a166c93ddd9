"""Which pilots an experiment takes its rates from, and which it refuses."""

from __future__ import annotations

import pytest
from lab.experiments.made_up_pilot import ARMS, pilot_runs, put_pilot, read_pieces_of, write_files
from lab.experiments.small_experiment import RUN

from counterpoise.errors import PoiseError
from counterpoise.lab.experiments import pieces as pieces_module
from counterpoise.lab.experiments.experiment_file import read_experiment
from counterpoise.lab.experiments.pieces import Piece, read_pieces, write_piece
from counterpoise.lab.experiments.pilot_rates import find_pilot


def test_a_pilot_with_shares_of_its_rates_is_refused(tmp_path):
    """The experiment would train at the rate that the pilot's tables name, not at the share."""
    write_files(tmp_path)
    pilot_file, main_file = tmp_path / "pilot.toml", tmp_path / "main.toml"
    text = pilot_file.read_text().replace("pilot = true", 'pilot = true\nrate_shares = ["QB=0.5"]')
    pilot_file.write_text(text)
    with pytest.raises(PoiseError, match=r"pilot has rate_shares, and its rates would be taken wi"):
        read_pieces_of(main_file, tmp_path)


def test_a_pilot_whose_file_has_changed_is_named(tmp_path):
    pilot, main_file = write_files(tmp_path)
    put_pilot(tmp_path / "out", pilot, Piece(pilot_runs(), {}))
    pilot_file = tmp_path / "pilot.toml"
    pilot_file.write_text(pilot_file.read_text().replace("seeds = 2", 'seeds = 2\ntitle = "x"'))
    said = rf"another pilot than the one that chooses .* \({pilot.digest}, now .*; restore it$"
    with pytest.raises(PoiseError, match=said):
        read_pieces_of(main_file, tmp_path / "out")


def test_each_file_is_read_once_for_all_tables(tmp_path, monkeypatch):
    pilot, main_file = write_files(tmp_path)
    put_pilot(tmp_path / "out", pilot, Piece(pilot_runs(), {}))
    for name in "abc":
        write_piece(tmp_path / "out" / "pieces" / f"{name}.parquet", Piece({}, {}), pilot)
    experiment, searches = read_experiment(main_file), []
    monkeypatch.setattr(
        pieces_module, "find_pilot", lambda experiment: searches.append(1) or find_pilot(experiment)
    )
    assert read_pieces(tmp_path / "out", experiment).pilot.choice.rates["QB"] == 1e-3
    assert len(searches) == 1


def test_files_that_do_not_fit_are_refused(tmp_path):
    _, main_file = write_files(tmp_path, ARMS.replace("grouped", "zigzag"))
    with pytest.raises(PoiseError, match=r"pilot trains QB with another batch\.composer"):
        read_pieces_of(main_file, tmp_path)
    text = main_file.read_text().replace("rates = [1e-4]", "rates = [1e-4, 1e-3]")
    main_file.write_text(text)
    with pytest.raises(PoiseError, match="rates_from gives every arm one rate"):
        read_experiment(main_file)


@pytest.mark.parametrize(
    ("of_the_pilot", "of_the_experiment", "differs"),
    [
        ("[sample]", "[sample]\ntemperature = 0.9", "sample.temperature"),
        ("[batch]", '[update]\noptimizer = "sgd"\n[batch]', "update.optimizer"),
        ("size = 16", "size = 17", "task.size"),
        ('baseline = "shuffled"', 'baseline = "shuffled"\nengines = ["QB=trl"]', "engine"),
        ("iterations = 2", "iterations = 3", ""),
        ("samples = 2", "samples = 3", ""),
        # They change nothing, or rounding.
        ("workers = 1", "workers = 2", ""),
        ("[batch]", "[update]\nmicro_tokens = 512\ncheckpointing = true\n[batch]", ""),
        ("[task]", '[model]\ndevice = "cpu"\n[task]', ""),
        ("watch = 0", "watch = 1\nprobe = 4", ""),
    ],
)
def test_a_pilot_trains_its_arms_with_the_same_options(
    tmp_path, of_the_pilot, of_the_experiment, differs
):
    """It may be shorter and evaluated less; everything else decides which rate is best."""
    _, main_file = write_files(tmp_path, run_text=RUN + "[balance]\ntau = 0.0\n")
    text = main_file.read_text()
    assert of_the_pilot in text
    main_file.write_text(text.replace(of_the_pilot, of_the_experiment, 1))
    if differs:
        with pytest.raises(PoiseError, match=f"pilot trains .* with another {differs}"):
            read_pieces_of(main_file, tmp_path)
    else:
        read_pieces_of(main_file, tmp_path)


@pytest.mark.parametrize(
    ("in_both", "of_the_pilot", "of_the_experiment", "differs"),
    [
        # The learning rate decays over the run, so a longer one has larger rates.
        ("", "iterations = 2", "iterations = 3", r"loop\.iterations"),
        # The probes choose the prompts, and are drawn from problems that are not evaluated.
        ("aligned", "probe = 8", "probe = 4", r"monitor\.probe"),
        ("aligned", "[monitor]", "[monitor]\nprobe_every = 3", r"monitor\.probe_every"),
        ("aligned", "prompts = 4\nsamples", "prompts = 3\nsamples", r"evaluate\.prompts"),
    ],
)
def test_a_pilot_whose_steps_depend_on_its_length_or_probes_is_no_other_in_these(
    tmp_path, in_both, of_the_pilot, of_the_experiment, differs
):
    run_text = RUN + '[balance]\ntau = 0.0\n[update]\nschedule = "cosine"\n'
    if in_both:
        run_text = (
            RUN.replace("[sample]", '[sample]\nchoose = "aligned"') + "[balance]\ntau = 0.0\n"
        )
        run_text = run_text.replace("[monitor]", "[monitor]\nprobe = 8")
        run_text = run_text.replace("[task]", "[task]\nheldout = 64")
    _, main_file = write_files(tmp_path, run_text=run_text)
    read_pieces_of(main_file, tmp_path)
    text = main_file.read_text()
    assert of_the_pilot in text
    main_file.write_text(text.replace(of_the_pilot, of_the_experiment, 1))
    with pytest.raises(PoiseError, match=f"pilot trains .* with another {differs}: "):
        read_pieces_of(main_file, tmp_path)
