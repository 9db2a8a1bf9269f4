"""Ways on which a sharded model, or its parameters, come to an expression: each a program, and the expression in it.

``USE`` stands where the expression is used, indented as it has to be. A program of several files has them by name.
"""

from __future__ import annotations

HEAD = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"

#: The source, the expression of the model, and other files of the program.
MODELS: dict[str, tuple[str, str, dict[str, str]]] = {
    "name": ("def main(net):\n    x = FSDP(net)\n    USE\n", "x", {}),
    "identity": ("def say(m):\n    return m\n\ndef main(net):\n    x = say(FSDP(net))\n    USE\n", "x", {}),
    "identity that prints": (
        "def say(m, text=''):\n    print(text)\n    return m\n\ndef main(net):\n    x = say(FSDP(net), 'a')\n    USE\n",
        "x",
        {},
    ),
    "identity of another file": (
        "from other import say\n\ndef main(net):\n    x = say(FSDP(net))\n    USE\n",
        "x",
        {"other": "def say(m):\n    return m\n"},
    ),
    "conditional": ("def main(net, on):\n    x = FSDP(net) if on else net\n    USE\n", "x", {}),
    "walrus": ("def main(net):\n    if (x := FSDP(net)) is not None:\n        USE\n", "x", {}),
    "tuple": ("def main(net, o):\n    x, y = FSDP(net), o\n    USE\n", "x", {}),
    "starred": ("def main(net, o):\n    y, *x = o, FSDP(net)\n    USE\n", "x[0]", {}),
    "list": ("def main(net):\n    x = [FSDP(net)]\n    USE\n", "x[0]", {}),
    "list, from behind": ("def main(net, o):\n    x = [o, FSDP(net)]\n    USE\n", "x[-1]", {}),
    "dictionary": ("def main(net):\n    x = {'m': FSDP(net)}\n    USE\n", "x['m']", {}),
    "dict()": ("def main(net):\n    x = dict(m=FSDP(net))\n    USE\n", "x['m']", {}),
    "key is assigned": ("def main(net):\n    x = {}\n    x['m'] = FSDP(net)\n    USE\n", "x['m']", {}),
    "get": ("def main(net):\n    x = {'m': FSDP(net)}\n    USE\n", "x.get('m')", {}),
    "values": ("def main(net):\n    x = {'m': FSDP(net)}\n    for one in x.values():\n        USE\n", "one", {}),
    "items": ("def main(net):\n    x = {'m': FSDP(net)}\n    for k, one in x.items():\n        USE\n", "one", {}),
    "append": ("def main(net):\n    x = []\n    x.append(FSDP(net))\n    for one in x:\n        USE\n", "one", {}),
    "enumerate": ("def main(net):\n    for i, one in enumerate([FSDP(net)]):\n        USE\n", "one", {}),
    "zip": ("def main(net, o):\n    for one, b in zip([FSDP(net)], o):\n        USE\n", "one", {}),
    "next of iter": ("def main(net):\n    x = next(iter([FSDP(net)]))\n    USE\n", "x", {}),
    "map": ("def main(nets):\n    for one in map(FSDP, nets):\n        USE\n", "one", {}),
    "comprehension": ("def main(nets):\n    for one in [FSDP(n) for n in nets]:\n        USE\n", "one", {}),
    "generator": (
        "def made(nets):\n    for n in nets:\n        yield FSDP(n)\n\n"
        "def main(nets):\n    for one in made(nets):\n        USE\n",
        "one",
        {},
    ),
    "partial": ("from functools import partial\n\ndef main(net):\n    x = partial(FSDP)(net)\n    USE\n", "x", {}),
    "factory": ("def make(kind):\n    return kind\n\ndef main(net):\n    x = make(FSDP)(net)\n    USE\n", "x", {}),
    "closure": ("def main(net):\n    x = FSDP(net)\n\n    def step():\n        USE\n    step()\n", "x", {}),
    "lambda": ("def main(net):\n    get = lambda: FSDP(net)\n    x = get()\n    USE\n", "x", {}),
    "default": ("M = FSDP(object())\n\ndef main(x=M):\n    USE\n", "x", {}),
    "global": ("x = None\n\ndef main(net):\n    global x\n    x = FSDP(net)\n\ndef step():\n    USE\n", "x", {}),
    "attribute": (
        "class T:\n    def __init__(self, net):\n        self.m = FSDP(net)\n\n    def step(self):\n        USE\n",
        "self.m",
        {},
    ),
    "attribute by setattr": (
        "class T:\n    def __init__(self, net):\n        setattr(self, 'm', FSDP(net))\n\n"
        "    def step(self):\n        USE\n",
        "self.m",
        {},
    ),
    "local that becomes an attribute": (
        "class T:\n    def __init__(self, net):\n        model = FSDP(net)\n        model = model.cuda()\n"
        "        self.m = model\n\n    def step(self):\n        USE\n",
        "self.m",
        {},
    ),
    "property": (
        "class T:\n    def __init__(self, net):\n        self._m = FSDP(net)\n\n    @property\n    def m(self):\n"
        "        return self._m\n\n    def step(self):\n        USE\n",
        "self.m",
        {},
    ),
    "getter": (
        "class T:\n    def __init__(self, net):\n        self._m = FSDP(net)\n\n    def get(self):\n"
        "        return self._m\n\ndef main(net):\n    t = T(net)\n    USE\n",
        "t.get()",
        {},
    ),
    "object of another file": (
        "from other import T\n\ndef main(net):\n    t = T(FSDP(net))\n    USE\n",
        "t.m",
        {"other": "class T:\n    def __init__(self, m):\n        self.m = m\n"},
    ),
    "dataclass": (
        "from dataclasses import dataclass\n\n@dataclass\nclass T:\n    m: object\n\n"
        "def main(net):\n    t = T(FSDP(net))\n    USE\n",
        "t.m",
        {},
    ),
    "dataclass by keyword": (
        "from dataclasses import dataclass\n\n@dataclass\nclass T:\n    n: int\n    m: object\n\n"
        "def main(net):\n    t = T(n=1, m=FSDP(net))\n    USE\n",
        "t.m",
        {},
    ),
    "dataclass that a base class fills": (
        "from other import Base\n\nclass Own(Base):\n    def step(self):\n        USE\n\n"
        "def main(net):\n    Own(FSDP(net)).step()\n",
        "self.held.m",
        {
            "other": "from dataclasses import dataclass\n\n@dataclass\nclass Held:\n    m: object\n\n"
            "class Base:\n    def __init__(self, m):\n        self.held = Held(m)\n"
        },
    ),
    "namespace": (
        "from types import SimpleNamespace\n\ndef main(net):\n    t = SimpleNamespace(m=FSDP(net))\n    USE\n",
        "t.m",
        {},
    ),
    "keywords": (
        "def step(m, n):\n    USE\n\ndef main(net):\n    opts = dict(m=FSDP(net), n=1)\n    step(**opts)\n",
        "m",
        {},
    ),
    "packed keywords": ("def step(**kw):\n    USE\n\ndef main(net):\n    step(m=FSDP(net))\n", "kw['m']", {}),
    "starred arguments": (
        "def step(m, n):\n    USE\n\ndef main(net):\n    a = (FSDP(net), 1)\n    step(*a)\n",
        "m",
        {},
    ),
    "rest": ("def step(*a):\n    USE\n\ndef main(net):\n    step(FSDP(net))\n", "a[0]", {}),
    "argument of another file": (
        "from other import step\n\ndef main(net):\n    step(FSDP(net))\n\ndef own(x):\n    pass\n",
        "m",
        {"other": "def step(m):\n    USE\n"},
    ),
    "callback": (
        "def each(f, m):\n    f(m)\n\ndef step(m):\n    USE\n\ndef main(net):\n    each(step, FSDP(net))\n",
        "m",
        {},
    ),
    "registry": (
        "STEPS = {}\n\ndef step(m):\n    USE\n\nSTEPS['a'] = step\n\ndef main(net):\n    STEPS['a'](FSDP(net))\n",
        "m",
        {},
    ),
    "decorated": (
        "import functools\n\ndef logged(f):\n    @functools.wraps(f)\n    def run(*a, **kw):\n"
        "        return f(*a, **kw)\n    return run\n\n@logged\ndef make(net):\n    return FSDP(net)\n\n"
        "def main(net):\n    x = make(net)\n    USE\n",
        "x",
        {},
    ),
    "context manager": (
        "from contextlib import contextmanager\n\n@contextmanager\ndef made(net):\n    yield FSDP(net)\n\n"
        "def main(net):\n    with made(net) as x:\n        USE\n",
        "x",
        {},
    ),
    "cast": ("import typing\n\ndef main(net):\n    x = typing.cast(object, FSDP(net))\n    USE\n", "x", {}),
    "match": ("def main(net, o):\n    match (FSDP(net), o):\n        case (x, y):\n            USE\n", "x", {}),
    "try": (
        "def main(net):\n    try:\n        x = FSDP(net)\n    except ValueError:\n        raise\n    USE\n",
        "x",
        {},
    ),
    "loop": ("def main(net):\n    x = net\n    for _ in range(1):\n        x = FSDP(x)\n    USE\n", "x", {}),
    "called object": (
        "class Make:\n    def __call__(self, net):\n        return FSDP(net)\n\n"
        "def main(net):\n    x = Make()(net)\n    USE\n",
        "x",
        {},
    ),
}

