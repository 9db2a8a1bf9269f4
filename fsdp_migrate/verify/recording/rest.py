"""The rest of a run from some step on, as a run that starts there."""

from __future__ import annotations

from dataclasses import replace

from fsdp_migrate.verify.recording.recording import BadRecording, Recording


def rest(recording: Recording, step: int) -> Recording:
    """What ``recording`` has from ``step`` of each optimizer on, and as its start what it had at that moment.

    :raises BadRecording: an optimizer has made fewer steps.
    """
    going = {one.optimizer for one in recording.steps if one.step >= step}
    for number, start in enumerate(recording.optimizers):
        if number not in going:
            raise BadRecording(f"{start.name} ran no step after {step}: record more steps, or resume earlier")
    until = tuple(one for one in recording.steps if one.step < step)
    later = tuple(replace(one, step=one.step - step) for one in recording.steps if one.step >= step)
    weights = {key: copies for start in recording.optimizers for key, copies in start.weights.items()}
    for one in until:
        weights |= one.weights
    states = {one.optimizer: one.state for one in until}
    optimizers = tuple(
        replace(start, weights={key: weights[key] for key in start.weights}, state=states.get(number, start.state))
        for number, start in enumerate(recording.optimizers)
    )
    buffers = tuple(rank.buffers for rank in until[-1].ranks) if until else recording.first_buffers
    return replace(recording, optimizers=optimizers, first_buffers=buffers, steps=later, until=until)
