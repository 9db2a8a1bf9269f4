"""``rewrite --layout``: other units than FSDP1's train the same numbers, and cost what their finding says."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding
from tests.forked import PYTHON
from tests.parity.compare import differ
from tests.parity.counted import Counted, train_counted
from tests.parity.harness import Verdict, check
from tests.parity.programs import Program, programs
from tests.parity.trees import Rewritten, rewrite_tree, tree
from tests.pool import Pool
from tests.sampling import every
from tests.verify.test_verify_command import TORCHRUN

EXPERT = Settings(layout="expert")
STEPS = 3
#: A language model: what its class has, what its forward does after its blocks, and how it is wrapped.
TRAIN = """
import sys
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from common import CPU, Block, finish, note, start

class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        {more}
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        {ties}

    def forward(self, tokens):
        x = self.embedding(tokens){added}
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

def main():
    rank = start()
    model = FSDP(Language(), auto_wrap_policy=ModuleWrapPolicy({{Block}}), device_id=CPU, {options})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(10 + rank)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.randint(11, (2, 5))).float().square().mean()
        loss.backward()
        optimizer.step()
        note(loss)
        {between}
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
EVALUATED = """with torch.no_grad():
            note(model(torch.randint(11, (2, 5))).float().mean())
        note(sum(p.detach().float().sum() for p in model.parameters()) * 0)"""
LOW = "mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), use_orig_params=True"
#: What differs from the plain program, and what the finding says of units.
PROGRAMS: dict[str, tuple[dict[str, str], str]] = {
    "plain": ({}, ", [embedding] and [norm, head] are units: as many gathers and 1 scatter more a step"),
    "another embedding": (
        {"more": "self.place = nn.Embedding(11, 6)", "added": " + self.place(torch.arange(tokens.shape[1]))"},
        ", [embedding, place] and [norm, head] are units: as many gathers and 1 scatter more a step",
    ),
    "a parameter of the root": (
        {"more": "self.scale = nn.Parameter(torch.ones(6))", "added": " * self.scale"},
        ", [embedding] and [norm, head] are units: 1 gather more and 2 scatters more a step",
    ),
    "tied": (
        {"ties": "self.head.weight = self.embedding.weight"},
        ", [norm] are units: as many gathers and 1 scatter more a step",
    ),
    "low precision": (
        {"options": LOW},
        ", [embedding] and [norm, head] are units: as many gathers and 1 scatter more a step",
    ),
    "forward prefetch": ({"options": "forward_prefetch=True"}, ": 1 gather fewer and as many scatters a step"),
}


def program(**changes: str) -> dict[str, str]:
    given = {"more": "", "ties": "", "added": "", "options": "use_orig_params=True", "between": ""} | changes
    return tree(train=TRAIN.format(**given))


def about_layout(done: Rewritten) -> Finding:
    (found,) = [
        one for one in done.findings if one.rule == "FSDP103" and re.search("unit is kept whole|whatever", one.message)
    ]
    return found


