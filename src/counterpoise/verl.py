"""QB, RB and credit inside verl: name this module, then use `+poise.*` options.

    VERL_USE_EXTERNAL_MODULES=counterpoise.verl python -m verl.trainer.main_ppo ... \\
        +poise.composer=grouped +poise.tau=0.25 algorithm.adv_estimator=poise_grpo

Where the package is installed, verl finds it by the entry-point group `verl.plugins`, and nothing
has to be named.
"""

from counterpoise.hosts.verl import plugin as plugin
