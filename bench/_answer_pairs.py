"""Pairs of answers with known truth, for measuring the judge of the semantic tier.

    templates   statements with slots: two answers say the same if all slots agree; negatives differ in one slot
    articles    longer answers, written by hand: three wordings that say the same, and versions with another fact
    blocks      two or three statements in one answer; a negative differs in one slot of one statement
    topics      answers to different questions

Kinds of negatives: number, name, noun (another thing of the same kind), opposite (enable and disable), negation,
order (who did what to whom), limit (only, except), fact (one detail of a longer answer) and topic.
"""

# ruff: noqa: E501
from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import NamedTuple

CITIES = ("Paris", "Tokyo", "Oslo", "Lima", "Cairo", "Vienna", "Canberra", "Ottawa")
COUNTRIES = ("France", "Japan", "Norway", "Peru", "Egypt", "Austria", "Australia", "Canada")
NUMBERS = ("2", "3", "5", "7", "10", "14", "30", "45", "60", "90")
HOURS = ("8 am", "9 am", "10 am", "6 pm", "8 pm", "9:30 am")
PRODUCTS = ("charger", "headset", "keyboard", "monitor", "router", "tablet", "camera", "printer")
ACCOUNTS = ("savings account", "checking account", "credit card", "debit card", "loan", "mortgage")
FEATURES = ("dark mode", "notifications", "autocorrect", "the firewall", "location sharing", "automatic updates")
ANIMALS = ("cats", "dogs", "rabbits", "horses", "parrots", "turtles")
FOODS = ("hay", "fish", "meat", "seeds", "vegetables", "insects")
PEOPLE = ("Anna", "Brian", "Carla", "David", "Elena", "Frank")

TEMPLATES: tuple[tuple[dict[str, tuple[tuple[str, ...], str]], tuple[str, ...]], ...] = (
    ({"city": (CITIES, "name"), "land": (COUNTRIES, "name")},
     ("The capital of {land} is {city}.", "{city} is the capital of {land}.", "**{city}** is {land}'s capital city.",
      "Sure! The capital of {land} is {city}.", "It's {city}, which is the capital of {land}.")),
    ({"city": (CITIES, "name")},
     ("{city}", "{city}.", "**{city}**", "It's {city}.", "The answer is {city}.", "Sure! It is {city}.")),
    ({"n": (NUMBERS, "number")},
     ("{n}", "{n}.", "**{n}**", "The answer is {n}.", "It's {n}.", "Certainly! The result is {n}.")),
    ({"yes": (("Yes", "No"), "opposite")},
     ("{yes}", "{yes}.", "**{yes}**", "{yes}!", "{yes}, that is what I found.")),
    ({"n": (NUMBERS, "number"), "p": (PRODUCTS, "noun")},
     ("You can return the {p} within {n} days.", "The {p} can be returned within {n} days.",
      "Returns of the {p} are accepted for {n} days.", "You have {n} days to return the {p}.",
      "Of course! You can return your {p} within {n} days.")),
    ({"h": (HOURS, "number"), "c": (CITIES, "name")},
     ("The shop in {c} opens at {h}.", "Our {c} shop opens at {h}.", "In {c}, the shop opens at {h}.",
      "The {c} shop is open from {h}.", "Opening time of the shop in {c}: {h}.")),
    ({"a": (ACCOUNTS, "noun"), "n": (NUMBERS, "number")},
     ("The monthly fee for the {a} is {n} dollars.", "The {a} costs {n} dollars a month.",
      "You pay {n} dollars per month for the {a}.", "The {a} has a fee of {n} dollars each month.")),
    ({"v": (("enable", "disable"), "opposite"), "f": (FEATURES, "noun")},
     ("To {v} {f}, open Settings and tap Privacy.", "Open Settings and tap Privacy to {v} {f}.",
      "You can {v} {f} in Settings under Privacy.", "Go to Settings, then Privacy, to {v} {f}.")),
    ({"v": (("left", "right"), "opposite"), "n": (NUMBERS, "number")},
     ("Turn {v} after {n} metres.", "After {n} metres, turn {v}.", "Go {n} metres and turn {v}.",
      "Sure! Turn {v} after {n} metres.")),
    ({"v": (("increases", "decreases"), "opposite"), "x": (("pressure", "volume", "resistance", "density"), "noun")},
     ("The {x} {v} when the temperature rises.", "When the temperature rises, the {x} {v}.",
      "As the temperature rises, the {x} {v}.", "If the temperature rises, then the {x} {v}.")),
    ({"a": (ANIMALS, "noun"), "f": (FOODS, "noun")},
     ("{a} mostly eat {f}.", "Mostly, {a} eat {f}.", "The main food of {a} is {f}.", "{f} is what {a} mostly eat.")),
    ({"not": (("is", "is not"), "negation"), "p": (PRODUCTS, "noun")},
     ("The {p} {not} covered by the warranty.", "Your {p} {not} covered by the warranty.",
      "The warranty says that the {p} {not} covered.", "Under the warranty, the {p} {not} covered.")),
    ({"not": (("can", "cannot"), "negation"), "a": (ACCOUNTS, "noun")},
     ("You {not} close the {a} online.", "The {a} {not} be closed online.", "Online, you {not} close your {a}.",
      "Closing the {a} online {not} be done.")),
    ({"x": (PEOPLE, "order"), "y": (PEOPLE, "order")},
     ("{x} reports to {y}.", "It is {y} to whom {x} reports.", "Currently, {x} reports to {y}.", "{x} reports to {y} now.")),
    ({"w": (("before", "after"), "opposite"), "n": (NUMBERS, "number")},
     ("Take {n} tablets {w} the meal.", "{n} tablets should be taken {w} the meal.", "You take {n} tablets {w} meals.",
      "Take the {n} tablets {w} a meal.")),
    ({"only": (("", "only "), "limit"), "h": (HOURS, "number")},
     ("The office is open {only}on weekdays from {h}.", "On weekdays {only}the office is open from {h}.",
      "From {h}, the office is open {only}on weekdays.")),
    ({"label": (("positive", "negative", "neutral", "mixed"), "opposite")},
     ("{label}", "Sentiment: {label}", "The sentiment is {label}.", "**{label}**", "The sentiment of the text is {label}.")),
    ({"q": (("all", "some", "most", "none"), "limit"), "p": (PRODUCTS, "noun")},
     ("The discount applies to {q} of the {p} models.", "For {q} of the {p} models the discount applies.",
      "{q} of the {p} models get the discount.")),
)  # fmt: skip

