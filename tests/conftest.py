"""What tests share: the two backends, and a text of their own."""

import hashlib
import os
import signal
from types import SimpleNamespace

import pytest

if worker := os.environ.get('PYTEST_XDIST_WORKER'):  # gw0, gw1, ..
    # each process on its own cores: threads of several that share them spend
    # their time waiting for each other
    cores = sorted(getattr(os, 'sched_getaffinity', lambda _: [])(0))
    count = int(os.environ['PYTEST_XDIST_WORKER_COUNT'])
    if own := cores[int(worker.removeprefix('gw'))::count]:
        os.sched_setaffinity(0, own)
        # with one, torch.compile takes twice as long
        os.environ.setdefault('TORCHINDUCTOR_COMPILE_THREADS', '2')

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # so it is in the background of a shell; a test that interrupts what has
    # no end would wait for ever
    signal.signal(signal.SIGINT, signal.default_int_handler)

# before jax is imported: small programs are compiled in half the time
os.environ['XLA_FLAGS'] = (os.environ.get('XLA_FLAGS', '')
                           + ' --xla_cpu_use_fusion_emitters=false')

# a text of the project's own, so that no test needs a download
WORDS = ('the cat sat on the mat and the dog saw it there while rain fell '
         'over quiet hills by jumpy foxes with vexed lazy queens').split()


@pytest.fixture(params=['torch', 'jax'])
def backend(request):
    """One test body, run over both backends through NumPy."""
    from backends import BACKENDS
    return BACKENDS[request.param]


@pytest.fixture
def own_text(tmp_path, monkeypatch):
    """A data folder with a small text in the place of The Time Machine."""
    from dataclasses import replace

    from d2l_ext import hub, runs
    text = ' '.join(f'{WORDS[i * i % 23]} {WORDS[i * 7 % 20]},'.title()
                    if i % 5 == 0 else WORDS[(i * 3 + i // 7) % 24]
                    for i in range(900))
    (tmp_path / 'timemachine.txt').write_text(text)
    digest = 'sha256:' + hashlib.sha256(text.encode()).hexdigest()
    monkeypatch.setitem(hub.ASSETS, 'timemachine', replace(
        hub.ASSETS['timemachine'], hash=digest))
    monkeypatch.setenv('D2L_DATA', str(tmp_path))
    monkeypatch.setenv('D2L_TEXT', 'timemachine')
    monkeypatch.setattr(runs, 'latest', None)
    return text


@pytest.fixture(scope='session')
def fetched():
    """fetched(name): the path of a published file, or the test is skipped."""
    from d2l_ext import hub

    def fetch(name):
        try:
            return hub.fetch(name)
        except FileNotFoundError as error:
            pytest.skip(f'{name} cannot be had: {error}')
    return fetch


@pytest.fixture(scope='session')
def smollm2_gguf(fetched):
    """SmolLM2's file, which takes seconds to parse: parsed once."""
    from d2l_ext import checkpoints
    file = fetched('smollm2')
    stored, reader = checkpoints.read_gguf(file)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(checkpoints, 'read_gguf', lambda _: (stored, reader))
        encoding = checkpoints.read_smollm2(file)[1]()
    return SimpleNamespace(file=file, stored=stored, reader=reader,
                           encoding=encoding)
