"""Twelve families of arithmetic stories, each a function that writes one into a `Scene`.

A family adds sentences (`scene.say`), computes (`scene.step`) and leaves a quantity of `scene.unit`
that later events may change. `task/word_problems.py` builds word problems from them. Every word
that a family uses is in the embedded tokenizer: new words need a new tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable

from counterpoise.task.scene import Scene


def shopping(s: Scene) -> None:
    """Money minus a purchase."""
    item, price, count = s.item(), s.small(), s.small()
    cost = price * count
    money = cost + s.number()
    s.unit = "dollars"
    s.say(f"{s.name} has {money} dollars.")
    s.say(
        s.pick(
            f"{s.He} buys {count} {item} for {price} dollars each.",
            f"{s.He} pays for {count} {item} that cost {price} dollars each.",
        )
    )
    s.step(s.pick(f"The {item} cost", f"{s.He} pays"), count, "*", price)
    s.step(s.pick("There remain", f"{s.He} keeps"), money, "-", cost)
    s.ask(s.pick(f"How many dollars does {s.name} have left?", "How many dollars are left?"))


def collection(s: Scene) -> None:
    """A heap that grows by one gift and shrinks by one loss."""
    item, start, gift = s.item(), s.number(), s.number()
    s.unit = item
    s.say(
        s.pick(
            f"{s.name} has {start} {item}.", f"{s.name} collects {item} and owns {start} of them."
        )
    )
    s.say(s.pick(f"{s.other} gives {s.him} {gift} more.", f"{s.He} finds {gift} more {item}."))
    s.step(s.pick(f"{s.He} now has", "Together that makes"), start, "+", gift)
    loss = s.below(start + gift)
    s.say(
        s.pick(
            f"Later {s.he} loses {loss} {item}.", f"Then {s.he} gives {loss} {item} to {s.other}."
        )
    )
    s.step(s.pick("After that there are", f"{s.He} keeps"), start + gift, "-", loss)
    s.ask(s.pick(f"How many {item} does {s.name} have now?", f"How many {item} are left?"))


def packing(s: Scene) -> None:
    """Containers of equal size, some items broken."""
    item, box, boxes, each = s.item(), s.container(), s.small(), s.small()
    s.unit = item
    broken = s.below(boxes * each)
    s.say(
        s.pick(
            f"There are {boxes} {box} with {each} {item} in each.",
            f"{s.name} fills {boxes} {box} with {each} {item} each.",
        )
    )
    s.say(
        s.pick(
            f"{broken} of the {item} are broken and thrown away.",
            f"{s.He} takes {broken} {item} out again.",
        )
    )
    s.step(s.pick(f"The {box} hold", "At first there are"), boxes, "*", each)
    s.step(s.pick("Without the others there are", "There remain"), boxes * each, "-", broken)
    s.ask(f"How many {item} remain?")


def travel(s: Scene) -> None:
    """Speed times hours, and some more road."""
    speed, hours, more = s.number(), s.small(), s.number()
    s.unit = "miles"
    s.say(
        s.pick(
            f"{s.name} rides at {speed} miles per hour for {hours} hours.",
            f"For {hours} hours {s.name} travels {speed} miles every hour.",
        )
    )
    s.say(
        s.pick(
            f"After a break {s.he} walks {more} miles.", f"Then {s.he} goes {more} miles further."
        )
    )
    s.step(s.pick("The first part is", "By then the way is"), speed, "*", hours)
    s.step(s.pick("In all that is", "With the rest it is"), speed * hours, "+", more)
    s.ask(s.pick(f"How many miles does {s.name} cover?", "How long is the whole way in miles?"))


def reading(s: Scene) -> None:
    """A book, pages a day, pages left."""
    per_day, days = s.number(), s.small()
    pages = per_day * days + s.number()
    s.unit = "pages"
    s.say(s.pick(f"{s.name} reads a book of {pages} pages.", f"A book has {pages} pages."))
    s.say(f"{s.name} reads {per_day} pages every day for {days} days.")
    s.step(s.pick(f"{s.He} reads", f"In {days} days that is"), per_day, "*", days)
    s.step(s.pick("There remain", "Still to read are"), pages, "-", per_day * days)
    s.ask(s.pick("How many pages are left?", f"How many pages must {s.name} still read?"))


def ages(s: Scene) -> None:
    """Some years older, then several times as old."""
    age, older, times = s.number(), s.small(), s.times()
    s.unit = "years"
    s.say(f"{s.name} is {age} years old.")
    s.say(f"{s.other} is {older} years older than {s.name}.")
    s.say(f"The {s.elder()} of {s.other} is {times} times as old as {s.other}.")
    s.step(s.pick(f"{s.other} is", f"The age of {s.other} is"), age, "+", older)
    s.step(s.pick("The elder is", "So the other age is"), age + older, "*", times)
    s.ask("How many years old is the elder one?")


def farm(s: Scene) -> None:
    """Animals that give something every day, part of it sold."""
    animal, goods = s.pick_pair(
        (("hens", "eggs"), ("cows", "liters"), ("goats", "liters"), ("ducks", "eggs"))
    )
    count, each = s.small(), s.small()
    s.unit = goods
    sold = s.below(count * each)
    s.say(
        s.pick(
            f"A farm has {count} {animal} and each gives {each} {goods} a day.",
            f"{s.name} keeps {count} {animal}, and every one gives {each} {goods} a day.",
        )
    )
    s.say(
        s.pick(
            f"{sold} {goods} are sold at the market.",
            f"{s.He} sells {sold} {goods} in the morning.",
        )
    )
    s.step(s.pick(f"The {animal} give", "In one day that is"), count, "*", each)
    s.step(s.pick("After the sale there are", "There remain"), count * each, "-", sold)
    s.ask(s.pick(f"How many {goods} are left?", f"How many {goods} are not sold?"))


def wages(s: Scene) -> None:
    """Hours on two days at one wage."""
    wage, monday, friday = s.small(), s.small(), s.small()
    s.unit = "dollars"
    s.say(f"{s.name} earns {wage} dollars per hour in a {s.place()}.")
    s.say(
        s.pick(
            f"{s.He} works {monday} hours on Monday and {friday} hours on Friday.",
            f"On Monday {s.he} works {monday} hours, on Friday {friday} hours.",
        )
    )
    s.step(s.pick(f"{s.He} works", "The hours are"), monday, "+", friday, unit="hours")
    s.step(s.pick(f"{s.He} earns", "The pay is"), monday + friday, "*", wage)
    s.ask(s.pick(f"How many dollars does {s.name} earn?", "How much is the pay in dollars?"))


def seats(s: Scene) -> None:
    """Rows of chairs and the people on them."""
    rows, each = s.small(), s.number()
    occupied = s.below(rows * each)
    s.unit = "chairs"
    s.say(
        s.pick(
            f"A {s.place()} has {rows} rows of {each} chairs.",
            f"In a {s.place()} there are {rows} rows with {each} chairs each.",
        )
    )
    s.say(s.pick(f"{occupied} people sit down.", f"{occupied} of the chairs are taken."))
    s.step(s.pick("There are", "The rows have"), rows, "*", each)
    s.step(s.pick("Free are", "Still empty are"), rows * each, "-", occupied)
    s.ask(s.pick("How many chairs are empty?", "How many chairs are free?"))


def tank(s: Scene) -> None:
    """Water that flows in for some minutes."""
    start, rate, minutes = s.number(), s.small(), s.small()
    s.unit = "liters"
    s.say(
        s.pick(
            f"A tank holds {start} liters of water.",
            f"There are {start} liters of water in a tank.",
        )
    )
    s.say(
        s.pick(
            f"A pump adds {rate} liters per minute for {minutes} minutes.",
            f"For {minutes} minutes {rate} liters flow in every minute.",
        )
    )
    s.step(s.pick("The pump adds", "The new water is"), rate, "*", minutes)
    s.step(s.pick("Now the tank holds", "In all that is"), start, "+", rate * minutes)
    s.ask(s.pick("How many liters are in the tank?", "How much water is that in liters?"))


def baking(s: Scene) -> None:
    """Ingredients minus what the cakes need."""
    cakes, each = s.small(), s.small()
    have = cakes * each + s.number()
    good = s.pick("eggs", "apples", "cups", "lemons")
    s.unit = good
    s.say(
        s.pick(
            f"{s.name} has {have} {good} in the kitchen.",
            f"There are {have} {good} in the kitchen.",
        )
    )
    s.say(
        s.pick(
            f"{s.name} bakes {cakes} cakes, and each cake needs {each} {good}.",
            f"For a party {s.name} bakes {cakes} cakes with {each} {good} in each.",
        )
    )
    s.step(s.pick("The cakes need", f"{s.He} uses"), cakes, "*", each)
    s.step(s.pick("There remain", f"{s.He} keeps"), have, "-", cakes * each)
    s.ask(s.pick(f"How many {good} does {s.name} have left?", f"How many {good} are left?"))


def garden(s: Scene) -> None:
    """The perimeter of a rectangle."""
    length, width = s.number(), s.number()
    s.unit = "meters"
    s.say(
        s.pick(
            f"A garden is {length} meters long and {width} meters wide.",
            f"{s.name} has a field {length} meters long and {width} meters wide.",
        )
    )
    s.say(s.pick("A fence goes all the way around it.", f"{s.He} builds a fence all around it."))
    s.step(s.pick("Two sides make", "Length and width are"), length, "+", width)
    s.step(s.pick("All four sides make", "The fence is"), length + width, "*", 2)
    s.ask("How many meters long is the fence?")


FAMILIES: dict[str, Callable[[Scene], None]] = {
    family.__name__: family
    for family in (
        shopping, collection, packing, travel, reading, ages,
        farm, wages, seats, tank, baking, garden,
    )
}  # fmt: skip
