"""Where the program runs, how its models are sharded, and which files its code came from."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .models import Named, fsdp2_groups, is_fsdp1, is_fsdp2, module_names, plain_class
from .parts import clean, rank
from .writer import FORMAT, VERSION

#: Python takes this from the module ``__main__`` when the script has ended, before anything is done at exit.
_SCRIPT: str | None = getattr(sys.modules.get("__main__"), "__file__", None)
_FLAGS = ("CUBLAS_", "CUDA_", "NCCL_", "OMP_", "MKL_", "TORCH_", "PYTORCH_", "PYTHONHASHSEED", "GLOO_")


def start(steps: int, deep: int) -> dict[str, Any]:
    """The first event of a recording of so many steps, of which so many deep."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "rank": rank(),
        "argv": [*sys.argv[:1], *option_names(sys.argv[1:])],
        "cwd": str(Path.cwd()),
        "steps": steps,
        "deep": deep,
        # As torchrun says it: the others of the world run on other machines.
        "of this node": int(os.environ.get("LOCAL_WORLD_SIZE", "0")),
        "environment": environment(),
    }


def option_names(words: list[str]) -> list[str]:
    """The names of options among ``words``; a value may be a key that nobody else is to know."""
    names = []
    for word in words:
        name = word.partition("=")[0]
        if word.startswith("--") or ("=" in word and name.replace(".", "").replace("+", "").isidentifier()):
            names.append(name)
        elif word.startswith("-") and word[1:2].isalpha():
            # What follows the letter may be its value.
            names.append(word[:2])
    return names


def environment() -> dict[str, Any]:
    """Versions, devices and the settings that decide whether a run repeats itself."""
    dist = torch.distributed
    started = dist.is_available() and dist.is_initialized()
    cuda = torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "world size": dist.get_world_size() if started else 1,
        "backend": str(dist.get_backend()) if started else None,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "tf32 matmul": torch.backends.cuda.matmul.allow_tf32,
        "default dtype": _dtype(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "flags": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_FLAGS)},
    }


def generator() -> str:
    """A digest of where torch's generators are."""
    state = torch.get_rng_state().tolist()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state += torch.cuda.get_rng_state().tolist()
    return hashlib.sha256(bytes(state)).hexdigest()[:16]


def loaded_files() -> list[str]:
    """The files of all modules that are no library's: absolute, links resolved."""
    libraries = os.path.realpath(os.__file__).rpartition(os.sep)[0] + os.sep
    files = {_SCRIPT, *(getattr(module, "__file__", None) for module in list(sys.modules.values()))}
    folders = functools.cache(os.path.realpath)
    real = {_real(file, folders) for file in files if file}
    return sorted(f for f in real if not f.startswith(libraries) and f"{os.sep}site-packages{os.sep}" not in f)


def _real(file: str, folders: Callable[[str], str]) -> str:
    """``os.path.realpath(file)``, which asks for each folder above: thousands of modules share those."""
    folder, name = os.path.split(file)
    return os.path.realpath(file) if Path(file).is_symlink() else folders(folder).rstrip(os.sep) + os.sep + name


def layout(root: nn.Module, number: int, named: list[Named]) -> dict[str, Any]:
    """What one model consists of, on this rank."""
    return {
        "root": number,
        "class": plain_class(root),
        "parameters": [
            {
                "key": each.key,
                "names": list(each.names),
                "shape": list(each.part.shape),
                "dtype": _dtype(each.tensor.dtype),
                "replica": each.part.replica,
                "numel": each.part.numel,
                "trained": each.tensor.requires_grad,
            }
            for each in named
        ],
        "units": units(root),
    }


def units(root: nn.Module) -> list[dict[str, Any]]:
    """One dictionary for each FSDP1 wrapper or FSDP2 unit, outermost first, with the same keys for both."""
    modules = module_names(root)
    found = []
    for module in root.modules():
        if is_fsdp1(module):
            found.append({"module": modules[id(module)], **_fsdp1(module)})
        elif is_fsdp2(module):
            found += [{"module": modules[id(module)], **_fsdp2(group)} for group in fsdp2_groups(module)]
    return found


def _fsdp1(module: Any) -> dict[str, Any]:
    strategy, mp = module.sharding_strategy.name, module.mixed_precision
    handle = module._handle
    groups = [module.process_group, getattr(module, "_inter_node_pg", None)]
    shards, replicas = [group.size() if group is not None else 1 for group in groups]
    if strategy == "NO_SHARD":
        shards, replicas = 1, shards
    held = handle.flat_param.dtype if handle is not None else None
    return {
        "kind": "fsdp1",
        "strategy": strategy,
        "reshard": strategy in ("FULL_SHARD", "HYBRID_SHARD"),
        "shards": shards,
        "replicas": replicas,
        "param dtype": _dtype(mp.param_dtype or held),
        "reduce dtype": _dtype(mp.reduce_dtype or mp.param_dtype or held),
        "offload": bool(module.cpu_offload and module.cpu_offload.offload_params),
        "parameters": [clean(name) for name in handle.flat_param._fqns] if handle is not None else [],
        "numel": sum(handle.flat_param._numels) if handle is not None else 0,
        "local": handle.flat_param.numel() if handle is not None else 0,
        "itemsize": handle.flat_param.element_size() if handle is not None else 0,
    }


def _fsdp2(group: Any) -> dict[str, Any]:
    mesh, post, params = group.mesh_info, group.post_forward_mesh_info, group.fsdp_params
    sizes = {"shards": getattr(mesh, "shard_mesh_size", 1), "replicas": getattr(mesh, "replicate_mesh_size", 1)}
    policy = group.mp_policy
    held = params[0].sharded_param.dtype if params else None
    return {
        "kind": "fsdp2",
        "strategy": None,
        "reshard": post is not None,
        "reshard to": getattr(post, "shard_mesh_size", None),
        **sizes,
        "param dtype": _dtype(policy.param_dtype or held),
        "reduce dtype": _dtype(policy.reduce_dtype or policy.param_dtype or held),
        "output dtype": _dtype(policy.output_dtype),
        "offload": type(group.offload_policy).__name__ == "CPUOffloadPolicy",
        "parameters": [_inner_name(group, param) for param in params],
        "numel": sum(param.sharded_param.numel() for param in params),
        "local": sum(param.sharded_param._local_tensor.numel() for param in params),
        "itemsize": max((param.sharded_param.element_size() for param in params), default=0),
    }


def _inner_name(group: Any, param: Any) -> str:
    owner = param._module_info.module
    for module in group.modules:
        for name, inner in module.named_modules():
            if inner is owner:
                return clean(f"{name}.{param._module_info.param_name}" if name else param._module_info.param_name)
    return str(param._module_info.param_name)


def _dtype(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def peak() -> dict[str, int]:
    """Most bytes that this rank has had: by the allocator of its GPU, else of the process in memory."""
    if torch.cuda.is_available():
        return {"cuda": torch.cuda.max_memory_allocated()}
    try:
        import resource
    except ModuleNotFoundError:
        # Windows has none, nor another count of it in the standard library.
        return {"rss": 0}
    return {"rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)}
