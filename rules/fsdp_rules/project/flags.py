"""Words whose presence anywhere in the tree changes what a rule may assume."""

from __future__ import annotations

import re

from fsdp_rules.project.optimizer_objects import holds_objects

FLAG_PATTERNS: dict[str, re.Pattern[bytes]] = {
    "batchnorm": re.compile(rb"BatchNorm|\btorchvision\b|\btimm\b"),
    # A frozen one has no statistics that a step changes.
    "buffers": re.compile(rb"(?<!Frozen)BatchNorm|spectral_norm|track_running|register_buffer|torchvision|timm"),
    "own_batchnorm": re.compile(rb"(?<!Frozen)BatchNorm"),
    # A policy that FSDP1 gives the number of parameters: torch's by size, or one with its signature.
    "counting_policy": re.compile(
        rb"nonwrapped_numel|unwrapped_params|CustomPolicy|[(=]\s*size_based_auto_wrap_policy"
    ),
    "casting_precision": re.compile(
        rb"cast_forward_inputs|cast_root_|keep_low_precision_grads|_module_classes_to_ignore"
    ),
    "meta": re.compile(rb"""["']meta["']|init_empty_weights|deferred_init"""),
    "set_device": re.compile(rb"\bset_device(_index)?\("),
    "ddp": re.compile(rb"\bDistributedDataParallel\b"),
    "ddp_wraps": re.compile(rb"\b(DistributedDataParallel|DDP)\(\s*[^)\s]"),
    # What torch.compile gives is of a class of its own.
    "compiles": re.compile(rb"\btorch\.compile\b|\bfrom torch import [^\n]*\bcompile\b"),
    "fairscale": re.compile(rb"\bfairscale\b"),
    "module_attribute": re.compile(rb"self\.module\s*(:[^=\n]+)?=[^=]"),
    "ignored": re.compile(rb"\bignored_(modules|states|parameters)\b[\"']?\]?\s*[=:](?![=\s]*(None|\[\])\s*[,)}\n])"),
    "ignored_params": re.compile(rb"\bignored_params\s*="),
    "freezes": re.compile(rb"\brequires_grad"),
    # Activations that backward computes again.
    "recomputes": re.compile(
        rb"\b(checkpoint_wrapper|apply_activation_checkpointing)\b|utils\.checkpoint|gradient_checkpoint"
    ),
    # Strategies that reshard after a backward alone, and what may be any strategy at run time.
    "keeps_gathered": re.compile(rb"\b(SHARD_GRAD_OP|_HYBRID_SHARD_ZERO2)\b|ShardingStrategy(\[|\(|,\s*[\w.]+\))"),
    # A strategy under which each rank has whole parameters, and what may be any strategy at run time.
    "unsharded": re.compile(rb"\bNO_SHARD\b|ShardingStrategy(\[|\(|,\s*[\w.]+\))"),
    # A framework's strategy of FSDP1, whose model another file may build.
    "hosted": re.compile(rb"\bFSDPStrategy\b"),
    "fsdp2": re.compile(rb"\bfully_shard\b"),
    "mixed_precision": re.compile(rb"\bMixedPrecision\b"),
    # FSDP1's needs a model and a type: what is defined here, or given one name alone, is a method of the tree's own.
    "sticky_state": re.compile(rb"(?<!def )\bset_state_dict_type\b(?!\(\w*\))"),
    "handed_context": re.compile(
        rb"(\breturn|enter_context\()[^\n]*\bstate_dict_type\(|\bstate_dict_type\([^:]*\):\s*(#[^\n]*)?\n\s*yield\b"
    ),
    # The encoder's output, as it is called by those who hand it to every layer of a decoder.
    "cross_inputs": re.compile(
        rb"(?i)\bencoder_hidden_states\b|cross_?att|\b\w*T5Block\b|"
        rb"\b(M?Bart|Whisper|Pegasus|Marian|M2M100|Blenderbot|Speech2Text)DecoderLayer\b"
    ),
    # What is imported under another name is made under that.
    "offload": re.compile(rb"\bCPUOffload(\s+as\b|\((?!\s*((offload_params\s*=\s*)?False\s*,?\s*)?\)))"),
    # How the process group is started: for the tensors of one kind of device alone, or for those on the CPU too.
    "nccl_alone": re.compile(
        rb"""(init_process_group\(\s*|[Bb]ackend\w*["']?\s*(:\s*\w+\s*)?(=|,[^)\n]*default\s*=)\s*)["']nccl["']"""
    ),
    "cpu_backend": re.compile(rb"cpu:(gloo|mpi)\b|init_process_group\(\s*\)"),
    # A table of functions that wrap, by the names that those have.
    "wraps_by_name": re.compile(rb"(?i)[:=][ \t]*[\w.]*(fsdp|shard|wrap|parallel)\w*[ \t]*[,})\n]"),
    "low_precision": re.compile(
        rb"\.(bfloat16|half)\(\)|\btorch_dtype\b|\.to\((dtype\s*=\s*)?torch\.(bfloat16|float16|half)\b"
    ),
    # Groups and meshes with a backend of their choice, and what is asked for the name of one.
    "chosen_backend": re.compile(
        rb"\bnew_\w*group\w*\((?:[^()]|\([^()]*\))*?(\bbackend\b|[\"']nccl[\"'])|"
        rb"\bbackend_override\b|\b_?get_backend(_config)?\("
    ),
    "two_meshes": re.compile(rb"HYBRID_SHARD|\bdevice_mesh\b|\bDeviceMesh\b"),
}

