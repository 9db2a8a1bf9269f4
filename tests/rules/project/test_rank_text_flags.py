"""The functions that form a text from a rank are known by what they return."""

from __future__ import annotations

from fsdp_rules.project.flags import BY_RANK, flags_in


def test_a_function_that_returns_a_text_with_a_rank_is_named_and_no_other_of_its_file() -> None:
    source = b"""
def name_of(rank):
    return f"model_{rank}.pt"

def returns_something_else(step):
    return step + 1

def keeps_it(rank):
    text = str(rank)
    use(text)

def tells(rank):
    print(f"rank {rank}")
    return rank
"""
    assert {flag for flag in flags_in(source) if flag.startswith(BY_RANK)} == {f"{BY_RANK}name_of"}
