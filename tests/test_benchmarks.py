"""Every measurement in the repository says when, where and with what it was made."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.human_migrations.later import outcome
from benchmarks.human_migrations.page import PAGE, commits, text
from benchmarks.human_migrations.run import measure
from benchmarks.llama import Shape
from benchmarks.prefetch_in_flight import measured

MEASURED = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.json"))


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_a_measurement_has_its_conditions(path: Path) -> None:
    found = json.loads(path.read_text())
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", found["date"])
    assert re.fullmatch(r"3\.\d+\.\d+", found["versions"]["python"])
    assert found["machine"]["device"]
    assert found["machine"]["cores"] > 0
    assert path.with_name(f"{path.stem.removesuffix('_cuda')}.py").exists()


def test_the_page_about_checkpoints_says_what_was_measured() -> None:
    found = json.loads((MEASURED[0].parent / "checkpoint_convert.json").read_text())
    sizes = [found[name] for name in ("tensors_of_one_size", "one_large_tensor")]
    runs = [run for size in sizes for run in size["conversions"].values()]
    page = " ".join((MEASURED[0].parents[1] / "docs/checkpoints.md").read_text().split())
    for name, said in (
        ("memory_factor", "{} to {} times the largest tensor"),
        ("read_again", "took {} to {} times as"),
    ):
        values = [run[name] for run in runs]
        assert said.format(round(min(values), 1), round(max(values), 1)) in page
    assert f"With {sizes[0]['gib']} and {sizes[1]['gib']} GiB of tensors" in page
    written = found["of_2_gib"]["conversions"]["full to safetensors"]
    assert f"a peak of {written['max_rss_mib']:.0f} MiB of resident memory" in page
    assert f"{written['cpu_s']:.1f} seconds of CPU time, {written['ratio']['cpu']:.1f} times as much" in page
    turns = found["of_2_gib"]["turns"]
    copied, synced = turns["save_file"], turns["save_file, on disk"]
    speed = (copied["speed_of_ours"]["wall"], copied["lowest"]["wall"], synced["speed_of_ours"]["wall"])
    assert all(f"{value:.2f} " in page for value in speed)
    assert f"has {synced['speed_of_ours']['work']} times the speed of the copy that waits for the disk" in page
    assert f"and {copied['speed_of_ours']['work']} times that of the other" in page
    assert min(speed) >= 0.9
    assert "load_average" in found


def test_the_page_about_tune_says_what_was_measured() -> None:
    found = json.loads((MEASURED[0].parent / "tune_order.json").read_text())
    page = " ".join((MEASURED[0].parents[1] / "docs/tune.md").read_text().split())
    assert f"{found['right']['own']} of {found['pairs']} are in the predicted order" in page
    assert f"{found['right']['wall']} by the clock of a loaded machine" in page
    assert found["right"]["own"] >= 0.95 * found["pairs"]


def test_tuned_layouts_are_smaller_than_fsdp1_and_no_slower() -> None:
    found = json.loads((MEASURED[0].parent / "tuned.json").read_text())
    page = (MEASURED[0].parents[1] / "docs/tune.md").read_text()
    assert [run["ranks"] for run in found["runs"]] == [2, 4]
    for run in found["runs"]:
        tuned = run["programs"]["tuned"]
        assert tuned["peak_to_fsdp1"] <= 0.93
        assert tuned["own_to_fsdp1"] <= 1
        assert tuned["moved"] <= run["programs"]["fsdp1"]["moved"]
        assert (run["said"]["collectives"], run["said"]["moved"]) == (tuned["collectives"], tuned["moved"])
        row = f"| {run['ranks']} | {run['layout']} | {tuned['collectives']} |"
        assert row in page
    assert all(row["same_losses"] for row in found["runs"][0]["programs"].values())


def test_as_many_all_gathers_are_in_flight_as_under_fsdp1() -> None:
    found = measured(Shape(3, 16, 8, 1), "cpu", 2)
    assert found["without"]["in_flight"] == {name: [0, 0, 0] for name in ("fsdp1", "native", "shim")}
    assert found["with"]["in_flight"] == {name: [1, 1, 0] for name in ("fsdp1", "native", "shim")}
    assert found["with"]["ratio"] == {"native": 1.0, "shim": 1.0}


def test_the_page_about_migrations_by_hand_says_what_was_measured() -> None:
    assert PAGE.read_text(encoding="utf-8") == text()
    assert len({entry["commit"] for entry in commits()}) == len(commits())


def test_a_commit_is_set_beside_the_rewrite_of_the_tree_before_it(tmp_path: Path) -> None:
    project, file = tmp_path / "theirs", tmp_path / "theirs/train.py"
    project.mkdir()
    head = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\ndef build(model):\n"
    for code in ("    return FSDP(model, use_orig_params=True)\n", "    return fully_shard(model)\n"):
        file.write_text(head + code)
        for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm a"):
            subprocess.run(["git", *words.split()], cwd=project, check=True)
    bug = {"what": "nothing is sharded", "avoids": r"fully_shard\("}
    row = measure(project / ".git", {"repository": "a/b", "commit": "HEAD", "later": [bug]}, tmp_path / "work")
    assert row["seconds"] > 0
    assert (row["files"], row["human"], row["tool"]) == (1, (1, 1), (2, 2))
    assert (row["native"], row["helper"], row["left"], row["imports"]) == (1, 0, 0, 0)
    assert row["later"] == ["avoids"]


def test_a_bug_that_the_output_has_counts_before_a_finding() -> None:
    bug = {"has": "state = {}", "avoids": "load", "names": ["FSDP105"]}
    found = [{"rule": "FSDP105"}]
    assert outcome(bug, found, {"a.py": ""}, {"a.py": "state = {}\nload(state)\n"}) == "has"
    assert outcome(bug, found, {"a.py": ""}, {"a.py": "load()\n"}) == "avoids"
    assert outcome(bug, found, {"a.py": "load()\n"}, {"a.py": "load()\n"}) == "names"
    assert outcome(bug, [], {"a.py": ""}, {"a.py": "pass\n"}) == "unjudged"
