"""A rule's example with the model three objects deep: in an attribute of an object that another object holds."""

from __future__ import annotations

from tests.rules.variants import USER, Example, Variant, arguments, made, main_file

HOLDER = "class Holder:\n    def __init__(self, network):\n        self.network = network\n\n"
JOB = "class Job:\n    def __init__(self, holder):\n        self.holder = holder\n\n"
RECORD = "@dataclass\nclass Record:\n    name: str\n    job: Job\n    steps: int = 3\n"
BOTH = f"{HOLDER}\n{JOB}"


def listed_object(example: Example, wraps: bool) -> dict[str, str]:
    """Of an object in a list; its classes are those of the file that uses it."""
    body = f"    jobs = [Job(Holder({made(example, wraps)}))]\n    use({arguments(example, 'jobs')})\n"
    return {
        "program/main.py": main_file(example, "from program.steps import Holder, Job, use\n", body, wraps),
        USER: f"{example.used}{BOTH}\n" + example.use("jobs[0].holder.network", "jobs"),
    }


def each_object(example: Example, wraps: bool) -> dict[str, str]:
    """Of each object of a list that is filled bit by bit, of classes of a third file."""
    body = (
        f"    jobs = []\n    jobs.append(Job(Holder({made(example, wraps)})))\n    use({arguments(example, 'jobs')})\n"
    )
    imports = "from program.jobs import Holder, Job\nfrom program.steps import use\n"
    head, _, rest = example.use("job.holder.network", "jobs", " " * 8).partition("\n")
    return {
        "program/main.py": main_file(example, imports, body, wraps),
        "program/jobs.py": BOTH,
        USER: f"{example.used}\n{head.strip()}\n    for job in jobs:\n{rest}",
    }


def keyed_object(example: Example, wraps: bool) -> dict[str, str]:
    """Of an object in a dictionary that a file between passes on."""
    body = (
        f"    holder = Holder({made(example, wraps)})\n    jobs = {{'first': Job(holder)}}\n"
        f"    between.hand_over({arguments(example, 'jobs')})\n"
    )
    between = (
        f"from program import steps\n\n{BOTH}\n"
        f"def hand_over({arguments(example, 'table')}):\n    return steps.use({arguments(example, 'table')})\n"
    )
    imports = "from program import between\nfrom program.between import Holder, Job\n"
    return {
        "program/main.py": main_file(example, imports, body, wraps),
        "program/between.py": between,
        USER: f"{example.used}\n" + example.use("table['first'].holder.network", "table"),
    }


def field_of_a_dataclass(example: Example, wraps: bool) -> dict[str, str]:
    """Of an object in a field of a dataclass, under a name of its own."""
    job = f"Job(Holder({made(example, wraps)}))"
    body = f"    record = Record('first', job={job})\n    use({arguments(example, 'record')})\n"
    imports = "from program.jobs import Holder, Job, Record\nfrom program.steps import use\n"
    head, _, rest = example.use("net", "record").partition("\n")
    return {
        "program/main.py": main_file(example, imports, body, wraps),
        "program/jobs.py": f"from dataclasses import dataclass\n\n{BOTH}\n{RECORD}",
        USER: f"{example.used}\n{head}\n    net = record.job.holder.network\n{rest}",
    }


def own_object(example: Example, wraps: bool) -> dict[str, str]:
    """Of an object that the class which uses it keeps as ``self.job``."""
    body = f"    loop = Loop(Job(Holder({made(example, wraps)})))\n    loop.use({', '.join(example.given)})\n"
    imports = "from program.jobs import Holder, Job\nfrom program.steps import Loop\n"
    keeps = "class Loop:\n    def __init__(self, job):\n        self.job = job\n\n"
    return {
        "program/main.py": main_file(example, imports, body, wraps),
        "program/jobs.py": BOTH,
        USER: f"{example.used}{keeps}" + example.use("self.job.holder.network", "self", " " * 8),
    }


def built_object(example: Example, wraps: bool) -> dict[str, str]:
    """Of an object that a function of a third file returns, and which was given the model after it was made."""
    given = arguments(example, "net")
    body = f"    jobs = build({given})\n    use({arguments(example, 'jobs')})\n"
    build = (
        f"{example.imports}\nclass Holder:\n    network = None\n\n{JOB}\n"
        f"def build({given}):\n    holder = Holder()\n    holder.network = {made(example, wraps)}\n"
        "    return [Job(holder)]\n"
    )
    return {
        "program/main.py": main_file(example, "from .build import build\nfrom .steps import use\n", body, wraps),
        "program/build.py": build,
        USER: f"{example.used}\n" + example.use("jobs[0].holder.network", "jobs"),
    }


def wrapping_object(example: Example, wraps: bool) -> dict[str, str]:
    """Of an object that wraps it itself, and which two others hold."""
    given = arguments(example, "net")
    rest = "".join(f", {name}" for name in example.given)
    holder = f"class Holder:\n    def __init__(self, {given}):\n        self.network = {made(example, wraps)}\n\n"
    job = f"class Job:\n    def __init__(self, {given}):\n        self.holder = Holder({given})\n\n"
    body = f"    jobs = {{'first': Job({given})}}\n    for name, job in jobs.items():\n        use(job{rest})\n"
    return {
        "program/main.py": main_file(
            example, "from program.jobs import Job\nfrom program.steps import use\n", body, wraps
        ),
        "program/jobs.py": f"{example.imports}\n{holder}\n{job}",
        USER: f"{example.used}\n" + example.use("job.holder.network", "job"),
    }


def passed_on_object(example: Example, wraps: bool) -> dict[str, str]:
    """Of an object that a class keeps as ``self.job``, from where it is passed to a function of another file."""
    given = ", ".join(example.given)
    rest = "".join(f", {name}" for name in example.given)
    body = f"    loop = Loop(Job(Holder({made(example, wraps)})))\n    loop.run({given})\n"
    imports = "from program.jobs import Holder, Job\nfrom program.loop import Loop\n"
    loop = (
        "from program.steps import use\n\nclass Loop:\n    def __init__(self, job):\n        self.job = job\n\n"
        f"    def run(self{rest}):\n        use(self.job.holder.network{rest})\n"
    )
    return {
        "program/main.py": main_file(example, imports, body, wraps),
        "program/jobs.py": BOTH,
        "program/loop.py": loop,
        USER: f"{example.used}\n" + example.use("thing", "thing"),
    }


def taken_object(example: Example, wraps: bool) -> dict[str, str]:
    """Of an object that a call takes from a dictionary, in the file that uses it and in one that passes it on."""
    rest = "".join(f", {name}" for name in example.given)
    body = f"    jobs = {{'first': Job(Holder({made(example, wraps)}))}}\n    start({arguments(example, 'jobs')})\n"
    imports = "from program.jobs import Holder, Job\nfrom program.between import start\n"
    between = (
        "from program.steps import use\n\n"
        f"def start({arguments(example, 'jobs')}):\n    use(next(iter(jobs.values())).holder.network{rest})\n"
    )
    return {
        "program/main.py": main_file(example, imports, body, wraps),
        "program/jobs.py": BOTH,
        "program/between.py": between,
        USER: f"{example.used}\n" + example.use("thing", "thing"),
    }


DEEP: tuple[Variant, ...] = (
    listed_object,
    each_object,
    keyed_object,
    field_of_a_dataclass,
    own_object,
    built_object,
    wrapping_object,
    passed_on_object,
    taken_object,
)
