"""The interpretation of a tree: modules, then functions that nothing calls, until nothing changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set

from fsdp_rules.ir.operations import Body
from fsdp_rules.project.programs import Programs
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.attributes import Attributes
from fsdp_rules.values.by_name import ByName
from fsdp_rules.values.calling import Calls
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.items import Items
from fsdp_rules.values.model_wraps import Wraps
from fsdp_rules.values.modules import Modules, Scopes
from fsdp_rules.values.store import Store

#: How many frames there may be for functions that nothing calls to be run still.
MOST_FRAMES = 6_000


class Interpreter:
    """``sources`` are the files that may be read, by path; they are when something of them is imported.

    ``kept`` are the wraps that stay FSDP1's: what they give is no model here. ``programs`` say which files may run
    together; without them any may.
    """

    def __init__(
        self,
        sources: Mapping[str, bytes],
        kept: Collection[tuple[str, int]] = (),
        programs: Programs | None = None,
        store: Store | None = None,
    ) -> None:
        self.kept = kept
        self.store = store or Store()
        self.objects = self.store.objects
        self.frames: list[Frame] = []
        #: The functions that are defined, in the order in which their definitions ran.
        self.defined: list[Obj] = []
        self.state_types: list[int] = []
        self.scopes = Scopes(self)
        self.modules = Modules(self, sources)
        self.items = Items(self)
        self.attributes = Attributes(self)
        self.may_share = (programs or Programs()).may_share
        self.by_name = ByName(self, self.may_share)
        self.wraps = Wraps(self)
        self.calls = Calls(self)
        self.is_complete = True
        #: Whether some of the tree was left out, since there is so much of it.
        self.is_bounded = False

    def frame(self, body: Body, parent: Frame | None) -> Frame:
        """A new frame for ``body``."""
        base = self.store.cells(body.size + 2)
        made = Frame(body, base, parent, base + body.size, base + body.size + 1)
        self.frames.append(made)
        return made

    def run(self, start: Iterable[str], alone: Collection[str]) -> None:
        """Run the files ``start``, what they import, and then the functions of the files ``alone`` that nothing calls.

        Of a large tree the first of them, and of what these import at least what they read.
        """
        for path in start:
            if self.modules.is_full:
                self.is_bounded = True
            else:
                self.modules.run(path)
        self._carry_on()
        seen, left = 0, list[Obj]()
        # Once at least: what a module does with keys that nothing fills is settled where it defines no function, too.
        new: list[Obj] | None = None
        while self.is_complete and (new != [] or seen < len(self.defined)):
            # What runs may define functions in turn, and make objects.
            left, seen = [*left, *self.defined[seen:]], len(self.defined)
            # What no scope reads has no caller here; what it calls in turn is no longer open to anything.
            places = {path: place for place, path in enumerate(alone)}
            made = {one.data[0] for one in self.objects.of_kind(Kind.INSTANCE)}
            new = [one for one in left if self._is_open(one, places, made)]
            left = [one for one in left if not self._is_open(one, places, made)]
            for one in sorted(new, key=lambda function: self._rank(function, places)):
                if self.is_complete and not self.calls.is_called(one):
                    self._run_alone(one)
            self._carry_on()
            if self.is_complete:
                self.items.settle()
                self.attributes.settle()
                self._carry_on()

    def finish(self) -> None:
        """Take what is not read for anything, and note what the wraps are given: nothing runs after this."""
        self.is_bounded |= self.store.give_up()
        for frame in self.frames:
            self.wraps.hand_on(frame)
        self.is_complete = self.store.run() and self.is_complete
        self.is_bounded |= not self.is_complete

    def _carry_on(self) -> None:
        """Run until nothing changes any more, and nothing is left that an import may give."""
        self.is_complete = self.store.run()
        self.store.demand_all(lambda: self.modules.is_full)
        self.is_complete = self.is_complete and self.store.run()

    def _run_alone(self, function: Obj) -> None:
        if len(self.frames) < MOST_FRAMES:
            self.calls.run_alone(function)
            self.is_complete = self.store.run()
        else:
            self.is_bounded = True

    def _is_open(self, function: Obj, alone: Mapping[str, int], made: Set[object]) -> bool:
        """Whether code that this tool cannot see may call ``function``.

        By its name, for a class below its own, or, of a class of which something is ``made``, as a module's forward.
        """
        around = function.data.frame
        owner = around.owner.data if around.body.kind == "class" else None
        below = owner.below if owner is not None else ()
        is_forward = function.data.body.name == "forward" and not made.isdisjoint((owner, *below))
        return is_forward or function.data.body.path in alone or any(one.body.path in alone for one in below)

    def _rank(self, function: Obj, alone: Mapping[str, int]) -> tuple[bool, int]:
        """In which order functions that nothing calls are run: what no scope reads first, then by their files."""
        body = function.data.body
        return body.name in self.modules.read, alone.get(body.path, len(alone))
