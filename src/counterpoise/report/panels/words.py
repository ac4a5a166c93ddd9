"""Panel of the glossary: a line for each word, which the page's script also shows on hover."""

from __future__ import annotations

from counterpoise.report.charts.render import render
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData

# Always listed, because sentences of the page use them; the script adds the words that occur in
# headings and tables.
WORDS_OF_SENTENCES = (
    "iteration", "rollout", "group", "reward", "advantage", "optimizer step", "split", "waited",
    "cut off", "displacement", "push", "entropy", "ratio", "sampler mismatch", "credit",
    "cancellation", "token type", "success", "held-out success",
)  # fmt: skip


def panel(run: RunData) -> Panel | None:
    if not run.metrics:
        return None
    return Panel(
        "Glossary",
        "Dotted words say what they are when you point at them.",
        render("words.html", words=WORDS_OF_SENTENCES),
        assets=("words.css", "words.js", "words_page.js"),
    )
