"""Shell scripts: flags of ``accelerate launch`` and the Trainer, ``FSDP_*`` variables, overrides of verl, heredocs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from fsdp_migrate.configs.dialects.read_by import read_by
from fsdp_migrate.configs.dialects.trainer_flags import composed_words, trainer_flags
from fsdp_migrate.configs.editing.flag_edits import Flag, FlagEditor
from fsdp_migrate.configs.editing.shell_words import COMPOSED, Heredoc, Word, commands, flag_value, flags
from fsdp_rules.configuration.block import Block, Change, NoEditor, Plain, Setting, TextEdit
from fsdp_rules.frameworks.refusals import asked_for
from fsdp_rules.frameworks.table import table
from fsdp_rules.project.own_keys import OwnKey

#: Names of strategies in flags of projects, in lower case.
STRATEGIES = frozenset(
    {"full_shard", "shard_grad_op", "hybrid_shard", "no_shard", "hybrid_shard_zero2", "_hybrid_shard_zero2"}
    | {"hybrid_full", "hybrid_zero2", "hsdp", "hybrid", "fsdp", "grad_op", "grad_optim", "full"}
)
_OVERRIDE = re.compile(
    r"[+~]*(?P<key>(actor_rollout_ref\.(actor|ref)|critic|reward_model|reward)\.strategy)=(?P<value>.*)"
)
_AROUND = ("num_machines", "num_processes", "mixed_precision")


class _OverrideEditor:
    """Gives an override of Hydra another value, within its quotes."""

    def __init__(self, start: int, end: int) -> None:
        self._start, self._end = start, end

    def edits(self, change: Change) -> list[TextEdit]:
        return [TextEdit(self._start, self._end, str(value)) for value in change.values.values()]


def shell_blocks(text: str, keys: Mapping[str, tuple[OwnKey, ...]]) -> Iterator[Block]:
    """The blocks of settings of a script; ``keys`` are what Python reads for arguments that are gone, by path."""
    found, heredocs = commands(text)
    for words in found:
        launched = launcher(words)
        if launched:
            yield from _accelerate(text, words, launched)
        yield from trainer_flags(text, words, launched[1] if launched else 0)
        yield from _own(words, launched)
        yield from _read(words, launched, keys)
        yield from _swift(words)
    yield from composed_words(found)
    yield from _verl(found)
    yield from _variables([word for words in found for word in words])
    yield from _heredocs(heredocs)


def launcher(words: list[Word]) -> tuple[int, int] | None:
    """From ``launch`` to the script that it starts: the words that accelerate reads as its own."""
    raws = [word.raw for word in words]
    if "launch" not in raws or not any("accelerate" in raw for raw in raws[: raws.index("launch")]):
        return None
    start = raws.index("launch") + 1
    for index in range(start, len(raws)):
        if raws[index].strip("\"'").endswith(".py") or raws[index] == "-m":
            return start, index
    return start, len(raws)


def _accelerate(text: str, words: list[Word], launched: tuple[int, int]) -> Iterable[Block]:
    known = table("accelerate").keys
    own = words[: launched[1]]
    settings: dict[str, Setting] = {}
    written: dict[str, Flag] = {}
    around: dict[str, Plain] = {"distributed_type": "FSDP", "parallelism_config": False}
    anchor, uses = Flag(launched[0] - 1, launched[0] - 1, False), False
    for index, name, value, joined in flags(own):
        key = name[2:].replace("-", "_")
        if key in ("use_fsdp", "config_file"):
            uses = uses or key == "use_fsdp"
            around["config_file"] = around.get("config_file") or key == "config_file"
            last = index + (key == "config_file" and not joined)
            anchor = Flag(index, last, joined)
            continue
        plain = flag_value(value, joined)
        if key in _AROUND:
            around[key] = plain
        elif key.startswith("fsdp_") and (key in known or uses):
            last = index if joined or value is None else index + 1
            fixed = COMPOSED if value is not None and value.value is None else ""
            settings[key] = Setting(key, name[2:], plain, words[index].start, words[last].end, fixed)
            written[name[2:]] = anchor = Flag(index, last, joined)
        elif key.startswith("parallelism_config"):
            around["parallelism_config"] = True
    # Beside a file, --use_fsdp alone says what the file says.
    if settings or (uses and not around.get("config_file")):
        place = (own[launched[0] - 1].start, own[launched[0] - 1].end)
        form = "over a file" if around.get("config_file") else "flags"
        yield Block("accelerate", form, settings, around, place, FlagEditor(text, words, written, anchor))


def _own(words: list[Word], launched: tuple[int, int] | None) -> Iterable[Block]:
    """Flags of a program's own with the name of a strategy."""
    for index, name, value, joined in flags(words):
        word = str(flag_value(value, joined)).lower()
        if "sharding_strategy" in name and word in STRATEGIES and not (launched and index < launched[1]):
            around: dict[str, Plain] = {"key": name, "value": word}
            yield Block("own", "flags", {}, around, (words[index].start, words[index].end), NoEditor())


