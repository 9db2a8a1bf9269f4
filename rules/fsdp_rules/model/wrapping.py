"""Where in a function a model becomes a wrapped one, and which names stand for its parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import calls_plainly, is_partial
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.once import once
from fsdp_rules.fsdp1.names import FSDP

#: Calls that give the elements of their arguments, one by one.
PASSING = frozenset({"dict", "enumerate", "filter", "iter", "list", "reversed", "sorted", "tuple", "zip"})

#: What shards the model that it is given, as rewritten code does.
SHARDING = ("torch.distributed.fsdp.fully_shard", "fsdp_compat.shard", "fsdp_compat.wrap")


def wrapping_call(node: cst.CSTNode, file: File) -> cst.Call | None:
    """The ``FSDP(...)`` or ``wrap(...)`` call that ``node`` is, or that one arm of a conditional expression is."""
    if isinstance(node, cst.IfExp):
        return wrapping_call(node.body, file) or wrapping_call(node.orelse, file)
    if isinstance(node, cst.NamedExpr):
        return wrapping_call(node.value, file)
    if isinstance(node, cst.Call) and file.fsdp1(node.func) in (FSDP, "wrap"):
        return node
    return None


def wrapped_module(call: cst.Call) -> cst.BaseExpression | None:
    """The model that an ``FSDP(...)`` or ``wrap(...)`` call is given."""
    for argument in call.args:
        if argument.star == "" and (argument.keyword is None or argument.keyword.value == "module"):
            return argument.value
    return None


def is_factory(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is a ``functools.partial(FSDP, ...)``."""
    return (
        isinstance(node, cst.Call)
        and is_partial(node, file)
        and bool(node.args)
        and file.fsdp1(node.args[0].value) == FSDP
    )


