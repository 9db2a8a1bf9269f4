"""The part of a parity program that builds the model, wraps it and makes the optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from tests.parity.models import Model
from tests.parity.specs import Spec
from tests.parity.text import indented

_KNOBS = {
    "none": [],
    "limit": [("limit_all_gathers", "True")],
    "backward_pre": [("backward_prefetch", "BackwardPrefetch.BACKWARD_PRE")],
    "backward_post": [("backward_prefetch", "BackwardPrefetch.BACKWARD_POST")],
    "forward": [("forward_prefetch", "True")],
}
_PRECISION = {
    "fp32": "MixedPrecision(param_dtype=torch.float32, reduce_dtype=torch.float32, buffer_dtype=torch.float32)",
    "bf16": "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16)",
    "bf16_param": "MixedPrecision(param_dtype=torch.bfloat16)",
    "bf16_reduce": "MixedPrecision(reduce_dtype=torch.bfloat16)",
}
_OPTIMIZERS = {
    "sgd": "torch.optim.SGD({model}.parameters(), lr=0.05, momentum=0.9)",
    "adamw": "torch.optim.AdamW({model}.parameters(), lr=1e-2, weight_decay=0.1)",
    "before_wrapping": "torch.optim.SGD({model}.parameters(), lr=0.1, momentum=0.5)",
}


def constants(spec: Spec, *, training: bool | None = None) -> Iterator[str]:
    """Lines for the top of the module: those that ``training`` needs, those that wrapping needs, or both (None)."""
    if spec["accumulate"] != "none" and training is not False:
        yield "ACCUMULATION = 2"
    if training:
        return
    if spec["spelling"] == "by_name":
        yield f'SHARDING = os.environ.get("SHARDING", "{spec["strategy"]}")'
    if spec["spelling"] == "table":
        others = [name for name in ("FULL_SHARD", "SHARD_GRAD_OP") if name != spec["strategy"]]
        entries = ", ".join(f'"{name.lower()}": ShardingStrategy.{name}' for name in [*others, spec["strategy"]])
        yield f"STRATEGIES = {{{entries}}}"
        yield f'SHARDING = os.environ.get("SHARDING", "{spec["strategy"].lower()}")'


def functions(spec: Spec, model: Model) -> Iterator[str]:
    """Module-level functions that the construction uses."""
    if spec["policy"] == "function":
        yield f"""
def wrap_blocks(module, recurse, nonwrapped_numel):
    if recurse:
        return True
    return isinstance(module, {model.block})
"""
    if spec["policy"] == "custom_dict":
        yield f"""
