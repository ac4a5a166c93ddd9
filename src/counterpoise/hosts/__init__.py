"""Adapters and importers for other trainers: the only code that knows TRL, verl or prime-rl.

    trl/         our batches inside TRL's GRPOTrainer; `--engine trl`; the importer of TRL's files
    verl/        the same inside verl, as a plug-in; `--engine verl`; the importer of verl's files
    prime_rl.py  the importer of prime-rl's token exports
    importing/   what every importer shares: rollouts of another trainer -> a folder we can read

One run file, three engines: `poise train X.toml --engine native|trl|verl`. An engine either honours
an option or stops and names it; nothing is ignored silently (translate_options.py).
"""
