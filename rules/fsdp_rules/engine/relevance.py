"""The second cheap question, asked of facts: is there anything in this file that a rule could speak about?"""

from __future__ import annotations

import re

from fsdp_rules.fsdp1.names import canonical
from fsdp_rules.project.project import Project

#: Spelled-out signs of FSDP1 that need no import in the file.
DIRECT = re.compile(
    r"torch\.distributed\.(fsdp|_shard)|fairscale|FullyShardedDataParallel|ShardedGradScaler|_fsdp_wrapped_module"
    r"|_fpw_module|flat_param|summon_full_params|fsdp-migrate|optim_state_dict"
    r"|FSDPStrategy|FSDPConfig|FSDPModelingHook|FSDPWrapper|build_fsdp|torch\.sagemaker|DDPFullyShardedNative"
    r"|[\"']fsdp(_native|_cpu_offload)?\w*[\"']|\bfsdp(_config|_min_num_params|_transformer_layer_cls_to_wrap)?\s*="
)
#: What a file without an FSDP import may do with a wrapped model that it is given.
LOOP = re.compile(
    r"clip_grad_norm_|\.zero_grad\(|\bno_sync\b|\.module\b|state_dict\b|\bFSDP\b|\.generate\(|deepcopy|register_(comm_)?hook"
    r"|\.ndim\b|\.dim\(\)|\.shape\b|checkpoint_wrapper|\.apply\(|\.numel\(|\._handles?\b|\.process_group\b|_checkpointing\("
    r"|\b_(all_handles|all_fsdp_states|exec_order_data|fully_sharded_module_to_handle|shard_param_infos)\b"
    r"|\b_(post_backward|unshard)_stream\b"
)
#: Where a parameter may be given another tensor.
DATA = re.compile(r"\.data\s*=[^=]")
#: Entry points of a model besides its call, which only matter where the file surely holds a wrapped one.
ENTRY = re.compile(
    r"\.forward\b|\.\w*(generate|sample|rollout|encode|decode|predict|infer|embed|score|logits|loss|logprobs?)\w*\("
    r"|\.(forward|compute)_\w+\(|\.get_\w+\(|\.\w+_(forward|step)\(|requires_grad|freeze|set_trainable"
    r"|\.(named_)?parameters\("
)


#: What leads into a trap that is there without FSDP1 too.
TRAP = re.compile(r"distributed[. ].*checkpoint|ShardedTensor")


def is_relevant(text: str, path: str, project: Project, traps: bool = False) -> bool:
    """Whether the file needs to be parsed by libcst. Errs on the side of yes.

    ``traps`` as in :class:`fsdp_rules.verdict.finding.Settings`.
    """
    aliases = project.aliases(path)
    if any(canonical(project.resolve(target)) is not None for target in aliases.values()):
        return True
    if DIRECT.search(text):
        return True
    if traps and "fsdp2" in project.flags and TRAP.search(text):
        return True
    if not project.flags & {"fsdp1", "gated"}:
        return False
    if LOOP.search(text) or DATA.search(text) or (".grad" in text and "reduce" in text):
        return True
    if "optim" in text and project.wraps_what_comes_from(path):
        return True
    if not ENTRY.search(text):
        return False
    return project.touches(path) or any(f".{name}.forward(" in text for name in project.held_attributes)