def wrapping(module):
    if isinstance(module, {model.block}):
        return {{"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}}
    return False
"""
    if spec["init"] == "meta_init_fn":
        yield """
def init_weights(module):
    module.to_empty(device=torch.device("cpu"), recurse=False)
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
"""
    if spec["call"] == "function":
        yield "\ndef shard(model):\n" + indented([*_before(spec, model), *_wrapped(spec, model, "return ")])


def construction(spec: Spec, model: Model, wrapped: str) -> Iterator[str]:
    """Statements from the seed to the optimizer; they bind ``wrapped`` and ``optimizer``."""
    yield f"torch.manual_seed({'rank' if spec['sync'] == 'True' else 17})"
    if spec["init"] == "eager":
        yield f"model = {model.name}()"
    else:
        yield f'with torch.device("meta"):\n    model = {model.name}()'
    if spec["ignored"].endswith("frozen"):
        yield "model.head.requires_grad_(False)"
    if spec["checkpointing"] == "before":
        yield _checkpointing("model", model)
    optimizer = "optimizer = " + _OPTIMIZERS[spec["optimizer"]]
    if spec["optimizer"] == "before_wrapping":
        yield optimizer.format(model="model")
    if spec["call"] == "function":
        yield f"{wrapped} = shard(model)"
    else:
        yield from _before(spec, model)
        yield from _wrapped(spec, model, f"{wrapped} = ")
    if spec["checkpointing"] == "after":
        yield _checkpointing(wrapped, model)
    if spec["optimizer"] != "before_wrapping":
        yield optimizer.format(model=wrapped)


def _checkpointing(name: str, model: Model) -> str:
    check = f"check_fn=lambda module: isinstance(module, {model.block})"
    return f"apply_activation_checkpointing({name}, checkpoint_wrapper_fn=checkpoint_wrapper, {check})"


def _policy(spec: Spec, model: Model) -> str:
    transformer = f"functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={{{model.block}}})"
    is_block = f"lambda module: isinstance(module, {model.block})"
    is_norm = "lambda module: isinstance(module, (nn.LayerNorm, nn.BatchNorm2d))"
    by_norm = f"functools.partial(lambda_auto_wrap_policy, lambda_fn={is_norm})"
    return {
        "transformer": transformer,
        "transformer_variable": "wrap_policy",
        "module": f"ModuleWrapPolicy({{{model.block}}})",
        "size": "functools.partial(size_based_auto_wrap_policy, min_num_params=100)",
        "lambda": f"functools.partial(lambda_auto_wrap_policy, lambda_fn={is_block})",
        "always": "always_wrap_policy",
        "or": f"functools.partial(_or_policy, policies=[{by_norm}, {transformer}])",
        "custom": f"CustomPolicy({is_block})",
        "custom_dict": "CustomPolicy(wrapping)",
        "function": "wrap_blocks",
    }[spec["policy"]]


def _arguments(spec: Spec, model: Model) -> Iterator[tuple[str, str]]:
    if spec["policy"] != "none":
        yield "auto_wrap_policy", _policy(spec, model)
    if spec["strategy"] != "absent":
        strategy = {
            "literal": f"ShardingStrategy.{spec['strategy']}",
            "variable": "strategy",
            "by_name": "ShardingStrategy[SHARDING]",
            "table": "STRATEGIES[SHARDING]",
        }
        yield "sharding_strategy", strategy[spec["spelling"]]
    if spec["precision"] != "none":
        yield "mixed_precision", "precision" if spec["precision"] == "bf16" else _PRECISION[spec["precision"]]
    yield "device_id", "device" if spec["device"] == "variable" else 'torch.device("cpu")'
    if spec["group"] != "none":
        groups = {"process_group_none": ("process_group", "None"), "new_group": ("process_group", "group")}
        yield groups.get(spec["group"], ("device_mesh", "mesh"))
    if spec["sync"] == "True":
        yield "sync_module_states", "True"
    if spec["init"] == "meta_init_fn":
        yield "param_init_fn", "init_weights"
    if spec["ignored"].startswith("modules"):
        yield "ignored_modules", "[model.head]"
    elif spec["ignored"] == "states_frozen":
        yield "ignored_states", "list(model.head.parameters())"
    if spec["orig_params"] != "absent":
        yield "use_orig_params", spec["orig_params"]
    yield from _KNOBS[spec["knob"]]


def _before(spec: Spec, model: Model) -> Iterator[str]:
    if spec["spelling"] == "variable":
        yield f"strategy = ShardingStrategy.{spec['strategy']}"
    if spec["policy"] == "transformer_variable":
        yield f"wrap_policy = {_policy({**spec, 'policy': 'transformer'}, model)}"
    if spec["precision"] == "bf16":
        yield f"precision = {_PRECISION['bf16']}"
    if spec["device"] == "variable":
        yield 'device = torch.device("cpu")'
    if spec["group"] == "new_group":
        yield "group = dist.new_group()"
    if spec["group"] == "mesh" and "HYBRID" in spec["strategy"]:
        yield 'mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))'
    elif spec["group"] == "mesh":
        yield 'mesh = init_device_mesh("cpu", (dist.get_world_size(),))'


def _keywords(spec: Spec, model: Model) -> tuple[list[str], str]:
    """Statements that collect the keyword arguments, and what stands in the call."""
    arguments = list(_arguments(spec, model))
    half = (len(arguments) + 1) // 2
    first, second = arguments[:half], arguments[half:]

    def written(some: list[tuple[str, str]]) -> str:
        return ", ".join(f"{name}={value}" for name, value in some)

    def literal(some: list[tuple[str, str]]) -> str:
        return "{" + ", ".join(f'"{name}": {value}' for name, value in some) + "}"

    match spec["kwargs"]:
        case "literal":
            return [f"fsdp_kwargs = {literal(arguments)}"], "**fsdp_kwargs"
        case "dict":
            return [f"fsdp_kwargs = dict({written(arguments)})"], "**fsdp_kwargs"
        case "update":
            return [f"fsdp_kwargs = {literal(first)}", f"fsdp_kwargs.update({written(second)})"], "**fsdp_kwargs"
        case "item":
            items = [f'fsdp_kwargs["{name}"] = {value}' for name, value in second]
            return [f"fsdp_kwargs = dict({written(first)})", *items], "**fsdp_kwargs"
        case "mixed":
            return [f"fsdp_kwargs = {literal(first)}"], ", ".join(filter(None, [written(second), "**fsdp_kwargs"]))
        case _:
            return [], written(arguments)


def _wrapped(spec: Spec, model: Model, target: str) -> Iterator[str]:
    """The wrapping itself; the last statement starts with ``target``."""
    statements, keywords = _keywords(spec, model)
    yield from statements
    if spec["call"] == "partial":
        yield f"wrap_model = functools.partial(FSDP, {keywords})"
        yield f"{target}wrap_model(model)"
    elif spec["call"] == "enable_wrap":
        yield f"with enable_wrap(wrapper_cls=FSDP, {keywords}):"
        yield f"    model.head = wrap(model.head)\n    {target}wrap(model)"
    elif spec["call"] == "nested":
        if len(model.children) == 1:
            blocks = f"model.{model.children[0]}"
            yield f"for index, block in enumerate({blocks}):\n    {blocks}[index] = FSDP(block, {keywords})"
        else:
            yield from (f"model.{child} = FSDP(model.{child}, {keywords})" for child in model.children)
        yield f"{target}FSDP(model, {keywords})"
    else:
        yield f"{target}FSDP(model, {keywords})"
