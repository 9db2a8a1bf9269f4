"""Files that are broken, strange or large: a clear message, and nothing but whole, readable output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.configs.migrate import migrate
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Failed, Skipped
from tests.configs.helpers import check_kept, check_migrates, found, migrated

V1 = """distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: FULL_STATE_DICT
mixed_precision: 'no'
"""


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("distributed_type: FSDP\nfsdp_config:\n\tfsdp_version: 1\n", 3, "cannot start any token"),
        ("distributed_type: FSDP\nfsdp_config: [1, 2\nx: {\n", 3, "cannot be read"),
        ("fsdp_config: 'open\n", 1, "cannot be read"),
        ("{% if x %}\nfsdp_config:\n  fsdp_version: 1\n{% endif %}\n", 1, "template"),
        ("fsdp_config: *nothing\n", 1, "cannot be read"),
    ],
)
def test_unreadable_yaml_is_a_finding(text: str, line: int, said: str) -> None:
    finding = check_kept(text, "FSDP590")
    assert said in finding.message
    assert finding.line == line


@pytest.mark.parametrize(
    "text",
    [
        "run: |\n  cd FSDP\nEOF\n  docker build -t fsdp:pytorch ${{ env.PLACE }}\n",
        "on: {paths: ['pytorch/FSDP/**']}\nx: [\n",
        "# FSDP\n- name: '{{ title }}\n",
    ],
)
def test_words_in_a_broken_file_are_no_work(text: str) -> None:
    assert found(text) == {("FSDP590", "info")}


@pytest.mark.parametrize(
    "text",
    [
        "x: [\nfsdp_config: {}\n",
        "x: [\n- run: accelerate launch --use_fsdp train.py\n",
        "x: [\nactor_rollout_ref.actor.strategy=fsdp\n",
        "x: [\nenv:\n  FSDP_SHARDING_STRATEGY: FULL_SHARD\n",
        '{"a": 1, "fsdp": "full_shard",,}\n',
        "x: [\nstrategy:\n  class_path: lightning.pytorch.strategies.FSDPStrategy\n",
    ],
)
def test_settings_in_a_broken_file_are(text: str) -> None:
    assert found(text, "a.json" if text.startswith("{") else "a.yaml") == {("FSDP590", "manual")}


def test_json_with_comments_is_a_finding() -> None:
    text = '{\n  // sharding\n  "fsdp_config": {"fsdp_version": 1}\n}\n'
    assert check_kept(text, "FSDP590", "a.json").line == 2


def test_jinja_in_values_stays() -> None:
    text = V1 + "num_processes: '{{ gpus }}'\n"
    output, _ = migrated(text)
    assert output.endswith("num_processes: '{{ gpus }}'\n")
    assert "fsdp_version: 2" in output


def test_several_documents_in_one_file() -> None:
    output, _ = migrated(f"{V1}---\nother: fsdp\n---\n{V1}")
    assert output.count("fsdp_version: 2") == 2
    assert "---\nother: fsdp\n---\n" in output


def test_anchors_and_merges_are_not_edited() -> None:
    shared = """
    base: &base
      fsdp_sharding_strategy: FULL_SHARD
    distributed_type: FSDP
    fsdp_config:
      <<: *base
      fsdp_use_orig_params: true
    """
    assert "anchor" in check_kept(shared, "FSDP502").message
    anchored = V1.replace("FULL_SHARD", "&strategy FULL_SHARD")
    assert migrated(anchored)[0] == anchored


@pytest.mark.parametrize(
    ("text", "name", "key"),
    [
        (V1 + "fsdp_config:\n  fsdp_sharding_strategy: 2\n", "a.yaml", "fsdp_config"),
        (V1 + "mixed_precision: bf16\n", "a.yaml", "mixed_precision"),
        ("base_model: m\nfsdp_config:\n  offload_params: true\nfsdp_config:\n  a: 1\n", "a.yaml", "fsdp_config"),
        ("fsdp_config:\n  mixed_precision: PURE\nfsdp_config:\n  mixed_precision: PURE\n", "a.yaml", "fsdp_config"),
        (
            '{"fsdp": "full_shard", "fsdp_config": {"xla": false}, "fsdp_config": {"min_num_params": 0}}',
            "a.json",
            "fsdp",
        ),
        ("actor_rollout_ref:\n  actor:\n    strategy: fsdp\n    strategy: fsdp2\n", "a.yaml", "strategy"),
        (
            "actor_rollout_ref:\n  actor: {strategy: fsdp}\nactor_rollout_ref: {actor: {strategy: fsdp}}\n",
            "a.yaml",
            "actor",
        ),
    ],
)
def test_a_block_that_is_written_twice_keeps_the_file(text: str, name: str, key: str) -> None:
    finding = check_kept(text, "FSDP591", name)
    told = " ".join(one.message for one in migrated(text, name)[1])
    assert f"{key}" in told
    assert "is written twice, and the last value wins" in told
    assert finding.level.value == "manual"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (V1 + "seed: 1\nseed: 2\nmain_process_port: 1\nmain_process_port: 2\n", "a.yaml"),
        ("base_model: m\nfsdp_config:\n  offload_params: true\nseed: 1\nseed: 2\n", "a.yaml"),
        ("fsdp_config:\n  mixed_precision: PURE\nmax_duration: 1\nmax_duration: 2\n", "a.yaml"),
        ('{"fsdp": "full_shard", "seed": 1, "seed": 2, "fsdp_config": {"xla": false}}', "a.json"),
        ("actor_rollout_ref:\n  actor:\n    strategy: fsdp\n    seed: 1\n    seed: 2\n", "a.yaml"),
        (V1 + "notes:\n  strategy: a\n  strategy: b\n", "a.yaml"),
    ],
)
def test_other_keys_that_are_written_twice_keep_nothing(text: str, name: str) -> None:
    output, findings = migrated(text, name)
    assert output != text
    assert "FSDP591" not in {one.rule for one in findings}


def test_a_double_key_that_fsdp2_does_not_have_is_removed_twice() -> None:
    text = V1.replace("  fsdp_state", "  fsdp_forward_prefetch: false\n  fsdp_forward_prefetch: true\n  fsdp_state")
    output, findings = migrated(text)
    assert "prefetch" not in output
    assert "fsdp_version: 2" in output
    assert not [one for one in findings if one.level.value == "manual"]
    check_kept(text.replace("forward_prefetch", "offload_params"), "FSDP505")


def test_an_anchor_that_no_edit_touches_is_fine() -> None:
    output, _ = migrated(V1 + "seed: &seed 1\nother: *seed\n")
    assert "fsdp_version: 2" in output
    assert output.endswith("seed: &seed 1\nother: *seed\n")


def test_odd_forms_keep_every_other_byte() -> None:
    check_migrates(
        """
        # top
        distributed_type:   FSDP   # padded
        fsdp_config:
            # before the strategy
            "fsdp_sharding_strategy"  :   'SHARD_GRAD_OP'   # trailing
            fsdp_forward_prefetch: false # gone with its line

            fsdp_offload_params: no
            # at the end

        mixed_precision: "no"
        """,
        """
        # top
        distributed_type:   FSDP   # padded
        fsdp_config:
            # before the strategy
            "fsdp_reshard_after_forward"  :   false   # trailing

            fsdp_offload_params: no
            "fsdp_version": 2
            "fsdp_state_dict_type": "FULL_STATE_DICT"
            # at the end

        mixed_precision: "no"
        """,
    )


def test_flow_mappings() -> None:
    check_migrates(
        "{distributed_type: FSDP, mixed_precision: 'no', fsdp_config: {fsdp_use_orig_params: true, "
        "fsdp_offload_params: false}}\n",
        "{distributed_type: FSDP, mixed_precision: 'no', fsdp_config: {fsdp_offload_params: false, fsdp_version: 2, "
        "fsdp_state_dict_type: FULL_STATE_DICT}}\n",
    )


def test_a_file_without_a_last_line_break() -> None:
    output, _ = migrated(V1.rstrip("\n").replace("mixed_precision: 'no'", "").rstrip("\n"))
    assert output.endswith("\n  fsdp_version: 2")


def test_a_list_of_configurations() -> None:
    output, _ = migrated("runs:\n- distributed_type: FSDP\n  fsdp_config:\n    fsdp_sharding_strategy: 2\n")
    assert "    fsdp_reshard_after_forward: false\n    fsdp_version: 2\n" in output


def test_large_files_are_skipped() -> None:
    result = migrate(V1.encode() + b"# " + b"x" * 5_000_000, "a.yaml", Settings())
    assert isinstance(result, Skipped)
    assert "1 MB" in result.reason


def test_other_encodings_fail_with_a_place() -> None:
    result = migrate(b"fsdp_config: \xff\n", "a.yaml", Settings())
    assert isinstance(result, Failed)
    assert "UTF-8" in result.error


@pytest.mark.parametrize("text", ["", "fsdp\n", "- fsdp\n", "fsdp_config:\n", "? [fsdp]\n: 1\n", "a: &a [*a, fsdp]\n"])
def test_odd_documents_are_nothing(text: str) -> None:
    assert migrated(text) == (text, ())


def test_depth_is_a_finding() -> None:
    assert found("fsdp: " + "[" * 3000 + "]" * 3000) == {("FSDP590", "manual")}
    assert ("FSDP590", "manual") in found('{"fsdp": ' + "[" * 100_000 + "]" * 100_000 + "}", "a.json")


def test_commands_on_a_single_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "acc.yaml"
    file.write_text(V1)
    assert main(["check", str(file)]) == 1
    assert "FSDP502" in capsys.readouterr().out
    assert main(["rewrite", str(file)]) == 0
    assert "fsdp_version: 2" in file.read_text()
    assert main(["check", str(file)]) == 0


def test_ignore_comments_baseline_and_sarif(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, baseline = tmp_path / "acc.yaml", tmp_path / "known.json"
    file.write_text(V1.replace("FULL_SHARD", "NO_SHARD  # fsdp-migrate: ignore[FSDP502]"))
    assert main(["check", str(file), "--ignore", "FSDP501"]) == 0
    file.write_text(V1 + "# fsdp-migrate: ignore[FSDP599]\n")
    capsys.readouterr()
    assert main(["check", str(file)]) == 2
    assert "FSDP599, which is not a rule" in capsys.readouterr().out
    file.write_text(V1)
    assert main(["check", "--write-baseline", str(baseline), str(file)]) == 0
    assert main(["check", "--baseline", str(baseline), str(file)]) == 0
    capsys.readouterr()
    assert main(["check", "--format", "sarif", str(file)]) == 1
    assert '"ruleId": "FSDP502"' in capsys.readouterr().out


def test_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "config-sharding-strategy"]) == 0
    assert "```yaml" in capsys.readouterr().out


def test_a_page_shows_the_change(tmp_path: Path) -> None:
    file, page = tmp_path / "acc.yaml", tmp_path / "report.html"
    file.write_text(V1)
    assert main(["rewrite", str(file), "--report", str(page)]) == 0
    assert "fsdp_reshard_after_forward" in page.read_text()


@pytest.mark.parametrize(("text", "is_parsed"), [("model: small\nlr: 0.1\n", False), ("fsdp: full\nlr: 0.1\n", True)])
def test_a_file_that_says_nothing_of_fsdp_costs_a_search_of_its_bytes(
    text: str, is_parsed: bool, tmp_path: Path
) -> None:
    for number in range(3):
        (tmp_path / f"{number}.yaml").write_text(text, encoding="utf-8")
    program = (
        "import sys\nfrom fsdp_migrate.cli import main\n"
        "main(['check', sys.argv[1]])\nprint('PARSED', any(name.startswith('ruamel') for name in sys.modules))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert f"PARSED {is_parsed}" in ran.stdout
