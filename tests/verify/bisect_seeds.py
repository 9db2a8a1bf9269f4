"""Wrong edits, seeded into rewrites, and the search for each: the runs are made on workers that remain."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fsdp_migrate.verify.bisect.culprits import Bisected, Trial, Watch, bisected
from fsdp_migrate.verify.bisect.forms import Edit, Forms
from fsdp_migrate.verify.comparison import verdict_of
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.runs import trees
from fsdp_migrate.verify.runs.launch import CannotRun
from fsdp_rules.verdict.finding import Finding
from tests.pool import ROOT, Pool, WorkerError
from tests.verify.defects import STEPS, recorded_beside_its_output
from tests.verify.towers import REQUIREMENTS, TOWERS

PROJECTS = ROOT / "fixtures" / "projects"


@dataclass(frozen=True)
class Seed:
    """In the form that the edit ``edit`` (path and rule) makes of its place, ``old`` is replaced by ``new``."""

    name: str
    project: str
    edit: tuple[str, str]
    old: str
    new: str
    options: tuple[str, ...] = ()
    resumed: bool = False


WRAP, SYNC, CLIP = ("train.py", "FSDP101"), ("train.py", "FSDP202"), ("train.py", "FSDP201")
WHOLE, STATE = ("train.py", "FSDP203"), ("train.py", "FSDP301")
BF16 = ("--dtype", "bf16", "--accum", "1")
_CLIPPED, _STATE = "model.parameters(), args.clip", "optim_state_dict=optim_state"
_REPLICATED = '(dist.get_world_size(), 1), mesh_dim_names=("copies", "shards")),\n'
_UNWRITTEN = "compat.summon_full_params(model, writeback=False)"
_OWN_STATE = "optim_state_dict=get_optimizer_state_dict(model, optimizer)"
SEEDS = (
    Seed("wrong reduce dtype", "minigpt", WRAP, "reduce_dtype=torch.float32", "reduce_dtype=torch.bfloat16", BF16),
    Seed("gradient sync on during accumulation", "minigpt", SYNC, "_sync(syncs", "_sync(True or syncs"),
    Seed("weights not written back", "towers", WHOLE, "compat.summon_full_params(model)", _UNWRITTEN),
    Seed("parameter dtype lost", "minigpt", WRAP, "param_dtype=DTYPES[args.dtype], ", "", BF16),
    Seed("buffers in another dtype", "minigpt", WRAP, "buffer.to(DTYPES[args.dtype])", "buffer.to(torch.bfloat16)"),
    Seed("a unit missed", "minigpt", WRAP, "module is not model:", "module is not model.blocks[1]:"),
    Seed("reshard forgotten", "minigpt", WRAP, '"reshard_after_forward": False', '"reshard_after_forward": True'),
    Seed("units return another dtype", "minigpt", WRAP, "cast_forward_inputs=False", "output_dtype=torch.half", BF16),
    Seed("gradient sync off", "minigpt", SYNC, "syncs_gradients = micro >= args.accum - 1", "syncs_gradients = False"),
    Seed("gradient sync of the wrong batch", "minigpt", SYNC, "micro >= args.accum - 1", "micro < args.accum - 1"),
    Seed("clip of one group", "minigpt", CLIP, _CLIPPED, _CLIPPED.replace("model.par", "model.blocks.par")),
    Seed("clip to another limit", "minigpt", CLIP, _CLIPPED, _CLIPPED.replace("args.clip", "0.05")),
    Seed("clip by another norm", "minigpt", CLIP, _CLIPPED, f"{_CLIPPED}, norm_type=1.0"),
    Seed("optimizer state not loaded", "minigpt", STATE, _STATE, _OWN_STATE, resumed=True),
    Seed("an ignored module lost", "towers", WRAP, ', "ignored_params": ignored_params', "",
         ("--param", "bfloat16", "--micro", "1")),
    Seed("a unit of one model missed", "towers", WRAP, "is not encoder and", "is not encoder.layers[1] and"),
    Seed("the other model replicated", "towers", WRAP, "(dist.get_world_size(),)),\n", _REPLICATED),
    Seed("gradient sync off in one model", "towers", SYNC, "_sync(micro >= args.micro - 1)", "_sync(False)"),
    Seed("clip of one parameter", "towers", CLIP, "head.parameters(), 100", "list(head.parameters())[:1], 100"),
    Seed("average of other values", "towers", WHOLE, "value.full_tensor()", "value.full_tensor().abs()"),
    Seed("state not put back", "towers", STATE, "dict(state), options", "get_model_state_dict(model), options"),
    Seed("clip of one group in another file", "two_models", ("optim.py", "FSDP201"), "model.parameters(), max_norm",
         "list(model.parameters())[1:], max_norm"),
    Seed("reshard of an inner model", "two_models", WRAP, "ward.trunk,\n        mesh",
         "ward.trunk, reshard_after_forward=False, mesh"),
    Seed("optimizer state of another step", "two_models", ("trainer.py", "FSDP301"), f"{_STATE},\n        op",
         f"{_OWN_STATE},\n        op", resumed=True),
)  # fmt: skip


class SeededForms:
    """``forms`` with the wrong form of ``seed`` in place of the native one."""

    def __init__(self, forms: Forms, seed: Seed) -> None:
        self._forms, self._seed = forms, seed
        self.edits = forms.edits
        path = seed.edit[0]
        self._files = cache(forms.files)
        native = self._files(frozenset())
        if seed.old not in native[path].decode():
            raise ValueError(f"{seed.name}: {seed.old!r} is not in the rewritten {path}")
        wrong = [edit for edit in forms.edits.values() if (edit.finding.path, edit.finding.rule) == seed.edit]
        if len(wrong) > 1:
            wrong = [edit for edit in wrong if seed.old not in self._files(frozenset({edit.name}))[path].decode()]
        if len(wrong) != 1:
            raise ValueError(f"{seed.name}: {len(wrong)} edits write {seed.old!r}")
        self.wrong: Edit = wrong[0]

    def files(self, other: frozenset[str]) -> Mapping[str, bytes]:
        files, path = self._files(other), self._seed.edit[0]
        if self.wrong.name in other:
            return files
        return {**files, path: files[path].replace(self._seed.old.encode(), self._seed.new.encode())}

    def findings(self, path: str) -> Sequence[tuple[int, Finding]]:
        return self._forms.findings(path)


class Seeded:
    """Searches for seeds; what does not depend on a seed is made once."""

    def __init__(self, pool: Pool, directory: Path) -> None:
        self._pool, self._directory = pool, directory
        self._runs = 0
        self.forms = cache(self._forms)
        self._before = cache(self._recorded)

    def searched(self, seed: Seed, watch: Watch) -> tuple[Bisected, Edit]:
        """What the search finds, and what it should."""
        forms = SeededForms(self.forms(seed.project), seed)

        before = self._before(seed.project, seed.options, seed.resumed)

        def run(files: Mapping[str, bytes]) -> Trial:
            tree = self._directory / f"tree-{self._runs}"
            self._copied(seed.project, tree)
            for path, data in files.items():
                (tree / path).write_bytes(data)
            try:
                after = self._run(tree, self._options(seed.project, seed.options, seed.resumed))
                return Trial(verdict_of(before, after))
            except (WorkerError, CannotRun) as error:
                return Trial(None, str(error), tree)

        return bisected(forms, run, watch), forms.wrong

    def _forms(self, project: str) -> Forms:
        return Forms(trees.asked(self._tree(project), "native"))

    def _tree(self, project: str) -> Path:
        tree = self._directory / project
        if not tree.exists():
            self._copied(project, tree)
        return tree

    def _copied(self, project: str, tree: Path) -> None:
        if project == "towers":
            tree.mkdir()
            (tree / "train.py").write_text(TOWERS, encoding="utf-8")
            (tree / "requirements.txt").write_text(REQUIREMENTS, encoding="utf-8")
        else:
            shutil.copytree(PROJECTS / project, tree, ignore=shutil.ignore_patterns("__pycache__"))

    def _recorded(self, project: str, options: tuple[str, ...], resumed: bool) -> Recording:
        return self._run(self._tree(project), self._options(project, options, resumed))

    def _run(self, tree: Path, options: tuple[str, ...]) -> Recording:
        self._runs += 1
        out = self._directory / f"out-{self._runs}"
        arguments = ("--out", str(out), *options)
        self._pool.run_script(tree / "train.py", 2, arguments, prelude=recorded_beside_its_output)
        return read(out / "recording")

    def _options(self, project: str, options: tuple[str, ...], resumed: bool) -> tuple[str, ...]:
        if not resumed:
            return (*options, "--steps", str(STEPS))
        half = self._directory / f"half-{project}"
        if not half.exists():
            self._pool.run_script(self._tree(project) / "train.py", 2, ("--out", str(half), "--steps", "2"))
        return (*options, "--steps", str(STEPS + 2), "--resume", str(half / "checkpoint.pt"))
