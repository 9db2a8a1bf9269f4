"""From FSDP1's configurations to ``StateDictOptions``."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.expressions import is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.state._governing.context import is_constant
from fsdp_rules.state._governing.state_settings import Both, Config, Expression, Setting
from fsdp_rules.verdict.diagnosis import Build
from fsdp_rules.verdict.finding import Level

OPTIONS = "torch.distributed.checkpoint.state_dict.StateDictOptions"


@dataclass(frozen=True, eq=False)
class Gathered:
    """How a state is asked for: its options ("" for none), and what is not the same as under FSDP1.

    ``everywhere`` says when every rank wants a full state in CPU memory, which no option gives.
    """

    options: Build
    level: Level = Level.SAFE
    note: str = ""
    everywhere: Setting = False


def options_text(file: File, **settings: str) -> str:
    """``options=StateDictOptions(...)``, or "" without any setting."""
    if not settings:
        return ""
    values = ", ".join(f"{name}={value}" for name, value in settings.items())
    return f"options={file.ref(OPTIONS)}({values})"


def gathering(full: Setting, config: Config, rank_zero_reads: bool, file: File) -> Gathered:
    """The options under which a state comes as FSDP1 gave it, a whole one if ``full``.

    ``rank_zero_reads`` says that only rank 0 reads the result, so that the other ranks may as well have none.
    """
    if full is False:
        return _sharded(config, file)
    offload, rank0 = config.offload, config.rank0_only
    note = ""
    everywhere: Setting = False
    cpu: Setting = False
    if rank0 is True:
        cpu = offload
        if offload is False:
            note = "every rank gets the state (FSDP1: only rank 0)"
        elif isinstance(offload, Expression):
            note = f"every rank gets the state if {_source(offload, file)} is false (FSDP1: only rank 0)"
    elif rank0 is False:
        cpu = offload if rank_zero_reads else False
        asked_again = offload is True or (isinstance(offload, Expression) and _may_be_asked_again(offload, file))
        everywhere = offload if asked_again and not rank_zero_reads else False
        if isinstance(offload, Expression) and not rank_zero_reads and not everywhere:
            note = f"the state is kept on its device, regardless of {_source(offload, file)}"
    elif offload is False:
        note = f"every rank gets the state, regardless of {_source(rank0, file)}"
    elif offload is True:
        cpu = rank0
        note = f"the state is kept on its device if {_source(rank0, file)} is false"
    elif rank_zero_reads or _source(offload, file) == _source(rank0, file):
        cpu = offload
    else:
        # FSDP2 offloads a full state to rank 0 alone: the others would lose it where they want it too.
        cpu = Both(offload.node, offload.behind, offload.before, rank0)
        note = f"the state is kept on its device if {_source(rank0, file)} is false"
    if rank_zero_reads:
        note = ""
    if everywhere and full is not True:
        everywhere, note = False, "a full state is kept on its device (FSDP1: moved to the CPU)"
    return Gathered(_build(full, cpu, file), Level.REVIEW if note else Level.SAFE, note, everywhere)


def _may_be_asked_again(offload: Expression, file: File) -> bool:
    """Whether it means the same for each tensor, without another effect."""
    return is_repeatable(offload.node) or is_constant(offload.node, file)


def _build(full: Setting, cpu: Setting, file: File) -> Build:
    options_text(file, full_state_dict="True")

    def build(code: Code) -> str:
        settings = {"full_state_dict": setting_text(full, code)}
        if cpu is not False:
            settings["cpu_offload"] = setting_text(cpu, code)
        return options_text(file, **settings)

    return build


def setting_text(setting: Setting, code: Code) -> str:
    """The source text of ``setting``."""
    return str(setting) if isinstance(setting, bool) else setting.text(code)


def _sharded(config: Config, file: File) -> Gathered:
    offload = config.offload
    if offload is False or not config.given:
        return Gathered(lambda code: "")
    if offload is True:
        return Gathered(lambda code: options_text(file, cpu_offload="True"))
    return Gathered(lambda code: options_text(file, cpu_offload=offload.text(code)))


def _source(setting: Expression, file: File) -> str:
    return setting.text(lambda node: file.code(node) if isinstance(node, cst.CSTNode) else "")
