"""Events that make a story longer, and sentences that only distract.

An event changes the quantity that the story is about and asks a new question, so that any family
can have three or four steps. The words depend on the unit: pages are read, fences get longer.
"""

from __future__ import annotations

from counterpoise.task.scene import Scene

# unit -> operation -> sentences. The unit "" stands for all units that are not listed: things that
# one can count and carry. The operations "+" and "-" have an amount, {k}; "/" halves.
# A story does not have to be possible: "Then {k} people leave" may be more people than are seated.
# The arithmetic is right all the same, and a limit on {k} would change all problems.
EVENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "": {
        "+": ("Then {k} more {unit} are added.", "Later {other} brings {k} {unit}."),
        "-": ("Then {k} {unit} are taken away.", "Later {k} {unit} are lost."),
        "/": ("Half of the {unit} are given away.", "Then {other} takes one half of them."),
    },
    "dollars": {
        "+": ("Then {he} earns {k} dollars more.", "Later {other} gives {him} {k} dollars."),
        "-": ("Then {he} spends {k} dollars.", "Later {he} pays {k} dollars for a ticket."),
        "/": (
            "{He} gives half of the money to {other}.",
            "Then {he} saves one half and spends the rest.",
        ),
    },
    "miles": {
        "+": (
            "The next day {he} goes {k} miles more.",
            "Then {he} visits {other}, {k} miles further.",
        ),
        "-": ("A shorter way would save {k} miles, so {he} takes it.",),
    },
    "meters": {
        "+": ("The next fence is {k} meters longer.",),
        "-": ("The next fence is {k} meters shorter.",),
        "/": ("The next fence is half as long.",),
    },
    "pages": {
        "+": ("{other} lends {him} a story of {k} pages, too.",),
        "-": ("The next day {he} reads {k} pages.", "In the evening {he} reads {k} pages."),
        "/": ("On the weekend {he} reads half of what is left.",),
    },
    "chairs": {
        "+": ("Then {k} people leave.", "Later {k} more chairs are brought in."),
        "-": ("Then {k} more people come and sit down.",),
    },
    "years": {"+": ("Now {k} years pass.",)},
}

# operation -> how its step of the worked solution begins
LEADS = {
    "+": ("With them it is", "That makes"),
    "-": ("Less these it is", "That leaves"),
    "/": ("One half is", "Half of it makes"),
}
# unit -> the question after an event, which replaces the story's own
QUESTIONS = {
    "": ("How many {unit} are there in the end?", "How many {unit} is that at last?"),
    "miles": ("How many miles is the whole way?",),
    "meters": ("How many meters long is the last fence?",),
    "pages": ("How many pages are left to read?",),
    "chairs": ("How many chairs are empty in the end?",),
    "years": ("How many years old is the elder one then?",),
}


def add_event(scene: Scene, room: int) -> None:
    """Add an event of one step, or a delivery of two if there is `room` for two steps."""
    # Miles or years cannot be delivered in lots.
    countable = scene.unit not in EVENTS or scene.unit == "dollars"
    if countable and room >= 2 and scene.rng.random() < 0.4:
        add_delivery(scene)
    else:
        events = EVENTS.get(scene.unit, EVENTS[""])
        possible_signs = [sign for sign in events if _fits(sign, scene.value)]
        sign = scene.rng.choice(possible_signs)
        # Both numbers are always drawn: to draw only the one in use would change all problems.
        amount = {"+": scene.quantity(), "-": scene.quantity_below(scene.value), "/": 2}[sign]
        scene.say(_fill(scene, scene.pick(*events[sign]), amount))
        scene.step(scene.pick(*LEADS[sign]), scene.value, sign, amount)
    scene.ask(_fill(scene, scene.pick(*QUESTIONS.get(scene.unit, QUESTIONS[""])), 0))


def add_delivery(scene: Scene) -> None:
    """Add several equal lots: a product and a sum."""
    lots, each, previous = scene.factor(), scene.factor(), scene.value
    scene.say(
        scene.pick(
            f"{scene.other} brings {lots} times {each} {scene.unit}.",
            f"On each of the next {lots} days {scene.he} gets {each} {scene.unit} more.",
        )
    )
    scene.step(scene.pick("New are", "The others are"), lots, "*", each)
    scene.step(scene.pick("Together that makes", "With them it is"), previous, "+", lots * each)


def add_distractor(scene: Scene) -> None:
    """Insert a sentence with a number that has nothing to do with the question."""
    number = scene.quantity()
    sentence = scene.pick(
        f"{scene.other} has {number} {scene.item()} at home.",
        f"The {scene.place()} next door is {number} years old.",
        f"It is {number} degrees outside.",
        f"{scene.other} lives {number} miles away.",
        f"There are {number} trees along the street.",
    )
    scene.sentences.insert(scene.rng.randint(0, len(scene.sentences)), sentence)


def _fits(sign: str, value: int) -> bool:
    """Whether a quantity can be reduced (something must be left), or halved without a remainder."""
    if sign == "-":
        return value > 1
    return sign != "/" or value % 2 == 0


def _fill(scene: Scene, sentence: str, amount: int) -> str:
    return sentence.format(
        k=amount, unit=scene.unit, other=scene.other, he=scene.he, He=scene.He, him=scene.him
    )