def _read(
    words: list[Word], launched: tuple[int, int] | None, keys: Mapping[str, tuple[OwnKey, ...]]
) -> Iterable[Block]:
    """Flags of a program's own for arguments that FSDP2 does not have."""
    for index, name, _, _ in flags(words):
        if launched and index < launched[1]:
            continue
        where = read_by((name[2:].replace("-", "_"),), keys)
        if where is not None:
            around: dict[str, Plain] = {"key": name, "value": None, **where}
            yield Block("own", "flags", {}, around, (words[index].start, words[index].end), NoEditor())


def _swift(words: list[Word]) -> Iterable[Block]:
    """The flags of ms-swift's commands."""
    runs = [index for index, word in enumerate(words) if word.raw in ("sft", "pt", "rlhf")]
    if not any(index and words[index - 1].raw.rpartition("/")[2] == "swift" for index in runs):
        return
    given = {name[2:]: (flag_value(value, joined), words[index]) for index, name, value, joined in flags(words)}
    if "fsdp" in given:
        around = {name: given[name][0] for name in asked_for("swift") if name in given}
        place = given["fsdp"][1]
        yield Block("swift", "flags", {}, around, (place.start, place.end), NoEditor())


def _verl(found: list[list[Word]]) -> Iterable[Block]:
    words = [word for command in found for word in command]
    overrides = [(word, match) for word in words if (match := _OVERRIDE.search(word.raw))]
    for word, match in overrides:
        start = word.start + match.start("value")
        raw = match["value"].rstrip("\"'")
        start += len(raw) - len(raw.lstrip("\"'"))
        raw = raw.lstrip("\"'")
        value = None if "$" in raw else raw
        fixed = "" if value is not None else COMPOSED
        one = Setting("strategy", match["key"], value, word.start, word.end, fixed)
        role = match["key"].rpartition(".")[0]
        editor = _OverrideEditor(start, start + len(raw))
        yield Block("verl", "flags", {"strategy": one}, {"role": role}, (word.start, word.end), editor)
    roles = {match["key"] for _, match in overrides}
    used = [word for word in words if word.raw.lstrip("+~\"'").startswith("actor_rollout_ref.actor.")]
    foreign = any("megatron" in word.raw or "model_engine=" in word.raw for word in words)
    if used and "actor_rollout_ref.actor.strategy" not in roles and not foreign:
        around: dict[str, Plain] = {"role": "actor_rollout_ref.actor"}
        yield Block("verl", "flags", {}, around, (used[0].start, used[0].end), NoEditor())


def _variables(words: list[Word]) -> Iterable[Block]:
    names = {key.env: key.name for key in table("accelerate").keys.values() if key.env}
    settings = {}
    for word in words:
        name, equals, value = word.raw.partition("=")
        if equals and (name in names or name == "ACCELERATE_USE_FSDP"):
            known = None if word.value is None else value.strip("\"'")
            key = names.get(name, name)
            settings[key] = Setting(key, name, known, word.start, word.end)
    if settings:
        first = min(settings.values(), key=lambda one: one.start)
        # Composer's launcher, which of these variables reads the version alone.
        composer = any(word.raw.rpartition("/")[2] in ("composer", "composer.cli.launcher") for word in words)
        around: dict[str, Plain] = {"composer": composer and set(settings) == {"fsdp_version"}}
        yield Block("variables", "variables", settings, around, (first.start, first.end), NoEditor())


def _heredocs(heredocs: list[Heredoc]) -> Iterable[Block]:
    for one in heredocs:
        at = one.text.find("fsdp_config")
        if at >= 0 and "distributed_type" in one.text:
            version = re.search(r"fsdp_version[\"']?\s*:\s*[\"']?(\w+)", one.text)
            around: dict[str, Plain] = {"version": version[1] if version else None}
            start = one.start + at
            yield Block("heredoc", "file", {}, around, (start, start + len("fsdp_config")), NoEditor())
