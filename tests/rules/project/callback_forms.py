"""Programs that pass a function as a value, by how they do it; no file but ``main`` speaks of FSDP1.

``program/main.py`` calls ``run`` of ``program/run.py``, which calls ``program/hand.py`` with the model; that calls what
is in ``program/steps.py`` (``WORK``, where a form has none of its own).
"""

WORK = """\
from copy import deepcopy


def work(net):
    return deepcopy(net)
"""

FORMS: dict[str, dict[str, str]] = {
    "parameter": {
        "hand": """\
def hand_on(model, fn):
    return fn(model)
""",
        "run": """\
from program.hand import hand_on
from program.steps import work


def run(made):
    hand_on(made, work)
""",
    },
    "keyword": {
        "hand": """\
def hand_on(model, *, fn=None):
    return fn(net=model)
""",
        "run": """\
from program import hand, steps


def run(made):
    hand.hand_on(made, fn=steps.work)
""",
    },
    "dictionary": {
        "hand": """\
from program.steps import work

TASKS = {'sft': work}


def hand_on(model):
    return TASKS['sft'](model)
""",
        "run": """\
from program.hand import hand_on


def run(made):
    hand_on(made)
""",
    },
    "dictionary of another file": {
        "tasks": """\
from program import steps

TASKS = {'sft': steps.work}
""",
        "hand": """\
from program.tasks import TASKS


def hand_on(model, name):
    fn = TASKS.get(name)
    return fn(model)
""",
        "run": """\
from program.hand import hand_on


def run(made, name):
    hand_on(made, name)
""",
    },
    "registered": {
        "tasks": """\
TASKS = {}


def register(name):
    def keep(fn):
        TASKS[name] = fn
        return fn

    return keep
""",
        "hand": """\
from program import tasks


def hand_on(model, name):
    return tasks.TASKS[name](model)
""",
        "run": """\
from program.hand import hand_on


def run(made, name):
    hand_on(made, name)
""",
        "steps": """\
from copy import deepcopy

from program.tasks import register


@register('sft')
def work(net):
    return deepcopy(net)
""",
    },
    "registered without a name": {
        "tasks": """\
TASKS = {}


def register(fn):
    TASKS[fn.__name__] = fn
    return fn
""",
        "hand": """\
from program.tasks import TASKS


def hand_on(model, name):
    return TASKS[name](model)
""",
        "run": """\
from program.hand import hand_on


def run(made, name):
    hand_on(made, name)
""",
        "steps": """\
from copy import deepcopy

from program.tasks import register


@register
def work(net):
    return deepcopy(net)
""",
    },
    "registered with an object": {
        "tasks": """\
class Registry:
    def __init__(self):
        self._known = {}

    def register(self, name):
        def keep(fn):
            self._known[name] = fn
            return fn

        return keep

    def get(self, name):
        return self._known[name]


TASKS = Registry()
""",
        "hand": """\
from program.tasks import TASKS


def hand_on(model, name):
    return TASKS.get(name)(model)
""",
        "run": """\
from program.hand import hand_on


def run(made, name):
    hand_on(made, name)
""",
        "steps": """\
from copy import deepcopy

from program.tasks import TASKS


@TASKS.register('sft')
def work(net):
    return deepcopy(net)
""",
    },
    "a class that is registered": {
        "tasks": """\
TASKS = {}


def register(kind):
    TASKS[kind.__name__] = kind
    return kind
""",
        "hand": """\
from program.tasks import TASKS


def hand_on(model, name):
    return TASKS[name](model)
""",
        "run": """\
from program.hand import hand_on


def run(made, name):
    hand_on(made, name)
""",
        "steps": """\
from copy import deepcopy

from program.tasks import register


@register
class Work:
    def __init__(self, net):
        self.average = deepcopy(net)
""",
    },
    "name of a module's function": {
        "hand": """\
from program import steps


def hand_on(model, name):
    return getattr(steps, name)(model)
""",
        "run": """\
from program.hand import hand_on


def run(made, name):
    hand_on(made, name)
""",
    },
    "name of a method": {
        "hand": """\
from program.steps import Steps


def hand_on(model, name):
    Steps().run(model, name)
""",
        "run": """\
from program.hand import hand_on


def run(made, name):
    hand_on(made, name)
""",
        "steps": """\
from copy import deepcopy


class Steps:
    def run(self, net, name):
        return getattr(self, f'work_{name}')(net)

    def work_first(self, net):
        return deepcopy(net)
""",
    },
    "name of a module": {
        "hand": """\
import importlib


def hand_on(model, name):
    return importlib.import_module(f'program.{name}').work(model)
""",
        "run": """\
from program import steps
from program.hand import hand_on


def run(made, name):
    hand_on(made, name)
""",
    },
    "module that is imported first": {
        "hand": """\
from importlib import import_module


def hand_on(model):
    module = import_module('program.steps')
    return module.work(model)
""",
        "run": """\
from program.hand import hand_on


def run(made):
    hand_on(made)
""",
    },
    "partial with the model": {
        "hand": """\
from functools import partial

from program.steps import work


def hand_on(model):
    return partial(work, model)()
""",
        "run": """\
from program.hand import hand_on


def run(made):
    hand_on(made)
""",
    },
    "partial without the model": {
        "hand": """\
def hand_on(model, fn):
    return fn(model)
""",
        "run": """\
import functools

from program.hand import hand_on
from program.steps import work


def run(made, cfg):
    hand_on(made, functools.partial(work, cfg))
""",
        "steps": """\
from copy import deepcopy


def work(cfg, net):
    return deepcopy(net)
""",
    },
    "bound method": {
        "hand": """\
def hand_on(model, fn):
    return fn(model)
""",
        "run": """\
from program.hand import hand_on
from program.steps import Steps


def run(made):
    steps = Steps()
    hand_on(made, steps.work)
""",
        "steps": """\
from copy import deepcopy


class Steps:
    def work(self, net):
        return deepcopy(net)
""",
    },
    "object that is called": {
        "hand": """\
def hand_on(model, fn):
    return fn(model)
""",
        "run": """\
from program.hand import hand_on
from program.steps import Steps


def run(made):
    hand_on(made, Steps(3))
""",
        "steps": """\
from copy import deepcopy


class Steps:
    def __init__(self, every):
        self.every = every

    def __call__(self, net):
        return deepcopy(net)
""",
    },
    "attribute": {
        "hand": """\
class Loop:
    def __init__(self, model, step_fn):
        self.model = model
        self.step_fn = step_fn

    def run(self):
        self.step_fn(self.model)
""",
        "run": """\
from program.hand import Loop
from program.steps import work


def run(made):
    Loop(made, work).run()
""",
    },
    "attribute of a base": {
        "base": """\
class Base:
    def __init__(self, step_fn):
        self.step_fn = step_fn
""",
        "hand": """\
from program.base import Base


class Loop(Base):
    def run(self, model):
        self.step_fn(model)
""",
        "run": """\
from program.hand import Loop
from program.steps import work


def run(made):
    Loop(work).run(made)
""",
    },
    "attribute of another object": {
        "hand": """\
def hand_on(model, job):
    job.step_fn(model)
""",
        "run": """\
from types import SimpleNamespace

from program.hand import hand_on
from program.steps import work


def run(made):
    job = SimpleNamespace()
    job.step_fn = work
    hand_on(made, job)
""",
    },
    "list of functions": {
        "hand": """\
def hand_on(model, hooks):
    for hook in hooks:
        hook(model)
""",
        "run": """\
from program.hand import hand_on
from program.steps import work


def run(made):
    hand_on(made, [print, work])
""",
    },
    "lambda": {
        "hand": """\
def hand_on(model, fn):
    return fn(model)
""",
        "run": """\
from program.hand import hand_on
from program.steps import work


def run(made):
    hand_on(made, lambda m: work(m))
""",
    },
    "map": {
        "hand": """\
from program.steps import work


def hand_on(models):
    return list(map(work, models))
""",
        "run": """\
from program.hand import hand_on


def run(made):
    hand_on([made])
""",
    },
    "thread": {
        "hand": """\
from threading import Thread


def hand_on(model, fn):
    Thread(target=fn, args=(model,)).start()
""",
        "run": """\
from program.hand import hand_on
from program.steps import work


def run(made):
    hand_on(made, work)
""",
    },
    "executor": {
        "hand": """\
def hand_on(pool, model, fns):
    return pool.submit(fns['first'], model)
""",
        "run": """\
from program.hand import hand_on
from program.steps import work


def run(made, pool):
    hand_on(pool, made, {'first': work})
""",
    },
    "function that makes one": {
        "hand": """\
from program.steps import make


def hand_on(model):
    fn = make(3)
    return fn(model)
""",
        "run": """\
from program.hand import hand_on


def run(made):
    hand_on(made)
""",
        "steps": """\
from copy import deepcopy


def make(every):
    def work(net):
        return deepcopy(net)

    return work
""",
    },
    "arguments passed on": {
        "hand": """\
def hand_on(fn, *args, **kwargs):
    return fn(*args, **kwargs)
""",
        "run": """\
from program.hand import hand_on
from program.steps import work


def run(made):
    hand_on(work, made)
""",
    },
    "keywords passed on": {
        "hand": """\
def hand_on(fn, **kwargs):
    return fn(**kwargs)
""",
        "run": """\
from program.hand import hand_on
from program.steps import work


def run(made):
    hand_on(work, net=made)
""",
    },
    "method of what a call makes": {
        "hand": """\
from program.steps import Steps


def hand_on(model):
    Steps(3).work(model)
""",
        "run": """\
from program.hand import hand_on


def run(made):
    hand_on(made)
""",
        "steps": """\
from copy import deepcopy


class Steps:
    def __init__(self, every):
        self.every = every

    def work(self, net):
        return deepcopy(net)
""",
    },
}
