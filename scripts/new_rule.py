"""Writes the skeleton of a rule: its file, its test, its fixture, and its row in the list of FSDP1's names.

    python scripts/new_rule.py NAME --room loop

``NAME`` is a method of FSDP1's wrapper as a rule is named, with hyphens. What is written runs as it stands: the rule
reports each call of the method on a sharded model. Exits 1 where a file of it is there already.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from fsdp_rules.engine.registry import all_rules
from fsdp_rules.fsdp1.api import entries

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "rules" / "fsdp_rules"
#: The first digit of the ids in each room.
ROOMS = {"construction": 1, "loop": 2, "state": 3, "beyond": 9}
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

RULE = '''"""Rule for the method ``{method}``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule


class {title}(Rule):
    """{method}().

    FSDP1's wrapper has this method and FSDP2's modules do not. Each call on a sharded model is listed.
    """

    id = "{id}"
    name = "{name}"
    visits = (cst.Call,)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def run(model):
    model = FSDP(model)
    return model.{method}()
"""
    after = """
from torch.distributed.fsdp import fully_shard

def run(model):
    fully_shard(model)
    # TODO(fsdp-migrate {id}): FSDP2 modules have no method {method}
    return model.{method}()
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Calls on a model that is sharded where they are."""
        if not isinstance(node.func, cst.Attribute):
            return
        if node.func.attr.value != "{method}" or sharded(node.func.value, file).certainty is Certainty.NO:
            return
        yield Diagnosis(node, Level.MANUAL, "FSDP2 modules have no method {method}", "remove the call")
'''
TEST = '''"""The method ``{method}``."""

from __future__ import annotations

from tests.rules.helpers import check_findings, check_noop

WRAPS = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def run(model, other):
    model = FSDP(model)
    {call}
"""


def test_a_method_of_another_object_is_left_alone() -> None:
    check_noop("def run(model):\\n    return model.{method}()\\n")
    check_findings(WRAPS.format(call="other.{method}()"), {{("FSDP101", "safe"), ("FSDP110", "safe")}})


def test_a_call_above_the_wrap_is_left_alone() -> None:
    source = WRAPS.replace("    model = FSDP(model)", "    model.{method}()\\n    model = FSDP(model)")
    check_findings(source.format(call="return model"), {{("FSDP101", "safe"), ("FSDP110", "safe")}})
'''
PROGRAM = """import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fixtures.rewrite.common import Net, train


class Named(Net):
    def {method}(self):
        return self


def run():
    torch.manual_seed(0)
    model = FSDP(Named(), device_id=torch.device("cpu"), use_orig_params=True)
    model.{method}()
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))
"""

MESH = "from torch.distributed.device_mesh import init_device_mesh\n"
WRAP = '    model = FSDP(Named(), device_id=torch.device("cpu"), use_orig_params=True)\n'


def main(arguments: list[str]) -> int:
    """Write the files and name them; the exit code."""
    parser = argparse.ArgumentParser(description="Write the skeleton of a rule.")
    parser.add_argument("name", help="the rule's name: a method of FSDP1's wrapper, with hyphens")
    parser.add_argument("--room", choices=ROOMS, default="loop", help="the folder that the rule belongs to")
    options = parser.parse_args(arguments)
    if not NAME.fullmatch(options.name):
        parser.error(f"{options.name}: a rule's name has lower-case words and hyphens")
    written = _files(options.name, options.room)
    there = [path for path in written if path.exists()]
    if there or any(rule.name == options.name for rule in all_rules()):
        print(f"there is a rule {options.name} already: {', '.join(map(str, there))}", file=sys.stderr)
        return 1
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        print(f"written {path.relative_to(ROOT)}")
    _list(options.name, _next_id(options.room))
    return 0


def _next_id(room: str) -> str:
    digit = ROOMS[room]
    return f"FSDP{max(int(rule.id[4:]) for rule in all_rules() if rule.id[4] == str(digit)) + 1}"


def _files(name: str, room: str) -> dict[Path, str]:
    """The text of each file of the skeleton, by its path."""
    module, rule_id = name.replace("-", "_"), _next_id(room)
    title = "".join(map(str.title, name.split("-")))
    words = {"method": module, "name": name, "id": rule_id, "title": title, "call": "{call}"}
    before = PROGRAM.format(**words)
    fixture = ROOT / "fixtures" / "rewrite" / f"{rule_id}-{name}"
    todo = f"    # TODO(fsdp-migrate {rule_id}): FSDP2 modules have no method {module}\n"
    return {
        RULES / room / f"{module}.py": RULE.format(**words),
        ROOT / "tests" / "rules" / room / f"test_{module}.py": TEST.format(**words),
        fixture / "before.py": before,
        fixture / "after.py": _sharded(before).replace(f"    model.{module}()\n", f"{todo}    model.{module}()\n"),
    }


def _sharded(program: str) -> str:
    """``program`` as the rewriter leaves it."""
    for old, new in (
        ("import FullyShardedDataParallel as FSDP", "import fully_shard"),
        (
            "from torch.distributed.fsdp",
            "from torch.distributed.device_mesh import init_device_mesh\nfrom torch.distributed.fsdp",
        ),
        (
            WRAP,
            "    model = Named()\n"
            '    fully_shard(model, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))\n',
        ),
    ):
        program = program.replace(old, new)
    return program


def _list(name: str, rule_id: str) -> None:
    """Name the rule in the list of FSDP1's names, where the list has the name."""
    method, path = name.replace("-", "_"), RULES / "fsdp1" / "api.toml"
    known = [entry for entry in entries() if entry.kind == "method" and entry.name == method]
    if not known:
        print(f"{method} is not a public method of torch's FSDP1: no row in {path.relative_to(ROOT)}")
        return
    row = re.compile(rf'^({method}\s*= .*\brule = )"\w*"', re.MULTILINE)
    path.write_text(row.sub(rf'\1"{rule_id}"', path.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
    print(f"named {rule_id} in {path.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
