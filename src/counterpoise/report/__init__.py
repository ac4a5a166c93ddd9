"""Stage 8: a run folder becomes one HTML page that opens offline.

A panel is one file with `panel(run: RunData) -> Panel | None` and one line here; the page shows
them in this order and leaves out those that return None.
"""

from counterpoise.registry import Registry

PANELS = Registry(
    "panel",
    {
        "summary": "counterpoise.report.summary:panel",
        "learning": "counterpoise.report.learning:panel",
        "contamination": "counterpoise.report.contamination:panel",
        "mosaic": "counterpoise.report.mosaic:panel",
        "tokens": "counterpoise.report.tokens:panel",
        "monitor": "counterpoise.report.monitor:panel",
        "buffer": "counterpoise.report.buffer:panel",
        "plans": "counterpoise.report.plans:panel",
        "rollouts": "counterpoise.report.rollouts:panel",
        "configuration": "counterpoise.report.configuration:panel",
    },
)
