"""What names say by their own text, wherever they are."""

from __future__ import annotations

import re

#: What is beside models in tuples, by what people call it.
NO_MODEL = re.compile(
    r"^opts?$|optim|sched|loss|data|loader|batch|args|conf|cfg|scaler|tokenizer|processor|step|epoch|lr$|rank|device|seed",
    re.IGNORECASE,
)
