"""The test of a module that an FSDP1 policy comes down to, where it counts no parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.construction._plan.local_functions import DEFAULT
from fsdp_rules.construction._plan.unit_arguments import only_tests
from fsdp_rules.file.expressions import bind, calls_plainly, elements, is_partial
from fsdp_rules.file.file import File
from fsdp_rules.file.own_names import BY_SIZE, own_name
from fsdp_rules.file.tree import Code, dotted
from fsdp_rules.verdict.diagnosis import Build

#: For each policy that is a plain test on the module: the argument that holds the test.
BY_CLASS = {
    "transformer_auto_wrap_policy": "transformer_layer_cls",
    "_module_wrap_policy": "module_classes",
    "ModuleWrapPolicy": "module_classes",
}

#: Policies that are objects, with the arguments that they are made of.
OWN = {"ModuleWrapPolicy": ("module_classes",), "CustomPolicy": ("lambda_fn",)}

#: Functions that are policies as they are. The second selects all that is called, which a list of modules never is.
BARE = ("size_based_auto_wrap_policy", "always_wrap_policy")

#: The tests that a function of the program makes: one that has a name, and one that is written where it is used.
CALLS = ("{n0}({module})", "({n0})({module})")
#: A test that runs no function of the program.
IS_OF_CLASS = re.compile(r"isinstance\([^()]*(\([^()]*\))?\)")


@dataclass(frozen=True)
class PolicyTest:
    """A test of ``{module}``, with ``{n0}``, ``{n1}`` ... for the ``nodes`` that it names.

    ``by_size``: no test, but the list of units that a function of :mod:`.local_functions` makes of the root.
    """

    template: str
    nodes: tuple[cst.BaseExpression, ...]
    by_size: bool = False

    def text(self, module: str, code: Code) -> str:
        """The test of ``module``."""
        return self.template.format(module=module, **{f"n{i}": code(node) for i, node in enumerate(self.nodes)})


def computed(nodes: Iterable[cst.BaseExpression]) -> dict[cst.CSTNode, str]:
    """The nodes that FSDP1 computes once, each with a name: sharding gives modules other classes, and types change."""
    found = [
        node
        for node in nodes
        if not isinstance(node, cst.Lambda) and "__class__" in (dotted(node) or "__class__").split(".")
    ]
    return {node: f"unit_classes{'' if number == 1 else f'_{number}'}" for number, node in enumerate(found, start=1)}


def of_others(test: str, unit: str, root: str) -> str:
    """``test`` for all modules ``unit`` but ``root``, about which FSDP1 asks no function."""
    if IS_OF_CLASS.fullmatch(test):
        return f"{test} and {unit} is not {root}"
    return f"{unit} is not {root} and {test}"


def policy_call(policy: cst.BaseExpression, file: File) -> tuple[str, dict[str, cst.BaseExpression]] | None:
    """FSDP1's name of a policy and the arguments that it is bound to; None for another expression."""
    if not isinstance(policy, cst.Call):
        return None
    if is_partial(policy, file):
        if not policy.args or policy.args[0].star:
            return None
        name = file.fsdp1(policy.args[0].value)
        arguments = bind(policy.with_changes(args=policy.args[1:]), ())
    else:
        name = file.fsdp1(policy.func)
        arguments = bind(policy, OWN[name]) if name in OWN else None
    return (name, arguments) if name is not None and arguments is not None else None


