"""A rule's example over several files: where the model is wrapped, who passes it on, and who uses it."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from dataclasses import dataclass

from fsdp_rules.verdict.rule import Rule

WRAPPERS = ("FSDP", "FullyShardedDataParallel")
#: The file in which the model is used.
USER = "program/steps.py"


@dataclass(frozen=True)
class Example:
    """An example that wraps a model in a function and uses it below.

    ``given`` are the other names that the statements below need, ``body`` those statements with the model called
    ``{model}``. ``imports`` are all imports of the example, ``used`` those that these statements need, ``wrap`` is
    the call with the model called ``{model}``.
    """

    imports: str
    used: str
    wrap: str
    given: tuple[str, ...]
    body: str

    @classmethod
    def of(cls, rule: Rule) -> Example | None:
        """The example of ``rule``; None where it is not of this kind."""
        tree = ast.parse(rule.before)
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for index, statement in enumerate(function.body):
                name = _wrapped_name(statement)
                if name is not None and function.body[index + 1 :]:
                    wrap = ast.unparse(statement.value)
                    return cls._of(tree, function.body[index + 1 :], _marked(wrap, name), name)
        return cls._given(tree)

    @classmethod
    def _given(cls, tree: ast.Module) -> Example | None:
        """The example of a function that is given the model."""
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        function = next((node for node in functions if "model" in {one.arg for one in node.args.args}), None)
        if function is None:
            return None
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert any("FSDP" in _bound(node) for node in imports)
        # What calls itself keeps its name, beside the function that uses the model.
        names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        if function.name not in names:
            return cls._of(tree, function.body, "FSDP({model})", "model")
        calls = ast.parse(f"{function.name}(model)").body
        return cls._of(tree, calls, "FSDP({model})", "model", function)

    @classmethod
    def _of(
        cls, tree: ast.Module, below: list[ast.stmt], wrap: str, name: str, beside: ast.FunctionDef | None = None
    ) -> Example:
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        bound = {name for node in imports for name in _bound(node)} | ({beside.name} if beside else set())
        used = [*below, *([beside] if beside else [])]
        stored = {
            node.id for entry in below for node in ast.walk(entry) if isinstance(node, ast.Name) and _is_stored(node)
        }
        read = {node.id for entry in below for node in ast.walk(entry) if isinstance(node, ast.Name)}
        needed = {node.id for entry in used for node in ast.walk(entry) if isinstance(node, ast.Name)}
        head = "".join(f"{ast.unparse(node)}\n" for node in imports if needed & _bound(node))
        return cls(
            "".join(f"{ast.unparse(node)}\n" for node in imports),
            head + (f"\n{ast.unparse(beside)}\n" if beside else ""),
            wrap,
            tuple(sorted(read - bound - stored - {name} - set(dir(builtins)))),
            _marked("\n".join(ast.unparse(entry) for entry in below), name),
        )

    def use(self, model: str, first: str, indent: str = "    ", name: str = "use") -> str:
        """A function ``name`` that is given ``first`` and uses ``model``."""
        lines = self.body.format_map({"model": model}).splitlines()
        head = f"{indent[4:]}def {name}({', '.join([first, *self.given])}):\n"
        return head + "".join(f"{indent}{line}\n" for line in lines)


def _bound(node: ast.Import | ast.ImportFrom) -> set[str]:
    return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}


def _is_stored(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _wrapped_name(statement: ast.stmt) -> str | None:
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return None
    target, call = statement.targets[0], statement.value
    if not isinstance(target, ast.Name) or not isinstance(call.func, ast.Name) or call.func.id not in WRAPPERS:
        return None
    return target.id


def _marked(text: str, name: str) -> str:
    """``text`` as a format string in which ``name`` is ``{model}``."""

    class Rename(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:
            return ast.Name("MODEL_OF_THE_EXAMPLE", node.ctx) if node.id == name else node

    unparsed = ast.unparse(Rename().visit(ast.parse(text)))
    return unparsed.replace("{", "{{").replace("}", "}}").replace("MODEL_OF_THE_EXAMPLE", "{model}")


Variant = Callable[[Example, bool], dict[str, str]]


def arguments(example: Example, first: str) -> str:
    return ", ".join([first, *example.given])


def main_file(example: Example, imports: str, body: str, wraps: bool) -> str:
    """A main file; where ``wraps`` is false, it wraps another model than the one that is used."""
    made = example.wrap.format(model="net")
    first = f"    other = {made}\n" if not wraps else ""
    return f"{example.imports}{imports}\n\ndef main({arguments(example, 'net')}):\n{first}{body}"


def made(example: Example, wraps: bool) -> str:
    return example.wrap.format(model="net") if wraps else "net"


def two_files(example: Example, wraps: bool) -> dict[str, str]:
    """The model is passed to a function of another file."""
    body = f"    wrapped = {made(example, wraps)}\n    use({arguments(example, 'wrapped')})\n"
    return {
        "program/main.py": main_file(example, "from program.steps import use\n", body, wraps),
        USER: example.used + "\n" + example.use("thing", "thing"),
    }


def three_files(example: Example, wraps: bool) -> dict[str, str]:
    """A file that only passes it on is between the two."""
    body = f"    wrapped = {made(example, wraps)}\n    between.hand_over({arguments(example, 'wrapped')})\n"
    middle = "from . import steps\n\ndef hand_over({0}):\n    return steps.use({0})\n"
    return {
        "program/main.py": main_file(example, "from program import between\n", body, wraps),
        "program/between.py": middle.format(arguments(example, "passed")),
        USER: example.used + "\n" + example.use("thing", "thing"),
    }


def attribute(example: Example, wraps: bool) -> dict[str, str]:
    """A class of another file keeps it as ``self.net``."""
    body = f"    wrapped = {made(example, wraps)}\n    Loop(wrapped).use({', '.join(example.given)})\n"
    keeps = "class Loop:\n    def __init__(self, net):\n        self.net = net\n\n"
    return {
        "program/main.py": main_file(example, "from program.steps import Loop\n", body, wraps),
        USER: f"{example.used}\n{keeps}" + example.use("self.net", "self", " " * 8),
    }


def inherited(example: Example, wraps: bool) -> dict[str, str]:
    """The base class, in a third file, keeps it."""
    body = f"    wrapped = {made(example, wraps)}\n    loop = Loop(wrapped)\n    loop.use({', '.join(example.given)})\n"
    base = "class Base:\n    def __init__(self, net):\n        self.net = net\n"
    derived = "class Loop(Base):\n    def __init__(self, net):\n        super().__init__(net)\n\n"
    return {
        "program/main.py": main_file(example, "from program.steps import Loop\n", body, wraps),
        "program/base.py": base,
        USER: f"{example.used}from program.base import Base\n\n{derived}" + example.use("self.net", "self", " " * 8),
    }


def listed(example: Example, wraps: bool) -> dict[str, str]:
    """It is an element of a list."""
    body = f"    nets = [{made(example, wraps)}]\n    use({arguments(example, 'nets')})\n"
    return {
        "program/main.py": main_file(example, "from program.steps import use\n", body, wraps),
        USER: example.used + "\n" + example.use("nets[0]", "nets"),
    }


def keyed(example: Example, wraps: bool) -> dict[str, str]:
    """It is in a dictionary."""
    body = f"    nets = {{'net': {made(example, wraps)}}}\n    use({arguments(example, 'nets')})\n"
    return {
        "program/main.py": main_file(example, "from program.steps import use\n", body, wraps),
        USER: example.used + "\n" + example.use("nets['net']", "nets"),
    }


def handed_on(example: Example, wraps: bool) -> dict[str, str]:
    """It is given to a function that a third file is given and calls."""
    given = arguments(example, "wrapped")
    body = f"    wrapped = {made(example, wraps)}\n    between.hand_over({given}, steps.use)\n"
    middle = f"def hand_over({arguments(example, 'passed')}, work):\n    return work({arguments(example, 'passed')})\n"
    return {
        "program/main.py": main_file(example, "from program import between, steps\n", body, wraps),
        "program/between.py": middle,
        USER: example.used + "\n" + example.use("thing", "thing"),
    }


def dataclass_field(example: Example, wraps: bool) -> dict[str, str]:
    """It is a field of a dataclass that a third file defines."""
    body = f"    job = Job(net={made(example, wraps)}, epochs=3)\n    use({arguments(example, 'job')})\n"
    imports = "from program.job import Job\nfrom program.steps import use\n"
    job = "from dataclasses import dataclass\n\n@dataclass\nclass Job:\n    net: object\n    epochs: int\n"
    return {
        "program/main.py": main_file(example, imports, body, wraps),
        "program/job.py": job,
        USER: example.used + "\n" + example.use("job.net", "job"),
    }


def factory(example: Example, wraps: bool) -> dict[str, str]:
    """A function of a third file makes it."""
    given = arguments(example, "net")
    body = f"    made = build({given})\n    use({arguments(example, 'made')})\n"
    build = f"{example.imports}\n\ndef build({given}):\n    return {made(example, wraps)}\n"
    return {
        "program/main.py": main_file(example, "from .build import build\nfrom .steps import use\n", body, wraps),
        "program/build.py": build,
        USER: example.used + "\n" + example.use("thing", "thing"),
    }


def called_object(example: Example, wraps: bool) -> dict[str, str]:
    """An object makes it when it is called, of a class of a third file."""
    given = arguments(example, "net")
    body = f"    maker = Maker()\n    made = maker({given})\n    use({arguments(example, 'made')})\n"
    build = (
        f"{example.imports}\n\nclass Maker:\n    def __call__(self, {given}):\n        return {made(example, wraps)}\n"
    )
    return {
        "program/main.py": main_file(example, "from .build import Maker\nfrom .steps import use\n", body, wraps),
        "program/build.py": build,
        USER: example.used + "\n" + example.use("thing", "thing"),
    }


def called_factory(example: Example, wraps: bool) -> dict[str, str]:
    """The file that uses it calls the function of another file that makes it."""
    build = f"{example.imports}\n\ndef build({arguments(example, 'net')}):\n    return {made(example, wraps)}\n"
    head = f"{example.used}from program import build\n\n"
    use = example.use("thing", "net")
    first, _, rest = use.partition("\n")
    return {
        "program/build.py": build if wraps else build + f"\n\ndef other(net):\n    return {made(example, True)}\n",
        USER: f"{head}{first}\n    thing = build.build({arguments(example, 'net')})\n{rest}",
    }


VARIANTS: tuple[Variant, ...] = (
    two_files,
    three_files,
    attribute,
    inherited,
    listed,
    keyed,
    handed_on,
    dataclass_field,
    factory,
    called_object,
    called_factory,
)
