"""Workers: start one, collect its rows, end it when it takes too long."""

import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path

from .cases import PEERS

ROOT = Path(__file__).resolve().parents[2]
STARTING = 120  # seconds more for the first row: imports, weights
DONE = None


def command(spec):
    return [sys.executable, '-m', 'd2l_ext.bench.worker', json.dumps(spec)]


def environment():
    """Ours, and the way to this package wherever the call is made."""
    paths = [str(ROOT), os.environ.get('PYTHONPATH')]
    return {**os.environ,
            'PYTHONPATH': os.pathsep.join(filter(None, paths))}


def last_line(text):
    """What a traceback ends with."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ''


def reason(code, errors):
    """Why a worker ended without its rows."""
    if code < 0:
        return f'stopped by signal {-code}' + (
            ', out of memory?' if code == -9 else '')
    return last_line(errors) or f'ended with status {code}'


def save_weights(model, filename):
    """Let a process write a model's weights; ValueError if it cannot."""
    done = subprocess.run(command(dict(model=model, save=str(filename))),
                          text=True, capture_output=True, env=environment())
    if done.returncode:
        raise ValueError(f'{model}: {reason(done.returncode, done.stderr)}')


def lines_of(worker):
    """A queue of its lines, then DONE: a pipe has no time-out."""
    lines = queue.Queue()

    def read():
        for line in worker.stdout:
            lines.put(line)
        lines.put(DONE)
    threading.Thread(target=read, daemon=True).start()
    return lines


def collect(worker, wanted, limit):
    """Rows as they come, at most `wanted`; TimeoutError after limit s."""
    lines, patience = lines_of(worker), limit + STARTING
    while wanted:
        try:
            line = lines.get(timeout=patience)
        except queue.Empty:
            raise TimeoutError(f'stopped after {patience:g} s') from None
        if line is DONE:
            return
        if line.startswith('row '):
            yield json.loads(line.removeprefix('row '))
            wanted, patience = wanted - 1, limit


def work(spec, limit):
    """The rows of a worker, one for each context whatever happens."""
    left = list(spec['contexts'])
    with tempfile.TemporaryFile('w+') as errors:
        worker = subprocess.Popen(command(spec), text=True, stderr=errors,
                                  stdout=subprocess.PIPE, env=environment())
        why = None
        with worker:  # waits for it
            try:
                for row in collect(worker, len(left), limit):
                    left.remove(row['context'])
                    yield row
            except TimeoutError as error:
                worker.kill()
                why = str(error)
            except BaseException:  # interrupted: nobody waits for the rest
                worker.kill()
                raise
        errors.seek(0)
        why = why or reason(worker.returncode, errors.read())
    for context in left:
        yield dict(context=context, why=why)
        why = 'not tried after that'


def measured(plan, weights):
    """Every row of a plan, as soon as it is there.

    weights: {model: file}. A row has either times or `why` it has none.
    """
    for model in plan.models:
        for batch in plan.batches:
            for method in plan.methods:
                known = dict(model=model, batch=batch, method=method)
                spec = {**asdict(plan), **known,
                        'weights': str(weights[model])}
                for row in rows_of(spec, plan.limit):
                    yield {**known, **row}


def rows_of(spec, limit):
    if (spec['method'] in PEERS
            and importlib.util.find_spec('transformers') is None):
        return [dict(context=context, why='transformers is not installed')
                for context in spec['contexts']]
    return work(spec, limit)
