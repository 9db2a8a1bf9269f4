"""Programs that carry a model in an object from file to file, by how they make it; only ``main`` speaks of FSDP1.

``program/main.py`` calls ``run`` of ``program/run.py`` with the model; ``program/steps.py`` copies what it is given.
"""

STEPS = """\
from copy import deepcopy


def work(things):
    for thing in things:
        print(thing)
    return deepcopy(things[0].brain)
"""
LIST = """\
from program.kit import build
from program.steps import work


def run(made):
    work([build(made)])
"""

FORMS: dict[str, dict[str, str]] = {
    "dataclass by keyword": {
        "kit": """\
from dataclasses import dataclass


@dataclass
class Kit:
    brain: object
    opt: object = None


def build(model):
    return Kit(brain=model)
""",
        "run": LIST,
    },
    "dataclass by position, kept first": {
        "kit": """\
from dataclasses import dataclass


@dataclass
class Kit:
    opt: object
    brain: object


def build(model):
    kit = Kit(None, model)
    kit.opt = object()
    return kit
""",
        "run": LIST,
    },
    "named tuple": {
        "kit": """\
from typing import NamedTuple


class Kit(NamedTuple):
    opt: object
    brain: object


def build(model):
    return Kit(None, model)
""",
        "run": LIST,
    },
    "named tuple of what a star gives": {
        "kit": """\
from typing import NamedTuple


class Kit(NamedTuple):
    opt: object
    brain: object


def build(model):
    return Kit(*[None, model])
""",
        "run": LIST,
    },
    "named tuple made of a list": {
        "kit": """\
from typing import NamedTuple


class Kit(NamedTuple):
    opt: object
    brain: object


def build(model):
    return Kit._make((None, model))
""",
        "run": LIST,
    },
    "dataclass of what a star gives": {
        "kit": """\
from dataclasses import dataclass


@dataclass
class Kit:
    number: int
    opt: object
    brain: object


def build(model):
    parts = (None, model)
    return Kit(1, *parts)
""",
        "run": LIST,
    },
    "attrs": {
        "kit": """\
import attrs


@attrs.define
class Kit:
    brain: object


def build(model):
    return Kit(model)
""",
        "run": LIST,
    },
    "constructor under another name": {
        "kit": """\
class Kit:
    def __init__(self, opt, net):
        self.opt = opt
        self.brain = net


def build(model):
    return Kit(None, model)
""",
        "run": LIST,
    },
    "constructor of a base in another file": {
        "base": """\
class Base:
    def __init__(self, net):
        self.brain = net
""",
        "kit": """\
from program.base import Base


class Kit(Base):
    pass


def build(model):
    return Kit(model)
""",
        "run": LIST,
    },
    "set from outside": {
        "kit": """\
class Kit:
    pass


def build(model):
    kit = Kit()
    kit.brain = model
    return kit
""",
        "run": LIST,
    },
    "made where it is handed on": {
        "kit": """\
class Kit:
    def __init__(self, brain):
        self.brain = brain
""",
        "run": """\
from program.kit import Kit
from program.steps import work


def run(made):
    work([Kit(made)])
""",
    },
    "tuple, passed through a third file": {
        "kit": """\
class Kit:
    def __init__(self, brain):
        self.brain = brain
""",
        "between": """\
from program import steps


def hand_on(first, *rest):
    return steps.work((first, *rest))
""",
        "run": """\
from program.between import hand_on
from program.kit import Kit


def run(made):
    hand_on(Kit(made), None)
""",
    },
    "dictionary": {
        "kit": """\
class Kit:
    def __init__(self, brain):
        self.brain = brain


def build(model):
    return {"first": Kit(model), "second": None}
""",
        "run": """\
from program.kit import build
from program.steps import work


def run(made):
    work(build(made))
""",
        "steps": """\
from copy import deepcopy


def work(things):
    return deepcopy(things["first"].brain)
""",
    },
    "list that is appended to": {
        "kit": """\
class Kit:
    def __init__(self, brain):
        self.brain = brain
""",
        "run": """\
from program.kit import Kit
from program.steps import work


def run(made):
    kits = []
    for _ in range(2):
        kits.append(Kit(made))
    work(kits)
""",
    },
    "object in an object": {
        "kit": """\
class Kit:
    def __init__(self, brain):
        self.brain = brain


class Box:
    def __init__(self, kit):
        self.kit = kit
""",
        "run": """\
from program.kit import Box, Kit
from program.steps import work


def run(made):
    work([Box(Kit(made))])
""",
        "steps": """\
from copy import deepcopy


def work(boxes):
    return deepcopy(boxes[0].kit.brain)
""",
    },
    "object that hands itself on": {
        "kit": """\
from program.steps import work


class Kit:
    def __init__(self, brain):
        self.brain = brain

    def go(self):
        work([self])
""",
        "run": """\
from program.kit import Kit


def run(made):
    Kit(made).go()
""",
    },
    "attribute of the result of a call": {
        "kit": """\
class Kit:
    def __init__(self, brain):
        self.brain = brain


def build(model):
    return Kit(model)
""",
        "run": """\
from program.kit import build
from program.steps import work


def run(made):
    work(build(made).brain)
""",
        "steps": """\
from copy import deepcopy


def work(thing):
    return deepcopy(thing)
""",
    },
    "attribute of an element, passed on": {
        "kit": """\
class Kit:
    def __init__(self, brain):
        self.brain = brain


def build(model):
    return [Kit(model)]
""",
        "run": """\
from program.kit import build
from program.steps import work


def run(made):
    kits = build(made)
    work(kits[0].brain)
""",
        "steps": """\
from copy import deepcopy


def work(thing):
    return deepcopy(thing)
""",
    },
    "attribute asked for by a text, two objects away": {
        "kit": """\
class Kit:
    def __init__(self, brain):
        self.brain = brain


class Bag:
    def __init__(self, kit):
        self.kit = kit


def build(model):
    return Bag(Kit(model))
""",
        "run": """\
from program.kit import build
from program.loop import Loop


def run(made):
    Loop(build(made)).run()
""",
        "loop": """\
from program.steps import work


class Loop:
    def __init__(self, bag):
        self.bag = bag

    def run(self):
        work(getattr(self.bag.kit, "brain"))
""",
        "steps": """\
from copy import deepcopy


def work(thing):
    return deepcopy(thing)
""",
    },
}
