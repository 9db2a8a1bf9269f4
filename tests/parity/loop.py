"""The part of a parity program that trains, and the part that saves."""

from __future__ import annotations

from collections.abc import Iterator

from tests.parity.models import Model
from tests.parity.specs import Spec
from tests.parity.text import indented

_FULL = "FSDP.state_dict_type({model}, StateDictType.FULL_STATE_DICT)"

# A state goes through a file, because FSDP1's may share memory with what is trained on.
_FILE = 'f"{sys.argv[1]}.state"'


def training(spec: Spec, model: Model, wrapped: str) -> list[str]:
    """Statements that bind ``losses``, ``norms`` and ``extra``, given ``wrapped``, ``optimizer`` and ``rank``."""
    body = [
        "optimizer.zero_grad()",
        *_gradients(spec, model, wrapped),
        *_clipping(spec, wrapped),
        "optimizer.step()",
        *_midway(spec, wrapped),
    ]
    head = ["losses, norms, extra = [], [], []", "data = batches(rank)", "for step in range(STEPS):"]
    return [*head, indented(body).rstrip("\n")]


def ending(spec: Spec, wrapped: str) -> list[str]:
    """Statements that save everything to ``sys.argv[1]`` on rank 0."""
    return [
        *_weights(spec, wrapped),
        "history = [None] * dist.get_world_size()",
        "dist.all_gather_object(history, losses)",
        "if rank == 0:",
        '    result = {"losses": history, "norms": norms, "extra": extra, "weights": weights}',
        "    torch.save(result, sys.argv[1])",
    ]


def _gradients(spec: Spec, model: Model, wrapped: str) -> Iterator[str]:
    def step(scale: str) -> list[str]:
        forward = [f"output = {wrapped}(x)", f"loss = {model.loss}{scale}", "loss.backward()"]
        return ["x, y = next(data)", *forward]

    if spec["accumulate"] == "none":
        yield from step("")
        yield "losses.append(loss.item())"
        return
    yield "total = 0.0"
    counted = [*step(" / ACCUMULATION"), "total += loss.item()"]
    micro = "for micro in range(ACCUMULATION):\n"
    condition = f"{wrapped}.no_sync() if micro < ACCUMULATION - 1 else contextlib.nullcontext()"
    match spec["accumulate"]:
        case "plain":
            yield micro + indented(counted)
        case "with":
            yield f"with {wrapped}.no_sync():\n" + indented(counted)
            yield from counted
        case "conditional":
            yield micro + indented([f"with {condition}:\n" + indented(counted)])
        case "assigned":
            yield micro + indented([f"context = {condition}", "with context:\n" + indented(counted)])
        case "exit_stack":
            enter = f"if micro < ACCUMULATION - 1:\n    stack.enter_context({wrapped}.no_sync())"
            yield micro + indented(["with contextlib.ExitStack() as stack:\n" + indented([enter, *counted])])
    yield "losses.append(total)"


def _clipping(spec: Spec, wrapped: str) -> list[str]:
    match spec["clip"]:
        case "unused":
            return [f"{wrapped}.clip_grad_norm_(1000.0)"]
        case "used":
            return [f"grad_norm = {wrapped}.clip_grad_norm_(1000.0)", "norms.append(float(grad_norm))"]
        case "item":
            return [f"norms.append({wrapped}.clip_grad_norm_(max_norm=1000.0).item())"]
        case "active":
            return [f"grad_norm = {wrapped}.clip_grad_norm_(0.05)", "norms.append(grad_norm.item())"]
        case "active_inf":
            clipped = f'{wrapped}.clip_grad_norm_(0.01, norm_type=float("inf"))'
            return [f"grad_norm = {clipped}", "norms.append(grad_norm.item())"]
        case "gated":
            other = f"grad_norm = torch.nn.utils.clip_grad_norm_({wrapped}.parameters(), 1000.0)"
            gate = f"if isinstance({wrapped}, FSDP):\n    grad_norm = {wrapped}.clip_grad_norm_(1000.0)"
            return [f"{gate}\nelse:\n    {other}", "norms.append(grad_norm.item())"]
        case _:
            return []


def _midway(spec: Spec, wrapped: str) -> list[str]:
    full = f"with {_FULL.format(model=wrapped)}:"
    match spec["midway"]:
        case "evaluate":
            forward = (
                f"{wrapped}.eval()\nwith torch.no_grad():\n    extra.append({wrapped}(x).float().abs().mean().item())"
            )
            return [f"if step == 1:\n{indented([forward, f'{wrapped}.train()'])}"]
        case "summon_read":
            read = f"extra.append([p.detach().abs().sum().item() for p in {wrapped}.parameters()])"
            return [f"if step == 1:\n    with FSDP.summon_full_params({wrapped}, writeback=False):\n        {read}"]
        case "summon_write":
            write = f"for parameter in {wrapped}.parameters():\n    parameter.mul_(0.5)"
            context = f"with FSDP.summon_full_params({wrapped}), torch.no_grad():\n{indented([write])}"
            return [f"if step == 1:\n{indented([context])}"]
        case "reload":
            save = [f"{full}\n    state = {wrapped}.state_dict()", *_saved("state")]
            load = [f"state = torch.load({_FILE})", f"{full}\n    {wrapped}.load_state_dict(state)"]
            return [f"if step == 1:\n{indented(save)}", f"if step == 2:\n{indented(load)}"]
        case "optim_state":
            saved = f"optim_state = FSDP.optim_state_dict({wrapped}, optimizer)"
            save = [f"{full}\n    {saved}", *_saved("optim_state")]
            loaded = f"flattened = FSDP.optim_state_dict_to_load({wrapped}, optimizer, optim_state)"
            load = [
                f"optim_state = torch.load({_FILE})",
                f"{full}\n    {loaded}",
                "optimizer.load_state_dict(flattened)",
            ]
            return [f"if step == 1:\n{indented(save)}", f"if step == 2:\n{indented(load)}"]
        case "module":
            return [f"extra.append({wrapped}.module.width)"]
        case _:
            return []


def _saved(state: str) -> list[str]:
    return [f"if rank == 0:\n    torch.save({state}, {_FILE})", "dist.barrier()"]


def _weights(spec: Spec, wrapped: str) -> list[str]:
    match spec["end"]:
        case "context":
            return [f"with {_FULL.format(model=wrapped)}:\n    weights = {wrapped}.state_dict()"]
        case "context_config":
            config = "save_policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"
            context = f"FSDP.state_dict_type({wrapped}, StateDictType.FULL_STATE_DICT, save_policy)"
            return [config, f"with {context}:\n    weights = {wrapped}.state_dict()"]
        case "set_type":
            config = "FullStateDictConfig(rank0_only=True)"
            call = f"FSDP.set_state_dict_type({wrapped}, StateDictType.FULL_STATE_DICT, {config})"
            return [call, f"weights = {wrapped}.state_dict()"]
        case _:
            copies = f"{{name: p.detach().clone() for name, p in {wrapped}.named_parameters()}}"
            return [f"with FSDP.summon_full_params({wrapped}, writeback=False):\n    weights = {copies}"]
