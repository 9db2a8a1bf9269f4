"""Sources that clash with what the output needs, and sources that Python reads and few tools do."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from textwrap import dedent

import pytest

from fsdp_migrate.cli import main

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


def _rewritten(tmp_path: Path, source: bytes, name: str = "train.py") -> tuple[int, bytes]:
    (tmp_path / name).write_bytes(source)
    return main(["rewrite", str(tmp_path / name)]), (tmp_path / name).read_bytes()


def _calls_in(function: str, source: bytes) -> set[str]:
    tree = ast.parse(source)
    (found,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function)
    return {ast.unparse(node.func) for node in ast.walk(found) if isinstance(node, ast.Call)}


@pytest.mark.parametrize("mode", ["native", "shim"])
def test_a_function_of_the_project_does_not_come_to_call_itself(tmp_path: Path, mode: str) -> None:
    (tmp_path / "train.py").write_text(
        WRAP.replace("\n", ", StateDictType\n")
        + dedent("""
            import torch

            def get_model_state_dict(model):
                with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
                    return model.state_dict()

            def fully_shard(model):
                return FSDP(model, device_id=torch.cuda.current_device())
        """)
    )
    assert main(["rewrite", "--to", mode, str(tmp_path / "train.py")]) == 0
    output = (tmp_path / "train.py").read_bytes()
    for name in ("get_model_state_dict", "fully_shard"):
        assert name not in _calls_in(name, output)


@pytest.mark.parametrize(
    "clash",
    [
        "def build(model, fully_shard=None):\n    return FSDP(model)\n",
        "def build(model):\n    fully_shard = FSDP(model)\n    return fully_shard\n",
        "from mylib import fully_shard\n\ndef build(model):\n    return FSDP(fully_shard(model))\n",
        "def build(model):\n    for fully_shard in range(3):\n        pass\n    return FSDP(model)\n",
        "class fully_shard:\n    pass\n\ndef build(model):\n    return FSDP(model)\n",
        "from .shard import fully_shard\n\ndef build(model):\n    fully_shard(1)\n    return FSDP(model)\n",
    ],
)
def test_what_is_written_means_torch_s_function_where_it_is_written(tmp_path: Path, clash: str) -> None:
    code, output = _rewritten(tmp_path, (WRAP + "\n" + clash).encode())
    assert code == 0
    assert b"from torch.distributed.fsdp import fully_shard as torch_fully_shard" in output
    assert any(name == "torch_fully_shard" for name in _calls_in("build", output))


def test_a_guarded_import_is_no_clash(tmp_path: Path) -> None:
    guarded = "try:\n    from torch.distributed.fsdp import fully_shard\nexcept ImportError:\n    fully_shard = None\n"
    _, output = _rewritten(tmp_path, (WRAP + guarded + "\ndef build(model):\n    return FSDP(model)\n").encode())
    assert b"torch_fully_shard" not in output


def test_carriage_returns_and_blanks_at_the_end_are_kept(tmp_path: Path) -> None:
    source = (WRAP + "\ndef build(model):\n    return FSDP(model)\n").encode()
    _, plain = _rewritten(tmp_path, source)
    for before, after in (
        (source.replace(b"\n", b"\r"), plain.replace(b"\n", b"\r")),
        (source + b"\n  \t", plain + b"\n  \t"),
        (source + b"    ", plain + b"    "),
    ):
        code, output = _rewritten(tmp_path, before, "other.py")
        assert (code, output) == (0, after)


@pytest.mark.parametrize("end", [b"\r", b"\r\r", b"\r  \t", b" \r", b"\r\f\r", b"\n\r", b""])
def test_a_file_of_several_line_breaks_may_end_in_carriage_returns(tmp_path: Path, end: bytes) -> None:
    def mixed(plain: bytes) -> bytes:
        return plain.replace(b"\n", b"\r").replace(b"here\r", b"here\n").removesuffix(b"\r") + end

    source = (WRAP + "\ndef build(model):\n    # here\n    return FSDP(model)\n\n\ndepth = 2\n").encode()
    _, plain = _rewritten(tmp_path, source)
    assert b"fully_shard(model)" in plain
    code, output = _rewritten(tmp_path, mixed(source), "other.py")
    assert (code, output) == (0, mixed(plain))
    assert _rewritten(tmp_path, output, "again.py") == (0, output)


def _notebook(path: Path, *lines: str, count: str = "1") -> None:
    cell = {"cell_type": "code", "source": list(lines), "metadata": {}, "outputs": [], "execution_count": None}
    text = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    path.write_text(text.replace('"execution_count": null', f'"execution_count": {count}'))


def test_a_cell_may_await(tmp_path: Path) -> None:
    _notebook(tmp_path / "a.ipynb", WRAP, "model = FSDP(model)\n", "await run(model)\n")
    assert main(["rewrite", str(tmp_path / "a.ipynb")]) == 0
    assert "fully_shard(model)" in (tmp_path / "a.ipynb").read_text()


@pytest.mark.parametrize(
    ("lines", "count", "told"),
    [
        ((WRAP, 'x = "\ud800"\n'), "1", "half of a surrogate pair"),
        ((WRAP, "model = FSDP(model)\n"), "9" * 5000, "more digits than Python accepts"),
    ],
)
def test_notebooks_that_cannot_be_read_say_why(
    tmp_path: Path, lines: tuple[str, ...], count: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _notebook(tmp_path / "a.ipynb", *lines, count=count)
    assert main(["rewrite", str(tmp_path / "a.ipynb")]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert "internal error" not in err


def test_a_call_without_a_model_is_left_to_the_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = _rewritten(tmp_path, (WRAP + "model = FSDP()\n").encode())
    assert code == 1
    assert output.endswith(b"model = FSDP()\n")
    assert "FSDP101 manual: FSDP is called without a model" in capsys.readouterr().out


def test_input_that_does_not_compile_is_not_our_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = _rewritten(tmp_path, (WRAP + "model = FSDP(model)\nreturn model\n").encode())
    assert code == 2
    assert output.endswith(b"return model\n")
    assert "does not compile: line 3: 'return' outside function" in capsys.readouterr().err


@pytest.mark.parametrize(
    "comment",
    [
        "ignore [FSDP101]",
        "ignore[fsdp101]",
        "ignored",
        "ignore[]",
        "ignore[FSDP101",
        "Ignore",
        "ignore FSDP101",
        "ignore-file",
    ],
)
def test_a_comment_that_is_not_exactly_the_form_silences_nothing_and_says_so(
    tmp_path: Path, comment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"{WRAP}model = FSDP(model)  # fsdp-migrate: {comment}\n"
    code, output = _rewritten(tmp_path, source.encode())
    assert code == 0
    assert b"fully_shard(model)" in output
    assert "FSDP905 info" in capsys.readouterr().out


@pytest.mark.parametrize("comment", ["ignore", "ignore[FSDP101,FSDP100, FSDP110]  # kept", "ignore: see the wiki"])
def test_a_comment_of_the_form_silences(tmp_path: Path, comment: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = f"{WRAP}model = FSDP(model)  # fsdp-migrate: {comment}\n"
    _, output = _rewritten(tmp_path, source.encode())
    assert b"FSDP(model)" in output
    assert "FSDP905" not in capsys.readouterr().out


@pytest.mark.parametrize("indent", ["  ", "\t", "        "])
def test_strings_and_comments_keep_their_bytes_under_any_indentation(tmp_path: Path, indent: str) -> None:
    body = '''
def step(model):
@model = FSDP(model)
@with model.no_sync():
@@text = """first
@@  second
third"""  # a comment
@@other = f"""
@@ {model}
  """
@@model(text, other).backward()
@return model
'''.replace("@", indent)
    strings = {node.value for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Constant)}
    _, output = _rewritten(tmp_path, (WRAP + body).encode())
    assert b"no_sync" not in output
    assert b"# a comment" in output
    assert strings <= {node.value for node in ast.walk(ast.parse(output)) if isinstance(node, ast.Constant)}


@pytest.mark.parametrize("name", ["fully_shard", "fsdp_compat", "FSDPModule"])
def test_a_name_that_the_program_sets_to_none_is_not_what_the_output_calls(tmp_path: Path, name: str) -> None:
    body = "def build(model, **kw):\n    if isinstance(model, FSDP):\n        return FSDP(model, **kw)\n"
    code, output = _rewritten(tmp_path, f"{WRAP}\n{name} = None\n\n{body}".encode())
    assert code == 0
    (found,) = (node for node in ast.walk(ast.parse(output)) if isinstance(node, ast.FunctionDef))
    assert name not in {node.id for node in ast.walk(found) if isinstance(node, ast.Name)}


@pytest.mark.parametrize(
    ("imports", "own"),
    [
        ("import fsdp_compat\n\nfsdp_compat = None\n", True),
        ("try:\n    import fsdp_compat\nexcept ImportError:\n    pass\nfsdp_compat = None\n", True),
        ("try:\n    import fsdp_compat\nexcept ImportError:\n    fsdp_compat = None\n", False),
        ("fsdp_compat = None\ntry:\n    import fsdp_compat\nexcept ImportError:\n    pass\n", False),
        ("fsdp_compat = None\nif True:\n    import fsdp_compat\n", False),
        ("import os\nif os.environ:\n    import fsdp_compat\nelse:\n    fsdp_compat = None\n", False),
    ],
)
def test_a_name_set_to_none_below_its_import_is_the_program_s_own(tmp_path: Path, imports: str, own: bool) -> None:
    code, output = _rewritten(tmp_path, f"{WRAP}{imports}\ndef build(m, **kw):\n    return FSDP(m, **kw)\n".encode())
    assert code == 0
    assert ("fsdp_compat.shard" not in _calls_in("build", output)) is own


@pytest.mark.parametrize(
    "own",
    [
        "def isinstance(value, kind):\n    return False\n",
        "isinstance = print\n",
        "from mine import isinstance\n",
        "try:\n    x\nexcept ValueError as isinstance:\n    pass\n",
        "for isinstance in ():\n    pass\n",
        "def g():\n    global isinstance\n    isinstance = print\n",
    ],
)
def test_a_builtin_that_the_output_needs_is_not_the_program_s_own(
    tmp_path: Path, own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"{WRAP}{own}\ndef f(model):\n    model = FSDP(model)\n    return type(model) is FSDP\n".encode()
    code, output = _rewritten(tmp_path, source)
    assert (code, output) == (2, source)
    assert "its own isinstance" in capsys.readouterr().err


@pytest.mark.parametrize(
    "own",
    [
        "def g(isinstance):\n    return isinstance\n",
        "class C:\n    isinstance = None\n",
        "x = [isinstance for isinstance in ()]\n",
        "y = lambda isinstance: isinstance\n",
        "x.isinstance = 1\n",
    ],
)
def test_another_meaning_elsewhere_is_no_clash(tmp_path: Path, own: str) -> None:
    source = f"{WRAP}{own}\ndef f(model):\n    model = FSDP(model)\n    return type(model) is FSDP\n".encode()
    code, output = _rewritten(tmp_path, source)
    assert code == 0
    assert b"isinstance(model, FSDPModule)" in output


POLICIES = """
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy
"""


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("units_by_size", "auto_wrap_policy=size_based_auto_wrap_policy"),
        ("materialize_unit", "param_init_fn=init"),
        ("children_first", "param_init_fn=init, auto_wrap_policy=ModuleWrapPolicy({Block})"),
        ("sharding_arguments", "sharding_strategy=ShardingStrategy[args.strategy]"),
    ],
)
@pytest.mark.parametrize("own", ["def {}(*given):\n    return []\n", "class {}:\n    pass\n", "from mine import {}\n"])
def test_a_function_that_the_output_defines_is_not_the_program_s_own(
    tmp_path: Path, name: str, argument: str, own: str
) -> None:
    body = f"def build(model, init, args):\n    model = FSDP(model, {argument})\n    return model, {name}\n"
    code, output = _rewritten(tmp_path, f"{WRAP}{POLICIES}\n{own.format(name)}\n{body}".encode())
    assert code == 0
    assert own.format(name).encode() in output
    assert (name in _calls_in("build", output), f"{name}_" in _calls_in("build", output)) == (False, True)
    assert _rewritten(tmp_path, output) == (0, output)


@pytest.mark.parametrize("feed", ["\f", "  \f", "\f\f"])
def test_a_form_feed_before_a_statement_is_named(tmp_path: Path, feed: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = (WRAP + f"\ndef build(model):\n    model.eval()\n{feed}    return FSDP(model)\n").encode()
    compile(source, "train.py", "exec", dont_inherit=True)
    assert _rewritten(tmp_path, source) == (2, source)
    assert "line 5: a form feed precedes a statement" in capsys.readouterr().err


def test_a_form_feed_on_a_line_of_its_own_is_kept(tmp_path: Path) -> None:
    source = (WRAP + "\n\f\ndef build(model):\n    return FSDP(model)\n").encode()
    code, output = _rewritten(tmp_path, source)
    assert (code, b"\n\f\n" in output, b"fully_shard(model)" in output) == (0, True, True)


def test_a_dotted_name_of_thousands_of_parts_is_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "build.py").write_text(WRAP + "\ndef build(model):\n    return FSDP(model)\n")
    far = f"import {'.'.join(['far'] * 3000)}\n"
    (tmp_path / "main.py").write_text(f"{far}from build import build\nbuild(1).module.f()\n")
    assert main(["rewrite", str(tmp_path)]) == 2
    assert "main.py: error: is nested too deeply" in capsys.readouterr().err
    assert "fully_shard(model)" in (tmp_path / "build.py").read_text()
