"""One-line changes to the migrated minigpt, each with what a comparison with FSDP1 must say about it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.verify.comparison import verdict_of
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.verdict import Verdict
from tests.pool import ROOT, Pool, WorkerError

PROJECT = ROOT / "fixtures" / "projects" / "minigpt"
STEPS = 3
_SHARD_ROOT = "fully_shard(model, mp_policy=mixed_precision, **fsdp_kwargs)"
_SHARD_UNIT = "fully_shard(module, mp_policy=unit_mp_policy, **fsdp_kwargs)"
_CLIP = "grad_norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip).full_tensor().item()"


@dataclass(frozen=True)
class Defect:
    """``old`` is replaced by ``new``. ``at``: question, step and name of the first difference; ``cause``: its name.

    ``options``: of the program, on both sides; ``resumed``: both go on from what FSDP1 saved.
    """

    name: str
    old: str
    new: str
    at: tuple[str, int, str]
    cause: str | None
    options: tuple[str, ...] = ()
    resumed: bool = False


BF16 = ("--dtype", "bf16")
WEIGHTS, UNITS, GRADS = "initial weights", "units, dtypes and meshes", "gradients"
DEFECTS = (
    Defect("missing unit", "module is not model:", "module is not model.blocks[1]:", (UNITS, -1, "blocks.1"),
           "missing-unit"),
    Defect("reshard_after_forward", _SHARD_UNIT, "fully_shard(module, mesh=mesh, mp_policy=unit_mp_policy)",
           (UNITS, -1, "blocks.0"), "other-reshard"),
    Defect("hybrid mesh", "(dist.get_world_size(),))", '(2, 1), mesh_dim_names=("r", "s"))', (UNITS, -1, ""),
           "other-mesh"),
    Defect("reduce_dtype", "reduce_dtype=torch.float32", "reduce_dtype=torch.bfloat16", (GRADS, 0, "tok.weight"),
           "reduce-dtype", BF16),
    Defect("param_dtype", "param_dtype=DTYPES[args.dtype], ", "", ("forward of modules", 0, "tok"), "param-dtype",
           BF16),
    Defect("buffer dtype", "buffer.to(DTYPES[args.dtype])", "buffer.to(torch.bfloat16)",
           ("forward of modules", 0, "blocks.0"), "buffer-dtype"),
    Defect("reduces every micro-batch", "_gradient_sync(syncs_gradients)", "_gradient_sync(True)",
           (GRADS, 0, "tok.weight"), "order-of-summation"),
    Defect("optimizer of another model", "make_optimizer(model, args.lr)", "make_optimizer(GPT(), args.lr)",
           ("optimizer settings", 0, "tok.weight"), "stale-optimizer"),
    Defect("optimizer lacks the biases", "else decayed).append(param)",
           'else decayed).append(param) if not name.endswith("bias") else None',
           ("optimizer settings", 0, "blocks.0.attn_norm.bias"), "stale-optimizer"),
    Defect("clipped twice", _CLIP, f"nn.utils.clip_grad_norm_(model.parameters(), args.clip); {_CLIP}",
           ("gradient norm", 0, ""), "clipped-twice"),
    Defect("not clipped", _CLIP, "grad_norm = 0.0", ("gradient norm", 0, ""), "not-clipped"),
    Defect("other limit", "model.parameters(), args.clip", "model.parameters(), 0.1",
           ("gradients after clipping", 0, "tok.weight"), "other-clip-limit"),
    Defect("untied", "self.head.weight = self.tok.weight", "self.head.weight.data.copy_(self.tok.weight.data)",
           (WEIGHTS, -1, "head.weight"), "untied"),
    Defect("learning rate", "make_optimizer(model, args.lr)", "make_optimizer(model, 2 * args.lr)",
           ("optimizer settings", 0, "tok.weight"), "other-setting"),
    Defect("no schedule", "        scheduler.step()\n", "        pass\n", ("optimizer settings", 1, "tok.weight"),
           "other-setting"),
    Defect("betas", "betas=(0.9, 0.95)", "betas=(0.9, 0.99)", ("optimizer settings", 0, "tok.weight"),
           "other-setting"),
    Defect("another optimizer", "torch.optim.AdamW(", "torch.optim.Adam(", ("optimizer settings", 0, "tok.weight"),
           "other-setting"),
    Defect("weight decay of norms", '"norm" in name or name.endswith("bias")', 'name.endswith("bias")',
           ("optimizer settings", 0, "blocks.0.attn_norm.weight"), "other-groups"),
    Defect("initialised after sharding", _SHARD_ROOT, f"{_SHARD_ROOT}; model.apply(init_weights)",
           (WEIGHTS, -1, "tok.weight"), "initialised-later"),
    Defect("zeros", _SHARD_ROOT, f"{_SHARD_ROOT}; model.blocks[2].attn.qkv.weight.data.zero_()",
           (WEIGHTS, -1, "blocks.2.attn.qkv.weight"), "not-loaded"),
    Defect("optimizer not resumed", 'load_optimizer(model, optimizer, checkpoint["optimizer"])', "pass",
           ("initial optimizer state", -1, "tok.weight"), "not-resumed", resumed=True),
    Defect("model not resumed", 'model.load_state_dict(checkpoint["model"])', "pass", (WEIGHTS, -1, "tok.weight"),
           None, resumed=True),
    Defect("same data on all ranks", "sample_batch(step, micro, dist.get_rank()", "sample_batch(step, micro, 0",
           ("data", 0, ""), "other-data"),
    Defect("loss not averaged", " / args.accum", "", ("loss", 0, ""), None),
    Defect("gradients doubled", _CLIP, f"[p.grad.mul_(2.0) for p in model.parameters()]; {_CLIP}",
           (GRADS, 0, "tok.weight"), "other-divisor"),
    Defect("activation", "nn.GELU()", 'nn.GELU(approximate="tanh")', ("forward of modules", 0, "blocks.0.mlp.1"), None),
    Defect("frozen", _SHARD_ROOT, f"{_SHARD_ROOT}; model.norm.weight.requires_grad_(False)", (GRADS, 0, "norm.weight"),
           None),
    Defect("gradients kept", "optimizer.zero_grad(set_to_none=True)", "pass", (GRADS, 1, "tok.weight"), None),
)  # fmt: skip


@contextlib.contextmanager
def recorded_beside_its_output() -> Iterator[None]:
    """What is entered around a program: it records to the folder that its ``--out`` names."""
    import importlib

    arm = importlib.import_module("fsdp_migrate.verify.recorder.arm")
    orders = importlib.import_module("fsdp_migrate.verify.recorder.orders")
    out = sys.argv[sys.argv.index("--out") + 1]
    with arm.recorded(orders.Orders(str(Path(out, "recording")), STEPS, stop=False, deep=1)):
        yield


class Programs:
    """Runs of the project before and after, and with defects; the runs before are made once."""

    def __init__(self, pool: Pool, directory: Path) -> None:
        self._pool, self._directory = pool, directory
        self._before: dict[tuple[object, ...], Recording] = {}
        self.after = directory / "after" / "train.py"
        shutil.copytree(PROJECT, self.after.parent, ignore=shutil.ignore_patterns("__pycache__"))
        command = [sys.executable, "-m", "fsdp_migrate", "rewrite", str(self.after)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)

    def run(self, script: Path, name: str, options: tuple[str, ...]) -> Recording:
        out = self._directory / name
        try:
            self._pool.run_script(script, 2, ("--out", str(out), *options), prelude=recorded_beside_its_output)
        except WorkerError:
            # Some defects make the program fail when it saves, which is after the steps that are recorded.
            recording = read(out / "recording")
            if not recording.finished or len(recording.steps) < STEPS:
                raise
            return recording
        return read(out / "recording")

    def before(self, options: tuple[str, ...], resumed: bool) -> Recording:
        key = (options, resumed)
        if key not in self._before:
            name = f"before-{len(self._before)}"
            self._before[key] = self.run(PROJECT / "train.py", name, self._options(options, resumed))
        return self._before[key]

    def verdict(self, defect: Defect | None, options: tuple[str, ...] = ()) -> Verdict:
        """FSDP1 against the migrated program, with the defect in it or as it is."""
        if defect is None:
            return verdict_of(self.before(options, False), self.run(self.after, "whole", self._options(options, False)))
        text = self.after.read_text(encoding="utf-8")
        if text.count(defect.old) == 0:
            raise ValueError(f"{defect.name}: {defect.old!r} is not in the migrated program")
        script = self._directory / defect.name.replace(" ", "-") / "train.py"
        script.parent.mkdir(parents=True)
        script.write_text(text.replace(defect.old, defect.new), encoding="utf-8")
        name = f"out-{defect.name.replace(' ', '-')}"
        after = self.run(script, name, self._options(defect.options, defect.resumed))
        return verdict_of(self.before(defect.options, defect.resumed), after)

    def _options(self, options: tuple[str, ...], resumed: bool) -> tuple[str, ...]:
        if not resumed:
            return (*options, "--steps", str(STEPS))
        half = self._directory / "half"
        if not half.exists():
            self._pool.run_script(PROJECT / "train.py", 2, ("--out", str(half), "--steps", "2"))
        return (*options, "--steps", str(STEPS + 2), "--resume", str(half / "checkpoint.pt"))