ARTICLES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("You can reset your password on the sign-in page. Click 'Forgot password', enter your email address, and follow "
      "the link that we send you. The link is valid for 24 hours.",
      "To reset your password, go to the sign-in page and click 'Forgot password'. Enter your email address and open the "
      "link in the message you receive. It stays valid for 24 hours.",
      "Sure! Go to the sign-in page, choose 'Forgot password' and type in your email address. We will send you a link, "
      "which works for 24 hours."),
     ("You can reset your password on the sign-in page. Click 'Forgot password', enter your email address, and follow "
      "the link that we send you. The link is valid for 48 hours.",
      "You can change your email address on the profile page. Click 'Edit', enter your email address, and follow the "
      "link that we send you. The link is valid for 24 hours.",
      "You can reset your password in the mobile app. Click 'Forgot password', enter your phone number, and follow the "
      "link that we send you. The link is valid for 24 hours.")),
    (("The sky looks blue because air molecules scatter short wavelengths of sunlight more than long ones. This is "
      "called Rayleigh scattering.",
      "Sunlight is scattered by the molecules of the air, and blue light, with its short wavelength, is scattered more "
      "than red. That effect, Rayleigh scattering, makes the sky blue.",
      "Because of Rayleigh scattering: molecules in the air scatter blue light far more than red light, so blue reaches "
      "our eyes from all directions."),
     ("The sky looks red at sunset because the light passes through more air, which removes short wavelengths. This is "
      "called Rayleigh scattering.",
      "The sky looks blue because air molecules absorb long wavelengths of sunlight more than short ones. This is "
      "called Rayleigh scattering.",
      "The sky looks blue because air molecules scatter long wavelengths of sunlight more than short ones. This is "
      "called Rayleigh scattering.")),
    (("Your transfer usually arrives within two business days. Transfers made after 5 pm are processed on the next "
      "business day.",
      "A transfer normally takes up to two business days. If you make it after 5 pm, it is processed the next business "
      "day.",
      "Transfers usually arrive within two business days; those made after 5 pm are processed on the next business day."),
     ("Your transfer usually arrives within three business days. Transfers made after 5 pm are processed on the next "
      "business day.",
      "Your transfer usually arrives within two business days. Transfers made before 5 pm are processed on the next "
      "business day.",
      "Your transfer usually arrives within two business days. Transfers made after 5 pm are cancelled on the next "
      "business day.")),
    (("Boil the pasta in salted water for nine minutes, then drain it and mix it with the sauce.",
      "Cook the pasta for nine minutes in boiling salted water. Drain it and mix in the sauce.",
      "First boil the pasta for nine minutes in salted water. Then drain it, and mix it with the sauce."),
     ("Boil the pasta in unsalted water for nine minutes, then drain it and mix it with the sauce.",
      "Boil the pasta in salted water for eleven minutes, then drain it and mix it with the sauce.",
      "Boil the rice in salted water for nine minutes, then drain it and mix it with the sauce.",
      "Boil the pasta in salted water for nine minutes, then rinse it and mix it with the butter.")),
    (("Photosynthesis takes place in the chloroplasts. Plants use light to turn carbon dioxide and water into sugar and "
      "oxygen.",
      "Plants use light to turn water and carbon dioxide into oxygen and sugar. This happens in the chloroplasts.",
      "In the chloroplasts, plants turn carbon dioxide and water into sugar and oxygen with the energy of light."),
     ("Respiration takes place in the mitochondria. Plants use oxygen to turn sugar into carbon dioxide and water.",
      "Photosynthesis takes place in the chloroplasts. Plants use light to turn sugar and oxygen into carbon dioxide and "
      "water.",
      "Photosynthesis takes place in the mitochondria. Plants use light to turn carbon dioxide and water into sugar and "
      "oxygen.")),
    (("You are entitled to a refund if the train is more than 60 minutes late. Submit the claim online within a month.",
      "If your train is over 60 minutes late, you can claim a refund. Please submit the claim online within a month.",
      "A refund is due when the train is more than 60 minutes late; submit your claim online within a month."),
     ("You are not entitled to a refund if the train is more than 60 minutes late. Submit the claim online within a "
      "month.",
      "You are entitled to a voucher if the train is more than 60 minutes late. Submit the claim online within a month.",
      "You are entitled to a refund if the train is less than 60 minutes late. Submit the claim online within a month.",
      "You are entitled to a refund if the flight is more than 60 minutes late. Submit the claim by post within a month.")),
    (("A list in Python is mutable, a tuple is not. Use a tuple for values that do not change.",
      "In Python, lists are mutable and tuples are not. Tuples suit values that do not change.",
      "The difference: a list is mutable and a tuple is immutable. Choose a tuple for values that never change."),
     ("A tuple in Python is mutable, a list is not. Use a list for values that do not change.",
      "A list in Python is ordered, a set is not. Use a set for values that do not repeat.",
      "A list in Java is mutable, an array is not. Use an array for values that do not change.")),
    (("Adults should sleep seven to nine hours a night. Avoid caffeine and screens before going to bed.",
      "Seven to nine hours a night are recommended for adults. Before going to bed, avoid screens and caffeine.",
      "For adults, seven to nine hours of sleep a night are best. Stay away from caffeine and screens before bed."),
     ("Children should sleep nine to twelve hours a night. Avoid caffeine and screens before going to bed.",
      "Adults should sleep seven to nine hours a night. Avoid exercise and screens before going to bed.",
      "Adults should sleep five to six hours a night. Avoid caffeine and screens before going to bed.")),
    (("The Great Fire of London began in a bakery in Pudding Lane in September 1666 and burned for four days.",
      "In September 1666 the Great Fire of London began in a bakery in Pudding Lane. It burned for four days.",
      "It began in a bakery in Pudding Lane in September 1666; the Great Fire of London then burned for four days."),
     ("The Great Fire of London began in a bakery in Pudding Lane in September 1665 and burned for four days.",
      "The Great Fire of London began in a tavern in Pudding Lane in September 1666 and burned for four days.",
      "The Great Fire of London ended near a church in Pie Corner in September 1666 after four days.")),
    (("Hold the power button for ten seconds until the screen goes dark. Release it and wait for the logo.",
      "To restart, hold the power button for ten seconds until the screen goes dark, release it, and wait for the logo.",
      "Press and hold the power button for ten seconds. When the screen goes dark, release it and wait for the logo."),
     ("Hold the volume button for ten seconds until the screen goes dark. Release it and wait for the logo.",
      "Hold the power button for ten seconds until the screen lights up. Release it and wait for the logo.",
      "Hold the power button for ten seconds until the screen goes dark. Keep it pressed until the logo appears.")),
    (("Yes, you can bring a small bag on board. It must fit under the seat in front of you.",
      "Yes. A small bag is allowed on board if it fits under the seat in front of you.",
      "You can bring a small bag on board, but it must fit under the seat in front of you."),
     ("Yes, you can bring a small dog on board. It must fit under the seat in front of you.",
      "No, you can't bring a small bag on board. It must be checked in at the counter.",
      "Yes, you can bring a large bag on board. It must fit into the compartment above you.")),
    (("Interest is paid monthly at an annual rate of 3.5 percent. You can withdraw the money at any time.",
      "The annual rate is 3.5 percent, and interest is paid monthly. The money can be withdrawn at any time.",
      "We pay interest every month, at 3.5 percent a year. You can withdraw your money at any time."),
     ("Interest is paid yearly at an annual rate of 3.5 percent. You can withdraw the money at any time.",
      "Interest is charged monthly at an annual rate of 3.5 percent. You can repay the money at any time.",
      "Interest is paid monthly at an annual rate of 3.5 percent. You can deposit the money at any time.",
      "Interest is paid monthly at an annual rate of 5.3 percent. You can withdraw the money at any time.")),
)  # fmt: skip