#: What a file that raises a flag has in its bytes in lower case, one at least: to search for that costs a tenth.
_NEEDED: dict[str, tuple[bytes, ...]] = {
    "batchnorm": (b"batchnorm", b"torchvision", b"timm"),
    "own_batchnorm": (b"batchnorm",),
    "counting_policy": (b"nonwrapped_numel", b"unwrapped_params", b"custompolicy", b"size_based_auto_wrap_policy"),
    "casting_precision": (b"cast_forward_inputs", b"cast_root_", b"low_precision_grads", b"_module_classes_to_ignore"),
    "meta": (b'meta"', b"meta'", b"init_empty_weights", b"deferred_init"),
    "set_device": (b"set_device",),
    "freezes": (b"requires_grad",),
    "ddp": (b"distributeddataparallel",),
    "compiles": (b"compile",),
    "ddp_wraps": (b"distributeddataparallel(", b"ddp("),
    "fairscale": (b"fairscale",),
    "module_attribute": (b"self.module",),
    "ignored": (b"ignored_",),
    "ignored_params": (b"ignored_params",),
    "hosted": (b"fsdpstrategy",),
    "keeps_gathered": (b"shard_grad_op", b"_zero2", b"shardingstrategy"),
    "unsharded": (b"no_shard", b"shardingstrategy"),
    "fsdp2": (b"fully_shard",),
    "mixed_precision": (b"mixedprecision",),
    "recomputes": (b"checkpoint",),
    "sticky_state": (b"set_state_dict_type",),
    "handed_context": (b"state_dict_type(",),
    "cross_inputs": (b"encoder_hidden_states", b"cross_att", b"crossatt", b"t5block", b"decoderlayer"),
    "offload": (b"cpuoffload",),
    "nccl_alone": (b"nccl",),
    "cpu_backend": (b"cpu:", b"init_process_group("),
    "low_precision": (b"float16", b"half", b"torch_dtype"),
}


#: A start whose backend is a text in the call, and what reduces gradients: FSDP1's clipping method and its scaler.
STARTS_NCCL = re.compile(rb"""init_process_group\(([^)]*\bbackend\s*=)?\s*["']nccl["']""")
REDUCES = re.compile(rb"(?<!utils)\.clip_grad_norm_\(|\bShardedGradScaler(\(|\s+as\b)")
#: The start of a function.
FUNCTION = re.compile(rb"^[ \t]*(?:async )?def (\w+)\(", re.MULTILINE)
#: What differentiates so that the result can be differentiated again, and what the flags begin with that name the
#: functions which do.
KEEPS_GRAPH = re.compile(rb"""\bcreate_graph(["']\s*:|\s*=)\s*(?!False\b|\s)""")
BUILDS_GRAPH = "builds_graph:"


def flags_in(data: bytes) -> frozenset[str]:
    """The flags that the source ``data`` raises."""
    lowered = data.lower()
    found = {
        name
        for name, pattern in FLAG_PATTERNS.items()
        if any(word in lowered for word in _NEEDED.get(name, (b"",))) and pattern.search(data)
    }
    if "nccl_alone" in found and STARTS_NCCL.search(data) and REDUCES.search(data):
        found.add("nccl_beside_norms")
    if holds_objects(data):
        found.add("optimizer_objects")
    if b"create_graph" in lowered and KEEPS_GRAPH.search(data):
        parts = FUNCTION.split(data)[1:]
        named = zip(parts[::2], parts[1::2], strict=True)
        found |= {f"{BUILDS_GRAPH}{name.decode()}" for name, body in named if KEEPS_GRAPH.search(body)}
    return frozenset(found)
