"""Reading and judging checkpoints, without ever executing what a pickle asks for.

:func:`opened.open_all` gives every checkpoint at or under a path as an :class:`opened.Checkpoint`; what is broken in it
is told there and not raised. Its ``entries`` map keys to :class:`model.TensorEntry` (shape, dtype and the chunks that
cover it, each :class:`model.Bytes` or :class:`model.Item` in a file) and :class:`model.ValueEntry`. A chunk in an
``Item`` is a file of ``torch.save`` of its own, and :func:`torchfile.tensor_in` tells where in it the bytes lie.
:func:`judge.judge` gives the findings about a checkpoint, :mod:`traits` what its keys tell about optimizers, flat
parameters and ties, and :mod:`loading` the code that loads it.

Nothing here needs torch.
"""