class AnswerPair(NamedTuple):
    """Two answers, whether they say the same, and of which kind the pair is."""

    stored: str
    new: str
    same: bool
    kind: str


def build_pairs(seed: int = 0, each: int = 60) -> list[AnswerPair]:
    """Return pairs with their truth. each: random pairs of a template, of each truth."""
    draw = random.Random(seed)
    pairs = list(article_pairs())
    for template in TEMPLATES:
        pairs += [template_pair(draw, template, same=k % 2 == 0) for k in range(2 * each)]
    pairs += [block_pair(draw, same=k % 2 == 0) for k in range(4 * each)]
    pairs += [topic_pair(draw) for _ in range(4 * each)]
    return [pair for pair in pairs if pair.stored != pair.new]


def template_pair(draw: random.Random, template: tuple, same: bool) -> AnswerPair:  # type: ignore[type-arg]
    """Return two answers of one template. A negative differs in one slot, half of them in the same wording."""
    slots, wordings = template
    ours = {name: draw.choice(values) for name, (values, _) in slots.items()}
    if ours.get("x") is not None and ours.get("x") == ours.get("y"):
        ours["y"] = next(person for person in PEOPLE if person != ours["x"])
    theirs, kind = dict(ours), "same"
    if not same:
        name = draw.choice(sorted(slots))
        values, kind = slots[name]
        if kind == "order":
            theirs["x"], theirs["y"] = ours["y"], ours["x"]
        else:
            theirs[name] = draw.choice([value for value in values if value != ours[name]])
    first = draw.choice(wordings)
    second = first if not same and draw.random() < 0.5 else draw.choice(wordings)
    return AnswerPair(capital(first.format(**ours)), capital(second.format(**theirs)), same, kind)


