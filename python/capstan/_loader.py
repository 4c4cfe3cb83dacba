"""The data of a run in the engine's order."""

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler


class _Order(Sampler):
    """Lists of sample numbers, one a micro-batch of this rank. The order is a function of the sample's place in the run and
    capstan.run.seed, so that a resumed run goes on where it stopped, on any number of processes; or the sampler's, where
    the configuration names one."""

    def __init__(self, engine, samples, drop_last):
        self._engine, self._samples = engine, samples
        facts = engine._facts
        self._rows = facts["micro_batch_size"]
        together = self._rows * engine._core.world_size()
        self._count = max(1, samples // together if drop_last else -(-samples // together))
        if engine._core.has_sampler():
            engine._core.start_sampler(samples, "")

    def __len__(self):
        return self._count

    def __iter__(self):
        core = self._engine._core
        if core.has_sampler():
            yield from self._of_sampler(core)
            return
        from capstan import _core

        facts = self._engine._facts
        position = self._engine._micro_batches()
        for place in range(position, position + self._count):
            first = core.first_sample(place)
            yield _core.order(self._samples, facts["seed"], facts["shuffle"], first, self._rows)

    def _of_sampler(self, core):
        for _ in range(self._count):
            samples = core.step_samples()
            first = core.first_sample(self._engine._micro_batches() % self._engine._facts["accumulation"])
            yield samples[first : first + self._rows]


def loader_of(engine, data, collate_fn=None, num_workers=0, **options):
    """A DataLoader over `data` in micro-batches of this rank."""
    facts = engine._facts
    # Each pass draws a seed for the loader's processes. Out of torch's own generator, a resumed run, which begins a pass that
    # the other one has begun before, would train with other random numbers.
    options.setdefault("generator", torch.Generator().manual_seed(facts["seed"]))
    if isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=facts["micro_batch_size"], collate_fn=collate_fn, num_workers=num_workers,
                          drop_last=facts["drop_last"], **options)
    order = _Order(engine, len(data), facts["drop_last"])
    if engine._core.has_sampler():
        num_workers = 0  # the sampler says the samples of the step under way alone
    return DataLoader(data, batch_sampler=order, collate_fn=collate_fn, num_workers=num_workers, **options)


def loss_of(output):
    """The loss in what a model returns: a tensor, `.loss`, ["loss"], or the first of a tuple. Raises TypeError."""
    if isinstance(output, torch.Tensor):
        return output
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, dict):
        loss = output.get("loss")
    if loss is None and isinstance(output, (tuple, list)) and output:
        loss = output[0]
    if not isinstance(loss, torch.Tensor):
        raise TypeError(
            f"the model returned a {type(output).__name__} without a loss. train_batch() and eval_batch() take the loss from a "
            "tensor, .loss, [\"loss\"] or the first of a tuple; hold the loop yourself for anything else."
        )
    return loss
