"""Names and meaning of the rules about checkpoints; :mod:`fsdp_migrate.checkpoints.judge.judge` finds them."""

from __future__ import annotations

from fsdp_rules.verdict.what_to_test import RESUME

#: What shows that a checkpoint was dealt with as it should be.
WHAT_TO_TEST = RESUME

#: The names of the rules, by id.
NAMES = {
    "FSDP401": "sharded-tensor-files",
    "FSDP402": "flat-parameters",
    "FSDP403": "optimizer-by-id",
    "FSDP404": "fsdp1-folder",
    "FSDP405": "incomplete-checkpoint",
    "FSDP406": "pickle-runs-code",
    "FSDP407": "shared-moments",
    "FSDP408": "shared-step",
}

#: What each is about, as Markdown.
DOCS = {
    "FSDP401": """\
SHARDED_STATE_DICT saved by torch.save (`ShardedTensor`).

Each rank's file opens only in a process group of the size that saved it, because a `ShardedTensor` looks for its group
while it is unpickled. A plain FSDP2 model does not load it. No tensor is lost: together, the files of all ranks contain
every tensor completely.

What to do: convert them to a folder that loads anywhere. One process converts them. It executes no pickle and has at
most two tensors in memory.

```console
$ fsdp-migrate checkpoint convert out/step_1000 out/step_1000_dcp --to dcp
```

This does not include the `ShardedTensor` names in the `.metadata` of `torch.distributed.checkpoint` folders, which
FSDP2 writes too: such a folder loads without conversion (FSDP404).""",
    "FSDP402": """\
LOCAL_STATE_DICT (`_flat_param`).

Each rank stores one flat tensor per unit. The file does not contain the names and shapes of the parameters in it, and
no FSDP2 model has a `_flat_param`: with `strict=False`, nothing is loaded, silently. The same is true for flat
parameters in a folder of `torch.distributed.checkpoint`. A tensor that is stored next to them under a parameter's own
name is the slice of one rank, saved as if it were the whole parameter.

What to do: convert it, and pass the names, shapes and order of the parameters in a template: a state dict of the same
model saved by `torch.save`, or a JSON file of names and shapes in the order of `model.named_parameters()`. With
`use_orig_params=True` the files of the ranks contain the order, so a safetensors file or an optimizer keyed by name is
enough.

```console
$ fsdp-migrate checkpoint convert out/step_1000 out/step_1000_dcp --to dcp --template shapes.json
```""",
    "FSDP403": """\
Optimizer state keyed by parameter number (`optimizer.state_dict()`).

The numbers follow the order in which the optimizer got its parameters, and the file does not contain that order. Under
FSDP1 the states are also slices of one rank: an FSDP2 optimizer that loads them loses them, or its `step()` fails
because their shapes do not match.

What to do: convert it, and pass a JSON file with one list of names for each param group, in order. Slices also need the
shapes (`--template`, as for FSDP402).

```console
$ fsdp-migrate checkpoint convert out/step_1000 out/step_1000_dcp --to dcp --groups groups.json
```""",
    "FSDP404": """\
Folder of torch.distributed.checkpoint that FSDP1 wrote.

It loads into FSDP2 without conversion.

This finding has level `info`: it fails a check only with `--min-level info`. There is one trap: if the target is the
`optimizer.state_dict()` of an optimizer that has not made a step yet, the load silently skips the optimizer's states.

```python
model_state, optimizer_state = get_state_dict(model, optimizer)
state = {"model": model_state, "optimizer": optimizer_state}
dcp.load(state, checkpoint_id=folder)
set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
```""",
    "FSDP405": """\
Incomplete checkpoint.

A rank's file is missing, a file is truncated, or some elements of a tensor are missing.

The check uses only names, sizes and metadata, and loads nothing: the number of ranks, where each file of the folder
must end, and whether the chunks of each tensor cover it. The manifest of a converted checkpoint lists what `checkpoint
convert` found in the source, such as NaN in tensors without a CRC-32. The check repeats it ("its source: ...").

What to do: find the missing files (a copy that was interrupted, a disk of another node), or use an earlier
checkpoint.""",
    "FSDP406": """\
Pickle that runs code when it is loaded.

Files of `torch.save`, `.metadata` and the chunks of `.distcp` files are pickles, and a pickle may name any function to
be called. This tool has a list of the names that checkpoints need: those that `torch.load(weights_only=True)` allows,
plain values, torch's sharded tensors, and what accelerate, Lightning, Composer, Trainer, PEFT and OmegaConf save with
them. All other names are reported. Nothing is executed for this check: it reads pickles as data.

The level is `manual` for functions that run code or touch files, and `review` for classes of a program, such as a
pickled configuration or a whole model: loading them runs the code of that program.

What to do: do not load the file, and ask its author. `torch.load(..., weights_only=True)` refuses such names.""",
    "FSDP407": """\
Optimizer states that are one tensor.

On the CPU, `FSDP.optim_state_dict` with `offload_to_cpu=True` and `use_orig_params=True` stores all states of a
parameter in the memory of the last one: `exp_avg` and `exp_avg_sq` are one tensor in the file, and the values of the
others are lost. This is not weight tying: each state must be its own tensor, and the file does not contain the lost
values.

What to do: load only the model and start with a fresh optimizer, or use a checkpoint that was saved on GPUs or with
`offload_to_cpu=False`.""",
    "FSDP408": """\
Optimizer states that several parameters share.

With `use_orig_params=False`, its default, FSDP1 has one `step` for a flat parameter and saves that one tensor under the
name of each parameter in it. `set_optimizer_state_dict` and `optimizer.load_state_dict` keep it as one tensor, so each
optimizer step increments it once for each parameter: with three parameters, 4, 5, 6 becomes 6, 9, 12. Adam's bias
correction is then wrong, and nothing fails.

What to do: nothing if `rewrite` wrote the loading code or `fsdp_compat` loads the checkpoint, because both copy each
state. Otherwise, give each parameter its own tensors after the load, or convert the checkpoint, which separates them.

```python
for state in optimizer.state.values():
    state.update({key: value.clone() for key, value in state.items() if torch.is_tensor(value)})
```""",
}
