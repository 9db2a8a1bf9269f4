"""FSDP207: names of a sharded model that are written to a file as they are, which FSDP1 put prefixes into."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings, rewrite_tree

HEAD = """
import json
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import always_wrap_policy

def save(net, path):
    model = FSDP(net, {arguments})
    inner = model.module
{body}
"""
WHOLE = "    with FSDP.summon_full_params(model, writeback=False):\n        "
FILLED = (
    "state = {{}}\n        for name, p in {of}.named_parameters():\n            state[name] = p.clone()\n        {save}"
)


def saved(
    body: str, arguments: str = "auto_wrap_policy=always_wrap_policy, use_orig_params=True", to: str = "native"
) -> list[str]:
    source = HEAD.format(arguments=arguments, body=body)
    return [
        f"{one.level.value} {'flat' if '_flat_param' in one.message else 'prefix'}"
        for one in findings(source, Settings(to=to))
        if one.rule == "FSDP207" and "saved here" in one.message
    ]


FORMS = [
    "torch.save({n: p.clone() for n, p in model.module.named_parameters()}, path)",
    "state = {n: p.clone() for n, p in inner.named_parameters()}\n        torch.save([state, 1], path)",
    "torch.save(dict(model.module.named_parameters()), path)",
    "json.dump([n for n, _ in inner.named_parameters()], open(path, 'w'))",
    FILLED.format(of="model.module", save="torch.save({'model': state}, path)"),
    FILLED.format(of="model.module", save="json.dump([sorted(state)], open(path, 'w'))"),
    "rows = []\n        for name, p in inner.named_parameters():\n            rows.append([name, p.numel()])\n"
    "        json.dump(rows, open(path, 'w'))",
]


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize("form", FORMS)
def test_names_of_the_module_while_parameters_are_gathered(form: str, to: str) -> None:
    assert saved(WHOLE + form, to=to) == ["manual prefix"]
    # One unit alone puts no prefix inside of its module.
    assert saved(WHOLE + form, "use_orig_params=True", to) == []
    # The wrapper takes all prefixes off.
    assert saved(WHOLE + form.replace("model.module", "model").replace("inner", "model"), to=to) == []


@pytest.mark.parametrize(
    ("body", "arguments", "expected"),
    [
        ("json.dump({n: p.numel() for n, p in model.named_parameters()}, path)", "use_orig_params=True", ["prefix"]),
        ("json.dump([n for n, _ in model.named_parameters()], path)", "sync_module_states=True", ["flat"]),
        ("json.dump([n for n, _ in net.named_parameters()], path)", "use_orig_params=True", []),
        ("json.dump([p.numel() for n, p in model.named_parameters()], path)", "use_orig_params=True", []),
        (
            "json.dump([n.replace('_fsdp_wrapped_module.', '') for n, _ in model.named_parameters()], path)",
            "use_orig_params=True",
            [],
        ),
        ("print([n for n, _ in model.named_parameters()])", "use_orig_params=True", []),
    ],
)
def test_names_while_parameters_are_sharded(body: str, arguments: str, expected: list[str]) -> None:
    assert saved(f"    {body}", arguments) == [f"manual {kind}" for kind in expected]


def test_names_that_are_read_from_a_dictionary_are_those_of_where_it_was_made() -> None:
    made = "state = {{n: p.clone() for n, p in {of}.named_parameters()}}\n"
    dumped = "    json.dump({'sums': {n: p.sum().item() for n, p in state.items()}}, path)"
    assert saved(WHOLE + made.format(of="model") + dumped) == []
    assert saved(WHOLE + made.format(of="model.module") + dumped) == ["manual prefix"]


AVERAGE = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Average:
    def __init__(self, wrapped):
        with FSDP.summon_full_params(wrapped):
            self.shadow = {n: p.clone() for n, p in {of}.named_parameters()}

    def state_dict(self):
        return self.shadow
"""
SAVING = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import always_wrap_policy
from average import Average

def run(net, path):
    average = Average(FSDP(net, {arguments}))
    torch.save({"average": average.state_dict()}, path)
"""


@pytest.mark.parametrize(
    ("of", "arguments", "said"),
    [
        ("wrapped.module", "auto_wrap_policy=always_wrap_policy, use_orig_params=True", ["manual"]),
        ("wrapped", "auto_wrap_policy=always_wrap_policy, use_orig_params=True", []),
        ("wrapped.module", "use_orig_params=True", []),
    ],
)
def test_names_that_another_file_takes_of_the_module(of: str, arguments: str, said: list[str]) -> None:
    files = {"average.py": AVERAGE.replace("{of}", of), "run.py": SAVING.replace("{arguments}", arguments)}
    results = rewrite_tree({path: text.encode() for path, text in files.items()})
    every = [one for result in results.values() for one in getattr(result, "findings", ())]
    assert [one.level.value for one in every if one.rule == "FSDP207" and "saved here" in one.message] == said


WRITERS = [
    "import json\n\ndef keep(value, path):\n    with open(path, 'w') as file:\n        json.dump(value, file)\n",
    "import json\n\nclass Log:\n    def __init__(self):\n        self.rows = []\n\n    def add(self, row):\n"
    "        self.rows.append(row)\n\n    def close(self, path):\n        json.dump(self.rows, open(path, 'w'))\n\n"
    "def keep(value, path):\n    log = Log()\n    log.add({'model': value})\n    log.close(path)\n",
]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("value", "said"),
    [("{n: p.sum().item() for n, p in model.named_parameters()}", ["manual"]), ("[1 for _ in model.modules()]", [])],
)
def test_names_that_a_file_saves_which_knows_no_model(writer: str, value: str, said: list[str]) -> None:
    arguments = "auto_wrap_policy=always_wrap_policy, use_orig_params=True"
    source = "from files import keep\n" + HEAD.format(arguments=arguments, body=f"    keep({value}, path)")
    results = rewrite_tree({"run.py": source.encode(), "files.py": writer.encode()})
    found = getattr(results.get("files.py"), "findings", ())
    assert [one.level.value for one in found if one.rule == "FSDP207"] == said