def block_pair(draw: random.Random, same: bool) -> AnswerPair:
    """Return two answers of several statements, in any order. A negative differs in one slot of one statement."""
    templates = draw.sample([each for each in TEMPLATES if len(each[0]) > 1], draw.choice((2, 3)))
    changed = -1 if same else draw.randrange(len(templates))
    pairs = [template_pair(draw, template, same=k != changed) for k, template in enumerate(templates)]
    order = draw.sample(range(len(pairs)), len(pairs))
    kind = "same" if same else pairs[changed].kind
    return AnswerPair(" ".join(p.stored for p in pairs), " ".join(pairs[k].new for k in order), same, f"block {kind}")


def topic_pair(draw: random.Random) -> AnswerPair:
    """Return answers of two templates."""
    first, second = draw.sample([each for each in TEMPLATES if len(each[0]) > 1], 2)
    return AnswerPair(template_pair(draw, first, True).stored, template_pair(draw, second, True).stored, False, "topic")


def article_pairs() -> Iterator[AnswerPair]:
    """Yield all pairs of longer answers."""
    for same, different in ARTICLES:
        for stored, new in itertools.permutations(same, 2):
            yield AnswerPair(stored, new, True, "article")
        for stored, new in itertools.product(same, different):
            yield AnswerPair(stored, new, False, "fact")
        for stored, new in itertools.combinations(different, 2):
            yield AnswerPair(stored, new, False, "fact")


def capital(text: str) -> str:
    """Return a text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]
