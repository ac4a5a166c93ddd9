"""Adapters and importers for other trainers: the only code that knows TRL, verl and their like.

    trl/         our batches inside TRL's GRPOTrainer; `--engine trl`; the importer of TRL's files
    verl/        the same inside verl, as a plug-in; `--engine verl`; the importer of verl's files
    prime_rl/    the importers of prime-rl's traces and token exports
    slime/       the importer of slime's and miles' debug dumps, with their schedule
    areal/ ms_swift/ nemo_rl/ tinker/    the importers of what these trainers log
    wandb_tables.py   the importer of tables that were logged to W&B
    own_rollouts.py   the importer of our own run folders and of JSON lines
    importing/   what every importer shares: rollouts of another trainer -> a folder we can read
    recorded_folder.py, recorded_steps.py, turns.py    what recorders of TRL and verl share

One run file, three engines: `poise train X.toml --engine native|trl|verl`. An engine either honours
an option or stops and names it; nothing is ignored silently (translate_options.py).
"""
