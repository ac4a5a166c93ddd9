"""Where prompts come from. A task answers `split(name, count)` with prompts in a fixed order."""

from counterpoise.registry import Registry

TASKS = Registry(
    "task",
    {
        "word_problems": "counterpoise.task.word_problems:load",
        "jsonl": "counterpoise.task.jsonl:load",
        "hub": "counterpoise.task.hub:load",
        "reasoning_gym": "counterpoise.task.reasoning_gym:load",
    },
)
