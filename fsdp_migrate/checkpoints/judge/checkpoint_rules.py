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

Each rank's file opens only in a process group of the size that saved it, since a `ShardedTensor` looks for its group
while it is unpickled, and a plain FSDP2 model does not load it. No tensor is lost: the files of all ranks together hold
each one whole.

What to do: convert them to a folder that loads anywhere. One process does it, runs no pickle and has at most two
tensors in memory.

```console
$ fsdp-migrate checkpoint convert out/step_1000 out/step_1000_dcp --to dcp
```

This does not include the `ShardedTensor` names in the `.metadata` of `torch.distributed.checkpoint` folders, which
FSDP2 writes too: such a folder loads without conversion (FSDP404).""",
    "FSDP402": """\
LOCAL_STATE_DICT (`_flat_param`).

Each unit is one flat tensor per rank. The names and shapes of the parameters inside are not in the file, and no FSDP2
model has a `_flat_param`: with `strict=False` silently nothing is loaded. The same holds for flat parameters in a
folder of `torch.distributed.checkpoint`. A tensor next to them under a parameter's own name is the slice of one rank,
saved as if it were the whole.

What to do: convert it, and pass the parameters with their shapes and order: a file of
`torch.save` with a state dictionary of the same model, or a JSON of name and shape in the order of
`model.named_parameters()`. With `use_orig_params=True` the files of the ranks contain the order, and a
safetensors index or an optimizer keyed by name is enough.

```console
$ fsdp-migrate checkpoint convert out/step_1000 out/step_1000_dcp --to dcp --template shapes.json
```""",
    "FSDP403": """\
Optimizer state keyed by parameter number (`optimizer.state_dict()`).

Which parameter a number means depends on the order in which the optimizer was given them, which is not in the file.
Under FSDP1 the states are moreover the slices of one rank: put into an FSDP2 optimizer they are lost, or fail in
`step()` for their shapes.

What to do: convert it, and pass the names of each param group, in order: a JSON of one list of names per group.
For slices the shapes are needed as well (`--template`, as for FSDP402).

```console
$ fsdp-migrate checkpoint convert out/step_1000 out/step_1000_dcp --to dcp --groups groups.json
```""",
    "FSDP404": """\
Folder of torch.distributed.checkpoint that FSDP1 wrote.

It loads into FSDP2 without conversion.

It is a note, level `info`, and fails a check only with `--min-level info`. There is one trap: loaded into
`optimizer.state_dict()` of an optimizer that has not stepped yet, the optimizer's states are silently skipped.

```python
model_state, optimizer_state = get_state_dict(model, optimizer)
state = {"model": model_state, "optimizer": optimizer_state}
dcp.load(state, checkpoint_id=folder)
set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
```""",
    "FSDP405": """\
Incomplete checkpoint.

A rank's file is missing, a file is truncated, or some elements of a tensor are missing.

It is found before anything is loaded, by names, sizes and metadata: the number of ranks, where each file of the folder
has to end, and whether the chunks of each tensor cover it. What `checkpoint convert` found about its source, such as
NaN in tensors without a CRC-32, is in the manifest of its result, and is repeated for it ("its source: ...").

What to do: find the missing files (a copy that was interrupted, a disk of another node), or use an earlier
checkpoint.""",
    "FSDP406": """\
Pickle that runs code when it is loaded.

Files of `torch.save`, `.metadata` and the chunks of `.distcp` files are pickles, and a pickle may name any function to
be called. This tool has a list of what checkpoints need: what `torch.load(weights_only=True)` admits, plain values,
torch's sharded tensors, and what accelerate, Lightning, Composer, Trainer, PEFT and OmegaConf save beside them. All
other names are reported. Nothing is run to find out: pickles are only ever read as data here.

The level is `manual` for functions that run code or touch files, and `review` for classes of a program, such as a
pickled configuration or a whole model: loading them runs the code of that program.

What to do: do not load the file, and ask its author. `torch.load(..., weights_only=True)` refuses such names.""",
    "FSDP407": """\
Optimizer states that are one tensor.

On the CPU `FSDP.optim_state_dict` with `offload_to_cpu=True` and `use_orig_params=True` gives all states of a parameter
the memory of the last one: `exp_avg` and `exp_avg_sq` are one tensor in the file, and what the others held is lost.
These are not ties: each state has to be its own tensor, and the lost ones cannot be restored from the file.

What to do: load the model alone and start the optimizer again, or use a checkpoint that was saved on GPUs or with
`offload_to_cpu=False`.""",
    "FSDP408": """\
Optimizer states that several parameters share.

With `use_orig_params=False`, its default, FSDP1 has one `step` for a flat parameter and saves that one tensor under the
name of each parameter in it. `set_optimizer_state_dict` and `optimizer.load_state_dict` keep it one tensor, and a step
of the optimizer counts it on once for each parameter: with three of them 4, 5, 6 becomes 6, 9, 12. Adam's bias
correction is wrong from then on, and nothing fails.

What to do: nothing, where `rewrite` wrote the loading code or `fsdp_compat` loads it, which copy each state. Elsewhere
give each parameter its own tensors after the load, or convert the checkpoint, which separates them.

```python
for state in optimizer.state.values():
    state.update({key: value.clone() for key, value in state.items() if torch.is_tensor(value)})
```""",
}
