"""Where prompts come from: `load(...) -> Task`, prompts to train on and prompts to be judged by;
and who answers a response: environments.
"""

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

ENVIRONMENTS = Registry("environment", {"tries": "counterpoise.task.tries:Tries"})
