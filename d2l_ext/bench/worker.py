"""One model, one method, one batch: `python -m d2l_ext.bench.worker JSON`.

The argument names all of it; `launch` starts this. A line `row {...}` is
printed for each context as soon as it is measured.
"""

import gc
import importlib
import json
import sys
import time

from . import cases
from .measure import measure

BACKENDS = {'torch': 'methods_torch', 'jax': 'methods_jax', 'hf': 'peers'}


def backend_of(method):
    """Its module, and its name there."""
    backend, _, name = method.partition('-')
    return importlib.import_module(
        f'.{BACKENDS[backend]}', __package__), name


def one_row(backend, method, plan, batch, context, num_params, sizes):
    """What was measured, as plain data."""
    def bandwidth():
        return max(backend.bandwidth([plan['megabytes']]).values())

    def before():
        gc.collect()
        backend.forget()
    # around the row: a ceiling from a busier minute would flatter it
    rates = [bandwidth()]
    row = measure(method, plan['repeats'], before)
    row['peak_bytes'] = backend.peak()
    rates.append(bandwidth())
    return dict(row, bandwidth=max(rates), device=backend.device(),
                bytes=cases.step_bytes(sizes, num_params, batch, context))


def rows(plan):
    """A row for each context, or why there is none."""
    sizes, batch = cases.sizes(plan['model']), plan['batch']
    num_params = cases.count_parameters(plan['weights'])
    backend, name = backend_of(plan['method'])
    model = backend.load(sizes, plan['weights'])
    last = None  # (context, seconds of its runs, other seconds) before
    for context in plan['contexts']:
        if last and (needed := last[1] * context / last[0] + last[2]
                     ) > plan['limit']:
            yield dict(context=context, why=f'left out: {needed:.0f} s by '
                       f'the row before, the limit is {plan["limit"]:g} s')
            continue
        start = time.perf_counter()
        method = backend.METHODS[name](
            model, cases.prompts(sizes['vocab_size'], batch, context),
            plan['steps'])
        row = one_row(backend, method, plan, batch, context, num_params,
                      sizes)
        seconds = time.perf_counter() - start
        # compiling takes no longer for a longer context
        runs = (1 + row['repeats']) * (
            row['prefill_s'] + row['steps'] * row['step_s'])
        last = context, runs, max(0, seconds - runs)
        yield dict(row, context=context, seconds=seconds)


def main(argument):
    plan = json.loads(argument)
    if 'save' in plan:
        from .methods_torch import save
        save(plan['model'], plan['save'])
        return
    for row in rows(plan):
        print('row', json.dumps(row), flush=True)


if __name__ == '__main__':
    main(sys.argv[1])
