"""The options that several calls of one block have in common."""

from __future__ import annotations

from collections import Counter

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.model.same_model import Same
from fsdp_rules.state._governing.nested import calls_of
from fsdp_rules.state._governing.site import StateSite, state_site
from fsdp_rules.state._writing.options import gathering

#: What a variable for options is called, the first that is free.
OPTION_NAMES = ("options", "state_dict_options", "checkpoint_options")
OPTIM_OPTION_NAMES = ("optim_options", "optimizer_options")


@once
def shared_options(block: cst.With, file: File) -> str:
    """The options that more than one call of ``block`` takes, "" where there are none."""
    counted: Counter[str] = Counter()
    sites = [site for call in calls_of(block, file) if (site := state_site(call, file)) is not None]
    for site in sites:
        if site.takes and site.around[0].block is block:
            counted[_gathered_options(site)] += 1
    del counted[""]
    text, count = counted.most_common(1)[0] if counted else ("", 0)
    return text if count > 1 else ""


def shared_name(block: cst.With, file: File) -> str:
    """The variable that holds the shared options of ``block``."""
    return file.fresh(block, *OPTION_NAMES)


def _gathered_options(site: StateSite) -> str:
    around = site.around[0]
    if around.context is None or (site.is_method and around.same is Same.NO):
        return ""
    default = around.context.model_config if site.is_method else around.context.optim_config
    gathered = gathering(site.full, site.state.config or default, site.rank_zero_reads, site.file)
    return "" if gathered.everywhere else gathered.options(site.file.code)
