"""Questions with exact truth, for bench/semantic.py: paraphrases that are written by templates.

A template is a list of wordings of one question, with slots. Two questions mean the same if and only if they come from
the same template and have the same values in its slots. Most pairs of near questions are therefore different: they
differ in one name, number, unit, word order or negation. `kind` says in what.

    python bench/_semantic_questions.py > questions.jsonl    # every question once, in random order
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

COUNTRIES = (
    "Portugal", "Chile", "Mali", "Malawi", "Iran", "Iraq", "Latvia", "Lithuania", "Finland", "India", "Indonesia",
    "Ghana", "Guyana", "Spain", "Sweden", "Switzerland",
)  # fmt: skip
CITIES = ("Hamburg", "Lyon", "Denver", "Nairobi", "Kyoto", "Bogota", "Helsinki", "Dublin", "Delhi", "Porto", "Prague")
PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry")
COUNTS = ("2", "3", "4", "6", "8", "9", "11", "14", "18", "24", "30", "40", "60", "80", "200")
YEARS = ("1987", "1994", "2001", "2006", "2010", "2014", "2016", "2017", "2018", "2024")
DATES = ("May 3", "May 13", "June 3", "July 21", "August 2", "December 24")
ANIMALS = ("guinea pigs", "ferrets", "canaries", "tortoises", "geckos", "ponies", "chickens", "bees")
FOODS = ("salmon", "spinach", "tofu", "couscous", "mushrooms", "cabbage", "beetroot", "millet", "eggs")
PLANTS = ("tomatoes", "roses", "basil", "strawberries", "tulips", "carrots", "lavender", "peppers")
LANGUAGES = ("Python", "Java", "Rust", "Go", "Ruby", "JavaScript", "Scala", "Swift", "Perl")
TONGUES = ("Dutch", "Polish", "Greek", "Turkish", "Danish", "Korean")
FUNCTIONS = ("np_where", "np_argmax", "np_argmin", "np_cumsum", "np_linspace", "np_reshape", "np_unique", "np_vstack")
ACCOUNTS = ("savings account", "checking account", "credit card", "loan", "mortgage", "pension plan")


class Template(NamedTuple):
    """Wordings of one question."""

    kind: str
    """The kind of difference between two questions of this template."""
    slots: Mapping[str, Sequence[str]]
    wordings: tuple[str, ...]


class Question(NamedTuple):
    """A question and what it means: equal meanings are the same question."""

    text: str
    meaning: str
    kind: str


def template(kind: str, *wordings: str, **slots: Sequence[str]) -> Template:
    return Template(kind, slots, wordings)


TEMPLATES = (
    template(
        "name", "What language do people speak in {c}?", "Which language is spoken in {c}?",
        "What is the language of {c}?",
        "Tell me which language they speak in {c}", "What do people in {c} speak?", c=COUNTRIES,
    ),
    template(
        "name", "How large is {c}?", "What is the area of {c}?", "How many square kilometres does {c} cover?",
        "Tell me the area of {c}.", "What's {c}'s surface area?", c=COUNTRIES,
    ),
    template(
        "name", "Who is the head of state of {c}?", "What is the name of {c}'s head of state?",
        "Tell me who the head of state of {c} is", "Name the head of state of {c}.", c=COUNTRIES,
    ),
    template(
        "name", "What are the best museums in {c}?", "Which museums in {c} are worth a visit?",
        "Recommend museums in {c}", "What museums should I visit in {c}?", "Top museums in {c}", c=CITIES,
    ),
    template(
        "name", "Where can I park in {c}?", "What are good places to park in {c}?", "Where is parking possible in {c}?",
        "Tell me where to park in {c}.", c=CITIES,
    ),
    template(
        "order", "How long is the flight from {a} to {b}?", "What is the flight time from {a} to {b}?",
        "How many hours does it take to fly from {a} to {b}?", "Flying from {a} to {b}: how long does it take?",
        a=CITIES[:8], b=CITIES[:8],
    ),
    template(
        "order", "Why is {a} stronger than {b}?", "What makes {a} stronger than {b}?",
        "For what reason is {a} stronger than {b}?", a=("steel", "bronze", "copper", "oak", "glass"),
        b=("steel", "bronze", "copper", "oak", "glass"),
    ),
    template(
        "order", "Write a mail in which {a} thanks {b}.", "Compose a mail where {a} thanks {b}",
        "I need a mail in which {a} says thank you to {b}", "Draft a mail from {a} that thanks {b}", a=PEOPLE[:5],
        b=PEOPLE[:5],
    ),
    template(
        "order", "Convert a file from {a} to {b}.", "How do I convert a file from {a} to {b}?",
        "What is the way to convert a file from {a} into {b}?", "Converting a file from {a} to {b}: how does it work?",
        a=("PDF", "DOCX", "HTML", "EPUB"), b=("PDF", "DOCX", "HTML", "EPUB"),
    ),
    template(
        "number", "How can I save {n} dollars a month?", "What is a good way to save {n} dollars per month?",
        "Tips for saving {n} dollars each month", "I want to save {n} dollars every month, how do I do it?", n=COUNTS,
    ),
    template(
        "number", "What is {n} minus {m}?", "How much is {n} minus {m}?", "Calculate {n} minus {m}.",
        "{n} minus {m} gives what?", n=COUNTS[5:], m=COUNTS[:10],
    ),
    template(
        "number", "Write a poem of {n} lines about rain.", "Compose a poem about rain in {n} lines",
        "I need a poem about rain that has {n} lines", "Give me a rain poem with {n} lines", n=COUNTS,
    ),
    template(
        "number", "Who won the World Series in {y}?", "Which team won the {y} World Series?",
        "Winner of the {y} World Series", "What team took the World Series in {y}?", y=YEARS,
    ),
    template(
        "number", "How many calories do {n} almonds have?", "What is the calorie count of {n} almonds?",
        "Calories in {n} almonds", "How many calories are in {n} almonds?", n=COUNTS,
    ),
    template(
        "unit", "Convert {n} {u} to grams.", "How many grams are {n} {u}?", "What is {n} {u} in grams?",
        "{n} {u} expressed in grams", n=COUNTS[:9], u=("ounces", "pounds", "kilograms", "stones"),
    ),
    template(
        "unit", "Is {n} {u} too long for a video?", "Would a video of {n} {u} be too long?",
        "Does a video of {n} {u} count as too long?",
        n=COUNTS[:6], u=("seconds", "minutes", "hours"),
    ),
    template(
        "unit", "Is {n} {u} a lot of disk space?", "Would you say {n} {u} of disk space is a lot?",
        "Does {n} {u} count as much disk space?", n=COUNTS[:8], u=("MB", "GB", "TB"),
    ),
    template(
        "date", "What happened on {d}, {y}?", "Which events took place on {d}, {y}?", "Events of {d}, {y}",
        "Tell me what happened on {d}, {y}", d=DATES, y=YEARS[:5],
    ),
    template(
        "date", "Is {d} a public holiday in {c}?", "Is there a public holiday in {c} on {d}?",
        "Do people in {c} have the day off on {d}?", d=DATES, c=COUNTRIES[:4],
    ),
    template(
        "noun", "How big do {a} get?", "What size do {a} reach?", "How large can {a} become?",
        "Tell me the size of fully grown {a}", a=ANIMALS,
    ),
    template(
        "noun", "How much sleep do {a} need?", "How many hours do {a} sleep?", "How long do {a} sleep per day?",
        "What amount of sleep do {a} need?", a=ANIMALS,
    ),
    template(
        "noun", "Are {a} good pets?", "Do {a} make good pets?", "Would you recommend {a} as pets?",
        "Is it a good idea to have {a} as pets?", a=ANIMALS,
    ),
    template(
        "noun", "Can I freeze {f}?", "Is it possible to freeze {f}?", "Do {f} freeze well?", "Is freezing {f} okay?",
        f=FOODS,
    ),
    template(
        "noun", "What goes well with {f}?", "Which side dishes go with {f}?", "What should I serve with {f}?",
        "Side dishes for {f}", "What can I eat together with {f}?", f=FOODS,
    ),
    template(
        "noun", "When should I plant {p}?", "What is the best time to plant {p}?", "In which month are {p} planted?",
        "When is the right time for planting {p}?", p=PLANTS,
    ),
    template(
        "noun", "How often should I water {p}?", "How frequently do {p} need water?", "How much watering do {p} need?",
        "Tell me how often to water {p}", p=PLANTS,
    ),
    template(
        "noun", "How do I open a {x}?", "What do I need to open a {x}?", "What are the steps to open a {x}?",
        "I would like to open a {x}, how does it work?", x=("savings account", "checking account", "brokerage account"),
    ),
    template(
        "noun", "What are the fees of a {x}?", "How much does a {x} cost?", "Which fees does a {x} have?",
        "Tell me the costs of a {x}.", x=ACCOUNTS,
    ),
    template(
        "antonym", "How do I {v} {x}?", "What is a good way to {v} {x}?", "How can I {v} {x}?",
        "What can I do to {v} {x}?",
        v=("raise", "lower"),
        x=("my cholesterol", "the humidity at home", "my heart rate", "the brightness of a photo"),
    ),
    template(
        "antonym", "How do I {v} {x} on my laptop?", "What is the way to {v} {x} on my laptop?",
        "How can I {v} {x} on a laptop?", "Steps to {v} {x} on my laptop",
        v=("activate", "deactivate", "install", "uninstall"),
        x=("the camera", "Bluetooth", "automatic updates", "the touchpad"),
    ),
    template(
        "antonym", "What is the {v} {x} of Europe?", "Which {x} of Europe is the {v}?", "Name Europe's {v} {x}",
        "Tell me which {x} in Europe is the {v}", v=("longest", "shortest", "deepest", "cleanest"),
        x=("river", "lake", "tunnel"),
    ),
    template(
        "antonym", "Is it better to {x} in the {v}?", "Is the {v} a better time to {x}?",
        "Would the {v} be a better time to {x}?", v=("morning", "evening"),
        x=("exercise", "study", "meditate", "shower"),
    ),
    template(
        "negation", "Why {v} I {x}?", "Give me reasons why I {v} {x}.", "What are the reasons that I {v} {x}?",
        "Explain why one {v} {x}", v=("should", "should not"),
        x=("rent a flat", "buy a used car", "learn to code", "eat at night", "work from home", "own a dog"),
    ),
    template(
        "negation", "Which vitamins {v} be taken together?", "What vitamins {v} be taken together?",
        "Tell me which vitamins {v} be taken together", v=("can", "cannot"),
    ),
    template(
        "negation", "Give me recipes {v} {f}.", "Recipes {v} {f}", "Which recipes are made {v} {f}?",
        "I am looking for recipes {v} {f}", v=("with", "without"), f=FOODS,
    ),
    template(
        "code", "How do I use {f} in numpy?", "Explain {f} of numpy with an example", "Give an example of {f} in numpy",
        "What does {f} do in numpy?", f=FUNCTIONS,
    ),
    template(
        "code", "How do I sort a list in {x}?", "Sort a list using {x}", "Show me how to sort a list in {x}",
        "What's the way to sort a list in {x}?", x=LANGUAGES,
    ),
    template(
        "code", "How do I read a file in {x}?", "Read a file using {x}", "Show me how to read a file in {x}",
        "What's the way to read a file in {x}?", x=LANGUAGES,
    ),
    template(
        "quotation", "How do you say '{w}' in {x}?", "What is '{w}' in {x}?", "What does '{w}' translate to in {x}?",
        "Tell me the {x} word for '{w}'", w=("please", "sorry", "goodbye", "cheers", "welcome"), x=TONGUES,
    ),
    template(
        "role", "What does {a} earn?", "How much money does {a} make?", "What is the salary of {a}?",
        "Tell me how much {a} earns",
        a=("a baker", "a surgeon", "a journalist", "a carpenter", "an accountant", "a chef"),
    ),
    template(
        "role", "Write {b} for {a}.", "Draft {b} for {a}", "Help me write {b} for {a}", "Please compose {b} for {a}",
        a=("my manager", "my professor", "my roommate", "my aunt", "a supplier"),
        b=("a reminder", "a farewell note", "a birthday card", "a reference", "a cancellation"),
    ),
)  # fmt: skip


RIVERS = ("Rhine", "Danube", "Volga", "Thames", "Loire", "Ebro", "Tagus", "Vistula", "Elbe", "Oder", "Tiber", "Seine")
SPORTS = ("tennis", "rugby", "badminton", "hockey", "golf", "curling", "fencing", "squash", "judo", "rowing")
HOURS = ("1", "5", "7", "10", "12", "13", "16", "21", "25", "36", "48", "72", "90", "120", "150")
DEVICES = ("printer", "router", "tablet", "headset", "keyboard", "monitor", "scanner", "projector")
FABRICS = ("silk", "wool", "linen", "cotton", "denim", "velvet", "leather", "nylon")
STARS = ("Mercury", "Venus", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune", "Pluto")

HELD_OUT = (
    template("name", "How long is the river {r}?", "What is the length of the river {r}?",
             "How many kilometres long is the river {r}?", "Tell me how long the river {r} is", r=RIVERS),
    template("name", "Which cities lie on the river {r}?", "What cities are on the river {r}?",
             "Name the cities on the river {r}", "Through which cities does the river {r} flow?", r=RIVERS),
    template("name", "How far away is {p} from the sun?", "What is the distance from {p} to the sun?",
             "How big is the distance between the sun and {p}?", "Tell me how far {p} is from the sun", p=STARS),
    template("name", "How many moons does {p} have?", "What is the number of moons of {p}?",
             "Tell me how many moons {p} has", "How many moons orbit {p}?", p=STARS),
    template("noun", "What are the rules of {s}?", "How is {s} played?", "Explain the rules of {s}",
             "By which rules do people play {s}?", s=SPORTS),
    template("noun", "What equipment do I need for {s}?", "Which gear is needed for {s}?",
             "What do I have to buy to start with {s}?", "Equipment for {s}", s=SPORTS),
    template("noun", "How do I wash {f}?", "What is the right way to wash {f}?", "How should {f} be washed?",
             "At which temperature do I wash {f}?", f=FABRICS),
    template("noun", "How do I remove stains from {f}?", "What removes stains from {f}?",
             "What is the best way to get stains out of {f}?", "Stains on {f}: how do I get rid of them?", f=FABRICS),
    template("noun", "My {d} does not turn on, what can I do?", "What can I do if my {d} does not turn on?",
             "How do I fix a {d} that does not turn on?", "Help, my {d} does not turn on", d=DEVICES),
    template("antonym", "How do I {v} a {d}?", "What is the way to {v} a {d}?", "How can I {v} a {d}?",
             "Steps to {v} a {d}", v=("connect", "disconnect", "lock", "unlock"), d=DEVICES),
    template("number", "What is {n} hours in minutes?", "How many minutes are {n} hours?",
             "Convert {n} hours to minutes", "{n} hours are how many minutes?", n=HOURS),
    template("number", "Plan a workout of {n} minutes.", "I need a workout plan for {n} minutes",
             "Give me a workout that takes {n} minutes", "Make a plan for a {n} minute workout", n=HOURS),
    template("order", "How much is 100 {a} in {b}?", "What are 100 {a} worth in {b}?", "Convert 100 {a} to {b}",
             "How many {b} do I get for 100 {a}?", a=("euros", "dollars", "pounds", "yen", "francs"),
             b=("euros", "dollars", "pounds", "yen", "francs")),
    template("negation", "Which foods {v} contain gluten?", "What foods {v} contain gluten?",
             "Name foods that {v} contain gluten", v=("do", "do not")),
    template("role", "What does {a} do all day?", "What is the work of {a} like?", "Describe the work of {a}",
             "What are the tasks of {a}?",
             a=("a judge", "a florist", "a tailor", "a geologist", "a referee", "a broker")),
)  # fmt: skip
"""Templates that nothing in the tier is fitted to. The prior of its score is fitted to TEMPLATES."""


def questions(templates: Sequence[Template] = TEMPLATES) -> list[Question]:
    """Return every wording of every question, in the order of the templates."""
    return list(_questions(templates))


def _questions(templates: Sequence[Template]) -> Iterator[Question]:
    for number, (kind, slots, wordings) in enumerate(templates):
        for values in itertools.product(*slots.values()):
            if kind == "order" and len(set(values)) < len(values):
                continue
            meaning = f"{number}:{'|'.join(values)}"
            for wording in wordings:
                yield Question(wording.format(**dict(zip(slots, values, strict=True))), meaning, kind)


def each_once(seed: int, templates: Sequence[Template] = TEMPLATES) -> list[Question]:
    """Return every question once, in random order: no request is an exact repeat."""
    found = questions(templates)
    random.Random(seed).shuffle(found)
    return found


def popular(count: int, seed: int, exponent: float = 0.8) -> list[Question]:
    """Draw questions whose meanings have Zipf's popularity; each wording of a meaning is as likely as the others."""
    rng = random.Random(seed)
    by_meaning: dict[str, list[Question]] = {}
    for question in questions():
        by_meaning.setdefault(question.meaning, []).append(question)
    meanings = list(by_meaning)
    rng.shuffle(meanings)
    weights = [rank**-exponent for rank in range(1, len(meanings) + 1)]
    return [rng.choice(by_meaning[meaning]) for meaning in rng.choices(meanings, weights, k=count)]


if __name__ == "__main__":
    for each in each_once(seed=1):
        print(json.dumps(each._asdict()))
