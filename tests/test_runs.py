"""The labels of a run: variables, defaults, and what is refused."""

import subprocess
import sys

import pytest

from d2l_ext import hub, runs


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for variable, _ in runs.LABELS.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(runs, 'latest', None)


def have(monkeypatch, *names):
    """Only these assets lie here; fetching another one fails."""
    def fetch(name):
        if name not in names:
            raise FileNotFoundError(name)
    monkeypatch.setattr(hub, 'find', lambda name: name in names or None)
    monkeypatch.setattr(hub, 'fetch', fetch)


def test_a_bare_machine_runs_small_on_what_it_has(monkeypatch):
    have(monkeypatch, 'sotu1898', 'sotu1899')
    assert str(runs.current()) == (
        'run: profile small, text sotu1898, checkpoint smollm2')
    assert runs.current(has_gpu=True).profile == 'full'


def test_the_novel_and_gpt2_come_first_where_they_are(monkeypatch):
    have(monkeypatch, 'timemachine', 'sotu1898', 'sotu1899', 'gpt2-weights')
    run = runs.current()
    assert (run.text, run.checkpoint) == ('timemachine', 'gpt2')


def test_half_a_stand_in_is_none(monkeypatch):
    """With one of its two files, the stand-in is not yet here."""
    fetched = []
    monkeypatch.setattr(hub, 'find', lambda name: name == 'sotu1898' or None)
    monkeypatch.setattr(hub, 'fetch', fetched.append)
    assert runs.current().text == 'timemachine'
    assert fetched == ['timemachine']


def test_variables_decide(monkeypatch):
    have(monkeypatch, 'timemachine')
    monkeypatch.setenv('D2L_PROFILE', 'full')
    monkeypatch.setenv('D2L_TEXT', 'sotu1898')
    monkeypatch.setenv('D2L_CHECKPOINT', 'gpt2')
    assert str(runs.current()) == (
        'run: profile full, text sotu1898, checkpoint gpt2')
    monkeypatch.setenv('D2L_PROFILE', '')  # empty is not set
    assert runs.current().profile == 'small'


def test_a_value_that_is_none_is_refused_before_any_fetch(monkeypatch):
    have(monkeypatch)
    monkeypatch.setenv('D2L_PROFILE', 'tiny')
    with pytest.raises(ValueError, match="D2L_PROFILE='tiny'.*small, full"):
        runs.current()


def test_the_package_itself_imports_no_framework():
    """Else `from d2l_ext import torch` would give the real one."""
    code = ('import sys, d2l_ext, d2l_ext.text, d2l_ext.plotting;'
            'sys.exit("torch" in sys.modules or "jax" in sys.modules)')
    assert subprocess.run([sys.executable, '-c', code]).returncode == 0
    from d2l_ext import jax, torch
    assert torch.__name__ == 'd2l_ext.torch' and torch.GPT is not jax.GPT


def test_peak_memory_is_that_of_this_process():
    """At least what is in use now, and plausible for bytes."""
    assert 20e6 < runs.peak_bytes() < 200e9
