"""Names and meaning of the rules about edits that weaken what shows that a migration is right."""

from __future__ import annotations

#: The names of the rules, by id.
NAMES = {
    "FSDP601": "deleted-assert",
    "FSDP602": "not-strict",
    "FSDP603": "fewer-steps",
    "FSDP604": "other-seed",
    "FSDP605": "silenced-finding",
    "FSDP606": "out-of-reach",
    "FSDP607": "skipped-test",
    "FSDP608": "wider-tolerance",
}

#: What shows that nothing was weakened.
WHAT_TO_TEST = "Run `fsdp-migrate check --since REV` again: it no longer reports the edit."

_ONLY = "Only `fsdp-migrate check --since REV` reports this, and neither a comment nor a setting silences it."

#: What each is about, as Markdown.
DOCS = {
    "FSDP601": f"""\
Asserts that were deleted, or that can no longer fail.

{_ONLY}

The assert is gone from the function and from all other files, is unreachable (after a `return`, below `if False`), is
always true, or its failure is caught. An assert that moved, or whose names changed with the model, is not reported.
Put the assert back, or write one that is true under FSDP2.""",
    "FSDP602": f"""\
`strict=False` or a partial load replaces a strict load.

{_ONLY}

A state whose keys do not match then loads only in part, silently, and the model trains from different weights.
Convert the
keys of the state instead, and load strictly.""",
    "FSDP603": f"""\
Fewer steps, epochs or batches than before.

{_ONLY}

A shorter run shows less: differences between FSDP1 and FSDP2 grow with the steps. The rule reports lowered numbers,
new limits (`islice`, a slice of the loader, a `break` on the step), and settings in configuration and scripts.""",
    "FSDP604": f"""\
A changed, added or removed seed.

{_ONLY}

Two runs with different seeds cannot be compared, and another seed can make a failing comparison pass by chance. Keep
the
seed that the FSDP1 code had.""",
    "FSDP605": f"""\
Findings that were silenced: `ignore` comments, settings, and baselines that grew.

{_ONLY}

A silenced finding is not a migrated one. Fix the code, or let a person decide and commit the exception by itself.""",
    "FSDP606": f"""\
FSDP1 code that was moved out of reach of the rules.

{_ONLY}

The rule reports files that git now ignores or that are no longer Python, names that are built at run time
(`getattr` with a computed name, `import_module`), sources in strings (`exec`, `eval`), and TODO comments of a rewrite
that were removed without a change to their statement.""",
    "FSDP607": f"""\
Tests that were deleted, skipped or deselected.

{_ONLY}

A test that moved, or was renamed and still has its asserts, is not reported. Make the test pass, or explain in a
separate commit why it no longer applies.""",
    "FSDP608": f"""\
A wider tolerance in a comparison.

{_ONLY}

In fp32 the losses before and after a migration are equal bit for bit, with [stated exceptions](../numerics.md). Find
out what differs (`fsdp-migrate verify`) before you accept it.""",
}