def a_step(counted: Counted) -> Counter[str]:
    return Counter({name: count // STEPS for name, count in counted.calls()[0].items() if count >= STEPS})


def number(text: str, what: str) -> int:
    """What the finding says of the gathers, or the scatters, of a step."""
    found = re.search(rf"(\d) {what}s? (more|fewer)", text)
    return 0 if found is None else int(found[1]) * (1 if found[2] == "more" else -1)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_experts_units_train_the_same_and_cost_what_is_said(pool: Pool, tmp_path: Path, name: str) -> None:
    changes, told = PROGRAMS[name]
    files = program(**changes)
    done = rewrite_tree(files, EXPERT)
    finding = about_layout(done)
    assert not done.manual()
    assert finding.message == f"the last unit is kept whole after forward{told}, same sums"
    before = train_counted(pool, files, tmp_path / "before")
    after = train_counted(pool, done.files, tmp_path / "after")
    assert list(differ("losses", before.saved, after.saved)) == []
    old, new = a_step(before), a_step(after)
    assert new["all_gather"] - old["all_gather"] == number(finding.message, "gather")
    assert new["reduce_scatter"] - old["reduce_scatter"] == number(finding.message, "scatter")


def test_an_evaluation_between_steps_changes_nothing(pool: Pool, tmp_path: Path) -> None:
    files = program(between=EVALUATED)
    done = rewrite_tree(files, EXPERT)
    before = train_counted(pool, files, tmp_path / "before")
    after = train_counted(pool, done.files, tmp_path / "after")
    assert list(differ("losses", before.saved, after.saved)) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("sharding_strategy=ShardingStrategy.SHARD_GRAD_OP", "SHARD_GRAD_OP gathers each unit once"),
        ("sharding_strategy=ShardingStrategy.NO_SHARD", "the parameters are not sharded"),
        ("ignored_states=[p for p in []]", "fsdp_compat.shard makes them at run time"),
        ("**dict(sharding_strategy=eval(sys.argv[2]))", "fsdp_compat.shard makes them at run time"),
    ],
)
def test_where_no_other_units_are_known_that_is_said(options: str, reason: str) -> None:
    files = program(options=options)
    done = rewrite_tree(files, EXPERT)
    finding = about_layout(done)
    assert finding.message == f"the units are FSDP1's whatever --layout says: {reason}"
    assert done.files == rewrite_tree(files).files


def sampled() -> list[Program]:
    """Programs of the matrix of which FSDP1 gathers units twice that a policy picks by class."""
    wanted = {"policy": ("transformer", "module"), "strategy": ("absent", "FULL_SHARD", "HYBRID_SHARD")}
    wanted |= {"init": ("eager",), "spelling": ("literal",)}
    return [one for one in programs() if one.name[0] == "n" and all(one.spec[key] in wanted[key] for key in wanted)]


@pytest.mark.parametrize("one", every(6, sampled()), ids=lambda one: one.name)
def test_programs_of_the_matrix_train_the_same_in_an_experts_units(pool: Pool, tmp_path: Path, one: Program) -> None:
    outcome = check(pool, one, tmp_path, EXPERT)
    assert outcome.verdict in (Verdict.EQUAL, Verdict.CLOSE), outcome


@pytest.mark.parametrize("layout", ["last block whole, ends apart", "blocks in parts", "two ahead"])
def test_a_layout_of_tune_is_written_and_costs_what_it_says(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    files = program()
    for name, text in files.items():
        (project / name).write_text(text)
    assert main(["tune", "--show", layout, "--format", "json", "--", PYTHON, *TORCHRUN[1:], "train.py", "-"]) == 1
    plan = tmp_path / "plan.json"
    plan.write_text(capsys.readouterr().out)
    rows = {row["name"]: row for row in json.loads(plan.read_text())["layouts"]}
    wanted = rows[layout]
    assert main(["rewrite", "--layout", str(plan), "--allow-dirty", "."]) == 0
    costs = [f"{costs['gathers']} gathers and {costs['scatters']} scatters" for costs in (wanted, rows["now"])]
    assert f"{layout}: {costs[0]} a step in place of {costs[1]}" in " ".join(capsys.readouterr().out.split())
    after = {name: (project / name).read_text() for name in files}
    old, new = train_counted(pool, files, tmp_path / "before"), train_counted(pool, after, tmp_path / "after")
    assert list(differ("losses", old.saved, new.saved)) == []
    assert a_step(new) == {"all_gather": wanted["gathers"], "reduce_scatter": wanted["scatters"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ('{"format": "fsdp-migrate rewrite"}', "is not what fsdp-migrate tune --format json prints"),
        ('{"format": "fsdp-migrate tune", "planned": null}', "has no layout on the program's own mesh"),
        ('{"format": "fsdp-migrate tune", "planned": {"name": 1}}', "has a plan of another form"),
    ],
)
def test_a_file_without_a_plan_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    assert main(["rewrite", "--layout", str(plan), str(tmp_path)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
