"""Other people's trainers: the only files that know TRL, verl or prime-rl.

    trl/         our batches inside TRL's GRPOTrainer; `--engine trl`; its importer
    verl/        the same inside verl, as a plug-in; `--engine verl`; its importer
    prime_rl.py  an importer
    importing/   what every importer shares: rows of another trainer -> a folder that we can read

One run file, three engines: `poise train X.toml --engine native|trl|verl`. An engine either honours
an option or names it and stops; nothing is ignored (translate_options.py).
"""