def _is_sharding_partial(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is what a rewrite makes of a ``functools.partial(FSDP, ...)``."""
    if not isinstance(node, cst.Call) or not is_partial(node, file) or not node.args:
        return False
    return file.resolved(node.args[0].value) in SHARDING


def may_wrap(value: cst.BaseExpression, file: File) -> bool:
    """Whether ``value`` may wrap what it is given: FSDP1 itself, a function of the project, or a partial of these."""
    if wrapping_call(value, file) is not None:
        return True
    if not isinstance(value, cst.Call):
        return False
    made = file.objects.origin(value.func)
    called = made.args[0].value if isinstance(made, cst.Call) and is_partial(made, file) and made.args else value.func
    name = dotted(called)
    return file.fsdp1(called) == FSDP or (
        name is not None and file.project.may_return_wrapped(file.path, name.rpartition(".")[2])
    )


def wrapping_statements(text: str, scope: str, file: File) -> Iterator[cst.Assign]:
    """The assignments in ``scope`` that give the dotted name ``text`` what may be a wrapped model, in order."""
    for node in assignments_of(text, file):
        if file.scope(node) == scope and may_wrap(node.value, file):
            yield node


def sharding_statements(text: str, scope: str, file: File) -> list[cst.CSTNode]:
    """The statements in ``scope`` that wrap or shard the model ``text``, or give it what they make, in order."""
    return _by_sharded(file.module, file).get((scope, text), [])


def is_sharded_by_fsdp2(text: str, file: File) -> bool:
    """Whether a call of ``fully_shard``, or of the helper, is given the model that the file calls ``text``."""
    calls = (call for call in file.nodes(cst.Call) if file.resolved(call.func) in SHARDING)
    return any((module := wrapped_module(call)) is not None and file.code(module) == text for call in calls)


@once
def _by_sharded(module: cst.Module, file: File) -> dict[tuple[str, str], list[cst.CSTNode]]:
    found: dict[tuple[str, str], list[cst.CSTNode]] = defaultdict(list)
    calls = file.inside(module, cst.Call)
    partials = any(_is_sharding_partial(call, file) for call in calls)
    sharding = [call for call in calls if _shards(call, file)]
    models = {(file.scope(call), file.code(one)) for call in sharding if (one := wrapped_module(call)) is not None}
    makers = {
        file.scope(node).rpartition(".")[2]
        for node in file.nodes(cst.Return)
        if node.value in sharding or (node.value is not None and (file.scope(node), file.code(node.value)) in models)
    }
    for call in calls:
        # A first run may leave no wrap in such a function, where it was one by which others were known.
        shards = _shards(call, file) or (isinstance(call.func, cst.Name) and call.func.value in makers)
        if not shards and not (partials and _is_sharding_partial(file.objects.origin(call.func), file)):
            continue
        statement = file.statement(call)
        names = [target.target for target in statement.targets] if isinstance(statement, cst.Assign) else []
        given = wrapped_module(call)
        units = _run_over(given, file) if isinstance(given, cst.Name) else []
        for text in {dotted(node) for node in (*names, *units, given) if node is not None} - {None}:
            found[file.scope(call), text or ""].append(statement)
    return dict(found)


def _shards(call: cst.Call, file: File) -> bool:
    return file.resolved(call.func) in SHARDING or wrapping_call(call, file) is not None


def _run_over(unit: cst.Name, file: File) -> list[cst.BaseExpression]:
    """The models of which a loop gives ``unit``: those in its list, and what ``unit`` is compared with by ``is``.

    A rewritten wrap shards units so, and the model itself last.
    """
    loops = (entry for entry in file.ancestors(unit) if isinstance(entry, cst.For) and binds(entry.target, unit.value))
    loop = next(loops, None)
    if loop is None:
        return []
    lists = (element for one in file.inside(loop.iter, cst.List) for element in one.elements)
    found = [element.value for element in lists if isinstance(element, cst.Element)]
    for test in file.inside(loop.body, cst.Comparison):
        last = test.comparisons[0]
        if binds(test.left, unit.value) and isinstance(last.operator, cst.Is):
            found.append(last.comparator)
    return found


def assignments(file: File) -> list[cst.Assign]:
    """Every assignment of the file, in order."""
    return file.nodes(cst.Assign)


def assignments_of(text: str, file: File) -> list[cst.Assign]:
    """The assignments of the file that give the dotted name ``text`` a value, in order."""
    return _by_target(file.module, file).get(text, [])


@once
def _by_target(module: cst.Module, file: File) -> dict[str, list[cst.Assign]]:
    found: dict[str, list[cst.Assign]] = defaultdict(list)
    for node in file.inside(module, cst.Assign):
        for text in {dotted(target.target) for target in node.targets} - {None}:
            found[text or ""].append(node)
    return dict(found)


def model_of_parameter(node: cst.CSTNode, file: File) -> cst.BaseExpression | None:
    """The model whose parameter ``node`` is: a name that runs over them, or one of them by itself; else None.

    Loops, comprehensions, lists, ``next(...)``, an element and ``get_parameter`` are followed.
    """
    if not isinstance(node, cst.Name):
        return _model_of_one(node, file)
    for ancestor in file.ancestors(node):
        if isinstance(ancestor, cst.For) and binds(ancestor.target, node.value):
            return model_of_parameters(ancestor.iter, file)
        for clause in _clauses(ancestor):
            if binds(clause.target, node.value):
                return model_of_parameters(clause.iter, file)
        if isinstance(ancestor, cst.FunctionDef | cst.Lambda):
            break
    return _model_of_one(file.objects.origin(node), file)


def _model_of_one(node: cst.CSTNode, file: File) -> cst.BaseExpression | None:
    """The model whose parameter ``next(...)``, an element, ``get_parameter`` or an attribute of a module gives."""
    if isinstance(node, cst.Subscript):
        return model_of_parameters(node.value, file)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.value if node.func.attr.value == "get_parameter" else None
    if isinstance(node, cst.Call) and calls_plainly(node, ("next",), 1):
        return model_of_parameters(node.args[0].value, file)
    return None


def model_of_parameters(node: cst.BaseExpression, file: File, depth: int = 0) -> cst.BaseExpression | None:
    """The model whose parameters the expression ``node`` gives (``model.named_parameters()`` and what passes it on)."""
    if depth > 6:
        return None
    sources: list[cst.BaseExpression] = []
    if isinstance(node, cst.Call):
        if isinstance(node.func, cst.Attribute):
            if node.func.attr.value in ("parameters", "named_parameters"):
                return node.func.value
            if node.func.attr.value in ("items", "values"):
                sources = [node.func.value]
        elif isinstance(node.func, cst.Name) and node.func.value in PASSING:
            sources = [argument.value for argument in node.args]
    elif isinstance(node, cst.ListComp | cst.GeneratorExp | cst.SetComp | cst.DictComp):
        sources = [node.for_in.iter]
    elif isinstance(node, cst.Attribute) and node.attr.value == "_parameters":
        return model_of_module(node.value, file)
    elif isinstance(node, cst.Name):
        sources = _values(node, file)
    for source in sources:
        found = model_of_parameters(source, file, depth + 1)
        if found is not None:
            return found
    return None


def is_own_name(node: cst.CSTNode, file: File) -> bool:
    """Whether the name ``node`` runs over a module's own parameters, by the names that the module itself has them."""
    for loop in loops_around(node, file) if isinstance(node, cst.Name) else ():
        if isinstance(node, cst.Name) and binds(loop.target, node.value):
            text = file.code(loop.iter)
            return "._parameters" in text or "recurse=False" in text
    return False


def model_of_module(node: cst.BaseExpression, file: File) -> cst.BaseExpression:
    """The model over whose modules a loop around ``node`` runs, or ``node`` itself."""
    for loop in loops_around(node, file) if isinstance(node, cst.Name) else ():
        if isinstance(node, cst.Name) and binds(loop.target, node.value):
            sources = [loop.iter, *(_values(loop.iter, file) if isinstance(loop.iter, cst.Name) else [])]
            for source in sources:
                func = source.func if isinstance(source, cst.Call) else None
                if isinstance(func, cst.Attribute) and func.attr.value in ("modules", "named_modules", "children"):
                    return func.value
    return node


def loops_around(node: cst.CSTNode, file: File) -> Iterator[cst.For | cst.CompFor]:
    """The loops around ``node``, those of comprehensions among them."""
    for ancestor in file.ancestors(node):
        if type(ancestor) is cst.For or type(ancestor) is cst.CompFor:
            yield ancestor
        yield from _clauses(ancestor)


def is_comprehended(node: cst.CSTNode, name: str, file: File) -> bool:
    """Whether ``name`` is at ``node`` the variable of a comprehension, and not the function's of the same name."""
    around = list(file.ancestors(node))
    for comprehension in around:
        clauses = list(_clauses(comprehension))
        # The first clause takes its values from outside.
        is_inside = bool(clauses) and clauses[0].iter is not node and clauses[0].iter not in around
        if is_inside and any(binds(clause.target, name) for clause in clauses):
            return True
    return False


def _clauses(node: cst.CSTNode) -> Iterator[cst.CompFor]:
    """The loops of ``node``, where it is a comprehension."""
    clause = getattr(node, "for_in", None)
    while type(clause) is cst.CompFor:
        yield clause
        clause = clause.inner_for_in


def _values(name: cst.Name, file: File) -> list[cst.BaseExpression]:
    if is_comprehended(name, name.value, file):
        return []
    found = file.bindings.found.get((file.scope(name), name.value), [])
    return [binding.value for binding in found if binding.value is not None]


def binds(target: cst.CSTNode, name: str) -> bool:
    """Whether the ``target`` of an assignment or a loop gives the plain ``name`` a value."""
    if isinstance(target, cst.Tuple | cst.List):
        return any(binds(element.value, name) for element in target.elements)
    return isinstance(target, cst.Name) and target.value == name