def policy_test(policy: cst.BaseExpression, file: File) -> PolicyTest | None:
    """The test that ``policy`` makes, None where it is not a plain test of a module."""
    policy = file.value(policy)
    called = policy_call(policy, file)
    if called is None and file.fsdp1(policy) in BARE:
        called = (file.fsdp1(policy) or "", {})
    if called is None:
        return None
    name, arguments = called
    if name in BY_CLASS and set(arguments) == {BY_CLASS[name]}:
        classes = arguments[BY_CLASS[name]]
        listed = elements(classes)
        if not listed:
            return PolicyTest("isinstance({module}, tuple({n0}))", (classes,))
        names = ", ".join(f"{{n{position}}}" for position in range(len(listed)))
        return PolicyTest(f"isinstance({{module}}, {names if len(listed) == 1 else f'({names})'})", tuple(listed))
    if tests_a_module(name, arguments, file):
        function = arguments["lambda_fn"]
        plain = isinstance(function, cst.Name)
        return PolicyTest(CALLS[0] if plain else CALLS[1], (function,))
    if name == "size_based_auto_wrap_policy" and set(arguments) <= {"min_num_params"}:
        least = arguments.get("min_num_params")
        text = f"{own_name(BY_SIZE, file)}({{module}}, {'{n0}' if least is not None else DEFAULT})[0]"
        return PolicyTest(text, (least,) if least is not None else (), by_size=True)
    if name == "always_wrap_policy":
        lists, dicts = (file.ref(f"torch.nn.{one}", everywhere=True) for one in ("ModuleList", "ModuleDict"))
        return PolicyTest(f"not isinstance({{module}}, ({lists}, {dicts}))", ())
    if name == "_or_policy" and set(arguments) == {"policies"}:
        return _either(elements(file.value(arguments["policies"])) or [], file)
    return None


def tests_a_module(name: str, arguments: dict[str, cst.BaseExpression], file: File) -> bool:
    """Whether the policy ``name`` is a function that answers with True or False."""
    if set(arguments) != {"lambda_fn"}:
        return False
    return name == "lambda_auto_wrap_policy" or (name == "CustomPolicy" and only_tests(arguments["lambda_fn"], file))


def parts(policy: cst.BaseExpression, file: File) -> list[cst.BaseExpression]:
    """The policies that an ``_or_policy`` combines, and the name of their list."""
    called = policy_call(policy, file)
    if called is None or "policies" not in called[1]:
        return []
    listed = called[1]["policies"]
    return [listed, *(elements(file.value(listed)) or [])]


def _either(policies: list[cst.BaseExpression], file: File) -> PolicyTest | None:
    template: list[str] = []
    nodes: list[cst.BaseExpression] = []
    for policy in policies:
        test = policy_test(policy, file)
        if test is None or test.by_size:
            return None
        shifted = {f"n{i}": f"{{n{i + len(nodes)}}}" for i in range(len(test.nodes))}
        template.append(test.template.format(module="{module}", **shifted))
        nodes += test.nodes
    return PolicyTest(" or ".join(template), tuple(nodes)) if nodes else None


def is_below(function: cst.BaseExpression) -> bool:
    """Whether a lambda picks only what a part of the model lists (``m in model.blocks``), so never the model."""
    if not isinstance(function, cst.Lambda) or not isinstance(function.body, cst.Comparison):
        return False
    comparison = function.body
    listed = comparison.comparisons[0].comparator
    while calls_plainly(listed, ("list", "set", "tuple"), 1):
        listed = cst.ensure_type(listed, cst.Call).args[0].value
    return (
        len(comparison.comparisons) == 1
        and isinstance(comparison.comparisons[0].operator, cst.In)
        and isinstance(listed, cst.Attribute)
    )


def as_function(test: PolicyTest | None, model: cst.BaseExpression | None, *, bare: bool) -> Build:
    """A function of a module that makes the ``test`` in ``model``; no test selects nothing.

    Where there is no ``model`` yet, a function of one that lists its units, children first.
    """

    def build(code: Code) -> str:
        if model is None:
            text = f"lambda model: {_listed(test, code)}"
            return text if bare else f"({text})"
        if test is not None and test.by_size:
            return f"{test.text(code(model), code)}.__contains__"
        if test is not None and test.template in CALLS:
            text = code(test.nodes[0])
            return text if "\n" not in text and (bare or test.template == CALLS[0]) else f"({text})"
        named = computed(test.nodes if test is not None else ())
        given = "".join(f", {name}={code(node)}" for node, name in named.items())
        said = "False" if test is None else test.text("module", lambda node: named.get(node) or code(node))
        text = f"lambda module{given}: {said}"
        return text if bare else f"({text})"

    return build


def _listed(test: PolicyTest | None, code: Code) -> str:
    if test is None:
        return "[]"
    if test.by_size:
        return test.text("model", code)
    return f"[module for module in reversed(list(model.modules())) if {test.text('module', code)}]"


def is_assigned(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is all that a statement assigns, or returns, or an entry of a dictionary."""
    return isinstance(file.parent(node), cst.Assign | cst.AnnAssign | cst.Return | cst.DictElement)
