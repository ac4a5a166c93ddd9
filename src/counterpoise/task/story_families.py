"""Twelve families of arithmetic stories, each a function that writes one into a `Scene`.

A family adds sentences (`scene.say`), computes (`scene.step`) and leaves a quantity of `scene.unit`
that later events may change. `task/word_problems.py` builds word problems from them. Every word
that a family uses is in the embedded tokenizer: new words need a new tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable

from counterpoise.task.scene import Scene


def shopping(scene: Scene) -> None:
    """Money minus a purchase."""
    item, price, count = scene.item(), scene.factor(), scene.factor()
    cost = price * count
    money = cost + scene.quantity()
    scene.unit = "dollars"
    scene.say(f"{scene.name} has {money} dollars.")
    scene.say(
        scene.pick(
            f"{scene.He} buys {count} {item} for {price} dollars each.",
            f"{scene.He} pays for {count} {item} that cost {price} dollars each.",
        )
    )
    scene.step(scene.pick(f"The {item} cost", f"{scene.He} pays"), count, "*", price)
    scene.step(scene.pick("There remain", f"{scene.He} keeps"), money, "-", cost)
    scene.ask(
        scene.pick(f"How many dollars does {scene.name} have left?", "How many dollars are left?")
    )


def collection(scene: Scene) -> None:
    """A heap that grows by one gift and shrinks by one loss."""
    item, start, gift = scene.item(), scene.quantity(), scene.quantity()
    scene.unit = item
    scene.say(
        scene.pick(
            f"{scene.name} has {start} {item}.",
            f"{scene.name} collects {item} and owns {start} of them.",
        )
    )
    scene.say(
        scene.pick(
            f"{scene.other} gives {scene.him} {gift} more.", f"{scene.He} finds {gift} more {item}."
        )
    )
    scene.step(scene.pick(f"{scene.He} now has", "Together that makes"), start, "+", gift)
    loss = scene.quantity_below(start + gift)
    scene.say(
        scene.pick(
            f"Later {scene.he} loses {loss} {item}.",
            f"Then {scene.he} gives {loss} {item} to {scene.other}.",
        )
    )
    scene.step(scene.pick("After that there are", f"{scene.He} keeps"), start + gift, "-", loss)
    scene.ask(
        scene.pick(f"How many {item} does {scene.name} have now?", f"How many {item} are left?")
    )


def packing(scene: Scene) -> None:
    """Containers of equal size, some items broken."""
    item, containers = scene.item(), scene.container()
    num_containers, each = scene.factor(), scene.factor()
    scene.unit = item
    broken = scene.quantity_below(num_containers * each)
    scene.say(
        scene.pick(
            f"There are {num_containers} {containers} with {each} {item} in each.",
            f"{scene.name} fills {num_containers} {containers} with {each} {item} each.",
        )
    )
    scene.say(
        scene.pick(
            f"{broken} of the {item} are broken and thrown away.",
            f"{scene.He} takes {broken} {item} out again.",
        )
    )
    scene.step(
        scene.pick(f"The {containers} hold", "At first there are"), num_containers, "*", each
    )
    scene.step(
        scene.pick("Without the others there are", "There remain"),
        num_containers * each,
        "-",
        broken,
    )
    scene.ask(f"How many {item} remain?")


def travel(scene: Scene) -> None:
    """Speed times hours, and some more road."""
    speed, hours, more = scene.quantity(), scene.factor(), scene.quantity()
    scene.unit = "miles"
    scene.say(
        scene.pick(
            f"{scene.name} rides at {speed} miles per hour for {hours} hours.",
            f"For {hours} hours {scene.name} travels {speed} miles every hour.",
        )
    )
    scene.say(
        scene.pick(
            f"After a break {scene.he} walks {more} miles.",
            f"Then {scene.he} goes {more} miles further.",
        )
    )
    scene.step(scene.pick("The first part is", "By then the way is"), speed, "*", hours)
    scene.step(scene.pick("In all that is", "With the rest it is"), speed * hours, "+", more)
    scene.ask(
        scene.pick(
            f"How many miles does {scene.name} cover?", "How long is the whole way in miles?"
        )
    )


def reading(scene: Scene) -> None:
    """A book, pages a day, pages left."""
    per_day, days = scene.quantity(), scene.factor()
    pages = per_day * days + scene.quantity()
    scene.unit = "pages"
    scene.say(
        scene.pick(f"{scene.name} reads a book of {pages} pages.", f"A book has {pages} pages.")
    )
    scene.say(f"{scene.name} reads {per_day} pages every day for {days} days.")
    scene.step(scene.pick(f"{scene.He} reads", f"In {days} days that is"), per_day, "*", days)
    scene.step(scene.pick("There remain", "Still to read are"), pages, "-", per_day * days)
    scene.ask(
        scene.pick("How many pages are left?", f"How many pages must {scene.name} still read?")
    )


def ages(scene: Scene) -> None:
    """Some years older, then several times as old."""
    age, older, times = scene.quantity(), scene.factor(), scene.multiple()
    scene.unit = "years"
    scene.say(f"{scene.name} is {age} years old.")
    scene.say(f"{scene.other} is {older} years older than {scene.name}.")
    scene.say(f"The {scene.elder()} of {scene.other} is {times} times as old as {scene.other}.")
    scene.step(scene.pick(f"{scene.other} is", f"The age of {scene.other} is"), age, "+", older)
    scene.step(scene.pick("The elder is", "So the other age is"), age + older, "*", times)
    scene.ask("How many years old is the elder one?")


def farm(scene: Scene) -> None:
    """Animals that give something every day, part of it sold."""
    animal, goods = scene.pick_pair(
        (("hens", "eggs"), ("cows", "liters"), ("goats", "liters"), ("ducks", "eggs"))
    )
    count, each = scene.factor(), scene.factor()
    scene.unit = goods
    sold = scene.quantity_below(count * each)
    scene.say(
        scene.pick(
            f"A farm has {count} {animal} and each gives {each} {goods} a day.",
            f"{scene.name} keeps {count} {animal}, and every one gives {each} {goods} a day.",
        )
    )
    scene.say(
        scene.pick(
            f"{sold} {goods} are sold at the market.",
            f"{scene.He} sells {sold} {goods} in the morning.",
        )
    )
    scene.step(scene.pick(f"The {animal} give", "In one day that is"), count, "*", each)
    scene.step(scene.pick("After the sale there are", "There remain"), count * each, "-", sold)
    scene.ask(scene.pick(f"How many {goods} are left?", f"How many {goods} are not sold?"))


def wages(scene: Scene) -> None:
    """Hours on two days at one wage."""
    wage, monday, friday = scene.factor(), scene.factor(), scene.factor()
    scene.unit = "dollars"
    scene.say(f"{scene.name} earns {wage} dollars per hour in a {scene.place()}.")
    scene.say(
        scene.pick(
            f"{scene.He} works {monday} hours on Monday and {friday} hours on Friday.",
            f"On Monday {scene.he} works {monday} hours, on Friday {friday} hours.",
        )
    )
    scene.step(scene.pick(f"{scene.He} works", "The hours are"), monday, "+", friday, unit="hours")
    scene.step(scene.pick(f"{scene.He} earns", "The pay is"), monday + friday, "*", wage)
    scene.ask(
        scene.pick(f"How many dollars does {scene.name} earn?", "How much is the pay in dollars?")
    )


def seats(scene: Scene) -> None:
    """Rows of chairs and the people on them."""
    rows, each = scene.factor(), scene.quantity()
    occupied = scene.quantity_below(rows * each)
    scene.unit = "chairs"
    scene.say(
        scene.pick(
            f"A {scene.place()} has {rows} rows of {each} chairs.",
            f"In a {scene.place()} there are {rows} rows with {each} chairs each.",
        )
    )
    scene.say(scene.pick(f"{occupied} people sit down.", f"{occupied} of the chairs are taken."))
    scene.step(scene.pick("There are", "The rows have"), rows, "*", each)
    scene.step(scene.pick("Free are", "Still empty are"), rows * each, "-", occupied)
    scene.ask(scene.pick("How many chairs are empty?", "How many chairs are free?"))


def tank(scene: Scene) -> None:
    """Water that flows in for some minutes."""
    start, rate, minutes = scene.quantity(), scene.factor(), scene.factor()
    scene.unit = "liters"
    scene.say(
        scene.pick(
            f"A tank holds {start} liters of water.",
            f"There are {start} liters of water in a tank.",
        )
    )
    scene.say(
        scene.pick(
            f"A pump adds {rate} liters per minute for {minutes} minutes.",
            f"For {minutes} minutes {rate} liters flow in every minute.",
        )
    )
    scene.step(scene.pick("The pump adds", "The new water is"), rate, "*", minutes)
    scene.step(scene.pick("Now the tank holds", "In all that is"), start, "+", rate * minutes)
    scene.ask(scene.pick("How many liters are in the tank?", "How much water is that in liters?"))


def baking(scene: Scene) -> None:
    """Ingredients minus what the cakes need."""
    cakes, each = scene.factor(), scene.factor()
    supply = cakes * each + scene.quantity()
    ingredient = scene.pick("eggs", "apples", "cups", "lemons")
    scene.unit = ingredient
    scene.say(
        scene.pick(
            f"{scene.name} has {supply} {ingredient} in the kitchen.",
            f"There are {supply} {ingredient} in the kitchen.",
        )
    )
    scene.say(
        scene.pick(
            f"{scene.name} bakes {cakes} cakes, and each cake needs {each} {ingredient}.",
            f"For a party {scene.name} bakes {cakes} cakes with {each} {ingredient} in each.",
        )
    )
    scene.step(scene.pick("The cakes need", f"{scene.He} uses"), cakes, "*", each)
    scene.step(scene.pick("There remain", f"{scene.He} keeps"), supply, "-", cakes * each)
    scene.ask(
        scene.pick(
            f"How many {ingredient} does {scene.name} have left?",
            f"How many {ingredient} are left?",
        )
    )


def garden(scene: Scene) -> None:
    """The perimeter of a rectangle."""
    length, width = scene.quantity(), scene.quantity()
    scene.unit = "meters"
    scene.say(
        scene.pick(
            f"A garden is {length} meters long and {width} meters wide.",
            f"{scene.name} has a field {length} meters long and {width} meters wide.",
        )
    )
    scene.say(
        scene.pick(
            "A fence goes all the way around it.", f"{scene.He} builds a fence all around it."
        )
    )
    scene.step(scene.pick("Two sides make", "Length and width are"), length, "+", width)
    scene.step(scene.pick("All four sides make", "The fence is"), length + width, "*", 2)
    scene.ask("How many meters long is the fence?")


FAMILIES: dict[str, Callable[[Scene], None]] = {
    family.__name__: family
    for family in (
        shopping, collection, packing, travel, reading, ages,
        farm, wages, seats, tank, baking, garden,
    )
}  # fmt: skip
