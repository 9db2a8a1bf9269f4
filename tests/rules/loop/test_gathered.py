"""What reaches parameters after a forward: where a model is what they are asked of, and nowhere else."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import check_noop, findings, rewrite, rewrite_tree

#: A loop whose model, optimizer and settings come out of one tuple in a list, made in another file.
UNPACKED = """
def step(args, model, optimizer, data):
    for batch in data:
        loss = model(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
MAKER = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from example import step

def build(args):
    model = FSDP(torch.nn.Linear(2, 2), use_orig_params=True)
    optimizer = torch.optim.AdamW([{"params": model.parameters(), "weight_decay": args.decay}], lr=args.lr)
    return args, model, optimizer, range(3)

def main(settings):
    fixtures = []
    for setting in settings:
        (args, model, optimizer, data) = build(setting)
        fixtures.append((args, model, optimizer, data))
    for fixture in fixtures:
        args, model, optimizer, data = fixture
        step(args, model, optimizer, data)
"""


def test_an_optimizer_out_of_the_same_tuple_is_no_model() -> None:
    check_noop(UNPACKED, maker=MAKER)


def test_settings_out_of_the_same_tuple_are_no_model() -> None:
    assert [found.rule for found in findings(MAKER, example2=UNPACKED) if found.rule in ("FSDP117", "FSDP220")] == []


def test_a_change_in_place_after_an_evaluation_is_for_the_reader() -> None:
    source = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        "def run(net, batch):\n    model = FSDP(net, use_orig_params=True)\n    model(batch)\n"
        "    for parameter in model.parameters():\n        parameter.data.mul_(0.9)\n"
    )
    assert [found.level.value for found in findings(source) if found.rule == "FSDP239"] == ["manual"]


def test_a_model_that_was_just_made_is_not_gathered() -> None:
    source = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        "def run(net, batch):\n    model = FSDP(net, use_orig_params=True)\n    model(batch)\n"
        "    model = {made}\n    for parameter in model.parameters():\n        print(parameter)\n"
        "    model = FSDP(model, use_orig_params=True)\n"
    )
    for made, reported in (("Net()", False), ("model.to(0)", True)):
        found = findings(source.format(made=made))
        assert ("FSDP220" in [entry.rule for entry in found]) is reported, made


def test_what_only_counts_parameters_is_the_same_for_gathered_ones() -> None:
    source = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        "def run(net, batch):\n    model = FSDP(net, use_orig_params=True)\n    model(batch)\n"
        "    return sum(parameter.{read} for parameter in model.parameters())\n"
    )
    for read, reported in (("numel()", False), ("sum()", True)):
        assert ("FSDP220" in [entry.rule for entry in findings(source.format(read=read))]) is reported, read


def test_what_only_reads_names_is_the_same_for_gathered_parameters() -> None:
    source = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        "def run(net, batch):\n    model = FSDP(net, use_orig_params=True)\n    model(batch)\n"
        "    return [name for name, {value} in model.named_parameters() if {test}]\n"
    )
    for value, test, reported in (("_", "name", False), ("value", "value.sum()", True)):
        found = [entry.rule for entry in findings(source.format(value=value, test=test))]
        assert ("FSDP220" in found) is reported, value


def test_a_model_above_its_one_fully_shard_is_not_gathered() -> None:
    source = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard\n\n"
        "def run(net, batch):\n    # TODO(fsdp-migrate FSDP101): by hand\n    net = FSDP(net, unknown=1)\n"
        "    net(batch)\n    for value in net.parameters():\n        value.data.zero_()\n{below}"
    )
    for below, reported in (("    fully_shard(net)\n", False), ("    if batch:\n        fully_shard(net)\n", True)):
        assert ("FSDP220" in [entry.rule for entry in findings(source.format(below=below))]) is reported, below


def test_a_model_that_the_function_wraps_has_run_in_no_call_before() -> None:
    source = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        "def main(args, net, x):\n    model = net\n    if args.fsdp:\n        model = FSDP(net, use_orig_params=True)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n    model(x)\n    return optimizer\n"
    )
    twice = "from example import main\n\nmain(a, b, c)\nmain(a, b, c)\n"
    assert [found.rule for found in findings(source, twice=twice) if found.rule == "FSDP220"] == []


def test_fsdp1s_own_functions_are_not_about_gathered_parameters() -> None:
    source = """
    import contextlib
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    def train(net, batches, sharded):
        model = FSDP(net)
        with torch.no_grad():
            model(batches[0])
        around = lambda: FSDP.summon_full_params(model, recurse=False) if sharded else contextlib.nullcontext()
        with around():
            model.generate(batches[0])
    """
    assert "FSDP220" not in {found.rule for found in findings(source)}


READS = {
    "average.copy_(model.head.weight)": "safe",
    "total += model.head.weight.sum()": "safe",
    "average.lerp_(model.head.weight.data, 0.1)": "safe",
    "torch._foreach_copy_(averages, list(model.parameters()))": "safe",
    "keep(model.head.weight).add_(1)": "safe",
    "model.head.weight.mul_(2)": "manual",
    "model.head.weight.data.view(-1).zero_()": "manual",
    "model.head.weight[0] = 0": "manual",
    "torch.nn.init.ones_(model.head.weight)": "manual",
    "next(model.parameters()).data.zero_()": "manual",
    "torch._foreach_mul_(list(model.parameters()), 0.9)": "manual",
    "torch.nn.utils.vector_to_parameters(vector, model.parameters())": "manual",
}


@pytest.mark.parametrize(("line", "level"), READS.items(), ids=READS.keys())
@pytest.mark.parametrize("owner", ["model", "self.net"])
def test_only_what_is_called_on_a_parameter_changes_it(line: str, level: str, owner: str) -> None:
    source = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        "def run(self, net, x, average, averages, total, vector, keep):\n"
        f"    {owner} = FSDP(net, use_orig_params=True)\n    with torch.no_grad():\n        {owner}(x)\n"
        f"        {line.replace('model.', f'{owner}.')}\n"
    )
    found = {found.rule: found.level.value for found in findings(source)}
    assert found["FSDP220"] == "safe"
    assert found.get("FSDP239", "safe") == level


@pytest.mark.parametrize(
    "arguments", ["", ", sync_module_states=True", ", sync_module_states=rank == 0", ", sync_module_states=args.sync"]
)
@pytest.mark.parametrize("init", ["param_init_fn=init", ""])
def test_a_second_run_says_nothing_about_what_initialises_units(arguments: str, init: str) -> None:
    source = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        "model: nn.Module = FSDP(model, unknown_argument=1)\nmodel.eval(); out = model(x); model.train()\n"
        f"with torch.device('meta'):\n    pass\nmodel = FSDP(model, {(init + arguments).lstrip(', ')})\n"
    )
    once = rewrite(source)
    assert isinstance(once, Changed)
    again = rewrite(once.source)
    assert again.source == once.source if isinstance(again, Changed) else isinstance(again, Unchanged)


@pytest.mark.parametrize(("below", "reported"), [("fully_shard(net)", False), ("net.train()", True)])
def test_a_function_that_is_given_what_its_callers_shard_afterwards(below: str, reported: bool) -> None:
    source = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard\n\n"
        "def fill(part):\n    for value in part.parameters():\n        value.data.zero_()\n\n"
        "def run(net, batch):\n    # TODO(fsdp-migrate FSDP101): by hand\n    net = FSDP(net, unknown=1)\n"
        f"    net(batch)\n    fill(net)\n    {below}\n"
    )
    assert ("FSDP220" in [entry.rule for entry in findings(source)]) is reported


@pytest.mark.parametrize(("read", "resharded"), [("p.full_tensor().clone()", False), ("p.clone()", True)])
def test_what_reads_dtensors_is_code_of_fsdp2(read: str, resharded: bool) -> None:
    """A first run has written it, where a second one finds a wrap that was left by hand."""
    source = f"""
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def run(net, x):
    model = FSDP(net)
    with torch.no_grad():
        model(x)
    return {{name: {read} for name, p in model.named_parameters()}}
"""
    assert ("FSDP220" in {found.rule for found in findings(source)}) == resharded


@pytest.mark.parametrize(
    ("imported", "name"),
    [
        ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP", "FSDP"),
        ("from torch.distributed.fsdp import FullyShardedDataParallel", "FullyShardedDataParallel"),
        ("import torch.distributed.fsdp as fsdp", "fsdp.FullyShardedDataParallel"),
    ],
)
def test_a_test_for_the_class_under_any_of_its_names_is_no_test_for_another_wrapper(imported: str, name: str) -> None:
    source = (
        f"{imported}\n\ndef run(net, batches):\n    model = {name}(net, use_orig_params=True)\n"
        f"    for batch in batches:\n        model(batch)\n"
        f"        if isinstance(model, {name}):\n            model.zero_grad()\n"
    )
    assert "FSDP220" in {found.rule for found in findings(source)}
    other = source.replace(f"isinstance(model, {name})", "isinstance(model, DistributedDataParallel)")
    assert "FSDP220" not in {found.rule for found in findings(other)}


@pytest.mark.parametrize(
    ("asked", "other"),
    [
        ("cfg.data_parallel > 1", False),
        ("cfg.strategy == 'data_parallel'", False),
        ("isinstance(model, torch.nn.DataParallel)", True),
        ("cfg.distributed_data_parallel", True),
    ],
)
def test_data_parallelism_is_no_other_wrapper_by_its_name(asked: str, other: bool) -> None:
    source = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        "def run(net, batches, cfg):\n    model = FSDP(net, use_orig_params=True)\n    for batch in batches:\n"
        f"        model(batch)\n        if {asked}:\n            model.zero_grad()\n"
    )
    assert ("FSDP220" in {found.rule for found in findings(source)}) is not other


STEP = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

class Trainer:
    def __init__(self, net, make):
        self.model = FSDP(net, sharding_strategy=ShardingStrategy.{strategy}, use_orig_params=True)
        self.optimizer = make(self.model)

    def step(self, batch, scaler):
        loss = self.model(batch).sum()
        {between}
        loss.backward()
        self.optimizer.step()
"""


def between(text: str, strategy: str = "FULL_SHARD") -> tuple[str, list[str]]:
    """What ``text`` between a forward and its backward becomes, and the levels of what is said about it."""
    result = rewrite(STEP.format(between=text, strategy=strategy))
    assert isinstance(result, Changed)
    after = result.source.decode()
    assert isinstance(rewrite(after), Unchanged), "a second run changes the output"
    return after, [found.level.value for found in result.findings if found.rule == "FSDP220"]


@pytest.mark.parametrize(
    "text",
    [
        "device = next(self.model.parameters()).device",
        "p = next(iter(self.model.parameters())); loss = loss.to(p.device, p.dtype)",
        "names = [name for name, p in self.model.named_parameters() if p.requires_grad and p.ndim > 1]",
        "count = sum(p.numel() for p in self.model.parameters() if p.is_floating_point())",
        "count = len(list(self.model.parameters()))",
        "for name, p in self.model.named_parameters(): print(name, p.shape, p.dtype)",
        "trained = [p for p in self.model.parameters() if p.requires_grad]; loss = loss / len(trained)",
    ],
)
def test_what_is_the_same_of_gathered_parameters_needs_no_shards(text: str) -> None:
    after, said = between(text)
    assert "reshard()" not in after and said == []


LOOKING = """

def note(what, parameters):
    {body}
"""


@pytest.mark.parametrize(
    ("body", "is_alike"),
    [
        ("return what, next(iter(parameters)).device", True),
        ("return {str(p.dtype): p.shape for p in list(parameters)}", True),
        ("first = [*parameters][0]; return first.numel() if first.requires_grad else 0", True),
        ("return other(parameters)\n\ndef other(given): return len(list(given))", True),
        ("return [p.sum() for p in parameters]", False),
        ("return parameters", False),
        ("seen.extend(parameters)", False),
        ("return other(parameters)\n\ndef other(given): return given if given else other(list(given))", False),
        ("keep = parameters; return lambda: keep", False),
    ],
)
@pytest.mark.parametrize(
    "call", ["note('x', self.model.parameters())", "note(parameters=self.model.parameters(), what=0)"]
)
def test_a_function_that_looks_at_parameters_is_followed(body: str, is_alike: bool, call: str) -> None:
    for own in ("", "looking"):
        step, looking = STEP.format(between=call, strategy="FULL_SHARD"), LOOKING.format(body=body)
        files = {"looking.py": looking.encode(), "train.py": f"from looking import note\n{step}".encode()}
        result = rewrite_tree(files)["train.py"] if own else rewrite(step + looking)
        assert isinstance(result, Changed)
        assert (b"reshard()" not in result.source) is is_alike


@pytest.mark.parametrize("call", ["scaler(loss, parameters=self.model.parameters())", "scaler.run(loss, self.model)"])
def test_what_is_given_the_loss_runs_the_backward_first(call: str) -> None:
    source = STEP.replace("loss.backward()", "pass").format(between=call, strategy="FULL_SHARD")
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b"reshard()" not in result.source


def test_gradients_are_cleared_above_the_forward_of_their_backward() -> None:
    after, said = between("self.model.zero_grad(set_to_none=True)")
    assert said == ["safe"]
    cleared, forward = after.index("self.model.zero_grad(set_to_none=True)"), after.index("self.model(batch)")
    assert after.index("reshard()") < cleared < forward


@pytest.mark.parametrize(("strategy", "reshards"), [("FULL_SHARD", True), ("SHARD_GRAD_OP", False)])
def test_values_are_read_whole_where_fsdp1_keeps_them(strategy: str, reshards: bool) -> None:
    after, said = between("loss = loss + sum(p.square().sum() for p in self.model.parameters())", strategy)
    assert ("reshard()" in after) is reshards
    assert said == (["review"] if reshards else [])


def test_nothing_is_written_about_the_name_of_a_comprehension() -> None:
    after, said = between("kept = [(p, p.mean()) for part in (self.model, ema) for p in part.parameters()]")
    assert "part.modules()" not in after and said == ["review"]


def test_a_reshard_before_a_backward_says_what_it_costs() -> None:
    source = STEP.format(between="for p in self.model.parameters(): p.requires_grad = False", strategy="FULL_SHARD")
    (found,) = (found for found in findings(source) if found.rule == "FSDP220")
    assert "gathers it a second time" in found.message and "line 11" in found.advice


def test_a_weight_of_the_root_in_the_loss_is_as_whole_as_under_fsdp1() -> None:
    source = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(net, batches, optimizer, chunked):
    model = FSDP(net)
    for batch, labels in batches:
        outputs = model(batch)
        loss = chunked(outputs, model.lm_head.weight, labels)
        loss.backward()
        optimizer.step()
"""
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b"reshard()" not in result.source


@pytest.mark.parametrize(
    ("average", "said"),
    [
        ("from averages import Average", []),
        ("from torch_ema import ExponentialMovingAverage as Average", ["manual"]),
    ],
)
def test_what_a_function_of_the_tree_reads_is_judged_in_it(average: str, said: list[str]) -> None:
    averages = """
from contextlib import contextmanager
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Average:
    @contextmanager
    def applied(self, model):
        with FSDP.summon_full_params(model, writeback=False):
            self.kept = [p.clone() for p in model.parameters()]
        yield
"""
    source = f"""
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{average}

def evaluate(net, x):
    model = FSDP(net)
    ema = Average()
    model(x)
    with ema.applied(model):
        model(x)
"""
    found = findings(source, None, averages=averages)
    assert [one.level.value for one in found if one.rule == "FSDP220"] == said


ARMS = {
    "both arms": ("if amp: scaler.scale(loss).backward()", "else: loss.backward()", False),
    "one arm": ("if amp: scaler.scale(loss).backward()", "", True),
    "three arms": (
        "if amp: scaler.scale(loss).backward()",
        "elif scaler: loss.backward()\n            else: loss.sum().backward()",
        False,
    ),
    "two of three": ("if amp: scaler.scale(loss).backward()", "elif scaler: loss.backward()", True),
    "a forward after it": ("if amp: loss.backward()", "else: loss.backward(); model(x)", True),
    "a forward before it": ("if amp: loss.backward()", "else: model(x).sum().backward()", False),
}


@pytest.mark.parametrize("arms", ARMS)
@pytest.mark.parametrize("average", ["ext.average(model.parameters())", "average(model)"])
def test_a_backward_in_each_arm_of_a_test_is_the_last_pass(arms: str, average: str) -> None:
    first, other, reshards = ARMS[arms]
    source = f"""
import ext
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def average(model):
    ext.average(model.parameters())

def train(net, loader, amp, scaler):
    model = FSDP(net)
    for epoch in range(3):
        for x in loader:
            loss = model(x).mean()
            {first}
            {other}
        {average}
"""
    done = rewrite(source)
    assert isinstance(done, Changed)
    assert ("unit.reshard()" in done.source.decode()) is reshards


CALLED_BY_NAME = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Norms:
    def __init__(self, trainer):
        self.trainer = trainer
    def {method}(self):
        self.norms = [p.detach().clone() for p in self.trainer.model.parameters()]

class Trainer:
    def __init__(self, net):
        self.model = FSDP(net, use_orig_params=True)
        self.hooks = [Norms(self)]
    def call(self, event):
        for hook in self.hooks:
            {called}
    def evaluate(self, batches):
        with torch.no_grad():
            for batch in batches:
                self.model(batch)
        self.call("after_evaluation")
"""


@pytest.mark.parametrize(
    ("method", "called", "reshards"),
    [
        ("after_evaluation", "getattr(hook, event)()", True),
        ("after_evaluation", "getattr(hook, event, print)()", True),
        ("another", "getattr(hook, event)()", False),
        ("after_evaluation", "print(event)", False),
    ],
)
def test_a_method_that_is_called_by_its_name(method: str, called: str, reshards: bool) -> None:
    result = rewrite(CALLED_BY_NAME.format(method=method, called=called))
    assert isinstance(result, Changed)
    assert (b"reshard()" in result.source) is reshards


TWO = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(maker, judge, batches, shadow):
    maker = FSDP(maker, use_orig_params=True)
    judge = FSDP(judge, use_orig_params=True)
    optimizer = torch.optim.SGD(judge.parameters(), lr=0.1)
    for batch in batches:
        {made}
        (judge(made) - judge(batch)).mean().backward()
        optimizer.step()
        for mine, theirs in zip(shadow, maker.parameters()):
            mine.lerp_(theirs, 0.1)
"""


@pytest.mark.parametrize(
    ("made", "reshards"),
    [
        ("made = maker(batch).detach()", True),
        ("with torch.no_grad(): made = maker(batch)", True),
        ("with torch.inference_mode(): made = maker(batch)", True),
        ("made = maker(batch)", False),
    ],
)
def test_the_backward_of_another_model_reshards_nothing(made: str, reshards: bool) -> None:
    result = rewrite(TWO.format(made=made))
    assert isinstance(result, Changed)
    assert (b"in maker.modules()" in result.source) is reshards
    assert b"in judge.modules()" not in result.source


@pytest.mark.parametrize(
    ("after", "reshards"),
    [
        ("loss = judge(maker(batch)).mean()\n        loss.backward()", False),
        ("maker(batch).sum().backward()", False),
        ("if batch.any():\n            maker(batch).sum().backward()", True),
        ("judge(batch).sum().backward()", True),
    ],
)
def test_a_backward_of_its_own_reshards_it(after: str, reshards: bool) -> None:
    source = TWO.format(made="with torch.no_grad(): made = maker(batch)")
    result = rewrite(source.replace("        for mine", f"        {after}\n        for mine"))
    assert isinstance(result, Changed)
    assert (b"in maker.modules()" in result.source) is reshards


def test_the_backward_of_the_only_model_reshards_it() -> None:
    source = (
        TWO.format(made="with torch.no_grad(): made = judge(batch)")
        .replace("maker, judge", "judge")
        .replace("maker", "judge")
    )
    result = rewrite(source.replace("    judge = FSDP(judge, use_orig_params=True)\n", "", 1))
    assert isinstance(result, Changed)
    assert b"reshard()" not in result.source
