"""The plug-in under its name of version 0.1: VERL_USE_EXTERNAL_MODULES may still name it."""

from counterpoise.hosts.verl import plugin as plugin
