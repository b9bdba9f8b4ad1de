"""The built-in prompts of `knapcache demo`, used when no prompt file is given.

Each group combines a few templates with many topics. Prompts and expected answers vary in length; no two prompts are
equal.
"""

from __future__ import annotations

import random
from itertools import product
from typing import NamedTuple


class PromptGroup(NamedTuple):
    """Templates, each with one `{}` for the topic, and topics."""

    templates: tuple[str, ...]
    topics: tuple[str, ...]


def _group(*templates: str, topics: str) -> PromptGroup:
    """Return a group. topics: separated by semicolons."""
    return PromptGroup(templates, tuple(" ".join(topic.split()) for topic in topics.split(";")))


PROMPT_GROUPS = (
    _group(
        "What is {}?",
        "Explain {} to a ten year old.",
        "Can you explain {} in simple terms, with an example?",
        "Why does {} matter?",
        topics="""
        photosynthesis; inflation; a black hole; compound interest; machine learning; the water cycle;
        plate tectonics; an electric current; supply and demand; DNA; the greenhouse effect; a neural
        network; quantum entanglement; the immune system; natural selection; entropy; a blockchain; the
        placebo effect; public key cryptography; the stock market; relativity; a vaccine; game theory;
        the Doppler effect
        """,
    ),
    _group(
        "How do I {} in Python?",
        "Write a Python function to {}. Add a docstring and one test.",
        "What is the fastest way to {} in JavaScript?",
        "I am new to programming. Show me step by step how to {}.",
        topics="""
        reverse a string; read a CSV file; sort a list of dates; remove duplicates from a list; merge
        two dictionaries; download a web page; parse JSON; measure how long a call takes; count words in
        a text; find the largest number in a list; check whether a word is a palindrome; make a random
        password; read a file line by line; compute Fibonacci numbers; send an email; round a number to
        two digits; split a text into sentences; cache the results of a function
        """,
    ),
    _group(
        "Give me a simple recipe for {}.",
        "How long does {} keep in the fridge?",
        "What goes well with {}?",
        "I have six guests tonight, one of them vegetarian. How do I make {} for all, and what can I prepare now?",
        topics="""
        pancakes; lentil soup; tomato sauce; banana bread; fried rice; potato salad; chicken curry;
        pizza dough; guacamole; mushroom risotto; apple pie; hummus; vegetable stock; omelettes;
        chocolate mousse
        """,
    ),
    _group(
        "Write a short email to {}.",
        "Write a polite but firm letter to {}.",
        "How should I begin a message to {}?",
        topics="""
        ask my boss for a day off; thank a colleague for her help; decline an invitation; complain about
        a late parcel; apply for a summer job; invite friends to a birthday; ask my landlord for a
        repair; cancel a subscription; apologise for a mistake; ask a professor for a recommendation;
        welcome a new neighbour; remind a client of an open invoice
        """,
    ),
    _group(
        "What should I see in {} in two days?",
        "What is the best time of the year to visit {}?",
        "Is {} expensive for travellers?",
        "Plan a week in {} for a family with two children who like animals and do not like museums.",
        topics="""
        Lisbon; Kyoto; Iceland; Rome; New Zealand; Prague; Mexico City; Istanbul; Norway; Marrakesh;
        Vienna; Vietnam; Edinburgh; Buenos Aires; Cape Town
        """,
    ),
    _group(
        "Write a haiku about {}.",
        "Write a short story about {}.",
        "Tell me a joke about {}.",
        "Give me three titles for a song about {}.",
        topics="""
        the sea; a lost umbrella; an old lighthouse; the first snow; a robot that learns to paint; a cat
        on a roof; the last train home; a library at night; two friends and a map; autumn; a clockmaker;
        a very small dragon; coffee; the moon
        """,
    ),
    _group(
        "How can I {}?",
        "Give me five tips on how to {}.",
        "I have tried for months to {} and always give up after a week. What am I doing wrong?",
        topics="""
        sleep better; learn a language; run five kilometres; save money every month; stop
        procrastinating; read more books; remember names; prepare for a job interview; get rid of
        hiccups; speak in front of people; keep a houseplant alive; learn to play the guitar; drink less
        coffee; fall asleep on a plane; study for an exam; make new friends in a new city
        """,
    ),
    _group(
        "Who was {}?",
        "What is {} best known for?",
        "Write a short paragraph about the life of {}.",
        topics="""
        Ada Lovelace; Marie Curie; Leonardo da Vinci; Cleopatra; Alan Turing; Nelson Mandela; Frida
        Kahlo; Isaac Newton; Jane Austen; Galileo Galilei; Amelia Earhart; Johann Sebastian Bach; Rosa
        Parks; Charles Darwin; Hypatia of Alexandria
        """,
    ),
    _group(
        "What is the capital of {}?",
        "Which languages are spoken in {}?",
        "How many people live in {}?",
        topics="""
        France; Australia; Canada; Brazil; Kenya; Switzerland; Japan; Turkey; India; Peru; Egypt;
        Finland; Morocco; Thailand; Argentina
        """,
    ),
    _group(
        "What is the difference between {}?",
        "I always mix up {}. How do I tell them apart?",
        topics="""
        a virus and a bacterium; weather and climate; TCP and UDP; a list and a tuple; baking soda and
        baking powder; an alligator and a crocodile; jam and marmalade; a lease and a loan; Git and
        GitHub; SQL and NoSQL; a psychologist and a psychiatrist; affect and effect
        """,
    ),
)


def demo_prompts(seed: int = 0) -> list[str]:
    """Return all built-in prompts, shuffled by the seed."""
    prompts = [
        template.format(topic) for group in PROMPT_GROUPS for template, topic in product(group.templates, group.topics)
    ]
    random.Random(seed).shuffle(prompts)
    return prompts