#: The rules that speak of each use of a model.
MODEL_USES: dict[str, tuple[str, set[str]]] = {
    "module": ("EXPR.module.extra()", {"FSDP206"}),
    "training_state": ("print(EXPR.training_state)", {"FSDP902"}),
    "parameters": ("[p.data.norm() for p in EXPR.parameters()]", {"FSDP227"}),
    "clip_grad_norm_": ("EXPR.clip_grad_norm_(1.0).item()", {"FSDP201"}),
}

#: How ``p`` comes to be a parameter: the source up to its use.
PARAMETERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "loop": ("def main(net):\n    m = FSDP(net)\n    for p in m.parameters():\n        USE\n", "p", {}),
    "named": ("def main(net):\n    m = FSDP(net)\n    for n, p in m.named_parameters():\n        USE\n", "p", {}),
    "list": ("def main(net):\n    ps = list(FSDP(net).parameters())\n    for p in ps:\n        USE\n", "p", {}),
    "index": ("def main(net):\n    ps = list(FSDP(net).parameters())\n    p = ps[0]\n    USE\n", "p", {}),
    "next": ("def main(net):\n    p = next(FSDP(net).parameters())\n    USE\n", "p", {}),
    "next of iter": ("def main(net):\n    p = next(iter(FSDP(net).parameters()))\n    USE\n", "p", {}),
    "filter": (
        "def main(net):\n    m = FSDP(net)\n"
        "    for p in filter(lambda q: q.requires_grad, m.parameters()):\n        USE\n",
        "p",
        {},
    ),
    "chosen": (
        "def main(net):\n    m = FSDP(net)\n    ps = [q for q in m.parameters() if q.requires_grad]\n"
        "    for p in ps:\n        USE\n",
        "p",
        {},
    ),
    "dictionary": (
        "def main(net):\n    d = dict(FSDP(net).named_parameters())\n    for k, p in d.items():\n        USE\n",
        "p",
        {},
    ),
    "dictionary by name": (
        "def main(net):\n    d = dict(FSDP(net).named_parameters())\n    p = d['a.b']\n    USE\n",
        "p",
        {},
    ),
    "comprehended dictionary": (
        "def main(net):\n    d = {n: q for n, q in FSDP(net).named_parameters()}\n    p = d['a']\n    USE\n",
        "p",
        {},
    ),
    "zip": ("def main(net, o):\n    for p, q in zip(FSDP(net).parameters(), o):\n        USE\n", "p", {}),
    "enumerate": ("def main(net):\n    for i, p in enumerate(FSDP(net).parameters()):\n        USE\n", "p", {}),
    "weight": ("def main(net):\n    p = FSDP(net).head.weight\n    USE\n", "p", {}),
    "get_parameter": ("def main(net):\n    p = FSDP(net).get_parameter('a')\n    USE\n", "p", {}),
    "argument": (
        "def step(p):\n    USE\n\ndef main(net):\n    for q in FSDP(net).parameters():\n        step(q)\n",
        "p",
        {},
    ),
    "argument of another file": (
        "from other import step\n\ndef main(net):\n    for q in FSDP(net).parameters():\n        step(q)\n",
        "p",
        {"other": "import torch\n\ndef step(p):\n    USE\n"},
    ),
    "returned": (
        "def first(m):\n    return next(m.parameters())\n\ndef main(net):\n    p = first(FSDP(net))\n    USE\n",
        "p",
        {},
    ),
    "generator": (
        "def of(m):\n    for q in m.parameters():\n        yield q\n\n"
        "def main(net):\n    for p in of(FSDP(net)):\n        USE\n",
        "p",
        {},
    ),
    "attribute": (
        "class T:\n    def __init__(self, net):\n        self.ps = list(FSDP(net).parameters())\n\n"
        "    def step(self):\n        for p in self.ps:\n            USE\n",
        "p",
        {},
    ),
    "groups": (
        "def main(net):\n    o = torch.optim.SGD(FSDP(net).parameters(), lr=1.0)\n"
        "    for g in o.param_groups:\n        for p in g['params']:\n            USE\n",
        "p",
        {},
    ),
    "walrus": ("def main(net):\n    if (p := next(FSDP(net).parameters())) is not None:\n        USE\n", "p", {}),
    "conditional": (
        "def main(net, on, o):\n    p = next(FSDP(net).parameters()) if on else o\n    USE\n",
        "p",
        {},
    ),
    "pair": (
        "def main(net):\n    for pair in FSDP(net).named_parameters():\n        p = pair[1]\n        USE\n",
        "p",
        {},
    ),
    "chain": (
        "import itertools\n\ndef main(net, o):\n"
        "    for p in itertools.chain(FSDP(net).parameters(), o):\n        USE\n",
        "p",
        {},
    ),
    "getattr": ("def main(net):\n    m = FSDP(net)\n    for p in getattr(m, 'parameters')():\n        USE\n", "p", {}),
    "identity": (
        "def say(x):\n    return x\n\ndef main(net):\n    for p in say(FSDP(net).parameters()):\n        USE\n",
        "p",
        {},
    ),
}
#: What is done to one parameter; all are FSDP227's or FSDP225's.
OPERATIONS: dict[str, tuple[str, set[str]]] = {
    use: (use.replace("X", "EXPR"), {"FSDP217", "FSDP226", "FSDP227"})
    for use in (
        "print(float(X.norm() * 2), torch.cat([X]))",
        "torch.topk(X, 2)",
        "X.data_ptr()",
        "X.view(-1).add_(1)",
        "torch.nn.init.normal_(X)",
        "X.data = torch.zeros(2)",
        "X.std().mul_(2)",
        "X.unbind(0)",
    )
}
