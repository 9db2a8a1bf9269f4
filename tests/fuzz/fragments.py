"""The pieces that generated programs are made of: statements about FSDP1 in the spellings that people use.

``@F`` stands for the class, ``@M`` for a model, ``@O`` for an optimizer; :mod:`tests.fuzz.programs` puts names there.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

IMPORTS = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as @F",
    "from torch.distributed.fsdp import FullyShardedDataParallel as @F, ShardingStrategy, MixedPrecision  # sharding",
    "from torch.distributed.fsdp import (\n    FullyShardedDataParallel as @F,  # the class\n    CPUOffload,\n)",
    "from torch.distributed.fsdp.fully_sharded_data_parallel import FullyShardedDataParallel as @F",
    "from torch.distributed.fsdp import *  # everything",
    "import torch.distributed.fsdp as fsdp_package",
    "import torch.distributed.fsdp",
    "from torch.distributed import fsdp",
    "try:\n    from torch.distributed.fsdp import FullyShardedDataParallel as @F\nexcept ImportError:\n    @F = None",
    "from torch.distributed.fsdp import FullyShardedDataParallel as @F; import os  # two",
)
MORE_IMPORTS = (
    "from torch.distributed.fsdp import FullStateDictConfig, StateDictType, ShardedStateDictConfig",
    "from torch.distributed.fsdp import MixedPrecision, ShardingStrategy, CPUOffload, BackwardPrefetch",
    "from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy, size_based_auto_wrap_policy",
    "from torch.distributed.fsdp.wrap import enable_wrap, wrap",
    "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler",
    "from torch.distributed.fsdp.api import FullOptimStateDictConfig",
    "import torch.distributed as dist",
    "import functools, contextlib",
    "from functools import partial",
    "import torch.nn as nn",
    "from contextlib import nullcontext",
    "from .models import Net, Block",
)
KEYWORDS = (
    "auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})",
    "auto_wrap_policy=partial(size_based_auto_wrap_policy, min_num_params=10_000)",
    "auto_wrap_policy=policy",
    "sharding_strategy=ShardingStrategy.FULL_SHARD",
    "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP",
    "sharding_strategy=ShardingStrategy.NO_SHARD",
    "sharding_strategy=ShardingStrategy.HYBRID_SHARD",
    "sharding_strategy=ShardingStrategy[args.strategy]",
    "sharding_strategy=None",
    "mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)",
    "mixed_precision=MixedPrecision()",
    "mixed_precision=bf16 if args.bf16 else None",
    "cpu_offload=CPUOffload(offload_params=True)",
    "cpu_offload=None",
    "device_id=torch.cuda.current_device()",
    "device_id=local_rank",
    "process_group=group",
    "device_mesh=mesh",
    "ignored_modules=[@M.head]",
    "ignored_states=list(@M.head.parameters())",
    "param_init_fn=lambda module: module.to_empty(device='cuda', recurse=False)",
    "sync_module_states=True",
    "sync_module_states=rank == 0",
    "use_orig_params=True",
    "limit_all_gathers=True",
    "forward_prefetch=True",
    "backward_prefetch=BackwardPrefetch.BACKWARD_PRE",
    "**kwargs",
    "**(fsdp_kwargs or {})",
    "unknown_argument=1",
)
WRAPS = (
    "@M = @F(@M, @K)",
    "@M = @F(Net(), @K)",
    "@M = @F(\n    Net(  # the model\n    ),\n    @K,  # settings\n)",
    "@M = [@F(block, @K) for block in @M.blocks]",
    "@M.blocks[0] = @F(@M.blocks[0], @K)",
    "setattr(@M, 'head', @F(@M.head, @K))",
    "@M, @O = @F(@M, @K), torch.optim.AdamW(@M.parameters(), lr=1e-3)",
    "@M: nn.Module = @F(@M, @K)",
    "@M = @F(Net(), @K) if distributed else Net()",
    "print(@F(Net(), @K))",
    "@M = (wrapped := @F(@M, @K))",
    "@F(@M, @K)",
    "@M = @F()",
    "@M = @F(@M, group, ShardingStrategy.FULL_SHARD, @K)",
    "@M = @F(*arguments)",
    "@M = torch.compile(@F(@M, @K))",
    "make = partial(@F, @K); @M = make(@M)",
    "with enable_wrap(wrapper_cls=@F, @K):\n    @M = wrap(@M)",
    "@M = {'net': @F(Net(), @K)}",
    "@M = @F(module=@M, @K)",
    "@M = @F(*(@M,), **{'use_orig_params': True})",
    "(make := lambda net: @F(net, @K)); @M = make(@M)",
    "make = lambda *nets, wrapper=@F: [wrapper(net, @K) for net in nets]\n[@M] = make(@M)",
    "@M, *others = map(@F, models)",
    "@M = (@F if distributed else nn.Identity)(@M)",
    "for number, block in enumerate(@M.blocks):\n    @M.blocks[number] = @F(block, @K)",
    "@M = @F(@M, @K).to(device).eval()",
    "@M = build()  # type: @F",
)
LOOPS = (
    "@M.clip_grad_norm_(1.0)",
    "norm = @M.clip_grad_norm_(args.clip).item()",
    "print(f'''norm\n  {@M.clip_grad_norm_(1.0)}\n''')",
    "with @M.no_sync():\n    @M(x).sum().backward()",
    "with @M.no_sync() if step % 2 else nullcontext():  # micro\n    loss = @M(x).sum()\n    loss.backward()",
    "with torch.autocast('cuda'), @M.no_sync(): @M(x).backward()",
    "with contextlib.ExitStack() as stack:\n    stack.enter_context(@M.no_sync())\n    @M(x).backward()",
    "with @F.state_dict_type(@M, StateDictType.FULL_STATE_DICT):\n    state = @M.state_dict()  # whole",
    "with @F.state_dict_type(\n"
    "    @M, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)\n):\n"
    "    state = @M.state_dict()\n    if rank == 0:\n        torch.save(state, path)",
    "with @F.state_dict_type(@M, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()):\n"
    "    @M.load_state_dict(state)\n    text = '''kept\n  as it is\n'''",
    "@F.set_state_dict_type(@M, StateDictType.SHARDED_STATE_DICT)",
    "previous = @F.set_state_dict_type(@M, StateDictType.FULL_STATE_DICT)",
    "optim_state = @F.optim_state_dict(@M, @O)",
    "optim_state = @F.full_optim_state_dict(@M, @O, rank0_only=False)",
    "@O.load_state_dict(@F.optim_state_dict_to_load(@M, @O, optim_state))",
    "flattened = @F.optim_state_dict_to_load(optim_state, @M, @O)\n@O.load_state_dict(flattened)",
    "sharded = @F.shard_full_optim_state_dict(full, @M)",
    "with @F.summon_full_params(@M, writeback=False):\n    copies = {n: p.clone() for n, p in @M.named_parameters()}",
    "with @F.summon_full_params(@M): [p.zero_() for p in @M.parameters()]",
    "if isinstance(@M, @F):\n    @M = @M.module",
    "for unit in @F.fsdp_modules(@M): unit.reshard = True",
    "for name, module in @M.named_modules():\n    if type(module) is @F: print(name)",
    "@M.register_comm_hook(None, hook)",
    "scaler = ShardedGradScaler()\nscaler.scale(loss).backward()",
    "@M.module.generate(x)",
    "@M.apply(initialise)",
    "@O.zero_grad(); @M.zero_grad()",
    "@O = torch.optim.AdamW(@M.parameters(), lr=1e-3)",
    "torch.save(@M.state_dict(), path); torch.save(@O.state_dict(), path)",
    "@M.load_state_dict(torch.load(path), strict=False)",
    "names = [n.replace('_fsdp_wrapped_module.', '') for n, _ in @M.named_parameters()]",
    "@M._fsdp_wrapped_module.head.weight.data.normal_()",
    "assert isinstance(@M, (@F, nn.Module)), 'not wrapped'",
    "total = sum(p.numel() for p in @M.parameters())",
    "ema = copy.deepcopy(@M)",
    "@F._gather(@M)",
    "strategy = @M.sharding_strategy",
    "@M.generate(x, synced_gpus=True)",
    "dist.all_reduce(@M.head.weight.grad)",
    "@M.eval(); out = @M(x); @M.train()",
    "lambda: @M.clip_grad_norm_(1.0)",
    "policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block, Net})",
    "bf16 = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)  # precision",
    "kwargs = dict(sharding_strategy=ShardingStrategy.FULL_SHARD)\nkwargs['use_orig_params'] = True",
    "kwargs = {'mixed_precision': bf16, 'device_id': 0}",
    "if (norm := @M.clip_grad_norm_(1.0)) > 2: print(f'{norm=:.3f}')",
    "norms = [net.clip_grad_norm_(1.0) for net in (@M, *others)]",
    "context = @M.no_sync if step % 2 else nullcontext\nwith context(): @M(x).backward()",
    "with (\n    torch.autocast('cuda') as cast,\n    @M.no_sync(),\n):\n    @M(x).backward()",
    "with @F.state_dict_type(@M, StateDictType.FULL_STATE_DICT):\n    save((whole := @M.state_dict()), file)",
    "@M = @M.module if hasattr(@M, 'module') else @M",
    "while isinstance(@M, @F): @M = @M.module",
    "state = {**@M.state_dict(), 'step': step}",
    "save = lambda net=@M: torch.save(net.state_dict(), path)",
    "del @M.module.head",
)
#: Compound statements around a block ``@B`` or a statement ``@S``, one tab a step; ``@P`` is a model's plain name.
SHAPES = (
    "@torch.no_grad()\ndef evaluate(@P, batch):\n\t@B",
    "@contextlib.contextmanager\ndef around(@P):\n\ttry:\n\t\t@B\n\t\tyield @P\n\tfinally:\n\t\t@S",
    "async def main(queue):\n\tasync with queue.lock, queue.other as other:\n\t\t@B\n\t\tawait queue.put(@M)",
    "async def main(queue):\n\tasync for x in queue:\n\t\t@B\n\telse:\n\t\t@S",
    "try:\n\t@B\nexcept OSError:\n\traise\nelse:\n\t@S\nfinally:\n\t@S",
    "for step, x in enumerate(batches):\n\t@B\n\tif step: continue\nelse:\n\t@S",
    "def outer(given):\n\t@P = given\n\tdef step(x):\n\t\tnonlocal @P\n\t\t@B\n\treturn step",
    "def setup():\n\tglobal @P\n\t@B",
    "match job:\n\tcase {'model': @P, **rest}:\n\t\t@B\n\tcase _:\n\t\t@S",
    "match @M:\n\tcase @F(module=inner) as wrapped:\n\t\t@B\n\tcase nn.Module():\n\t\t@S",
    "while (batch := next(batches, None)) is not None:\n\t@B",
    "if (wrapped := @F(@M, @K)) is not None:\n\t@B",
    "def train(@P):\n\t# type: (@F) -> None\n\t@B",
    "def build(*nets, wrapper=@F):\n\t@P = wrapper(*nets)\n\t@B\n\treturn @P",
    "class Model(nn.Module):\n\tdef __init__(self, @P):\n\t\tsuper().__init__()\n\t\t@B\n\tdef forward(self):\n\t\t@S",
    "def build(@P) -> @F:\n\t@B\n\treturn @F(@P, @K)",
)
STATE_MODELS = ("model", "net", "self.model", "models[0]", "trainer.state.model", "fsdp_model", "module", "m")
#: Names that rewritten code uses, bound by the program to something else.
CLASHES = (
    "def get_model_state_dict(model):\n    return model.state_dict()",
    "def fully_shard(module, mesh=None):\n    return module",
    "fully_shard = None",
    "from .sharding import fully_shard, set_model_state_dict",
    "dataclasses = {}",
    "def init_device_mesh(*shape): return shape",
    "class StateDictOptions: pass",
    "mesh = module = root = policy = options = 1",
    "torch_ = __import__('torch')",
    "from .helpers import get_optimizer_state_dict as set_optimizer_state_dict",
    "MixedPrecisionPolicy = OffloadPolicy = object",
    "def isinstance(value, kind): return False",
    "sum = len = list = 0",
)
NEUTRAL = (
    "@N = 1  # note @N",
    "@N = '''first\n\tsecond  # no comment\n  third'''  # note @N",
    "@N = f'{1 + 1}{\"a\"!r:>{10}}'  # note @N",
    "@N = (  # note @N\n    1,\n\n  2,\n)",
    '@N = r\'\\n\' b\'\' if False else """\\\n  x\\ty\n"""  # note @N',
    "@N = {'FSDP': 'FullyShardedDataParallel'}  # note @N",
    "@N = [\n  x for x in range(3)  # note @N\n    if x]",
    "@N = 'é ü \u2028 \U0001f600'  # note @N ñ",
    "@N = 1; del @N; @N = 2  # note @N",
    "@N = lambda: (yield)  # note @N",
)


@cache
def statements_of_fixtures() -> tuple[str, ...]:
    """Statements inside functions of the rules' own examples, one text each, from the left margin."""
    found: dict[str, None] = {}
    for path in sorted(ROOT.glob("fixtures/rewrite/*/before*.py")):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef):
                continue
            for statement in node.body:
                lines = source.splitlines()[statement.lineno - 1 : statement.end_lineno]
                margin = len(lines[0]) - len(lines[0].lstrip())
                if len(lines) < 25 and all(line[:margin].isspace() or not line for line in lines):
                    found["\n".join(line[margin:] for line in lines)] = None
    return tuple(found)


@cache
def fixtures() -> tuple[str, ...]:
    """The rules' own examples, whole."""
    return tuple(path.read_text() for path in sorted(ROOT.glob("fixtures/rewrite/*/before*.py")))
